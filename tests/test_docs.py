"""The pages: each one is in the index, and a link leads to a file and to a heading that exist."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[1]
INDEX = ROOT / "docs" / "README.md"
PAGES = sorted((ROOT / "docs").rglob("*.md"))
LINKED = [*PAGES, *sorted(ROOT.glob("*.md"))]
_FENCE = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"\]\(([^()\s]+)\)")


def name_page(page: Path) -> str:
    """Return the path of `page` below the repository, as the id of a test."""
    return str(page.relative_to(ROOT))


@cache
def find_anchors(page: Path) -> set[str]:
    """Return the anchors that GitHub gives to the headings of `page`, in which no two are equal."""
    headings = re.findall(r"^#+ (.+)$", _FENCE.sub("", page.read_text(encoding="utf-8")), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def find_broken_links(page: Path) -> list[str]:
    """Return the relative links of `page` whose file or heading does not exist."""
    broken = []
    for link in _LINK.findall(_FENCE.sub("", page.read_text(encoding="utf-8"))):
        if "://" in link:
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        if not target.exists() or (anchor and anchor not in find_anchors(target)):
            broken.append(link)
    return broken


@pytest.mark.parametrize("page", LINKED, ids=name_page)
def test_each_relative_link_leads_to_a_file_and_a_heading(page: Path) -> None:
    assert find_broken_links(page) == []


def test_the_index_has_each_page_once() -> None:
    listed = [(INDEX.parent / path).resolve() for path in _LINK.findall(INDEX.read_text(encoding="utf-8"))]
    pages = [path for path in listed if path.suffix == ".md" and path.is_relative_to(INDEX.parent)]
    assert sorted(pages) == [page for page in PAGES if page != INDEX]


def test_the_navigation_of_the_site_has_each_page_once() -> None:
    sections = yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))["nav"]
    entries = [entry for section in sections for entries in section.values() for entry in entries]
    listed = [entry if isinstance(entry, str) else next(iter(entry.values())) for entry in entries]
    assert sorted(INDEX.parent / path for path in listed) == PAGES


def test_a_page_of_the_site_loads_nothing_from_elsewhere(tmp_path: Path) -> None:
    shutil.copy(ROOT / "mkdocs.yml", tmp_path)
    shutil.copytree(ROOT / "docs", tmp_path / "docs")
    zensical = Path(sys.prefix) / "docs" / "bin" / "zensical"
    subprocess.run([zensical, "build", "--strict"], cwd=tmp_path, check=True, capture_output=True)
    pages = [page.read_text(encoding="utf-8") for page in (tmp_path / "build" / "site").rglob("*.html")]
    assert len(pages) > len(PAGES) - 1
    loaded = {
        url
        for page in pages
        for url in re.findall(r"<(?:script|link|img|iframe)\b[^>]*https?://[^>]*>", page)
    }
    assert loaded == set()


def test_each_page_that_is_named_by_its_path_exists() -> None:
    """Comments, docstrings, the chart's notes and its values name pages by their path in the repository."""
    folders = ("runtime", "operator", "charts", "proto", "benchmarks", "e2e", "tests", "docs")
    suffixes = {".py", ".md", ".txt", ".yaml", ".json", ".proto"}
    files = [path for folder in folders for path in (ROOT / folder).rglob("*") if path.suffix in suffixes]
    files += [*ROOT.glob("*.md"), ROOT / "operator" / ".importlinter", ROOT / ".importlinter"]
    named = {
        (name_page(path), page)
        for path in files
        for page in re.findall(r"\bdocs/[\w/-]+\.md\b", path.read_text(encoding="utf-8", errors="replace"))
    }
    assert named
    assert [(path, page) for path, page in sorted(named) if not (ROOT / page).is_file()] == []
