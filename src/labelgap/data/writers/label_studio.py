"""Labels as tasks that Label Studio imports, and the labeling interface that shows them.

A task has one annotation with two multiple choices: ``present`` and ``absent``; a class selected in neither is unknown.
The interface is written beside the tasks as ``.xml``: paste it into the project's settings before the import.

Label Studio shows images by URL. Without a prefix they are read from its local storage
(``/data/local-files/?d=…`` below ``LABEL_STUDIO_LOCAL_FILES_DOCUMENT_ROOT``).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final
from urllib.parse import quote
from xml.etree import ElementTree

from labelgap.core.errors import InputError
from labelgap.core.files import write_text
from labelgap.core.stored import parse_xml
from labelgap.core.text import truncate_text
from labelgap.data.dataset import Dataset
from labelgap.data.writers.exchange import ExchangeTable, known_class_names, merge_splits, read_json, write_compact_json
from labelgap.labels import LabelTable

LOCAL_FILES: Final = "/data/local-files/?d="

_STATES: Final = ("present", "absent")
_TITLES: Final = {"present": "There", "absent": "Not there"}


def write_label_studio(data: Dataset, path: Path, prefix: str = LOCAL_FILES) -> Path:
    """Write the observed labels of all splits as tasks, and beside them the interface; return its path.

    ``prefix`` begins every image's URL, e.g. ``https://example.org/photos/`` or ``s3://bucket/``.
    """
    interface = interface_path(path)
    text = _interface(data)
    exchange = merge_splits(data)
    tasks = []
    for row, (name, split) in enumerate(zip(exchange.table.images, exchange.splits or (), strict=True)):
        file = exchange.files[row]
        url = prefix + (file if prefix.partition("://")[0] in ("s3", "gs") else quote(file))
        result = [
            _choices(state, names)
            for state, names in zip(_STATES, known_class_names(exchange.table, row), strict=True)
            if names
        ]
        task: dict[str, Any] = {"data": {"image": url, "name": name, "split": split}}
        tasks.append(task | ({"annotations": [{"result": result}]} if result else {}))
    write_text(interface, text)
    write_compact_json(path, tasks)
    return interface


def read_label_studio(path: Path) -> ExchangeTable:
    """Read what ``write_label_studio`` wrote, or Label Studio's own export (JSON) of such a project.

    Classes come in the order of the interface where it is beside the tasks, else sorted. Of several annotations of a
    task the last one counts, and cancelled ones do not.
    """
    tasks = read_json(path)
    if not isinstance(tasks, list):
        raise InputError(f"{path} is not a list of Label Studio tasks.")
    try:
        images = [task["data"]["name"] for task in tasks]
        splits = [task["data"].get("split") for task in tasks]
        lists = [_selected(task) for task in tasks]
        if not all(split is None or isinstance(split, str) for split in splits):
            raise TypeError("a split that is a text")
    except (KeyError, TypeError, AttributeError) as error:
        what = truncate_text(str(error), 200)
        raise InputError(f"{path} is not a list of Label Studio tasks: one lacks {what}.") from None
    present, absent = ([selected[state] for selected in lists] for state in _STATES)
    classes = _classes_of(interface_path(path)) or None
    try:
        table = LabelTable.from_lists(present, absent, classes=classes, images=images)
    except InputError as error:
        raise InputError(f"{path}: {error}") from None
    return ExchangeTable(table, None if None in splits else tuple(splits))


def interface_path(path: Path) -> Path:
    """Return the path of the interface of a file of tasks."""
    if path.suffix.lower() == ".xml":
        raise InputError(f"{path} would be the interface: give the tasks another suffix, e.g. {path.stem}.json")
    return path.with_suffix(".xml")


def _choices(state: str, names: list[str]) -> dict[str, Any]:
    return {"id": state, "from_name": state, "to_name": "image", "type": "choices", "value": {"choices": names}}


def _selected(task: dict[str, Any]) -> dict[str, list[str]]:
    kept = [found for found in task.get("annotations") or () if not found.get("was_cancelled")]
    selected: dict[str, list[str]] = {state: [] for state in _STATES}
    for result in kept[-1]["result"] if kept else ():
        if result["from_name"] in selected:
            selected[result["from_name"]] = list(result["value"]["choices"])
    return selected


def _interface(data: Dataset) -> str:
    """Return the labeling interface: the image, and the classes twice."""
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


def _classes_of(interface: Path) -> list[str]:
    if not interface.exists():
        return []
    try:
        view = parse_xml(interface.read_bytes())
    except (ValueError, OSError) as error:
        raise InputError(f"{interface} is not a labeling interface: {truncate_text(str(error), 200)}.") from None
    return [choice.get("value", "") for choice in view.iterfind("Choices[@name='present']/Choice")]
