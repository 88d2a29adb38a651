"""Answering what a program asks while it runs on example inputs, and guarding the answers."""

from __future__ import annotations

import operator
from types import BuiltinFunctionType
from typing import TYPE_CHECKING, Any

import torch

from fxplug.capture.examples.guarding import GuardCollector, expression, guard_at, guard_of
from fxplug.capture.examples.known import KnownTensors
from fxplug.capture.examples.numbers import Part
from fxplug.capture.examples.parts import nodes_in, numbers_in
from fxplug.capture.sessions import active
from fxplug.capture.sources import place_in_program
from fxplug.capture.tracer import Tracer
from fxplug.capture.unpacking import parts_of_layer
from fxplug.errors import TraceError
from fxplug.ir import Node
from fxplug.semantics.checks import check_equal, check_length, check_true, same_value
from fxplug.semantics.libraries import what_does

if TYPE_CHECKING:
    from collections.abc import Callable

    from fxplug.capture.examples.numbers import NumberProxy
    from fxplug.ir import Graph
    from fxplug.ir.guards import Guard

__all__ = ["INSIDE", "Answerer", "MissedSizeError"]

INSIDE = 9
"""How deep an expression stands already that shows only what a condition says, and not all that it is computed from."""


_CHANGES_RANK = frozenset(
    {
        *("squeeze", "squeeze_", "squeeze_copy"),
        # Whether what is to be solved for is one vector, or several, is seen by the sizes.
        *("linalg_lstsq", "linalg_solve", "linalg_solve_ex"),
    }
)
_JOINING = {"flatten": 1, "tensordot": 2}
"""Functions and methods that make one dimension of several -> how many of their arguments are tensors."""
_KNOWN = frozenset({"_operator", "builtins", "math", "torch"})


def changes_rank(node: Node) -> bool:
    """Return whether the number of dimensions of a result hangs on sizes, or is not known to follow from ranks."""
    op = node.op
    if op == "call_method":
        return node.target in _CHANGES_RANK or _joins_dimensions(node, str(node.target))
    if op != "call_function":
        return False
    target: Any = node.target
    if target is operator.getitem:
        return not all(map(is_settled_index, nodes_in(node.args[1])))
    name = str(getattr(target, "__name__", ""))
    if not isinstance(target, BuiltinFunctionType):
        home = str(getattr(target, "__module__", None)).partition(".")[0]
        if home not in _KNOWN:
            return what_does(target) != "drops in training"
    return name in _CHANGES_RANK or _joins_dimensions(node, name)


def is_settled_index(index: Node) -> bool:
    """Return whether an index is a mask whatever the inputs are, or never one: a tensor of another class may be either.

    A mask takes away as many dimensions as it has, and an index puts its own in their place. Which of both something
    is hangs on the classes of what it is computed from, if it is not always one.
    """
    waiting, seen = [index], {index}
    while waiting:
        node = waiting.pop()
        name = node.target if node.op == "call_method" else str(getattr(node.target, "__name__", ""))
        is_shape = node.target is getattr and node.args[1] in {"ndim", "shape"}
        if node.op == "get_attr" or name in _OF_ONE_KIND or is_shape:
            continue
        if node.op in {"call_module", "placeholder"} or len(seen) > _MOST:
            return False
        new = [one for one in node.all_input_nodes if one not in seen]
        seen.update(new)
        waiting += new
    return True


_OF_ONE_KIND = frozenset(
    {
        *(
            "eq",
            "ge",
            "gt",
            "le",
            "lt",
            "ne",
            "bool",
            "logical_and",
            "logical_not",
            "logical_or",
            "logical_xor",
        ),
        *("isfinite", "isinf", "isnan", "dim", "ndimension", "numel", "size"),
        *("argmax", "argmin", "argsort", "bucketize", "int", "long", "nonzero", "searchsorted"),
    }
)
"""Functions and methods whose results are masks, or whose results are numbers."""
_MOST = 50
"""An index that is computed from more than so many values is taken to be either."""


def _joins_dimensions(node: Node, name: str) -> bool:
    """Return whether a call makes one dimension of as many as a number says that is computed."""
    if name not in _JOINING:
        return False
    given = (*node.args[_JOINING[name] :], *node.kwargs.values())
    return any(isinstance(one, Node) for one in given)


def is_arithmetic(node: Node) -> bool:
    """Return whether a call computes a number from numbers alone."""
    target: Any = node.target
    is_part = target is getattr or target is operator.getitem
    return node.op == "call_function" and not is_part and getattr(target, "__module__", None) in _OF_NUMBERS


_OF_NUMBERS = frozenset({"_operator", "builtins", "math"})


def _modes_behind(node: Node, seen: set[Node]) -> set[tuple[str, tuple[str, ...]]]:
    """Return what of torch may say otherwise what is read of tensors that a program makes: functions, and arguments.

    Of which dtype and device a tensor is may hang on defaults, where neither is said. What sizes it is made with does
    not; those of what is computed from it may hang on what is in it.

    Args:
        node: What is read.
        seen: What was looked at before, and is not any more; this is added.
    """
    found: set[tuple[str, tuple[str, ...]]] = set()
    waiting = [node]
    while waiting:
        one = waiting.pop()
        if one in seen:
            continue
        seen.add(one)
        more = one.all_input_nodes
        target: Any = one.args[1] if one.target is getattr else one.target
        name = target if isinstance(target, str) else str(getattr(target, "__name__", ""))
        if name in _SIZES and not any(inner.all_input_nodes for inner in more):
            continue
        if not (more or _says_of_what(one)):
            found |= {("get_default_dtype", ()), ("get_default_device", ())}
        if name in _OF_GRADIENTS:
            found |= {("is_grad_enabled", ()), ("is_inference_mode_enabled", ())}
        if name in _OF_PRODUCTS:
            found.add(("is_autocast_enabled", ("cpu",)))
        waiting += more
    return found


def _says_of_what(node: Node) -> bool:
    """Return whether a call says of which dtype and device its result is: floats, which stay what they are."""
    dtype = node.kwargs.get("dtype")
    is_float = isinstance(dtype, torch.dtype) and dtype.is_floating_point
    return is_float and node.kwargs.get("device") is not None


_SIZES = frozenset({"__len__", "dim", "is_contiguous", "ndim", "numel", "shape", "size", "stride"})
_OF_GRADIENTS = frozenset({"grad_fn", "is_inference", "is_leaf", "requires_grad", "_version", "_is_view"})
_OF_PRODUCTS = frozenset(
    {
        *("addbmm", "addmm", "addmv", "baddbmm", "bilinear", "bmm", "chain_matmul", "conv1d", "conv2d"),
        *("conv3d", "einsum", "inner", "linear", "matmul", "mm", "multi_dot", "mv", "dot", "tensordot"),
        *("conv_transpose1d", "conv_transpose2d", "conv_transpose3d", "scaled_dot_product_attention"),
    }
)
"""Functions that compute in another precision under ``torch.autocast``."""


class MissedSizeError(TraceError):
    """A ``torch.Size`` was made of numbers in a trace that gives it the very numbers."""


class Answerer(Tracer):
    """A tracer that knows the answers, and keeps each question as a guard."""

    opens_sizes: bool = False
    """Whether a ``torch.Size`` that the program makes holds what stands for numbers. Most programs make none, and then
    nobody has to look who asks for the class of a number."""

    paused: int
    """How deep the program is in calls whose inside is not looked at."""
    guard_graph: Graph | None
    """Answers the guards from the inputs of the program, None when there are none."""
    guards: tuple[Guard, ...]
    """The guards in the order of the answers."""

    def _reset(self) -> None:
        super()._reset()
        self.paused = 0
        self.guard_graph = None
        self.guards = ()
        self._known = KnownTensors()
        self._constant: set[Node] = set()
        self._modes_asked: set[tuple[str, tuple[str, ...]]] = set()
        self._looked_behind: set[Node] = set()
        self._asides: list[Node] = []
        self._guards = GuardCollector(self.graph)
        self._rank_asked: Guard | None = None
        self._has_acted = False
        self._said: set[Any] = set()
        """What is checked in the graph since something was last written: behind a write it may be another thing."""
        self._read_numbers: list[tuple[NumberProxy, str]] = []
        self._fixed_last: Node | None = None
        self._fixed: set[tuple[Any, ...]] = set()
        self._names: frozenset[str] = frozenset()
        self._changing_ranks: dict[Node, bool] = {}
        self._has_changed_ranks = False
        """Whether a call was made whose result may have more or fewer dimensions with other inputs."""

    def is_tracing_here(self) -> bool:
        """Return whether this trace runs in the running thread or task."""
        session = active.get()
        return session is not None and session.interceptor is self

    def _aside(self, kind: str, target: Any, args: tuple[Any, ...]) -> Node:
        """Record a node that stays only if something uses it."""
        node = self.create_node(kind, target, args, {})
        self._asides.append(node)
        return node

    def record_call(self, function: Callable[..., Any], args: tuple[Any, ...]) -> Any:
        """Record a call of a function of Python on numbers, make it, and return what stands for its result."""
        raise NotImplementedError

    def exact(self, result: Any) -> Any:
        """Return the very number for a result that may stand for one."""
        raise NotImplementedError

    def node_of_part(self, part: Part) -> Node:
        """Return the node for a part of a value, made when it is first asked for."""
        raise NotImplementedError

    def decide(self, node: Node, *, answer: bool) -> bool:
        """Answer a question, and guard the answer."""
        if node not in self._constant:
            self._guard(node if answer else self._aside_of("call_function", operator.not_, (node,)))
        else:
            self._note_asked_of_constant(node)
        return answer

    def _note_asked_of_constant(self, node: Node) -> None:
        """Hear that the program goes on with what no input decides: it may hang on what is on around it."""
        asked = _modes_behind(node, self._looked_behind) - self._modes_asked
        self._modes_asked |= asked
        for name, arguments in sorted(asked):
            self.paused += 1
            answer = getattr(torch, name)(*arguments)
            self.paused -= 1
            self.on_mode_asked(name, arguments, answer)

    def _aside_of(self, kind: str, target: Any, args: tuple[Any, ...]) -> Node:
        node = self._aside(kind, target, args)
        self._guards.hear(node, nothing_written=False)
        return node

    def _guard(self, predicate: Node) -> None:
        if self._guards.is_at_entry(predicate):
            self._guard_at_entry(predicate)
        elif (key := (predicate.target, predicate.args, *predicate.kwargs.items())) not in self._said:
            self._said.add(key)
            said = guard_of(predicate, depth=INSIDE)
            self._create_call(check_true, (predicate, str(said), *self._rerun()), [predicate])

    def _guard_at_entry(self, predicate: Node) -> None:
        text = expression(predicate)
        if self._guards.is_new(text):  # Reading the line takes longer than all the rest.
            self._guards.add(predicate, guard_of(predicate, text))

    def _rerun(self) -> tuple[bool, ...]:
        return (False,) if self._has_acted else ()

    def fix(self, number: NumberProxy, function: Callable[[Any], Any] | None = None) -> None:
        """Take it that a number, or what a function makes of it, is what it is now."""
        if self._ended and not number.is_fixed:
            raise self._is_over("a number")
        # A dict that the program has left is filled anew when its trace ends, and hashes its keys.
        if self.paused or self._ended or (number.is_exact and not self.is_tracing_here()):
            return
        self.check_thread()
        number.is_fixed = True
        node, value = number.node, number.value
        self._fixed_last = node
        if function is None:
            number.is_exact = True
        else:
            node, value = self._aside_of("call_function", function, (node,)), function(value)
        self._fix_value(node, value)

    def numbers_needed(self) -> frozenset[str]:
        """Return, as expressions, the number that was fixed last, and the numbers that it is computed from."""
        last, self._fixed_last = self._fixed_last, None
        found: set[Node] = set()
        stack = [] if last is None else [last]
        while stack:
            node = stack.pop()
            if node not in found:
                found.add(node)
                stack += node.all_input_nodes if is_arithmetic(node) else ()
        return frozenset(map(expression, found))

    def _fix_value(self, node: Node, value: Any) -> None:
        if node in self._constant:
            self._note_asked_of_constant(node)
            return
        if self._guards.is_at_entry(node):
            self._guard_at_entry(self._aside("call_function", same_value, (node, value)))
            return
        if (check_equal, (node,)) in self._fixed:
            return
        self._fixed.add((check_equal, (node,)))
        said = guard_of(node, f"{expression(node, INSIDE)} == {expression(value)}")
        self.create_node("call_function", check_equal, (node, value, str(said), *self._rerun()), {})

    def _fix_length(self, node: Node, length: int) -> None:
        if node in self._constant:
            if node.all_input_nodes:
                self._note_asked_of_constant(node)
            return
        if parts_of_layer(node, self.root) == length:
            return
        said = guard_of(node, f"len({expression(node, INSIDE)}) == {length}")
        self._create_call(check_length, (node, length, str(said), *self._rerun()), [node])

    def _fix_sizes(self, args: Any) -> None:
        """Take it that the tensors among the arguments of a call have the sizes that they have now."""
        for tensor, source in self._known.living():
            node = source if isinstance(source, Node) else source.node
            if node is not None and node in nodes_in(args):
                shape = self._aside_of("call_function", getattr, (node, "shape"))
                self._fix_value(shape, tuple(torch.Tensor.size(tensor)))

    def _ask_rank(self, source: Node | Part, rank: int) -> None:
        """Hear that the number of dimensions of a value is asked for; most often it follows from those of inputs."""
        node = source
        while isinstance(node, Part):
            node = node.whole
        if self._has_changed_ranks and self._rank_may_change(node):
            node = self.node_of_part(source) if isinstance(source, Part) else source
            self._fix_value(self._aside_of("call_method", "dim", (node,)), rank)
        elif self._rank_asked is None:
            self._rank_asked = guard_at(self._place.origin(), "")

    @property
    def asked_dimensions(self) -> Guard | None:
        """Where the program has first asked how many dimensions a tensor has; None where it has not."""
        return self._rank_asked

    def _rank_may_change(self, node: Node) -> bool:
        """Return whether something that a value is computed from has as many dimensions as sizes or values say."""
        known = self._changing_ranks
        stack = [node]
        while stack:
            one = stack[-1]
            if one in known:
                stack.pop()
                continue
            if changes_rank(one):
                known[one] = True
                stack.pop()
                continue
            inputs = one.all_input_nodes
            missing: list[Node] = []
            for used in inputs:
                if used in known:
                    continue
                if used.op == "get_attr":  # Most inputs of a model: its weights.
                    known[used] = False
                else:
                    missing.append(used)
            if missing:
                stack.extend(missing)
                continue
            known[one] = any(map(known.__getitem__, inputs))
            stack.pop()
        return known[node]

    def note_index(self, number: NumberProxy, name: str) -> None:
        """Hear that a call of the function or method `name` has read a number."""
        if self._ended and not number.is_fixed:
            raise self._is_over("a number")
        if not self.paused and not self._ended:
            self.check_thread()
            self._read_numbers.append((number, name))

    def _settle_reads(self, name: str, args: Any = (), kwargs: Any = None) -> None:
        """Hear what numbers were read for: those that the call `name` was given are in the graph, others are fixed."""
        reads, self._read_numbers = self._read_numbers, []
        session = active.get()
        if session is not None:
            session.settle()
        given = {id(number) for number in numbers_in((args, kwargs or {}))} if name else set()
        for number, reader in reads:
            if not (reader == name and id(number) in given):
                self.fix(number)

    def note_size_made(self, number: NumberProxy) -> None:
        """Hear that the program makes a ``torch.Size`` of a number, which has asked for the very number."""
        if self.paused or self._ended or self.opens_sizes or number.is_exact or not self.is_tracing_here():
            return
        place = place_in_program()
        # It would raise an error of its own in the place of one that is raised here.
        self.refuse_in_the_end(
            MissedSizeError(
                f"Cannot trace: a torch.Size is made of a number that hangs on the inputs{place}. Use a tuple.",
                code="FXP-T068",
            )
        )

    def check_thread(self) -> None:
        """Refuse what another thread of the program does with a traced number.

        Raises:
            TraceError: It is another one.
        """
        if not self.is_tracing_here():
            error = TraceError(
                f"Cannot record what the program does with a traced number in another thread{place_in_program()}: "
                "torch does not tell of its calls there. Compute it in this thread.",
                code="FXP-T061",
            )
            self.note_refusal(error)
            raise error

    def _is_over(self, what: Any) -> TraceError:
        return TraceError(
            f"Cannot use {what}: the trace is over, and a number that was traced is used behind it. Look for a traced "
            "value that the program keeps in a list, an attribute or a global.",
            code="FXP-T011",
        )
