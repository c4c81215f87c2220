"""What the command lines of benchmarks share."""

from __future__ import annotations

import argparse
from pathlib import Path

RESULTS = Path("benchmarks/results")


def parser_of(page: str | None) -> argparse.ArgumentParser:
    """A parser whose help is the module's docstring as it is written."""
    return argparse.ArgumentParser(description=page, formatter_class=argparse.RawDescriptionHelpFormatter)


def add_selection(parser: argparse.ArgumentParser, what: str) -> None:
    """`--results FOLDER` and `--only WORD`. what: what has a name with the word."""
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--only", default="", help=f"{what} whose name has this word")
