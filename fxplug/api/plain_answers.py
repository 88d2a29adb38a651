"""Answering what a plain program asks about its values: it is run on its examples as far as it was traced.

A program that asks whether an input is short enough, or lies in memory as it should, is traced as others are (see
`fxplug.api.plain_capture`). Where it asks, the answer is known without a run, or most probably the same as for another
module (see `fxplug.api.plain_guesses`); or what was recorded runs up to there. It is guarded, as it is where a program
is listened to.
"""

# Each node of a network may be looked at here: its slots are read, not the properties in front of them.
# pyright: reportPrivateUsage=false

from __future__ import annotations

import math
import operator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, cast

import torch

from fxplug.analyze.isolation import SavedTensors
from fxplug.api.plain_attributes import Attributes
from fxplug.api.plain_guesses import Guess, Guesses
from fxplug.api.plain_judging import writes_in_place
from fxplug.api.plain_ranks import Ranks
from fxplug.api.plain_run import BegunRun, Checks, compute
from fxplug.api.plain_shapes import Shapes, shapes_of
from fxplug.capture.calls import unheard
from fxplug.capture.examples.asking import INSIDE
from fxplug.capture.examples.guarding import expression, guard_at, is_metadata
from fxplug.capture.plain_programs import MissedProgramError
from fxplug.capture.unpacking import parts_of_layer
from fxplug.ir import Node
from fxplug.ir.guards import Guard
from fxplug.ir.node import ERASED
from fxplug.semantics.checks import check_equal, check_length, check_true, same_value, the_same
from fxplug.semantics.random_state import kept_random_state
from fxplug.semantics.shapes.abstract import AbstractTensor

if TYPE_CHECKING:
    from collections.abc import Generator, Mapping, Sequence

    from torch import nn

    from fxplug.capture import Tracer
    from fxplug.ir import Graph

__all__ = ["PlainAnswers"]


class PlainAnswers:
    """Answers what a plain program asks.

    Args:
        program: What is traced.
        args: Example inputs, one for each that it takes.
        tells: Whether attributes of values are told where that needs no run.
    """

    def __init__(self, program: nn.Module, args: Sequence[torch.Tensor], *, tells: bool = True) -> None:
        self.at_entry: dict[Node, Guard] = {}
        """What has to be true, and can be answered from the inputs."""
        self.rank_asked: Guard | None = None
        """Where it was asked how many dimensions there are, which follows from how many inputs have."""
        self._predicates: list[Node] = []
        """What was asked, and is not to be computed again."""
        self.run: BegunRun | None = None
        """What has run, if anything was asked."""
        self.writing: set[Node] = set()
        """Those of the nodes in it that write to their first argument."""
        self.told: dict[Node, Any] = {}
        """Those of which the value was told without a run, and the value."""
        self.checks = Checks(program, args, self.writing, self.told)
        self.has_checks = False
        """Whether any answer is checked in the graph."""
        self._program = program
        self._args = args
        self._tells = tells
        self._left = ExitStack()
        self._known: set[Any] = set()
        self._last: Node | None = None
        """The last node of which it is known whether it writes."""
        self._ranks: Ranks | None = None
        self._numbers: dict[Node, Any] = {}
        self._reads: dict[Node, tuple[Node, ...] | None] = {}
        self._telling: dict[str, Attributes] = {}
        self.asked: set[Node] = set()
        """What was asked, and the numbers in it, but for sizes."""
        self._guesses = Guesses()
        self.constant: set[Node] = set()
        """Reads of attributes that are constants of what is captured, and are guarded."""
        self._counts: dict[Node, int] = {}
        """How many parts those have that the program goes through."""
        self._given: dict[Node, torch.Tensor] = {}
        self._places: dict[Any, Guard] = {}
        # Later the program may be in a context of its own.
        self._shapes: Any = None if torch.is_autocast_enabled("cpu") else _UNASKED

    @contextmanager
    def heard_by(self, tracer: Tracer) -> Generator[None]:
        """Answer a tracer; afterwards inputs, random states and what has run are as before.

        Args:
            tracer: Is about to trace the program.
        """
        tracer._answer, tracer._tell = partial(self._answer, tracer), partial(self._tell, tracer)
        try:
            with self._left:
                yield
        finally:
            tracer._answer = tracer._tell = self.run = None

    def settle(self, graph: Graph) -> None:
        """Take away from a graph what can be answered from the inputs."""
        for predicate in self._predicates:
            _erase_numbers(graph, predicate)

    def _answer(self, tracer: Tracer, node: Node) -> bool | None:
        """Return whether a number or a tensor of one element is true, and guard that; None for any other value."""
        reads = self._reads_behind(node)
        if reads is None:
            return self._answer_by_run(tracer, node)
        self.note_writes(tracer)
        sources = [cast("Node", read._args[0]) for read in reads]
        is_at_entry = all(source._op == "placeholder" for source in sources)
        value = self._known_value(tracer, node)
        if value is None and type(shaped := self._shaped(tracer, node)) in _NUMBERS:
            value = shaped
        guess = None if value is not None or is_at_entry else self._guess(node)
        if value is not None:
            self.told[node] = value
        elif guess is not None:
            value = guess.value
        else:
            value = self._value_of(tracer, node)
            self._guesses.note(node, value)
        if type(value) not in _NUMBERS:
            return None
        tracer.has_checks = True  # It is to be known then whether anything was written.
        if (
            guess is None
            and all(map(_is_of_dimensions, reads))
            and all(source._op != "get_attr" for source in sources)
        ):
            self.rank_asked = self.rank_asked or self._guard(reads[0], "")
            self._predicates.append(node)
            return bool(value)
        return self._settle(tracer, node, value, is_at_entry=is_at_entry, is_guess=guess is not None)

    def _guess(self, node: Node) -> Guess | None:
        """Return what a node most probably is; None where it is known, or nobody knows."""
        is_known = self.run is not None and node in self.run.values
        return None if is_known or not self._tells else self._guesses.of(node)

    def _answer_by_run(self, tracer: Tracer, node: Node) -> bool | None:
        """Return whether a tensor of one element is true, or a number that says what tensors are like; None for others.

        Sizes are no such numbers.
        """
        self.note_writes(tracer)
        given = self._inputs(tracer)
        guess = self._guess(node)
        if guess is not None and not all(one in given for one in guess.tensors):
            tracer.has_checks = True
            self.asked |= guess.numbers
            return self._settle(tracer, node, guess.value, is_at_entry=False, is_guess=True)
        value = self._value_of(tracer, node)
        numbers = self._numbers_of_run(node)
        if numbers is None:
            return None
        with unheard():  # An integer stands for a tensor, which is no answer itself.
            self._guesses.note(node, value if node in numbers else int(bool(value)), numbers)
        tracer.has_checks = True
        is_at_entry = node in numbers and not any(self._hangs_on_computed(one, given) for one in numbers)
        self.asked |= numbers
        return self._settle(tracer, node, value, is_at_entry=is_at_entry)

    def _numbers_of_run(self, node: Node) -> set[Node] | None:
        """Return the nodes by which a number is read off tensors; None where it comes by other ways, or is none."""
        values = {} if self.run is None else self.run.values
        found: set[Node] = set()
        waiting = [node]
        while waiting:
            current = waiting.pop()
            kind = type(values[current])
            if kind is torch.Tensor:
                continue
            is_size = kind is torch.Size and _reads_tensor(current)
            if not (is_size or kind in _NUMBERS):
                return None
            found.add(current)
            waiting += [one for one in current.all_input_nodes if one not in found]
        return found

    def _hangs_on_computed(self, node: Node, given: Mapping[Node, torch.Tensor]) -> bool:
        """Return whether a number is read off a tensor that is no input, or may be another one behind a write."""
        values = {} if self.run is None else self.run.values
        tensors = [one for one in node.all_input_nodes if type(values[one]) is torch.Tensor]
        is_settled = not self.writing or is_metadata(node)
        return not all(one in given for one in tensors) or bool(tensors and not is_settled)

    def _settle(
        self, tracer: Tracer, node: Node, value: Any, *, is_at_entry: bool, is_guess: bool = False
    ) -> bool:
        """Record that a value is true, or that it is not, and return which of both."""
        if type(value) is not bool:
            with unheard():
                value = bool(value)
            node = tracer.create_node("call_function", operator.truth, (node,), {})
        if is_guess:
            self.told[node] = value
        predicate = node if value else tracer.create_node("call_function", operator.not_, (node,), {})
        self.asked.update((node, predicate))
        if is_at_entry:
            self._guard_at_entry(predicate)
        else:
            self._check(tracer, predicate)
        return value

    def _tell(self, tracer: Tracer, node: Node, name: str) -> Any:
        """Return the dtype or the device of a value, which is a constant of what is captured, and guard that.

        Its class is told, too, where it is that of tensors, how many dimensions it has, of how many parts a tuple
        of torch is, and which integer a number is that a loop goes up to.
        """
        given = self._inputs(tracer)
        if name == "__class__":
            return self._tell_class(tracer, node, given)
        if name == "__len__":
            return self._counts.get(node)  # Python asks for it behind `__iter__`.
        if name == "__iter__":
            return self._tell_count(tracer, node)
        if name == "__index__":
            return self._tell_number(tracer, node)
        if name == "ndim":
            return self._tell_rank(tracer, node)
        self.note_writes(tracer)
        with unheard():
            value = self._told(tracer, node, name)
            if (
                value is None
                and name in _OF_ELEMENTS
                and self._shaped(tracer, node).__class__ is AbstractTensor
            ):
                value = self._shapes.dtype if name == "dtype" else _CPU
            is_told = value is not None
            if not is_told:
                value = getattr(self._value_of(tracer, node), name)
        read = tracer.create_node("call_function", getattr, (node, name), {})
        self.constant.add(read)
        if is_told:
            self.told[read] = value
        if node in given:
            self._guard_at_entry(tracer.create_node("call_function", same_value, (read, value), {}))
            return value
        tracer.has_checks = self.has_checks = True
        guard = self._guard(read, f"{expression(read, INSIDE)} == {value}")
        tracer.create_node("call_function", check_equal, (read, value, str(guard)), {})
        return value

    def _tell_class(self, tracer: Tracer, node: Node, given: Mapping[Node, torch.Tensor]) -> type | None:
        """Return of which class a value is: most probably a tensor, and the run looks whether it is."""
        if parts_of_layer(node, self._program) is not None:
            return tuple
        is_attribute = node._op == "get_attr" or node._target is getattr
        if self.run is None or node not in self.run.values:
            if node in given or (self._tells and not is_attribute):
                self.checks.tensors.add(node)
                return torch.Tensor
            if is_attribute:
                return None
            self.note_writes(tracer)
        kind = type(self._value_of(tracer, node))
        return kind if kind in _CLASSES else None

    def _tell_count(self, tracer: Tracer, node: Node) -> int | None:
        """Return how many parts a tuple of torch has, which is checked, or sizes; None for other values."""
        if self._reads_behind(node) is not None:
            return self._tell_count_of_sizes(tracer, node)
        if self._tells and _is_chunked(node):  # As many as it is told, most probably.
            count = cast("int", node._args[1])
        else:
            self.note_writes(tracer)
            value = self._shaped(tracer, node)
            if type(value) is not tuple and type(value := self._value_of(tracer, node)) is not tuple:
                return None
            count = len(value)
        tracer.has_checks = True
        tracer.create_node("call_function", check_length, (node, count, ""), {})
        self._counts[node] = count
        return count

    def _tell_count_of_sizes(self, tracer: Tracer, node: Node) -> int | None:
        """Return how many sizes there are, which follows from how many dimensions inputs have; None for a number."""
        self.note_writes(tracer)
        value = self._known_value(tracer, node)
        if value is None and type(value := self._shaped(tracer, node)) is not torch.Size:
            value = self._value_of(tracer, node)
        if type(value) is not torch.Size:
            return None
        self._counts[node] = len(value)
        return len(value)

    def _tell_number(self, tracer: Tracer, node: Node) -> int | None:
        """Return an integer that hangs on sizes and numbers of dimensions alone, and guard it; None for others."""
        reads = self._reads_behind(node)
        if reads is None:
            return None
        self.note_writes(tracer)
        known = self._known_value(tracer, node)
        if known is None and type(known := self._shaped(tracer, node)) is not int:
            known = None
        value = self._value_of(tracer, node) if known is None else known
        if type(value) is not int:
            return None
        if all(_is_of_dimensions(read) or read._args[0] in self._given for read in reads):
            self._answer(tracer, tracer.create_node("call_function", operator.eq, (node, value), {}))
            return value
        if known is not None:
            self.told[node] = value
        tracer.has_checks = self.has_checks = True
        guard = self._guard(node, f"{expression(node, INSIDE)} == {value}")
        tracer.create_node("call_function", check_equal, (node, value, str(guard)), {})
        return value

    def _tell_rank(self, tracer: Tracer, node: Node) -> int | None:
        """Return how many dimensions a value has, where that is known without a run; the run looks whether it has."""
        if not self._tells:
            return None
        if (told := self.checks.ranks.get(node)) is not None:
            return told
        with unheard():
            known = None if self.run is None else self.run.values.get(node)
            rank = known.dim() if type(known) is torch.Tensor else self._ranks_of(tracer).of(node)
        if rank is None or node._op == "get_attr":
            return None
        if known is None and node not in self._given:
            self.checks.ranks[node] = rank
        if self.rank_asked is None:
            self.rank_asked = guard_at(tracer._place.origin(1), "")
        return rank

    def _ranks_of(self, tracer: Tracer) -> Ranks:
        """Return what knows how many dimensions values have."""
        if self._ranks is None:
            self._ranks = Ranks(self._program, self._inputs(tracer))
        return self._ranks

    def _told(self, tracer: Tracer, node: Node, name: str) -> Any:
        """Return an attribute of a value that is told without a run; None where it is not known."""
        if not self._tells:
            return None
        telling = self._telling.get(name)
        if telling is None:
            telling = self._telling[name] = Attributes(name, self._program, self._inputs(tracer))
        return telling.of(node)

    def _inputs(self, tracer: Tracer) -> dict[Node, torch.Tensor]:
        """Return the placeholders and their examples."""
        if not self._given:
            self._given = dict(zip(tracer.graph.nodes, self._args, strict=False))
        return self._given

    def _reads_behind(self, node: Node) -> tuple[Node, ...] | None:
        """Return the reads of sizes and numbers of dimensions that a number is computed from, and from nothing else.

        Returns:
            What reads them off tensors; None where the value of the node may be something else.
        """
        known = self._reads
        waiting = [node]
        while waiting:
            current = waiting[-1]
            inputs = _numbers_behind(current)
            if current not in known and (missing := [one for one in inputs or () if one not in known]):
                waiting += missing
                continue
            waiting.pop()
            if current not in known:
                known[current] = (
                    _own_read(current) if inputs is None else _joined([known[one] for one in inputs])
                )
        return known[node]

    def _value_of(self, tracer: Tracer, node: Node) -> Any:
        """Return the value of a node, in a run of what was recorded so far."""
        with unheard():
            if self.run is None:
                self._left.enter_context(kept_random_state())
                self._left.callback(SavedTensors(self._args).restore)
                calls = tracer.layer_calls
                calls = [] if calls is None else calls
                self.checks.refuses_none = tracer.needs_examples
                given = (*self._args, *tracer.left_out.values())
                self.run = BegunRun(tracer.graph, given, calls, self.checks)
            return self.run.value_of(node)

    def _shaped(self, tracer: Tracer, node: Node) -> Any:
        """Return what is known of a value without a run; None where that is nothing."""
        if not self._tells:
            return None
        with unheard():
            shapes = self._shapes
            if shapes is _UNASKED:
                calls = tracer.layer_calls
                given = (*self._args, *tracer.left_out.values())
                shapes = shapes_of(
                    self._program, given, tracer.graph._sentinel, [] if calls is None else calls
                )
                self._shapes = shapes
            return None if shapes is None else shapes.of(node)

    def is_known_to_run(self, tracer: Tracer, output: Node) -> bool:
        """Return whether a program is known to raise no error, and to compute what was told without a run.

        Args:
            tracer: Has traced it.
            output: The last node.
        """
        if tracer.plain is not None and tracer.plain.catching:
            return False  # It would go another way if there were one after all.
        self._shaped(tracer, output)
        return isinstance(self._shapes, Shapes) and self._shapes.are_as_told(output, self.checks)

    def _known_value(self, tracer: Tracer, node: Node) -> Any:
        """Return a number that hangs on inputs, and on how many dimensions values have, alone; None for others."""
        with unheard():
            return self._known_number(tracer, node, self._ranks_of(tracer))

    def _known_number(self, tracer: Tracer, node: Node, ranks: Ranks) -> Any:
        """Return the same; what it is computed from is known then, too."""
        known = self._numbers
        waiting = [node]
        while waiting:
            current = waiting[-1]
            inputs = () if _reads_tensor(current) else current.all_input_nodes
            if current not in known and (missing := [one for one in inputs if one not in known]):
                waiting += missing
                continue
            waiting.pop()
            if current in known:
                continue
            tensor = current._args[0] if _reads_tensor(current) else None
            if tensor is None:
                is_open = any(known[one] is None for one in inputs)
                known[current] = None if is_open else compute(current, known, self._program)
            elif isinstance(tensor, Node) and tensor in self._given:
                known[current] = compute(current, self._given, self._program)
            else:
                is_rank = _is_of_dimensions(current)
                rank = ranks.of(tensor) if is_rank and self._tells else None
                known[current] = rank if is_rank else self._told_sizes(tracer, current, tensor)
        return known[node]

    def _told_sizes(self, tracer: Tracer, node: Node, tensor: Node) -> Any:
        """Return what a read of sizes gives; None where it is not known."""
        sizes = self._told(tracer, tensor, "shape")
        if sizes is None:
            return None
        if node._op == "call_method" and node._target == "size" and not node._kwargs:
            place: Any = node._args[1] if len(node._args) == _WITH_PLACE else None
            if type(place) is int:
                return sizes[place]
        return compute(node, {tensor: torch.empty(sizes, device="meta")}, self._program)

    def note_writes(self, tracer: Tracer) -> None:
        """Take note of what writes, and refuse what may write to weights: they would be others in another run.

        What writes to its first argument alone may run where that is none of them, which the run looks at.

        Raises:
            MissedProgramError: It may, or to anything else.
        """
        pure = tracer.pure_calls
        quiet, layers = pure.quiet, pure.layers
        sentinel = tracer.graph._sentinel
        last = sentinel if self._last is None else self._last
        while (node := last._next) is not sentinel:
            op, target = node._op, node._target
            # As in `PureCalls.has`, written out: each node of a network is asked about.
            is_known = target in layers if op == "call_module" else id(target) in quiet and not node._kwargs
            is_known = is_known or op in _COMPUTING_NOTHING or target in _OF_MATH or target is the_same
            if not (is_known or pure.has(node)):
                is_layer = op == "call_module" and target in pure.writing
                if not (is_layer or writes_in_place(node, self._program)):
                    raise MissedProgramError
                self.writing.add(node)
            last = node
        self._last = last

    def _guard_at_entry(self, predicate: Node) -> None:
        self._predicates.append(predicate)
        text = expression(predicate)
        if text not in self._known:  # Reading the line takes longer than all the rest.
            self._known.add(text)
            self.at_entry[predicate] = self._guard(predicate, text)

    def _guard(self, predicate: Node, text: str) -> Guard:
        """Return a guard that says where a predicate was computed."""
        origin = next(iter(predicate.origins), None)
        place = None if origin is None else (origin.code, origin.offset)
        known = self._places.get(place)
        if known is None:  # The blocks of a network run the same lines.
            known = self._places[place] = guard_at(origin, "")
        return Guard(text, known.line, known.source)

    def _check(self, tracer: Tracer, predicate: Node) -> None:
        self.has_checks = True
        said = predicate._target, predicate._args, *predicate._kwargs.items()
        # What is said twice may be another thing the second time, if something was written in between.
        if said not in self._known or self.writing:
            self._known.add(said)
            guard = self._guard(predicate, expression(predicate, INSIDE))
            tracer.create_node("call_function", check_true, (predicate, str(guard)), {})


_UNASKED = object()
_CPU = torch.device("cpu")
_OF_ELEMENTS = frozenset({"device", "dtype"})
_NUMBERS = frozenset({bool, int, float})
_CLASSES = frozenset({torch.Tensor, tuple})
"""Classes of values that are the same for all inputs."""
_WITH_PLACE = 2
"""How many arguments a method has that is told which of the sizes it is to give."""
_OF_DIMENSIONS = frozenset({"dim", "ndim", "ndimension"})
_PLACES = frozenset({int, slice})
_OF_TENSORS = _OF_DIMENSIONS | {"shape", "size"}
"""Attributes and methods of tensors that tell of sizes, or of how many dimensions there are."""
_COMPUTING_NOTHING = frozenset({"get_attr", "output", "placeholder"})
_OF_MATH = frozenset(value for value in vars(math).values() if callable(value))
_OF_NUMBERS = (_OF_MATH | {value for value in vars(operator).values() if callable(value)}) - {
    operator.getitem
}


def _erase_numbers(graph: Graph, node: Node) -> None:
    """Take away a number that nobody uses, and those that it alone is computed from."""
    waiting = [node]
    while waiting:
        current = waiting.pop()
        if current._position is not ERASED and current._op != "placeholder" and not current.users:
            # What a number is read off may have been computed for more than that.
            inputs = [] if _reads_tensor(current) else current.all_input_nodes
            graph.erase_node(current)
            waiting += inputs


def _is_of_dimensions(read: Node) -> bool:
    """Return whether a read of a tensor asks how many dimensions it has, and not how many elements these have."""
    return (read._args[1] if read._target is getattr else read._target) in _OF_DIMENSIONS


def _reads_tensor(node: Node) -> bool:
    """Return whether a node reads an attribute, or asks for a size or a number of dimensions."""
    return node._target is getattr or (node._op == "call_method" and node._target in _OF_TENSORS)


def _is_chunked(node: Node) -> bool:
    """Return whether a node parts a tensor into a number of chunks that it is told."""
    target, args = node._target, node._args
    is_chunk = target is torch.chunk or (target == "chunk" and node._op == "call_method")
    return is_chunk and len(args) > 1 and type(args[1]) is int


def _numbers_behind(node: Node) -> list[Node] | None:
    """Return the numbers that a number is computed from; None for other values, and for what is read off tensors."""
    target, args = node._target, node._args
    if _reads_tensor(node) or node._op != "call_function":
        return None
    is_part = target is operator.getitem and type(args[1]) in _PLACES
    return node.all_input_nodes if is_part or target in _OF_NUMBERS else None


def _own_read(node: Node) -> tuple[Node, ...] | None:
    """Return a node that reads sizes, or how many dimensions there are; None for another one."""
    is_one = _reads_tensor(node) and len(node.all_input_nodes) == 1 and not node._kwargs
    return (node,) if is_one and (node._target is not getattr or node._args[1] in _OF_TENSORS) else None


def _joined(parts: list[tuple[Node, ...] | None]) -> tuple[Node, ...] | None:
    """Return the reads that several numbers are computed from; None where one of them is something else."""
    whole = [part for part in parts if part is not None]
    if not whole or len(whole) < len(parts):
        return None
    # Many numbers are computed from one.
    is_one = all(part is whole[0] for part in whole)
    return whole[0] if is_one else tuple(dict.fromkeys(read for part in whole for read in part))
