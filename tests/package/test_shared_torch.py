"""What environments share is in each of them as if pip had put it there."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest

TOOL = Path(__file__).resolve().parents[2] / "tools" / "share_torch.py"


@pytest.fixture(scope="module")
def tool():
    spec = importlib.util.spec_from_file_location("share_torch_under_test", TOOL)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def write_distribution(site: Path, name: str, version: str, text: str = "value = 1\n") -> Path:
    """Write what pip leaves of a distribution with one package, one data file and one command."""
    package, info = site / name, site / f"{name}-{version}.dist-info"
    for folder in (package, info, site.parent / "bin"):
        folder.mkdir(parents=True, exist_ok=True)
    (package / "__init__.py").write_text(text)
    (package / "data.bin").write_bytes(bytes(10))
    (site.parent / "bin" / name).write_text("#!/there/python\n")
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    files = (f"{name}/__init__.py", f"{name}/data.bin", f"../bin/{name}", f"{info.name}/METADATA")
    (info / "RECORD").write_text("".join(f"{file},,\n" for file in (*files, f"{info.name}/RECORD")))
    return package


@pytest.fixture
def sites(tmp_path):
    """Two folders of packages; the first holds `heavy`, which was imported once, and `light`."""
    source, target = tmp_path / "source" / "site-packages", tmp_path / "target" / "site-packages"
    write_distribution(source, "heavy", "2.0")
    write_distribution(source, "light", "1.0")
    subprocess.run([sys.executable, "-c", "import heavy"], env={"PYTHONPATH": str(source)}, check=True)
    target.mkdir(parents=True)
    return source, target


def versions_in(site: Path) -> dict[str, str]:
    found = [one for one in metadata.distributions(path=[str(site)]) if one.read_text("METADATA")]
    return {one.metadata["Name"]: one.version for one in found}


def test_a_distribution_is_there_with_its_metadata_and_its_byte_code_and_takes_no_room(tool, sites):
    source, target = sites

    assert sorted(tool.link(source, target)) == ["heavy", "light"]

    assert versions_in(target) == {"heavy": "2.0", "light": "1.0"}
    (compiled,) = (target / "heavy" / "__pycache__").iterdir()
    for path in (target / "heavy" / "__init__.py", target / "heavy" / "data.bin", compiled):
        assert path.samefile(source / path.relative_to(target))
    # The byte code is that of this source: Python does not make it anew.
    written = compiled.stat().st_mtime_ns
    subprocess.run([sys.executable, "-c", "import heavy"], env={"PYTHONPATH": str(target)}, check=True)
    assert compiled.samefile(source / compiled.relative_to(target))
    assert compiled.stat().st_mtime_ns == written


def test_commands_stay_where_their_python_is(tool, sites):
    source, target = sites
    tool.link(source, target)

    assert (source.parent / "bin" / "heavy").exists()
    assert not (target.parent / "bin").exists()


def test_a_distribution_that_is_there_already_is_left_alone(tool, sites):
    source, target = sites
    write_distribution(target, "heavy", "1.0", "value = 'of pip'\n")

    assert tool.link(source, target) == ["light"]

    assert versions_in(target) == {"heavy": "1.0", "light": "1.0"}
    assert (target / "heavy" / "__init__.py").read_text() == "value = 'of pip'\n"
    assert (source / "heavy" / "__init__.py").read_text() == "value = 1\n"


def test_where_there_can_be_no_links_files_are_copied_with_their_times(tool, sites, monkeypatch):
    def refuse(*_):
        raise OSError("links between devices are impossible")

    source, target = sites
    monkeypatch.setattr(os, "link", refuse)
    tool.link(source, target)

    for path in source.joinpath("heavy").rglob("*.*"):
        copied = target / path.relative_to(source)
        assert copied.read_bytes() == path.read_bytes()
        assert copied.stat().st_mtime_ns == path.stat().st_mtime_ns
        assert not copied.samefile(path)


@pytest.mark.parametrize("name", ["data.bin", "RECORD"])
def test_what_was_interrupted_is_not_taken_for_whole_and_is_made_good(tool, sites, monkeypatch, name):
    source, target = sites
    link = os.link

    def fail_at_data(path, other):
        if Path(path).name == name:
            raise KeyboardInterrupt
        link(path, other)

    with monkeypatch.context() as patch:
        patch.setattr(os, "link", fail_at_data)
        with pytest.raises(KeyboardInterrupt):
            tool.link(source, target)
    assert versions_in(target) == {}

    assert sorted(tool.link(source, target)) == ["heavy", "light"]
    assert versions_in(target) == {"heavy": "2.0", "light": "1.0"}
    assert len(list(target.glob("*.dist-info/RECORD"))) == 2


def test_it_says_what_it_needs_to_be_told(tool, capsys):
    assert tool.main([]) == 2
    assert "Cannot share torch: name one folder, not []." in capsys.readouterr().err
