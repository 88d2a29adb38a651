"""Whether a module or a value can be changed without changing what else of the program reads."""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any

from torch import nn

from fxplug.execute import RESERVED_ATTRIBUTES
from fxplug.ir import PATH_OPCODES, Node, effects
from fxplug.rewrite.adoption import drop_unreached
from fxplug.rewrite.calls import value_at
from fxplug.semantics.checks import CHECKS
from fxplug.semantics.internals import assert_function, buffers_of, has_hooks, parameters_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fxplug.execute import GraphModule
    from fxplug.ir import Effect

__all__ = [
    "acts_unseen",
    "asks_for_identity",
    "drop_unread",
    "free_attribute",
    "free_path",
    "is_customised",
    "is_shared",
    "is_written",
]

_ONLY_LOOK = (*CHECKS, assert_function, print)
"""What acts outside of the program and changes nothing that a call could read."""


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


def free_attribute(module: GraphModule, wish: str) -> str:
    """Return `wish`, with a number where the module has an attribute of that name."""
    name, number = wish, 0
    while hasattr(module, name) or name in RESERVED_ATTRIBUTES:
        number += 1
        name = f"{wish}_{number}"
    return name


def acts_unseen(node: Node, effect: Effect) -> bool:
    """Return whether a call may change something that other calls read, and that it is not given."""
    if any(node.target is function for function in _ONLY_LOOK):
        return False
    return effect.outside or effect.unknown


def asks_for_identity(node: Node) -> bool:
    """Return whether a call asks which object a value is."""
    return any(node.target is function for function in (operator.is_, operator.is_not, id))


def _readers(module: GraphModule, path: str) -> Iterator[Node]:
    for node in module.graph.find_nodes(op="get_attr", sort=False):
        if str(node.target).startswith(f"{path}."):
            yield node


def drop_unread(module: GraphModule, paths: list[str]) -> None:
    """Remove the tensors at `paths` that no node reads any more, except from modules of the user."""
    targets = {str(node.target) for node in module.graph.nodes if node.op in PATH_OPCODES}
    for path in dict.fromkeys(paths):
        prefix, _, name = path.rpartition(".")
        above = {path[:end] for end, letter in enumerate(path) if letter == "."}
        holder: Any = value_at(module, prefix) if prefix else module
        if path in targets or not above.isdisjoint(targets) or path in module.graph.lifted:
            continue
        if holder is not module and type(holder) is not nn.Module:
            continue
        for table in (parameters_of(holder), buffers_of(holder)):
            if name in table:
                delattr(holder, name)
                break
        if holder is not module and not [*holder.parameters(), *holder.buffers()]:
            drop_unreached(module, [prefix])
