"""Dotted attribute paths of modules: read, set, delete, and copy from one root to another."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from fxplug.errors import GraphError
from fxplug.semantics.internals import buffers_of, modules_of, persists

__all__ = ["copy_path", "delete_path", "fetch_path", "has_path", "set_path"]


def fetch_path(root: Any, path: str, *, reader: str | None = None) -> Any:
    """Return the value at a dotted path below `root`.

    Args:
        root: A module.
        path: E.g. ``"layer1.0.weight"``.
        reader: Name of the node that asks, for the message.

    Raises:
        GraphError: A part of the path does not exist.
    """
    holder = root
    walked: list[str] = []
    for part in path.split("."):
        if not hasattr(holder, part):
            who = f"Node {reader!r} refers to" if reader else "Cannot read"
            raise GraphError(
                f"{who} {path!r}, but {'.'.join(walked) or 'the root'} ({type(holder).__name__}) has no "
                f"attribute {part!r}. Add it to the module, or change the target."
            )
        holder = getattr(holder, part)
        walked.append(part)
    return holder


def has_path(root: Any, path: str) -> bool:
    """Return whether every part of a dotted path exists below `root`."""
    holder = root
    for part in path.split("."):
        if not hasattr(holder, part):
            return False
        holder = getattr(holder, part)
    return True


def set_path(root: nn.Module, path: str, value: Any, *, persistent: bool = True) -> None:
    """Put `value` at a dotted path, making empty modules for the parts in between.

    A tensor that is no parameter becomes a buffer; `persistent` says whether it is part of the state dict.
    """
    *parents, name = path.split(".")
    holder = root
    for part in parents:
        if not isinstance(getattr(holder, part, None), nn.Module):
            holder.add_module(part, nn.Module())
        holder = getattr(holder, part)
    if isinstance(value, torch.Tensor) and not isinstance(value, nn.Parameter):
        if name in buffers_of(holder) or not hasattr(holder, name):
            holder.register_buffer(name, value, persistent=persistent)
            return
    elif isinstance(value, nn.Module):
        holder.add_module(name, value)
        return
    setattr(holder, name, value)


def delete_path(root: nn.Module, path: str) -> bool:
    """Remove the submodule at a dotted path; return whether there was one."""
    *parents, name = path.split(".")
    holder: Any = root
    for part in parents:
        holder = getattr(holder, part, None)
    if not isinstance(holder, nn.Module) or name not in modules_of(holder):
        return False
    del modules_of(holder)[name]
    return True


def copy_path(source: nn.Module, destination: nn.Module, path: str) -> None:
    """Let `destination` hold the very object that `source` holds at `path`; nothing is duplicated.

    Modules on the way that carry state of their own are not taken over: an empty module stands in for each,
    so that only what the path names is kept.
    """
    *parents, name = path.split(".")
    ours, theirs = destination, source
    for part in parents:
        below = getattr(theirs, part)
        existing = getattr(ours, part, None)
        if existing is below:
            return  # The parent was taken over as a whole; the path exists already.
        if existing is None:
            ours.add_module(part, nn.Module())
        ours, theirs = getattr(ours, part), below
    value = fetch_path(theirs, name)
    # A plain tensor attribute is no part of the source's state dict, and so not of ours.
    persistent = isinstance(theirs, nn.Module) and persists(theirs, name)
    set_path(ours, name, value, persistent=persistent)
