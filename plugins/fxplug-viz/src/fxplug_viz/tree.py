"""A graph as text: the tree of modules, with the calls in them and the shapes of their values."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from fxplug.ir import find_structure_faults
from fxplug_viz.clusters import modules_around
from fxplug_viz.dot import parts_of
from fxplug_viz.escaping import shortened, visible
from fxplug_viz.labels import argument_row, counted, is_missing, parameter_text, target_text, value_text
from fxplug_viz.options import DrawOptions
from fxplug_viz.selection import shown_nodes
from fxplug_viz.unfolding import unfolded

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from rich.tree import Tree
    from typing_extensions import Unpack

    from fxplug.execute import GraphModule
    from fxplug.ir import Graph, Node
    from fxplug_viz.options import DrawSettings

__all__ = ["rich_tree", "tree_text"]

_STYLES = {
    "placeholder": "blue",
    "get_attr": "magenta",
    "call_function": "yellow",
    "call_method": "yellow",
    "call_module": "green",
    "output": "red",
}
_RED, _MODULE, _DIM = "bold red", "bold", "dim"


@dataclass
class _Branch:
    """A line, in parts with styles, and what stands below it."""

    parts: list[tuple[str, str]]
    children: list[_Branch] = field(default_factory=list)


def tree_text(module_or_graph: GraphModule | Graph, **settings: Unpack[DrawSettings]) -> str:
    """Return the modules of a graph as a tree, each with the nodes that were made in it, in the order of the graph.

    A line has name and target of a node, the values among its arguments, dtype and shape where they are known, and
    parameters. Texts of any kind stand for themselves.

    Args:
        module_or_graph: What is shown.
        **settings: See `DrawOptions`; ``title``, ``hide``, ``detail``, ``longest`` and ``unfold`` count here.

    Returns:
        Lines without a line end behind the last one.

    Raises:
        InvalidArgumentError: Something else than a graph was given.
        ConfigError: A setting makes no sense.

    Example:
        ::

            print(tree_text(fxplug.symbolic_trace(model)))
    """
    lines: list[str] = []
    stack: list[tuple[str, str, _Branch]] = [("", "", _tree(module_or_graph, DrawOptions.of(settings)))]
    while stack:
        first, rest, branch = stack.pop()
        lines.append(first + "  ".join(text for text, _ in branch.parts))
        for child in reversed(branch.children):
            is_last = child is branch.children[-1]
            stack.append((rest + ("└─ " if is_last else "├─ "), rest + ("   " if is_last else "│  "), child))
    return "\n".join(lines)


def rich_tree(module_or_graph: GraphModule | Graph, **settings: Unpack[DrawSettings]) -> Tree:
    """Return the same as `tree_text` for a terminal, in colours.

    Raises:
        InvalidArgumentError: Something else than a graph was given.
        ConfigError: A setting makes no sense.
    """
    # Whoever wants text alone needs no rich.
    from rich.text import Text  # noqa: PLC0415
    from rich.tree import Tree  # noqa: PLC0415

    def label(branch: _Branch) -> Text:
        line = Text(no_wrap=True, overflow="ellipsis")
        for index, (text, style) in enumerate(branch.parts):
            line.append("  " * bool(index)).append(text, style)
        return line

    root = _tree(module_or_graph, DrawOptions.of(settings))
    tree = Tree(label(root), guide_style=_DIM)
    stack = [(root, tree)]
    while stack:
        branch, place = stack.pop()
        stack += [(child, place.add(label(child))) for child in branch.children]
    return tree


def _tree(module_or_graph: GraphModule | Graph, options: DrawOptions) -> _Branch:
    module, graph = parts_of(module_or_graph)
    title = options.title or ("graph" if module is None else repr(module).partition("(")[0])
    root = _Branch([(visible(title), _MODULE), (counted(len(graph.nodes), "node"), _DIM)])
    for fault in find_structure_faults(graph, module):
        root.children.append(_Branch([(f"not sound: {visible(fault)}", _RED)]))
    open_branches: list[tuple[str, _Branch]] = [("", root)]
    shown = unfolded(graph, module) if options.unfold else graph
    for node in shown_nodes(shown, module, options.hide):
        around = modules_around(node)
        _enter(open_branches, around)
        open_branches[-1][1].children.append(_Branch(list(_parts(node, module, options))))
    return root


def _enter(open_branches: list[tuple[str, _Branch]], around: Sequence[tuple[str, str]]) -> None:
    """Close the modules that a node does not lie in, and open those that it does."""
    depth = 0
    while (
        depth < len(around)
        and depth + 1 < len(open_branches)
        and open_branches[depth + 1][0] == around[depth][0]
    ):
        depth += 1
    del open_branches[depth + 1 :]
    for path, kind in around[depth:]:
        branch = _Branch([(visible(path), _MODULE), (visible(kind), _DIM)])
        open_branches[-1][1].children.append(branch)
        open_branches.append((path, branch))


def _parts(node: Node, module: GraphModule | None, options: DrawOptions) -> Iterator[tuple[str, str]]:
    target = target_text(node, module)
    yield node.name, _RED if is_missing(node, module) else _STYLES[node.op]
    texts = [
        (target if node.op not in {"placeholder", "output"} and target != node.name else "", ""),
        (argument_row(node) if "constants" not in options.hide else "", _DIM),
        (value_text(node), "cyan"),
        (parameter_text(node, module) if options.detail != "brief" else "", _DIM),
    ]
    for text, style in texts:
        if text:
            yield visible(shortened(text, options.longest)), style
