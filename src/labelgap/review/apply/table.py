"""Apply decisions: the observed labels with the reviewers' decisions over them, and a list of who decided what.

The table is written in the format that the data have: a CSV or Parquet file of labels keeps its layout, columns and row
order (``labelgap.labels.io.rewrite``). Decisions of several reviews are merged; where two contradict each other, the
newer one counts. Only decisions of people are applied unless other sources are named. A class that people added joins
the table; it is unknown wherever nobody decided.

Beside the table, ``NAME.provenance.csv`` lists every label that a person decided, now or for an earlier table, and
every label that a model changed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

from labelgap.core.errors import InputError
from labelgap.data.dataset import Dataset
from labelgap.data.writers.formats import check_target, convert
from labelgap.labels import Revision
from labelgap.labels.codes import UNKNOWN
from labelgap.labels.io.rewrite import LabelChanges, RewriteResult, rewrite_csv, rewrite_parquet
from labelgap.labels.io.table_file import TableOptions
from labelgap.labels.revisions import ProvenanceEntry, provenance_path, read_provenance, write_provenance
from labelgap.review.apply.merging import RevisedLabel, merge_decisions, model_revisions, revise
from labelgap.review.folder import ReviewFolder
from labelgap.review.new_classes.merging import with_classes
from labelgap.review.store import SOURCE, read_decisions

_FORMATS: Final = {".csv": "csv", ".parquet": "parquet"}


@dataclass(frozen=True)
class ApplyResult:
    """What ``apply_decisions`` wrote.

    Attributes:
        path: the table.
        provenance: the list of who decided what.
        data: the data with the new labels.
        changed: number of labels that differ from the observed ones, by source.
        decided: number of labels that people decided.
        contradicted: of these, labels on which two reviews contradict each other.
        soft: number of soft targets of models, which are not labels and were left out.
        kept: "can't tell" about labels that stay as they are, since the lists of the table cannot say unknown.
        own_format: what the table's own format had no room for; None where it is written in labelgap's.
        added: classes that people added, and the table did not have.
        others: the tables of val and test that were written too, by the name of the split: where these are files of
            their own, and are not as they were.
    """

    path: Path
    provenance: Path
    data: Dataset
    changed: dict[str, int]
    decided: int
    contradicted: int
    soft: int
    kept: int
    own_format: RewriteResult | None
    added: tuple[str, ...]
    others: dict[str, Path]


def apply_decisions(
    folders: ReviewFolder | Sequence[ReviewFolder],
    out: Path,
    sources: Sequence[str] = (),
    *,
    force: bool = False,
    decided: Sequence[Sequence[tuple[str, Revision]]] | None = None,
) -> ApplyResult:
    """Write the table of the first folder's data with decisions applied; the data themselves are never changed.

    A person's decision replaces the observed label. A model's revision fills only unknown labels, and counts up to the
    epoch that the run selected. The decisions are those of one moment, also while people are deciding.

    Args:
        folders: runs and reviews of the same images.
        out: a ``.csv`` or ``.parquet`` file; in the layout of the data where these are such a file.
        sources: methods whose revisions to apply as well, as in the runs' ``revisions.parquet``.
        force: replace existing files.
        decided: the decisions of each folder, as ``read_decisions`` returned them; read now when None.
    """
    given = [folders] if isinstance(folders, ReviewFolder) else list(folders)
    data, table_format = given[0].data, _table_format(out, given[0].data)
    provenance = provenance_path(out)
    if provenance.exists() and not force:
        raise InputError(f"{provenance} already exists. Write to another file, or replace it with --force.")
    check_target(data, out, force)
    made = [read_decisions(folder.path) for folder in given] if decided is None else decided
    people, contradicted = merge_decisions(given, made)
    decisions, added = len(people), _added_classes(data, people)
    people = [each for each in people if each.revision.class_name in (*data.classes, *added)]
    own = _writes_own_format(data, table_format, added)
    kept = 0
    if own and data.recipe["options"].get("unlisted") == "absent":
        sure = [each for each in people if each.revision.value != UNKNOWN]
        people, kept = sure, len(people) - len(sure)
    revised = [*model_revisions(given, sources), *people]
    new, entries = revise(with_classes(data, added), revised, [SOURCE, *sources])
    changed = [entry for entry in entries if entry.before != entry.revision.value]
    if own:
        own_format, others = _rewrite_tables(data, changed, added, out, table_format, force)
    else:
        convert(new, table_format, out, force=force)
        own_format, others = None, {}
    write_provenance(provenance, [*entries, *_earlier_entries(data, entries)])
    return ApplyResult(
        path=out,
        provenance=provenance,
        data=new,
        changed=dict(Counter(entry.revision.source for entry in changed)),
        decided=decisions,
        contradicted=contradicted,
        soft=sum(each.revision.target is not None for each in revised),
        kept=kept,
        own_format=own_format,
        added=added,
        others=others,
    )


def _table_format(out: Path, data: Dataset) -> str:
    """Return the format that a file name asks for; the suffix of the data's own file is one of these too."""
    source = str(data.recipe.get("path") or "")
    own = (
        {Path(source).suffix.lower(): str(data.recipe["name"])} if data.recipe.get("name") in ("csv", "parquet") else {}
    )
    table_format = {**own, **_FORMATS}.get(out.suffix.lower())
    if table_format is None:
        raise InputError(f"--out {out}: a table is written as .csv or .parquet.")
    return table_format


def _writes_own_format(data: Dataset, table_format: str, added: Sequence[str] = ()) -> bool:
    """Whether the table can be written as the data's own file: the format agrees, and no label was hidden since.

    Lists whose unlisted classes are absent cannot say that a class that was added is unknown.
    """
    if data.recipe.get("name") != table_format or data.recipe["steps"]:
        return False
    return not added or data.recipe["options"].get("unlisted") != "absent"


def _added_classes(data: Dataset, people: Sequence[RevisedLabel]) -> tuple[str, ...]:
    """Return the classes that the data do not have and that somebody decided a label of, in the order of time."""
    sure = [each.revision.class_name for each in people if each.revision.value != UNKNOWN]
    return tuple(name for name in dict.fromkeys(sure) if name not in data.classes)


def _earlier_entries(data: Dataset, entries: Sequence[ProvenanceEntry]) -> list[ProvenanceEntry]:
    """Return what people decided for the table that is the data now, except for what was decided again."""
    source = data.recipe.get("path")
    again = {(entry.revision.image, entry.revision.class_name) for entry in entries}
    earlier = read_provenance(provenance_path(Path(source))) if source else []
    return [
        entry for entry in earlier if entry.by_person and (entry.revision.image, entry.revision.class_name) not in again
    ]


def _rewrite_tables(
    data: Dataset,
    changed: Sequence[ProvenanceEntry],
    added: Sequence[str],
    out: Path,
    table_format: str,
    force: bool,
) -> tuple[RewriteResult, dict[str, Path]]:
    """Write the new labels into the data's own file format.

    Val and test that are files of their own are written beside the table, as NAME.val.csv, where a label changed, or
    where 0 means something else in the new tables.
    """
    changes: dict[str, dict[str, int]] = {}
    for entry in changed:
        changes.setdefault(entry.revision.image, {})[entry.revision.class_name] = entry.revision.value
    given: Mapping[str, Any] = data.recipe["options"]
    options = TableOptions.of(given)
    rewrite: Callable[[Path, Path, LabelChanges, TableOptions], RewriteResult]
    if table_format == "parquet":
        rewrite = partial(rewrite_parquet, added=added)
    else:
        rewrite = partial(rewrite_csv, added=added, encoding=given.get("encoding"), delimiter=given.get("delimiter"))
    others = {
        name: out.with_name(f"{out.stem}.{name}{out.suffix}")
        for name in ("val", "test")
        if given.get(name) and (options.zeros == "unknown" or any(entry.split == name for entry in changed))
    }
    for place in others.values():
        check_target(data, place, force)
    for name, place in others.items():
        rewrite(Path(given[name]), place, changes, options)
    return rewrite(Path(data.recipe["path"]), out, changes, options), others
