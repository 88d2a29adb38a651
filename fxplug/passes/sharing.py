"""Whether a call, its weights or a value can be changed without changing what else of the program reads."""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any

from torch import nn

from fxplug.execute import RESERVED_ATTRIBUTES, has_path
from fxplug.execute.aliases import may_return_argument, memory_of
from fxplug.ir import PATH_OPCODES, Node, effects
from fxplug.passes.dependences import written_by
from fxplug.rewrite.adoption import drop_unreached
from fxplug.rewrite.calls import value_at
from fxplug.semantics.checks import CHECKS
from fxplug.semantics.internals import assert_function, buffers_of, has_hooks, modules_of, parameters_of

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable, Iterator

    from fxplug.execute import GraphModule
    from fxplug.ir import Effect

__all__ = [
    "acts_unseen",
    "asks_for_identity",
    "drop_empty",
    "drop_unread",
    "free_attribute",
    "free_path",
    "is_customised",
    "is_shared",
    "is_written",
    "writes_state",
    "written_memory",
]

_ONLY_LOOK = (*CHECKS, assert_function, print)
"""What acts outside of the program and changes nothing that a call could read."""


def is_customised(module: nn.Module) -> bool:
    """Return whether calling the module does more than its class says: hooks, parametrizations, a forward."""
    return has_hooks(module) or hasattr(module, "parametrizations") or "forward" in vars(module)


def is_shared(module: GraphModule, path: str) -> bool:
    """Return whether the module at `path` is also reached by another path, or it or its weights by another node.

    Calls of the module at `path` itself do not count, those of a module that holds it do.
    """
    found = module.get_submodule(path)
    paths = sum(part is found for _, part in module.named_modules(remove_duplicate=False))
    return paths > 1 or any(_readers(module, path)) or _holder_is_used(module, path)


def _holder_is_used(module: GraphModule, path: str) -> bool:
    graph = module.graph
    targets = {*graph.distinct_targets("get_attr"), *graph.distinct_targets("call_module")}
    if path in graph.distinct_targets("get_attr"):
        return True
    parts = path.split(".")
    return any(".".join(parts[:length]) in targets for length in range(1, len(parts)))


def is_written(module: GraphModule, path: str) -> bool:
    """Return whether the graph may write a parameter or buffer of the module at `path`.

    Whoever asks more than once asks for `written_memory` instead.
    """
    return not written_memory(module).isdisjoint(memory_of(module.get_submodule(path)))


def written_memory(module: GraphModule) -> frozenset[Hashable]:
    """Return what identifies the memory of parameters and buffers that the graph may write.

    Written is what a call writes that is given it or a view of it, under whatever path; what a call of which nothing is
    known is given; and the state of modules that update it, such as batch norms in training.
    """
    found: set[Hashable] = set()
    for node in module.graph.find_nodes(op="get_attr", sort=False):
        if _is_written_through(module, node):
            found |= memory_of(value_at(module, str(node.target), module.graph.lifted))
    for node in module.graph.find_nodes(op="call_module", sort=False):
        if "state" in effects.effect_of(node, module).writes:
            found |= memory_of(value_at(module, str(node.target)))
    return frozenset(found)


def writes_state(node: Node, effect: Effect, module: GraphModule) -> bool:
    """Return whether a call may write parameters, buffers or other tensors that the module holds.

    Args:
        node: The call.
        effect: What it does.
        module: Whose graph it is in.
    """
    if "state" in effect.writes:
        return True
    waiting = list(written_by(node, effect))
    seen = set(waiting)
    while waiting:
        value = waiting.pop()
        if value.op == "get_attr":
            return True
        if value.op.startswith("call_") and may_return_argument(value, module):
            found = [used for used in value.all_input_nodes if used not in seen]
            seen.update(found)
            waiting += found
    return False


def _is_written_through(module: GraphModule, node: Node) -> bool:
    seen = {node}
    waiting = [node]
    while waiting:
        for user in waiting.pop().users:
            if user in seen or user.op == "output":
                continue
            effect = effects.effect_of(user, module)
            if effect.writes - {"state"} or effect.unknown:
                return True
            seen.add(user)
            if may_return_argument(user, module):
                waiting.append(user)
    return False


def free_path(module: GraphModule, wish: str) -> str:
    """Return `wish`, with a number where a module or anything else has that path."""
    taken = {name for name, _ in module.named_modules(remove_duplicate=False)}
    path, number = wish, 0
    while path in taken or has_path(module, path):
        number += 1
        path = f"{wish}_{number}"
    return path


def drop_unread(module: GraphModule, unread: Iterable[Node | str]) -> None:
    """Remove tensors that no node reads any more, constants of the graph among them.

    Modules of the user stay as they are: only the graph module, and empty ones that hold what its graph reads, are its
    own.

    Args:
        module: Changed in place.
        unread: Paths, or ``get_attr`` nodes: these are erased, unless somebody uses them.
    """
    graph = module.graph
    paths: dict[str, None] = {}
    for entry in dict.fromkeys(unread):
        if isinstance(entry, str):
            paths[entry] = None
        elif entry.graph is graph and not entry.users:
            paths[str(entry.target)] = None
            graph.erase_node(entry)
    targets = {str(node.target) for node in graph.nodes if node.op in PATH_OPCODES}
    for path in paths:
        prefix, _, name = path.rpartition(".")
        above = {path[:end] for end, letter in enumerate(path) if letter == "."}
        holder: Any = value_at(module, prefix) if prefix else module
        is_own = holder is module or type(holder) is nn.Module
        if path in targets or not above.isdisjoint(targets) or not is_own:
            continue
        for table in (parameters_of(holder), buffers_of(holder)):
            if name in table:
                delattr(holder, name)
                graph.lifted.pop(path, None)
                break
        if holder is not module and not [*holder.parameters(), *holder.buffers()]:
            drop_unreached(module, [prefix])


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
