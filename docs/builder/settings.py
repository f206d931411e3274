"""The page of all settings, from the models that declare them."""

from __future__ import annotations

from collections.abc import Iterator

from pydantic import BaseModel

from labelgap.core.settings import DataOptions, annotation_text, settings_of
from labelgap.training.settings import PROTOCOLS, TrainingSettings

PAGE = "reference/settings.md"
_INTRODUCTION = """# Settings

Every setting is a keyword of `lg.fit`, an option of `labelgap train` and a field of a run's `config.json`; one that is
left open is chosen, and printed before the training. A setting without effect under a protocol is refused."""


def settings_pages() -> dict[str, str]:
    """Return the page by its path."""
    data = "\n## Reading data\n\nKeywords of `lg.load`, and options of every command that reads DATA.\n"
    return {PAGE: "\n".join([_INTRODUCTION, *_tables(TrainingSettings), data, *_tables(DataOptions), ""])}


def _tables(model: type[BaseModel]) -> Iterator[str]:
    """Yield a table for each group of settings."""
    settings = settings_of(model)
    for group in dict.fromkeys(setting.group for _, setting in settings.values()):
        yield f"\n### {group}\n\n| setting | type | default | protocols | |\n|---|---|---|---|---|"
        for name, (info, setting) in settings.items():
            if setting.group == group:
                kind = annotation_text(info).removesuffix(" | None").replace("|", "\\|")
                plain = isinstance(info.default, bool | int | float | str)
                default = setting.default or (f"{info.default}" if plain else "")
                where = "all" if setting.protocols == frozenset(PROTOCOLS) else ", ".join(sorted(setting.protocols))
                yield f"| `{name}` | `{kind}` | {default} | {where} | {info.description} |"
