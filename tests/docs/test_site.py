"""The built site: complete, linked, without anything from the network, and usable from disk in a real browser."""

from __future__ import annotations

import importlib
import re
from html import unescape
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlparse

import pytest
from docs.builder.__main__ import build_site
from docs.builder.api import PACKAGES, public_names
from docs.builder.commands import commands
from filelock import FileLock
from tests.browsers import new_page, start_browser
from tests.docs.blocks import PROJECT

import labelgap as lg

SITE = PROJECT / "site"
PHONE, DESKTOP = 390, 1280


class _Page(HTMLParser):
    """Collects the ids of a page, its links, and what it loads."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.ids: set[str] = set()
        self.links: list[str] = []
        self.loads: list[str] = []
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        self.ids |= {str(values[name]) for name in ("id", "name") if values.get(name)}
        if tag == "a" and values.get("href"):
            self.links.append(str(values["href"]))
        elif tag == "link" and values.get("rel") not in ("next", "prev", "canonical"):
            self.loads.append(str(values.get("href")))
        elif tag in ("img", "script", "iframe") and values.get("src"):
            self.loads.append(str(values["src"]))


@pytest.fixture(scope="module")
def site() -> Path:
    with FileLock(PROJECT / "site.partial.lock"):
        build_site(SITE)
    return SITE


@pytest.fixture(scope="module")
def pages(site: Path) -> dict[Path, _Page]:
    return {path.resolve(): _Page(path) for path in sorted(site.rglob("*.html"))}


def test_every_link_leads_to_a_page_and_an_anchor_that_exist(pages: dict[Path, _Page]) -> None:
    problems = []
    for path, page in pages.items():
        for link in page.links if path.name != "404.html" else []:
            parts = urlparse(link)
            if parts.scheme in ("http", "https"):
                assert "." in parts.netloc, link
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            known = pages.get(target)
            if not target.exists() or (parts.fragment and known and unquote(parts.fragment) not in known.ids):
                problems.append(f"{path.relative_to(SITE)}: {link}")
    assert not problems, "\n".join(problems[:20])


def test_nothing_is_loaded_from_the_network(site: Path, pages: dict[Path, _Page]) -> None:
    loaded = [each for page in pages.values() for each in page.loads if re.match(r"(https?:)?//", each)]
    assert not loaded
    styles = "".join(path.read_text(encoding="utf-8") for path in site.rglob("*.css"))
    assert not re.search(r"(url\(|@import)\s*[\"']?(https?:)?//", styles)


def test_every_command_and_option_is_in_the_reference(site: Path) -> None:
    for name, command in commands().items():
        text = unescape((site / "commands" / f"{name.split()[0]}.html").read_text(encoding="utf-8"))
        assert f"labelgap {name}" in text
        options = {option for each in command.params for option in each.opts if option.startswith("--")}
        missing = [option for option in options - {"--help"} if f"<code>{option}</code>" not in text]
        assert not missing, (name, missing)


def test_every_public_name_is_in_the_reference(pages: dict[Path, _Page]) -> None:
    ids = {each for path, page in pages.items() if path.parent.name == "reference" for each in page.ids}
    shown = {name for names in public_names().values() for name in names}
    assert not shown - ids
    assert {f"labelgap.{name}" for name in lg.__all__} <= shown
    for package in PACKAGES:
        names = getattr(importlib.import_module(f"labelgap.{package}"), "__all__", ())
        assert all(f"labelgap.{package}.{name}" in ids | shown or name in lg.__all__ for name in names), package


def test_every_method_has_an_equation_a_gradient_settings_and_its_results(site: Path) -> None:
    for name in lg.methods():
        text = (site / "methods" / f"{name}.html").read_text(encoding="utf-8")
        assert "<math" in text and f"gallery/{name}.svg" in text, name
        assert all(f'id="{part}"' in text for part in ("equation", "gradient", "settings", "results", "use")), name
        equations = re.findall(r"<math.*?</math>", text, re.DOTALL)
        assert not [each for each in equations if "\\" in each], name


@pytest.mark.browser
def test_the_site_opens_from_disk_and_finds_what_is_searched(site: Path) -> None:
    names = ("index", "tutorials/own-photos", "methods/role", "commands/train", "reference/losses", "results/index")
    with start_browser() as browser:
        for width in (PHONE, DESKTOP):
            page = new_page(browser, width, 844)
            said: list[str] = []
            asked: list[str] = []
            page.on("console", lambda message, said=said: said.append(message.text))
            page.on("pageerror", lambda error, said=said: said.append(str(error)))
            page.on("request", lambda request, asked=asked: asked.append(request.url))
            for name in names:
                page.goto((site / f"{name}.html").as_uri())
                assert page.evaluate("document.documentElement.scrollWidth") <= width, name
            if width == DESKTOP:
                page.locator(".md-search__input").click()
                page.keyboard.type("asymmetric")
                page.locator(".md-search-result__item").first.wait_for()
            assert not said and all(url.startswith(("file:", "data:", "blob:", "about:")) for url in asked)
