"""Pictures as objects of the package graphviz, for whoever goes on with them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import graphviz

from fxplug.errors import UnknownNameError
from fxplug.execute import GraphModule
from fxplug_viz.dot import dot_lines
from fxplug_viz.options import DrawOptions

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from fxplug_viz.options import DrawSettings

__all__ = ["GraphDrawer"]


class GraphDrawer:
    """Makes pictures that a program can add to, as torch.fx's ``FxGraphDrawer`` does.

    What it returns are objects of the package `graphviz <https://graphviz.readthedocs.io>`_ instead of ``pydot``:
    ``render``, ``pipe`` and ``source`` give pictures and text; ``node`` and ``edge`` add to it. The name of a node in
    the picture is its name in the graph.

    Args:
        graph_module: What is drawn, with the graph modules inside it. It is not changed.
        name: Title of the picture.
        **settings: See `DrawOptions`.

    Raises:
        ConfigError: A setting makes no sense.

    Example:
        ::

            picture = GraphDrawer(graph_module, "model").get_dot_graph()
            picture.node("conv1", penwidth="3")
            picture.render(outfile="model.svg")
    """

    def __init__(self, graph_module: GraphModule, name: str, **settings: Unpack[DrawSettings]) -> None:
        self._options = DrawOptions.of({"title": name, **settings})
        self._name = name
        self._modules = {"": graph_module}
        for path, module in graph_module.named_modules():
            if path and isinstance(module, GraphModule):
                self._modules[path] = module

    def get_dot_graph(self, submod_name: str | None = None) -> graphviz.Digraph:
        """Return the picture of the module, or of a graph module inside it.

        Args:
            submod_name: Its dotted path.

        Raises:
            UnknownNameError: There is no graph module at that path.
        """
        return self.get_main_dot_graph() if submod_name is None else self.get_submod_dot_graph(submod_name)

    def get_main_dot_graph(self) -> graphviz.Digraph:
        """Return the picture of the module."""
        return self._picture("")

    def get_submod_dot_graph(self, submod_name: str) -> graphviz.Digraph:
        """Return the picture of a graph module inside the module.

        Raises:
            UnknownNameError: There is no graph module at that path.
        """
        if submod_name not in self._modules or not submod_name:
            raise UnknownNameError("graph module", submod_name, [path for path in self._modules if path])
        return self._picture(submod_name)

    def get_all_dot_graphs(self) -> dict[str, graphviz.Digraph]:
        """Return the pictures of the module and of all graph modules inside it, by name."""
        return {self._title(path): self._picture(path) for path in self._modules}

    def _title(self, path: str) -> str:
        return f"{self._name}.{path}" if path else self._name

    def _picture(self, path: str) -> graphviz.Digraph:
        options = DrawOptions(
            **{**vars(self._options), "title": self._options.title if not path else self._title(path)}
        )
        return graphviz.Digraph(body=[f"{line}\n" for line in dot_lines(self._modules[path], options)])
