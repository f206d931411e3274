"""The classes of a table: renames, aliases and selection, names that may mean one class, and the hierarchy."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from labelgap.core.errors import InputError, UnknownNameError, nearest
from labelgap.core.findings import Finding, Note
from labelgap.core.text import fold_name, format_option, join_names, pluralize, truncate_text
from labelgap.labels.codes import PRESENT
from labelgap.labels.io.dialect import detect_dialect, open_text, split_records
from labelgap.labels.io.table_file import (
    LIST_COLUMNS,
    RESERVED_COLUMNS,
    MoreSimilarClasses,
    ProblemList,
    SimilarClasses,
    TableOptions,
)
from labelgap.labels.revisions import Revisions
from labelgap.labels.table import LabelTable

_MAX_SHOWN: Final = 10
_MAX_COMPARISONS: Final = 100_000
_HEADERS: Final = frozenset({"alias", "child", "class", "from", "name", "new", "old", "parent", "synonym", "tag", "to"})


def resolve_class_names(options: TableOptions) -> dict[str, str]:
    """Return the final name of every class that ``rename`` or ``aliases`` renames."""
    synonyms = read_name_pairs(Path(options.aliases), "synonym", "tag") if options.aliases is not None else []
    pairs = [pair for pair in synonyms if pair[0] not in options.rename]
    return resolve_aliases([*pairs, *options.rename.items()], "--rename and --aliases" if pairs else "--rename")


def apply_class_options(
    table: LabelTable, options: TableOptions, names: Mapping[str, str], written: Iterable[str]
) -> tuple[LabelTable, Revisions, list[Finding]]:
    """Select ``options.classes`` of a table, whose names in the file are ``written``, and add the implied labels."""
    findings: list[Finding] = []
    known = {*written}
    for old, new in options.rename.items():
        if old not in known and new.lower() not in (*RESERVED_COLUMNS, *LIST_COLUMNS):
            raise UnknownNameError("tag", truncate_text(old), map(truncate_text, known), "(--rename OLD=NEW)")
    if renamed := sorted(known.intersection(names)):
        pairs_shown = truncate_text(", ".join(f"{old} = {names[old]}" for old in renamed), 200)
        findings.append(Note(f"renamed: {pairs_shown}"))
    if options.classes is not None:
        table, selected = _select(table, [names.get(name, name) for name in options.classes])
        findings += selected
    revisions = Revisions()
    if options.parents is not None:
        pairs = read_name_pairs(Path(options.parents), "child", "parent")
        revisions, contradicted, unknown_names = implied_labels(
            table, [(names.get(child, child), names.get(parent, parent)) for child, parent in pairs]
        )
        table = table.revised(revisions)
        text = f"parents add {pluralize(len(revisions), 'present label')}"
        if contradicted:
            verbs = ("say", "stay") if contradicted > 1 else ("says", "stays")
            labels = pluralize(contradicted, "label")
            text += f"; {labels} {verbs[0]} absent where a child is present, and {verbs[1]}"
        if unknown_names:
            text += f"; no tags here: {truncate_text(', '.join(unknown_names), 100)}"
        findings.append(Note(text))
    return table, revisions, [*findings, *similar_class_names(table)]


def _select(table: LabelTable, classes: Sequence[str]) -> tuple[LabelTable, list[Finding]]:
    classes = list(dict.fromkeys(classes))
    in_table, selected_names = {*table.classes}, {*classes}
    missing = [name for name in classes if name not in in_table]
    if len(missing) == len(classes):
        raise UnknownNameError("tag", truncate_text(missing[0]), map(truncate_text, table.classes), "(--classes)")
    left_out = [name for name in table.classes if name not in selected_names]
    selected = table.with_classes(classes)
    lost = len(table.values) - len(selected.values)
    findings: list[Finding] = []
    if left_out:
        names = truncate_text(", ".join(left_out), 200)
        findings.append(Note(f"tags left out: {names} ({pluralize(lost, 'label')})"))
    compared = max(1, min(_MAX_SHOWN, _MAX_COMPARISONS // max(len(left_out), 1)))
    for number, name in enumerate(missing):
        near = nearest(name, left_out) if number < compared else None
        hint = f"; did you mean '{truncate_text(near)}'?" if near else ""
        findings.append(Note(f"'{truncate_text(name)}' is never listed{hint}"))
    return selected, findings


def read_name_pairs(path: Path, first: str, second: str) -> list[tuple[str, str]]:
    """Read a CSV of two columns, with or without a header, or raise one error with all problems."""
    dialect = detect_dialect(path, None, None, lambda cells: len(cells) == 2)
    pairs, problems = list[tuple[str, str]](), ProblemList(path)
    with open_text(path, dialect.encoding) as file:
        for line, cells in split_records(file, dialect.delimiter, dialect.skip, problems):
            if len(cells) == 2 and all(cells):
                pairs.append((cells[0], cells[1]))
            else:
                problems.add(line, f"a line is {first},{second}; this has {len(cells)} cells")
    problems.fixable = False  # it is no table of labels
    problems.refuse()
    return pairs[1:] if pairs and {*map(str.casefold, pairs[0])} <= _HEADERS else pairs


def resolve_aliases(pairs: Iterable[tuple[str, str]], where: str) -> dict[str, str]:
    """Return the final name of every alias; an alias of two names and a cycle are errors."""
    direct: dict[str, str] = {}
    for old, new in pairs:
        if direct.setdefault(old, new) != new:
            names = (truncate_text(name) for name in (old, direct[old], new))
            raise InputError("{}: '{}' stands for '{}' and for '{}'. It can stand for one tag.".format(where, *names))
    direct = {old: new for old, new in direct.items() if old != new}
    aliases, final = dict[str, set[str]](), dict[str, str]()
    for old, new in direct.items():
        aliases.setdefault(new, set()).add(old)
    for name in reversed(_sorted_names(aliases, where)):
        final[name] = final[direct[name]] if name in direct else name
    return {old: final[old] for old in direct}


def _sorted_names(needed: Mapping[str, set[str]], where: str) -> list[str]:
    """Return all names, those that a name needs before it; a cycle is an error."""
    try:
        return list(TopologicalSorter(needed).static_order())
    except CycleError as error:
        names = error.args[1][:-1]
        first = names.index(min(names))
        shown = [truncate_text(name) for name in (*names[first:], *names[: first + 1])]
        shown = shown if len(shown) <= _MAX_SHOWN else [*shown[: _MAX_SHOWN - 2], "…", shown[-1]]
        raise InputError(f"{where}: {' → '.join(shown)} is a cycle.") from None


_PLURALS: Final = (("ies", "y"), ("ches", "ch"), ("shes", "sh"), ("ses", "s"), ("xes", "x"), ("zes", "z"), ("s", ""))
_MAX_COMPARED: Final = 200
_MIN_LETTERS: Final = 5
_MIN_LETTERS_ONCE: Final = 3
_MAX_LETTERS: Final = 40
"""Lengths between which a wrong letter is searched for: cat and car are two words. But where one of them occurs once,
it is questioned from three letters on."""
_RARER: Final = 5
"""A misspelled name has so many times fewer positives than the right one: house and horse both have many."""


def similar_class_names(table: LabelTable) -> list[SimilarClasses | MoreSimilarClasses]:
    """Find classes whose names differ only in case, blanks, marks, a plural, or one letter of a rare name."""
    present = table.counts().present.tolist()
    by_key: dict[str, list[tuple[str, int]]] = {}
    for column, name in enumerate(table.classes):
        by_key.setdefault(_key(name), []).append((name, present[column]))
    counts = {key: sum(count for _, count in names) for key, names in by_key.items()}
    written = {key: {key, *(_letters(name) for name, _ in names)} for key, names in by_key.items()}
    for rare, frequent in _near_spellings(counts, written):
        by_key[frequent] += by_key.pop(rare)
    similar = [
        SimilarClasses(tuple(sorted(names, key=lambda item: (-item[1], item[0]))))
        for names in by_key.values()
        if len(names) > 1
    ]
    more = [MoreSimilarClasses(len(similar) - _MAX_SHOWN)] if len(similar) > _MAX_SHOWN else []
    return [*similar[:_MAX_SHOWN], *more]


def fold_case(counts: Mapping[str, int]) -> dict[str, str]:
    """Return the name to use for every name that differs from a more frequent one only in case and blanks."""
    groups: dict[str, list[str]] = {}
    for name in counts:
        groups.setdefault(name if len(name) > _MAX_COMPARED else fold_name(name), []).append(name)
    chosen = {key: min(names, key=lambda name: (-counts[name], name)) for key, names in groups.items()}
    return {name: chosen[key] for key, names in groups.items() for name in names if name != chosen[key]}


def describe_same_names(counts: Mapping[str, int]) -> str | None:
    """Return which names differ only in case and blanks, and the option that makes them one; None where none do."""
    pairs = fold_case(counts)
    if not pairs:
        return None
    shown = [
        f"'{truncate_text(name)}' and '{truncate_text(chosen)}' ({format_option('rename', f'{name}={chosen}')})"
        for name, chosen in pairs.items()
    ]
    return f"tags that differ only in case or blanks: {join_names(shown, _MAX_SHOWN)}"


def is_near_spelling(one: str, other: str) -> bool:
    """Return whether two names differ in one letter: another, one more, one less, or one elsewhere."""
    return not {one, *_without_a_letter(one)}.isdisjoint({other, *_without_a_letter(other)})


def _near_spellings(counts: Mapping[str, int], written: Mapping[str, Iterable[str]]) -> Iterator[tuple[str, str]]:
    """Yield every rare name that differs in one letter from a frequent one, with the most frequent of these."""
    frequent: dict[str, str] = {}  # also by every form without a letter, so that the work grows with the letters
    for name in sorted(counts, key=lambda name: (-counts[name], name)):
        if not _MIN_LETTERS_ONCE <= len(name) <= _MAX_LETTERS:
            continue
        count = counts[name]
        least, needed = (_MIN_LETTERS_ONCE, 2) if count == 1 else (_MIN_LETTERS, _RARER * max(count, 1))
        forms = {form for spelling in written[name] for form in (spelling, *_without_a_letter(spelling))}
        near = {frequent[form] for form in forms if form in frequent}
        close = [other for other in near if counts[other] >= needed and min(len(name), len(other)) >= least]
        if close:
            yield name, min(close, key=lambda other: (-counts[other], other))
        elif count > 1:
            for form in forms:
                frequent.setdefault(form, name)


def _without_a_letter(name: str) -> Iterator[str]:
    return (name[:place] + name[place + 1 :] for place, letter in enumerate(name) if not letter.isdigit())


def _letters(name: str) -> str:
    if len(name) > _MAX_COMPARED:  # normalization may take quadratic time
        return name
    return re.sub(r"[\W_]+", "", unicodedata.normalize("NFKC", name).casefold()) or name


def _key(name: str) -> str:
    """Return a name without case, blanks, punctuation and plural ending."""
    letters = _letters(name)
    if 3 < len(letters) <= _MAX_COMPARED and not letters.endswith("ss"):
        for ending, singular in _PLURALS:
            if letters.endswith(ending):
                return letters.removesuffix(ending) + singular
    return letters


HIERARCHY_SOURCE: Final = "parents"
_MAX_LABELS: Final = 2_000_000
_MAX_PER_LABEL: Final = 100  # how many labels a hierarchy may imply: so many, and so many for every known label


def implied_labels(table: LabelTable, pairs: Iterable[tuple[str, str]]) -> tuple[Revisions, int, tuple[str, ...]]:
    """Find the labels that follow from "child present, so parent present", over any number of generations.

    Returned are the revisions of unknown labels, how many labels are absent although a descendant is present (they stay
    so), and the names that are no class of the table, which connect others all the same.
    """
    children: dict[str, set[str]] = {}
    for child, parent in pairs:
        children.setdefault(parent, set()).add(child)
    order = _sorted_names(children, "parents")  # children before their parents
    number = {name: column for column, name in enumerate(table.classes)}
    count = max(len(table.classes), 1)
    rows, places = table.rows, [np.zeros(0, dtype=np.int64)]
    known = rows * count + table.columns
    present = _rows_by_class(table)
    limit = _MAX_LABELS + _MAX_PER_LABEL * len(table.values)
    found: dict[str, NDArray[np.int64]] = {}
    for name in order:
        own = present[number[name]] if name in number else places[0]
        below = [found[child] for child in children.get(name, ())]
        parts = {id(part): part for part in (own, *below) if len(part)}
        found[name] = (
            next(iter(parts.values()), own) if len(parts) < 2 else np.unique(np.concatenate([*parts.values()]))
        )
        if len(parts) > 1 or (name in number and found[name] is not own):
            limit -= len(found[name])
        if limit < 0:
            raise InputError("parents: the hierarchy implies too many labels; is it a chain of thousands of classes?")
        if name in number and found[name] is not own:
            places.append(found[name] * count + number[name])
    implied = np.unique(np.concatenate(places))
    contradicted = int(np.isin(known[table.values != PRESENT], implied).sum())
    row, column = np.divmod(implied[~np.isin(implied, known)], count)
    revisions = Revisions.from_arrays(table, row, column, source=HIERARCHY_SOURCE, epoch=None)
    return revisions, contradicted, tuple(sorted({*order} - number.keys()))


def _rows_by_class(table: LabelTable) -> list[NDArray[np.int64]]:
    present = table.values == PRESENT
    columns = table.columns[present]
    order = np.argsort(columns, kind="stable")
    ends = np.cumsum(np.bincount(columns, minlength=len(table.classes)))
    return np.split(table.rows[present][order], ends[:-1])
