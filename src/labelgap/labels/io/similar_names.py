"""Names that may mean the same class: other case, other marks, a plural, or a letter that is wrong."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator, Mapping
from typing import Final

from labelgap.core.text import format_option, join_names, truncate_text
from labelgap.labels.io.findings import MoreSimilarClasses, SimilarClasses
from labelgap.labels.table import LabelTable

_PLURALS: Final = (("ies", "y"), ("ches", "ch"), ("shes", "sh"), ("ses", "s"), ("xes", "x"), ("zes", "z"), ("s", ""))
_MAX_SHOWN: Final = 10
_MAX_COMPARED: Final = 200
_MIN_LETTERS: Final = 5
_MAX_LETTERS: Final = 40
"""Lengths between which a wrong letter is searched for: cat and car are two words."""
_RARER: Final = 5
"""A misspelled name has so many times fewer positives than the right one: house and horse both have many."""


def similar_class_names(table: LabelTable) -> list[SimilarClasses | MoreSimilarClasses]:
    """Find classes whose names differ only in case, blanks, marks, a plural, or one letter of a rare name.

    Example:
        >>> tags = [["Dog", "cats"], ["Dog", "dog"], ["cat", "owl", "preson"], *[["person"]] * 5]
        >>> for found in similar_class_names(LabelTable.from_lists(tags)):
        ...     print(found)
        'Dog' (2) and 'dog' (1) look like one tag: --rename dog=Dog
        'cat' (1) and 'cats' (1) look like one tag: --rename cats=cat
        'person' (5) and 'preson' (1) look like one tag: --rename preson=person
    """
    present = table.counts().present.tolist()
    by_key: dict[str, list[tuple[str, int]]] = {}
    for column, name in enumerate(table.classes):
        by_key.setdefault(_key(name), []).append((name, present[column]))
    for rare, frequent in _near_spellings({key: sum(count for _, count in by_key[key]) for key in by_key}):
        by_key[frequent] += by_key.pop(rare)
    similar = [
        SimilarClasses(tuple(sorted(names, key=lambda item: (-item[1], item[0]))))
        for names in by_key.values()
        if len(names) > 1
    ]
    more = [MoreSimilarClasses(len(similar) - _MAX_SHOWN)] if len(similar) > _MAX_SHOWN else []
    return [*similar[:_MAX_SHOWN], *more]


def fold_case(counts: Mapping[str, int]) -> dict[str, str]:
    """Return the name to use for every name that differs from a more frequent one only in case and blanks.

    Example:
        >>> fold_case({"Dog": 1, "dog": 7, "traffic  light": 2, "Traffic light": 2, "dogs": 3})
        {'Dog': 'dog', 'traffic  light': 'Traffic light'}
    """
    groups: dict[str, list[str]] = {}
    for name in counts:
        folded = name if len(name) > _MAX_COMPARED else unicodedata.normalize("NFKC", name).casefold()
        groups.setdefault(" ".join(folded.split()), []).append(name)
    chosen = {key: min(names, key=lambda name: (-counts[name], name)) for key, names in groups.items()}
    return {name: chosen[key] for key, names in groups.items() for name in names if name != chosen[key]}


def describe_same_names(counts: Mapping[str, int]) -> str | None:
    """Return which names differ only in case and blanks, and the option that makes them one; None where none do.

    Example:
        >>> print(describe_same_names({"Dog": 1, "dog": 7, "cat": 2}))
        tags that differ only in case or blanks: 'Dog' and 'dog' (--rename Dog=dog)
    """
    pairs = fold_case(counts)
    if not pairs:
        return None
    shown = [
        f"'{truncate_text(name)}' and '{truncate_text(chosen)}' ({format_option('rename', f'{name}={chosen}')})"
        for name, chosen in pairs.items()
    ]
    return f"tags that differ only in case or blanks: {join_names(shown, _MAX_SHOWN)}"


def is_near_spelling(one: str, other: str) -> bool:
    """Return whether two names differ in one letter: another, one more, one less, or one elsewhere.

    Example:
        >>> is_near_spelling("preson", "person"), is_near_spelling("tets", "test"), is_near_spelling("car", "bus")
        (True, True, False)
    """
    return not {one, *_without_a_letter(one)}.isdisjoint({other, *_without_a_letter(other)})


def _near_spellings(counts: Mapping[str, int]) -> Iterator[tuple[str, str]]:
    """Yield every rare name that differs in one letter from a frequent one, with the most frequent of these.

    Two such names become equal when a letter of one or of both is left out, so the work grows with the letters.
    """
    frequent: dict[str, str] = {}
    for name in sorted(counts, key=lambda name: (-counts[name], name)):
        if not _MIN_LETTERS <= len(name) <= _MAX_LETTERS:
            continue
        forms = [name, *_without_a_letter(name)]
        near = {frequent[form] for form in forms if form in frequent}
        close = [other for other in near if counts[other] >= _RARER * counts[name]]
        if close:
            yield name, min(close, key=lambda other: (-counts[other], other))
        elif counts[name] >= _RARER:
            for form in forms:
                frequent.setdefault(form, name)


def _without_a_letter(name: str) -> Iterator[str]:
    """Yield a name without each of its letters; digits stay, since class1 and class2 are two."""
    return (name[:place] + name[place + 1 :] for place, letter in enumerate(name) if not letter.isdigit())


def _key(name: str) -> str:
    """Return a name without case, blanks, punctuation and plural ending."""
    if len(name) > _MAX_COMPARED:  # normalization may take quadratic time
        return name
    letters = re.sub(r"[\W_]+", "", unicodedata.normalize("NFKC", name).casefold())
    if len(letters) > 3 and not letters.endswith("ss"):
        for ending, singular in _PLURALS:
            if letters.endswith(ending):
                return letters.removesuffix(ending) + singular
    return letters or name
