"""Build the documentation site: ``python -m docs.builder [--force] [--out FOLDER]``.

Does nothing where the site is up to date. A warning (a broken link, a page outside of the navigation, a docstring that
cannot be parsed) is an error.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import subprocess
import sys
from pathlib import Path

__all__ = ["build_site", "fingerprint", "main"]

PROJECT = Path(__file__).resolve().parents[2]
STAMP = ".fingerprint"
INPUTS = ("docs", "examples", "src", "*.md", "LICENSE", "mkdocs.yml")
ENDINGS = {"", ".cff", ".css", ".csv", ".html", ".js", ".md", ".png", ".py", ".svg", ".yml"}


def fingerprint() -> str:
    """Return a digest of everything that the site is made from."""
    digest = hashlib.sha256()
    for pattern in INPUTS:
        for path in sorted(PROJECT.glob(pattern)):
            for file in [path] if path.is_file() else sorted(path.rglob("*")):
                if file.is_file() and file.suffix in ENDINGS:
                    digest.update(f"{file.relative_to(PROJECT)}\0".encode() + file.read_bytes())
    return digest.hexdigest()


def build_site(out: Path, *, force: bool = False) -> None:
    """Build the site into a folder, unless it holds what would be built.

    Raises:
        subprocess.CalledProcessError: mkdocs found something wrong, and has printed it.
    """
    current, stamp = fingerprint(), out / STAMP
    if not force and stamp.is_file() and stamp.read_text(encoding="utf-8") == current:
        return
    stamp.unlink(missing_ok=True)  # mkdocs empties the folder, but keeps hidden files: a failed build is not up to date
    source = os.pathsep.join([str(PROJECT / "src"), *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = {**os.environ, "PYTHONPATH": source, "NO_MKDOCS_2_WARNING": "1", "DISABLE_MKDOCS_2_WARNING": "true"}
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(out.resolve())]
    subprocess.run(command, cwd=PROJECT, env=environment, check=True)
    stamp.write_text(current, encoding="utf-8")


def main() -> int:
    """Build, and print where the site is."""
    parser = argparse.ArgumentParser(prog="scripts/docs", description="Build the documentation site.")
    parser.add_argument("--force", action="store_true", help="build although nothing has changed")
    parser.add_argument("--out", type=Path, default=PROJECT / "site", help="folder of the site")
    given = parser.parse_args()
    try:
        build_site(given.out, force=given.force)
    except subprocess.CalledProcessError as error:
        return error.returncode
    print(f"site: {given.out / 'index.html'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
