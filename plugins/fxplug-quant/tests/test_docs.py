"""Every Python snippet of the how-to pages runs, and prints what the page says."""

from __future__ import annotations

import importlib.util
import re
import sys
from pathlib import Path

import pytest

_PLUGIN = Path(__file__).resolve().parents[1]
_PAGES = sorted((_PLUGIN / "docs").glob("*.md"))


@pytest.fixture(scope="module")
def reader():
    """Return the module that reads the snippets of the core's pages."""
    path = _PLUGIN.parents[1] / "tests" / "docs" / "test_snippets.py"
    spec = importlib.util.spec_from_file_location("core_snippets", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "core_snippets", module)
        spec.loader.exec_module(module)
    return module


def on_a_usual_cpu(printed):
    """Return what would have been printed on a CPU with VNNI; the pages show that."""
    return printed.replace("; 7 bits, since sums would overflow on this CPU", "")


@pytest.mark.parametrize("page", _PAGES, ids=lambda page: page.stem)
def test_every_snippet_of_the_page_runs(page, reader, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    snippets = reader.snippets_of(page.read_text(encoding="utf-8"))
    namespace = {"__name__": page.stem}

    for snippet in snippets:
        source = "\n" * (snippet.line - 1) + snippet.source
        exec(compile(source, str(page), "exec", dont_inherit=True), namespace)
        printed = on_a_usual_cpu(capsys.readouterr().out)
        if snippet.output is not None:
            assert reader.comparable(printed) == reader.comparable(snippet.output), (
                f"{page.name}:{snippet.line}"
            )

    assert snippets


def test_links_lead_to_pages_and_the_readme_to_all_of_them():
    for page in _PAGES:
        for link in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8")):
            assert (page.parent / link).is_file(), f"{page.name}: {link}"
    readme = (_PLUGIN / "README.md").read_text(encoding="utf-8")
    assert [page.name for page in _PAGES if f"docs/{page.name}" not in readme] == []
