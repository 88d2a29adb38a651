"""Running what was traced of a plain program, in less time than the program takes: its layers are not called but run.

Calling a module is a way through torch that looks for hooks; a plain program has none (see
`fxplug.capture.plain_functions`). So the forwards of its layers are run one after the other, and what the program does
in between.
"""

# Each node of a network is passed here: its slots are read, not the properties in front of them.
# pyright: reportPrivateUsage=false

from __future__ import annotations

import operator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.nn import functional

from fxplug.capture.arguments import PLAIN_TYPES
from fxplug.capture.plain_holdings import is_layer_of_torch
from fxplug.capture.plain_programs import MissedProgramError
from fxplug.execute.paths import fetch_path, module_at, weight_at
from fxplug.ir import Node, map_arg
from fxplug.semantics.checks import CHECKS
from fxplug.semantics.internals import assert_function, storage_of, storages_below
from fxplug.semantics.libraries import what_does
from fxplug.semantics.modules import returns_new_tensor

if TYPE_CHECKING:
    from collections.abc import Collection, Generator, Iterable, Mapping, Sequence

    from fxplug.capture.layer_records import LayerCall
    from fxplug.ir import Graph

__all__ = ["PASSING", "BegunRun", "Checks", "WrongTellingError", "compute", "run_plainly"]


_GIVING_NOTHING = frozenset({*CHECKS, assert_function, operator.delitem, operator.setitem})
"""Functions whose results nobody uses."""
_NUMBERS = frozenset({bool, complex, float, int})


class WrongTellingError(MissedProgramError):
    """A value is another one than was told without a run."""


class Checks:
    """Looks at what a run does, where a trace has taken it for something.

    What is written to must be no weight, since the program could not be run once more, and answers that were told
    without a run must be those of the run.

    Args:
        root: Has the weights.
        args: The inputs.
        writing: Those nodes that write to their first argument.
        told: Node -> what was told of its value.
    """

    def __init__(
        self,
        root: nn.Module,
        args: Iterable[torch.Tensor],
        writing: Collection[Node],
        told: Mapping[Node, Any],
    ) -> None:
        self.writing = writing
        self.refuses_none = False
        """Whether the program may have compared a traced value with None, which that is never equal to."""
        self.tensors: set[Node] = set()
        """Those of which it was told that they are tensors."""
        self.ranks: dict[Node, int] = {}
        """Those of which it was told how many dimensions they have."""
        self.acted: Node | None = None
        """The first node that has written to an input: behind it the program cannot be run instead."""
        self.told = told
        """Those of which the value was told without a run, and the value."""
        self.root = root
        """Has the weights."""
        self._args = args
        self._given: frozenset[Any] = frozenset()
        self._kept: frozenset[Any] | None = None

    @property
    def are_needed(self) -> bool:
        """Whether there is anything to look at."""
        return bool(self.writing or self.told or self.tensors or self.ranks or self.refuses_none)

    def looked_at(self) -> Collection[Node]:
        """Return the nodes of which there is more to look at than whether their value is None."""
        return {*self.writing, *self.told, *self.tensors, *self.ranks}

    def compute(self, node: Node, values: Mapping[Node, Any]) -> Any:
        """Return the value of a node that is no input, from those that it uses.

        Raises:
            MissedProgramError: It writes to a weight, or is None where the trace took it for something else.
            WrongTellingError: It has another value than it was told to have.
        """
        if self.writing and node in self.writing:
            self._check_write(node, values[node.all_input_nodes[0]])
        value = compute(node, values, self.root)
        self.check_value(node, value)
        return value

    def check_value(self, node: Node, value: Any) -> None:
        """Look at a value that was computed.

        Raises:
            MissedProgramError: It is None where the trace took it for something else.
            WrongTellingError: It is another value than it was told to be.
        """
        if value is None and self.refuses_none and node._target not in _GIVING_NOTHING:
            raise MissedProgramError
        is_tensor = type(value) is torch.Tensor
        if (node in self.told and value != self.told[node]) or (node in self.tensors and not is_tensor):
            raise WrongTellingError
        if node in self.ranks and not (is_tensor and value.dim() == self.ranks[node]):
            raise WrongTellingError

    def check_layer(self, first: Node, last: Node, value: Any) -> None:
        """Look at what a layer is about to be called with, which records the nodes from one to another.

        Raises:
            MissedProgramError: It writes to a weight.
        """
        if not self.writing:
            return
        while first not in self.writing:
            if first is last:
                return
            first = first._next
        self._check_write(first, value)

    def _check_write(self, node: Node, value: Any) -> None:
        if type(value) in _NUMBERS:  # ``count *= 2`` makes another one.
            return
        # To look at the memory of each weight takes longer than all that most programs write.
        if type(value) is torch.Tensor and self._was_made_before(node):
            return
        if self._kept is None:
            self._given = frozenset(map(storage_of, self._args))
            self._kept = storages_below(self.root)
        if type(value) is not torch.Tensor or (storage := storage_of(value)) in self._kept:
            raise MissedProgramError
        if self.acted is None and storage in self._given:
            self.acted = node

    def _was_made_before(self, node: Node) -> bool:
        """Return whether what a node writes to has memory of its own: a layer or an operator has made it."""
        while node in self.writing:
            made: Any = node._args[0]
            while ((layer := self._layer_of(made)) is not None and type(layer) in PASSING) or _drops(made):
                made = made._args[0]
            if made not in self.writing:
                is_function = made._op == "call_function" and made._target in _MAKING
                return is_function or (layer is not None and returns_new_tensor(layer))
            node = made
        return False

    def _layer_of(self, node: Node) -> nn.Module | None:
        """Return the layer of torch that a node calls with one value, if it does."""
        is_call = node._op == "call_module" and len(node._args) == 1 and not node._kwargs
        layer = module_at(self.root, str(node._target)) if is_call else None
        return layer if layer is not None and is_layer_of_torch(type(layer)) else None


def _drops(node: Node) -> bool:
    """Return whether a node calls a function that returns a value that it is given, or one with new memory."""
    is_call = node._op == "call_function" and bool(node._args) and isinstance(node._args[0], Node)
    return is_call and what_does(node._target) == "drops in training"


PASSING = frozenset({nn.Identity, nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d})
"""Layers that may return what they are given."""
_MAKING = frozenset(
    {
        *(operator.add, operator.matmul, operator.mul, operator.sub, operator.truediv, torch.add, torch.mul),
        *(functional.batch_norm, functional.group_norm, functional.layer_norm, functional.linear),
        *(torch.conv1d, torch.conv2d, torch.conv3d, torch.matmul, torch.sub),
    }
)
"""Functions that return a tensor with memory of its own."""


class BegunRun:
    """A run of a program that is being traced, as far as it was recorded.

    What it may still use is not known, so no value ends. There are bounds to that.

    Args:
        graph: What was recorded; the trace adds nodes.
        args: One value for each placeholder.
        calls: The calls of layers, in order; the trace adds others.
        checks: What is looked at.
    """

    most = 256 * 2**20
    """How many bytes the values may take."""

    def __init__(
        self,
        graph: Graph,
        args: Iterable[Any],
        calls: Sequence[LayerCall],
        checks: Checks,
    ) -> None:
        self.values: dict[Node, Any] = {}
        """The value of each node that has run, but for the inside of layers."""
        self.inputs = iter(args)
        """Those that no placeholder has taken."""
        self.last: Node = graph._sentinel
        """The last node that has run, or what stands in front of the first one."""
        self.count = 0
        """How many of the calls have run."""
        self._checks = checks
        self._calls = calls
        self._graph = graph
        self._bytes = 0

    def value_of(self, node: Node) -> Any:
        """Return the value of a node, behind which there may be others; all up to it run.

        Raises:
            Exception: What the program raises.
            MissedProgramError: The values take more memory than they may, something is written to what is kept, or
                the program is in a context, which what runs may not be in.
        """
        if self._graph.current_region and node not in self.values:
            raise MissedProgramError
        values, calls, checks = self.values, self._calls, self._checks
        writing, told, tensors, ranks = checks.writing, checks.told, checks.tensors, checks.ranks
        at = self.last._next
        begin = calls[self.count][2] if self.count < len(calls) else None
        while node not in values:
            if at is begin:
                layer, given, first, at, result = calls[self.count]
                if checks.writing:
                    checks.check_layer(first, at, values[given])
                value = _run_forward(layer, values[given], first)
                checks.check_value(result, value)
                self.count += 1
                begin = calls[self.count][2] if self.count < len(calls) else None
            else:
                result = at
                if at._op == "placeholder":
                    value = next(self.inputs)
                elif at in writing or at in told or at in tensors or at in ranks:
                    value = checks.compute(at, values)
                else:
                    value = compute(at, values, checks.root)
                    if value is None:
                        checks.check_value(at, value)
            values[result] = value
            if type(value) is torch.Tensor and result._op != "placeholder":
                self._bytes += value.nbytes
                if self._bytes > self.most:
                    raise MissedProgramError
            self.last, at = at, at._next
        return values[node]


def run_plainly(
    root: nn.Module,
    nodes: Sequence[Node],
    args: Sequence[Any],
    calls: Sequence[LayerCall],
    begun: BegunRun | None = None,
    checks: Checks | None = None,
) -> None:
    """Run a program for the errors that it may raise; each value ends with its last use.

    Args:
        root: What the paths in the nodes refer to.
        nodes: The program, as it was traced.
        args: One value for each placeholder.
        calls: The calls of layers among the nodes, in order.
        begun: What of it has run.
        checks: What is looked at.

    Raises:
        MissedProgramError: The checks have found something.
        Exception: What the program raises. Nodes that no trace has recorded so raise errors, too.
    """
    inputs, waiting, values, node = iter(args), iter(calls), dict[Node, Any](), nodes[0]
    if begun is not None:
        inputs, waiting, values, node = (
            begun.inputs,
            iter(calls[begun.count :]),
            begun.values,
            begun.last._next,
        )
    call = next(waiting, _NO_CALL)
    looked = () if checks is None else checks.looked_at()
    while (op := node._op) != "output":
        if node is call[2]:
            _run_layer(call, values, checks)
            node, call = call[3]._next, next(waiting, _NO_CALL)
            continue
        if op == "placeholder":
            values[node] = next(inputs)
        else:
            if checks is not None and node in looked:
                value = checks.compute(node, values)
            else:
                value = compute(node, values, root)
            if value is None and checks is not None:
                checks.check_value(node, value)
            taken: Any = node._inputs
            if taken.__class__ is Node and taken._users is node:  # As most.
                del values[taken]
            else:
                _end_with(node, values)
            if node._users is not None:
                values[node] = value
            del value
        node = node._next


_NO_CALL: Any = (None,) * 5


def _run_layer(call: LayerCall, values: dict[Node, Any], checks: Checks | None) -> None:
    """Run the forward of a layer in place of the nodes that it records."""
    layer, given, first, last, result = call
    if checks is not None:
        checks.check_layer(first, last, values[given])
    value = _run_forward(layer, values[given], first)
    if checks is not None:
        checks.check_value(result, value)
    # A value that has one user, as most have, has this one.
    if given._users.__class__ is not dict or _end_within(given, first, last):
        del values[given]
    if result._users is not None:
        values[result] = value


def _run_forward(layer: nn.Module, value: Any, first: Node) -> Any:
    """Return what a layer makes of a value, in the contexts around the first of the nodes that it records."""
    if not first._region:
        return layer.forward(value)
    with _contexts_around(first):
        return layer.forward(value)


@contextmanager
def _contexts_around(node: Node) -> Generator[None]:
    """Enter the contexts around a node."""
    with ExitStack() as entered:
        for entry in node._region:
            entered.enter_context(entry.context(*entry.arguments))
        yield


def _end_with(node: Node, values: dict[Node, Any]) -> None:
    """Let go of the values of which a node is the last user."""
    taken: Any = node._inputs
    for used in (taken,) if taken.__class__ is Node else taken:
        users: Any = used._users
        if users is node or (users.__class__ is dict and next(reversed(users)) is node):
            del values[used]


def _end_within(used: Node, first: Node, last: Node) -> bool:
    """Return whether the last node that uses a value is among those from one to another."""
    users: Any = used._users
    user = next(reversed(users)) if users.__class__ is dict else users
    while user is not first:
        if first is last:
            return False
        first = first._next
    return True


def compute(node: Node, values: Mapping[Node, Any], root: nn.Module, *, is_inside: bool = False) -> Any:
    """Return the value of a node that is no input, from those that it uses.

    Args:
        node: The node.
        values: Has those that it uses.
        root: What paths refer to.
        is_inside: Whether the contexts around the node are entered.
    """
    if node._region and not is_inside:
        with _contexts_around(node):
            return compute(node, values, root, is_inside=True)
    op = node._op
    if op == "get_attr":
        path: Any = node._target
        weight = weight_at(root, path)
        return fetch_path(root, path) if weight is None else weight
    args: list[Any] = []
    one: Any
    for one in node._args:
        # Most arguments are values and numbers: only others may have values in them.
        kind = one.__class__
        if kind is Node:
            args.append(values[one])
        else:
            args.append(one if kind in PLAIN_TYPES else map_arg(one, values.__getitem__))
    target: Any = node._target
    if node._kwargs:
        return _compute_by_name(op, target, args, node._kwargs, values, root)
    if op == "call_function":
        return target(*args)
    if op == "call_method":
        return getattr(args[0], target)(*args[1:])
    return fetch_path(root, target)(*args)  # A layer that takes more than one value.


def _compute_by_name(
    op: str, target: Any, args: list[Any], kwargs: Any, values: Mapping[Node, Any], root: nn.Module
) -> Any:
    """Return what a call gives that has arguments by name, which may have values in them."""
    kwargs = {
        name: values[one]
        if one.__class__ is Node
        else one
        if one.__class__ in PLAIN_TYPES
        else map_arg(one, values.__getitem__)
        for name, one in kwargs.items()
    }
    if op == "call_function":
        return target(*args, **kwargs)
    if op == "call_method":
        return getattr(args[0], target)(*args[1:], **kwargs)
    return fetch_path(root, target)(*args, **kwargs)
