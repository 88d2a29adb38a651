"""Whether the module at a path can be changed without changing what else of the program reads."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import nn

from fxplug.ir import Node, effects
from fxplug.rewrite.calls import value_at
from fxplug.semantics.internals import buffers_of, has_hooks, modules_of, parameters_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fxplug.execute import GraphModule

__all__ = ["drop_empty", "drop_unread", "free_path", "is_customised", "is_shared", "is_written"]


def is_customised(module: nn.Module) -> bool:
    """Return whether calling the module does more than its class says: hooks, parametrizations, a forward."""
    return has_hooks(module) or hasattr(module, "parametrizations") or "forward" in vars(module)


def is_shared(module: GraphModule, path: str) -> bool:
    """Return whether the module at `path` is also reached by another path, or its weights by another node."""
    found = module.get_submodule(path)
    paths = sum(part is found for _, part in module.named_modules(remove_duplicate=False))
    return paths > 1 or any(_readers(module, path))


def is_written(module: GraphModule, path: str) -> bool:
    """Return whether the graph may write a parameter or buffer of the module at `path`.

    Whatever is computed from it may be a view of it, so a write to any of that counts.
    """
    seen: set[Node] = set()
    waiting = list(_readers(module, path))
    while waiting:
        for user in waiting.pop().users:
            if user in seen or user.op == "output":
                continue
            effect = effects.effect_of(user, module)
            if effect.writes or effect.unknown:
                return True
            seen.add(user)
            waiting.append(user)
    return False


def free_path(module: GraphModule, wish: str) -> str:
    """Return `wish`, with a number where a module of that path exists."""
    taken = {name for name, _ in module.named_modules()}
    path, number = wish, 0
    while path in taken:
        number += 1
        path = f"{wish}_{number}"
    return path


def drop_unread(module: GraphModule, path: str) -> None:
    """Remove the attribute at `path` that no node reads any more, from the graph module itself.

    Modules of the user stay as they are: only the module, and empty ones that hold what its graph reads, are its own.
    """
    holder, _, name = path.rpartition(".")
    target = module.get_submodule(holder)
    is_own = target is module or type(target) is nn.Module
    if not is_own or module.graph.find_nodes(op="get_attr", target=path, sort=False):
        return
    if any(
        str(node.target).startswith(f"{path}.") for node in module.graph.find_nodes(op="get_attr", sort=False)
    ):
        return
    if name in parameters_of(target) or name in buffers_of(target):
        delattr(target, name)
        module.graph.lifted.pop(path, None)


def drop_empty(module: GraphModule, path: str) -> None:
    """Remove the modules on the way to `path` that hold nothing any more."""
    holder = path.rpartition(".")[0]
    while holder:
        found = value_at(module, holder)
        is_empty = type(found) is nn.Module and not (
            modules_of(found) or parameters_of(found) or buffers_of(found) or vars(found).keys() - _BARE
        )
        if found is not None and not is_empty:
            return
        module.delete_submodule(holder)
        holder = holder.rpartition(".")[0]


_BARE = vars(nn.Module()).keys()
"""What a module has that nobody has put anything into."""


def _readers(module: GraphModule, path: str) -> Iterator[Node]:
    for node in module.graph.find_nodes(op="get_attr", sort=False):
        if str(node.target).startswith(f"{path}."):
            yield node
