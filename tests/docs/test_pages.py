"""The pages of the documentation hang together."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).resolve().parents[2]
DOCS = CHECKOUT / "docs"
PAGES = sorted(DOCS.rglob("*.md"))
FENCE = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\((?!https?:)([^)#]*)(#[^)]*)?\)")


def links_of(page: Path) -> list[tuple[str, str]]:
    """Return path and anchor of every link of a page that leads to another file or to an anchor."""
    prose = FENCE.sub("", page.read_text(encoding="utf-8"))
    return [(path, anchor) for path, anchor in LINK.findall(prose) if path or anchor]


every_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(DOCS).as_posix())


def anchors_of(page: Path) -> set[str]:
    """Return the anchors of the headings of a page, as GitHub makes them."""
    prose = FENCE.sub("", page.read_text(encoding="utf-8"))
    headings = re.findall(r"^#+ (.+)$", prose, flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


@every_page
def test_every_link_leads_somewhere(page):
    broken = []
    for path, anchor in links_of(page):
        target = (page.parent / path).resolve() if path else page
        if not target.exists() or (anchor and anchor[1:] not in anchors_of(target)):
            broken.append(path + anchor)

    assert broken == []


def test_the_index_leads_to_every_page():
    index = DOCS / "index.md"
    # The pages of error codes and of hooks are listed in tables of their own.
    linked = {
        (page.parent / path).resolve()
        for page in (index, DOCS / "errors.md", DOCS / "plugins" / "hooks.md")
        for path, _ in LINK.findall(page.read_text(encoding="utf-8"))
        if path
    }

    assert [str(page.relative_to(DOCS)) for page in PAGES if page not in linked and page != index] == []


def test_generated_pages_are_up_to_date():
    completed = subprocess.run(
        [sys.executable, str(CHECKOUT / "tools" / "generate_docs.py"), "--check"],
        capture_output=True,
        text=True,
        check=False,
    )

    assert completed.returncode == 0, completed.stderr
