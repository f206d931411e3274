"""The fenced code blocks of the documentation, with their marks."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

PROJECT = Path(__file__).resolve().parents[2]
FENCE = re.compile(r"^(?P<indent> *)```(?P<info>.*)\n(?P<text>(?:.*\n)*?)(?P=indent)``` *$", re.MULTILINE)
MARK = re.compile(r"<!-- (not run: .+|output(?:, other numbers elsewhere)?) -->\n *\Z")
TITLE = re.compile(r'title="([^"]+)"')


@dataclass(frozen=True)
class Block:
    """A fenced block of a page, with the file that it is and the mark above it, if any."""

    page: str
    line: int
    language: str
    title: str
    text: str
    mark: str

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"


def pages() -> list[Path]:
    """Every page with code: those of docs, and those beside it."""
    names = ("README.md", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md", "examples/plugin/README.md")
    return [*sorted((PROJECT / "docs").rglob("*.md")), *(PROJECT / name for name in names)]


def blocks_of(text: str, page: str) -> Iterator[Block]:
    """Yield the blocks of a page in order."""
    for match in FENCE.finditer(text):
        before = text[: match.start()]
        mark = MARK.search(before)
        title = TITLE.search(match["info"])
        yield Block(
            page=page,
            line=before.count("\n") + 1,
            language=(match["info"].split() or [""])[0],
            title=title[1] if title else "",
            text=re.sub(rf"^{match['indent']}", "", match["text"], flags=re.MULTILINE),
            mark=mark[1] if mark else "",
        )


def commands_of(block: Block) -> list[str]:
    """The commands of a block, lines joined, without comments, with variables replaced; of a console, after ``$``."""
    lines = re.sub(r"\\\n\s*", "", block.text).splitlines()
    if block.language == "console":
        lines = [line[2:] for line in lines if line.startswith("$ ")]
    commands, variables = [], dict[str, str]()
    for line in lines:
        command = re.sub(r"(^|\s)#.*", "", line).strip()
        for name, value in variables.items():
            command = command.replace(f"${name}", value)
        if assignment := re.fullmatch(r"([A-Z_]+)=(\S+)", command):
            variables[assignment[1]] = assignment[2]
        elif loops := re.findall(r"for (\w+) in (\S+)[^;]*; do", command):
            variables.update(loops)
        elif command and not re.fullmatch(r"(done;? ?)+", command):
            commands.append(command)
    return commands
