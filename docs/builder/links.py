"""Links between files of the repository, as the site needs them."""

from __future__ import annotations

import posixpath
import re
from pathlib import Path

__all__ = ["OUTSIDE", "page_of", "site_links"]

PROJECT = Path(__file__).resolve().parents[2]
OUTSIDE = {
    "CHANGELOG.md": "project/changelog.md",
    "CONTRIBUTING.md": "project/contributing.md",
    "LICENSE": "project/license.md",
    "README.md": "index.md",
    "SECURITY.md": "project/security.md",
    "examples/digits.py": "examples/digits.md",
    "examples/lightning_module.py": "examples/lightning_module.md",
    "examples/own_loop.py": "examples/own_loop.md",
    "examples/quickstart.py": "examples/quickstart.md",
}
"""Files outside of ``docs`` that have a page in the site."""
LINK = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^)\s]+)\)")
FENCE = re.compile(r"^( *```.*?^ *```)", re.MULTILINE | re.DOTALL)


def page_of(path: str) -> str | None:
    """Return the source of the page that shows a file of the repository; None where there is none."""
    return path.removeprefix("docs/") if path.startswith("docs/") else OUTSIDE.get(path)


def site_links(text: str, source: str, page: str) -> str:
    """Return Markdown with its links changed for the site.

    A link to a file that the site does not show becomes its text; one to a file that does not exist stays, and the
    build reports it.

    Args:
        text: the Markdown; code blocks are left alone.
        source: the file it comes from, relative to the repository.
        page: the page that it becomes.
    """

    def replace(match: re.Match[str]) -> str:
        image, label, target = match.groups()
        address, hash_, anchor = target.partition("#")
        if not address or re.match(r"[a-z]+:", address):
            return match[0]
        path = posixpath.normpath(posixpath.join(posixpath.dirname(source), address))
        shown = page_of(path)
        if shown is not None:
            return f"{image}[{label}]({posixpath.relpath(shown, posixpath.dirname(page) or '.')}{hash_}{anchor})"
        return label if (PROJECT / path).exists() and not path.startswith("..") else match[0]

    parts = FENCE.split(text)
    return "".join(part if part.lstrip().startswith("```") else LINK.sub(replace, part) for part in parts)
