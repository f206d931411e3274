"""What mkdocs calls while it builds the site: pages made from the code, the navigation, links."""

from __future__ import annotations

import csv
from typing import Any

from docs.builder.api import api_pages
from docs.builder.commands import command_pages
from docs.builder.links import OUTSIDE, PROJECT, site_links
from docs.builder.methods import method_pages
from docs.builder.navigation import make_navigation
from docs.builder.settings import settings_pages
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

__all__ = ["on_files", "on_page_markdown"]


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the generated pages, and set the navigation over all of them."""
    for path, text in generated_pages().items():
        files.append(File.generated(config, path, content=text))
    config.nav = make_navigation(file.src_uri for file in files.documentation_pages())
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Change the links of a page of the repository to those of the site."""
    if page.file.generated_by is not None:
        return markdown
    return site_links(markdown, f"docs/{page.file.src_uri}", page.file.src_uri)


def generated_pages() -> dict[str, str]:
    """Return every page that is not a file of ``docs``, by its path."""
    pages = {**command_pages(), **api_pages(), **method_pages(), **settings_pages(), "results/index.md": _results()}
    for source, page in OUTSIDE.items():
        text = (PROJECT / source).read_text(encoding="utf-8")
        if source.endswith(".py"):
            name = source.rpartition("/")[2]
            pages[page] = f'# {name}\n\n```python title="{source}"\n{text}```\n'
        elif source == "LICENSE":
            pages[page] = f"# License\n\n```text\n{text}```\n"
        elif page != "index.md":
            pages[page] = site_links(text, source, page)
    return pages


def _results() -> str:
    """Return the overview of the results: every cell of the papers' tables that was made again."""
    lines = [
        _INTRODUCTION,
        "| table | method | data | protocol | metric | ours | ± | seeds | paper | difference |",
        "|" + "---|" * 10,
    ]
    with (PROJECT / "docs" / "results" / "results.csv").open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            cells: list[Any] = [f"[{row['table']}]({row['page']})", f"`{row['row']}`"]
            cells += [
                row[name] for name in ("data", "protocol", "metric", "ours", "std", "seeds", "paper", "difference")
            ]
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


_INTRODUCTION = """# Results

Every number has a command beside it, on the page that is linked. What was measured, and on what:

- [What we found](findings.md): which methods help with which labels, and which claims of the papers held, on one page.
- [Digits](../digits.md): every method on the embedded data set, three seeds.
- [PASCAL VOC](../voc2012.md): methods on the features and photos of VOC 2012.
- [Small albums](../albums.md): a few hundred photos with few labels, against a scikit-learn script.
- The other pages of this section answer one question each.
- [What nobody has run](../untested.md).

## Cells of the papers' tables

`ours` and `paper` are in percent; `difference` is ours minus the paper's. The file is `docs/results/results.csv`.
"""
