"""What passes make of a graph, step by step, and the page that shows it."""

from __future__ import annotations

import copy
import itertools
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from fxplug.analyze import described_copy
from fxplug.errors import ConfigError
from fxplug_viz.difference import GraphDifference, diff
from fxplug_viz.viewer import graph_with_overlays, viewer_html
from fxplug_viz.viewer_changes import lay_changes_over
from fxplug_viz.viewer_page import write_page

if TYPE_CHECKING:
    import os
    from collections.abc import Sequence

    from torch import Tensor

    from fxplug import Graph, GraphModule
    from fxplug.api import OptimizationEvent
    from fxplug.passes import PassEvent

__all__ = ["PassStep", "PassSteps", "diff_html", "view_diff"]

_MOST_NODES = 100_000


@dataclass(frozen=True)
class PassStep:
    """A graph as it was behind a pass."""

    name: str
    """Of the pass; empty for the graph as it was before the first one."""
    kind: Literal["start", "changed", "unchanged", "failed", "not kept"]
    note: str
    """What the pass says that it did, or why it failed."""
    shown: GraphModule | Graph
    """A copy of the graph; where nothing changed, that of the step before."""


class PassSteps:
    """Keeps the graph as it was before the first pass and behind each one, to be shown as a page with a slider.

    It is an observer: of `fxplug.optimize`, or of `fxplug.passes.Pipeline.run`. What it keeps are copies of graphs that
    share their tensors with the module; one in which graphs with more than 100,000 nodes would be kept stops copying.

    Args:
        example_inputs: The inputs of the module, with which the page shows dtypes and shapes at every step; by default
            those that the passes are given, if there are any.

    Example:
        ::

            steps = PassSteps()
            fxplug.optimize(model, inputs, observer=steps)
            steps.view("steps.html")
    """

    def __init__(self, example_inputs: Sequence[Any] | Tensor | None = None) -> None:
        is_many = isinstance(example_inputs, (tuple, list))
        self._inputs: tuple[Any, ...] | None = (
            None if example_inputs is None else tuple(example_inputs) if is_many else (example_inputs,)
        )
        self._kept = 0
        self.steps: list[PassStep] = []
        """In order."""

    def __call__(self, event: PassEvent | OptimizationEvent) -> None:
        """Hear of a pass."""
        # Whoever observes an optimisation is told of its passes, and of more.
        told: Any = getattr(event, "pass_event", event)
        if told is None:
            return
        if self._inputs is None:
            self._inputs = told.example_inputs
        if not self.steps:
            self.steps.append(PassStep("", "start", "", self._copy(told.module)))
        if told.error is not None:
            self._add(told, "failed", f"failed and was undone: {told.error}")
        elif told.result is not None and not told.result.modified:
            self._add(told, "unchanged", told.result.summary)
        elif told.result is not None and self._kept + len(told.module.graph.nodes) > _MOST_NODES:
            self._add(told, "not kept", f"{told.result.summary} (not kept: the graphs before are too large)")
        elif told.result is not None:
            self._add(told, "changed", told.result.summary, self._copy(told.module))

    def _add(self, told: PassEvent, kind: Any, note: str, shown: GraphModule | Graph | None = None) -> None:
        self.steps.append(PassStep(told.name, kind, note, self.steps[-1].shown if shown is None else shown))

    def _copy(self, module: GraphModule) -> GraphModule | Graph:
        self._kept += len(module.graph.nodes)
        tensors = {id(tensor): tensor for tensor in itertools.chain(module.parameters(), module.buffers())}
        try:
            still = copy.deepcopy(module, tensors)
        except Exception:  # Something of somebody's cannot be copied; the graph can.
            return copy.deepcopy(module.graph)
        if self._inputs is None:
            return still
        try:
            described = described_copy(still, *self._inputs)
        except Exception:  # Without shapes then, as where there are no inputs.
            return still
        for node, known in zip(still.graph.nodes, described.graph.nodes, strict=True):
            node.meta.update(known.meta)
        return still

    def html(self, *, title: str | None = None) -> str:
        """Return the page.

        Args:
            title: Stands above it; by default the class of the module.

        Raises:
            ConfigError: It has heard of no pass.
        """
        if not self.steps:
            raise ConfigError(
                "Cannot show the steps of a pipeline: none were heard of. Hand this object to the pipeline before it "
                "runs: fxplug.optimize(model, inputs, observer=steps)."
            )
        shown = list(dict.fromkeys(step.shown for step in self.steps))
        graphs = _graphs_of(shown)
        keys = {graph: data["id"] for graph, data in zip(shown, graphs, strict=True)}
        notes = {graph: data.get("note", "") for graph, data in zip(shown, graphs, strict=True)}
        steps = [
            {
                "title": step.name or "as captured",
                "graph": keys[step.shown],
                "kind": step.kind,
                "note": "; ".join(
                    filter(None, [step.note, notes[step.shown] if step.kind == "changed" else ""])
                ),
            }
            for step in self.steps
        ]
        name = graphs[0]["title"] if title is None else title
        return viewer_html(graphs, title=name, steps=steps)

    def view(self, path: str | os.PathLike[str], *, title: str | None = None) -> Path:
        """Write the page, to be opened in a browser.

        Args:
            path: An older file is replaced.
            title: Stands above it; by default the class of the module.

        Returns:
            The path.

        Raises:
            ConfigError: It has heard of no pass, or the path has the name of a picture.
            StorageError: The file cannot be written.
        """
        write_page(Path(path), self.html(title=title))
        return Path(path)


def _graphs_of(shown: Sequence[GraphModule | Graph]) -> list[dict[str, Any]]:
    """Return what a page holds of graphs, each but the first with what became of the one before it."""
    graphs: list[dict[str, Any]] = []
    for index, graph in enumerate(shown):
        data = graph_with_overlays(graph, key=f"graph-{index}")
        if index:
            lay_changes_over(data, graphs[-1], diff(shown[index - 1], graph))
        graphs.append(data)
    return graphs


def diff_html(difference: GraphDifference, *, title: str | None = None) -> str:
    """Return a page with both graphs of a difference; see `view_diff`."""
    first, second = (
        graph_with_overlays(graph if module is None else module, key=key)
        for graph, module, key in (
            (difference.first, difference.first_module, "before"),
            (difference.second, difference.second_module, "after"),
        )
    )
    lay_changes_over(second, first, difference)
    steps = [
        {"title": "before", "graph": "before", "kind": "start", "note": ""},
        {"title": "after", "graph": "after", "kind": "changed", "note": second.get("note", "")},
    ]
    names = dict.fromkeys([first["title"], second["title"]])
    return viewer_html([first, second], title=" → ".join(names) if title is None else title, steps=steps)


def view_diff(difference: GraphDifference, path: str | os.PathLike[str], *, title: str | None = None) -> Path:
    """Write a page that shows what became of a graph: before and after, with a slider, changes coloured.

    Args:
        difference: What `diff` returned.
        path: An older file is replaced.
        title: Stands above it; by default the class of the module, or both classes.

    Returns:
        The path.

    Raises:
        ConfigError: The path has the name of a picture.
        StorageError: The file cannot be written.

    Example:
        ::

            view_diff(diff(before, after), "diff.html")
    """
    write_page(Path(path), diff_html(difference, title=title))
    return Path(path)
