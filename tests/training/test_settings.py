"""A setting is declared in one place, and found wherever settings are; a configuration comes back as it was written."""

from __future__ import annotations

import inspect
import json
from pathlib import Path
from typing import Any

import pytest
from tests.training.plain_config import PLAIN

import labelgap as lg
from labelgap.core.errors import InputError, UnknownNameError
from labelgap.training import keywords
from labelgap.training.config import CONFIG_FILE, RunConfig, read_config, write_config
from labelgap.training.settings import KEYWORDS, SETTINGS, TrainingSettings, check_settings, keywords_module


def test_the_keywords_of_fit_are_those_of_the_schema() -> None:
    assert Path(keywords.__file__).read_text() == keywords_module(), "run: python -m labelgap.training.settings"
    assert tuple(keywords.TrainingKeywords.__annotations__) == KEYWORDS
    assert all(info.description for info, _ in SETTINGS.values())
    arguments = {name for name in SETTINGS if name not in KEYWORDS}
    assert arguments <= set(inspect.signature(lg.fit).parameters)


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
