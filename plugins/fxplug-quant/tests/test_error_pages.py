"""Every code of this plugin has a page, whose example raises it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

_PLUGIN = Path(__file__).resolve().parents[1]
_PAGES = {path.stem: path for path in sorted((_PLUGIN / "docs" / "errors").glob("*.md"))}
_CODE = re.compile(r"FXP-Q\d{3}")

every_page = pytest.mark.parametrize("code", _PAGES)


def test_every_code_that_the_sources_use_has_a_page_and_no_other():
    sources = sorted((_PLUGIN / "src").rglob("*.py"))
    used = {code for source in sources for code in _CODE.findall(source.read_text(encoding="utf-8"))}

    assert sorted(used) == list(_PAGES)


def test_the_table_leads_to_all_pages_and_the_readme_to_the_table():
    table = (_PLUGIN / "docs" / "errors.md").read_text(encoding="utf-8")
    titles = {code: path.read_text(encoding="utf-8").split("\n")[0] for code, path in _PAGES.items()}

    rows = re.findall(r"^\| \[(.+?)\]\(errors/(.+?)\.md\) \| (.+) \|$", table, re.MULTILINE)

    assert [row[0] for row in rows] == [row[1] for row in rows] == list(_PAGES)
    assert all(titles[code] == f"# {code}: {about}" for code, _, about in rows)


@every_page
def test_a_page_has_the_parts_that_every_page_has(code):
    text = _PAGES[code].read_text(encoding="utf-8")

    assert re.findall(r"^## (.+)$", text, re.MULTILINE) == ["Smallest example", "What to do", "See also"]
    assert "**To fix:**" in text
    for link in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", text):
        assert (_PAGES[code].parent / link).is_file(), link


@every_page
def test_the_snippets_of_a_page_run_and_the_example_raises_its_code(code, capsys):
    text = _PAGES[code].read_text(encoding="utf-8")
    snippets = re.findall(r"^```python\n(.*?)^```\n\n```text\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    namespace = {"__name__": code}

    for source, output in snippets:
        exec(compile(source, str(_PAGES[code]), "exec", dont_inherit=True), namespace)
        assert capsys.readouterr().out == output

    example = snippets[0][0]
    assert "print(error.code)" in example
    assert code not in example
    assert snippets[0][1] == f"{code}\n"
    assert len(snippets) == text.count("```python")
