"""Writing and checking plugins on the command line."""

from __future__ import annotations

import importlib
import json
import re
import sys
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch

import fxplug as package
from fxplug.cli import authoring
from fxplug.testing import FakeSite, check_plugin

if TYPE_CHECKING:
    from collections.abc import Iterator

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

FILES = [
    ".github/workflows/tests.yml",
    "CHANGELOG.md",
    "LICENSE",
    "README.md",
    "pyproject.toml",
    "src/fxplug_two_words/__init__.py",
    "src/fxplug_two_words/passes.py",
    "src/fxplug_two_words/plugin.py",
    "tests/test_fxplug_two_words.py",
]


@pytest.fixture
def site(folder: Path, monkeypatch) -> Iterator[FakeSite]:
    monkeypatch.delenv("FXPLUG_LOAD_PLUGINS")
    with FakeSite(folder / "site") as fake:
        yield fake


def contents(folder: Path) -> dict[str, str]:
    return {
        path.relative_to(folder).as_posix(): path.read_text()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


# -- new --------------------------------------------------------------------------------------------------------


def test_new_writes_a_distribution_and_says_what_is_next(fxplug, folder):
    result = fxplug("plugins", "new", "two-words")

    assert result.exit_code == 0, result.stdout + result.stderr
    assert sorted(contents(folder / "fxplug-two-words")) == FILES
    assert (result.stdout + result.stderr).splitlines()[-3:] == [
        "  pip install ./fxplug-two-words",
        "  pytest fxplug-two-words",
        "  fxplug plugins check two-words",
    ]
    assert sorted(path.name for path in folder.iterdir()) == ["fxplug-two-words", "models.py"]


def test_nothing_of_the_template_is_left_over(fxplug, folder):
    fxplug("plugins", "new", "two-words")

    for path, text in contents(folder / "fxplug-two-words").items():
        left = text.replace("${{ matrix.python }}", "")
        assert not re.search(r"\$|\btmpl\b|TODO|REPLACE|\bdemo\b|<[a-z_]+>", left), path
        assert text.endswith("\n")
        if path.endswith(".py"):
            compile(text, path, "exec")


def test_the_project_file_names_entry_point_and_range(fxplug, folder, monkeypatch):
    monkeypatch.setattr(package, "__version__", "0.7.3")
    fxplug("plugins", "new", "two-words")

    written = tomllib.loads((folder / "fxplug-two-words" / "pyproject.toml").read_text())
    project = written["project"]

    assert project["name"] == "fxplug-two-words"
    assert project["entry-points"] == {"fxplug": {"two-words": "fxplug_two_words.plugin"}}
    assert project["dependencies"] == ["fxplug>=0.7,<0.8"]
    # Without it, ruff takes the package for somebody else's where it runs in another folder.
    assert written["tool"]["ruff"]["src"] == ["src"]


@pytest.mark.parametrize(
    ("version", "requirement"),
    [("0.1.0", "fxplug>=0.1,<0.2"), ("1.4.2", "fxplug>=1.4,<2"), ("0.9.0.dev3", "fxplug>=0.9,<0.10")],
)
def test_the_range_begins_with_the_running_release(monkeypatch, version, requirement):
    monkeypatch.setattr(package, "__version__", version)

    assert authoring._requirement() == requirement


def test_every_file_of_the_template_is_used():
    template = resources.files("fxplug.cli").joinpath("template")

    assert {entry.name for entry in template.iterdir()} == set(authoring._FILES)


def test_what_is_written_passes_the_checks(fxplug, folder, monkeypatch):
    fxplug("plugins", "new", "two-words", "--directory", "made/here")
    monkeypatch.syspath_prepend(str(folder / "made" / "here" / "fxplug-two-words" / "src"))

    report = check_plugin(importlib.import_module("fxplug_two_words.plugin"))

    report.raise_failures()
    assert report.plugin == "two-words"
    found = {finding.check: finding for finding in report.findings}
    assert found["pass-runs"].reason == "changes 4 of 12 models"
    assert found["pass-idempotent"].outcome == "passed"
    assert found["import-effects"].outcome == "passed"


def sub_between(x):
    y = torch.relu(x)
    y.sub_(1)
    return torch.relu(y)


def add_behind(x):
    y = torch.relu(x)
    z = torch.relu(y)
    z.add_(1)
    return y + z


def by_keyword(x):
    return torch.relu(input=torch.relu(x)) + x.relu().relu().relu()


def passes_for_authors() -> dict[str, str]:
    """Return the source of every pass that authors begin with."""
    template = resources.files("fxplug.cli").joinpath("template", "passes.py.tmpl")
    page = Path(__file__).resolve().parents[2] / "docs" / "plugins" / "howto" / "write-a-pass.md"
    return {
        "template": template.read_text(encoding="utf-8"),
        "howto": page.read_text(encoding="utf-8").partition("```python\n")[2].partition("```\n")[0],
    }


@pytest.mark.parametrize(("program", "is_changed"), [(sub_between, 0), (add_behind, 0), (by_keyword, 1)])
@pytest.mark.parametrize("source", passes_for_authors())
def test_the_pass_that_authors_begin_with_keeps_the_values(source, program, is_changed):
    namespace: dict[str, Any] = {}
    exec(compile(passes_for_authors()[source], source, "exec", dont_inherit=True), namespace)
    x = torch.tensor([-2.0, 0.0, 1.0, 2.0, 3.0])
    module = package.symbolic_trace(program)

    result = namespace["SingleRelu"]().run(module, package.PassContext())

    assert result.modified is bool(is_changed)
    assert module(x.clone()).tolist() == program(x.clone()).tolist()


def test_a_pass_can_be_published_in_thirty_lines():
    assert all(len(source.splitlines()) <= 30 for source in passes_for_authors().values())


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (
            "Demo",
            "Cannot make a plugin that is named 'Demo'; names are lower-case words joined by hyphens. Choose",
        ),
        ("two_words", "names are lower-case words joined by hyphens"),
        ("../up", "names are lower-case words joined by hyphens"),
        ("", "names are lower-case words joined by hyphens"),
        ("core", "Cannot make a plugin that is named 'core', which is reserved for fxplug itself."),
        ("fxplug", "Cannot make a plugin named 'fxplug': that is fxplug itself. Choose a name such as"),
        (
            "1x",
            "Cannot make a plugin named '1x': names of the hooks that it could declare would begin with a digit.",
        ),
        ("a" * 300, "it has 300 letters, and files are named after it; 60 are enough. Choose a name such as"),
        ("fxplug-demo", "'fxplug-' is put in front by itself. Run: fxplug plugins new demo"),
    ],
)
def test_a_bad_name_is_refused(fxplug, folder, name, message):
    result = fxplug("plugins", "new", name)

    assert result.exit_code == 2
    assert message in (result.stdout + result.stderr)
    assert [path.name for path in folder.iterdir()] == ["models.py"]


def test_the_name_of_an_installed_plugin_is_refused(fxplug, folder, site):
    site.install("taken", version="2.0")

    result = fxplug("plugins", "new", "taken")

    assert result.exit_code == 2
    assert "Cannot make a plugin named 'taken': fxplug-taken 2.0 is installed and has that name." in (
        result.stdout + result.stderr
    )


@pytest.mark.parametrize("empty", [True, False])
def test_nothing_that_exists_is_overwritten(fxplug, folder, empty):
    existing = folder / "fxplug-demo"
    existing.mkdir()
    if not empty:
        (existing / "README.md").write_text("mine")
    before = contents(folder)

    result = fxplug("plugins", "new", "demo")

    assert result.exit_code == 1
    assert "Cannot make the plugin 'demo': 'fxplug-demo' exists already. Choose another name" in (
        result.stdout + result.stderr
    )
    assert contents(folder) == before


def test_a_folder_that_cannot_be_made_is_named(fxplug, folder):
    result = fxplug("plugins", "new", "demo", "--directory", "models.py/below")

    assert result.exit_code == 1
    assert "Cannot write to" in (result.stdout + result.stderr)
    assert [path.name for path in folder.iterdir()] == ["models.py"]


# -- check ------------------------------------------------------------------------------------------------------

SOUND = """
from fxplug import hookimpl

@hookimpl
def fxplug_is_leaf_module(module):
    return None
"""


def test_check_lists_every_finding(fxplug, site):
    site.install("sound", SOUND, requires=["fxplug>=0.1,<0.2"])

    result = fxplug("plugins", "check", "sound")

    assert result.exit_code == 0, result.stdout + result.stderr
    lines = [line.split() for line in (result.stdout + result.stderr).splitlines()]
    assert ["loads", "the", "plugin", "passed", "hooks", "fxplug_is_leaf_module"] in lines
    assert (result.stdout + result.stderr).splitlines()[
        -1
    ] == "sound (fxplug-sound 1.0): 9 passed, 0 skipped, 0 failed."


def test_check_fails_when_a_check_fails_and_says_what_to_do(fxplug, site):
    site.install("loud", f"{SOUND}\nprint('here I am')", requires=["fxplug>=0.1,<0.2"])

    result = fxplug("plugins", "check", "fxplug-loud")

    assert result.exit_code == 1
    assert "it prints 'here I am'. Move that into a hook or a factory" in (result.stdout + result.stderr)
    assert "1 failed." in (result.stdout + result.stderr)


def test_check_gives_json(fxplug, site):
    site.install("sound", SOUND)

    result = fxplug("plugins", "check", "sound", "--json")

    data = json.loads(result.stdout)
    assert result.exit_code == 1
    assert (data["plugin"], data["distribution"], data["version"], data["passed"]) == (
        "sound",
        "fxplug-sound",
        "1.0",
        False,
    )
    (failed,) = [finding for finding in data["findings"] if finding["outcome"] == "failed"]
    assert failed["check"] == "range"
    assert failed["remedy"].startswith("State both ends of the range")


def test_check_of_an_unknown_plugin_offers_the_nearest_one(fxplug, site):
    site.install("sound", SOUND)

    result = fxplug("plugins", "check", "sund")

    assert result.exit_code == 2
    assert "There is no plugin named 'sund'. Did you mean 'sound'?" in (result.stdout + result.stderr)
