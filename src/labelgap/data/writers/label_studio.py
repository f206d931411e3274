"""Label Studio: its tasks, and the interface of a project with two lists of choices, present and absent."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote, unquote, urlsplit
from xml.etree import ElementTree

from labelgap.core.errors import InputError
from labelgap.core.files import write_text
from labelgap.core.stored import parse_xml
from labelgap.core.text import truncate_text
from labelgap.data.dataset import Dataset
from labelgap.data.readers.image_paths import is_image_name
from labelgap.data.writers.exchange import (
    ExchangeTable,
    from_lists,
    known_class_names,
    merge_splits,
    read_json,
    write_compact_json,
)

LOCAL_FILES: Final = "/data/local-files/?d="

_STATES: Final = ("present", "absent")
_TITLES: Final = {"present": "There", "absent": "Not there"}


def write_label_studio(data: Dataset, path: Path, prefix: str = LOCAL_FILES) -> Path:
    """Write the observed labels as tasks for Label Studio, and beside them the interface (``.xml``); return its path.

    A task has two multiple choices, ``present`` and ``absent``. ``prefix`` begins every image's URL; by default images
    come from local storage, below ``LABEL_STUDIO_LOCAL_FILES_DOCUMENT_ROOT``.
    """
    interface = interface_path(path)
    text = _interface(data)
    exchange = merge_splits(data)
    tasks = []
    for row, (name, split) in enumerate(zip(exchange.table.images, exchange.splits or (), strict=True)):
        file = exchange.files[row]
        url = prefix + (file if prefix.partition("://")[0] in ("s3", "gs") else quote(file))
        result = [
            {"id": state, "from_name": state, "to_name": "image", "type": "choices", "value": {"choices": names}}
            for state, names in zip(_STATES, known_class_names(exchange.table, row), strict=True)
            if names
        ]
        task: dict[str, Any] = {"data": {"image": url, "name": name, "split": split}}
        tasks.append(task | ({"annotations": [{"result": result}]} if result else {}))
    write_text(interface, text)
    write_compact_json(path, tasks)
    return interface


def read_label_studio(path: Path, unlisted: str = "unknown") -> ExchangeTable:
    """Read tasks: what ``write_label_studio`` wrote, or the JSON export of any project with choices or boxes.

    Of several annotations of a task the last one counts, and cancelled ones do not. ``unlisted="absent"``: what
    annotators did not choose is absent in the tasks that have an annotation.
    """
    tasks = read_json(path)
    if not isinstance(tasks, list):
        raise InputError(f"{path} is not a list of Label Studio tasks.")
    return table_of_tasks(tasks, path, _interface_classes(interface_path(path)) or None, unlisted)


def table_of_tasks(tasks: list[Any], path: Path, classes: Sequence[str] | None, unlisted: str) -> ExchangeTable:
    """Return the labels of tasks, as ``read_label_studio`` does; ``path`` is where they are from, for errors."""
    try:
        images = [image_name(task["data"]) for task in tasks]
        splits = [task["data"].get("split", "") for task in tasks]
        if not all(isinstance(split, str) for split in splits):
            raise TypeError("a split that is a text")
        annotations = [_last_annotation(task) for task in tasks]
        lists = [_chosen(annotation) for annotation in annotations]
    except (KeyError, TypeError, AttributeError) as error:
        what = truncate_text(str(error), 200)
        raise InputError(f"{path} is not a list of Label Studio tasks: one lacks {what}.") from None
    present, absent = ([chosen[state] for chosen in lists] for state in _STATES)
    complete = None if unlisted == "unknown" else [each is not None for each in annotations]
    return from_lists(path, present, absent, classes, images, [[split] for split in splits], complete)


def interface_path(path: Path) -> Path:
    """Return the path of the interface of a file of tasks."""
    if path.suffix.lower() == ".xml":
        raise InputError(f"{path} would be the interface: give the tasks another suffix, e.g. {path.stem}.json")
    return path.with_suffix(".xml")


_UPLOADED: Final = re.compile(r"/data/upload/\d+/[0-9a-f]{8}-")
"""What Label Studio puts before the name of a file that was uploaded."""


def image_name(data: Mapping[str, Any]) -> str:
    """Return the name of a task's image: ``name``, or the path in the address of the image."""
    if "name" in data:
        return str(data["name"])
    for url in data.values():
        if isinstance(url, str):
            name = url.partition(LOCAL_FILES)[2] or _UPLOADED.sub("", urlsplit(url).path).lstrip("/")
            if is_image_name(name):
                return unquote(name)
    raise KeyError("an image")


def _last_annotation(task: dict[str, Any]) -> dict[str, Any] | None:
    kept = [found for found in task.get("annotations") or () if not found.get("was_cancelled")]
    return kept[-1] if kept else None


def _chosen(annotation: dict[str, Any] | None) -> dict[str, list[str]]:
    """Return the classes that an annotation says are present and absent, each once."""
    found: dict[str, list[str]] = {state: [] for state in _STATES}
    for result in annotation["result"] if annotation else ():
        kind = result.get("type", "choices")
        if kind == "choices" or kind.endswith("labels"):  # choices; or rectanglelabels, brushlabels …
            state = "absent" if result["from_name"] == "absent" else "present"
            names = result["value"][kind]
            if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
                raise TypeError(f"a list of names in {kind}")
            found[state] += [name for name in names if name not in found[state]]
    return found


def _interface(data: Dataset) -> str:
    view = ElementTree.Element("View")
    ElementTree.SubElement(view, "Image", name="image", value="$image")
    for state in _STATES:
        ElementTree.SubElement(view, "Header", value=_TITLES[state])
        choices = {"name": state, "toName": "image", "choice": "multiple", "showInline": "true"}
        parent = ElementTree.SubElement(view, "Choices", choices)
        for name in data.classes:
            ElementTree.SubElement(parent, "Choice", value=name)
    ElementTree.indent(view)
    text = ElementTree.tostring(view, encoding="unicode") + "\n"
    try:
        read = [choice.get("value") for choice in ElementTree.fromstring(text).iterfind("Choices/Choice")]
    except ElementTree.ParseError:
        read = []
    if read != 2 * list(data.classes):
        raise InputError(f"{data.name}: a class has a character in its name that Label Studio's interface cannot hold.")
    return text


def _interface_classes(interface: Path) -> list[str]:
    if not interface.exists():
        return []
    try:
        view = parse_xml(interface.read_bytes())
    except (ValueError, OSError) as error:
        raise InputError(f"{interface} is not a labeling interface: {truncate_text(str(error), 200)}.") from None
    choices = (
        view.findall(".//Choices[@name='present']/Choice") or view.findall(".//Choice") or view.findall(".//Label")
    )
    return list(dict.fromkeys(choice.get("value", "") for choice in choices))
