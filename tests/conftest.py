from __future__ import annotations

import gc
import logging
from pathlib import Path

import pytest

THOROUGH_AS_A_WHOLE = "\npytestmark = pytest.mark.thorough\n"


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Where nothing thorough runs, modules that are so as a whole are not even imported: for some it takes seconds."""
    if config.option.markexpr != "not thorough" or collection_path.suffix != ".py":
        return None
    return THOROUGH_AS_A_WHOLE in collection_path.read_text(encoding="utf-8") or None


def pytest_collection_finish() -> None:
    """Spares each test what grows with the libraries that all of them together import."""
    # What was imported stays: the garbage collector need not walk through it again in each of its rounds.
    gc.collect()
    gc.freeze()
    # pytest hangs its handlers onto every logger that does not propagate, six times a test, and torch has sixty.
    for logger in logging.root.manager.loggerDict.values():
        if isinstance(logger, logging.Logger):
            logger.propagate = True
