"""Dotted attribute paths of modules: read, set, delete, and copy from one root to another."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from fxplug.errors import GraphError
from fxplug.semantics.internals import (
    buffers_of,
    empty_module,
    modules_of,
    own_tables,
    parameters_of,
    persists,
)
from fxplug.semantics.surroundings import deepest_module

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

__all__ = ["Holders", "delete_path", "fetch_path", "has_path", "module_at", "set_path", "weight_at"]


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
        try:  # Asking a module first whether it has an attribute takes as long as to read it.
            holder = getattr(holder, part)
        except AttributeError:
            who = f"Node {reader!r} refers to" if reader else "Cannot read"
            raise GraphError(
                f"{who} {path!r}, but {'.'.join(walked) or 'the root'} ({type(holder).__name__}) has no "
                f"attribute {part!r}. Add it to the module, or change the target."
            ) from None
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


def module_at(root: nn.Module, path: str) -> nn.Module | None:
    """Return the module at a dotted path below `root`, None where there is none."""
    found: nn.Module | None = root
    for name in path.split(".") if path else ():
        found = modules_of(found).get(name)
        if found is None:
            break
    return found


def weight_at(root: nn.Module, path: str) -> torch.Tensor | None:
    """Return the parameter or buffer at a dotted path below `root`, None where there is none."""
    prefix, _, name = path.rpartition(".")
    holder = module_at(root, prefix)
    if holder is None:
        return None
    parameters, buffers, _ = own_tables(holder)
    found = parameters.get(name)
    return buffers.get(name) if found is None else found


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


class Holders:
    """Pairs of modules at the same path, in a new module and in the one from which it takes what it holds.

    Modules on the way to what is taken are not taken over: an empty module stands in for each, so that only what the
    paths name is kept.

    Args:
        ours: The new root.
        theirs: The old one.
    """

    def __init__(self, ours: nn.Module, theirs: nn.Module) -> None:
        self._pairs: dict[str, tuple[Any, Any, Any, Any]] = {
            "": (ours, theirs, modules_of(ours), modules_of(theirs))
        }
        self._takes_others = False
        """Whether anything but modules was taken."""
        self._weights: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {}
        """Path of an empty module that stands in for another one -> what both have, ours first."""

    def take_all(self, paths: Iterable[str]) -> str | None:
        """Let the new root hold what the old one holds at each path (see `take`).

        Returns:
            The first path at which the old root has nothing; None when it has something at all of them.
        """
        last, pair, weights = None, None, None
        for path in paths:
            prefix, _, name = path.rpartition(".")
            if prefix != last or pair is None:
                pair = self._pairs.get(prefix) or self._open(prefix)
                if pair is None:
                    return path
                last, weights = prefix, self._weights.get(prefix)
            if path not in self._pairs:
                ours, theirs, our_modules, their_modules = pair
                value = their_modules.get(name)
                if value is not None and ours is not theirs:  # Most paths lead to modules.
                    our_modules[name] = value
                    continue
                if weights is not None and _take_weight(*weights, name):  # And most others to weights.
                    self._takes_others = True
                    continue
            if not self.take(path):
                return path
        return None

    def take(self, path: str) -> bool:
        """Let the new root hold the very object that the old one holds at `path`; nothing is duplicated.

        Returns:
            False when the old root has nothing there.
        """
        prefix, _, name = path.rpartition(".")
        pair = self._pairs.get(prefix) or self._open(prefix)
        if pair is None:
            return False
        ours, theirs, our_modules, their_modules = pair
        if ours is theirs:
            return hasattr(theirs, name)
        value = their_modules.get(name)
        if value is not None:
            our_modules[name] = value
            if path in self._pairs:  # An empty module stood in for it, for the sake of something below.
                below = f"{path}."
                self._weights.clear()
                self._pairs = {
                    key: kept
                    for key, kept in self._pairs.items()
                    if key != path and not key.startswith(below)
                }
            return True
        self._takes_others = True
        if ours.__class__ is nn.Module and _take_plain(ours, theirs, name):
            return True
        value = _held(theirs, name)
        if value is _MISSING:
            return False
        # A plain tensor attribute is no part of the source's state dict, and so not of ours.
        persistent = isinstance(theirs, nn.Module) and persists(theirs, name)
        set_path(ours, name, value, persistent=persistent)
        return True

    def keep_flags(self, paths: Iterable[Sequence[str]], switched: Collection[str] = ()) -> None:
        """Let the new root have a module at each path where what it has on the way there is in another mode.

        Switching the new root, or that part of it, has to be seen at the place of the module.

        Args:
            paths: Those of the modules.
            switched: The paths of modules that may get into another mode than what they are in.
        """
        ours, theirs, *_ = self._pairs[""]
        for path in paths:
            name = ".".join(path)
            if (
                name in switched
                or deepest_module(ours, path).training is not deepest_module(theirs, path).training
            ):
                self._open(name)

    def keep_order(self) -> None:
        """Bring what was taken into the order that the old root has: state goes by position in optimisers."""
        for ours, theirs, our_modules, their_modules in self._pairs.values():
            if ours is theirs:
                continue
            if len(our_modules) > 1:
                _order_as(our_modules, their_modules)
            if self._takes_others and isinstance(theirs, nn.Module):
                parameters, buffers, _ = own_tables(ours)
                if len(parameters) > 1:
                    _order_as(parameters, parameters_of(theirs))
                if len(buffers) > 1:
                    _order_as(buffers, buffers_of(theirs))

    def _open(self, prefix: str) -> tuple[Any, Any, Any, Any] | None:
        """Return the pair at `prefix`, making an empty module there and on the way where there is none."""
        outer, _, name = prefix.rpartition(".")
        pair = self._pairs.get(outer) or self._open(outer)
        if pair is None:
            return None
        ours, around, our_modules, their_modules = pair
        theirs = their_modules.get(name)
        if theirs is None:
            theirs = getattr(around, name, _MISSING)
            if theirs is _MISSING:
                return None
        existing = theirs if ours is around else our_modules.get(name)
        if existing is None and ours.__class__ is not nn.Module:  # Whose class has no modules.
            existing = getattr(ours, name, None)
        if existing is not theirs and not isinstance(existing, nn.Module):
            existing = empty_module()
            if not getattr(theirs, "training", True):
                existing.__dict__["training"] = False
            modules_of(ours)[name] = existing
            if isinstance(theirs, nn.Module):
                own, held = existing.__dict__, theirs.__dict__
                if held.get("_parameters").__class__ is held.get("_buffers").__class__ is dict:
                    self._weights[prefix] = own, held  # Scripted modules have tables of other classes.
                    opened = self._pairs[prefix] = (existing, theirs, own["_modules"], held["_modules"])
                    return opened
        opened = self._pairs[prefix] = (existing, theirs, _modules_in(existing), _modules_in(theirs))
        return opened


_MISSING = object()


def _order_as(ours: Any, theirs: Any) -> None:
    """Bring the names in a table into the order of another one; names that it has not stay in their places."""
    if not isinstance(theirs, dict) or (len(ours) == len(theirs) and [*ours] == [*theirs]):
        return
    wanted = [name for name in theirs if name in ours]
    if (list(ours) if len(wanted) == len(ours) else [name for name in ours if name in theirs]) == wanted:
        return
    following = iter(wanted)
    for name in [next(following) if name in theirs else name for name in ours]:
        ours[name] = ours.pop(name)


def _has_nothing(holder: nn.Module, name: str) -> bool:
    """Return whether a plain `nn.Module` has nothing under a name yet."""
    return (
        name not in vars(holder)
        and name not in parameters_of(holder)
        and name not in buffers_of(holder)
        and name not in modules_of(holder)
        and name not in _OF_THE_CLASS
        and name not in _OF_EVERY_OBJECT
    )


_OF_THE_CLASS, _OF_EVERY_OBJECT = vars(nn.Module), vars(object)


def _take_plain(ours: nn.Module, theirs: Any, name: str) -> bool:
    """Take a parameter or buffer over as an assignment would, which takes many times as long; return whether it was."""
    if not isinstance(theirs, nn.Module) or not _has_nothing(ours, name):
        return False
    parameters, buffers, _ = own_tables(theirs)
    if not isinstance(parameters, dict) or not isinstance(buffers, dict):
        return False  # Scripted modules have tables of another class.
    if parameters.get(name).__class__ is nn.Parameter:
        parameters_of(ours)[name] = parameters[name]
        return True
    if buffers.get(name).__class__ is torch.Tensor and persists(theirs, name):
        buffers_of(ours)[name] = buffers[name]
        return True
    return False


def _take_weight(own: dict[str, Any], held: dict[str, Any], name: str) -> bool:
    """Do what `_take_plain` does for a module that stands in for another one, given what both have."""
    value = held["_parameters"].get(name)
    if value.__class__ is nn.Parameter:
        own["_parameters"][name] = value
        return True
    value = held["_buffers"].get(name)
    if value.__class__ is not torch.Tensor or name in held["_non_persistent_buffers_set"]:
        return False
    own["_buffers"][name] = value
    return True


def _held(holder: Any, name: str) -> Any:
    """Return what `holder` has under a name; its own tensors even where a running trace would show proxies of them."""
    if isinstance(holder, nn.Module):
        for table in (parameters_of(holder), buffers_of(holder)):
            if isinstance(table, dict) and name in table:
                return table[name]
    return getattr(holder, name, _MISSING)


def _modules_in(holder: Any) -> Any:
    modules = modules_of(holder) if isinstance(holder, nn.Module) else {}
    return modules if isinstance(modules, dict) else {}  # Scripted modules have tables of another class.
