"""Every error code is explained once: those of capture on pages of their own, the others in ``docs/errors.md``."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).resolve().parents[2]
PAGE = CHECKOUT / "docs" / "errors.md"
PAGES = {path.stem: path for path in sorted((CHECKOUT / "docs" / "errors").glob("*.md"))}
"""Code -> page of its own."""
CODE = re.compile(r"FXP-[A-Z]\d{3}")
WITH_PAGES = "FXP-T"

every_page = pytest.mark.parametrize("code", PAGES)


def codes_in_sources() -> set[str]:
    sources = sorted((CHECKOUT / "fxplug").rglob("*.py"))
    return {code for source in sources for code in CODE.findall(source.read_text(encoding="utf-8"))}


def sections() -> dict[str, str]:
    """Code -> text of its section, which is a heading that begins with the code."""
    parts = re.split(r"^#{2,3} ", PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE)
    return {match[0]: part for part in parts if (match := CODE.match(part))}


def entries() -> dict[str, str]:
    return sections() | {code: path.read_text(encoding="utf-8") for code, path in PAGES.items()}


def test_every_code_that_the_sources_use_is_documented():
    assert sorted(codes_in_sources() - set(entries())) == []


def test_every_documented_code_exists():
    assert sorted(set(entries()) - codes_in_sources()) == []


def test_every_code_is_documented_once():
    headings = re.findall(rf"^### ({CODE.pattern})", PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE)

    assert [code for code, count in Counter([*headings, *PAGES]).items() if count > 1] == []


def test_codes_of_capture_and_no_others_have_pages():
    assert [code for code in PAGES if not code.startswith(WITH_PAGES)] == []
    assert [code for code in sections() if code.startswith(WITH_PAGES)] == []


def test_every_entry_says_what_to_do():
    assert [code for code, text in entries().items() if "**To fix:**" not in text] == []


def test_the_table_leads_to_the_entry_of_every_code():
    rows = re.findall(rf"^\| \[({CODE.pattern})\]\((.+?)\) \| .+ \|$", PAGE.read_text("utf-8"), re.MULTILINE)
    places = {code: f"errors/{code}.md" if code in PAGES else f"#{code.lower()}" for code in entries()}

    assert sorted(rows) == sorted(places.items())


@every_page
def test_page_has_the_parts_that_every_page_has(code):
    text = PAGES[code].read_text(encoding="utf-8")

    assert text.startswith(f"# {code}: ")
    assert re.findall(r"^## (.+)$", text, re.MULTILINE) == ["Smallest example", "What to do", "See also"]


@every_page
def test_example_of_the_page_raises_its_code(code, monkeypatch, capsys):
    # Neither a configuration nor a plugin that happens to be there has a say.
    monkeypatch.setenv("FXPLUG_CONFIG", "")
    monkeypatch.setenv("FXPLUG_LOAD_PLUGINS", "")
    text = PAGES[code].read_text(encoding="utf-8")
    example = re.search(r"^## Smallest example\n\n```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    assert example is not None

    source = "\n" * text.count("\n", 0, example.start(1)) + example[1]
    exec(compile(source, str(PAGES[code]), "exec", dont_inherit=True), {"__name__": code})

    assert "print(error.code)" in source
    assert code not in source
    assert capsys.readouterr().out == f"{code}\n"
