from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import TextIO, cast

import pytest
from rich.table import Table

from labelgap.core.terminal import OutputError, TerminalStream, make_console, protect_streams, unescaped_output
from labelgap.core.text import escape_control

HOSTILE = "a\x1b]0;owned\x07\x1b[2J\x9b31mb\u202ec\u2066d\re\x00\udcff"
HARMLESS = r"a\x1b]0;owned\x07\x1b[2J\x9b31mb\u202ec\u2066d\re\x00\udcff"


def test_control_characters_are_escaped_and_all_other_letters_stay() -> None:
    assert escape_control(HOSTILE) == HARMLESS
    plain = "naïve – 猫\n\t👩\u200d👧 [red] \\x1b"
    assert escape_control(plain) == plain
    assert all(each.isprintable() or each in "\n\t" or escape_control(each) != each for each in map(chr, range(0xA0)))


def test_what_is_printed_is_escaped_and_what_rich_adds_is_not(capsys: pytest.CaptureFixture[str]) -> None:
    with protect_streams():
        print(HOSTILE)
        print(HOSTILE, file=sys.stderr)
        console = make_console(force_terminal=True, color_system="standard", width=200)
        table = Table(box=None)
        table.add_column("[red]")
        table.add_row(escape_control(HOSTILE) + ":cat:", style="green")
        table.add_row(HOSTILE)
        console.print(table)
        with unescaped_output():
            print("\r50 %", file=sys.stderr)
    said = capsys.readouterr()
    assert said.out.count(HARMLESS) == 2 and said.err == f"{HARMLESS}\n\r50 %\n"
    assert "[red]" in said.out and ":cat:" in said.out
    colors = [said.out.count(f"\x1b[{style}m") for style in (0, 1, 32)]
    assert said.out.count("\x1b") == sum(colors) and all(colors)


def test_a_line_is_written_at_once_also_into_a_pipe() -> None:
    script = """if True:
        from labelgap.core.terminal import protect_streams
        with protect_streams():
            print("seen")
            input()
    """
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    command, pipe = [sys.executable, "-c", script], subprocess.PIPE
    with subprocess.Popen(command, text=True, env=environment, stdin=pipe, stdout=pipe) as process:
        assert process.stdout is not None and process.stdout.readline() == "seen\n"  # waits forever otherwise
        assert process.poll() is None
        process.communicate("\n")
    assert process.returncode == 0


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full")
def test_a_full_stream_is_one_error_for_the_output_and_none_for_messages() -> None:
    full = Path("/dev/full").open("w")  # noqa: SIM115
    print("lost", file=cast(TextIO, TerminalStream(full, messages=True)), flush=True)
    full.close()
    full = Path("/dev/full").open("w")  # noqa: SIM115
    with pytest.raises(OutputError, match=r"\(no space left on device\)"):
        stream = TerminalStream(full, messages=False)
        stream.write("lost\n")
        stream.flush()
    full.close()  # flushes again, to the null device
