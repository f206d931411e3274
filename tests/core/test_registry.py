from __future__ import annotations

import math
from importlib.metadata import EntryPoint, EntryPoints

import pytest

from labelgap.core import registry
from labelgap.core.registry import Registry, load_plugins


def test_plugins_are_loaded_from_their_entry_point_group(monkeypatch: pytest.MonkeyPatch) -> None:
    values = {"broken": "math:nothing_of_this_name", "root": "math:sqrt"}
    found = EntryPoints(EntryPoint(name, value, "labelgap.test") for name, value in values.items())
    monkeypatch.setattr(registry, "entry_points", lambda group: found.select(group=group))
    with pytest.warns(UserWarning, match=r"'broken' of the package math:nothing_of_this_name .*Attribute"):
        assert list(load_plugins("labelgap.test")) == [("root", math.sqrt)]
    assert list(load_plugins("labelgap.other")) == []


def test_a_name_is_added_once_and_all_are_listed_in_the_order_in_which_they_came() -> None:
    methods: Registry[str] = Registry("method")
    for name in ("role", "an"):
        methods.add(name, name.upper(), summary="of a paper")
    with pytest.raises(ValueError, match="'an'"):
        methods.add("an", "B", summary="another")
    assert methods.names() == ["role", "an"] and methods.get("an").value == "AN"
