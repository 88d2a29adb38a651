"""Every Python snippet of the documentation runs, and prints what the page says it prints.

A block fenced as ``python`` is run; the blocks of one page share a namespace, in order. A block fenced as
``text`` directly behind it is what it prints.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import pytest

DOCS = Path(__file__).resolve().parents[2] / "docs"
FENCE = re.compile(r"^```(?P<language>\w*)\n(?P<body>.*?)^```$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Snippet:
    """One block of Python with what it prints, where the page says so."""

    source: str
    line: int
    """Line of the page on which the source begins, counted from 1."""
    output: str | None


def snippets_of(text: str) -> list[Snippet]:
    fences = list(FENCE.finditer(text))
    found: list[Snippet] = []
    for number, fence in enumerate(fences):
        if fence["language"] != "python":
            continue
        behind = fences[number + 1] if number + 1 < len(fences) else None
        is_output = (
            behind is not None
            and behind["language"] == "text"
            and not text[fence.end() : behind.start()].strip()
        )
        output = behind["body"] if is_output and behind is not None else None
        found.append(Snippet(fence["body"], text.count("\n", 0, fence.start("body")) + 1, output))
    return found


def comparable(output: str) -> str:
    """Return output without the numbers of lines of the page, which move with every sentence that is added."""
    return re.sub(r"(\.md:)\d+", r"\1N", output.rstrip("\n"))


PAGES = [path for path in sorted(DOCS.rglob("*.md")) if snippets_of(path.read_text(encoding="utf-8"))]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(DOCS).as_posix())
def test_every_snippet_of_the_page_runs(page, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    # Neither a configuration nor a plugin that happens to be there has a say.
    monkeypatch.setenv("FXPLUG_CONFIG", "")
    monkeypatch.setenv("FXPLUG_LOAD_PLUGINS", "")
    namespace = {"__name__": page.stem}
    for snippet in snippets_of(page.read_text(encoding="utf-8")):
        # Empty lines in front, so that errors and stack traces name the line of the page.
        source = "\n" * (snippet.line - 1) + snippet.source
        exec(compile(source, str(page), "exec", dont_inherit=True), namespace)
        printed = capsys.readouterr().out.replace(str(page), page.name)
        if snippet.output is not None:
            assert comparable(printed) == comparable(snippet.output), f"{page.name}:{snippet.line}"


def test_a_text_block_directly_behind_python_is_its_output():
    page = "Intro\n\n```python\nprint(1)\n```\n\n```text\n1\n```\n\n```python\npass\n```\n\nprose\n\n```text\nno\n```\n"

    assert snippets_of(page) == [Snippet("print(1)\n", 4, "1\n"), Snippet("pass\n", 12, None)]
