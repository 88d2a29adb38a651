"""Running a graph node by node, with one method per opcode to override."""

# The step of a node is a hot path: it reads the node's slots, not the properties in front of them.
# pyright: reportPrivateUsage=false

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fxplug.codegen import last_uses
from fxplug.errors import GraphError, InvalidArgumentError
from fxplug.execute.failures import caught_by_program, note_failed_node
from fxplug.execute.foreign import not_a_graph
from fxplug.execute.guards import check_guards
from fxplug.execute.paths import fetch_path
from fxplug.ir import Argument, Graph, Node, map_aggregate
from fxplug.semantics.internals import is_fake

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import nn

__all__ = ["Interpreter"]

_MISSING = object()
_ELEMENTWISE_IN_PYTHON = frozenset({"apply_", "map_", "map2_"})


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
        graph = graph if graph is not None else getattr(module, "graph", None)
        if not isinstance(graph, Graph):
            raise _not_interpreted(module, graph)
        self.graph: Graph = graph
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
            enable_io_processing: Whether inputs and result have the form of the generated function, where a code
                generator of the graph's own gives it another one (`fxplug.Graph.process_inputs`), or that of the graph.

        Returns:
            What the output node returns.

        Raises:
            GuardError: The module was captured with example inputs, and what was assumed of them does not hold. Inputs
                without data (meta and fake tensors) cannot be asked, and are taken to be right.
        """
        graph = self.graph
        if enable_io_processing:
            captured = self.module if graph is getattr(self.module, "graph", None) else graph.owning_module
            if initial_env is None and graph is getattr(captured, "graph", None):
                check_guards(captured, args)
            args = tuple(graph.process_inputs(*args))
        self._check_inputs(args)
        result = self._run_nodes(iter(args), dict(initial_env) if initial_env is not None else {})
        return graph.process_outputs(result) if enable_io_processing else result

    def _run_nodes(self, inputs: Iterator[Any], env: dict[Node, Any]) -> Any:
        self.args_iter, self.env = inputs, env
        nodes, freed = self._schedule()
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
                note_failed_node(error, node)
            other = None if node is None else caught_by_program(error, node)
            if other is not None:
                raise other from error
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
            nodes = self.graph.nodes.listed()
            self._scheduled = key, nodes, last_uses(nodes) if self.garbage_collect_values else {}
            # A subclass with its own way of loading values hears of every argument.
            plain = type(self).map_nodes_to_values is Interpreter.map_nodes_to_values
            self._flat = frozenset(node for node in nodes if plain and _is_flat(node))
        return self._scheduled[1], self._scheduled[2]

    def boxed_run(self, args_list: list[Any]) -> Any:
        """Run the graph with a list of inputs, which is emptied, so that each input ends with its last use.

        Args:
            args_list: One value per placeholder, in order: the inputs of the graph, whatever its code generator makes
                of them.

        Raises:
            GraphError: There are too many values, or too few. The list is as it was.
        """
        self._check_inputs(tuple(args_list))
        needed = [node for node in self.graph.find_nodes(op="placeholder") if _is_required(node)]
        if len(args_list) < len(needed):
            raise _missing_input(str(needed[len(args_list)].target))
        inputs = args_list[::-1]
        args_list.clear()
        return self.graph.process_outputs(self._run_nodes(_drained(inputs), {}))

    @property
    def submodules(self) -> dict[str, nn.Module]:
        """The modules below the root, by their paths."""
        return dict(self.module.named_modules())

    @property
    def user_to_last_uses(self) -> dict[Node, list[Node]]:
        """Which values are dropped behind each node; empty when none is."""
        return self._schedule()[1]

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
        raise _missing_input(target)

    def get_attr(self, target: str, args: tuple[Argument, ...], kwargs: dict[str, Any]) -> Any:
        """Return the attribute of the root at the path `target`."""
        return self.fetch_attr(target)

    def call_function(self, target: Any, args: tuple[Argument, ...], kwargs: dict[str, Any]) -> Any:
        """Call the function."""
        return target(*args, **kwargs)

    def call_method(self, target: str, args: tuple[Argument, ...], kwargs: dict[str, Any]) -> Any:
        """Call the method of the first argument.

        Raises:
            GraphError: It would hand out the elements of a tensor that has none.
        """
        receiver, *rest = args
        if target in _ELEMENTWISE_IN_PYTHON and is_fake(receiver):
            # PyTorch reads their memory all the same, which ends the process.
            raise GraphError(f"Cannot call {target!r} without data: it calls a function for each element.")
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


def _not_interpreted(module: nn.Module, graph: Any) -> InvalidArgumentError:
    if graph is not None:
        return InvalidArgumentError(
            f"Cannot interpret a {type(module).__name__}: its graph is {not_a_graph(graph)}"
        )
    return InvalidArgumentError(
        f"Cannot interpret a {type(module).__name__}: it has no graph. Capture it first, for example with "
        "fxplug.symbolic_trace(...), or pass the graph."
    )


def _is_flat(node: Node) -> bool:
    """Return whether no argument is a container."""
    return not any(
        isinstance(value, (tuple, list, dict, slice)) for value in (*node.args, *node.kwargs.values())
    )


def _is_required(placeholder: Node) -> bool:
    return not placeholder.args and not str(placeholder.target).startswith("*")


def _missing_input(target: str) -> GraphError:
    return GraphError(
        f"Cannot run the graph: no value was given for the input {target!r}, which has no default."
    )


def _drained(inputs: list[Any]) -> Iterator[Any]:
    """Yield values from the end of a list, which forgets them."""
    while inputs:
        yield inputs.pop()
