"""Graphs: an ordered list of nodes that computes outputs from inputs."""

# Node, ring and graph are one data structure in three files, and share its inner parts.
# pyright: reportPrivateUsage=false
from __future__ import annotations

import warnings
import weakref
from inspect import Signature
from operator import is_
from typing import TYPE_CHECKING, Any, cast

from fxplug.errors import ForeignNodeError, GraphError, NodeInUseError
from fxplug.ir.arguments import EMPTY_DICT, Argument, immutable_dict
from fxplug.ir.clone import clone_nodes, copy_meta
from fxplug.ir.code import CodeOwner
from fxplug.ir.collector import paused_collection
from fxplug.ir.display import notebook_bundle
from fxplug.ir.effects import effects
from fxplug.ir.lint import check_structure
from fxplug.ir.naming import Namespace, target_name, wish_of_path
from fxplug.ir.node import ERASED, OPCODES, Node, exact_text, map_arg
from fxplug.ir.node_index import NodeIndex, nodes_that_call, position_of
from fxplug.ir.notes import RESULTS_OF_ANALYSES
from fxplug.ir.printing import print_table
from fxplug.ir.regions import PLAIN, Region
from fxplug.ir.ring import NodeList, Ring

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from types import TracebackType

    from fxplug.ir.guards import StateGuard
    from fxplug.ir.origins import StoredOrigin

__all__ = ["Graph"]


_OPCODES = frozenset(OPCODES)
_CALLS = frozenset({"call_function", "call_method", "call_module"})


class _InsertionPoint:
    """Sets the insertion point at once, and puts the former one back when used as a context."""

    __slots__ = ("_former", "_graph")

    def __init__(self, graph: Graph, anchor: Node, *, before: bool) -> None:
        self._graph = graph
        self._former = graph._insertion
        graph._insertion = (anchor, before)

    def __enter__(self) -> None:
        self._graph._waiting.append(self)

    def node_erased(self, node: Node) -> None:
        """Hear that a node goes away next to which the former insertion point may lie."""
        self._former = _beside(self._former, node)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._graph._insertion = self._former
        self._graph._waiting.remove(self)


def _beside(insertion: tuple[Node, bool], node: Node) -> tuple[Node, bool]:
    """Return an insertion point that stays where it is when `node` goes away."""
    anchor, before = insertion
    if anchor is not node:
        return insertion
    return (node._next if before else node._prev), before


class Graph(CodeOwner):
    """The program: nodes in the order in which they run.

    A graph refers to a root (a module with parameters and submodules) only by dotted paths; `owning_module`
    names the module that holds it, weakly. `version` grows with every edit, which is how generated code and
    analyses notice that they are out of date.
    """

    def __init__(
        self,
        owning_module: Any = None,
        tracer_cls: type | None = None,
        tracer_extras: dict[str, Any] | None = None,
    ) -> None:
        super().__init__()
        self._sentinel = Node(self, "", "root", "")
        self._sentinel._position = ERASED  # It is no node to work with: nobody may use, move or erase it.
        self._ring = Ring(self._sentinel)
        self._insertion: tuple[Node, bool] = (self._sentinel, True)
        self._waiting: list[_InsertionPoint] = []
        self._namespace = Namespace()
        self._candidates: dict[Any, str] = {}
        self._index: NodeIndex | None = None
        self._owner: weakref.ref[Any] | None = None
        self._tracer_cls = tracer_cls
        self._tracer_extras = tracer_extras
        self._region: Region = PLAIN
        self.observers: list[Callable[[str, Node], None]] = []
        """Called with (event, node) after each ``"created"``, ``"erased"``, ``"changed"`` and ``"moved"``."""
        self.lifted: dict[str, Any] = {}
        """Path -> value for what the program uses but its root does not hold; a GraphModule takes these in."""
        self.captured_training: bool | None = None
        """Whether the root was being trained when the program asked for it while it was captured; None when it did not
        ask."""
        self.state_guards: tuple[StateGuard, ...] = ()
        """What the program was told of the modules below its root, of its weights and of torch while it was captured;
        calls of its module check it."""
        self.guard_set: Any = None
        """What calls of modules that run this graph check first (see `fxplug.execute.guards`); None for nothing."""
        self.training_overrides: dict[str, tuple[bool, bool]] = {}
        """Path of a module below the root -> whether it is trained after ``train()`` and after ``eval()`` of the root,
        for those of which the classes of the program say otherwise than torch (a frozen batch norm)."""
        self._keyword_only: frozenset[str] = frozenset()
        self.owning_module = owning_module

    # -- what belongs to the graph

    @property
    def owning_module(self) -> Any:
        """The module that holds this graph, None when there is none or it is gone."""
        return None if self._owner is None else self._owner()

    @owning_module.setter
    def owning_module(self, module: Any) -> None:
        self._owner = None if module is None else weakref.ref(module)

    @property
    def keyword_only(self) -> frozenset[str]:
        """Names of parameters that callers must pass by keyword."""
        return self._keyword_only

    @keyword_only.setter
    def keyword_only(self, names: Iterable[str]) -> None:
        self._keyword_only = frozenset(names)
        self.version += 1

    @property
    def current_region(self) -> Region:
        """The contexts that are entered around the nodes that are made from now on, outermost first."""
        return self._region

    @current_region.setter
    def current_region(self, region: Region) -> None:
        self._region = region

    @property
    def nodes(self) -> NodeList:
        """The nodes in order; the graph may be edited while they are iterated over (see `fxplug.ir.NodeList`)."""
        return NodeList(self._ring)

    def find_nodes(self, *, op: str, target: Any = None, sort: bool = True) -> list[Node]:
        """Return the nodes with an opcode and, where given, a target, without walking the graph.

        Args:
            op: The opcode.
            target: The target; None matches every target.
            sort: Whether the result is in the order of the graph.

        Raises:
            GraphError: There is no such opcode.
        """
        index = self._indexed()
        found = index.with_opcode(op) if target is None else index.with_target(op, target)
        if not found and op not in _OPCODES:
            raise GraphError(f"Cannot find nodes with opcode {op!r}. Use one of {', '.join(OPCODES)}.")
        if sort and len(found) > 1:
            self._ring.number()
            found.sort(key=position_of)
        return found

    def distinct_targets(self, op: str) -> list[Any]:
        """Return every target that nodes with an opcode have, each once, without walking the graph."""
        return self._indexed().targets(op)

    def nodes_that_call(self, wanted: Callable[[str, Any], bool]) -> list[Node]:
        """Return the nodes whose opcode and target are wanted, in order.

        Args:
            wanted: Called with opcode and target, once for each pair of them.
        """
        if self._index is None:
            return nodes_that_call(self.nodes.listed(), wanted)
        found = self._index.that_call(wanted)
        self._ring.number()
        return sorted(found, key=position_of)

    def _indexed(self) -> NodeIndex:
        if self._index is None:
            self._index = NodeIndex(self._ring.iterate())
        return self._index

    def output_node(self) -> Node:
        """Return the one output node.

        Raises:
            GraphError: The graph has none.
        """
        last = self._sentinel._prev
        if last._op == "output":
            return last
        outputs = self.find_nodes(op="output")
        if not outputs:
            raise GraphError(
                "Cannot find the output: the graph has no output node. Make one with graph.output(...)."
            )
        return outputs[-1]

    # -- the owner protocol of nodes

    def place_node(self, node: Node, after: Node) -> None:
        """Put `node` directly behind `after`, moving it when it already stands somewhere.

        Raises:
            ForeignNodeError: One of them belongs to another graph or was erased.
        """
        for one in (node, after):
            if one.graph is not self or (
                one._position is ERASED and not (one is after and one is self._sentinel)
            ):
                raise ForeignNodeError(
                    f"Cannot move node {node.name!r} behind {after.name!r}: {one.name!r} does not stand in "
                    "this graph."
                )
        if after is node:
            return
        if node._next is not node:
            if after._next is node:
                return
            self._ring.remove(node)
        self._ring.insert_after(node, after)
        self.version += 1
        for observer in self.observers:
            observer("moved", node)

    def number_nodes(self) -> None:
        """Give every node a label that grows with its position."""
        self._ring.number()

    def node_changing(self, node: Node, attribute: str, value: object) -> object:
        """Hear that `attribute` of `node` is about to become `value`; return what is to be stored."""
        if attribute == "name":
            self._namespace.release(node._name)
            value = self._namespace.create_name(str(exact_text(value)))
        elif attribute in {"op", "target"}:
            value = exact_text(value)
        if attribute in {"op", "target"} and self._index is not None and node._position is not ERASED:
            self._index.remove(node)
            op, target = (value, node._target) if attribute == "op" else (node._op, value)
            self._index.add(node, cast("str", op), target)
        return value

    def node_changed(self, node: Node) -> None:
        """Hear that an attribute of `node` has changed."""
        self.version += 1
        for observer in self.observers:
            observer("changed", node)

    # -- making nodes

    def create_node(
        self,
        op: str,
        target: Any,
        args: tuple[Argument, ...] | None = None,
        kwargs: Mapping[str, Argument] | None = None,
        name: str | None = None,
        type_expr: Any = None,
        origin: StoredOrigin = None,
    ) -> Node:
        """Make a node at the insertion point.

        Args:
            op: One of the six opcodes.
            target: A callable for ``call_function``, else text.
            args: Positional arguments; nodes in them must belong to this graph.
            kwargs: Keyword arguments.
            name: A wish for the name; the node gets the nearest free one. By default it is made from the
                target.
            type_expr: Annotation of the value.
            origin: Where in a program the node comes from.

        Returns:
            The new node.

        Raises:
            GraphError: The opcode or the target does not fit.
            ForeignNodeError: An argument is a node of another graph, or erased.
        """
        if not (op.__class__ is str and (name is None or name.__class__ is str)):
            op, name = exact_text(op), exact_text(name)
        is_text = target.__class__ is str
        if not is_text and isinstance(target, str):
            target, is_text = exact_text(target), True
        # Text for everything but call_function: a mismatch is looked into, the rest is checked once for each target.
        if op not in _OPCODES or (op == "call_function") is is_text:
            self._check_target(op, target)
        node = Node(
            self,
            "",
            op,
            target,
            () if args is None else args,
            EMPTY_DICT if kwargs is None else kwargs,
            type_expr,
            self._region,
        )
        if name is not None:
            wish = name
        elif is_text and target.islower() and target[:2] != "__":
            wish = target.replace(".", "_")  # As `target_name` does, without the call.
        else:
            wish = self._candidate(op, target)
        node._name = self._namespace.create_name(wish)
        node._origin = origin
        self._put(node)
        return node

    def _create_at(self, op: str, path: str, value: Node | None, origin: StoredOrigin) -> Node:
        """Make what ``create_node(op, path, (value,))`` does, for a tracer: most nodes of a network.

        Args:
            op: ``"call_module"`` or ``"get_attr"``.
            path: Dotted path of the module, or of the weight.
            value: A node of this graph, the only argument; None for no argument.
            origin: Where in a program the node comes from.

        Returns:
            The new node.

        Raises:
            ForeignNodeError: `value` is a node of another graph, or erased.
        """
        # Not by vars(self): a graph that has shown its table is slower from then on.
        is_usual = getattr(self.create_node, "__func__", None) is _create_node
        is_ours = value is None or (value.graph is self and value._position is not ERASED)
        wish, base, number = wish_of_path(path)
        if not (is_usual and is_ours and wish):
            args = () if value is None else (value,)
            return self.create_node(op, path, args, None, None, None, origin)
        node = Node.__new__(Node)
        node.graph = self
        # As `Namespace.create_name`, without the call.
        used = self._namespace._used
        if base is not None and wish not in used:
            used[wish] = None
            node._name = wish
            if base:  # The next one that wishes for it has a larger number.
                counts = self._namespace._counts
                counts[base] = max(number, counts.get(base, 0))
        else:
            node._name = self._namespace.create_name(wish)
        node._op = op
        node._target = path
        node._type = node._meta = node._users = None
        node._region = self._region
        node._origin = origin
        node._position = 0
        node._kwargs = EMPTY_DICT
        if value is None:
            node._args = node._inputs = ()
        else:
            node._args, node._inputs = (value,), value
            if value._users is None:
                value._users = node
            else:
                value._start_use(node)
        self._put(node)
        return node

    def _create_alike(
        self,
        op: str,
        target: Any,
        args: tuple[Argument, ...],
        kwargs: immutable_dict,
        inputs: list[Node],
        origin: StoredOrigin,
        name: str | None = None,
    ) -> Node:
        """Make what ``create_node(op, target, args, kwargs, name)`` does, for whoever has looked at the arguments.

        Args:
            op: ``"call_function"`` or ``"call_method"``.
            target: A callable for the first, else text.
            args: Nodes of this graph, plain values, and tuples, slices and immutable lists of these.
            kwargs: The same.
            inputs: The nodes among both, in order.
            origin: Where in a program the node comes from.
            name: A wish for the name; by default it is made from the target.

        Returns:
            The new node.

        Raises:
            ForeignNodeError: An argument is a node of another graph, or erased.
        """
        is_ours = getattr(self.create_node, "__func__", None) is _create_node
        for one in inputs:
            is_ours = is_ours and one.graph is self and one._position is not ERASED
        if not is_ours and name is not None:  # Those of torch.fx's signature know no origin.
            node = self.create_node(op, target, args, kwargs, name)
            node._origin = origin
            return node
        if not is_ours:
            return self.create_node(op, target, args, kwargs, None, None, origin)
        # Written out, as in `_create_at`: most nodes of a trace are made in one of both.
        node = Node.__new__(Node)
        node.graph = self
        node._name = self._namespace.create_name(self._candidate(op, target) if name is None else name)
        node._op = op
        node._target = target
        node._type = node._meta = node._users = None
        node._region = self._region
        node._origin = origin
        node._position = 0
        node._args, node._kwargs = args, kwargs
        if len(inputs) == 1:
            node._inputs = one = inputs[0]
            if one._users is None:
                one._users = node
            else:
                one._start_use(node)
        else:
            used = (*dict.fromkeys(inputs),)
            # One tuple serves as both where there is nothing else.
            node._inputs = used[0] if len(used) == 1 else args if used == args else used
            for one in used:
                if one._users is None:
                    one._users = node
                else:
                    one._start_use(node)
        self._put(node)
        return node

    def _put(self, node: Node) -> None:
        """Link a new node at the insertion point."""
        anchor, before = self._insertion
        after = anchor._prev if before else anchor
        ring = self._ring
        if ring.numbered:
            ring.insert_after(node, after)
        else:  # As there, without the call.
            following = after._next
            node._prev, node._next = after, following
            after._next = following._prev = node
            ring.length += 1
        self.version += 1
        if self._index is not None:
            self._index.add(node, node._op, node._target)
        if self.observers:
            for observer in self.observers:
                observer("created", node)

    def _candidate(self, op: str, target: Any) -> str:
        """Return the text from which a node with this target is named."""
        if target.__class__ is str:
            return target_name(target)
        try:
            candidate = self._candidates.get(target)
        except TypeError:  # An unhashable callable.
            self._check_target(op, target)
            return target_name(target)
        if candidate is None:
            self._check_target(op, target)
            candidate = self._candidates[target] = target_name(target)
        return candidate

    def _check_target(self, op: str, target: Any) -> None:
        if op not in _OPCODES:
            raise GraphError(f"Cannot create a node with opcode {op!r}. Use one of {', '.join(OPCODES)}.")
        if op == "call_function":
            if not callable(target):
                raise GraphError(
                    f"Cannot create a call_function node for {target!r}: its target must be callable. Use "
                    "call_method or call_module for a name."
                )
        elif not isinstance(target, str):
            raise GraphError(f"Cannot create a {op} node for {target!r}: its target must be a string.")

    def inserting_before(self, n: Node | None = None) -> _InsertionPoint:
        """Put new nodes before the node `n` (None: at the start of the graph).

        Takes effect at once; as a context it lasts until the context ends.

        Raises:
            ForeignNodeError: The node does not stand in this graph.
        """
        if n is None:
            return self.inserting_after(self._sentinel)
        self._check_own(n)
        return _InsertionPoint(self, n, before=True)

    def inserting_after(self, n: Node | None = None) -> _InsertionPoint:
        """Put each new node directly behind the node `n` (None: at the end of the graph).

        Takes effect at once; as a context it lasts until the context ends. Several nodes made at one such
        point end up in reverse order, as in torch.fx; use `inserting_before` the following node to keep their
        order.

        Raises:
            ForeignNodeError: The node does not stand in this graph.
        """
        if n is None:
            return self.inserting_before(self._sentinel)
        self._check_own(n)
        return _InsertionPoint(self, n, before=False)

    def _check_own(self, node: Node) -> None:
        if node is not self._sentinel and (node.graph is not self or node._position is ERASED):
            raise ForeignNodeError(
                f"Cannot insert next to node {node.name!r}: it does not stand in this graph."
            )

    def placeholder(self, name: str, type_expr: Any = None, default_value: Any = Signature.empty) -> Node:
        """Make an input. `default_value` is the parameter's default; leave it out where there is none."""
        args = () if default_value is Signature.empty else (default_value,)
        return self.create_node("placeholder", name, args, type_expr=type_expr)

    def get_attr(self, qualified_name: str, type_expr: Any = None) -> Node:
        """Make a node that reads the dotted attribute path `qualified_name` of the root."""
        return self.create_node("get_attr", qualified_name, type_expr=type_expr)

    def call_function(
        self,
        the_function: Callable[..., Any],
        args: tuple[Argument, ...] | None = None,
        kwargs: Mapping[str, Argument] | None = None,
        type_expr: Any = None,
        name: str | None = None,
    ) -> Node:
        """Make a call of a callable."""
        return self.create_node("call_function", the_function, args, kwargs, name, type_expr)

    def call_method(
        self,
        method_name: str,
        args: tuple[Argument, ...] | None = None,
        kwargs: Mapping[str, Argument] | None = None,
        type_expr: Any = None,
        name: str | None = None,
    ) -> Node:
        """Make a call of the method `method_name` of ``args[0]``."""
        return self.create_node("call_method", method_name, args, kwargs, name, type_expr)

    def call_module(
        self,
        module_name: str,
        args: tuple[Argument, ...] | None = None,
        kwargs: Mapping[str, Argument] | None = None,
        type_expr: Any = None,
        name: str | None = None,
    ) -> Node:
        """Make a call of the submodule at the dotted path `module_name`."""
        return self.create_node("call_module", module_name, args, kwargs, name, type_expr)

    def output(self, result: Argument, type_expr: Any = None) -> Node:
        """Make the output; `result` may be any nested structure of nodes and values."""
        return self.create_node("output", "output", (result,), type_expr=type_expr)

    # -- exchanging calls, taking nodes away and copying

    def replace_call(
        self,
        node: Node,
        target: Any,
        args: tuple[Argument, ...] | None = None,
        kwargs: Mapping[str, Argument] | None = None,
        *,
        op: str = "call_function",
    ) -> Node:
        """Let a node make another call, in place.

        The node stays the object that it is: its users, position, region and origins stay. It gets a name after the new
        target, and loses its annotation and those notes that are facts about the value it gave before (shapes, example
        values). It takes a fraction of the time of inserting a node, moving all uses and erasing the old one.

        Args:
            node: A call of this graph.
            target: What is called now.
            args: Positional arguments; by default those that it has.
            kwargs: Keyword arguments; by default those that it has.
            op: ``"call_function"``, ``"call_method"`` or ``"call_module"``.

        Returns:
            The node.

        Raises:
            GraphError: The node is no call, or target and opcode do not fit. Nothing was changed.
            ForeignNodeError: The node or an argument does not stand in this graph. Nothing was changed.

        Example:
            ::

                for node in graph.find_nodes(op="call_function", target=torch.relu):
                    graph.replace_call(node, torch.clamp, (node.args[0], 0))
        """
        if node.graph is not self or node._position is ERASED:
            raise ForeignNodeError(f"Cannot replace the call {node.name!r}: it does not stand in this graph.")
        if op not in _CALLS or node._op not in _CALLS:
            raise GraphError(
                f"Cannot replace node {node.name!r} ({node._op}) by a {op}: both must be calls, which are "
                f"{', '.join(sorted(_CALLS))}."
            )
        if target.__class__ is not str and isinstance(target, str):
            target = exact_text(target)
        if (op == "call_function") is (target.__class__ is str):
            self._check_target(op, target)
        candidate = self._candidate(op, target)
        if kwargs is not None or not (args is None or _are_those(args, node._args)):
            node._assign(node._args if args is None else args, node._kwargs if kwargs is None else kwargs)
        if self._index is not None:
            self._index.remove(node)
        node._op, node._target, node._type = op, target, None
        self._namespace.release(node._name)
        node._name = self._namespace.create_name(candidate)
        if self._index is not None:
            self._index.add(node, node._op, node._target)
        if node._meta:
            for key in RESULTS_OF_ANALYSES.intersection(node._meta):
                del node._meta[key]
        self.node_changed(node)
        return node

    def erase_node(self, to_erase: Node) -> None:
        """Remove a node that nobody uses.

        Raises:
            NodeInUseError: Other nodes use it; nothing was changed.
            ForeignNodeError: It belongs to another graph.
        """
        if to_erase.graph is not self:
            raise ForeignNodeError(f"Cannot erase node {to_erase.name!r}: it belongs to another graph.")
        if to_erase is self._sentinel:
            raise GraphError("Cannot erase what stands behind the last node: it marks the end of the graph.")
        if to_erase._position is ERASED:
            warnings.warn(f"Node {to_erase.name!r} was erased before; nothing is done.", stacklevel=2)
            return
        if to_erase._users:
            names = " and ".join(repr(user.name) for user in to_erase.users)
            raise NodeInUseError(
                f"Cannot erase node {to_erase.name!r}: it is still used by {names}. Replace those uses first "
                f"(node.replace_all_uses_with(...))."
            )
        self._take_out(to_erase)

    def _take_out(self, node: Node) -> None:
        """Do what `erase_node` does with a node of this graph that nobody uses, for whoever knows that."""
        if self._insertion[0] is node:
            self._insertion = _beside(self._insertion, node)
        if self._waiting:
            for point in self._waiting:
                point.node_erased(node)
        if self._index is not None:
            self._index.remove(node)
        self._ring.remove(node)
        inputs: Any = node._inputs
        # Written out, as in `_create_alike`: what is rewritten is taken out.
        if inputs.__class__ is Node:
            if inputs._users is node:
                inputs._users = None
            else:
                inputs._end_use(node)
        else:
            for used in inputs:
                used._end_use(node)
        node._args, node._kwargs, node._inputs = (), EMPTY_DICT, ()
        node._position = ERASED
        self.version += 1
        if self.observers:
            for observer in self.observers:
                observer("erased", node)

    def node_copy(self, node: Node, arg_transform: Callable[[Node], Argument] | None = None) -> Node:
        """Copy a node, usually of another graph, to the insertion point.

        Args:
            node: The node to be copied.
            arg_transform: Maps each node in its arguments to an argument of this graph; by default they stay
                as they are.

        Returns:
            The copy, with its own notes and the same origins, region and annotation.
        """
        transform = arg_transform if arg_transform is not None else _identity
        args = cast("tuple[Argument, ...]", map_arg(node._args, transform))
        kwargs = cast("dict[str, Argument]", map_arg(node._kwargs, transform)) if node._kwargs else None
        copy = self.create_node(node._op, node._target, args, kwargs, node._name, node._type)
        copy._region = node._region
        copy.origins = node.origins
        if node._meta is not None:
            copy._meta = copy_meta(node.meta)
        return copy

    def graph_copy(
        self,
        g: Graph,
        val_map: dict[Node, Argument],
        return_output_node: bool = False,  # noqa: FBT001, FBT002
    ) -> Argument | tuple[Argument, Node] | None:
        """Copy every node of another graph to the insertion point, except its output.

        A graph that has no nodes yet, into which a whole program is copied, relies on what that program relies on (its
        state guards, and how its modules are switched).

        Args:
            g: The graph to be copied.
            val_map: Filled with old node -> new argument; nodes already in it are not copied.
            return_output_node: Whether the output node of `g` is returned too.

        Returns:
            What the output of `g` returns, as an argument of this graph; None when `g` has no output.
        """

        def resolve(used: Node) -> Argument:
            if used not in val_map:
                raise GraphError(
                    f"Cannot copy node {node.name!r}: it uses {used.name!r}, which comes later. graph.lint() "
                    "tells what is wrong with the order of the graph."
                )
            return val_map[used]

        if not val_map and next(iter(self.nodes), None) is None:
            self.rely_on(g)
        copied = {str(node.target) for node in g.nodes if node.op == "placeholder" and node not in val_map}
        if g.keyword_only & copied:
            self.keyword_only |= g.keyword_only & copied
        for node in list(g.nodes):
            if node in val_map:
                continue
            if node.op == "output":
                result = map_arg(node.args[0], resolve)
                return (result, node) if return_output_node else result
            val_map[node] = self.node_copy(node, resolve)
        return None

    def __deepcopy__(self, memo: dict[int, Any] | None = None) -> Graph:
        """Return an independent graph with the same nodes, names, notes, origins and regions."""
        other = Graph(tracer_cls=self._tracer_cls, tracer_extras=self._tracer_extras)
        if memo is not None:
            memo[id(self)] = other
        other.generate_code_as(self)
        other.lifted = dict(self.lifted)
        other._keyword_only = self._keyword_only
        other.rely_on(self)
        other.guard_set = self.guard_set
        with paused_collection():
            copies = clone_nodes(self._ring, other, other._ring)
        if memo is not None:
            memo.update({id(node): copy for node, copy in copies.items()})
        other._namespace = self._namespace.copy()
        return other

    def rely_on(self, other: Graph) -> None:
        """Let what holds of the modules and weights around another graph hold of those around this one."""
        self.captured_training, self.state_guards = other.captured_training, other.state_guards
        self.training_overrides = other.training_overrides

    # -- upkeep

    def lint(self) -> None:
        """Check the graph's invariants.

        Raises:
            VerificationError: One or more do not hold; the message and its `findings` list every violation.
        """
        check_structure(self, self.owning_module)

    def eliminate_dead_code(self, is_impure_node: Callable[[Node], bool] | None = None) -> bool:
        """Remove nodes whose value nobody uses and that do nothing else, in this graph and in those it takes as values.

        Graphs are values where a ``get_attr`` node reads a graph module, as the branches of a condition are. Inputs and
        the output stay.

        Args:
            is_impure_node: Says for a node whether it must be kept; by default the effect registry is asked.

        Returns:
            Whether anything was removed.
        """
        root = self.owning_module
        changed = False
        for node in self.nodes.reversed():
            if node._users or node.op in {"placeholder", "output"}:
                continue
            keep = is_impure_node(node) if is_impure_node else effects.effect_of(node, root).must_be_kept
            if not keep:
                self.erase_node(node)
                changed = True
        for path in {node.target for node in self.find_nodes(op="get_attr")}:
            holder: Any = root
            for part in path.split("."):
                holder = getattr(holder, part, None)
            nested = getattr(holder, "graph", None)
            if isinstance(nested, Graph):
                changed = nested.eliminate_dead_code(is_impure_node) or changed
        return changed

    def print_tabular(self) -> None:
        """Print a table of opcodes, names, targets and arguments."""
        print_table(self.nodes)

    def __str__(self) -> str:
        lines = [str(node.format_node()) for node in self.nodes]
        return "\n    ".join(["graph():", *lines])

    def _repr_svg_(self) -> str | bytes | None:
        """Return the picture that a plugin makes of this for notebooks; None where no plugin does."""
        return notebook_bundle(self).get("image/svg+xml")

    def _repr_html_(self) -> str | bytes | None:
        """Return the page that a plugin makes of this for notebooks; None where no plugin does."""
        return notebook_bundle(self).get("text/html")

    def __repr__(self) -> str:
        return f"<Graph with {len(self.nodes)} nodes, version {self.version}>"


_create_node = Graph.create_node
"""As it is here; whoever puts something else in its place hears of every node."""


def _identity(node: Node) -> Argument:
    return node


def _are_those(given: tuple[Argument, ...], held: tuple[Argument, ...]) -> bool:
    """Return whether arguments are the very objects that a node has already."""
    return given.__class__ is tuple and len(given) == len(held) and all(map(is_, given, held))
