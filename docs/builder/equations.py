"""Equations without a script: TeX becomes MathML when the site is built.

A Markdown extension for what docstrings use: the directive ``.. math::`` with its indented continuation, and the role
``:math:`…```.
"""

from __future__ import annotations

import re
from typing import Any

from latex2mathml.converter import convert
from markdown import Extension, Markdown
from markdown.inlinepatterns import InlineProcessor
from markdown.preprocessors import Preprocessor

__all__ = ["Equations", "makeExtension", "mathml"]

DIRECTIVE = re.compile(r"^( *)\.\. math::(.*(?:\n\1 +\S.*)*)", re.MULTILINE)
SIZED_BRACE = re.compile(r"\\[bB]igg?[lr](?=\\[{}|])")
"""The converter knows sizes of brackets, not of braces and double bars."""
ROLE = r":math:`([^`]+)`"


def mathml(tex: str, *, block: bool = False) -> str:
    """Return an equation as MathML."""
    plain = SIZED_BRACE.sub("", " ".join(tex.split()))
    text = convert(plain, display="block" if block else "inline")
    return f'<div class="equation">{text}</div>' if block else text


class _Directive(Preprocessor):
    def run(self, lines: list[str]) -> list[str]:
        def replace(match: re.Match[str]) -> str:
            return f"\n{match[1]}{self.md.htmlStash.store(mathml(match[2], block=True))}\n"

        return DIRECTIVE.sub(replace, "\n".join(lines)).split("\n")


class _Role(InlineProcessor):
    def handleMatch(self, match: re.Match[str], data: str) -> tuple[str, int, int]:  # noqa: N802
        return self.md.htmlStash.store(mathml(match[1])), match.start(0), match.end(0)


class Equations(Extension):
    """The extension; ``docs.builder.equations`` in ``mkdocs.yml``."""

    def extendMarkdown(self, md: Markdown) -> None:  # noqa: N802
        """Register the directive before blocks are parsed, and the role before code is."""
        md.preprocessors.register(_Directive(md), "math-directive", 24)
        md.inlinePatterns.register(_Role(ROLE, md), "math-role", 195)


def makeExtension(**settings: Any) -> Equations:  # noqa: N802
    """Return the extension; the name is that of Markdown's protocol."""
    return Equations(**settings)
