"""Tensors that a symbolic trace can see: those of the root, and those that the program makes without its inputs.

What the program computes from constants is computed while it is traced, and stands in the graph as a constant. That
would be wrong for three kinds of calls, which torch tells of and which are recorded: calls on tensors that the root
holds, which are others when the program runs; calls that draw random numbers; and calls that write to a tensor that
the graph reads. A tensor that the program makes for itself and writes to is a clone in the graph, so that every call
starts with a fresh one. Views of it are made anew from the clone.
"""

from __future__ import annotations

from collections import deque
from types import MethodWrapperType
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import nn

from fxplug.capture.arguments import iterate_parts
from fxplug.capture.callforms import (
    attribute_asked,
    call_effect,
    call_form,
    is_query,
    node_effect,
    written_arguments,
)
from fxplug.capture.proxy import Proxy, TracerBase
from fxplug.capture.questions import no_assignment, unknown_value
from fxplug.capture.reading import RootReader
from fxplug.capture.sources import place_in_program
from fxplug.errors import TraceError
from fxplug.ir import Graph, Node, effects
from fxplug.semantics.internals import SET_GRAD_ENABLED, assert_function, storage_of, version_of
from fxplug.semantics.random_state import random_states, same_random_states, set_random_states

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["ConstantKeeper", "Constants"]


_SETTINGS = frozenset({SET_GRAD_ENABLED})
"""Calls by which torch's contexts take effect: they draw nothing, whatever other threads draw meanwhile."""
_HOOKING = frozenset({torch.Tensor.register_hook, torch.Tensor.register_post_accumulate_grad_hook})
"""Calls that let torch call a function of the program with a gradient."""
_MAKING = frozenset(
    {torch.arange, torch.eye, torch.full, torch.linspace, torch.logspace, torch.ones, torch.zeros}
)
"""Functions that make the same tensor each time of numbers."""
_OPTIONS = frozenset({"device", "dtype", "end", "fill_value", "size", "start", "step", "steps"})


class Made:
    """A tensor that the program made while it was traced, and how."""

    __slots__ = ("args", "function", "index", "kwargs", "tensor")

    def __init__(
        self,
        tensor: torch.Tensor,
        function: Any,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        index: int | None,
    ) -> None:
        self.tensor = tensor
        self.function = function
        self.args = args
        self.kwargs = kwargs
        self.index = index
        """Which of several results it is."""


class Constants:
    """What one trace knows of constants."""

    def __init__(self) -> None:
        self.made: dict[int, Made] = {}
        """Id -> tensor made by the program."""
        self.lifted: dict[int, str] = {}
        """Id -> path of a tensor that the graph holds as a constant."""
        self.reads: dict[int, list[Node]] = {}
        """Id -> the nodes that read such a constant."""
        self.nodes: dict[int, Node] = {}
        """Id -> the node that has stood for a tensor since its memory is written to by the graph."""
        self.written: set[Any] = set()
        """The memories that the graph writes to."""
        self.left: dict[int, torch.Tensor] = {}
        """Id -> tensor of the root that the tracer was told to leave as it is."""
        self.held: set[int] | None = None
        """Ids of the tensors in lists and dicts that the root holds, once somebody has asked."""
        self.draws: list[Node] = []
        """Calls that draw random numbers into tensors that the program has made."""
        self.hooked: str | None = None
        """Where the program has first given a tensor that it has made a function to be called with its gradient."""
        self.is_busy = False
        """Whether torch is called by the tracer, and not by the program."""

    def note_hooking(self, function: Any) -> None:
        """Hear that a function is called; if it is one that hangs hooks on tensors, remember where the first one is."""
        if function in _HOOKING and self.hooked is None:
            self.hooked = place_in_program()


class ConstantKeeper(RootReader):
    """A tracer that keeps the tensors apart which are constants and which are not."""

    graph: Graph
    new_constants: list[tuple[Node, torch.Tensor]]
    """The reads of constants since the last call of torch was recorded."""
    _constants: Constants

    # -- reading

    def _lift_tensor(self, tensor: torch.Tensor) -> Node:
        known = self._constants
        node = known.nodes.get(id(tensor))
        if node is not None:
            return node
        path = self._path_of_tensor(tensor)
        if path is not None:
            return self.create_node("get_attr", path, (), {})
        if known.written and self._silently(storage_of, tensor) in known.written:
            return self._silently(self._materialise, tensor)
        node = self._read_constant(tensor)
        self.new_constants.append((node, tensor))
        return node

    def _read_constant(self, tensor: torch.Tensor) -> Node:
        known = self._constants
        path = known.lifted.get(id(tensor))
        if path is not None:
            node = self.create_node("get_attr", path, (), {})
        else:
            node = TracerBase._lift(self, tensor, "_tensor_constant")
            known.lifted[id(tensor)] = node.target
        known.reads.setdefault(id(tensor), []).append(node)
        return node

    def _silently(self, function: Callable[..., Any], *args: Any) -> Any:
        """Call a function whose calls of torch are none of the program."""
        known = self._constants
        former, known.is_busy = known.is_busy, True
        try:
            return function(*args)
        finally:
            known.is_busy = former

    # -- calls without traced values

    traces_plain_alone: bool
    """Whether what is traced runs on examples, too, where each call of torch is recorded."""
    has_made_constants: bool
    """Whether a call of torch without traced values was heard of."""

    def on_plain_call(self, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Hear of a call of torch without traced values; make it, or record it.

        Args:
            function: What is called.
            args: Of the call.
            kwargs: Of the call.
        """
        is_told = function is assert_function and bool(args) and type(args[0]) is bool
        if self._constants.is_busy or is_told or function in _SETTINGS:
            return function(*args, **kwargs)
        if self.traces_plain_alone and _makes_anew(function, args, kwargs):
            return self._silently(self._record_plain, function, args, kwargs)
        self.has_made_constants = True
        return self._silently(self._plain_call, function, args, kwargs)

    def _plain_call(self, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        tensors = [part for part in iterate_parts((args, kwargs)) if isinstance(part, torch.Tensor)]
        if any(self._is_in_graph(tensor) for tensor in tensors):
            if not is_query(function):
                return self._record_plain(function, args, kwargs)
            self._note_question(function, tensors[0])
            return function(*args, **kwargs)
        if isinstance(function, MethodWrapperType):
            return self._plain_attribute(function, args, kwargs)
        if function in _HOOKING:
            self._constants.note_hooking(function)
            return function(*args, **kwargs)
        effect = call_effect(function, args, kwargs)
        if effect.random:
            return self._record_plain(function, args, kwargs)
        for tensor in iterate_parts(tuple(written_arguments(effect, args, kwargs))):
            if isinstance(tensor, torch.Tensor) and self._is_read_by_graph(tensor):
                return self._record_plain(function, args, kwargs)
        if not effect.unknown:
            return self._note_made(function(*args, **kwargs), function, args, kwargs)
        before = random_states()
        result = function(*args, **kwargs)
        if same_random_states(before):
            return self._note_made(result, function, args, kwargs)
        set_random_states(before)
        return self._record_plain(function, args, kwargs)

    def _plain_attribute(
        self, function: MethodWrapperType, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Read or assign an attribute of a tensor that the graph does not hold."""
        if function.__name__ != "__get__" and not self._is_made(args[0]):
            return self._record_plain(function, args, kwargs)
        if getattr(function.__self__, "__name__", "") == "grad" and self._may_get_gradient(args[0]):
            raise unknown_value(
                Proxy(self._lift_tensor(args[0]), self),
                "a gradient is computed only when the captured program runs, and that of",
                "Compute it as a value (torch.autograd.grad), or give example inputs: fxplug.trace(root, "
                "example_inputs).",
                "FXP-T045",
            )
        return self._note_made(function(*args, **kwargs), function, args, kwargs)

    def refuse_hooks_on_constants(self) -> None:
        """Look, when the program has ended, whether its gradients go through functions that it has hung on constants.

        Raises:
            TraceError: They do: torch calls these when the captured program runs, and what they change is not heard of.
        """
        place = self._constants.hooked
        if place is not None and any(_computes_gradients(node) for node in self.graph.nodes):
            raise TraceError(
                f"Cannot trace a hook on a tensor that the program has made{place}: the program computes gradients "
                "itself, and what the hook does to anything but its gradient is not recorded. Compute the gradient as "
                "a value (torch.autograd.grad) and go on from there, or give example inputs: fxplug.trace(root, "
                "example_inputs).",
                code="FXP-T010",
            )

    def _may_get_gradient(self, tensor: torch.Tensor) -> bool:
        """Return whether a recorded call reads tensors that lead gradients to this one, as far as anybody can see."""
        made, reads = self._constants.made, self._constants.reads
        read = [made[key].tensor for key in reads if key in made]
        return tensor.requires_grad and (
            id(tensor) in reads or any(one.requires_grad and not one.is_leaf for one in read)
        )

    def _note_question(self, function: Any, tensor: torch.Tensor) -> None:
        """Take note of what the program asks about a weight that it has found without reading an attribute."""
        attribute = attribute_asked(function)
        path = None if attribute is None else self._path_of_tensor(tensor)
        if attribute is not None and path is not None:
            self.note_weight(path, attribute, tensor)

    def note_weight(self, path: str, attribute: str, weight: torch.Tensor) -> None:
        """Hear that the program asks what a weight of the root is like, and goes on with the answer."""
        raise NotImplementedError

    def _is_in_graph(self, tensor: torch.Tensor) -> bool:
        """Return whether the value of a tensor is for the graph to say."""
        known = self._constants
        if self._is_made(tensor):
            return bool(known.written) and storage_of(tensor) in known.written
        if id(tensor) in known.left:
            return False
        return (
            isinstance(tensor, nn.Parameter)
            or id(tensor) in known.nodes
            or self._path_of_tensor(tensor) is not None
            or id(tensor) in self._held_tensors()
            or (tensor.requires_grad and tensor.is_leaf)
        )

    def leave_constant(self, tensor: torch.Tensor) -> None:
        """Let a tensor of the root be a constant, because the program was given the tensor itself."""
        self._constants.left[id(tensor)] = tensor

    def writes_to(self, tensor: torch.Tensor) -> Any:
        """Return something that is another one when a tensor was written to, or is to be, by the graph."""
        self.paused += 1  # The program has asked nothing.
        try:
            return version_of(tensor), storage_of(tensor) in self._constants.written
        finally:
            self.paused -= 1

    def _is_made(self, tensor: torch.Tensor) -> bool:
        """Return whether the program has made a tensor; torch does not tell of all, such as ``nn.Parameter(...)``."""
        made = self._constants.made
        if id(tensor) in made:
            return True
        storage = storage_of(tensor)
        base = next((known for known in made.values() if storage_of(known.tensor) == storage), None)
        if base is None or storage is None:
            return False
        if base.tensor.shape != tensor.shape or base.tensor.stride() != tensor.stride():
            return False
        made[id(tensor)] = Made(tensor, _same, (base.tensor,), {}, None)
        return True

    def _is_read_by_graph(self, tensor: torch.Tensor) -> bool:
        """Return whether writing to a constant now would change what the graph has read, or will read."""
        known = self._constants
        if not self._is_made(tensor):
            return True
        storage = storage_of(tensor)
        return any(storage_of(known.made[key].tensor) == storage for key in known.reads if key in known.made)

    def _note_made(self, result: Any, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Remember how the tensors in the result of a call were made, except views of those that were found."""
        made = self._constants.made
        if self._is_view_of_unknown(result, args):
            return result
        if isinstance(result, torch.Tensor):
            if id(result) not in made and not any(result is argument for argument in args):
                made[id(result)] = Made(result, function, args, kwargs, None)
        elif isinstance(result, (tuple, list)):
            for index, part in enumerate(cast("tuple[Any, ...]", result)):
                if isinstance(part, torch.Tensor) and id(part) not in made:
                    made[id(part)] = Made(part, function, args, kwargs, index)
        return result

    def _is_view_of_unknown(self, result: Any, args: tuple[Any, ...]) -> bool:
        """Return whether what a call has returned lies in the memory of a tensor that the program has only found."""
        first = next((part for part in iterate_parts(result) if isinstance(part, torch.Tensor)), None)
        base = args[0] if args else None
        if first is None or not isinstance(base, torch.Tensor) or storage_of(first) != storage_of(base):
            return False
        return not self._is_made(base)

    # -- recording

    def _record_plain(self, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        name = getattr(function, "__name__", "")
        if isinstance(function, MethodWrapperType) and name != "__get__":
            attribute = getattr(function.__self__, "__name__", "")
            raise no_assignment(f"the tensor {self._shown(args[0])}", self, attribute)
        if name in _QUESTIONS and isinstance(args[0], torch.Tensor):
            return self._ask_constant(name, args[0])
        kind, target, args = call_form(function, args)
        proxy = self.create_proxy(kind, target, args, kwargs)
        self.on_constants_read(proxy)
        if self._constants.written:
            self._constants.draws.append(proxy.node)
        if name == "unbind" and isinstance(
            args[0], torch.Tensor
        ):  # How iteration begins; and how long it is is known.
            count = len(function(*args, **kwargs))
            return tuple([proxy[index] for index in range(count)])
        return proxy

    def _ask_constant(self, name: str, tensor: torch.Tensor) -> Any:
        proxy = Proxy(self._lift_tensor(tensor), self)
        if name == "__bool__":
            return bool(proxy)
        raise unknown_value(
            proxy,
            "a Python number is needed, but the value of",
            "Keep it as a Python number beside the tensor, or make the enclosing module a leaf.",
            "FXP-T002",
        )

    def _shown(self, tensor: torch.Tensor) -> str:
        path = self._path_of_tensor(tensor)
        return repr(path) if path is not None else f"of shape {tuple(tensor.shape)}"

    def on_constants_read(self, result: Any) -> None:
        """Hear that a call with constants among its arguments was recorded; see to it that it writes to none of them.

        Args:
            result: What stands for its result.
        """
        new = self.new_constants.copy()
        self.new_constants.clear()
        if not new or not isinstance(result, Proxy):
            return
        call = result.node
        if call.op == "call_module":
            self._silently(self._write_as_module, call, new)
        elif call.op in {"call_function", "call_method"}:
            written = _written_nodes(call)
            for node, tensor in new:
                if node in written:
                    self._silently(self._write_constant, tensor)

    def _write_as_module(self, call: Node, new: list[tuple[Node, torch.Tensor]]) -> None:
        """See to it that a call of a module writes to no constant; if it only may write, to none that is made anew."""
        effect = effects.effect_of(call, self.root)
        written = list(iterate_parts(tuple(written_arguments(effect, call.args, call.kwargs))))
        for node, tensor in new:
            if node in written or (effect.unknown and self._is_made(tensor)):
                self._write_constant(tensor)

    def _write_constant(self, tensor: torch.Tensor) -> None:
        """Let the graph write to a tensor that it has as a constant: what stands for it, and its views, is a clone."""
        known = self._constants
        if id(tensor) in known.nodes:
            return
        if not self._is_made(tensor):
            self._check_lasting(tensor)
            return
        storage = storage_of(tensor)
        known.written.add(storage)
        shared = [made.tensor for made in known.made.values() if storage_of(made.tensor) == storage]
        reads = {id(part): known.reads.pop(id(part), []) for part in shared}
        first = min(node for nodes in reads.values() for node in nodes)
        former = self.graph.current_region
        self.graph.current_region = first.region
        with self.graph.inserting_before(first):
            for part in shared:
                if reads[id(part)]:
                    self._materialise(part)
        self.graph.current_region = former
        for part in shared:
            for node in reads[id(part)]:
                node.replace_all_uses_with(known.nodes[id(part)])
                self.graph.erase_node(node)

    def _materialise(self, tensor: torch.Tensor) -> Node:
        """Return the node that stands for a tensor whose memory the graph writes to."""
        known = self._constants
        node = known.nodes.get(id(tensor))
        if node is not None:
            return node
        made = known.made.get(id(tensor))
        if made is None:
            raise _unknown_memory(tensor)
        storage = storage_of(tensor)
        given = [part for part in iterate_parts((made.args, made.kwargs)) if isinstance(part, torch.Tensor)]
        bases = [part for part in given if part is not tensor and storage_of(part) == storage]
        if bases:
            for base in bases:
                self._materialise(base)
            if made.function is _same:
                node = known.nodes[id(tensor)] = self._same_node(tensor, bases[0])
                return node
            kind, target, args = call_form(made.function, made.args)
            proxy = self.create_proxy(kind, target, args, made.kwargs)
            node = cast("Node", proxy.node if made.index is None else proxy[made.index].node)
        else:
            read = self._read_constant(tensor)
            known.reads.pop(id(tensor), None)
            node = self.create_node("call_method", "clone", (read,), {})
        known.nodes[id(tensor)] = node
        return node

    def _held_tensors(self) -> set[int]:
        """Return the ids of the tensors in lists, dicts and the like that are attributes of modules."""
        held = self._constants.held
        if held is None:
            held = self._constants.held = set()
            for module in self.root.modules():
                for value in vars(module).values():
                    if isinstance(value, _CONTAINERS) and 0 < len(cast("list[Any]", value)) <= _LONGEST:
                        held.update(
                            id(part)
                            for part in iterate_parts(_listed(value))
                            if isinstance(part, torch.Tensor)
                        )
        return held

    def _same_node(self, tensor: torch.Tensor, base: torch.Tensor) -> Node:
        """Return the node for another object with the values of `base`, such as a parameter made of a tensor."""
        node = self._constants.nodes[id(base)]
        if not tensor.requires_grad or base.requires_grad:
            return node
        node = self.create_node("call_method", "detach", (node,), {})
        self._constants.draws.append(node)
        return self.create_node("call_method", "requires_grad_", (node,), {})

    def _check_lasting(self, tensor: torch.Tensor) -> None:
        """Refuse to write to a tensor of which nobody knows whether each call makes it anew."""
        if id(tensor) in self._held_tensors():
            return
        error = TraceError(
            f"Cannot trace: a tensor of shape {tuple(tensor.shape)} is written to{place_in_program()}, and it is not "
            "known whether each call makes it anew or all calls share it. Make it with a function of torch "
            "(torch.zeros, torch.tensor, ...) in the program, or register it as a buffer.",
            code="FXP-T051",
        )
        self.note_refusal(error)
        raise error

    def renew_results(self, output: Node) -> None:
        """Let the program return a fresh tensor where it returns one that it makes: the caller may write to it."""
        new = self.new_constants.copy()
        self.new_constants.clear()
        for node, tensor in new:
            if output in node.users and self._silently(self._is_made, tensor):
                self._silently(self._write_constant, tensor)

    def drop_unread_draws(self) -> None:
        """Remove what initialises tensors that nothing reads, as those of a module that the program makes in vain.

        They stay where other nodes draw random numbers, too, which would be others without them.
        """
        draws = self._constants.draws
        if not draws or any(
            node not in draws and effects.effect_of(node, self.root).random for node in self.graph.nodes
        ):
            return
        own = {*draws, *self._constants.nodes.values()}
        reads = {node for made in own for node in made.all_input_nodes}
        pending = [node for node in own if not own.issuperset(node.users)]
        while pending:  # What is read, and whatever has to do with it, stays.
            node = pending.pop()
            if node in own:
                own.discard(node)
                pending.extend((*node.users, *node.all_input_nodes))
        for node in reversed(list(self.graph.nodes)):
            if node in own or (node.op == "get_attr" and node in reads and not node.users):
                self.graph.erase_node(node)

    def note_refusal(self, error: TraceError) -> None:
        """Remember an error that a program must not swallow."""


_CONTAINERS = (list, tuple, dict, set, deque)
_LONGEST = 10_000
"""Containers with more elements are taken to hold no tensors: vocabularies, and the like."""


def _makes_anew(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Return whether a call makes a tensor of numbers alone, and does nothing else."""
    return (
        function in _MAKING
        and _OPTIONS.issuperset(kwargs)
        and not any(isinstance(part, torch.Tensor) for part in iterate_parts((args, kwargs)))
    )


def _same(tensor: torch.Tensor) -> torch.Tensor:
    """Stands for ways of making another object for the same values."""
    return tensor


def _listed(value: Any) -> Any:
    return list(cast("deque[Any]", value)) if isinstance(value, deque) else value


_QUESTIONS = frozenset({"__bool__", "__int__", "__float__", "__complex__", "__index__"})


def _computes_gradients(node: Node) -> bool:
    name = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")
    return node.op in {"call_function", "call_method"} and name in {"backward", "grad"}


def _written_nodes(node: Node) -> list[Any]:
    return list(iterate_parts(tuple(written_arguments(node_effect(node), node.args, node.kwargs))))


def _unknown_memory(tensor: torch.Tensor) -> TraceError:
    return TraceError(
        f"Cannot trace: a tensor of shape {tuple(tensor.shape)} is used{place_in_program()} that shares its memory "
        "with one that the program writes to, and it is not known how it was made. Make it with a function of torch.",
        code="FXP-T051",
    )
