"""Every configuration that the documentation shows is one that fxplug accepts."""

from __future__ import annotations

import dataclasses
import inspect
import re
from pathlib import Path

import pytest

import fxplug
from fxplug.plugins import TraceConfig, load_config

DOCS = Path(__file__).resolve().parents[2] / "docs"
BLOCK = re.compile(r"^```toml\n(.*?)^```$", re.MULTILINE | re.DOTALL)
BLOCKS = [
    pytest.param(block, id=f"{page.relative_to(DOCS).as_posix()}-{number}")
    for page in sorted(DOCS.rglob("*.md"))
    for number, block in enumerate(BLOCK.findall(page.read_text(encoding="utf-8")))
    if "tool.fxplug" in block
]


@pytest.mark.parametrize("block", BLOCKS)
def test_a_configuration_in_the_documentation_is_valid(block, tmp_path):
    path = tmp_path / "pyproject.toml"
    path.write_text(block)

    assert load_config(path).file == path


def test_the_reference_has_one():
    assert any("configuration.md" in str(block.id) for block in BLOCKS)


def test_the_page_says_which_keys_of_trace_are_no_arguments():
    keys = [field.name for field in dataclasses.fields(TraceConfig)]
    missing = [key for key in keys if key not in inspect.signature(fxplug.trace).parameters]
    page = (DOCS / "plugins" / "configuration.md").read_text(encoding="utf-8")
    named = ", ".join(f"`{key}`" for key in missing)
    assert f"({named}) are no arguments" in page
    assert f"arguments of the names from `{keys[len(missing)]}` to `{keys[-1]}`" in page
