"""The tracer that captures a program while it runs on example inputs."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import nn
from torch.nn.parameter import is_lazy
from torch.overrides import TorchFunctionMode

from fxplug.capture.attempts import is_attempt_with_numbers
from fxplug.capture.examples.assigned import SharedContainers, is_kept_for_gradients, parts_assigned
from fxplug.capture.examples.cached import NOTHING, computed_of_numbers, containers_in, exact_of, is_as_kept
from fxplug.capture.examples.earlier import EarlierValues
from fxplug.capture.examples.guarding import GuardCollector, expression, size_text
from fxplug.capture.examples.kinds import names_reached
from fxplug.capture.examples.layers import LayerCaller
from fxplug.capture.examples.listening import KEPT
from fxplug.capture.examples.made_like import nodes_besides
from fxplug.capture.examples.numbers import NumberProxy, SizeProxy
from fxplug.capture.examples.parts import numbers_in, tensors_in
from fxplug.capture.examples.structures import others_of
from fxplug.capture.examples.threads import watched
from fxplug.capture.examples.values import node_behind
from fxplug.capture.lazies import lazies_among
from fxplug.capture.pytrees import tell_sizes_from_tuples
from fxplug.capture.repeated import checked_by_both, with_all_before
from fxplug.capture.sessions import active
from fxplug.capture.state import speak_of, training_error
from fxplug.errors import TraceError
from fxplug.ir import Graph, Node
from fxplug.semantics.checks import check_like
from fxplug.semantics.internals import (
    LightDispatchMode,
    buffers_of,
    has_own_call,
    is_compiler_loaded,
    paths_and_modules_below,
    remove_mode,
    storage_of,
)
from fxplug.semantics.random_state import random_states

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from types import TracebackType

    from fxplug.capture.policy import TracePolicy
    from fxplug.capture.repeated import Recording
    from fxplug.capture.sessions import Session
    from fxplug.capture.tracer import Tracer

__all__ = ["ExampleTracer"]

_SIZES = frozenset({"shape", "size", "numel", "nelement", "dim", "ndim", "ndimension"})
_ScriptModule: type = torch.jit.ScriptModule
_FRAMES_OF_A_LEAF = 5
"""How far up the stack, seen from `Place.origin`, the call of a leaf stands: its record, and the interception of it."""


class _Over:
    """Stands for the tracer once the trace is over: nobody is told of anything, and nothing keeps the tracer alive."""

    paused = True


class _TorchCalls(TorchFunctionMode):
    """Hears of every call of torch that the program makes."""

    def __init__(self, tracer: ExampleTracer) -> None:
        super().__init__()
        self.tracer: Any = tracer
        """Who is told."""

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Hear of a call."""
        tracer = self.tracer
        # Written out (`is_tracing_here`): it is asked for every call of torch.
        if tracer.paused or (session := active.get()) is None or session.interceptor is not tracer:
            return func(*args, **(kwargs or {}))
        return tracer.on_torch_call(func, types, args, kwargs or {})

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Take the mode away, and nothing that the program may have put on top of it."""
        remove_mode(self)


class _Operators(LightDispatchMode):
    """Hears of every operator that runs outside of the calls that torch tells of."""

    def __init__(self, tracer: ExampleTracer) -> None:
        super().__init__()
        self.tracer: Any = tracer
        """Who is told."""

    def on_operator(self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Hear of an operator."""
        tracer = self.tracer
        if tracer.paused or not tracer.is_tracing_here():
            return func(*args, **kwargs)
        return tracer.on_operator(func, args, kwargs)


class ExampleTracer(LayerCaller):
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
    runs_leaves = True
    takes_defaults = False  # The examples say what the inputs are.
    keeps_what_is_held = False
    """Whether an assignment of what is there already, ``self.cache = self.cache.to(x)``, is guarded to be one."""
    fills_caches = False
    """Whether the next call may ask less than the first one: whether all calls are such as the guards let through."""
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

    def on_thread(self, run: Callable[..., Any]) -> Callable[..., Any]:
        """Return what a thread that the program starts is to run: what it would, and look what it is given."""
        return run if self.paused or not self.is_tracing_here() else watched(self, run)

    def is_traced_elsewhere(self, value: Any) -> bool:
        """Return whether a value that is met in another thread is one of the trace, while that runs."""
        is_known = id(value) in self._known or isinstance(value, NumberProxy)
        return is_known and not self._ended

    def _reset(self) -> None:
        super()._reset()
        self.hears_every_attribute = False
        # Without data there is another mode that takes operators for its own.
        self._operators = _Operators(self) if self.mode == "value" else None
        self._numbers_left: frozenset[str] = frozenset()
        self._likes_left: frozenset[str] = frozenset()
        self.assigns_what_is_held = False
        self._shared = SharedContainers()
        """Whether the program has made such an assignment."""
        self._assigned: dict[str, tuple[dict[str, Any], str, torch.Tensor]] = {}

    def _trace(self, root: Any, concrete_args: Any) -> Graph:
        modules: Sequence[nn.Module] = ()
        if isinstance(root, nn.Module):
            self._paths, self._below = paths_and_modules_below(root)
            modules = self._below
            _refuse_lazy(root, modules)
        self.autowrap_functions = (*self.autowrap_functions, *KEPT)
        self._names = names_reached(root, modules)
        self._look_around()
        if isinstance(root, nn.Module) and has_own_call(type(root)):
            self.traced_func_name = "__call__"
        try:
            graph = super()._trace(root, concrete_args)
        finally:
            self._earlier = EarlierValues()  # It holds what the user may want to be rid of.
        tell_sizes_from_tuples(graph)
        self._guard_inputs()
        self.guard_graph, self.guards = self._guards.finish(self._inputs)
        self._drop_asides()
        return graph

    def _let_go(self) -> None:
        super()._let_go()
        self._sizes.clear()  # Stand-ins for numbers know their tracer.
        for mode in (vars(self).get("_calls"), self._operators):
            if mode is not None:
                mode.tracer = _Over()

    def torch_calls(self, session: Session) -> AbstractContextManager[Any]:
        """Return what hears of calls of torch while it is entered."""
        self._calls = _TorchCalls(self)
        return self._calls

    def _run(self, run: Callable[..., Any], values: list[Any]) -> Any:
        self._guards = GuardCollector(self.graph)
        self._random = random_states()
        for node in self._scalar_inputs:
            self._guards.add_input(node)

        def run_and_pause(*values: Any) -> Any:
            try:
                with _as_written(), self.around, self._operators or nullcontext():
                    result = run(*values)
                self._settle_reads("")
                self._shared.refuse_changed()
                self._refuse_changed_arrays()
                self._refuse_lost_data()
                self._record_assigned_buffers(result)
                self._record_changes()
            finally:
                self.paused += 1
            return result

        try:
            return super()._run(run_and_pause, values)
        finally:
            self._aloof(self._snapshots.restore)
            self._hooks_on_tensors.restore()
            for generator, state, _ in self._generators.values():
                generator.set_state(state)

    def putting_back_outside(self) -> Callable[[], None]:
        """Return what puts back what is outside of the modules once more, after the program has run on its own."""
        put_back, hooks = super().putting_back_outside(), self._hooks_on_tensors

        def put_all_back() -> None:
            put_back()
            hooks.restore()

        return put_all_back

    def _take_after(self, other: Tracer, left: Any) -> None:
        first = cast("ExampleTracer", other)
        self._names, self.values = first._names, None
        self._has_changed_ranks = True  # What the first one has left may be of any number of dimensions.
        # The tensors of the first call are no inputs of the next one.
        self._examples = again = others_of(first._examples)
        given = {id(tensor) for tensor in tensors_in(again)}
        super()._take_after(first, left)
        left.is_ambiguous = any(id(value) in given for value in left.values)
        self._know_what_was_left(first, left, given)

    def _know_what_was_left(self, first: ExampleTracer, left: Any, given: set[int]) -> None:
        """Let what the first trace has made be known: what it has computed from its inputs, and what is constant."""
        inputs = {id(tensor) for _, tensor in first._tensor_inputs} - given
        for tensor, source in first._known.living():
            node = node_behind(source)
            key = id(tensor)
            if key in inputs or (node in left.changing and not first._snapshots.has_seen(tensor)):
                self._known[key] = (tensor, left.stand_in(node, self.graph))
                left.constants.discard(key)
            elif node in first._constant:
                constant = self._lift_left(tensor)
                self._constant.add(constant)
                self._known[key] = (tensor, constant)
            else:
                continue
            self._snapshots.add(tensor)
        for number in left.values:
            if isinstance(number, (NumberProxy, SizeProxy)) and number.recorder is first:
                stand_in = left.stand_in(node_behind(cast("Node", number.source)), self.graph)
                left.lend(number, source=stand_in, recorder=self)

    def _values_of_constants(self) -> dict[Node, torch.Tensor]:
        return {node: tensor for tensor, node in self._known.living() if isinstance(node, Node)}

    def node_of(self, value: Any) -> Node | None:
        """Return the node that a tensor is the value of, None where that is not known."""
        _, source = self._known.get(id(value), (None, None))
        return source if isinstance(source, Node) else None

    def _asked_again(self, first: Recording, second: Recording) -> Iterator[Sequence[Node]]:
        """Yield what a second trace has to ask of the questions of a trace; one that fills no cache may ask less."""
        if not self.fills_caches:
            yield from super()._asked_again(first, second)
            return
        again = set(map(expression, second.asked))
        asked = [node for node in first.asked if expression(node) in again]
        yield [*asked, *first.checks]
        yield [*asked, *checked_by_both(first, second)]

    def _note_left(self, values: Iterable[Any]) -> None:
        """Hear what a program has left by which its next call would answer: of which numbers is it made?"""
        values = list(values)
        stack = [self.node_of(value) for value in values if isinstance(value, torch.Tensor)]
        stack += [value.node for value in values if isinstance(value, NumberProxy)]
        found: set[Node] = set()
        likes: dict[Node, bool] = {}
        while stack:
            node = stack.pop()
            if node is None or node in found:
                continue
            if node.op == "placeholder" and node not in self._scalar_inputs:
                self._numbers_left = frozenset()  # It is made of the values of an input.
                return
            found.add(node)
            is_asked = node.target in _SIZES or (node.target is getattr and node.args[1] in _SIZES)
            if not is_asked:
                inputs, like, takes_sizes = nodes_besides(node)
                stack += inputs
                if like is not None:
                    likes[like] = takes_sizes or likes.get(like, False)
        self._numbers_left = frozenset(map(expression, found))
        self._note_likes(likes)

    def _note_likes(self, likes: dict[Node, bool]) -> None:
        """Hear like what tensors is made what a program has left, and whether it has the sizes of these."""
        inputs = set(self._inputs)
        hanging = [node for node in likes if not inputs.isdisjoint(with_all_before({node}))]
        self._likes_left = frozenset(map(expression, hanging))
        ranks = {node_behind(source): torch.Tensor.dim(tensor) for tensor, source in self._known.living()}
        for node in hanging:
            sizes = range(ranks.get(node, 0)) if likes[node] else ()
            self._numbers_left |= frozenset(size_text(node, place) for place in sizes)

    def numbers_left(self) -> frozenset[str]:
        """Return, as expressions, the numbers of the inputs of which all is made that a program has left."""
        return self._numbers_left

    def likes_left(self) -> frozenset[str]:
        """Return, as expressions, the tensors of no values of which that is made, but of their dtypes or sizes."""
        return self._likes_left

    def _asked(self) -> list[Node]:
        return self._guards.predicates()

    def _asks_as(self, other: Any) -> bool:
        asks, asks_again = self._rank_asked is not None, other._rank_asked is not None
        is_same_rank = asks == asks_again or (asks and self.fills_caches)
        return super()._asks_as(other) and is_same_rank

    def _drop_asides(self) -> None:
        """Remove what was recorded for questions alone, and what no attempt of the program is (see `keep_attempts`)."""
        for node in reversed(self._asides):
            if not (node.users or is_attempt_with_numbers(node)):
                self.graph.erase_node(node)

    def _take_over(self, mode: Any) -> None:
        """Let a mode of calls of torch hear of them, inside of layers too; refuse one of operators."""
        if isinstance(mode, TorchFunctionMode):
            self._enters_layers = True
            self._layers.clear()
        else:
            super()._take_over(mode)

    def on_cached_call(self, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call a function whose results are kept, for any numbers that hang on the inputs where it can be."""
        found = NOTHING
        if not self.paused and not self._ended:
            found = computed_of_numbers(function, args, kwargs, lambda: bool(self.paused))
        if found is NOTHING:
            return function(*args, **kwargs)
        if not is_as_kept(self.run_unheard, function, (args, kwargs), found):
            for number in numbers_in((args, kwargs)):
                self.fix(number)
            return function(*exact_of(args), **exact_of(kwargs))
        for value in containers_in(found):
            self._shared.add(f"the result of {function.__qualname__}(), which is kept,", value)
        return found

    def on_module_attribute(self, module: nn.Module, name: str, value: Any) -> Any:
        """Hear that a parameter or buffer was read: it is known by its identity."""
        return value

    def on_module_assignment(self, module: nn.Module, name: str, value: Any) -> bool:
        """Hear that an attribute is about to be assigned; it is, until the trace ends."""
        prefix = self._paths.get(id(module))
        if prefix is None:
            if module in self._earlier:
                if name == "training":
                    self._modes_outside.setdefault(id(module), (module, module.training))
                self.note_held(value)
                self._states.note_assignment(module, f"<{type(module).__name__}>")
            return False
        if name == "__class__":
            self.refuse_class(prefix, module, value)
        path = f"{prefix}.{name}" if prefix else name
        pairs = parts_assigned(value, vars(module).get(name))
        if all(self.has_returned(part, held) for part, held in pairs):
            self.assigns_what_is_held = True
            if self.keeps_what_is_held:
                for part, held in pairs:
                    self.decide_returned(part, held)
                self._shared.add(f"what the program assigns to the attribute {path!r}", value)
                return True
        self.note_held(value)
        self._states.note_assignment(module, prefix)
        if name == "training":
            self._record_mode(module, prefix, mode=value)
        buffers = buffers_of(module)
        former = buffers.get(name)
        if former is not None and isinstance(value, torch.Tensor) and path not in self._assigned:
            self._path_of_tensor(former)  # Where each tensor is, before they are exchanged.
            self._assigned[path] = (cast("dict[str, Any]", buffers), name, former)
        return False

    def _record_mode(self, module: nn.Module, path: str, *, mode: bool) -> None:
        """Record that a module is switched between training and evaluation, or to what it is, as in the next call.

        The root is refused: a captured program does not know its root by a path.
        """
        if not path:
            if mode is module.training:
                self._surroundings.note_same_flag(path, module)
            else:
                self._states.refuse(training_error("training"))
            return
        self._surroundings.note_switch(path)
        node = self.create_node("get_attr", path, (), {})
        self.create_node("call_function", setattr, (node, "training", mode), {})
        self._has_acted = True

    def _record_assigned_buffers(self, result: Any) -> None:
        """Record what the program assigned to buffers as an update of each, at the end of the program.

        Args:
            result: What the program returns.
        """
        updates: list[tuple[str, torch.Tensor, torch.Tensor]] = []
        for path, (buffers, name, former) in self._assigned.items():
            value = buffers.get(name)
            if not isinstance(value, torch.Tensor) or value is former:
                continue
            self.paused += 1
            fits = (value.shape, value.dtype, value.device) == (former.shape, former.dtype, former.device)
            self.paused -= 1
            if fits and not self._is_shared_by_others(former):
                self._speak_of_alias(path, value, result)
                buffers[name] = former  # Where it is found if the program has not read it.
                updates.append((path, former, value))
        reads = [self._copy_of_read(former, value, updates, result) for _, former, value in updates]
        for read, (path, former, value) in zip(reads, updates, strict=True):
            self._check_update(path, former, value, read)
        for read, (_, former, value) in zip(reads, updates, strict=True):
            node = self._record("call_method", "copy_", (former, value), {})
            if read is not None:
                node.args = (read, *node.args[1:])
            self._make(node, lambda *_: None, (former, value), {})

    def _check_update(self, path: str, former: torch.Tensor, value: torch.Tensor, read: Node | None) -> None:
        """Record a check that what is assigned to a buffer can be copied into it, as it can here.

        Args:
            path: Of the buffer.
            former: The buffer.
            value: What is assigned.
            read: The node that reads the buffer itself, where the program goes on with a copy.
        """
        self.paused += 1
        kind = f"{former.dtype} of {tuple(former.shape)} on {former.device}"
        self.paused -= 1
        buffer = self.create_arg(former) if read is None else read
        args = (self.create_arg(value), buffer, f"self.{path} becoming {kind}", not self._has_acted)
        self.create_node("call_function", check_like, args, {})

    def _is_shared_by_others(self, buffer: torch.Tensor) -> bool:
        """Return whether the program reads another tensor with the memory of a buffer: an update would change it."""
        memory = storage_of(buffer)
        others = (
            tensor
            for tensor, source in self._known.living()
            if tensor is not buffer and node_behind(source).op == "get_attr"
        )
        return memory is not None and any(storage_of(tensor) == memory for tensor in others)

    def _copy_of_read(
        self,
        former: torch.Tensor,
        value: torch.Tensor,
        updates: Sequence[tuple[str, torch.Tensor, torch.Tensor]],
        result: Any,
    ) -> Node | None:
        """Let the program go on with a copy of what it has read of a buffer, where it must not see the update.

        Args:
            former: The buffer.
            value: What it is updated with.
            updates: Path, buffer and value of all updates.
            result: What the program returns.

        Returns:
            The node that reads the buffer itself; None where there is no copy.
        """
        memory, results = storage_of(former), list(tensors_in(result))
        others = [one for _, buffer, one in updates if buffer is not former]
        is_shared = any(storage_of(one) == memory for one in (*results, *others))
        read = self.create_arg(former)
        if not isinstance(read, Node):
            return None
        known = [self._known[id(one)][1] for one in results if id(one) in self._known]
        nodes = [node_behind(source) for source in known]
        if not is_shared and not is_kept_for_gradients(read, nodes):
            return None
        with self.graph.inserting_after(read):
            copied = self.create_node("call_method", "clone", (read,), {})
        read.replace_all_uses_with(copied, lambda user: user is not copied)
        self._known[id(former)] = (former, copied)
        return read

    def _speak_of_alias(self, path: str, value: torch.Tensor, result: Any) -> None:
        """Speak of a tensor that was assigned to a buffer and that others have, too, who may write to it."""
        memory = storage_of(value)
        given = [tensor for _, tensor in self._tensor_inputs]
        if self._is_repeated or not any(storage_of(one) == memory for one in (*given, *tensors_in(result))):
            return
        said = (
            f"While it was traced, forward assigned to the buffer {path!r} a tensor that it was given or that it "
            "returns. The captured program"
        )
        speak_of(
            said,
            "make them one tensor: it copies the values",
            "assign a copy (clone())",
            warns=self.on_mutation == "keep",
        )


def _as_written() -> AbstractContextManager[Any]:
    """Let what was compiled run as it was written, so that it is heard of."""
    # Where the compiler was never imported nothing is compiled, and importing it takes seconds.
    return torch.compiler.set_stance("force_eager") if is_compiler_loaded() else nullcontext()


def _refuse_lazy(root: Any, modules: Sequence[nn.Module]) -> None:
    """Refuse a module whose parameters have no size yet: running it would give them one.

    Args:
        root: What is traced.
        modules: The root and those below it; none where it is a function.

    Raises:
        TraceError: It is one.
    """
    if lazies_among(modules):
        lazy = [name for name, value in [*root.named_parameters(), *root.named_buffers()] if is_lazy(value)]
        raise TraceError(
            f"Cannot trace {type(root).__name__} with example inputs: {', '.join(lazy)} have no size yet, and would "
            "get one from the examples. Run the module once on inputs first.",
            code="FXP-T069",
        )
