"""What several files of the checkout say, they say alike."""

from __future__ import annotations

import re
from pathlib import Path

import tomllib

CHECKOUT = Path(__file__).resolve().parents[2]
PLUGINS = sorted((CHECKOUT / "plugins").glob("fxplug-*"))


def test_every_distribution_carries_the_same_licence():
    licence = (CHECKOUT / "LICENSE").read_text()

    assert licence.startswith("                                 Apache License")
    assert {path.name for path in PLUGINS if (path / "LICENSE").read_text() != licence} == set()


def test_a_plugin_has_every_file_that_its_users_look_for():
    for plugin in PLUGINS:
        package = plugin / "src" / plugin.name.replace("-", "_")
        for wanted in (
            plugin / "README.md",
            plugin / "CHANGELOG.md",
            package / "py.typed",
            package / "plugin.py",
        ):
            assert wanted.is_file(), wanted


def test_a_plugin_is_checked_by_the_configuration_of_the_root():
    for plugin in PLUGINS:
        assert set(read_project(plugin)["tool"]) == {"hatch"}


def test_the_configuration_of_the_root_names_every_plugin():
    tools = read_project(CHECKOUT)["tool"]
    packages = {plugin.name.replace("-", "_") for plugin in PLUGINS}

    assert packages <= set(tools["importlinter"]["root_packages"])
    assert packages <= set(tools["ruff"]["lint"]["isort"]["known-first-party"])
    assert {f"plugins/{plugin.name}/src" for plugin in PLUGINS} == set(tools["basedpyright"]["extraPaths"])


def test_the_commit_hooks_use_the_tested_versions():
    constraints = (CHECKOUT / "constraints.txt").read_text()
    hooks = (CHECKOUT / ".pre-commit-config.yaml").read_text()
    pinned = re.findall(r"additional_dependencies: \[(.+)\]", hooks)

    assert pinned
    assert [pin for pin in pinned if not re.search(rf"^{re.escape(pin)}\b", constraints, re.MULTILINE)] == []


def test_every_tool_that_the_environments_install_is_pinned():
    constraints = set(re.findall(r"^([\w.-]+)==", (CHECKOUT / "constraints.txt").read_text(), re.MULTILINE))
    blocks = re.findall(r"^deps =\n((?:    .+\n)+)", (CHECKOUT / "tox.ini").read_text(), re.MULTILINE)
    lines = [line.strip() for block in blocks for line in block.splitlines()]
    # What only some environments install stands behind their names.
    wanted = {line.rpartition(": ")[2] for line in lines if line[0] not in "#{"}

    assert wanted
    assert wanted - constraints == set()


def test_the_oldest_libraries_are_the_lower_ends_of_the_ranges():
    oldest = dict(
        line.split("==")
        for line in (CHECKOUT / "constraints-oldest.txt").read_text().splitlines()
        if line[:1] not in {"#", ""}
    )
    tested = (CHECKOUT / "constraints.txt").read_text()
    dependencies = [text.partition(";")[0] for text in read_project(CHECKOUT)["project"]["dependencies"]]
    ranges = dict(text.split(">=") for text in dependencies if not text.startswith(("torch>", "tomli>")))

    def numbers(version):
        return [int(part) for part in version.split(".")] + [0] * (3 - version.count(".") - 1)

    assert {name: numbers(oldest[name]) for name in ranges} == {
        name: numbers(version) for name, version in ranges.items()
    }
    others = {name: version for name, version in oldest.items() if name not in ranges}
    assert others.keys() == {"torch"}
    assert [name for name, version in others.items() if f"\n{name}=={version.split()[0]}" not in tested] == []


def read_project(folder: Path) -> dict[str, dict[str, object]]:
    return tomllib.loads((folder / "pyproject.toml").read_text())
