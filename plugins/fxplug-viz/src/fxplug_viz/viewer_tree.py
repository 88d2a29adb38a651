"""The tree in which a page folds a graph: modules, blocks that repeat, and sections where there are very many nodes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fxplug_viz.unfolding import frames_of, own_target

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from fxplug.ir import Node

__all__ = ["SECTION", "tree_of"]

SECTION = 60
"""How many things lie side by side; much more is cut into sections, as layered layouts grow faster than linearly."""

_Path = tuple[tuple[str, str], ...]


class _Group:
    """A group while the tree is built; a child is a group, or the position of a node."""

    __slots__ = ("children", "kind", "label", "path", "what")

    def __init__(self, kind: str, label: str, what: str = "", path: str = "") -> None:
        self.kind, self.label, self.what, self.path = kind, label, what, path
        self.children: list[_Group | int] = []


def tree_of(nodes: Sequence[Node], data: Sequence[dict[str, Any]]) -> tuple[list[dict[str, Any]], list[int]]:
    """Return the groups of a graph, parents before children, and the group of each node.

    Args:
        nodes: The nodes, in program order.
        data: What the page says of each of them; nodes that say the same may repeat.

    Returns:
        Groups with label, kind (``"root"``, ``"module"``, ``"repeat"``, ``"section"``), class, path and the position of
        the parent; and for each node the position of its group.
    """
    root = _by_module(nodes)
    _fold_repeats(root, data, {})
    _cut_sections(root)
    groups: list[dict[str, Any]] = []
    places = [0] * len(nodes)
    pending: list[tuple[_Group, int]] = [(root, -1)]
    while pending:
        group, parent = pending.pop()
        position = len(groups)
        groups.append({"p": parent, "l": group.label, "k": group.kind, "c": group.what, "t": group.path})
        for child in reversed(group.children):
            if isinstance(child, int):
                places[child] = position
            else:
                pending.append((child, position))
    return groups, places


# -- modules ----------------------------------------------------------------------------------------------------


def _by_module(nodes: Sequence[Node]) -> _Group:
    root = _Group("root", "")
    groups: dict[_Path, _Group] = {(): root}
    for position, node in enumerate(nodes):
        group = root
        walked: _Path = ()
        for path, kind in _scopes(node):
            walked = (*walked, (path, kind))
            inner = groups.get(walked)
            if inner is None:
                label = path.removeprefix(f"{walked[-2][0]}.") if len(walked) > 1 else path
                inner = groups[walked] = _Group("module", label, kind, path)
                group.children.append(inner)
            group = inner
        group.children.append(position)
    return root


def _scopes(node: Node) -> Iterable[tuple[str, str]]:
    """Return paths and classes of the modules that a node lies in, outermost first, without the root."""
    frames = frames_of(node)
    if node.op in ("placeholder", "output"):
        return frames
    scope = node.origins[0].module if node.origins else None
    if scope is not None:
        stack = scope.stack().values()
        # A module that is one node is no group besides.
        own = own_target(node) if node.op == "call_module" else None
        return [*frames, *((path, _class_name(kind)) for path, kind in stack if path and path != own)]
    if frames:
        return frames
    if node.op in ("call_module", "get_attr") and isinstance(node.target, str):
        atoms = node.target.split(".")[:-1]
        return [(".".join(atoms[: count + 1]), "") for count in range(len(atoms))]
    return []


def _class_name(kind: Any) -> str:
    name = kind if isinstance(kind, str) else getattr(kind, "__qualname__", str(kind))
    return name.rpartition(".")[2]


# -- repeats ----------------------------------------------------------------------------------------------------


def _fold_repeats(group: _Group, data: Sequence[dict[str, Any]], known: dict[Any, int]) -> int:
    """Wrap neighbours that are the same into a group ``"repeat"``; return a number that says what is in `group`."""
    signatures: list[int | None] = []
    parts: list[Any] = []
    for child in group.children:
        if isinstance(child, int):
            entry = data[child]
            parts.append((entry["o"], entry.get("k") or _callee(entry), len(entry["i"])))
            signatures.append(None)
        else:
            signatures.append(_fold_repeats(child, data, known))
            parts.append(signatures[-1])
    group.children = _wrapped(group.children, signatures)
    return known.setdefault((group.what, tuple(parts)), len(known))


def _callee(entry: dict[str, Any]) -> str:
    # Attributes of repeated blocks have different paths.
    return str(entry.get("t", "")).rpartition(".")[2]


def _wrapped(children: list[_Group | int], signatures: list[int | None]) -> list[_Group | int]:
    result: list[_Group | int] = []
    start = 0
    while start < len(children):
        end = start + 1
        while signatures[start] is not None and end < len(children) and signatures[end] == signatures[start]:
            end += 1
        run = [child for child in children[start:end] if not isinstance(child, int)]
        if len(run) > 1:
            repeat = _Group("repeat", f"{run[0].label} … {run[-1].label}", run[0].what, run[0].path)
            repeat.children = [*run]
            result.append(repeat)
        else:
            result.extend(children[start:end])
        start = end
    return result


# -- sections ---------------------------------------------------------------------------------------------------


def _cut_sections(group: _Group) -> None:
    """Cut what is too long to be laid out side by side, in program order, also sections themselves."""
    for child in group.children:
        if not isinstance(child, int):
            _cut_sections(child)
    while len(group.children) > SECTION * 1.5:
        children: list[_Group | int] = []
        for start in range(0, len(group.children), SECTION):
            section = _Group("section", "", path=group.path)
            section.children = group.children[start : start + SECTION]
            first, last = _first(section), _last(section)
            section.label = f"{first + 1} … {last + 1}"
            children.append(section)
        group.children = children


def _first(group: _Group) -> int:
    child = group.children[0]
    return child if isinstance(child, int) else _first(child)


def _last(group: _Group) -> int:
    child = group.children[-1]
    return child if isinstance(child, int) else _last(child)
