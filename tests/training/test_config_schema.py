"""A run's configuration: refused when wrong, read back as it was written."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.training.plain_config import PLAIN

from labelgap.core.errors import InputError, RunError
from labelgap.training.config import CONFIG_FILE, RunConfig, read_config, write_config


def test_it_comes_back_as_it_was_written(tmp_path: Path) -> None:
    config = RunConfig.checked(**PLAIN)
    write_config(tmp_path, config)
    assert read_config(tmp_path) == config
    assert json.loads((tmp_path / "config.json").read_text())["format"] == 1


def test_an_unknown_key_names_the_nearest() -> None:
    with pytest.raises(InputError, match="did you mean 'epochs'"):
        RunConfig.checked(**PLAIN, epoch=3)


@pytest.mark.parametrize(
    ("content", "message"), [(None, "no config.json"), ("{", "damaged"), ('{"format": 7}', "format 7")]
)
def test_a_folder_that_is_no_run_says_why(tmp_path: Path, content: str | None, message: str) -> None:
    if content is not None:
        (tmp_path / "config.json").write_text(content)
    with pytest.raises(RunError, match=message):
        read_config(tmp_path)


def test_the_first_phase_of_a_run_of_an_earlier_version_is_read(tmp_path: Path) -> None:
    phase: dict[str, Any] = {"linear_epochs": 9, "linear_lr": 0.01, "linear_batch_size": 8}
    config = RunConfig(**{**PLAIN, "protocol": "linear-init", **phase})
    write_config(tmp_path, config)
    stored = json.loads((tmp_path / CONFIG_FILE).read_text())
    nested = {name.removeprefix("linear_"): stored.pop(name) for name in phase}
    (tmp_path / CONFIG_FILE).write_text(json.dumps({**stored, "linear": nested}))
    assert read_config(tmp_path) == config and read_config(tmp_path).fingerprint() == config.fingerprint()
