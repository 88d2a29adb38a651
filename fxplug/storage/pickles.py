"""Graph modules in files that ``torch.save`` wrote: code that runs when it is loaded, behind a switch."""

from __future__ import annotations

import os
import warnings
import zipfile
from pathlib import Path
from typing import Any, cast

import torch

from fxplug.errors import StorageError
from fxplug.execute import GraphModule
from fxplug.storage.faults import Codes

__all__ = ["is_pickle", "load_pickle", "refused_pickle"]

_PICKLES = (b"\x80\x02", b"\x80\x03", b"\x80\x04", b"\x80\x05")


def is_pickle(path: str | os.PathLike[str]) -> bool:
    """Return whether a file is a pickle, or an archive of one, as ``torch.save`` writes it."""
    if not isinstance(cast("object", path), (str, os.PathLike)):
        return False
    try:
        with Path(path).open("rb") as stream:
            start = stream.read(2)
            if start in _PICKLES:
                return True
            if start != b"PK":
                return False
            with zipfile.ZipFile(stream) as archive:
                return any(name.endswith("/data.pkl") for name in archive.namelist())
    except (OSError, ValueError, NotImplementedError, zipfile.BadZipFile):
        return False


def refused_pickle(path: str | os.PathLike[str]) -> StorageError:
    """Return the error that says that a file is a pickle, and what to do."""
    return StorageError(
        f"Cannot load {str(path)!r}: it is a pickle, as torch.save writes it, which runs whatever its author "
        f"put there. Ask for a file that fxplug.save wrote, or, if you trust whoever made it, pass allow_pickle=True.",
        code=Codes.PICKLE,
    )


def load_pickle(path: str | os.PathLike[str]) -> GraphModule:
    """Return the graph module that a pickle makes, and warn.

    Raises:
        StorageError: It cannot be loaded, or makes something else.
    """
    warnings.warn(
        f"{str(path)!r} is a pickle: loading it runs whatever its author put there. Write it again with fxplug.save.",
        UserWarning,
        stacklevel=3,  # The caller of fxplug.load.
    )
    try:
        loaded: Any = torch.load(path, map_location="cpu", weights_only=False)
    except Exception as error:
        raise StorageError(
            f"Cannot load {str(path)!r}: unpickling it raised {type(error).__name__}: {error}."
        ) from error
    if not isinstance(loaded, GraphModule):
        raise StorageError(
            f"Cannot load {str(path)!r}: it holds a {type(loaded).__module__}.{type(loaded).__qualname__}, not a "
            f"fxplug.GraphModule. Load it with torch.load."
        )
    return loaded
