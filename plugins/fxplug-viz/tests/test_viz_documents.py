"""The page with pictures: its snippets run, and its pictures are those that they make."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shutil
from pathlib import Path

import pytest

PLUGIN = Path(__file__).resolve().parents[1]
PICTURES = PLUGIN / "docs" / "pictures"

pytestmark = pytest.mark.skipif(
    shutil.which("dot") is None and "CI" not in os.environ, reason="Graphviz (dot) is not installed"
)


@pytest.fixture(scope="module")
def tool():
    spec = importlib.util.spec_from_file_location("viz_make_pictures", PLUGIN / "docs" / "make_pictures.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def made(tool, tmp_path_factory):
    folder = tmp_path_factory.mktemp("pictures")
    return folder, tool.run_snippets(folder)


def test_the_snippets_print_what_the_page_says(made):
    assert len(made[1]) == 2
    for printed, said in made[1]:
        assert printed == said


def test_the_pictures_of_the_page_are_current(tool, made):
    kept = sorted(path.name for path in PICTURES.glob("*.svg"))

    assert kept == sorted(path.name for path in made[0].glob("*.svg"))
    for name in kept:
        assert tool.structure(made[0] / name) == tool.structure(PICTURES / name), f"run {tool.__name__}"


def test_the_screenshots_are_of_these_pages(tool, made):
    assert tool.digests(made[0]) == json.loads(tool.PAGES_FILE.read_text(encoding="utf-8"))


def test_the_page_shows_every_picture_and_they_are_small(tool):
    shown = re.findall(r"!\[.+?\]\(pictures/(.+?)\)", tool.PAGE.read_text(encoding="utf-8"))
    files = [path for path in PICTURES.iterdir() if path != tool.PAGES_FILE]

    assert sorted(shown) == sorted(path.name for path in files)
    assert all(path.stat().st_size < 200_000 for path in files)
    # Places in the program are lines of the page, not of the machine that the pictures were made on.
    places = [
        place
        for path in PICTURES.glob("*.svg")
        for place in re.findall(r'xlink:title="(.+?):', path.read_text(encoding="utf-8"))
    ]
    assert set(places) == {"drawing.md"}
