"""A setting is declared in one place, and found wherever settings are; a configuration comes back as it was written."""

from __future__ import annotations

import inspect
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.training.plain_config import PLAIN

import labelgap as lg
from labelgap.core.errors import InputError, UnknownNameError
from labelgap.training import keywords
from labelgap.training.config import CONFIG_FILE, RunConfig, read_config, write_config
from labelgap.training.settings import KEYWORDS, SETTINGS, TrainingSettings, check_settings, keywords_module

SOURCE = Path(lg.__file__).parent
ADDED = '''    patience: Annotated[Count, Setting(OPTIMIZATION)] = 7
    """Epochs without a better score."""
'''
EVERYWHERE = """
import json, sys
from labelgap.training.settings import KEYWORDS, keywords_module
from labelgap.training.config import RunConfig
from labelgap.training.plan import TrainingRequest, resolve_settings
assert "patience: int | None" in keywords_module()
assert resolve_settings("linear", True, {}, {"patience": 3})["patience"] == 3
given = {"data": {}, "classes": ["a"], "method": "an", "backbone": "small-cnn", "protocol": "linear", "flip": False}
given |= {"epochs": 1, "lr": 1, "backbone_lr": 1, "batch_size": 1, "seed": 0, "select": "last", "trace": "off"}
config = RunConfig(**given, patience=3)
assert json.loads(config.model_dump_json())["patience"] == 3
assert config.fingerprint() != RunConfig(**given).fingerprint()
from labelgap.training.rerun import fit_arguments, train_script
assert fit_arguments(config)["patience"] == 3 and "patience=3" in train_script(config)
TrainingRequest(training={"patience": 0}).check()
"""


def test_the_keywords_of_fit_are_those_of_the_schema() -> None:
    assert Path(keywords.__file__).read_text() == keywords_module(), "run: python -m labelgap.training.settings"
    assert tuple(keywords.TrainingKeywords.__annotations__) == KEYWORDS
    assert all(info.description for info, _ in SETTINGS.values())
    arguments = {name for name in SETTINGS if name not in KEYWORDS}
    assert arguments <= set(inspect.signature(lg.fit).parameters)


def test_a_setting_that_is_added_in_one_line_is_found_everywhere(tmp_path: Path) -> None:
    """In the keywords, the configuration, the checks, the command that repeats a run, and the options of commands."""
    shutil.copytree(SOURCE, tmp_path / "labelgap", ignore=shutil.ignore_patterns("__pycache__"))
    schema = tmp_path / "labelgap" / "training" / "settings.py"
    before = "    lr: Annotated[Rate, _NUMBER]\n"
    schema.write_text(schema.read_text().replace(before, ADDED + before))
    environment = {**os.environ, "PYTHONPATH": str(tmp_path), "COLUMNS": "200"}
    run = {"capture_output": True, "text": True, "env": environment, "cwd": tmp_path}
    found = subprocess.run([sys.executable, "-c", EVERYWHERE], **run)  # type: ignore[call-overload]
    assert "patience=0" in found.stderr.splitlines()[-1] and "InputError" in found.stderr.splitlines()[-1]
    for command in ("train", "sweep"):
        found = subprocess.run([sys.executable, "-m", "labelgap", command, "--help"], **run)  # type: ignore[call-overload]
        assert "--patience" in found.stdout and "Epochs without a better score." in found.stdout


def test_all_wrong_values_are_in_one_error() -> None:
    with pytest.raises(InputError) as caught:
        check_settings({"epochs": 0, "lr": -1.0, "optimizer": "adma"})
    assert all(name in str(caught.value) for name in ("epochs=0", "lr=-1.0", "optimizer='adma'"))
    with pytest.raises(UnknownNameError, match="batch_size"):
        check_settings({"batchsize": 4})
    check_settings({name: info.default for name in KEYWORDS if (info := TrainingSettings.model_fields[name]).default})


def test_a_configuration_comes_back_as_it_was_written_also_that_of_an_earlier_version(tmp_path: Path) -> None:
    phase: dict[str, Any] = {"linear_epochs": 9, "linear_lr": 0.01, "linear_batch_size": 8}
    for config in (RunConfig.checked(**PLAIN), RunConfig.checked(**{**PLAIN, "protocol": "linear-init", **phase})):
        write_config(tmp_path, config)
        assert read_config(tmp_path) == config
    stored = json.loads((tmp_path / CONFIG_FILE).read_text())
    nested = {name.removeprefix("linear_"): stored.pop(name) for name in phase}
    (tmp_path / CONFIG_FILE).write_text(json.dumps({**stored, "linear": nested}))
    assert stored["format"] == 1
    assert read_config(tmp_path) == config and read_config(tmp_path).fingerprint() == config.fingerprint()
    with pytest.raises(InputError, match="'epochs'"):
        RunConfig.checked(**PLAIN, epoch=3)
