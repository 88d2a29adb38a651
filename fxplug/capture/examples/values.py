"""What stands for the values of a program that runs on example inputs."""

from __future__ import annotations

import operator
import weakref
from functools import partial
from types import FunctionType
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import nn
from torch.utils.hooks import RemovableHandle

from fxplug.capture.answers import OPTIONAL_ATTRIBUTES
from fxplug.capture.arguments import iterate_parts
from fxplug.capture.arrays import is_number, is_number_of_python
from fxplug.capture.closures import ClosureCall, Transformed
from fxplug.capture.compared import (
    MissedComparisonError,
    are_handed_over,
    comparisons_under_way,
    made_to_compare,
    may_compare_elsewhere,
)
from fxplug.capture.examples.asking import Answerer
from fxplug.capture.examples.earlier import EarlierValues
from fxplug.capture.examples.guarding import expression
from fxplug.capture.examples.kinds import asks_for_attributes, asks_for_kinds, kind_may_differ
from fxplug.capture.examples.numbers import FloatProxy, IntProxy, NumberProxy, Part, SizeProxy
from fxplug.capture.examples.parts import is_in_reach, place_in_reach, tensors_in
from fxplug.capture.examples.results import has_fixed_length, rebuilt
from fxplug.capture.examples.snapshots import HooksOnTensors, Snapshots
from fxplug.capture.examples.structures import is_field
from fxplug.capture.sameness import is_identity, passes_on
from fxplug.capture.sessions import active
from fxplug.capture.sources import place_in_program
from fxplug.errors import TraceError
from fxplug.ir import Node, effects
from fxplug.semantics.checks import class_of
from fxplug.semantics.generators import default_generator, generator_from_state, is_default
from fxplug.semantics.internals import (
    is_fake,
    modules_below,
    own_tables,
    put_on_calls,
    storage_of,
    take_off_calls,
    with_data,
)
from fxplug.semantics.surroundings import tensor_at

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from types import CodeType

    from fxplug.capture.proxy import Proxy
    from fxplug.ir import Argument, Origin

__all__ = ["PLAIN", "ValueKeeper", "another", "node_behind"]

PLAIN = frozenset(
    {int, float, bool, str, type(None), complex, bytes, type(Ellipsis), torch.dtype, torch.device}
)
"""Exact types of values that are what they are, and stand for nothing."""


def _reads_the_same(source: Node | Part, former: Node | Part) -> bool:
    """Return whether two nodes read the same attribute of a tensor, which is one tensor: ``x.grad is x.grad``."""
    if not (isinstance(source, Node) and isinstance(former, Node)):
        return False
    is_read = source.target is getattr and former.target is getattr
    return is_read and source.args == former.args and source.args[1] in OPTIONAL_ATTRIBUTES


def node_behind(source: Node | Part) -> Node:
    """Return the node that has a value, or the value that has a part."""
    while isinstance(source, Part):
        source = source.whole
    return source


def _is_value(value: Any) -> bool:
    """Return whether something is a tensor, or stands for a number of the program."""
    return isinstance(value, (torch.Tensor, NumberProxy))


_OF_VIEWS = frozenset({"_base", "_is_view"})
"""Names of what tells a view from a tensor."""


def another(tensor: torch.Tensor) -> torch.Tensor:
    """Return another tensor with the same memory; of a layout that has no views, with a copy of it."""
    has_views = tensor.layout is torch.strided and not tensor.is_nested
    # The tensor needs gradients wherever it is handed on; a view that was made without them may not be written to.
    with torch.enable_grad():
        return tensor.view_as(tensor) if has_views else tensor.clone()


class ValueKeeper(Answerer):
    """A tracer that knows tensors by their identity, and what each is in the graph."""

    _calls: Any
    """What hears of calls of torch."""
    values: dict[str, torch.Tensor] | None = None
    """Name of each node -> copy of its value, where that is wanted."""
    without_data: Any = None
    """In shape mode, what makes tensors without data."""
    compares_elsewhere: bool = False
    """Whether it is guarded that calls return what they are given, or another tensor, for the sake of functions that
    compare these later. Where none is called that could, no guards are needed."""
    fixes_numbers: bool = False
    """Whether sizes and other numbers are those of the examples, and plain numbers to the program."""
    plain_numbers: frozenset[str] = frozenset()
    """Expressions for numbers that are, where others are not."""
    find_elsewhere: Callable[[], Iterable[torch.Tensor]] = tuple
    """Returns tensors that a program can find, also by code that is not looked at while it is traced."""

    def _reset(self) -> None:
        super()._reset()
        self._has_written = False
        self._snapshots = Snapshots()
        self._tuples: dict[int, tuple[Any, Node]] = {}
        self._made_inside: set[Any] = set()
        """The memory of what was made inside of calls that stay calls, and whose code is not looked at."""
        self._viewed_inside: set[Any] = set()
        """The memory of what such calls have taken views of."""
        self._earlier = EarlierValues()
        self._hooks_on_tensors = HooksOnTensors()
        self._twins: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
        self._with_data: dict[int, torch.Tensor] = {}
        self._generators: dict[int, tuple[torch.Generator, torch.Tensor, Node]] = {}
        self._split: dict[int, weakref.ref[torch.Tensor]] = {}
        """By their ids, the tensors of which the program has received two for one."""
        self._has_begun = False
        self._comparing: list[CodeType] = []
        """The code of functions that compare what they are called with."""

    def _stand_in(self, value: Any, node: Node, *, writes: bool) -> Any:
        """Return what the program gets for the value of a node."""
        if isinstance(value, torch.Tensor):
            if node.target is getattr and node.args[1] in OPTIONAL_ATTRIBUTES:
                self.decide(self._aside_of("call_function", operator.is_not, (node, None)), answer=True)
            return self._bind(value, node, writes=writes)
        if value is None and node.target is not getattr:
            if node.op == "call_function" and effects.effect_of(node, self.root).unknown:
                self.decide(self._aside_of("call_function", operator.is_, (node, None)), answer=True)
            return None
        return self._part_stand_in(value, node)

    def holds_traced_values(self, value: Any) -> bool:
        """Return whether a value is, or holds, one that hangs on the inputs."""
        for part in iterate_parts(value):
            known = self._known.get(id(part))
            if known is None and not isinstance(part, NumberProxy):
                continue
            source = known[1] if known is not None else cast("NumberProxy", part).source
            while isinstance(source, Part):
                source = source.whole
            if self._may_differ(source):
                return True
        return False

    def _is_traced_value(self, value: Any) -> bool:
        if isinstance(value, (torch.Tensor, NumberProxy)):
            return self.holds_traced_values(value)
        return super()._is_traced_value(value)

    def _is_part_of_root(self, value: Any) -> bool:
        if not isinstance(value, torch.Tensor):
            return super()._is_part_of_root(value)
        known = self._known.get(id(value))
        node = None if known is None else known[1]
        if isinstance(node, Node) and node.op == "get_attr":
            return node.target not in self.graph.lifted
        return any(value is one for one in (*self.root.parameters(), *self.root.buffers()))

    def _aloof(self, function: Callable[..., Any], /, *args: Any) -> Any:
        """Call a function of torch that is no part of the program."""
        self.paused += 1
        # A call that is heard of, if only to be let through, takes several times as long.
        is_off = take_off_calls(self._calls)
        try:
            return function(*args)
        finally:
            if is_off:
                put_on_calls(self._calls)
            self.paused -= 1

    def _ask_rank_of_size(self, source: Node | Part, rank: int) -> None:
        """Hear that there are so many sizes."""
        if isinstance(source, Node):
            if source.target is torch.broadcast_shapes:
                return  # Of sizes that were asked for themselves.
            if source.all_input_nodes:
                source = source.all_input_nodes[0]
        self._ask_rank(source, rank)

    def _part_stand_in(self, value: Any, source: Node | Part) -> Any:
        kind = type(value)
        if isinstance(value, torch.Tensor):
            return self._bind(value, source, writes=False)
        node = source if isinstance(source, Node) else None
        if node is not None:
            self._asides_for(node, value)
            # Numbers that no input decides are what they are; tensors among them have to be known again.
            if node in self._constant and not any(True for _ in tensors_in(value)):
                self._note_asked_of_constant(node)
                return value
        if self.fixes_numbers and (kind is int or kind is float or kind is torch.Size):
            self._fix_value(self.node_of_part(source) if isinstance(source, Part) else source, value)
            return value
        if kind is int or kind is float:
            return self._number_stand_in(value, source)
        if kind is torch.Size:
            self._ask_rank_of_size(source, len(value))
            return SizeProxy(
                [self._part_stand_in(size, Part(source, i)) for i, size in enumerate(value)], source, self
            )
        if kind is bool:
            return self.decide(
                self.node_of_part(source) if isinstance(source, Part) else source, answer=value
            )
        if value is None:
            if node is not None and node.target is getattr:
                self.decide(self._aside_of("call_function", operator.is_, (node, None)), answer=True)
            return None
        return self._other_stand_in(value, source)

    def _call_derivative(self, function: Any, source: Node, /, *args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError

    def _number_stand_in(self, value: float, source: Node | Part) -> Any:
        if self.plain_numbers:
            node = self.node_of_part(source) if isinstance(source, Part) else source
            if expression(node) in self.plain_numbers:
                self._fix_value(node, value)
                return value
        if asks_for_kinds(self._names) and kind_may_differ(node_behind(source)):
            whole = self.node_of_part(source) if isinstance(source, Part) else source
            self._fix_value(self._aside_of("call_function", class_of, (whole,)), type(value))
        return IntProxy(source, self, value) if isinstance(value, int) else FloatProxy(source, self, value)

    def tell_kind(self, number: NumberProxy) -> None:
        """Hear that a number is compared with something else: what another call is given there may be that."""
        if not (self.paused or self._ended) and kind_may_differ(number.node):
            self._fix_value(self._aside_of("call_function", class_of, (number.node,)), type(number.value))

    def _asides_for(self, node: Node, value: Any) -> None:
        if not any(True for _ in tensors_in(value)):
            self._guards.hear(node, nothing_written=not self._has_written)
            if effects.effect_of(node, self.root).is_pure:
                self._asides.append(node)

    def _other_stand_in(self, value: Any, source: Node | Part) -> Any:
        if isinstance(value, (tuple, list, dict)):
            node = self.node_of_part(source) if isinstance(source, Part) else source
            if not isinstance(value, dict) and not has_fixed_length(node, value, self._is_torch_module):
                self._fix_length(node, len(value))
            if isinstance(value, dict):
                self._fix_value(
                    self._aside_of("call_function", list, (node,)), list(cast("dict[Any, Any]", value))
                )
            if isinstance(value, tuple) and hasattr(type(value), "n_sequence_fields"):
                result = rebuilt(value, lambda part, key: self._part_stand_in(part, Part(source, key)))
                self._tuples[id(result)] = (result, node)
                return result
            return rebuilt(value, lambda part, key: self._part_stand_in(part, Part(source, key)))
        node = self.node_of_part(source) if isinstance(source, Part) else source
        if isinstance(
            value, (str, bytes, complex, torch.dtype, torch.device, torch.layout, torch.memory_format)
        ):
            self._fix_value(node, value)
            return value
        if is_number_of_python(value):
            # In the graph it is a number of Python. What the program does with this one is not heard.
            self._fix_value(node, value.item())
            return value
        if callable(value) and node.target is getattr:
            self.decide(self._aside_of("call_function", operator.is_not, (node, None)), answer=True)
            return value
        if isinstance(value, FunctionType) and value.__globals__ is torch.func.vjp.__globals__:
            return Transformed(value, partial(self._call_derivative, value, node), node)
        if isinstance(value, RemovableHandle):
            hooked = node.args[1] if isinstance(node.target, ClosureCall) else node.args[0]
            self._hooks_on_tensors.add(value, self._weight_of(hooked))
            return value
        raise TraceError(
            f"Cannot record {node.format_node()}: it gives a {type(value).__module__}.{type(value).__qualname__}"
            f"{place_in_program()}, and what the program does with that is not seen. Make the enclosing function a "
            "leaf (fxplug.wrap), or the enclosing module.",
            code="FXP-T062",
        )

    def _weight_of(self, node: Any) -> torch.Tensor | None:
        """Return the tensor from before the program that a node reads, None for any other node."""
        if not isinstance(node, Node) or node.op != "get_attr":
            return None
        path = str(node.target)
        lifted = self.graph.lifted.get(path)
        return tensor_at(self.root, path.split(".")) if lifted is None else lifted

    def _is_torch_module(self, path: str) -> bool:
        return str(type(self.root.get_submodule(path)).__module__).startswith("torch.nn")

    def _bind(self, value: torch.Tensor, source: Node | Part, *, writes: bool) -> torch.Tensor:
        """Let a tensor be known as the value of a node."""
        value = self._with_data.get(id(value), value)
        known = self._known.get(id(value))
        if known is not None and not writes and (self._converting or _reads_the_same(source, known[1])):
            return value
        if (self._compares or self.compares_elsewhere) and not writes:
            if known is None:
                self._tell_from_arguments(source)
            elif self._is_compared(value):
                # The program asks whether they are one tensor, and goes on with the answer.
                self._decide_identity(source, known[1], answer=True)
                return value
        if known is not None and not writes:
            other = self._aloof(another, value)
            if self._tells_by_asking(value, other):
                self._decide_identity(source, known[1], answer=True)
                return value
            # The program sees one tensor, which a call has returned as it was given; in the graph they are two, as they
            # are for inputs with which the call returns another one.
            former, value = value, other
            self._split.update((id(one), weakref.ref(one)) for one in (former, value))
        self._known.add_result(value, storage_of(value), source)
        if self.values is not None and isinstance(source, Node):
            self.paused += 1
            self.values[source.name] = value.detach().clone()
            self.paused -= 1
        return value

    def _tells_by_asking(self, value: torch.Tensor, other: torch.Tensor) -> bool:
        """Return whether the program may ask for what tells a tensor from another one with the same memory.

        That is its class, what somebody has set on it, and that it is no view.
        """
        names = self._names
        is_more = isinstance(value, nn.Parameter)
        if is_fake(value):
            is_more = is_more or any(name[0] != "_" for name in vars(value).keys() - vars(other).keys())
        else:
            is_more = is_more or type(value) is not torch.Tensor or bool(vars(value))
        asks = is_more and (asks_for_kinds(names) or asks_for_attributes(names))
        return asks or not _OF_VIEWS.isdisjoint(names)

    def on_function_reached(self, function: Any, code: CodeType, names: frozenset[str], owner: Any) -> None:
        """Hear of a function that the program may call (see `StateKeeper.on_function_reached`)."""
        super().on_function_reached(function, code, names, owner)
        is_first, self._has_begun = not self._has_begun, True
        if not are_handed_over(function, code, owner):
            return
        if is_first:  # The program itself, which is called in any case, and by its own code.
            self._comparing += [code, *made_to_compare(code)]
            self._compares = True
        elif not self.compares_elsewhere and (session := active.get()) is not None:
            session.heard.add(id(function))  # Most of those that are in reach are never called.

    def on_heard_call(self, function: FunctionType) -> None:
        """Hear that the program calls a function that compares what it is called with.

        Raises:
            MissedComparisonError: What calls return was not compared so far.
        """
        if not self.paused:
            error = MissedComparisonError(
                f"Cannot trace: {function.__name__} compares by identity what it is called with{place_in_program()}.",
                code="FXP-T043",
            )
            self.note_refusal(error)
            raise error

    def _look_at_key(self, value: torch.Tensor) -> None:
        """Look at a tensor that the program uses as a key, or puts into a set: which object it is decides.

        Raises:
            TraceError: A call has returned it as it was given, and the program has received two.
        """
        known = self._known.get(id(value))
        if known is None or self.paused:
            return
        split = self._split.get(id(value))
        if split is not None and split() is value:
            error = TraceError(
                f"Cannot trace: a tensor that a call has returned as it was given is a key{place_in_program()}. Keep "
                "what belongs to it under something else, such as a number or a text.",
                code="FXP-T043",
            )
            self.note_refusal(error)
            raise error
        source = known[1]
        if isinstance(source, Node) and passes_on(source, self.root):
            for node in dict.fromkeys(source.all_input_nodes):
                self._decide_identity(source, node, answer=False)

    def _look_at_result(self, proxy: Proxy) -> None:
        """Let a result be: what it is compared with is known where it is bound."""

    def has_returned(self, value: Any, held: Any) -> bool:
        """Return whether a call has returned what is held as it was given, and the program has received it."""
        split = self._split.get(id(value))
        known, own = self._known.get(id(value)), self._known.get(id(held))
        if split is None or split() is not value or known is None or own is None or self.paused:
            return False
        source = known[1]
        return isinstance(source, Node) and own[1] in source.all_input_nodes and id(held) in self._split

    def decide_returned(self, value: torch.Tensor, held: torch.Tensor) -> None:
        """Guard that a call returns what is held as it was given."""
        self._decide_identity(self._known[id(value)][1], self._known[id(held)][1], answer=True)

    def _is_compared(self, tensor: torch.Tensor) -> bool:
        """Return whether the program may compare a tensor, which a call has just returned as it was given."""
        for _, values in comparisons_under_way(_is_value):
            if not values or any(value is tensor for value in values):
                return True
        return self.compares_elsewhere or may_compare_elsewhere(self._comparing)

    def _tell_from_arguments(self, source: Node | Part) -> None:
        """Guard that what a call returned is none of its arguments, if it may be and the program may compare them."""
        if not isinstance(source, Node) or not passes_on(source, self.root):
            return
        inputs = dict.fromkeys(source.all_input_nodes)
        for _, values in comparisons_under_way(_is_value):
            nodes = [self._known[id(value)][1] for value in values if id(value) in self._known]
            for node in nodes if values else inputs:
                if node in inputs:
                    self._decide_identity(source, node, answer=False)
        if self.compares_elsewhere or may_compare_elsewhere(self._comparing):
            for node in inputs:
                self._decide_identity(source, node, answer=False)

    def _decide_identity(self, one: Node | Part, other: Node | Part, *, answer: bool) -> None:
        nodes = tuple(part if isinstance(part, Node) else self.node_of_part(part) for part in (one, other))
        if answer and is_identity(nodes[0], self.root):
            return  # It can be no other one.
        self.decide(self._aside_of("call_function", operator.is_, nodes), answer=answer)

    def _twin_of(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return what stands for a tensor with data where none is computed with, so that it is not written to."""
        if is_fake(tensor):
            return tensor
        known = self._twins.get(id(tensor))
        if known is None:
            self.paused += 1
            twin: torch.Tensor = self.without_data.from_tensor(tensor)
            self.paused -= 1
            known = self._twins[id(tensor)] = (tensor, twin)
            self._with_data[id(twin)] = tensor
        return known[1]

    def node_of_part(self, part: Part) -> Node:
        """Return the node for a part of a value, made when it is first asked for."""
        if part.node is None:
            whole = part.whole if isinstance(part.whole, Node) else self.node_of_part(part.whole)
            if is_field(part.key):
                target, key = getattr, part.key[1:]
            else:
                target, key = operator.getitem, part.key
            node = part.node = self._create_call(target, (whole, key), [whole])
            self._asides.append(node)
            if self._guards.is_at_entry(whole):
                self._guards.hear(node, nothing_written=False)
            if whole in self._constant:
                self._constant.add(node)
        return part.node

    def create_arg(self, a: Any) -> Argument:
        """Turn a value of the program into an argument of the graph; a set is made by a call."""
        whole = self._tuples.get(id(a))
        if whole is not None:
            return whole[1]
        kind: type = type(a)
        if kind is torch.Size and any(isinstance(part, NumberProxy) for part in a):
            return SizeProxy(a).__fx_create_arg__(self)
        if is_number(a):
            return a.item()
        if isinstance(a, torch.Generator):
            return self._lift_generator(a)
        if kind is set or kind is frozenset:
            elements = [self.create_arg(element) for element in cast("set[Any]", a)]
            return self.create_node("call_function", type(a), (elements,), {})
        return super().create_arg(a)

    def _lift_generator(self, generator: torch.Generator) -> Argument:
        """Record a read of a generator of random numbers, whose state is put back when the trace ends."""
        known = self._generators.get(id(generator))
        if known is None:
            self.paused += 1
            with with_data():
                state = generator.get_state().clone()
            self.paused -= 1
            if is_default(generator):  # No copy of it would be the one that is seeded.
                node = self.create_node("call_function", default_generator, (generator.device,), {})
            elif is_in_reach(generator):
                node = self._lift(generator, "_generator")
            else:  # The program has made it, and makes it anew in every call.
                start = self._lift(state, "_generator_state")
                node = self.create_node("call_function", generator_from_state, (start, generator.device), {})
            known = self._generators[id(generator)] = (generator, state, node)
        return known[2]

    def _is_held(self, generator: torch.Generator) -> bool:
        return is_default(generator) or is_in_reach(generator)

    def _lift_tensor(self, tensor: torch.Tensor, origin: Origin | None = None) -> Node:
        known = self._known.get(id(tensor))
        if known is not None:
            source = known[1]
            return self.node_of_part(source) if isinstance(source, Part) else source
        path = self._path_of_tensor(tensor)
        self.paused += 1
        try:
            if path is not None and origin is not None and self._records_plainly:
                node = self.graph.create_node("get_attr", path, None, None, None, None, origin)
                if self.policy.node_created is not None:
                    self._note(node)
            elif path is not None:
                node = self.create_node("get_attr", path, (), {})
            elif not self._is_found(tensor):
                raise self._unheard_of(tensor)
            else:
                node = super()._lift_tensor(tensor)
            self._snapshots.add(tensor)
        finally:
            self.paused -= 1
        self._known[id(tensor)] = (tensor, node)
        return node

    def on_beginning(self) -> None:
        """Hear that the program begins: what it holds by now it has not made."""
        outside = () if self._outside is None else self._outside.held()
        self._earlier = EarlierValues([*outside, *self._states.held()], self._paths)

    def tensors_before(self) -> list[torch.Tensor]:
        """Return the tensors that the program found when it began, each of them once."""
        found = {id(tensor): tensor for tensor in (*self._earlier.tensors(), *self.find_elsewhere())}
        for _, module in modules_below(self.root):
            for table in (*own_tables(module), vars(module)):
                found.update(
                    (id(value), value) for value in table.values() if isinstance(value, torch.Tensor)
                )
        return [*found.values()]

    def note_before_unheard(self) -> None:
        """Hear that code is about to run that nobody looks at."""
        if self._snapshots.has_places:
            return
        tensors = self.tensors_before()
        self._snapshots.note_places(tensors)
        for tensor in tensors:
            if tensor.requires_grad:
                self._hooks_on_tensors.note(tensor)

    def _refuse_lost_data(self) -> None:
        """Refuse a program that has given a tensor memory without data where nobody heard of it."""
        tensor = self._aloof(self._snapshots.lost_data) if self.mode == "shape" else None
        if tensor is None:
            return
        # What is known about it says nothing of what it is by now.
        error = TraceError(
            f"Cannot trace in shape mode: a tensor {self._holder_of(tensor)} was given other memory "
            "(tensor.data = ...) in a hook of a layer, or a function, that stays one call, and torch does not tell of "
            "that. Trace in value mode (mode='value'), change the tensor in place (copy_), or let the trace enter the "
            "layer.",
            code="FXP-T061",
        )
        self.note_refusal(error)
        raise error

    def _holder_of(self, tensor: torch.Tensor) -> str:
        path = self._path_of_tensor(tensor)
        return f"of shape {tuple(tensor.shape)}" if path is None else f"that the root holds, {path!r},"

    def _is_found(self, tensor: torch.Tensor) -> bool:
        """Return whether a tensor is a constant that the program finds, as far as can be known."""
        if tensor in self._earlier:
            # What shares its memory is found as well, or a view that torch has told of.
            has_others = self._earlier.has_other_memory(tensor) or storage_of(tensor) in self._made_inside
            return not has_others and not self._is_of_input(tensor)
        return not self._is_made_here(tensor) and is_in_reach(tensor)

    def _unheard_of(self, tensor: torch.Tensor) -> TraceError:
        kind = f"a tensor of shape {tuple(tensor.shape)} and dtype {tensor.dtype}"
        holder = place_in_reach(tensor)
        kept = "" if holder is None else f", which {holder} holds,"
        if self._is_of_input(tensor):
            said = (
                f"Cannot record {kind}{kept}{place_in_program()} that has the memory of an example and is another "
                "tensor: other calls give another one. If the program finds it by itself, in a global, a closure or an "
                "attribute, give a copy of it as the example (clone()). If it makes it from the input in a way that "
                "torch does not tell of (as_subclass), use functions of torch, or keep the function as a call "
                "(fxplug.wrap)."
            )
        elif self._was_made_unheard(tensor):
            said = (
                f"Cannot record {kind}{kept}{place_in_program()} that was made, or given its memory, in a way that "
                "torch does not tell of: in a hook of a layer, or a function, that stays one call; in another thread; "
                "as another class (as_subclass). Compute it in this thread with functions of torch, and outside of "
                "such hooks, or keep the function as a call (fxplug.wrap)."
            )
        else:
            said = (
                f"Cannot record {kind}{kept}{place_in_program()}: it was not found before the program ran, and torch "
                "does not tell of how it was made. If it was there before, keep it where the program finds it by a "
                "name: as an attribute or buffer of the module that is traced, in a list or dict of it, or in a "
                "closure. If the program makes it, in another thread, of the memory of something else (frombuffer, "
                "from_numpy) or as another class (as_subclass), use functions of torch in this thread, or keep the "
                "function as a call (fxplug.wrap)."
            )
        error = TraceError(said, code="FXP-T061")
        self.note_refusal(error)
        return error

    def _was_made_unheard(self, tensor: torch.Tensor) -> bool:
        """Return whether a tensor that is refused has other memory than before, or some that a hook has dealt with."""
        memory = storage_of(tensor)
        return tensor in self._earlier or memory in self._made_inside or memory in self._viewed_inside

    def _is_of_input(self, tensor: torch.Tensor) -> bool:
        """Return whether an input has the memory of a tensor."""
        memory = storage_of(tensor)
        inputs = (known for known, source in self._known.living() if node_behind(source).op == "placeholder")
        return memory is not None and any(storage_of(known) == memory for known in inputs)

    def _is_made_here(self, tensor: torch.Tensor) -> bool:
        memory = storage_of(tensor)
        inside = memory in self._made_inside or memory in self._viewed_inside
        return inside or self._known.have_had(memory)

    def _is_traced(self, value: Any) -> bool:
        if isinstance(value, torch.Tensor):
            known = self._known.get(id(value))
            if known is None:
                return True  # A parameter, or something else from before the program.
            return not (isinstance(known[1], Node) and known[1] in self._constant)
        return isinstance(value, NumberProxy)

    def _holds_traced(self, value: Any) -> bool:
        kind = type(value)
        if kind in PLAIN:
            return False
        if isinstance(value, (torch.Tensor, NumberProxy)):
            return True
        if kind is slice:
            return any(self._holds_traced(part) for part in (value.start, value.stop, value.step))
        if isinstance(value, (tuple, list)):
            return any(self._holds_traced(part) for part in cast("Iterable[Any]", value))
        if isinstance(value, dict):
            return any(self._holds_traced(part) for part in cast("dict[Any, Any]", value).values())
        return False

    def _real(self, value: Any) -> Any:
        """Return a value with the numbers that stand-ins stand for."""
        kind = type(value)
        if kind in PLAIN:
            return value
        if isinstance(value, torch.Tensor):
            return value if self.without_data is None else self._twin_of(value)
        if kind is IntProxy or kind is FloatProxy:
            return value.value
        if kind is SizeProxy or kind is torch.Size:
            return torch.Size([self._real(part) for part in value])
        if kind is tuple:
            return tuple([self._real(part) for part in value])
        if kind is list:
            return [self._real(part) for part in value]
        if kind is dict:
            return {key: self._real(part) for key, part in value.items()}
        if kind is slice:
            return slice(self._real(value.start), self._real(value.stop), self._real(value.step))
        if isinstance(value, tuple) and hasattr(value, "_fields"):
            return type(value)(*[self._real(part) for part in cast("tuple[Any, ...]", value)])
        return value
