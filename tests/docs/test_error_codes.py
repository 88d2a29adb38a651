"""``docs/errors.md`` has an entry for every error code of fxplug, and for no other."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[2]
PAGE = CHECKOUT / "docs" / "errors.md"
CODE = re.compile(r"FXP-[A-Z]\d{3}")


def codes_in_sources() -> set[str]:
    sources = sorted((CHECKOUT / "fxplug").rglob("*.py"))
    return {code for source in sources for code in CODE.findall(source.read_text(encoding="utf-8"))}


def entries() -> dict[str, str]:
    """Code -> text of its entry; an entry is a heading of the third level that begins with the code."""
    parts = re.split(r"^#{2,3} ", PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE)
    return {match[0]: part for part in parts if (match := CODE.match(part))}


def test_every_code_that_the_sources_use_is_documented():
    assert sorted(codes_in_sources() - set(entries())) == []


def test_every_documented_code_exists():
    assert sorted(set(entries()) - codes_in_sources()) == []


def test_every_code_is_documented_once():
    headings = re.findall(rf"^### ({CODE.pattern})", PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE)

    assert [code for code, count in Counter(headings).items() if count > 1] == []


def test_every_entry_says_what_to_do():
    assert [code for code, text in entries().items() if "**To fix:**" not in text] == []
