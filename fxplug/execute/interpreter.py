"""Running a graph node by node, with one method per opcode to override."""

# The step of a node is a hot path: it reads the node's slots, not the properties in front of them.
# pyright: reportPrivateUsage=false

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from fxplug.codegen import last_uses
from fxplug.errors import GraphError
from fxplug.execute.paths import fetch_path
from fxplug.ir import Argument, Graph, Node, map_aggregate

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import nn

__all__ = ["Interpreter"]

_MISSING = object()


class Interpreter:
    """Runs a graph one node at a time.

    Override `run_node` to see every step, or the method of an opcode to change what it does. Regions are
    entered around the nodes that lie in them.

    Args:
        module: The root that the graph's paths refer to.
        garbage_collect_values: Whether a value is dropped after its last use.
        graph: The program; by default ``module.graph``.
    """

    enters_regions = True
    """Whether the contexts of a node's region are entered around it; a subclass that runs nothing may switch it off."""

    def __init__(
        self,
        module: nn.Module,
        garbage_collect_values: bool = True,  # noqa: FBT001, FBT002 - torch.fx's public signature
        graph: Graph | None = None,
    ) -> None:
        self.module = module
        self.graph: Graph = graph if graph is not None else cast("Any", module).graph
        self.env: dict[Node, Any] = {}
        """Values of the nodes that have run and are still needed."""
        self.garbage_collect_values = garbage_collect_values
        self.name = "Interpreter"
        self.args_iter: Iterator[Any] = iter(())
        """Inputs that no placeholder has taken yet."""
        self._scheduled: tuple[tuple[Graph, int, bool], list[Node], dict[Node, list[Node]]] | None = None
        self._flat: frozenset[Node] = frozenset()
        self.extra_traceback = True
        """Whether an error is given a note that names the node and its source line."""

    def run(
        self, *args: Any, initial_env: dict[Node, Any] | None = None, enable_io_processing: bool = True
    ) -> Any:
        """Run the graph.

        Args:
            *args: One value per placeholder, in order.
            initial_env: Values of nodes that need not run.
            enable_io_processing: Accepted for compatibility; inputs and outputs have the form that the graph
                gives them.

        Returns:
            What the output node returns.
        """
        self.env = dict(initial_env) if initial_env is not None else {}
        self.args_iter = iter(args)
        nodes, freed = self._schedule()
        self._check_inputs(args)
        env = self.env
        run_node, entering = self.run_node, self.enters_regions
        node: Node | None = None
        try:
            for node in nodes:
                if node in env:
                    continue
                value = self._enter(node, 0) if node._region and entering else run_node(node)
                if node._op == "output":
                    for ended in freed.get(node, ()):
                        env.pop(ended, None)
                    return value
                env[node] = value
                del value
                if node in freed:
                    for ended in freed[node]:
                        env.pop(ended, None)
        except Exception as error:
            if self.extra_traceback and node is not None:
                _add_note(error, node)
            raise
        return None

    def _check_inputs(self, args: tuple[Any, ...]) -> None:
        targets = [str(node.target) for node in self.graph.find_nodes(op="placeholder")]
        if len(args) > len(targets) and not any(target.startswith("*") for target in targets):
            raise GraphError(
                f"Cannot run the graph: {len(args)} values were given for its {len(targets)} inputs "
                f"({', '.join(targets) or 'none'}). Pass one value for each input."
            )

    def _schedule(self) -> tuple[list[Node], dict[Node, list[Node]]]:
        """Return the nodes in order and what is freed behind each; worked out anew only when the graph changed."""
        key = (self.graph, self.graph.version, self.garbage_collect_values)
        if self._scheduled is None or self._scheduled[0] != key:
            nodes = list(self.graph.nodes)
            self._scheduled = key, nodes, last_uses(nodes) if self.garbage_collect_values else {}
            # A subclass with its own way of loading values hears of every argument.
            plain = type(self).map_nodes_to_values is Interpreter.map_nodes_to_values
            self._flat = frozenset(node for node in nodes if plain and _is_flat(node))
        return self._scheduled[1], self._scheduled[2]

    def boxed_run(self, args_list: list[Any]) -> Any:
        """Run the graph with a list of inputs, which is emptied so that inputs can be freed early."""
        inputs = list(args_list)
        args_list.clear()
        return self.run(*inputs)

    def _enter(self, node: Node, depth: int) -> Any:
        if depth == len(node.region):
            return self.run_node(node)
        entry = node.region[depth]
        with entry.context(*entry.arguments):
            return self._enter(node, depth + 1)

    def run_node(self, n: Node) -> Any:
        """Run one node with the values of its inputs and return its value."""
        args, kwargs = self.fetch_args_kwargs_from_env(n)
        return getattr(self, n._op)(n._target, args, kwargs)

    # -- one method per opcode

    def placeholder(self, target: str, args: tuple[Argument, ...], kwargs: dict[str, Any]) -> Any:
        """Return the next input, or the default.

        Raises:
            GraphError: There are fewer inputs than placeholders without default.
        """
        if target.startswith("**"):
            return next(self.args_iter, {})
        if target.startswith("*"):
            return tuple(self.args_iter)
        value = next(self.args_iter, _MISSING)
        if value is not _MISSING:
            return value
        if args:
            return args[0]
        raise GraphError(
            f"Cannot run the graph: no value was given for the input {target!r}, which has no default."
        )

    def get_attr(self, target: str, args: tuple[Argument, ...], kwargs: dict[str, Any]) -> Any:
        """Return the attribute of the root at the path `target`."""
        return self.fetch_attr(target)

    def call_function(self, target: Any, args: tuple[Argument, ...], kwargs: dict[str, Any]) -> Any:
        """Call the function."""
        return target(*args, **kwargs)

    def call_method(self, target: str, args: tuple[Argument, ...], kwargs: dict[str, Any]) -> Any:
        """Call the method of the first argument."""
        receiver, *rest = args
        return getattr(receiver, target)(*rest, **kwargs)

    def call_module(self, target: str, args: tuple[Argument, ...], kwargs: dict[str, Any]) -> Any:
        """Call the submodule."""
        return self.fetch_attr(target)(*args, **kwargs)

    def output(self, target: str, args: tuple[Argument, ...], kwargs: dict[str, Any]) -> Any:
        """Return the result of the graph."""
        return args[0]

    # -- values

    def fetch_attr(self, target: str) -> Any:
        """Return the attribute of the root at a dotted path.

        Raises:
            GraphError: There is none.
        """
        return fetch_path(self.module, target)

    def fetch_args_kwargs_from_env(self, n: Node) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return a node's arguments with every node replaced by its value."""
        args, kwargs = n._args, n._kwargs
        if n in self._flat:
            env = self.env
            try:
                values = tuple([env[value] if value.__class__ is Node else value for value in args])
                if not kwargs:
                    return values, {}
                return values, {
                    key: env[value] if value.__class__ is Node else value for key, value in kwargs.items()
                }
            except KeyError:
                pass  # The general way finds out which value is missing and says so.
        return tuple(self.map_nodes_to_values(args, n)), self.map_nodes_to_values(kwargs, n) if kwargs else {}

    def map_nodes_to_values(self, args: Argument, n: Node) -> Argument:
        """Replace every node in a nested argument of `n` by its value.

        Raises:
            GraphError: A node has no value yet.
        """

        def load(used: Node) -> Any:
            value = self.env.get(used, _MISSING)
            if value is _MISSING:
                raise GraphError(
                    f"Cannot run node {n.name!r}: its input {used.name!r} has no value. graph.lint() tells "
                    "what is wrong with the order of the graph."
                )
            return value

        # Functions receive the plain lists and dicts that generated code would build.
        return map_aggregate(args, lambda leaf: load(leaf) if isinstance(leaf, Node) else leaf, frozen=False)


def _is_flat(node: Node) -> bool:
    """Return whether no argument is a container."""
    return not any(
        isinstance(value, (tuple, list, dict, slice)) for value in (*node.args, *node.kwargs.values())
    )


def _add_note(error: Exception, node: Node) -> None:
    text = f"While running node {node.format_node()}"
    trace = node.stack_trace
    if trace:
        text = f"{text}\nwhich came from:\n{trace}"
    add_note = getattr(error, "add_note", None)  # Python 3.10 has no notes.
    if add_note is not None:
        add_note(text)
