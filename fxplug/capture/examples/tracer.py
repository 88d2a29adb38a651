"""The tracer that captures a program while it runs on example inputs."""

from __future__ import annotations

import copy
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from types import BuiltinFunctionType
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import nn
from torch.nn.parameter import is_lazy
from torch.overrides import TorchFunctionMode

from fxplug.capture.examples.asking import INSIDE
from fxplug.capture.examples.canonical import canonical_call
from fxplug.capture.examples.guarding import GuardCollector, expression
from fxplug.capture.examples.inputs import InputReceiver
from fxplug.capture.examples.numbers import NumberProxy, Part, SizeProxy
from fxplug.capture.examples.parts import tensors_in
from fxplug.capture.examples.values import PLAIN
from fxplug.capture.interception import original_call
from fxplug.capture.opaque import OpaqueCall, check_functions
from fxplug.capture.questions import refuse_cycles
from fxplug.capture.roots import has_own_call
from fxplug.capture.sessions import active
from fxplug.capture.sources import place_in_program
from fxplug.capture.state import training_error
from fxplug.errors import TraceError
from fxplug.ir import PURE, Argument, Effect, Graph, ModuleScope, Node, effects
from fxplug.semantics.internals import (
    TorchDispatchMode,
    buffers_of,
    has_backward_hooks,
    is_about_missing_data,
    put_on,
    put_on_calls,
    rank_of,
    remove_mode,
    take_off,
    take_off_calls,
    tensor_tables,
    with_data,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from types import TracebackType

    from fxplug.capture.policy import TracePolicy
    from fxplug.capture.sessions import Session

__all__ = ["ExampleTracer"]

_QUESTIONS = frozenset({"dim", "ndim", "ndimension", "shape", "size"})
_KEPT = (
    # These read the memory of a tensor, or its values, which is not heard; that they are called is.
    *(copy.copy, copy.deepcopy, torch.from_dlpack, torch.get_rng_state, nn.Parameter.__new__),
    *(torch.func.jacrev, torch.func.jacfwd, torch.func.hessian),
)
"""Functions that stay calls."""
_LIBRARIES = frozenset({"_operator", "torch"})
"""Where functions come from whose effect hangs on nothing but how they are called."""
_TRANSFORMS = frozenset({torch.func.jacrev, torch.func.jacfwd, torch.func.hessian})
"""What makes a function that runs another one in several other transforms."""
_EXACT = frozenset({"__bool__", "__complex__", "__float__", "__index__", "__int__", "__len__"})
"""Methods from which Python takes nothing but a number of its own."""
_ESCAPES = frozenset(
    {
        *("numpy", "__array__", "__array_wrap__", "__dlpack__", "__cuda_array_interface__", "map_", "apply_"),
        *("untyped_storage", "storage", "_typed_storage", "__reduce_ex__", "share_memory_"),
    }
)
"""What hands out the values of a tensor, or acts on them, where torch does not tell what is done with them."""


class _TorchCalls(TorchFunctionMode):
    """Hears of every call of torch that the program makes."""

    def __init__(self, tracer: ExampleTracer) -> None:
        super().__init__()
        self._tracer = tracer

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Hear of a call."""
        tracer = self._tracer
        if tracer.paused or not tracer.is_tracing_here():
            return func(*args, **(kwargs or {}))
        return tracer.on_torch_call(func, types, args, kwargs or {})

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Take the mode away, and nothing that the program may have put on top of it."""
        remove_mode(self)


class _Operators(TorchDispatchMode):
    """Hears of every operator that runs outside of the calls that torch tells of."""

    def __init__(self, tracer: ExampleTracer) -> None:
        super().__init__()
        self._tracer = tracer

    def __torch_dispatch__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Hear of an operator."""
        tracer = self._tracer
        if tracer.paused or not tracer.is_tracing_here():
            return func(*args, **(kwargs or {}))
        return tracer.on_operator(func, args, kwargs or {})


class ExampleTracer(InputReceiver):
    """Captures a program by running it on example inputs.

    Tensors stay the tensors that they are, so that everything the program asks of them gets its true answer; torch
    tells of every call (`torch.overrides.TorchFunctionMode`), and a tensor is known by its identity. Numbers that hang
    on the inputs are stand-ins (`fxplug.capture.examples.numbers`), whose comparisons become guards.

    Args:
        example_args: Positional inputs.
        example_kwargs: Keyword inputs.
        mode: ``"value"``, or ``"shape"`` when the inputs are tensors without data.
        policy: Answers of others to the tracer's questions.
    """

    hears_tensor_attributes = False
    around: AbstractContextManager[Any] = nullcontext()
    """Entered while the program runs."""

    def __init__(
        self,
        example_args: Sequence[Any],
        example_kwargs: Mapping[str, Any],
        *,
        mode: str = "value",
        policy: TracePolicy | None = None,
    ) -> None:
        self._examples = (tuple(example_args), dict(example_kwargs))
        self.mode = mode
        super().__init__(policy=policy)

    def _reset(self) -> None:
        super()._reset()
        self.hears_every_attribute = False
        # Without data there is another mode that takes operators for its own.
        self._operators = _Operators(self) if self.mode == "value" else None
        self._pure: set[tuple[str, Any]] = set()
        self._effects: dict[tuple[Any, ...], Effect] = {}
        self._default_dtype = torch.get_default_dtype()
        self._sizes: dict[Node | Part, SizeProxy] = {}
        self._assigned: dict[str, tuple[dict[str, Any], str, torch.Tensor]] = {}

    def _trace(self, root: Any, concrete_args: Any) -> Graph:
        _refuse_lazy(root)
        self.autowrap_functions = (*self.autowrap_functions, *_KEPT)
        if isinstance(root, nn.Module) and has_own_call(type(root)):
            self.traced_func_name = "__call__"
        graph = super()._trace(root, concrete_args)
        self._guard_inputs()
        self.guard_graph, self.guards = self._guards.finish()
        self._drop_asides()
        return graph

    def torch_calls(self, session: Session) -> AbstractContextManager[Any]:
        """Return what hears of calls of torch while it is entered."""
        self._calls = _TorchCalls(self)
        return self._calls

    def _run(self, run: Callable[..., Any], values: list[Any]) -> Any:
        self._guards = GuardCollector(self.graph)
        for node in self._scalar_inputs:
            self._guards.add_input(node)

        def run_and_pause(*values: Any) -> Any:
            try:
                # What was compiled runs as it was written, so that it is heard of.
                with torch.compiler.set_stance("force_eager"), self.around, self._operators or nullcontext():
                    result = run(*values)
                self._settle_reads("")
                self._record_assigned_buffers()
                self._record_changes()
            finally:
                self.paused += 1
            return result

        try:
            return super()._run(run_and_pause, values)
        finally:
            self._snapshots.restore()
            for generator, state, _ in self._generators.values():
                generator.set_state(state)

    def _drop_asides(self) -> None:
        """Remove what was recorded for questions alone."""
        for node in reversed(self._asides):
            if not node.users:
                self.graph.erase_node(node)

    def on_torch_call(
        self, function: Callable[..., Any], types: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Record a call of torch, make it, and return its result."""
        name = getattr(function, "__name__", "")
        if self._read_numbers:
            self._settle_reads(name, args, kwargs)
        if name == "__get__":
            name = cast("Any", function).__self__.__name__
        foreign = _foreign_handler(types)
        if foreign is not None:  # What it does is heard, one call after the other.
            with self._calls:
                return foreign.__torch_function__(function, types, args, kwargs)
        if name in _QUESTIONS and len(args) == 1 and not kwargs:
            answer = self._known_answer(name, args[0])
            if answer is not None:
                return answer
        if name in _ESCAPES and self._is_traced(args[0] if args else None):
            error = self._escape(name)
            self.note_refusal(error)
            raise error
        plain = self._plain_arguments_of((*args, *kwargs.values()) if kwargs else args)
        if plain is not None:
            result = self._call_plainly(function, args, kwargs, plain)
            return self._exact(result) if name in _EXACT else result
        real_args, real_kwargs = self._real(args), self._real(kwargs)
        if not self._holds_traced(args) and not self._holds_traced(kwargs):
            return self._call_aside(function, args, kwargs)
        kind, target, node_args, node_kwargs = canonical_call(function, args, kwargs)
        node = self._record(kind, target, node_args, node_kwargs)
        result = self._make(node, function, real_args, real_kwargs)
        if type(result) is SizeProxy and len(args) == 1:
            self._sizes[self._known[id(args[0])][1]] = result
        return self._exact(result) if name in _EXACT else result

    def _call_plainly(
        self,
        function: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        plain: tuple[Argument, ...],
    ) -> Any:
        """Record and make a call whose arguments, positional and then named, are arguments of a graph already."""
        if kwargs:
            count = len(args)
            named = dict(zip(kwargs, plain[count:], strict=True))
            node = self.create_node(*canonical_call(function, plain[:count], named))
        else:
            node = self.create_node(*canonical_call(function, plain, kwargs))
        result = self._make(node, function, args, kwargs)
        if result.__class__ is SizeProxy and args[0].__class__ is nn.Parameter:
            self._sizes[self._known[id(args[0])][1]] = result
        return result

    def _exact(self, result: Any) -> Any:
        """Return the very number, which is guarded to be what it is, for a result that may stand for one."""
        if not isinstance(result, NumberProxy):
            return result
        self.fix(result)
        return result.value

    def _plain_arguments_of(self, args: tuple[Any, ...]) -> tuple[Argument, ...] | None:
        """Return arguments of a graph for tensors and plain values that are what calls are given; None for others."""
        if self.without_data is not None:
            return None
        found: list[Argument] = []
        known = self._known
        has_tensor = False
        for value in args:
            kind = type(value)
            if kind is torch.Tensor or kind is nn.Parameter:
                entry = known.get(id(value))
                source = self._lift_tensor(value) if entry is None else entry[1]
                if source.__class__ is not Node:
                    return None
                found.append(cast("Node", source))
                has_tensor = True
            elif kind in PLAIN or ((kind is tuple or kind is list) and _are_plain(value)):
                found.append(value)
            else:
                return None
        return tuple(found) if has_tensor else None

    def _known_answer(self, name: str, tensor: Any) -> Any:
        """Return the number of dimensions of a traced tensor, or its sizes if they were asked for before."""
        if not self._is_traced(tensor):
            return None
        self._ask_rank()
        if name not in {"shape", "size"}:
            if tensor.__class__ is torch.Tensor:
                return rank_of(tensor)
            self.paused += 1
            rank = torch.Tensor.dim(tensor)
            self.paused -= 1
            return rank
        known = self._known.get(id(tensor))
        return None if known is None else self._sizes.get(known[1])

    def on_operator(self, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Hear of an operator that none of torch's functions has told of: scripted code runs it, or a constructor."""
        if function is torch.ops.aten.lift_fresh.default:
            # Made of values of Python: a new tensor in every call.
            self._lift_fresh(args[0])
            return args[0]
        if not (self._holds_traced(args) or self._holds_traced(kwargs)):
            return self._call_aside(function, args, kwargs)
        return self._make(self._record("call_function", function, args, kwargs), function, args, kwargs)

    def _lift_fresh(self, tensor: torch.Tensor) -> None:
        self.paused += 1
        values = tensor.clone()
        self.paused -= 1
        constant = self._lift(values, "_tensor_constant")
        node = self.create_node("call_method", "clone", (constant,), {})
        self._constant.add(node)
        self._asides += [constant, node]
        self._known[id(tensor)] = (tensor, node)

    def record_call(self, function: Callable[..., Any], args: tuple[Any, ...]) -> Any:
        """Record a call of a function of Python on numbers."""
        if self.paused or not self.is_tracing_here():
            if self._ended:
                raise self._is_over(function)
            return function(*self._real(args))
        return self._make(self._record("call_function", function, args, {}), function, self._real(args), {})

    def on_function_call(
        self, target: Any, original: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Hear of a call of a function that stays a call."""
        if self.paused:
            return original(*args, **kwargs)
        if target in _TRANSFORMS:
            return partial(self._call_transformed, target, original(*args, **kwargs), args[0])
        if target is not torch.get_rng_state and not (self._holds_traced(args) or self._holds_traced(kwargs)):
            return original(*args, **kwargs)
        if target is nn.Parameter.__new__ and args[0] is nn.Parameter:
            target, args, original = nn.Parameter, args[1:], partial(original, nn.Parameter)
        node = self._record("call_function", target, args, kwargs)
        if target is torch.get_rng_state:
            with with_data():
                return self._stand_in(self.run_unheard(original), node, writes=False)
        return self._make(node, partial(self.run_unheard, original), self._real(args), self._real(kwargs))

    def _call_transformed(
        self, transform: Any, transformed: Any, function: Any, /, *args: Any, **kwargs: Any
    ) -> Any:
        """Record a call of what a transform of torch has made of a function as one call."""
        call = OpaqueCall(transformed, args, kwargs, (function,), partial(transformed, *args, **kwargs))
        call.name = f"torch.func.{transform.__name__}"
        return self.on_opaque_call(call)

    def on_seeding(self, original: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Hear that the random numbers of torch are set: the captured program sets them, too."""
        if self.paused:
            return original(*args, **kwargs)
        target = getattr(torch, original.__name__)
        node = self._record("call_function", target, args, kwargs)
        self._has_acted = True
        with with_data():
            self.run_unheard(original, *args, **self._real(kwargs))
        if target is torch.manual_seed:
            return torch.default_generator
        return (
            None
            if node.target is torch.set_rng_state
            else self._exact(self._stand_in(torch.initial_seed(), node, writes=False))
        )

    def on_opaque_call(self, call: OpaqueCall) -> Any:
        """Hear of a call that stays whole.

        Raises:
            TraceError: A function that it is given holds traced values, which the graph cannot follow.
        """
        run = cast("partial[Any]", call.run)
        if self.paused:
            return run()
        functions = tuple([part for part in call.functions if id(part) not in self._paths])
        check_functions(
            call, functions, lambda part: isinstance(part, NumberProxy) or id(part) in self._known
        )
        node = self._record("call_function", call.target, call.args, call.kwargs)
        args, kwargs = self._real(run.args), self._real(run.keywords)
        return self._make(node, partial(self.run_unheard, run.func), args, kwargs)

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

    def _record(self, kind: str, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Node:
        """Record a call that is about to be made."""
        if self._read_numbers:
            self._settle_reads("")
        try:
            node_args = cast("tuple[Argument, ...]", self.create_arg(args))
            node_kwargs = cast("dict[str, Argument]", self.create_arg(kwargs)) if kwargs else {}
        except RecursionError:
            refuse_cycles((args, kwargs))
            raise
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
            value = function(*args, **kwargs)
        except Exception as error:
            self.paused -= 1
            if self.mode == "shape" and is_about_missing_data(error):
                raise self._note_refusal_of_values(node) from error
            # The program may catch it. Where it goes on hangs on the sizes of what it gave.
            node_args = node.args
            self.graph.erase_node(node)
            self._fix_sizes(node_args)
            raise
        finally:
            if is_off:
                put_on(operators)
        self.paused -= 1
        if value is NotImplemented:  # Python asks the other operand, or answers by itself.
            self.graph.erase_node(node)
            return value
        if effect is PURE and self._constant:
            self._note_constant(node)
        if value.__class__ is torch.Tensor:
            return self._bind(value, node, writes=effect is not PURE and bool(effect.writes))
        return self._stand_in(value, node, writes=bool(effect.writes))

    def _effect_of(self, node: Node) -> Effect:
        """Return the effect of a call; that of a call of the same kind is found out once."""
        target, args, kwargs = node.target, node.args, node.kwargs
        try:
            if not kwargs and (node.op, target) in self._pure and bool not in map(type, args):
                return PURE
            # What a call does may hang on the values that are given with it, such as flags, and on what is left out.
            given: list[Any] = [node.op, target]
            for value in (*args, *kwargs, *kwargs.values()):
                given.append(value.__class__)
                if value.__class__ is not Node:
                    given.append(value)
            key = tuple(given)
            known = self._effects.get(key)
        except TypeError:  # Something that cannot be looked up.
            return effects.effect_of(node, self.root)
        return self._find_effect(node, key) if known is None else known

    def _find_effect(self, node: Node, key: tuple[Any, ...]) -> Effect:
        effect = effects.effect_of(node, self.root)
        if effect.is_pure:
            effect = PURE
        target: Any = node.target
        if node.op == "call_method" or str(getattr(target, "__module__", "")).partition(".")[0] in _LIBRARIES:
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
        if not (effect.writes or effect.unknown):
            return
        self._has_written = True
        self.paused += 1
        try:
            for tensor in tensors_in((*args, *kwargs.values()) if kwargs else args):
                if self._snapshots.shares_memory(tensor):
                    self._has_acted = True
                    self._snapshots.before_write(tensor)
        finally:
            self.paused -= 1

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
        self.paused += 1
        is_off = take_off(self._operators)
        try:
            value = function(*args, **kwargs)
        finally:
            self.paused -= 1
            if is_off:
                put_on(self._operators)
        if not any(True for _ in tensors_in(value)):
            return value
        if isinstance(value, torch.Tensor) and any(_is_array(given) for given in (*args, *kwargs.values())):
            self._lift_fresh(value)
            return value
        kind, target, node_args, node_kwargs = canonical_call(function, args, kwargs)
        if isinstance(value, torch.Tensor) and torch.get_default_dtype() is not self._default_dtype:
            node_kwargs = {
                "dtype": value.dtype,
                **node_kwargs,
            }  # The program has set another one for a while.
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

    def _note_refusal_of_values(self, node: Node) -> TraceError:
        error = TraceError(
            f"Cannot trace in shape mode: {expression(node, INSIDE)} needs the values of tensors{place_in_program()}, "
            "and there are only their sizes. Trace in value mode (mode='value'), or make the enclosing module a leaf.",
            code="FXP-T066",
        )
        self.note_refusal(error)
        return error

    def _escape(self, name: str) -> TraceError:
        return TraceError(
            f"Cannot trace: {name}() of a traced tensor hands its values to something that torch does not hear of"
            f"{place_in_program()}. Keep to operations of torch, or make the enclosing function a leaf (fxplug.wrap).",
            code="FXP-T063",
        )

    def on_module_call(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Hear of a call of a module."""
        if self.paused:
            return original_call(module, *args, **kwargs)
        unwrap = self.policy.unwrap_module
        inner = unwrap(module) if unwrap is not None else None
        if inner is not None and inner is not module:
            return self.on_module_call(inner, args, kwargs)
        path = self._paths.get(id(module))
        is_scripted = isinstance(module, torch.jit.ScriptModule)
        # Hooks on gradients belong to the call of the module itself.
        is_whole = is_scripted or has_backward_hooks(module)
        if path is not None and (is_whole or self._is_leaf(module, path)):
            return self._call_leaf(module, path, args, kwargs)
        name = path if path is not None else f"<{type(module).__name__}>"
        return self.enter_module(name, module, partial(original_call, module), args, kwargs)

    def _call_leaf(self, module: nn.Module, path: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        place = self._place
        former = place.scope
        place.scope = ModuleScope(path, type(module), former)
        try:
            if module.training:
                self._save_buffers(module)
            plain = None if kwargs or self._read_numbers else self._plain_arguments_of(args)
            if plain is not None:
                node = self.create_node("call_module", path, plain, {})
            else:
                node = self._record("call_module", path, args, kwargs)
                args, kwargs = self._real(args), self._real(kwargs)
            run = partial(self.run_unheard, original_call, module)
            return self._make(node, run, args, kwargs, effects.effect_of_module(node, module))
        finally:
            place.scope = former

    def _save_buffers(self, module: nn.Module) -> None:
        self.paused += 1
        try:
            for buffer in module.buffers():
                self._snapshots.add(buffer)
                self._snapshots.before_write(buffer)
        finally:
            self.paused -= 1

    def on_module_attribute(self, module: nn.Module, name: str, value: Any) -> Any:
        """Hear that a parameter or buffer was read: it is known by its identity."""
        return value

    def on_module_assignment(self, module: nn.Module, name: str, value: Any) -> bool:
        """Hear that an attribute is about to be assigned; it is, until the trace ends."""
        prefix = self._paths.get(id(module))
        if prefix is None:
            return False
        self._states.remember(module, prefix)
        if name == "training" and value is not module.training:
            self._record_mode(module, prefix, mode=value)
        buffers = buffers_of(module)
        path = f"{prefix}.{name}" if prefix else name
        former = buffers.get(name)
        if former is not None and isinstance(value, torch.Tensor) and path not in self._assigned:
            self._assigned[path] = (cast("dict[str, Any]", buffers), name, former)
        return False

    def _record_mode(self, module: nn.Module, path: str, *, mode: bool) -> None:
        """Record that a module is switched between training and evaluation.

        The root is refused: a captured program does not know its root by a path.
        """
        if not path:
            self._states.refuse(training_error("training"))
            return
        node = self.create_node("get_attr", path, (), {})
        self.create_node("call_function", setattr, (node, "training", mode), {})
        self._has_acted = True

    def _record_assigned_buffers(self) -> None:
        """Record what the program assigned to buffers as an update of each, at the end of the program."""
        for buffers, name, former in self._assigned.values():
            value = buffers.get(name)
            if not isinstance(value, torch.Tensor) or value is former:
                continue
            self.paused += 1
            fits = (value.shape, value.dtype, value.device) == (former.shape, former.dtype, former.device)
            self.paused -= 1
            if fits:
                node = self._record("call_method", "copy_", (former, value), {})
                self._make(node, lambda *_: None, (former, value), {})
                buffers[name] = former


def _are_plain(values: Iterable[Any]) -> bool:
    return PLAIN.issuperset(map(type, values))


def _refuse_lazy(root: Any) -> None:
    """Refuse a module whose parameters have no size yet: running it would give them one.

    Raises:
        TraceError: It is one.
    """
    if not isinstance(root, nn.Module):
        return
    # One of each class tells whether there are any.
    tensors = {type(value): value for table in tensor_tables(root) for value in table.values()}
    if any(map(is_lazy, tensors.values())):
        lazy = [name for name, value in [*root.named_parameters(), *root.named_buffers()] if is_lazy(value)]
        raise TraceError(
            f"Cannot trace {type(root).__name__} with example inputs: {', '.join(lazy)} have no size yet, and would "
            "get one from the examples. Run the module once on inputs first.",
            code="FXP-T069",
        )


def _foreign_handler(types: Any) -> Any:
    """Return the class of an argument that is no tensor, but takes calls of torch upon itself; else None."""
    for kind in types:
        if not issubclass(kind, (torch.Tensor, NumberProxy)):
            return kind
    return None


def _is_array(value: Any) -> bool:
    return type(value).__module__ == "numpy" and type(value).__name__ == "ndarray"
