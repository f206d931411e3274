"""The whole story on the data that comes with labelgap: what missing labels cost, and what the methods win back."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from labelgap.core.errors import RunError
from labelgap.data import load
from labelgap.studies.study import Member, Study
from labelgap.training import Run, fit

__all__ = ["run_demo"]

TITLE = "One known label per image: what do the missing ones cost?"
METHODS = ("an", "an-ls", "ll-r")
EPOCHS = 7


def run_demo(
    out: str | os.PathLike[str],
    *,
    epochs: int = EPOCHS,
    seed: int = 0,
    device: str = "auto",
    told: Callable[[str, Run], None] = lambda label, run: None,
) -> Study:
    """Train on the digits with all labels, then with one per image by several methods, all with the same budget.

    Args:
        out: folder of the study; it must not exist yet.
        epochs: of every run.
        seed: of every run.
        device: as for ``fit``.
        told: called with the label and the run after each.
    """
    folder = Path(out)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise RunError(f"{folder} is there already: choose another --out, or remove it.")
    data = load("digits")
    members = [Member("all labels", "all-labels", ceiling=True), *(Member(name, name) for name in METHODS)]
    for member in members:
        labels, method = (data.reveal(), "bce") if member.ceiling else (data, member.label)
        run = fit(labels, method, out=folder / member.folder, epochs=epochs, seed=seed, device=device)
        told(member.label, run)
    study = Study(folder, TITLE, members)
    study.write()
    return study
