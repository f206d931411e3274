"""How docstrings become Markdown: a griffe extension for the reference of the Python API."""

from __future__ import annotations

import inspect
import re
from typing import Any

import griffe

from labelgap import metrics

__all__ = ["Docstrings"]

EXAMPLE = re.compile(r"^( *)Example:$", re.MULTILINE)
OTHER_ROLE = re.compile(r":(?:func|class|meth|mod|attr):`([^`]+)`")


class Docstrings(griffe.Extension):
    """Read ``Example:`` as a section with a session of Python, and references as code."""

    def on_instance(self, *, node: Any, obj: griffe.Object, agent: Any, **kwargs: Any) -> None:
        """Change the text of a docstring before it is parsed."""
        if obj.docstring is not None:
            text = EXAMPLE.sub(r"\1Examples:", obj.docstring.value)
            obj.docstring.value = OTHER_ROLE.sub(r"`\1`", text)
        if isinstance(obj, griffe.Function) and any(str(each.value) == "_metric" for each in obj.decorators):
            obj.parameters, obj.returns = _signature(getattr(metrics, obj.name))


def _signature(function: Any) -> tuple[griffe.Parameters, str]:
    """Return the parameters of a function that a decorator made, and what it returns."""
    signature = inspect.signature(function)
    parameters = [
        griffe.Parameter(
            each.name,
            annotation=each.annotation,
            kind=griffe.ParameterKind.positional_or_keyword,
            default=None if each.default is inspect.Parameter.empty else repr(each.default),
        )
        for each in signature.parameters.values()
    ]
    return griffe.Parameters(*parameters), signature.return_annotation
