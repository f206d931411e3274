"""More images for a finished run: its table joined with theirs, its head fitted anew, its audit made again.

The run is trained in a folder inside of the old one, and then takes its place at once. Decisions name an image and a
class, and so hold for the new run too.
"""

from __future__ import annotations

import os
import re
import shutil
from collections import defaultdict
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import pyarrow.parquet as pq

from labelgap.audit.candidates import FILE, read_metadata
from labelgap.audit.runs import find_missing
from labelgap.core.errors import InputError, ProblemsError, RunError
from labelgap.core.files import atomic_path, make_folder
from labelgap.core.lock import lock_folder
from labelgap.core.manifest import replace_together, replacing
from labelgap.core.text import join_names, pluralize
from labelgap.data.dataset import Dataset
from labelgap.data.readers.table import NewImages, open_table
from labelgap.data.registry import load_by_name
from labelgap.labels import ABSENT
from labelgap.labels.io.rewrite import NewImage, rewrite_table
from labelgap.labels.io.table_file import TableOptions
from labelgap.labels.revisions import provenance_path
from labelgap.training import Run, open_run
from labelgap.training.auto import only_prior
from labelgap.training.config import JOINED
from labelgap.training.fit import fit
from labelgap.training.progress import Reporter
from labelgap.training.rerun import fit_arguments
from labelgap.training.run_folder import clean_folder

PathLike = str | os.PathLike[str]
NOTHING: Final = "nothing to add"  # the beginning of what is said where a run has all images already
_LINE: Final = re.compile(r", (?:line|row) \d+(?=\))")
"""Where a message has the line of an image: here that of a table that nobody sees."""
_FOLDER: Final = ".growing"  # the new run until it is whole, in the folder of the old one


def add_images(
    run: Run | PathLike,
    table: PathLike,
    images: PathLike | None = None,
    *,
    device: str = "auto",
    workers: int | None = None,
    quiet: bool = False,
) -> Run:
    """Join new images to the data of a finished run, fit its head anew with the same settings, and renew its audit.

    Only the features of the new images are computed. The table that the run was trained on is not changed: all its rows
    and the new ones are in ``joined.csv`` (or ``.parquet``) in the folder of the run, which is its data from now on.

    Args:
        run: a run of the protocol "linear", trained on a CSV or Parquet file.
        table: a table in the form of the run's own, with new images, whose labels may be unknown; or a folder, of which
            all images that are new are taken, without labels. Rows are train; a column ``split`` may say otherwise
            where the run's table has one.
        images: the folder that names in the table are relative to: that of the run's images, or one in it.
        device: the same as in ``fit``, like ``workers`` and ``quiet``.
        workers: processes that decode images.
        quiet: print nothing.

    Returns:
        The new run, in the folder of the old one; the old one where there is nothing to add.
    """
    folder, reporter = run.path if isinstance(run, Run) else Path(run), Reporter(quiet)
    with lock_folder(folder, "adding images"):
        opened = run if isinstance(run, Run) else open_run(run)
        check_run(opened)
        data, place = opened.load_data(), Path(table).expanduser()
        new = NewImages(data, place, None if images is None else Path(images).expanduser())
        if new.known or not new.names:
            reporter.log(f"{NOTHING}: {folder} has all images of {place}")
            return opened
        growing = folder.absolute() / _FOLDER
        shutil.rmtree(growing, ignore_errors=True)
        try:
            make_folder(growing)
            joined = _join(data, new, growing)
            if only_prior(data) and not only_prior(joined):  # its method learns nothing from unknown labels
                raise RunError(
                    f"{folder} was trained on its prior alone, and {place} has labels that are known to be present: "
                    "train a new run on one table of all images, with --prior."
                )
            reporter.log(f"{pluralize(len(new.names), 'image')} of {place} added to {len(new.data.train):,}")
            given = fit_arguments(opened.config)
            if opened.config.optimizer == "newton":
                del given["batch_size"]  # all images
            if opened.config.backbone_input is not None:
                given = {**given, "backbone": opened.initial_backbone(), "weights": None}
            how: dict[str, Any] = {"device": device, "workers": workers, "quiet": quiet}
            if fit(joined, out=growing, **given, **how).metrics.get("interrupted", True):
                raise KeyboardInterrupt
            clean_folder(folder, interrupted=False)  # with a manifest, whose files are replaced
            if (folder / FILE).exists():
                _renew_audit(folder, growing, reporter, how)
            replace_together(folder, growing)
        finally:
            shutil.rmtree(growing, ignore_errors=True)
    return open_run(folder)


def check_run(run: Run) -> None:
    """Refuse a run that cannot get more images, and say what to do instead."""
    config, anew = run.config, "train a new run on one table of all images"
    if run.metrics.get("interrupted", True):
        raise RunError(f"{run.path} is not finished: resume it with --resume, then add images.")
    if config.protocol != "linear":
        raise RunError(
            f"{run.path} is of the protocol {config.protocol}, and images can be added to linear heads only: {anew}, "
            "with --protocol linear if more are to come."
        )
    if config.data.get("name") not in ("csv", "parquet") or config.data["steps"]:
        hidden = bool(config.data.get("steps"))
        what = "of which labels were hidden" if hidden else "which is no CSV or Parquet file of labels and images"
        raise RunError(
            f"{run.path} was trained on {config.data.get('name', 'data made by hand')}, {what}: {anew}"
            f"{'' if hidden else ' (labelgap convert DATA --to csv)'}."
        )


def _join(data: Dataset, new: NewImages, folder: Path) -> Dataset:
    recipe, labels = data.recipe, new.file.table
    options = TableOptions.of(recipe["options"])
    if unknown := [name for name in labels.classes if name not in data.classes]:
        raise InputError(
            f"{new.file.path} has {join_names(unknown, 5)} as a class, and the run does not: delete that column or "
            "tag, or train a new run on one table with all classes."
        )
    lists = options.unlisted == "absent"
    if lists and len(labels.values) < len(labels) * len(data.classes):
        raise InputError(
            f"{new.file.path} has unknown labels, and in the run's table a class that is not listed is absent "
            "(--unlisted absent): list the classes of every new image."
        )
    changes: dict[str, dict[str, int]] = defaultdict(dict)
    for row, column, code in zip(labels.rows.tolist(), labels.columns.tolist(), labels.values.tolist(), strict=True):
        if not (lists and code == ABSENT):
            changes[new.names[row]][labels.classes[column]] = code
    count = len(new.names)
    columns = new.names, new.file.splits or ("train",) * count, new.file.groups or ("",) * count
    path = folder / f"{JOINED}.{recipe['name']}"
    rows = [NewImage(*row) for row in zip(*columns, strict=True)]
    written = rewrite_table(open_table(Path(recipe["path"]), recipe["options"]), path, changes, options, images=rows)
    if (listed := provenance_path(Path(recipe["path"]))).exists():
        shutil.copyfile(listed, provenance_path(path))
    given = {**recipe["options"], "images": os.fspath(new.root)}
    if written.zeros_cleared:
        del given["zeros"]
    try:
        return load_by_name(recipe["name"], path, **given)
    except ProblemsError as error:  # an image is a copy of one in another split
        found = [replace(each, message=_LINE.sub("", each.message)) for each in error.problems]
        raise ProblemsError(new.file.path, found, "nothing was added: leave the new image out", unit="") from None


def _renew_audit(folder: Path, growing: Path, reporter: Reporter, how: dict[str, Any]) -> None:
    """Audit the new run as the old one was; one with zero-shot scores is left to its own command."""
    about = read_metadata(folder / FILE)
    if about["zero_shot"] is not None:
        reporter.log(f"the audit had zero-shot scores: make it again with labelgap audit {folder} --zero-shot")
        return
    shutil.copyfile(folder / FILE, growing / FILE)  # the audit knows what it replaces
    limits = {name: about[name] for name in ("folds", "per_class", "limit") if about[name]}
    find_missing(growing, splits=about["splits"] or "train", seed=about["seed"], **limits, **how)
    table = pq.read_table(growing / FILE)
    named = {key: text.replace(f"{os.sep}{_FOLDER}".encode(), b"") for key, text in table.schema.metadata.items()}
    with replacing(growing, [FILE]), atomic_path(growing / FILE) as temporary:
        pq.write_table(table.replace_schema_metadata(named), temporary, write_page_checksum=True)
