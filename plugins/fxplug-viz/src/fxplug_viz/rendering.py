"""Pictures of DOT text, made by the program ``dot`` of Graphviz."""

from __future__ import annotations

import functools
import os
import platform
import subprocess
import sys
from pathlib import Path
from typing import Literal, get_args

import graphviz

from fxplug.errors import ConfigError, StorageError, did_you_mean
from fxplug_viz.errors import DrawingError

__all__ = ["Format", "format_of", "install_hint", "render", "write_bytes"]

Format = Literal["dot", "svg", "png", "pdf"]
"""What a picture can be written as. ``"dot"`` is the text that the others are made of."""

_SUFFIXES = {".gv": "dot"} | {f".{name}": name for name in get_args(Format)}
_DOTS_PER_INCH = "96"
_PACKAGES = {
    "debian": "sudo apt-get install graphviz",
    "ubuntu": "sudo apt-get install graphviz",
    "fedora": "sudo dnf install graphviz",
    "rhel": "sudo dnf install graphviz",
    "suse": "sudo zypper install graphviz",
    "opensuse": "sudo zypper install graphviz",
    "arch": "sudo pacman -S graphviz",
    "alpine": "apk add graphviz font-dejavu",
}


def format_of(
    path: str | os.PathLike[str],
    format: str | None = None,  # noqa: A002 - as in hooks
    *,
    besides: str = "",
) -> Format:
    """Return the format of a picture that is named, or that a path ends in.

    Args:
        path: Where the picture goes.
        format: Its name.
        besides: What else a path may end in for whoever asks, to be told.

    Raises:
        ConfigError: There is no such format.
    """
    known: tuple[Format, ...] = get_args(Format)
    for name in known:
        if name == (_SUFFIXES.get(Path(path).suffix.lower()) if format is None else format):
            return name
    if format is not None:
        raise ConfigError(
            f"Cannot draw as {format!r}: no such format is known. {did_you_mean(format, known)}"
        )
    is_page = Path(path).suffix.lower() in {".html", ".htm"}
    pages = " Pages for a browser are made by 'fxplug view' and 'fxplug_viz.view'." if is_page else ""
    raise ConfigError(
        f"Cannot draw to {os.fspath(path)!r}: the name does not say which format is meant. Let it end in "
        f"{', '.join([*_SUFFIXES, *filter(None, [besides])])}, or name the format: {', '.join(known)}.{pages}"
    )


@functools.lru_cache(maxsize=8)
def render(text: str, format: Format) -> bytes:  # noqa: A002 - as in hooks
    """Return a picture of DOT text.

    Raises:
        DrawingError: Graphviz is not installed, or cannot draw it.
    """
    data = text.encode("utf-8")
    if format == "dot":
        return data
    if format == "png":
        data = data.replace(b"digraph {", f'digraph {{ dpi="{_DOTS_PER_INCH}";'.encode(), 1)
    try:
        return graphviz.pipe("dot", format, data, quiet=True)
    except graphviz.ExecutableNotFound as error:
        raise DrawingError(
            f"Cannot make a picture ({format}): the program 'dot' of Graphviz was not found on PATH. "
            f"{install_hint()}",
            code="FXP-D001",
        ) from error
    except subprocess.CalledProcessError as error:
        said = (error.stderr or b"").decode("utf-8", "replace").strip().splitlines()
        raise DrawingError(
            f"Cannot make a picture ({format}): 'dot' of Graphviz ended with {error.returncode}: "
            f"{said[0] if said else 'it said nothing'}. Draw less of it (hide, clusters=False), or write it as DOT "
            "text and try another program of Graphviz."
        ) from error


def install_hint() -> str:
    """Return a sentence that says how Graphviz is installed on this platform."""
    command = _install_command()
    if command is None:
        return "Install it: https://graphviz.org/download says how."
    return (
        f"Install it, then open a new terminal: {command!r}."
        if "winget" in command
        else f"Install it with {command!r}."
    )


def _install_command() -> str | None:
    if os.environ.get("CONDA_PREFIX"):
        return "conda install -c conda-forge graphviz"
    if sys.platform == "darwin":
        return "brew install graphviz"
    if sys.platform == "win32":
        return "winget install Graphviz.Graphviz"
    try:
        release = platform.freedesktop_os_release()
    except OSError:
        release = {}
    for name in [release.get("ID", ""), *release.get("ID_LIKE", "").split()]:
        if name in _PACKAGES:
            return _PACKAGES[name]
    return None


def write_bytes(path: Path, data: bytes) -> None:
    """Write a file completely, or leave what was there.

    Raises:
        StorageError: It cannot be written.
    """
    half = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        half.write_bytes(data)
        half.replace(path)
    except OSError as error:
        half.unlink(missing_ok=True)
        raise StorageError(
            f"Cannot write the picture to {str(path)!r}: {error.strerror or error}. Name a file in a folder that "
            f"exists and can be written to."
        ) from error
