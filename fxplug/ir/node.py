"""Nodes: one call, input or output of a captured program, linked into its graph and to the nodes it uses."""

# Node, ring and graph are one data structure in three files, and share its inner parts.
# pyright: reportPrivateUsage=false
from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from typing import TYPE_CHECKING, Any, Literal, Protocol, cast

from fxplug.errors import ForeignNodeError, GraphError, InvalidArgumentError
from fxplug.ir.arguments import (
    CONTAINERS,
    EMPTY_DICT,
    Argument,
    immutable_dict,
    iterate_containers,
    iterate_leaves,
    map_aggregate,
)
from fxplug.ir.description import NodeDescription
from fxplug.ir.origins import Origin, origins_in
from fxplug.ir.regions import PLAIN, Region

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from fxplug.ir.origins import MadeBy, StoredOrigin

__all__ = ["OPCODES", "PATH_OPCODES", "EarlyNotes", "Node", "NodeOwner", "Opcode", "Target", "map_arg"]

Opcode = Literal["placeholder", "get_attr", "call_function", "call_method", "call_module", "output"]
"""What kind of step a node is."""

Target = Any
"""What a node refers to: a callable for ``call_function``, else text (parameter, method, dotted path)."""

OPCODES: tuple[Opcode, ...] = (
    "placeholder",
    "get_attr",
    "call_function",
    "call_method",
    "call_module",
    "output",
)

PATH_OPCODES: frozenset[str] = frozenset({"call_module", "get_attr"})
"""The opcodes whose target is a dotted path below the root."""

ERASED = float("inf")
"""The position of a node that was erased."""

_ATOMS = frozenset({int, float, bool, str, type(None), complex, bytes, type(Ellipsis)})


_NAMES = frozenset({str})


class EarlyNotes(dict[str, Any]):
    """Notes of a node whose `Node.meta` was not looked at yet; who makes some for `Node.annotate` gives them away."""

    __slots__ = ()


class NodeOwner(Protocol):
    """What a node needs of the graph it belongs to."""

    def place_node(self, node: Node, after: Node) -> None:
        """Put `node` directly behind `after`, moving it when it already stands somewhere."""
        ...

    def number_nodes(self) -> None:
        """Give every node a label that grows with its position."""
        ...

    def node_changing(self, node: Node, attribute: str, value: object) -> object:
        """Hear that an attribute of `node` is about to change; return the value to store."""
        ...

    def node_changed(self, node: Node) -> None:
        """Hear that an attribute of `node` has changed."""
        ...


class _NoSuchAttribute:
    """Says where notes about a node go, in place of an attribute that programs of torch.fx set on nodes."""

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, node: Node | None, owner: type | None = None) -> Any:
        raise self._refusal("read")

    def __set__(self, node: Node, value: object) -> None:
        raise self._refusal("set")

    def _refusal(self, what: str) -> AttributeError:
        return AttributeError(
            f"Cannot {what} the attribute {self._name!r} of a node: nodes have no attributes for notes. Use "
            f"node.meta[{self._name!r}]."
        )


class Node(NodeDescription):
    """One step of a graph.

    ``args`` and ``kwargs`` are immutable; assigning new ones keeps the use-def chains right: every node named
    in them lists this one among its `users`, and `all_input_nodes` names them in order of first appearance.
    Nodes compare by their position in the graph (``first < second``) and hash by identity.

    Nodes are made by `fxplug.Graph.create_node` and the methods named after the opcodes.
    """

    __slots__ = (
        "__weakref__",
        "_args",
        "_inputs",
        "_kwargs",
        "_meta",
        "_name",
        "_next",
        "_op",
        "_origin",
        "_position",
        "_prev",
        "_region",
        "_target",
        "_type",
        "_users",
        "graph",
    )

    def __init__(  # noqa: PLR0913, PLR0917 - torch.fx's public signature and the region
        self,
        graph: NodeOwner,
        name: str,
        op: str,
        target: Target,
        args: tuple[Argument, ...] = (),
        kwargs: Mapping[str, Argument] = EMPTY_DICT,
        return_type: Any = None,
        region: Region = PLAIN,
    ) -> None:
        self.graph = graph
        """The graph that this node belongs to."""
        self._name = name
        self._op = op
        self._target = target
        self._type = return_type
        self._region = region
        # Most nodes have one user, and a dict around it would be a third of the node's memory.
        self._users: Node | dict[Node, None] | None = None
        self._origin: StoredOrigin = None
        self._meta: dict[str, Any] | None = None
        self._prev: Node = self
        self._next: Node = self
        self._position: float = 0
        # A tuple around the only input would be a tenth of the node's memory.
        self._inputs: Node | tuple[Node, ...]
        if not kwargs and args.__class__ is tuple:
            if len(args) == 1 and (used := args[0]).__class__ is Node:
                # Most nodes of a network take the value of one other.
                if used.graph is not graph or used._position is ERASED:
                    raise _foreign(used, graph)
                self._args, self._kwargs, self._inputs = args, EMPTY_DICT, used
                if used._users is None:
                    used._users = self
                else:
                    used._start_use(self)
                return
            if not args and (kwargs is EMPTY_DICT or kwargs.__class__ is dict):
                self._args, self._kwargs, self._inputs = args, EMPTY_DICT, args
                return
        self._args, self._kwargs, inputs = _take_in(graph, args, kwargs)
        for used in inputs:
            used._start_use(self)
        self._inputs = inputs[0] if len(inputs) == 1 else inputs

    # What holds for every attribute; hearing of all that are set would double the time that making a node takes.
    dtype, shape, tag, tensor_meta = (_NoSuchAttribute() for _ in range(4))

    # -- what the node is

    @property
    def op(self) -> str:
        """The opcode."""
        return self._op

    @op.setter
    def op(self, op: str) -> None:
        if op not in OPCODES:
            raise GraphError(f"Cannot set the opcode of node {self._name!r} to {op!r}. Use one of {OPCODES}.")
        self._op = cast("str", self.graph.node_changing(self, "op", op))
        self.graph.node_changed(self)

    @property
    def target(self) -> Target:
        """The callable, method name, parameter name or dotted path that the node refers to."""
        return self._target

    @target.setter
    def target(self, target: Target) -> None:
        self._target = self.graph.node_changing(self, "target", target)
        self.graph.node_changed(self)

    @property
    def name(self) -> str:
        """A Python identifier, unique in the graph. Assigning a taken name stores the next free one like it."""
        return self._name

    @name.setter
    def name(self, name: str) -> None:
        if name != self._name:
            self._name = cast("str", self.graph.node_changing(self, "name", name))
            self.graph.node_changed(self)

    @property
    def type(self) -> Any:
        """The annotation of the value, None where none is known."""
        return self._type

    @type.setter
    def type(self, annotation: Any) -> None:
        self._type = self.graph.node_changing(self, "type", annotation)
        self.graph.node_changed(self)

    @property
    def region(self) -> Region:
        """The contexts that are entered around the node, outermost first."""
        return self._region

    @region.setter
    def region(self, region: Region) -> None:
        self._region = cast("Region", self.graph.node_changing(self, "region", tuple(region)))
        self.graph.node_changed(self)

    @property
    def origins(self) -> tuple[Origin, ...]:
        """Where the node came from; several after a rewrite that merged nodes."""
        return origins_in(self._origin)

    @origins.setter
    def origins(self, origins: tuple[Origin, ...]) -> None:
        # One is by far the most frequent number, and a tuple around it would be a tenth of the node's memory.
        self._origin = origins[0] if len(origins) == 1 else (tuple(origins) or None)

    @property
    def history(self) -> tuple[MadeBy, ...]:
        """What made or changed the node since it was captured, oldest first; empty for a node that is as captured.

        Of a node that several were merged into, the histories of all of them, each entry once.
        """
        return tuple(dict.fromkeys(entry for origin in self.origins for entry in origin.history))

    @property
    def meta(self) -> dict[str, Any]:
        """Free notes of passes and analyses. ``nn_module_stack`` is filled in from the origin on first access."""
        meta = self._meta
        if meta is None or type(meta) is EarlyNotes:
            origin = self._origin
            if not (origin is None or isinstance(origin, Origin)):
                origin = origins_in(origin)[0]
            scope = None if origin is None else origin.module
            stack: dict[str, Any] = {} if scope is None else {"nn_module_stack": scope.stack()}
            meta = self._meta = {**stack, **meta} if meta else stack
        return meta

    def has_note(self, name: str) -> bool:
        """Return whether `meta` has something true under a name, and leave filling it in to whoever reads it."""
        meta = self._meta
        return meta is not None and bool(meta.get(name))

    def annotate(self, notes: Mapping[str, Any]) -> None:
        """Add notes to `meta`, and leave filling it in to the first access: a trace does this for every node."""
        if self._meta is None:
            self._meta = notes if type(notes) is EarlyNotes else EarlyNotes(notes)
        else:
            self._meta.update(notes)

    @meta.setter
    def meta(self, meta: dict[str, Any]) -> None:
        self._meta = meta

    @property
    def stack_trace(self) -> str | None:
        """Where the program made this call, as Python prints a traceback; None when it is not known."""
        if self._meta is not None and "stack_trace" in self._meta:
            return cast("str | None", self._meta["stack_trace"])
        trace = self.origins[0].stack_trace() if self.origins else ""
        return trace or None

    @stack_trace.setter
    def stack_trace(self, trace: str | None) -> None:
        self.meta["stack_trace"] = trace

    # -- arguments and uses

    @property
    def users(self) -> dict[Node, None]:
        """The nodes that use this one's value, in the order in which they started to."""
        users = self._users
        if isinstance(users, dict):
            return users
        # Nothing is called from here on, so that no other thread adds a user that would be lost.
        self._users = made = {} if users is None else {users: None}
        return made

    def _user_tuple(self) -> tuple[Node, ...]:
        """Return the users, without a dict for the one that most nodes have."""
        users = self._users
        return tuple(users) if isinstance(users, dict) else () if users is None else (users,)

    @users.setter
    def users(self, users: dict[Node, None]) -> None:
        self._users = users if users.__class__ is dict else dict(users)

    def _start_use(self, user: Node) -> None:
        if self._users is None:
            self._users = user
        else:
            self.users[user] = None

    def _end_use(self, user: Node) -> None:
        users = self._users
        if users is user:
            self._users = None
        elif users.__class__ is dict:
            cast("dict[Node, None]", users).pop(user, None)

    def _is_used_by(self, user: Node) -> bool:
        users = self._users
        return user in users if isinstance(users, dict) else users is user

    @property
    def args(self) -> tuple[Argument, ...]:
        """Positional arguments."""
        return self._args

    @args.setter
    def args(self, args: tuple[Argument, ...]) -> None:
        self._assign(args, self._kwargs)

    @property
    def kwargs(self) -> dict[str, Argument]:
        """Keyword arguments."""
        return self._kwargs

    @kwargs.setter
    def kwargs(self, kwargs: Mapping[str, Argument]) -> None:
        self._assign(self._args, kwargs)

    @property
    def all_input_nodes(self) -> list[Node]:
        """The nodes used in args and kwargs, each once, in order of first appearance."""
        return list(self._input_tuple())

    def _input_tuple(self) -> tuple[Node, ...]:
        inputs = self._inputs
        return inputs if isinstance(inputs, tuple) else (inputs,)

    def _assign(self, args: tuple[Argument, ...], kwargs: Mapping[str, Argument]) -> None:
        if self._position is ERASED:
            raise ForeignNodeError(
                f"Cannot give arguments to node {self._name!r}: it was erased from its graph."
            )
        taken = _take_in(self.graph, args, kwargs)
        inputs, former = taken[2], self._input_tuple()
        if inputs != former:
            kept = inputs if len(inputs) < 8 else frozenset(inputs)
            for used in former:
                if used not in kept:
                    used._end_use(self)
            for used in inputs:
                used._start_use(self)
        self._args, self._kwargs = taken[0], taken[1]
        self._inputs = inputs[0] if len(inputs) == 1 else inputs
        self.graph.node_changed(self)

    def update_arg(self, idx: int, arg: Argument) -> None:
        """Replace the positional argument at `idx`.

        Raises:
            IndexError: There is no such argument.
        """
        args = list(self._args)
        args[idx] = arg
        self._assign(tuple(args), self._kwargs)

    def insert_arg(self, idx: int, arg: Argument) -> None:
        """Insert a positional argument before `idx`.

        Raises:
            IndexError: `idx` is negative or beyond the end.
        """
        if not 0 <= idx <= len(self._args):
            raise IndexError(
                f"Cannot insert an argument of node {self._name!r} at {idx}: it has {len(self._args)}."
            )
        self._assign((*self._args[:idx], arg, *self._args[idx:]), self._kwargs)

    def update_kwarg(self, key: str, arg: Argument) -> None:
        """Replace or add the keyword argument `key`."""
        self._assign(self._args, {**self._kwargs, key: arg})

    def replace_input_with(self, old_input: Node, new_input: Node) -> None:
        """Use `new_input` wherever `old_input` stands in the arguments."""
        args = self._args
        is_only = len(args) == 1 and args[0] is old_input  # As in most.
        if not self._kwargs and (is_only or _FLAT.issuperset(map(type, args))):
            args = (
                (new_input,)
                if is_only
                else tuple([new_input if value is old_input else value for value in args])
            )
            if not self._may_take(new_input):
                self._assign(args, EMPTY_DICT)  # It says what is wrong.
                return
            # What stays was looked at when the node got it.
            self._args = args
            if self._inputs is old_input:
                self._inputs = new_input
            else:
                inputs = tuple(dict.fromkeys([value for value in args if value.__class__ is Node]))
                self._inputs = inputs[0] if len(inputs) == 1 else inputs
            users = old_input._users
            if old_input is new_input:
                pass
            elif users is self:
                old_input._users = None
                new_input._start_use(self)
            elif isinstance(users, dict) and users.pop(self, self) is None:
                new_input._start_use(self)
            self.graph.node_changed(self)
            return

        def swap(leaf: Any) -> Any:
            return new_input if leaf is old_input else leaf

        args, kwargs = _map_both(self._args, self._kwargs, swap)
        self._assign(args, kwargs)

    def _may_take(self, used: Node) -> bool:
        return (
            used.__class__ is Node
            and used.graph is self.graph
            and used._position is not ERASED
            and self._position is not ERASED
        )

    def replace_all_uses_with(
        self,
        replace_with: Node,
        delete_user_cb: Callable[[Node], bool] | None = None,
        *,
        propagate_meta: bool = False,
    ) -> list[Node]:
        """Make the users of this node use another one instead.

        Args:
            replace_with: The node to be used. It may itself use this node.
            delete_user_cb: Asked for each user; a user for which it returns False stays as it is.
            propagate_meta: Copy this node's notes and origin to the replacement, which must have no notes.

        Returns:
            The users that were changed, in order.
        """
        if replace_with.graph is not self.graph or replace_with._position is ERASED:
            raise _foreign(replace_with, self.graph)
        if propagate_meta:
            if replace_with.meta:
                raise GraphError(
                    f"Cannot hand the meta of node {self._name!r} to {replace_with._name!r}, which has meta "
                    f"of its own: {sorted(replace_with.meta)}. Call without propagate_meta, or clear the "
                    "replacement's meta first."
                )
            replace_with.meta.update(self.meta)
        if not replace_with.origins:
            replace_with.origins = self.origins
        changed: list[Node] = []
        for user in list(self.users):
            if delete_user_cb is None or delete_user_cb(user):
                user.replace_input_with(self, replace_with)
                changed.append(user)
        return changed

    # -- position

    @property
    def next(self) -> Node:
        """The node behind this one; the sentinel behind the last."""
        return self._next

    @property
    def prev(self) -> Node:
        """The node before this one; the sentinel before the first."""
        return self._prev

    def prepend(self, x: Node) -> None:
        """Move the node `x` directly before this one."""
        if x is not self:
            self.graph.place_node(x, self._prev if self._prev is not x else x._prev)

    def append(self, x: Node) -> None:
        """Move the node `x` directly behind this one."""
        if x is not self:
            self.graph.place_node(x, self)

    def __lt__(self, other: Node) -> bool:
        if other.__class__ is not Node and not isinstance(cast("object", other), Node):
            return NotImplemented
        if self._position == other._position and self is not other:
            self.graph.number_nodes()  # Labels are given when they are first asked for; until then all are equal.
        return self._position < other._position

    def __gt__(self, other: Node) -> bool:
        return other.__lt__(self) if isinstance(cast("object", other), Node) else NotImplemented

    def __le__(self, other: Node) -> bool:
        return self is other or self.__lt__(other)

    def __ge__(self, other: Node) -> bool:
        return self is other or self.__gt__(other)

    def __deepcopy__(self, memo: dict[int, Any]) -> Node:
        """Return the node that stands for this one in the copy of its graph, which is copied with it."""
        deepcopy(self.graph, memo)
        copy = memo.get(id(self))
        if copy is None:
            raise ForeignNodeError(
                f"Cannot copy node {self._name!r}: it does not stand in its graph any more. Copy the graph instead."
            )
        return copy


def exact_text(value: Any) -> Any:
    """Return plain text for an instance of a subclass of `str`, whose own methods could show another text."""
    return str.__str__(value) if isinstance(value, str) and value.__class__ is not str else value


def _take_in(
    graph: NodeOwner, args: tuple[Argument, ...], kwargs: Mapping[str, Argument]
) -> tuple[tuple[Argument, ...], immutable_dict, tuple[Node, ...]]:
    """Check and freeze arguments; return them with the nodes they name, each once, in order."""
    if args.__class__ is tuple and (not kwargs or _has_plain_names(kwargs)):
        flat = _flat_inputs(graph, (*args, *kwargs.values()) if kwargs else args)
        if flat is not None:
            return args, immutable_dict(kwargs) if kwargs else EMPTY_DICT, flat
    _check_forms(args, kwargs)
    inputs: dict[Node, None] = {}

    def visit(leaf: Any) -> Any:
        if isinstance(leaf, Node):
            if leaf.graph is not graph or leaf._position is ERASED:
                raise _foreign(leaf, graph)
            inputs[leaf] = None
        elif isinstance(leaf, (set, frozenset)):
            _refuse_nodes(cast("set[Any]", leaf), "a set")
        return leaf

    frozen_args, frozen_kwargs = _map_both(tuple(args), kwargs, visit)
    return frozen_args, frozen_kwargs, tuple(inputs)


def _check_forms(args: object, kwargs: object) -> None:
    """Refuse arguments that are no sequence and no mapping, and nodes where no use of them would be counted."""
    if not isinstance(args, (tuple, list)):
        raise InvalidArgumentError(
            f"Cannot use a {type(args).__name__} as positional arguments of a node: pass a tuple."
        )
    if not isinstance(kwargs, Mapping):
        raise InvalidArgumentError(
            f"Cannot use a {type(kwargs).__name__} as keyword arguments of a node: pass a dict."
        )
    for key in cast("Mapping[object, object]", kwargs):
        if not isinstance(key, str):
            raise InvalidArgumentError(
                f"Cannot use {key!r} as the name of a keyword argument: it must be a string."
            )
    for container in iterate_containers((args, kwargs)):
        if isinstance(container, dict):
            _refuse_nodes(cast("dict[Any, Any]", container), "a dict key")


def _refuse_nodes(values: Iterable[Any], where: str) -> None:
    for leaf in iterate_leaves(tuple(values)):
        if isinstance(leaf, Node):
            raise InvalidArgumentError(
                f"Cannot use node {leaf._name!r} in {where}: its value could not be put in its place. Use it in a "
                "tuple, a list or as the value of a dict."
            )


def _flat_inputs(graph: NodeOwner, args: tuple[Argument, ...]) -> tuple[Node, ...] | None:
    """Return the nodes among arguments that are all nodes and plain values, or tuples of such values; None for others.

    Most nodes of a model are like this, and of these most have nothing but nodes: then one tuple serves as both.
    """
    inputs: dict[Node, None] = {}
    for value in args:
        if value.__class__ is Node:
            if value.graph is not graph or value._position is ERASED:
                raise _foreign(value, graph)
            inputs[value] = None
        elif value.__class__ is tuple:
            if not _ATOMS.issuperset(map(type, value)):
                return None
        elif value.__class__ not in _ATOMS:
            return None
    return args if len(inputs) == len(args) else tuple(inputs)


def _has_plain_names(kwargs: object) -> bool:
    return kwargs.__class__ is dict and _NAMES.issuperset(map(type, cast("dict[object, object]", kwargs)))


def _map_both(
    args: tuple[Argument, ...], kwargs: Mapping[str, Argument], function: Callable[[Any], Any]
) -> tuple[tuple[Argument, ...], immutable_dict]:
    new_args = tuple(
        [map_aggregate(value, function) if _may_contain(value) else function(value) for value in args]
    )
    if not kwargs:
        return new_args, EMPTY_DICT
    return new_args, immutable_dict(
        {
            exact_text(key): map_aggregate(value, function) if _may_contain(value) else function(value)
            for key, value in kwargs.items()
        }
    )


def _may_contain(value: object) -> bool:
    return value.__class__ in CONTAINERS or isinstance(value, (tuple, list, dict))


def _foreign(node: Node, graph: NodeOwner) -> ForeignNodeError:
    if node.graph is graph:
        return ForeignNodeError(
            f"Cannot use node {node._name!r} as an argument: it was erased from its graph. Use a node that "
            "still stands in the graph."
        )
    return ForeignNodeError(
        f"Cannot use node {node._name!r} as an argument: it belongs to another graph. Copy it first, for "
        "example with graph.node_copy(...) or graph.graph_copy(...)."
    )


def map_arg(argument: Argument, function: Callable[[Node], Argument]) -> Argument:
    """Apply `function` to every node in a nested argument and keep everything else.

    Args:
        argument: An argument of a node.
        function: Called once for each node in order of appearance.

    Returns:
        The structure with every node replaced; lists and dicts come back immutable.

    Raises:
        InvalidArgumentError: `function` is not callable.
    """
    if not callable(function):
        raise InvalidArgumentError(f"Cannot map over an argument with {function!r}: pass a callable.")
    if argument.__class__ is tuple and _FLAT.issuperset(map(type, cast("tuple[Any, ...]", argument))):
        # The arguments of most nodes are like this.
        return tuple(
            [
                function(value) if value.__class__ is Node else value
                for value in cast("tuple[Any, ...]", argument)
            ]
        )

    def visit(leaf: Any) -> Any:
        return function(leaf) if isinstance(leaf, Node) else leaf

    return map_aggregate(argument, visit)


_FLAT = _ATOMS | {Node}
"""Exact types of arguments in which there is no other one."""
