"""Every code block of the documentation: a command is parsed by the program, Python runs, or the block says why not."""

from __future__ import annotations

import re
import shlex
import tomllib
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import typer
from docs.builder.commands import command_pages
from docs.builder.methods import method_pages
from tests.docs.blocks import PROJECT, Block, blocks_of, commands_of, pages

import labelgap as lg
from labelgap.cli.main import make_app

PLAIN = {"csv", "json", "text", "yaml"}
"""Languages of blocks that are not run: data and output."""
EXTRAS = tomllib.loads((PROJECT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
WRITTEN = {"predict_onnx.py"}
"""Scripts that labelgap writes."""
FOREIGN = {"psycopg[binary]"}
GENERATED = {**command_pages(), **method_pages()}
BLOCKS = [
    *(block for path in pages() for block in blocks_of(path.read_text("utf-8"), path.relative_to(PROJECT).as_posix())),
    *(block for name, text in GENERATED.items() for block in blocks_of(text, name)),
]


@cache
def command_line() -> Any:
    return typer.main.get_command(make_app())


def parse(words: list[str]) -> None:
    """Let the parser of the program take a command: its name, options and the types of their values."""
    group = command_line()
    context = group.make_context("labelgap", list(words), resilient_parsing=words in (["--version"], ["--help"]))
    if words[0].startswith("--"):
        return
    rest = words
    while hasattr(group, "commands") and rest and not rest[0].startswith("-"):
        name, group, rest = group.resolve_command(context, rest)
        context = group.make_context(name, list(rest), parent=context, resilient_parsing=False)
    for option, value in pairwise(words):
        if option in ("--method", "--methods"):
            unknown = set(value.split(",")) - {*lg.methods(), "auto", "all", "soft-negative"}
            assert not unknown, f"no method {unknown}"


def check_command(command: str, titles: set[str]) -> None:
    """Check that a command is one of ours and takes these arguments, or that its file exists."""
    words = shlex.split(command)
    if words[0] == "torchrun":
        words = words[words.index("-m") + 1 :]
    if words[0] == "labelgap":
        parse(words[1:])
    elif words[0] == "python":
        script = PROJECT / words[1]
        assert words[1] in titles | WRITTEN or script.is_file(), f"there is no {words[1]}"
        if script.is_file():
            source = script.read_text(encoding="utf-8")
            given = {word: word[2:].replace("-", "_") for word in words[2:] if word.startswith("--")}
            missing = [word for word, name in given.items() if not re.search(rf'\b{name}["=]', source)]
            assert not missing, f"{words[1]} has no {missing}"
    elif words[:2] == ["pip", "install"]:
        named = {extra for extras in re.findall(r"labelgap\[(.+)\]", words[2]) for extra in extras.split(",")}
        assert (named or words[2] in FOREIGN) and named <= set(EXTRAS), command
    else:
        assert (PROJECT / words[0]).is_file(), f"{words[0]} is neither labelgap nor a script of the project: mark it"


def test_every_command_is_one_that_the_program_takes() -> None:
    titles = {block.title for block in BLOCKS}
    problems = []
    for block in BLOCKS:
        if block.language not in ("bash", "console") or block.mark:
            continue
        for command in commands_of(block):
            try:
                check_command(command, titles)
            except (Exception, SystemExit) as error:
                problems.append(f"{block} {command}\n    {getattr(error, 'message', error)}")
    assert not problems, "\n".join(problems)


def test_every_block_names_its_language_and_data_can_be_read() -> None:
    problems = []
    for block in BLOCKS:
        if block.language == "toml":
            tomllib.loads(block.text)
        elif block.language not in PLAIN | {"bash", "console", "python"}:
            problems.append(f"{block}: name the language after the fence")
        if block.mark.startswith("output") and block.language != "text":
            problems.append(f"{block}: output is text")
    assert not problems, "\n".join(problems)


def test_commands_in_sentences_are_taken_by_the_program_as_far_as_they_are_written() -> None:
    problems = []
    for path in pages():
        text = re.sub(r"^ *```.*?^ *```", "", path.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
        for command in re.findall(r"`labelgap ([a-z-]+[^`…]*)`", text):
            words = shlex.split(command)
            known = command_line().commands.get(words[0])
            options = {name for each in getattr(known, "params", ()) for name in (*each.opts, *each.secondary_opts)}
            for subcommand in getattr(known, "commands", {}).values():
                options |= {name for each in subcommand.params for name in each.opts}
            given = {word.partition("=")[0] for word in words if word.startswith("--") and word != "--help"}
            if known is None or not given <= options:
                problems.append(f"{path.relative_to(PROJECT)}: `labelgap {command}`")
    assert not problems, "\n".join(problems)


def python_blocks() -> list[Block]:
    return [block for block in BLOCKS if block.language == "python" and not block.title and block.page not in GENERATED]


def test_every_python_block_is_run_by_a_page_or_says_why_not() -> None:
    from tests.docs.test_pages_run import PAGES

    left = [str(block) for block in python_blocks() if not block.mark and Path(block.page).as_posix() not in PAGES]
    assert not left, f"neither run (PAGES of test_pages_run.py) nor marked: {left}"
