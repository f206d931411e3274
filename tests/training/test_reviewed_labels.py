"""Absents that people decided on likely labels are left out of training by `auto`, and nothing else is."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
from tests.training.test_search import album

import labelgap as lg
from labelgap.labels import ABSENT, LabelTable, Revision
from labelgap.labels.revisions import ProvenanceEntry, provenance_path, write_provenance
from labelgap.training.rerun import fit_arguments
from labelgap.training.reviewed_labels import leave_out_ranked_absents


def reviewed(folder: Path) -> tuple[lg.Dataset, np.ndarray]:
    """An album of presents in which a person decided labels absent: two likely ones, and all of the first image."""
    data = album()
    before = data.train.labels.to_dense()
    codes = before.copy()
    likely = [(row + 1, column) for row, column in np.argwhere(before[1:] == -1)[:2].tolist()]
    decided = [*likely, *((0, number) for number in np.flatnonzero(before[0] == -1))]
    for entry in decided:
        codes[entry] = ABSENT
    table = LabelTable.from_dense(codes, classes=data.classes, images=data.train.labels.images)
    time = datetime(2026, 1, 1, tzinfo=UTC)
    entries = [
        Revision(table.images[row], table.classes[column], ABSENT, "review", time=time, author="me")
        for row, column in decided
    ]
    path = folder / "better.csv"
    write_provenance(provenance_path(path), [ProvenanceEntry("train", each, -1) for each in entries])
    recipe = {"name": "csv", "path": str(path), "options": {}, "steps": []}
    return replace(data, train=replace(data.train, labels=table), recipe=recipe), before


def test_absents_of_images_that_are_known_in_full_stay(tmp_path: Path) -> None:
    data, before = reviewed(tmp_path)
    found, count = leave_out_ranked_absents(data)
    assert count == 2
    np.testing.assert_array_equal(found.train.labels.to_dense()[1:], before[1:])
    np.testing.assert_array_equal(found.train.labels.to_dense()[0], data.train.labels.to_dense()[0])
    provenance_path(tmp_path / "better.csv").unlink()
    assert leave_out_ranked_absents(data) == (data, 0)


def test_auto_leaves_them_out_and_the_run_is_repeated_by_its_command(tmp_path: Path) -> None:
    data, _ = reviewed(tmp_path)
    run = lg.fit(data, out=tmp_path / "a", device="cpu", quiet=True, epochs=2)
    assert run.config.reviewed_absents == "ignore"
    again = lg.fit(data, **fit_arguments(run.config), out=tmp_path / "b", device="cpu", quiet=True)
    np.testing.assert_array_equal(run.predict(data.train.images), again.predict(data.train.images))
    for settings in ({"reviewed_absents": "use"}, {"method": "gr"}):
        out = tmp_path / next(iter(settings))
        used = lg.fit(data, out=out, device="cpu", quiet=True, epochs=2, **settings)  # type: ignore[arg-type]
        assert used.config.reviewed_absents == "use"
    resumed = lg.fit(data, out=tmp_path / "a", device="cpu", quiet=True, epochs=2, resume=True)
    assert resumed.config == run.config
