"""What is written in a node."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from fxplug.analyze import shape_text
from fxplug.execute import GraphModule, fetch_path, has_path
from fxplug.ir import PATH_OPCODES, Node, argument_text, iterate_leaves, qualified_name

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = [
    "argument_row",
    "counted",
    "is_missing",
    "label_rows",
    "parameter_text",
    "source_text",
    "target_text",
    "value_text",
]


def label_rows(
    node: Node, module: GraphModule | None, *, brief: bool, constants: bool = True
) -> list[list[str]]:
    """Return what a node shows: rows of cells.

    Args:
        node: Any node, sound or not.
        module: What the graph belongs to; None: only what the graph itself tells is shown.
        brief: Whether name, target and shape are enough.
        constants: Whether the values among the arguments are shown.
    """
    target, shape = target_text(node, module), value_text(node)
    if brief:
        if node.target is getattr and len(node.args) == 2:
            target = f".{node.args[1]}"
        head = node.name if target in {node.name, str(node.target)} and node.op != "call_function" else target
        return [[cell for cell in (f"{node.name}: {target}" if head != node.name else head, shape) if cell]]
    rows = [[f"{node.op}: {node.name}"]]
    if node.op != "output" and not (node.op == "placeholder" and target == node.name):
        rows.append([target])
    details = [argument_row(node) if constants else "", parameter_text(node, module)]
    rows += [[text] for text in details if text]
    users = [] if node.op == "output" else [_users_text(node)]
    rows.append([cell for cell in (shape, *users) if cell])
    return [row for row in rows if row]


def counted(count: int, noun: str, plural: str | None = None) -> str:
    """Return a number of things as people write it: ``1 node``, ``2 nodes``."""
    return f"{count} {noun}" if count == 1 else f"{count} {plural or noun + 's'}"


def value_text(node: Node) -> str:
    """Return dtype and shape of a value; empty where they are not known."""
    return shape_text(node) or node.tensor_text()


def target_text(node: Node, module: GraphModule | None) -> str:
    """Return what a node refers to, for a module with its class."""
    target = node.target if isinstance(node.target, str) else qualified_name(node.target)
    if is_missing(node, module):
        return f"{target} (does not exist)"
    if node.op == "call_module" and module is not None:
        return f"{target} ({type(fetch_path(module, node.target)).__name__})"
    return target


def is_missing(node: Node, module: GraphModule | None) -> bool:
    """Return whether a node refers to an attribute that its module does not have."""
    return module is not None and node.op in PATH_OPCODES and not has_path(module, str(node.target))


def argument_row(node: Node) -> str:
    """Return the arguments of a call in which something else than nodes stands; empty where there are only nodes."""
    if node.op == "output" or not any(
        not isinstance(leaf, Node) for leaf in iterate_leaves((node.args, node.kwargs))
    ):
        return ""
    if node.op == "placeholder":
        return f"default: {_argument(node.args[0])}" if node.args else ""
    texts = [_argument(value) for value in node.args]
    texts += [f"{name}={_argument(value)}" for name, value in node.kwargs.items()]
    return f"({', '.join(texts)})"


def _argument(value: Any) -> str:
    return repr(value) if isinstance(value, str) else argument_text(value)


def parameter_text(node: Node, module: GraphModule | None) -> str:
    """Return the parameters of the module that a node calls, or what it fetches; empty where there is nothing."""
    if module is None or node.op not in PATH_OPCODES or is_missing(node, module):
        return ""
    value = fetch_path(module, str(node.target))
    if node.op == "get_attr":
        return (
            f"{_kind(value, str(node.target), module)} {_sizes(value)}" if isinstance(value, Tensor) else ""
        )
    if not isinstance(value, nn.Module):
        return ""
    own = [f"{name} {_sizes(tensor)}" for name, tensor in value.named_parameters(recurse=False)]
    if own:
        return ", ".join(own)
    count = sum(tensor.numel() for tensor in value.parameters())
    return f"{count:,} parameters" if count else ""


def _kind(value: Tensor, path: str, module: nn.Module) -> str:
    if isinstance(value, nn.Parameter):
        return "parameter"
    holder_path, _, name = path.rpartition(".")
    holder = fetch_path(module, holder_path) if holder_path else module
    return (
        "buffer"
        if isinstance(holder, nn.Module) and name in dict(holder.named_buffers(recurse=False))
        else "constant"
    )


def _sizes(tensor: Tensor) -> str:
    try:
        sizes: Sequence[Any] = list(tensor.shape)
    except RuntimeError:  # Of a lazy module, before its first call.
        return "of unknown size"
    return str(sizes)


def _users_text(node: Node) -> str:
    return counted(len(node.users), "user")


def source_text(node: Node) -> str:
    """Return where a node came from, a line for each origin; empty where nobody knows."""
    places: list[str] = []
    for origin in node.origins:
        source = origin.source()
        if source is not None:
            places.append(f"{source.filename}:{source.line} {source.text}".rstrip())
    return "; ".join(dict.fromkeys(places))
