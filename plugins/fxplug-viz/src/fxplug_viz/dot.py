"""A graph as DOT text, the language of Graphviz. Nothing but text is made here: no other program, no other package."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

from fxplug.errors import InvalidArgumentError
from fxplug.execute import GraphModule
from fxplug.ir import Graph, find_structure_faults
from fxplug_viz.clusters import Cluster, cluster_lines, cluster_tree
from fxplug_viz.colours import COLOURS, Colouring
from fxplug_viz.escaping import html_text, identifier, quoted, record, tooltip
from fxplug_viz.labels import is_missing, label_rows, source_text
from fxplug_viz.options import Direction, DrawOptions
from fxplug_viz.selection import columns_of, shown_edges, shown_nodes
from fxplug_viz.unfolding import unfolded

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from typing_extensions import Unpack

    from fxplug.ir import Node
    from fxplug_viz.options import DrawSettings
    from fxplug_viz.selection import Edge

__all__ = [
    "BREAK",
    "COLOURS",
    "Direction",
    "column_lines",
    "dot_lines",
    "dot_text",
    "graph_attributes",
    "html_label",
    "parts_of",
]

BREAK = 'constraint="false", weight="0", style="dashed"'
"""The attributes of an edge that leads from one column to another."""

_TOOLTIP = 1000
_MOST_FAULTS = 3
_ATTRIBUTES = (
    (
        'node [shape="record", style="filled,rounded", fontname="Helvetica", fontsize="10", color="#555555", '
        'margin="0.08,0.04", height="0.3"];'
    ),
    'edge [color="#555555", fontname="Helvetica", fontsize="9", arrowsize="0.6"];',
)


def dot_text(module_or_graph: GraphModule | Graph, **settings: Unpack[DrawSettings]) -> str:
    """Return a picture of a graph in the DOT language.

    Every node of the graph is one record with its opcode, name, target, arguments, parameters, users and, where shapes
    were propagated, dtype and shape; one edge goes from a node to each node that uses its value. Names and targets of
    any kind are shown as they are, never interpreted; what is too long is cut. The same graph always gives the
    same text.

    Args:
        module_or_graph: What is drawn. Only a module lets the picture name parameters and the classes of submodules.
        **settings: See `DrawOptions`.

    Returns:
        The text, ending in a newline.

    Raises:
        InvalidArgumentError: Something else than a graph was given.
        ConfigError: A setting makes no sense.

    Example:
        ::

            graph_module = fxplug.symbolic_trace(model)
            Path("model.dot").write_text(dot_text(graph_module), encoding="utf-8")
    """
    return "\n".join(["digraph {", *dot_lines(module_or_graph, DrawOptions.of(settings)), "}"]) + "\n"


def dot_lines(module_or_graph: GraphModule | Graph, options: DrawOptions) -> list[str]:
    """Return the statements inside the braces of `dot_text`."""
    module, graph = parts_of(module_or_graph)
    shown = unfolded(graph, module) if options.unfold else graph
    nodes = shown_nodes(shown, module, options.hide)
    return list(_Picture(graph, module, nodes, options).lines())


def parts_of(module_or_graph: object) -> tuple[GraphModule | None, Graph]:
    """Return module and graph of what is to be drawn.

    Raises:
        InvalidArgumentError: It is neither.
    """
    if isinstance(module_or_graph, GraphModule):
        return module_or_graph, module_or_graph.graph
    if isinstance(module_or_graph, Graph):
        owner = module_or_graph.owning_module
        return owner if isinstance(owner, GraphModule) else None, module_or_graph
    raise InvalidArgumentError(
        f"Cannot draw a {type(module_or_graph).__name__}: only a GraphModule or a Graph has nodes to draw. Capture it "
        f"first: dot_text(fxplug.symbolic_trace(module))."
    )


def graph_attributes(label: str, direction: str, *, is_brief: bool) -> list[str]:
    """Return the statements that a picture begins with.

    Args:
        label: See `html_label`.
        direction: Where the graph goes.
        is_brief: Whether nodes are small, and so stand closer.
    """
    distance = 'nodesep="0.15", ranksep="0.2"' if is_brief else 'nodesep="0.25", ranksep="0.3"'
    graph = f'label={label}, labelloc="t", rankdir="{direction}", fontname="Helvetica", {distance}'
    return [f"graph [{graph}];", *_ATTRIBUTES]


def html_label(title: str, notes: Sequence[str], legend: dict[str, str], longest: int) -> str:
    """Return a label for a picture: its title, what is wrong with it, and what the colours say.

    Args:
        title: Any text, as are the next ones.
        notes: Shown in red.
        legend: Text -> colour.
        longest: What is longer is cut.
    """
    rows = (
        [f'<TR><TD BORDER="0"><FONT POINT-SIZE="16">{html_text(title, longest)}</FONT></TD></TR>']
        if title
        else []
    )
    for note in notes:
        text = html_text(note, max(longest, 200))
        rows.append(f'<TR><TD BORDER="0"><FONT COLOR="#b00020" POINT-SIZE="11">{text}</FONT></TD></TR>')
    cells = [
        f'<TD BGCOLOR="{colour}" BORDER="1" COLOR="#555555" CELLPADDING="4"><FONT POINT-SIZE="10">'
        f"{html_text(text, longest)}</FONT></TD>"
        for text, colour in legend.items()
        if text
    ]
    for start in range(0, len(cells), 6):
        table = f'<TABLE BORDER="0" CELLSPACING="4"><TR>{"".join(cells[start : start + 6])}</TR></TABLE>'
        rows.append(f'<TR><TD BORDER="0">{table}</TD></TR>')
    return f'<<TABLE BORDER="0" CELLBORDER="0" CELLSPACING="0">{"".join(rows)}</TABLE>>' if rows else '""'


def column_lines(columns: Sequence[list[str]], firsts: Sequence[str]) -> Iterator[str]:
    """Yield the statements of columns, so that they stand beside each other in their order.

    Args:
        columns: Statements of the nodes of each.
        firsts: The name of the first node of each.
    """
    # Graphviz begins with what was declared last. Points above the columns, which nobody sees, keep it at that.
    for lines in reversed(columns):
        yield from lines
    if len(columns) < 2:
        return
    points = [identifier(f"column {index}") for index in range(len(columns))]
    declared = "; ".join(points)
    yield f'  {{ rank="same"; node [style="invis", shape="point", width="0", height="0", label=""]; {declared}; }}'
    for point, first in zip(points, firsts, strict=True):
        yield f'  {point} -> {identifier(first)} [style="invis", weight="2"];'


class _Picture:
    def __init__(
        self, graph: Graph, module: GraphModule | None, nodes: list[Node], options: DrawOptions
    ) -> None:
        self.graph, self.module, self.nodes, self.options = graph, module, nodes, options
        self.is_brief = options.is_brief(len(nodes))
        self.colouring = Colouring(nodes, module, options.color_by)
        self._numbers = itertools.count()

    def lines(self) -> Iterator[str]:
        for statement in graph_attributes(self._label(), self.options.direction, is_brief=self.is_brief):
            yield f"  {statement}"
        edges = shown_edges(self.nodes, self.options.hide)
        columns = columns_of(self.nodes, edges, self.options.column_length(len(self.nodes)))
        yield from column_lines(
            [list(self._column(column)) for column in columns],
            [column[0].name for column in columns if column],
        )
        place = {node: index for index, column in enumerate(columns) for node in column}
        for edge in edges:
            yield self._edge(edge, breaks=place[edge.source] != place[edge.user])

    def _label(self) -> str:
        title = self.options.title
        if title is None:
            title = "graph" if self.module is None else repr(self.module).partition("(")[0]
        faults = list(itertools.islice(find_structure_faults(self.graph, self.module), _MOST_FAULTS + 1))
        notes = [f"Not sound: {fault}" for fault in faults[:_MOST_FAULTS]]
        notes += ["Not sound: and more"] * (len(faults) > _MOST_FAULTS)
        notes += ["There are no nodes."] * (not self.nodes)
        legend = self.colouring.legend if self.options.legend else {}
        return html_label(title, notes, legend, self.options.longest)

    def _column(self, nodes: list[Node]) -> Iterator[str]:
        tree = cluster_tree(nodes) if self.options.clusters else Cluster(nodes=nodes)
        yield from cluster_lines(tree, self._node, self._numbers, self.options.longest)

    def _node(self, node: Node) -> str:
        rows = label_rows(
            node, self.module, brief=self.is_brief, constants="constants" not in self.options.hide
        )
        attributes = [
            f"label={record(rows, self.options.longest, self.options.direction)}",
            f'fillcolor="{self.colouring.colour(node)}"',
        ]
        source = source_text(node)
        if source:
            attributes.append(f"tooltip={tooltip(source, _TOOLTIP)}")
        if is_missing(node, self.module):
            attributes.append('color="#b00020", penwidth="2"')
        return f"{identifier(node.name)} [{', '.join(attributes)}];"

    def _edge(self, edge: Edge, *, breaks: bool) -> str:
        attributes: list[str] = []
        if edge.label:
            attributes.append(f"label={quoted(edge.label, self.options.longest)}")
        if breaks:
            attributes.append(BREAK)
        shown: Any = f" [{', '.join(attributes)}]" if attributes else ""
        return f"  {identifier(edge.source.name)} -> {identifier(edge.user.name)}{shown};"
