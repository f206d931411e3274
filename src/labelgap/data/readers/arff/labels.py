"""Which attributes of an ARFF file are labels: those that Mulan's XML names, or that MEKA counts in the relation."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from labelgap.core.errors import RunError
from labelgap.core.stored import parse_xml, read_bytes
from labelgap.core.text import truncate_text
from labelgap.data.readers.arff.parser import ArffFile, Attribute
from labelgap.labels import ABSENT, PRESENT
from labelgap.labels.io.problems import ProblemList

_COUNT: Final = re.compile(r"(?:^|[\s:])-C\s+(-?\d{1,9})(?!\S)")
_STATES: Final = {
    **dict.fromkeys(("1", "1.0", "true", "yes", "y", "t"), PRESENT),
    **dict.fromkeys(("0", "0.0", "false", "no", "n", "f"), ABSENT),
}
_STEM: Final = re.compile(r"[-_.](?:train|test|val)$", re.IGNORECASE)


def labels_file(path: Path, *, counted: bool = False) -> Path | None:
    """Return Mulan's XML of an ARFF file: NAME.xml beside NAME.arff or NAME-train.arff, or the only one there.

    Where MEKA's count says which attributes are labels, the XML of another name is one of another table.
    """
    stems = (path.stem, _STEM.sub("", path.stem))
    named = next((place for stem in stems if (place := path.with_name(f"{stem}.xml")).is_file()), None)
    others = [] if counted else sorted(path.parent.glob("*.xml"))
    return named or (others[0] if len(others) == 1 else None)


def find_labels(file: ArffFile, problems: ProblemList) -> list[int]:
    """Return the numbers of the attributes that are labels; empty, with problems, where that cannot be told."""
    place = f"{file.path.name}, line {file.relation_line}"
    match = _COUNT.search(file.relation)
    xml = labels_file(file.path, counted=match is not None)
    counted: list[int] | None = None
    if match is not None:
        count, width = int(match[1]), len(file.attributes)
        if count == 0 or abs(count) > width:
            problems.append(f"{place}: -C {count} labels, and there are {width} attributes")
            return []
        counted = list(range(width))[:count] if count > 0 else list(range(width))[count:]
    if xml is None:
        if counted is None:
            stem = _STEM.sub("", file.path.stem)
            remedy = f"put Mulan's {stem}.xml beside it, or write MEKA's count into it: @relation '{stem}: -C 6'"
            problems.append(f"{place}: nothing says which attributes are labels: {remedy}")
        return counted or []
    named = _read_names(xml, file, problems)
    if counted is not None and named and {*named} != {*counted}:
        problems.append(f"{place}: -C counts other labels than {xml.name} names")
    return named


def _read_names(xml: Path, file: ArffFile, problems: ProblemList) -> list[int]:
    """Return the attributes that an XML file names, in the order of the ARFF file."""
    number_of = {attribute.name: number for number, attribute in enumerate(file.attributes)}
    try:
        root = parse_xml(read_bytes(xml, limit=16 << 20))
    except (RunError, ValueError) as error:
        problems.append(f"{xml.name} cannot be read ({truncate_text(str(error), 200)})")
        return []
    elements = [each for each in root.iter() if each.tag.rpartition("}")[2] == "label"]
    found: set[int] = set()
    for each in elements:
        name = each.get("name", "")
        if name not in number_of:
            problems.append(f"{xml.name}: '{truncate_text(name)}' is no attribute of {file.path.name}")
        elif number_of[name] in found:
            problems.append(f"{xml.name}: the label '{truncate_text(name)}' is there twice")
        else:
            found.add(number_of[name])
    if not elements:
        problems.append(f"{xml.name} names no label: it is <labels> of <label name=…/>")
    return sorted(found)


def label_states(attribute: Attribute) -> list[int] | None:
    """Return the state of every value of a label, which may be numeric (0 and 1); None where they are no states.

    Example:
        >>> label_states(Attribute("beach", "nominal", ("1", "0"))), label_states(Attribute("age", "nominal", ("7",)))
        ([1, 0], None)
    """
    if attribute.kind == "numeric":
        return [ABSENT, PRESENT]
    states = [_STATES.get(value.lower()) for value in attribute.values]
    known = [state for state in states if state is not None]
    return known if known and len(known) == len(states) == len({*known}) else None
