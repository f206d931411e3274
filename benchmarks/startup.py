"""How long labelgap takes to start: its import beside torch's own, and help and errors of the commands.

    python benchmarks/startup.py

Every line starts a process several times, in turn with the others, and keeps the least time of its processors, so that
other programs disturb little. The ratio of a command is its time / that of ``import torch``.
"""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Final

ROUNDS: Final = 3
CODE: Final = {
    "python": "pass",
    "torch": "import torch",
    "torch_and_labelgap": "import torch, labelgap",
    "torch_and_average_precision": "import torch, labelgap; labelgap.average_precision",
    "torch_and_fit": "import torch, labelgap; labelgap.fit",
}
COMMANDS: Final = {"help": "--help", "version": "--version", "train_help": "train --help", "unknown_command": "trian"}


def seconds(arguments: list[str]) -> float:
    """Return the time of the processors that a process takes."""
    before = os.times()
    subprocess.run([sys.executable, *arguments], capture_output=True, check=False)
    after = os.times()
    return after.children_user + after.children_system - before.children_user - before.children_system


def main() -> None:
    started = {name: ["-c", code] for name, code in CODE.items()}
    started |= {name: ["-m", "labelgap", *words.split()] for name, words in COMMANDS.items()}
    best = dict.fromkeys(started, float("inf"))
    for _ in range(ROUNDS):
        for name, arguments in started.items():
            best[name] = min(best[name], seconds(arguments))
    for name, arguments in started.items():
        beyond = f", {best[name] - best['torch']:.2f} s beyond torch" if name.startswith("torch_and") else ""
        print(f"{' '.join(['python', *arguments]):<70}{best[name]:.2f} s{beyond}")
    for name in (*list(CODE)[2:], *COMMANDS):
        print(f"ratio startup_{name} {best[name] / best['torch']:.2f}")


if __name__ == "__main__":
    main()
