"""Files, formats and a Graphviz that is not there."""

from __future__ import annotations

import sys

import pytest

import fxplug
from fxplug.errors import ConfigError, StorageError
from fxplug_viz import DrawingError, dot_text, draw, rendering


@pytest.fixture
def module():
    return fxplug.symbolic_trace(lambda x: x + 1)


@pytest.fixture
def no_graphviz(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path / "no programs"))
    monkeypatch.delenv("CONDA_PREFIX", raising=False)
    rendering.render.cache_clear()


@pytest.mark.parametrize("name", ["model.dot", "model.gv", "MODEL.DOT"])
def test_dot_text_needs_no_graphviz(module, tmp_path, no_graphviz, name):
    assert draw(module, tmp_path / name).read_text(encoding="utf-8") == dot_text(module)


@pytest.mark.parametrize(
    ("platform", "release", "advice"),
    [
        ("linux", {"ID": "debian"}, "Install it with 'sudo apt-get install graphviz'."),
        (
            "linux",
            {"ID": "rocky", "ID_LIKE": "rhel centos fedora"},
            "Install it with 'sudo dnf install graphviz'.",
        ),
        ("linux", {"ID": "own"}, "Install it: https://graphviz.org/download says how."),
        ("darwin", {}, "Install it with 'brew install graphviz'."),
        ("win32", {}, "Install it, then open a new terminal: 'winget install Graphviz.Graphviz'."),
    ],
)
def test_without_graphviz_the_text_is_written_and_the_error_says_how_to_install_it(
    module, tmp_path, no_graphviz, monkeypatch, platform, release, advice
):
    if platform != "win32" or sys.platform == "win32":
        monkeypatch.setattr(rendering.sys, "platform", platform)
        monkeypatch.setattr(rendering.platform, "freedesktop_os_release", lambda: release)
        with pytest.raises(DrawingError) as caught:
            draw(module, tmp_path / "model.svg")
        assert str(caught.value) == (
            "Cannot make a picture (svg): the program 'dot' of Graphviz was not found on PATH. "
            f"{advice} The DOT text was written to {str(tmp_path / 'model.dot')!r}. [FXP-D001]"
        )
        assert (tmp_path / "model.dot").read_text(encoding="utf-8") == dot_text(module)
        assert not (tmp_path / "model.svg").exists()
    else:
        monkeypatch.setattr(rendering.sys, "platform", platform)
        advised = rendering.install_hint()
        monkeypatch.undo()
        assert advised == advice


def test_in_conda_environments_conda_installs_it(monkeypatch):
    monkeypatch.setenv("CONDA_PREFIX", "/opt/conda")

    assert rendering.install_hint() == "Install it with 'conda install -c conda-forge graphviz'."


def test_an_unknown_format_is_refused(module, tmp_path):
    with pytest.raises(
        ConfigError, match=r"Cannot draw as 'svgz': no such format is known. Did you mean 'svg'\?"
    ):
        draw(module, tmp_path / "model.svg", "svgz")
    with pytest.raises(ConfigError) as caught:
        draw(module, tmp_path / "model.gif")

    assert caught.value.message == (
        f"Cannot draw to {str(tmp_path / 'model.gif')!r}: the name does not say which format is meant. Let it end in "
        ".gv, .dot, .svg, .png, .pdf, or name the format: dot, svg, png, pdf."
    )
    with pytest.raises(ConfigError, match=r"Pages for a browser are made by 'fxplug view'"):
        draw(module, tmp_path / "model.html")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("place", ["missing/model.dot", "folder.dot"])
def test_a_path_that_cannot_be_written_is_named(module, tmp_path, place):
    (tmp_path / "folder.dot").mkdir()

    with pytest.raises(StorageError, match="Cannot write the picture to"):
        draw(module, tmp_path / place)

    assert [path.name for path in tmp_path.iterdir()] == ["folder.dot"]
