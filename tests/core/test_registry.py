from __future__ import annotations

import math
from importlib.metadata import EntryPoint, EntryPoints

import pytest

from labelgap.core import registry
from labelgap.core.errors import UnknownNameError
from labelgap.core.registry import Registry, RegistryEntry, load_plugins


@pytest.fixture
def methods() -> Registry[str]:
    registry: Registry[str] = Registry("method", hint="`labelgap methods` lists all {count}.")
    registry.add("role", "R", summary="online estimation", reference="Cole 2021")
    registry.add("an", "A", summary="assume negative")
    return registry


def test_what_was_added_is_found_with_what_is_said_of_it(methods: Registry[str]) -> None:
    assert methods.get("role") == RegistryEntry("role", "R", "online estimation", "Cole 2021")
    assert methods.get("an").reference == ""


def test_names_keep_the_order_in_which_they_came(methods: Registry[str]) -> None:
    assert methods.names() == ["role", "an"]
    assert [entry.value for entry in methods] == ["R", "A"]
    assert len(methods) == 2


def test_membership_is_asked_by_name(methods: Registry[str]) -> None:
    assert "an" in methods
    assert "em" not in methods
    assert 3 not in methods


def test_a_miss_names_the_nearest_what_it_is_and_how_to_see_all(methods: Registry[str]) -> None:
    with pytest.raises(UnknownNameError) as caught:
        methods.get("rloe")
    assert str(caught.value) == (
        "there is no method 'rloe'. Did you mean 'role' (online estimation)? `labelgap methods` lists all 2."
    )
    assert caught.value.__suppress_context__


def test_an_empty_registry_says_only_that_nothing_is_there() -> None:
    with pytest.raises(UnknownNameError, match=r"^there is no backbone 'a'\.$"):
        Registry[int]("backbone").get("a")


def test_a_name_is_given_once(methods: Registry[str]) -> None:
    with pytest.raises(ValueError, match="the method 'an' is registered already"):
        methods.add("an", "B", summary="another")
    assert methods.get("an").value == "A"


def plugins_named(monkeypatch: pytest.MonkeyPatch, **values: str) -> None:
    found = EntryPoints(EntryPoint(name, value, "labelgap.test") for name, value in values.items())
    monkeypatch.setattr(registry, "entry_points", lambda group: found.select(group=group))


def test_plugins_are_loaded_from_their_entry_point_group(monkeypatch: pytest.MonkeyPatch) -> None:
    plugins_named(monkeypatch, root="math:sqrt")
    assert list(load_plugins("labelgap.test")) == [("root", math.sqrt)]
    assert list(load_plugins("labelgap.other")) == []


def test_a_plugin_that_cannot_be_loaded_is_left_out_with_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    plugins_named(monkeypatch, broken="math:nothing_of_this_name", root="math:sqrt")
    with pytest.warns(UserWarning, match=r"'broken' of the package math:nothing_of_this_name is left out.*Attribute"):
        assert list(load_plugins("labelgap.test")) == [("root", math.sqrt)]
