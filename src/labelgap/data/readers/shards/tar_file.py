"""What is in a shard: its images and their labels, by the headers of the tar file."""

from __future__ import annotations

import hashlib
import os
import re
import sys
import tarfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Final

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from labelgap.core.errors import InputError
from labelgap.core.files import file_digest
from labelgap.core.stored import parse_json
from labelgap.core.text import truncate_text
from labelgap.data.readers.image_names import is_image_name
from labelgap.data.readers.shards.index import DIGEST_BYTES, ImageRows, ShardEntry
from labelgap.labels.io.table_file import SPLIT_NAMES

LABEL_SUFFIX: Final = "json"
_MAX_LABEL_BYTES: Final = 16 << 20
_KEY: Final = re.compile(r"((?:.*/)?[^/.]+)\.([^/]*)", re.DOTALL)
_LAYOUT: Final = (
    'An image is two members, 000017.jpg and 000017.json: {"present": […], "absent": […], "split": "train"}.'
)


class _Labels(BaseModel):
    """The label member of an image."""

    model_config = ConfigDict(extra="ignore", frozen=True, strict=True)

    present: list[str]
    absent: list[str] = []
    image: str | None = None
    split: str | None = None
    group: Annotated[int, Field(ge=-1, lt=2**62)] = -1


@dataclass(frozen=True, eq=False)
class ShardContent:
    """The images of one shard.

    Attributes:
        entry: of the index.
        names: of the images.
        splits: of the images; "" where the shard does not say.
        offsets: where each image begins.
        sizes: bytes of each image.
        digests: of each image.
        groups: -1 for none.
        labels: of each image, the names of its present and of its absent classes.
    """

    entry: ShardEntry
    names: list[str] = field(default_factory=list)
    splits: list[str] = field(default_factory=list)
    offsets: list[int] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)
    digests: list[bytes] = field(default_factory=list)
    groups: list[int] = field(default_factory=list)
    labels: list[tuple[list[str], list[str]]] = field(default_factory=list)


def scan_shard(path: Path) -> ShardContent:
    """Read a shard from beginning to end; ``InputError`` where it is damaged, or an image has no labels."""
    try:
        digest = file_digest(path).hex()
        with path.open("rb") as file, tarfile.open(fileobj=file, mode="r:") as tar:
            members = _members(tar, path)
            found = [_read(file, parts, path) for parts in members.values()]
            size = os.fstat(file.fileno()).st_size
    except FileNotFoundError:
        raise InputError(f"{path} does not exist.") from None
    except (tarfile.TarError, EOFError) as error:
        raise InputError(f"{path} is damaged or truncated: {str(error) or 'not a tar file'}.") from None
    except OSError as error:
        raise InputError(f"{path} cannot be read: {(error.strerror or str(error)).lower()}.") from None
    splits = {labels.split or "" for _, labels, _, _ in found}
    split: Any = splits.pop() if len(splits) == 1 else ""
    try:
        entry = ShardEntry(name=path.name, split=split, count=len(found), bytes=size, digest=digest)
    except ValidationError:
        raise InputError(f"{str(path)!r} has no usable name: rename it, e.g. to train-000000.tar.") from None
    content = ShardContent(entry)
    for name, labels, member, image_digest in found:
        content.names.append(labels.image or name)
        content.splits.append(labels.split or "")
        content.offsets.append(member.offset_data)
        content.sizes.append(member.size)
        content.digests.append(image_digest)
        content.groups.append(labels.group)
        content.labels.append(([*map(sys.intern, labels.present)], [*map(sys.intern, labels.absent)]))
    return content


def _members(tar: tarfile.TarFile, path: Path) -> dict[str, dict[str, tarfile.TarInfo]]:
    """Return key → suffix → member, of the images and their labels; other members are ignored."""
    found: dict[str, dict[str, tarfile.TarInfo]] = {}
    for member in tar:
        match = _KEY.fullmatch(member.name)
        if match is None or not member.isreg() or member.issparse():
            continue
        suffix = match[2].lower()
        kind = LABEL_SUFFIX if suffix == LABEL_SUFFIX else "image" if is_image_name(f"a.{suffix}") else ""
        if kind and kind in found.setdefault(match[1], {}):
            raise InputError(f"{path}: {match[1]} has two members '{kind}'. {_LAYOUT}")
        if kind:
            found[match[1]][kind] = member
    for key, parts in found.items():
        if missing := {"image", LABEL_SUFFIX} - parts.keys():
            raise InputError(f"{path}: {key} has no {missing.pop()} member. {_LAYOUT}")
    return {key: parts for key, parts in found.items() if parts}


def _read(file: Any, parts: Mapping[str, tarfile.TarInfo], path: Path) -> tuple[str, _Labels, tarfile.TarInfo, bytes]:
    """Return the name, the labels, the member and the digest of an image."""
    image, labels = parts["image"], parts[LABEL_SUFFIX]
    if labels.size > _MAX_LABEL_BYTES:
        raise InputError(f"{path}: {labels.name} has more than {_MAX_LABEL_BYTES:,} bytes.")
    content = [_bytes(file, member) for member in (image, labels)]
    try:
        value = parse_json(content[1])
        parsed = _Labels.model_validate(value)
        if len({*parsed.present, *parsed.absent}) < len(parsed.present) + len(parsed.absent):
            raise ValueError("a class is listed twice")
        split = None if not parsed.split else SPLIT_NAMES[parsed.split.lower()]
    except (ValueError, ValidationError, KeyError) as error:
        problem = error.errors(include_url=False)[0] if isinstance(error, ValidationError) else None
        reason = f"split {error}" if isinstance(error, KeyError) else str(error)
        reason = f"{'.'.join(map(str, problem['loc']))}: {problem['msg']}" if problem else reason
        raise InputError(f"{path}: {labels.name}: {truncate_text(reason, 200)}. {_LAYOUT}") from None
    digest = hashlib.blake2b(content[0], digest_size=DIGEST_BYTES).digest()
    return image.name, parsed.model_copy(update={"split": split}), image, digest


def _bytes(file: Any, member: tarfile.TarInfo) -> bytes:
    file.seek(member.offset_data)
    content: bytes = file.read(member.size)
    if len(content) < member.size:
        raise tarfile.ReadError("unexpected end of data")
    return content


def join_contents(
    contents: Sequence[ShardContent], classes: Sequence[str] | None = None
) -> tuple[tuple[str, ...], ImageRows]:
    """Return the classes and the images of several shards.

    Args:
        contents: of the shards, in the order of their numbers.
        classes: all classes, in order; those that occur, sorted, when None.
    """
    if classes is None:
        classes = sorted({name for each in contents for lists in each.labels for names in lists for name in names})
    number = {name: place for place, name in enumerate(classes)}
    starts, columns = [], []
    for state in range(2):
        lists = [lists[state] for content in contents for lists in content.labels]
        starts.append(np.concatenate([[0], np.cumsum([len(names) for names in lists], dtype=np.int64)]))
        columns.append(np.array([number[name] for names in lists for name in names], dtype=np.int32))
    sizes = [len(content.names) for content in contents]
    rows = ImageRows(
        tuple(name for content in contents for name in content.names),
        np.array([split or "train" for content in contents for split in content.splits], dtype="U5"),
        np.repeat(np.arange(len(contents), dtype=np.int32), sizes),
        np.array([offset for content in contents for offset in content.offsets], dtype=np.int64),
        np.array([size for content in contents for size in content.sizes], dtype=np.int64),
        np.frombuffer(b"".join(d for content in contents for d in content.digests), np.uint8).reshape(-1, DIGEST_BYTES),
        np.array([group for content in contents for group in content.groups], dtype=np.int64),
        np.stack(starts),
        (columns[0], columns[1]),
    )
    return tuple(classes), rows
