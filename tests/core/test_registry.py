from __future__ import annotations

import math
from importlib.metadata import EntryPoint, EntryPoints

import pytest

from labelgap.core import registry
from labelgap.core.errors import UnknownNameError
from labelgap.core.registry import Registry, RegistryEntry, load_plugins


def test_what_was_added_is_found_by_name_in_the_order_in_which_it_came() -> None:
    methods: Registry[str] = Registry("method", hint="`labelgap methods` lists all {count}.")
    methods.add("role", "R", summary="online estimation", reference="Cole 2021")
    methods.add("an", "A", summary="assume negative")
    assert methods.get("role") == RegistryEntry("role", "R", "online estimation", "Cole 2021")
    assert methods.names() == ["role", "an"] and [entry.value for entry in methods] == ["R", "A"] and len(methods) == 2
    assert "an" in methods and "em" not in methods and 3 not in methods
    with pytest.raises(UnknownNameError, match=r"'role' \(online estimation\).* lists all 2") as miss:
        methods.get("rloe")
    assert miss.value.nearest == "role" and miss.value.__suppress_context__
    with pytest.raises(ValueError, match="'an'"):
        methods.add("an", "B", summary="another")
    assert methods.get("an").value == "A"


def test_plugins_are_loaded_from_their_entry_point_group(monkeypatch: pytest.MonkeyPatch) -> None:
    values = {"broken": "math:nothing_of_this_name", "root": "math:sqrt"}
    found = EntryPoints(EntryPoint(name, value, "labelgap.test") for name, value in values.items())
    monkeypatch.setattr(registry, "entry_points", lambda group: found.select(group=group))
    with pytest.warns(UserWarning, match=r"'broken' of the package math:nothing_of_this_name .*Attribute"):
        assert list(load_plugins("labelgap.test")) == [("root", math.sqrt)]
    assert list(load_plugins("labelgap.other")) == []
