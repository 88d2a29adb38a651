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


def copy_path(path: str, holders: dict[str, tuple[Any, Any]]) -> bool:
    """Let one module hold the very object that another one holds at `path`; nothing is duplicated.

    Modules on the way that are not taken as a whole are not taken over: an empty module stands in for each, so
    that only what the path names is kept.

    Args:
        path: Dotted path.
        holders: Prefix of a path -> (its holder in the new module, in the old one). Start with the pair of roots under
            ``""`` and pass the same dict for every path of one module.

    Returns:
        False when the old module has nothing at `path`.
    """
    prefix, _, name = path.rpartition(".")
    pair = holders.get(prefix) or _open_holder(prefix, holders)
    if pair is None:
        return False
    ours, theirs = pair
    if ours is theirs:
        return hasattr(theirs, name)
    value: Any = modules_of(theirs).get(name) if isinstance(theirs, nn.Module) else None
    if value is not None:
        modules_of(ours)[name] = value
        holders[path] = (value, value)
        return True
    if not hasattr(theirs, name):
        return False
    # A plain tensor attribute is no part of the source's state dict, and so not of ours.
    set_path(
        ours, name, getattr(theirs, name), persistent=isinstance(theirs, nn.Module) and persists(theirs, name)
    )
    return True


def _open_holder(prefix: str, holders: dict[str, tuple[Any, Any]]) -> tuple[Any, Any] | None:
    """Return the holders at `prefix`, making an empty module there and on the way where there is none."""
    outer, _, name = prefix.rpartition(".")
    pair = holders.get(outer) or _open_holder(outer, holders)
    if pair is None or not hasattr(pair[1], name):
        return None
    ours, theirs = pair[0], getattr(pair[1], name)
    existing = theirs if ours is pair[1] else getattr(ours, name, None)
    if existing is not theirs and not isinstance(existing, nn.Module):
        existing = nn.Module()
        modules_of(ours)[name] = existing
    holders[prefix] = (existing, theirs)
    return holders[prefix]
