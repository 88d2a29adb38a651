"""The page on testing plugins lists every check that there is, and no other."""

from __future__ import annotations

import re
from pathlib import Path

import fxplug.testing

CHECKOUT = Path(__file__).resolve().parents[2]
PAGE = CHECKOUT / "docs" / "plugins" / "testing.md"
TESTS = CHECKOUT / "tests" / "testing" / "test_conformance.py"


def checks_in_sources() -> set[str]:
    folder = Path(str(fxplug.testing.__file__)).parent
    text = "\n".join(path.read_text(encoding="utf-8") for path in folder.glob("*.py"))
    in_calls = re.findall(r'findings\.(?:verdict|passed|failed|skipped)\(\s*"([a-z-]+)"', text)
    return set(in_calls)


def test_the_page_lists_every_check():
    rows = re.findall(r"^\| (`[a-z`, -]+`) \|", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    listed = {name for row in rows for name in re.findall(r"`([a-z-]+)`", row)}

    assert listed - {"plugin_host", "fake_site"} == checks_in_sources()


def test_every_check_has_a_test_with_a_plugin_that_fails_it():
    text = TESTS.read_text(encoding="utf-8")
    failing = set(re.findall(r'"([a-z-]+)"\]', text)) | set(
        re.findall(r'"([a-z-]+)" in (?:failures_of|found)', text)
    )

    assert checks_in_sources() - failing == set()
