"""Runs the snippets of ``drawing.md`` and keeps the pictures that they make.

    python docs/make_pictures.py [--chromium /usr/bin/chromium]

Needs Graphviz, playwright (pip install playwright) and Chromium. What is compared with what is kept is the structure of
pictures and pages, as other versions of Graphviz and of a browser draw the same a little differently.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import io
import json
import linecache
import os
import re
import shutil
import tempfile
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

PAGE = Path(__file__).resolve().with_name("drawing.md")
PICTURES = PAGE.with_name("pictures")
PAGES_FILE = PICTURES / "pages.json"
"""Which graphs the screenshots are of."""

_SVG = "{http://www.w3.org/2000/svg}"
_FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_SHOTS = (
    (
        "viewer.png",
        "viewer.html",
        "light",
        "await app.select(app.model.byName.get('blocks_1_norm'), { move: true })",
    ),
    ("overlay.png", "viewer.html", "dark", "app.setOverlay(0); app.showTable(true); app.picture.fitAll()"),
    ("steps.png", "steps.html", "light", "await app.setAll(true)"),
)


def run_snippets(folder: Path) -> list[tuple[str, str]]:
    """Run the snippets of the page in a folder and return what they printed, each with what the page says of it."""
    text = PAGE.read_text(encoding="utf-8")
    linecache.cache[PAGE.name] = (len(text), None, text.splitlines(keepends=True), PAGE.name)
    fences = list(_FENCE.finditer(text))
    namespace: dict[str, Any] = {"__name__": "drawing"}
    outputs: list[tuple[str, str]] = []
    before = Path.cwd()
    os.chdir(folder)
    try:
        for number, fence in enumerate(fences):
            if fence[1] != "python":
                continue
            source = "\n" * text.count("\n", 0, fence.start(2)) + fence[2]
            with contextlib.redirect_stdout(io.StringIO()) as printed:
                exec(compile(source, PAGE.name, "exec", dont_inherit=True), namespace)  # noqa: S102 - the page's own
            behind = fences[number + 1] if number + 1 < len(fences) else None
            if behind is not None and behind[1] == "text":
                outputs.append((printed.getvalue(), behind[2]))
    finally:
        os.chdir(before)
    return outputs


def structure(path: Path) -> list[str]:
    """Return titles and texts of a picture, in any order that is the same for the same picture."""
    tree = ET.parse(path)
    found = [f"{group.get('class')}: {group.findtext(f'{_SVG}title')}" for group in tree.iter(f"{_SVG}g")]
    return sorted(found + [f"text: {text.text}" for text in tree.iter(f"{_SVG}text")])


def digest(path: Path) -> str:
    """Return what tells the graphs of a page from others: nodes, edges, shapes, groups, steps and tables."""
    html = path.read_text(encoding="utf-8")
    data = json.loads(html.partition('id="data">')[2].partition("</script>")[0])
    graphs = [
        [
            [[node["n"], node.get("t"), node.get("s"), node["i"], node.get("x")] for node in graph["nodes"]],
            [[group["l"], group["k"], group["p"]] for group in graph["groups"]],
            [overlay["title"] for overlay in graph["overlays"]],
        ]
        for graph in data["graphs"]
    ]
    steps = [[step["title"], step["kind"]] for step in data["steps"]]
    return hashlib.sha256(json.dumps([graphs, steps]).encode()).hexdigest()


def digests(folder: Path) -> dict[str, str]:
    """Return the digest of every page in a folder."""
    return {path.name: digest(path) for path in sorted(folder.glob("*.html"))}


def _shoot(folder: Path, chromium: str) -> None:
    from playwright.sync_api import sync_playwright  # noqa: PLC0415 - pictures can be compared without

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        for picture, page_name, theme, script in _SHOTS:
            page = browser.new_page(viewport={"width": 1180, "height": 640}, color_scheme=theme)
            page.goto((folder / page_name).as_uri())
            page.wait_for_selector("html[data-ready]")
            page.evaluate(f"async () => {{ const app = fxplugView.app; {script}; }}")
            page.wait_for_timeout(500)
            page.screenshot(path=PICTURES / picture)
        browser.close()


def main() -> None:
    """Make the pictures anew."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--chromium", default="/usr/bin/chromium")
    wanted = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for printed, said in run_snippets(folder):
            if printed != said:
                raise SystemExit(f"The page says otherwise than what was printed:\n{printed}")
        for path in folder.glob("*.svg"):
            shutil.copy(path, PICTURES / path.name)
        PAGES_FILE.write_text(json.dumps(digests(folder), indent=2) + "\n", encoding="utf-8")
        _shoot(folder, wanted.chromium)


if __name__ == "__main__":
    main()
