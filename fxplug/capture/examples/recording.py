"""Recording calls, and making them."""

from __future__ import annotations

import operator
from contextlib import nullcontext
from functools import partial
from types import BuiltinFunctionType
from typing import TYPE_CHECKING, Any, cast

import torch

from fxplug.capture.arrays import holds_array
from fxplug.capture.callforms import is_of_library, tells_sizes_apart
from fxplug.capture.examples.arrays import FreshTensors, outlives, write_to_array
from fxplug.capture.examples.asking import INSIDE, changes_rank
from fxplug.capture.examples.canonical import canonical_call
from fxplug.capture.examples.evaluating import UNKNOWN_VALUE, evaluated, with_any_filling
from fxplug.capture.examples.failing import caught_failure, fails_by_kinds
from fxplug.capture.examples.guarding import expression, guard_of
from fxplug.capture.examples.inputs import InputReceiver
from fxplug.capture.examples.parts import nodes_in, numbers_in, tensors_in
from fxplug.capture.examples.snapshots import WritesInside
from fxplug.capture.questions import refuse_cycles
from fxplug.capture.sessions import active
from fxplug.capture.sources import place_in_program
from fxplug.errors import TraceError
from fxplug.ir import PURE, Argument, Effect, Node, effects
from fxplug.semantics.checks import check_raises
from fxplug.semantics.internals import (
    is_about_missing_data,
    is_factory,
    modules_below,
    put_on,
    put_on_calls,
    storage_of,
    take_off,
    take_off_calls,
    with_data,
)

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["CallRecorder"]


class CallRecorder(InputReceiver):
    """A tracer that makes each call that it records, and knows what comes of it."""

    _operators: Any
    """What hears of operators, None where nothing does."""

    def _reset(self) -> None:
        super()._reset()
        self._pure: set[tuple[str, Any]] = set()
        self._default_dtype = torch.get_default_dtype()
        self._effects: dict[tuple[Any, ...], Effect] = {}
        self._fresh = FreshTensors()
        self._of_arrays: set[Any] = set()
        """The memory of arrays of NumPy that is not to be written to."""
        self._failures: list[TraceError] = []
        """What is to be said of calls that have failed, if the program catches their errors."""

    def record_call(self, function: Callable[..., Any], args: tuple[Any, ...]) -> Any:
        """Record a call of a function of Python on numbers."""
        if self._ended and not all(number.is_fixed for number in numbers_in(args)):
            raise self._is_over(function)
        if self.paused or self._ended:
            return function(*self._real(args))
        self.check_thread()
        return self._make(self._record("call_function", function, args, {}), function, self._real(args), {})

    def run_unheard(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        """Call a function as if nothing were traced."""
        calls = self._calls
        token = active.set(None)
        is_off = take_off_calls(calls)
        try:
            return function(*args, **kwargs)
        finally:
            if is_off:
                put_on_calls(calls)
            active.reset(token)

    def run_kept(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        """Make a call that stays one, and whose code is not looked at.

        What it writes is put back.
        """
        with self.hearing_writes():
            return self.run_drawing(function, *args, **kwargs)

    def hearing_writes(self) -> WritesInside:
        """Return what hears of the writes of code that is not looked at, while it is entered."""
        self._aloof(self.note_before_unheard)
        return WritesInside(self._snapshots, self._made_inside, self._viewed_inside)

    def run_drawing(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        """Make a call that stays one: what it draws of random numbers, the captured program draws, too."""
        with nullcontext() if self._draws is None else self._draws.kept():
            return self.run_unheard(function, *args, **kwargs)

    def _record(self, kind: str, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Node:
        """Record a call that is about to be made."""
        if self._read_numbers:
            self._settle_reads("")
        former = self.keeps_sizes
        self.keeps_sizes = former or tells_sizes_apart(kind, target)
        try:
            node_args = cast("tuple[Argument, ...]", self.create_arg(args))
            node_kwargs = cast("dict[str, Argument]", self.create_arg(kwargs)) if kwargs else {}
        except RecursionError:
            refuse_cycles((args, kwargs))
            raise
        finally:
            self.keeps_sizes = former
        return self.create_node(kind, target, node_args, node_kwargs)

    def _make(
        self,
        node: Node,
        function: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        effect: Effect | None = None,
    ) -> Any:
        """Make a call that was recorded, and return what stands for its result.

        Args:
            node: The call.
            function: Makes it.
            args: What it is given: tensors and real numbers.
            kwargs: The same, by keyword.
            effect: What the call does, where that is known already.
        """
        if effect is None:
            effect = self._effect_of(node)
        if effect is not PURE:
            self._before_effect(effect, args, kwargs)
        self.paused += 1
        operators = self._operators
        is_off = take_off(operators)
        try:
            value = function(*args, **kwargs) if kwargs else function(*args)
        except Exception as error:
            self.paused -= 1
            if self.mode != "shape" or not is_about_missing_data(error):
                # The program may catch it, and go on in another way than it does where the call succeeds.
                self._record_failure(node, error, partial(function, *args, **kwargs), is_free=effect.is_pure)
                raise
            value = self._value_without_data(node, function, args, kwargs, error)
        else:
            self.paused -= 1
        finally:
            if is_off:
                put_on(operators)
        if value is NotImplemented:  # Python asks the other operand, or answers by itself.
            return self._leave_to_python(node, args)
        if effect is PURE and self._constant:
            self._note_constant(node)
        if value.__class__ is torch.Tensor and node.target is not getattr:
            return self._bind(value, node, writes=effect is not PURE and bool(effect.writes))
        return self._stand_in(value, node, writes=bool(effect.writes))

    def _leave_to_python(self, node: Node, args: tuple[Any, ...]) -> Any:
        """Forget a call of an operator that torch does not know for what it was given: ``mask == "a"``."""
        if not any(one is None for one in args):  # None is guarded by itself.
            self._compared_with_others.update(
                entry[1] for one in args if (entry := self._known.get(id(one))) is not None
            )
        self.graph.erase_node(node)
        return NotImplemented

    def _value_without_data(
        self,
        node: Node,
        function: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        error: Exception,
    ) -> Any:
        """Return the value of a call that torch could not make without data, where it is known all the same.

        Args:
            node: The call.
            function: Makes it.
            args: What it is given.
            kwargs: The same, by keyword.
            error: What torch has said.

        Raises:
            TraceError: It is not known.
        """
        given = with_any_filling(function, args, kwargs)
        if given is not None:
            return self._aloof(partial(function, **given[1]), *given[0])
        value = self._aloof(evaluated, node, self.graph, self.root, self._known)
        if value is UNKNOWN_VALUE:
            raise self._note_refusal_of_values(node) from error
        if isinstance(value, torch.Tensor):
            return self._aloof(self.without_data.from_tensor, value)
        if any(True for _ in tensors_in(value)):
            raise self._note_refusal_of_values(node) from error
        return value

    def _record_failure(
        self, node: Node, error: Exception, call: partial[Any] | None = None, *, is_free: bool
    ) -> None:
        """Record that a call must fail again, in place of the call, or see to it that the program is refused.

        Args:
            node: The call.
            error: What it has raised, which the program may catch.
            call: Makes the call of a function or method.
            is_free: Whether the call does nothing but to compute a result, so that it can be tried.
        """
        # Layers are called as if nothing were traced, and what is recorded here is heard of.
        token = active.set(active.get() or self._place.session)
        try:
            if is_free:
                self._check_failure(node, error)
            elif call is not None and self._fails_for_kinds(node, error, call):
                given = node.args, node.kwargs
                self.graph.erase_node(node)
                self._fix_sizes(given)
                self._fix_dtypes(given)
            else:
                self._failures.append(caught_failure(node, error))
                self.graph.erase_node(node)
        finally:
            active.reset(token)

    def _check_failure(self, node: Node, error: Exception) -> None:
        """Record a check that a call which writes nothing fails again, in place of the call."""
        said = guard_of(node, f"{expression(node, INSIDE)} raising {type(error).__name__}")
        again, target = bool(not self._has_acted), node.target
        kind, args, kwargs = type(error), node.args, node.kwargs
        is_module = node.op == "call_module"
        self.graph.erase_node(node)
        function: Any = target
        if is_module:
            path = str(target)
            for inner, part in modules_below(self.root.get_submodule(path)):
                # In training it may write, and a check must not.
                self._surroundings.note_flags(f"{path}.{inner}".strip("."), part)
            function = self.create_node("get_attr", path, (), {})
        self.create_node("call_function", check_raises, (function, kind, str(said), again, args, kwargs), {})

    def _fails_for_kinds(self, node: Node, error: Exception, call: partial[Any]) -> bool:
        """Return whether a call of torch that writes fails for all tensors with the sizes and dtypes that there are."""
        effect = self._effect_of(node)
        if effect.outside or effect.unknown or not (node.op == "call_method" or is_of_library(node.target)):
            return False
        known = {source if isinstance(source, Node) else source.node for _, source in self._known.living()}
        # Numbers that hang on the inputs are not guarded.
        are_tensors = all(one in known for one in node.all_input_nodes)
        return are_tensors and self._aloof(fails_by_kinds, error, call.func, call.args, call.keywords)

    def _fix_dtypes(self, args: Any) -> None:
        """Take it that the tensors among the arguments of a call have the dtypes that they have now."""
        for tensor, source in self._known.living():
            node = source if isinstance(source, Node) else source.node
            if node is not None and node in nodes_in(args):
                dtype = self._aloof(getattr, tensor, "dtype")
                self._fix_value(self._aside_of("call_function", getattr, (node, "dtype")), dtype)

    def _refuse_what_was_caught(self) -> None:
        super()._refuse_what_was_caught()
        if self._failures and self.problems is None:
            raise self._failures[0]

    def _effect_of(self, node: Node) -> Effect:
        """Return the effect of a call; that of a call of the same kind is found out once."""
        op, target, args, kwargs = node.op, node.target, node.args, node.kwargs
        try:
            if not kwargs and (op, target) in self._pure and bool not in map(type, args):
                if target is operator.getitem and not self._has_changed_ranks:
                    self._has_changed_ranks = changes_rank(node)  # It hangs on the index.
                return PURE
            # What a call does may hang on the values that are given with it, such as flags, and on what is left out.
            given: list[Any] = [op, target]
            for value in (*args, *kwargs, *kwargs.values()):
                given.append(value.__class__)
                if value.__class__ is not Node:
                    given.append(value)
            key = tuple(given)
            known = self._effects.get(key)
        except TypeError:  # Something that cannot be looked up.
            return self._find_effect(node, None)
        return self._find_effect(node, key) if known is None else known

    def _find_effect(self, node: Node, key: tuple[Any, ...] | None) -> Effect:
        self._has_changed_ranks = self._has_changed_ranks or changes_rank(node)
        effect = effects.effect_of(node, self.root)
        if effect.is_pure:
            effect = PURE
        target: Any = node.target
        # Their effect hangs on nothing but how they are called.
        if key is not None and (node.op == "call_method" or is_of_library(target)):
            self._effects[key] = effect
        # Flags may make a call of the same function do something else.
        has_flag = bool(node.kwargs) or any(type(value) is bool for value in node.args)
        if (
            effect is PURE
            and not has_flag
            and (node.op == "call_method" or type(target) is BuiltinFunctionType)
        ):
            self._pure.add((node.op, target))
        return effect

    def _before_effect(self, effect: Effect, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if effect.must_be_kept:
            self._constant.clear()
        if effect.random or effect.outside:
            self._has_acted = True
        if effect.writes or effect.unknown:
            self._note_write()
            for tensor in tensors_in((*args, *kwargs.values())):
                self._before_write(tensor)

    def _note_write(self) -> None:
        """Hear that something is about to be written to: what was asked of elements may be another thing then."""
        self._has_written = True
        self._said.clear()

    def _before_write(self, tensor: torch.Tensor) -> None:
        """Hear that a tensor is about to be written to."""
        self._constant.clear()
        self._note_write()
        self._fresh.before_write(tensor)
        if self._of_arrays and storage_of(tensor) in self._of_arrays:
            error = write_to_array()
            self.note_refusal(error)
            raise error
        if self._snapshots.shares_memory(tensor):
            self._has_acted = True
            self._aloof(self._snapshots.before_write, tensor)
        elif self.without_data is not None and storage_of(tensor) in self._storages_from_before():
            self._has_acted = True

    def _storages_from_before(self) -> set[Any]:
        """Return the memory that stands for that of inputs, weights and buffers, where nothing has data."""
        twins = [twin for _, twin in self._twins.values()]
        return set(map(storage_of, (*twins, *(value for _, value in self._tensor_inputs))))

    def _note_constant(self, node: Node) -> None:
        if node.op in {"call_function", "call_method"}:
            known = self._constant
            for one in node.all_input_nodes:
                if one not in known:
                    return
            known.add(node)

    def _call_aside(self, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Make a call of torch that has nothing to do with the inputs; what it makes anew is recorded."""
        for value in (*args, *kwargs.values()):
            if isinstance(value, torch.Generator):
                self._lift_generator(value)  # Takes note of its state, before anything is drawn from it.
        has_array = any(map(holds_array, (*args, *kwargs.values())))
        self.paused += 1
        is_off = take_off(self._operators)
        try:
            # Of an array, there is data in every mode.
            with with_data() if has_array else nullcontext():
                value = function(*args, **kwargs)
        finally:
            self.paused -= 1
            if is_off:
                put_on(self._operators)
        if not any(True for _ in tensors_in(value)):
            return value
        if isinstance(value, torch.Tensor) and has_array:
            self._lift_fresh(value)
            if function is not torch.tensor:  # Which makes a copy.
                self._watch_array(value, (*args, *kwargs.values()))
            return value
        kind, target, node_args, node_kwargs = canonical_call(function, args, kwargs)
        is_set = self._settings.are_noted or torch.get_default_dtype() is not self._default_dtype
        if is_set and isinstance(value, torch.Tensor) and is_factory(function):
            # The program may have set others for a while.
            node_kwargs = {"dtype": value.dtype, "device": value.device, **node_kwargs}
        node = self.create_node(
            kind,
            target,
            cast("tuple[Argument, ...]", self.create_arg(node_args)),
            cast("dict[str, Argument]", self.create_arg(node_kwargs)),
        )
        effect = effects.effect_of(node, self.root)
        if effect.is_pure:
            self._note_constant(node)
        if not effect.must_be_kept:
            self._asides.append(node)
        else:
            self._has_acted = True
        return self._stand_in(value, node, writes=False)

    def _lift_fresh(self, tensor: torch.Tensor) -> None:
        self.paused += 1
        with with_data():
            values = tensor.detach().clone()
        self.paused -= 1
        self._fresh.add(tensor, values)
        constant = self._know_constant(values)
        node = self.create_node("call_method", "clone", (constant,), {})
        self._constant.add(node)
        self._asides.append(node)
        self._known[id(tensor)] = (tensor, node)

    def _know_constant(self, values: torch.Tensor) -> Node:
        """Let a tensor that nobody writes to be known as a constant of the graph."""
        constant = self._lift(values, "_tensor_constant")
        self._constant.add(constant)
        self._asides.append(constant)
        self._known[id(values)] = (values, constant)
        return constant

    def _watch_array(self, tensor: torch.Tensor, given: tuple[Any, ...]) -> None:
        """Let writes to a tensor be refused if it may have the memory of an array that is there for the next call."""
        if self.without_data is not None:
            self._of_arrays.add(storage_of(self._twin_of(tensor)))
        elif any(map(outlives, given)):
            self._of_arrays.add(storage_of(tensor))

    def _refuse_changed_arrays(self) -> None:
        self._aloof(self._fresh.refuse_changes)

    def _note_refusal_of_values(self, node: Node) -> TraceError:
        return self._refusal_of_values(expression(node, INSIDE))

    def _refusal_of_values(self, what: str) -> TraceError:
        error = TraceError(
            f"Cannot trace in shape mode: {what} needs the values of tensors{place_in_program()}, "
            "and there are only their sizes. Trace in value mode (mode='value'), or make the enclosing module a leaf.",
            code="FXP-T066",
        )
        self.note_refusal(error)
        return error
