"""What is in the wheels and sdists, and what their metadata says."""

from __future__ import annotations

import sys
import tarfile
import zipfile
from configparser import ConfigParser
from email.parser import HeaderParser
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from email.message import Message

ALLOWED_SUFFIXES = {".py", ".pyi", ".typed"}
TEMPLATE = "fxplug/cli/template/"
METADATA_FILES = ("METADATA", "RECORD", "WHEEL", "entry_points.txt", "licenses/LICENSE")
# The pages of fxplug-viz carry libraries of others.
ASSETS = "fxplug_viz/assets/"
ASSET_SUFFIXES = {".css", ".j2", ".js", ".txt"}
BUNDLED_LICENCES = {"fxplug-viz": "licenses/src/fxplug_viz/assets/vendor/LICENSES.txt"}
LICENCES = {"fxplug-viz": "Apache-2.0 AND BSD-3-Clause AND ISC AND MIT"}
BESIDES_THE_CORE = {"fxplug-viz": ["graphviz>=0.20", "jinja2>=3.1"]}


def test_the_wheel_holds_the_package_and_its_metadata_and_nothing_else(distribution):
    with zipfile.ZipFile(distribution.wheel) as wheel:
        names = set(wheel.namelist())

    package = {
        f"{distribution.package}/{path.relative_to(distribution.package_folder).as_posix()}"
        for path in distribution.package_folder.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    bundled = BUNDLED_LICENCES.get(distribution.name)
    metadata = {f"{distribution.info}/{name}" for name in (*METADATA_FILES, *([bundled] if bundled else []))}
    assert names == package | metadata
    assert f"{distribution.package}/py.typed" in names
    template = {name for name in package if name.startswith(TEMPLATE)}
    assets = {name for name in package if name.startswith(ASSETS)}
    assert {Path(name).suffix for name in assets} <= ASSET_SUFFIXES
    assert {Path(name).suffix for name in package - template - assets} <= ALLOWED_SUFFIXES
    assert {Path(name).suffix for name in template} == ({".tmpl"} if distribution.name == "fxplug" else set())
    assert not [name for name in names if "/test_" in name or "/tests/" in name or "conftest" in name]


def test_the_sdist_holds_what_the_wheel_is_built_from(distribution):
    with tarfile.open(distribution.sdist) as sdist:
        names = {name.partition("/")[2] for name in sdist.getnames()}

    folder = distribution.package_folder.relative_to(distribution.source).parts[0]
    top = {name.partition("/")[0] for name in names}
    # The build backend adds the .gitignore that it found.
    assert top - {".gitignore"} == {
        "CHANGELOG.md",
        "LICENSE",
        "PKG-INFO",
        "README.md",
        "pyproject.toml",
        folder,
    }


def test_the_metadata_is_complete(distribution):
    metadata = read_metadata(distribution)

    assert metadata["Name"] == distribution.name
    assert metadata["Version"] == distribution.version
    assert metadata["License-Expression"] == LICENCES.get(distribution.name, "Apache-2.0")
    assert "LICENSE" in metadata.get_all("License-File")
    assert metadata["Requires-Python"] == ">=3.10"
    assert metadata["Description-Content-Type"] == "text/markdown"
    assert metadata["Summary"]
    assert "Typing :: Typed" in metadata.get_all("Classifier")


def test_plugins_need_the_core_and_little_else_and_the_core_needs_no_plugin(distribution):
    requirements = read_metadata(distribution).get_all("Requires-Dist")
    needed = [line for line in requirements if "extra ==" not in line]

    if distribution.name == "fxplug":
        assert not [line for line in needed if line.startswith("fxplug")]
    else:
        assert needed == ["fxplug<0.2,>=0.1", *BESIDES_THE_CORE.get(distribution.name, [])]


def test_the_entry_points_name_the_command_or_the_plugin_module(distribution):
    with zipfile.ZipFile(distribution.wheel) as wheel:
        text = wheel.read(f"{distribution.info}/entry_points.txt").decode()
    parser = ConfigParser()
    parser.read_string(text)
    groups = {name: dict(parser[name]) for name in parser.sections()}

    if distribution.name == "fxplug":
        assert groups == {"console_scripts": {"fxplug": "fxplug.cli:main"}}
    else:
        name = distribution.name.removeprefix("fxplug-")
        assert groups == {"fxplug": {name: f"{distribution.package}.plugin"}}
        with zipfile.ZipFile(distribution.wheel) as wheel:
            assert f"{distribution.package}/plugin.py" in wheel.namelist()


def test_an_index_would_accept_the_files(files, run_command):
    paths = sorted(str(path) for path in files.iterdir())

    assert "PASSED" in run_command(sys.executable, "-m", "twine", "check", "--strict", *paths, cwd=files)


def read_metadata(distribution) -> Message:
    with zipfile.ZipFile(distribution.wheel) as wheel:
        text = wheel.read(f"{distribution.info}/METADATA").decode()
    return HeaderParser().parsestr(text)
