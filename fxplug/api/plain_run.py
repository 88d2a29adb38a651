"""Running what was traced of a plain program, in less time than the program takes: its layers are not called but run.

Calling a module is a way through torch that looks for hooks; a plain program has none (see
`fxplug.capture.plain_functions`). So the forwards of its layers are run one after the other, and what the program does
in between.
"""

# Each node of a network is passed here: its slots are read, not the properties in front of them.
# pyright: reportPrivateUsage=false

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fxplug.capture.arguments import PLAIN_TYPES
from fxplug.execute.paths import fetch_path
from fxplug.ir import Node, map_arg

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from torch import nn

    from fxplug.capture.layer_records import LayerCall

__all__ = ["run_plainly"]


def run_plainly(
    root: nn.Module, nodes: Sequence[Node], args: Sequence[Any], calls: Iterable[LayerCall]
) -> None:
    """Run a program for the errors that it may raise; each value ends with its last use.

    Args:
        root: What the paths in the nodes refer to.
        nodes: The program, as it was traced.
        args: One value for each placeholder.
        calls: The calls of layers among the nodes, in order.

    Raises:
        Exception: What the program raises. Nodes that no trace has recorded so raise errors, too.
    """
    inputs, waiting = iter(args), iter(calls)
    layer, given, first, last, result = next(waiting, _NO_CALL)
    values: dict[Node, Any] = {}
    node = nodes[0]
    while (op := node._op) != "output":
        if node is first:
            value = layer.forward(values[given])
            # A value that has one user, as most have, has this one.
            if given._users.__class__ is not dict or _end_within(given, first, last):
                del values[given]
            if result._users is not None:
                values[result] = value
            del value
            node = last._next
            layer, given, first, last, result = next(waiting, _NO_CALL)
            continue
        if op == "placeholder":
            values[node] = next(inputs)
        else:
            value = _value_of(node, op, values, root)
            taken: Any = node._inputs
            for used in (taken,) if taken.__class__ is Node else taken:
                users: Any = used._users
                if users is node or (users.__class__ is dict and next(reversed(users)) is node):
                    del values[used]
            if node._users is not None:
                values[node] = value
            del value
        node = node._next


_NO_CALL: Any = (None,) * 5


def _end_within(used: Node, first: Node, last: Node) -> bool:
    """Return whether the last node that uses a value is among those from one to another."""
    users: Any = used._users
    user = next(reversed(users)) if users.__class__ is dict else users
    while user is not first:
        if first is last:
            return False
        first = first._next
    return True


def _value_of(node: Node, op: str, values: dict[Node, Any], root: nn.Module) -> Any:
    if op == "get_attr":
        return fetch_path(root, str(node._target))
    find = values.__getitem__
    # Most arguments are values and numbers: only others may have values in them.
    args: list[Any] = [
        values[one] if one.__class__ is Node else one if one.__class__ in PLAIN_TYPES else map_arg(one, find)
        for one in node._args
    ]
    kwargs: Any = map_arg(node._kwargs, find) if node._kwargs else {}
    target: Any = node._target
    if op == "call_function":
        return target(*args, **kwargs)
    if op == "call_method":
        return getattr(args[0], target)(*args[1:], **kwargs)
    return fetch_path(root, target)(*args, **kwargs)  # A layer that takes more than one value.
