"""What a tracer answers about the state around a program: training flags, seeds, what differs from call to call."""

from __future__ import annotations

import operator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from fxplug.capture.arguments import iterate_parts
from fxplug.capture.attributes import attribute_of
from fxplug.capture.containers import PLAIN
from fxplug.capture.default_dtype import asks_default_dtype, holds_what_asks
from fxplug.capture.gradients import CHANGING_GRADIENTS, HOOKING
from fxplug.capture.hazards import scan_of
from fxplug.capture.identity import IDENTITY, names_operators
from fxplug.capture.proxy import Proxy
from fxplug.capture.randomness import ASKING_FOR_SEEDS, seeding_error
from fxplug.capture.reached import FORWARDS, flags_in
from fxplug.capture.sessions import active
from fxplug.capture.settings import SETTERS
from fxplug.capture.sources import is_asked_by_program, is_installed, place_in_program, user_line
from fxplug.capture.state import class_error
from fxplug.capture.stateful import STATEFUL_USES, refuse_moved_state
from fxplug.capture.unseen import missed_function
from fxplug.capture.writes import writes_of
from fxplug.errors import TraceError
from fxplug.execute import GraphModule
from fxplug.ir import Graph, Node, effects
from fxplug.semantics.internals import modules_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import CodeType, FrameType, FunctionType

    from fxplug.capture.outside import OutsideState
    from fxplug.capture.policy import TraceContext
    from fxplug.capture.randomness import RandomStates
    from fxplug.capture.settings import Settings
    from fxplug.capture.state import ModuleStates
    from fxplug.capture.surroundings import Surroundings

__all__ = ["CHANGES_CONTAINERS", "StateKeeper", "unheard_question"]

_UNHEARD = frozenset(
    {
        *("__delattr__", "__dict__", "__setattr__", "delattr", "vars"),
        *("_parameters", "_buffers", "_modules", "_forward_hooks", "_forward_pre_hooks"),
        *("add_module", "register_buffer", "register_module", "register_parameter"),
        *("register_forward_hook", "register_forward_pre_hook", "register_full_backward_hook", "remove"),
        *("parametrizations", "parametrize", "prune", "remove_weight_norm", "spectral_norm", "weight_norm"),
    }
)
"""Names in code that may change modules past what is heard of assignments."""


_FINDING_WEIGHTS = frozenset(
    {
        *("_buffers", "_parameters", "buffers", "get_buffer", "get_parameter"),
        *("named_buffers", "named_parameters", "parameters", "state_dict"),
    }
)
"""Names in code that may find weights past what is heard of attributes."""
_REMARKABLE = frozenset(
    {
        "environ",
        "set",
        "training",
        *FORWARDS,
        *CHANGING_GRADIENTS,
        *HOOKING,
        *SETTERS,
        *STATEFUL_USES,
        *_FINDING_WEIGHTS,
    }
    | _UNHEARD
    | {function.__name__ for function in IDENTITY}
)
"""Names in code that matter, even if all that it does is call modules and torch."""
CHANGES_CONTAINERS = frozenset(
    {
        *("__delitem__", "__iadd__", "__imul__", "__setitem__"),
        *("add_module", "append", "clear", "extend", "insert", "pop", "popitem", "update"),
    }
)
"""Methods of modules and of their containers that change what they hold."""


_INTERCEPTION = str(Path(__file__).with_name("interception.py"))
"""Where calls of modules go on as they would without a trace."""
_GENERATED = "-generated-"
"""Stands in the names of the files of captured programs."""


def _held_at(owner: Any, path: str) -> Any:
    """Return what an object holds at a dotted path, None where that is not plain to see."""
    value = owner
    for name in path.split("."):
        held = modules_of(value) if isinstance(value, nn.Module) else {}
        value = held.get(name, attribute_of(value, "__dict__", {}).get(name))
    return value


def _is_method(function: Any) -> bool:
    """Return whether a function was written in a class."""
    return "." in str(getattr(function, "__qualname__", "")).rpartition("<locals>.")[2]


def _unknown_identity(code: CodeType) -> TraceError:
    return TraceError(
        f"Cannot trace: {code.co_name} ({code.co_filename}:{code.co_firstlineno}) names operator.is_ or is_not, which "
        "ask whether two values are the same object, and what stands for them is another one. Compare what is in them "
        "(torch.equal), or give example inputs: fxplug.trace(root, example_inputs).",
        code="FXP-T041",
    )


def unheard_question(code: CodeType, question: Any, number: str) -> TraceError:
    """Return the error for a function that finds what asks something, where its calls are not heard of."""
    name = question.__name__
    return TraceError(
        f"Cannot trace: {code.co_name} ({code.co_filename}:{code.co_firstlineno}) finds the function {name!r} of "
        f"Python in a default, a container, an object or an import of its own, where no value hears of its calls. Call "
        f"it by its own name ({name}(...)), or by another name of the module.",
        code=number,
    )


def _weights_found_by(function: FunctionType, names: frozenset[str]) -> list[torch.Tensor]:
    """Return the tensors that get gradients and that a function finds by its names, or closes over."""
    namespace = function.__globals__
    found = [namespace[name] for name in namespace.keys() & names]
    for cell in function.__closure__ or ():
        try:
            found.append(cell.cell_contents)
        except ValueError:  # It has no value yet.
            continue
    return [one for one in found if isinstance(one, torch.Tensor) and one.requires_grad and one.is_leaf]


class StateKeeper:
    """A tracer that keeps an eye on the state around the program."""

    graph: Graph
    root: nn.Module
    context: TraceContext
    _paths: dict[int, str]
    _draws: RandomStates | None = None
    _outside: OutsideState | None = None
    _states: ModuleStates
    _settings: Settings
    _surroundings: Surroundings
    _readers: list[tuple[FunctionType, CodeType, Any]]
    """The functions that the program may call and whose code names ``training``, their own code, and whose they are."""
    _names_forward: bool
    """Whether one that it may call names ``forward``."""
    _compares: bool
    _looks_at_results: bool
    """Whether one that it may call compares two values by identity."""
    runs_leaves: bool
    """Whether modules that stay calls run while the program is traced."""
    _finds_weights: bool = False
    """Whether one that it may call finds weights otherwise than by their attributes."""
    _converting: int = 0
    """Above zero while the program converts a module: a weight that is as it is to be stays the same tensor."""
    paused: int = 0
    """Above zero while nothing is to be heard."""

    def holds_traced_values(self, value: Any) -> bool:
        """Return whether a value is, or holds, one that another call may find to be another one."""
        return any(isinstance(part, Proxy) and self._may_differ(part.node) for part in iterate_parts(value))

    def _may_differ(self, node: Node) -> bool:
        """Return whether the value of a node hangs on the inputs, on random numbers, or on what is written."""
        pending, seen = [node], {node}
        while pending:
            one = pending.pop()
            if one.op == "placeholder" or not effects.effect_of(one, self.root).is_pure:
                return True
            pending.extend(used for used in one.all_input_nodes if used not in seen)
            seen.update(one.all_input_nodes)
        return False

    def knows_module(self, value: Any) -> bool:
        """Return whether a value is a part of the root, or no module at all."""
        return not isinstance(value, nn.Module) or id(value) in self._paths

    def on_mode_kept(self, path: str, module: nn.Module) -> None:
        """Hear that a module of the root has to stay in the mode that it is in."""
        self._surroundings.note_same_flag(path, module)

    def on_seeding(self, original: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Hear that the random numbers of torch are set, or asked what they were set to.

        Raises:
            TraceError: They must not be; or the program asks, and not a library for itself.
        """
        name = original.__name__
        if name in ASKING_FOR_SEEDS and (self.paused or not is_asked_by_program(name)):
            return original(*args, **kwargs)
        self.note_refusal(error := seeding_error(name))
        raise error

    def on_conversion(self, name: str, original: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Convert a module, change a container of modules, or hear that two tensors are to be exchanged.

        Raises:
            TraceError: Two tensors are, which no captured program can do.
        """
        if self.paused:
            return original(*args, **kwargs)
        if name.rpartition(".")[2] in CHANGES_CONTAINERS:
            if id(args[0]) in self._paths:
                self._states.expect_changes()
            return original(*args, **kwargs)
        if name == "Module._apply":
            self._states.expect_changes()
            self._converting += 1
            try:
                return original(*args, **kwargs)
            finally:
                self._converting -= 1
        error = TraceError(
            f"Cannot trace a call of {name} at {user_line()}: it exchanges two tensors in place, which the captured "
            "program would not do. Assign the new value, or exchange them before tracing.",
            code="FXP-T010",
        )
        self.note_refusal(error)
        raise error

    def on_random(self, kind: str, generator: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Hear that a generator of Python is made, seeded or given a state, or draws."""
        draws = self._draws
        if draws is None or self.paused:
            return
        if kind == "made":
            draws.on_made(generator)
        elif kind == "seed":
            draws.on_seed(generator, next(iter((*args, *kwargs.values())), None))
        elif kind == "state":
            draws.on_state(generator)
        else:
            draws.on_draw(generator)

    def on_generator_state(self, name: str, generator: Any) -> None:
        """Hear that a method of a generator of torch is called that sets where it is, or tells of it."""
        if self._draws is not None and not self.paused and (name == "seed" or self._is_held(generator)):
            self._draws.on_generator_state(name)

    def _is_held(self, generator: Any) -> bool:
        """Return whether a generator of torch is from before the trace; others are as new in every call."""
        return True

    def on_gradient_hook(self, name: str) -> None:
        """Hear that a hook is put on a function of torch that computes a gradient."""
        if not self.paused:
            error = TraceError(
                f"Cannot trace {name} of a function that computes gradients{place_in_program()}: nothing tells which "
                "value it belongs to, and the captured program would compute gradients without it. Put the hook on a "
                "tensor (x.register_hook), or keep the function around the line as a call (fxplug.wrap).",
                code="FXP-T010",
            )
            self._states.refuse(error)

    def refuse_class(self, path: str, module: nn.Module, kind: Any) -> None:
        """Hear that a module is about to be given a class.

        Raises:
            TraceError: It is another one.
        """
        if kind is not type(module):
            self.note_refusal(error := class_error(path, module, kind))
            raise error

    def on_world_asked(self, kind: str, name: str) -> None:
        """Hear that something asks for the time, or the system for random numbers."""
        if self._draws is not None and not self.paused:
            self._draws.on_world_asked(kind, name)

    def on_mode_asked(self, name: str, arguments: tuple[Any, ...], answer: Any) -> Any:
        """Hear that a function of torch is asked for a mode, and what it answers; return that."""
        if not self.paused:
            self._surroundings.note_mode(name, arguments, answer)
        return answer

    def is_input(self, value: Any) -> bool:
        """Return whether an object is one of the inputs of the program: a traced value stands for it."""
        return False

    def on_unseen_function(self, frame: FrameType) -> None:
        """Hear that a frame records something that runs a function which nobody has looked at.

        Raises:
            MissedFunctionError: It is one of the program.
        """
        receiver = next(iter(frame.f_locals.values()), None)
        # What plugins mix into proxies is not the program.
        is_own = receiver is self or any(
            attribute_of(vars(base).get(frame.f_code.co_name), "__code__") is frame.f_code
            for base in (type(receiver).__mro__ if issubclass(type(receiver), Proxy) else ())
        )
        if self.paused or is_own or _GENERATED in frame.f_code.co_filename:
            return
        caller = frame.f_back
        if caller is not None and caller.f_code.co_filename == _INTERCEPTION:
            return  # What somebody has put in the place of the call of all modules is none of the program.
        self.note_refusal(error := missed_function(frame.f_code))
        raise error

    def on_heard_call(self, function: FunctionType) -> None:
        """Hear that the program calls a function whose calls were to be heard of."""

    def _note_setter(self, code: CodeType, names: frozenset[str]) -> None:
        """Hear of code that is about to run and that may change settings of torch: they hear of nodes from now on."""
        settings = self._settings
        if not settings.are_noted:
            self.graph.observers.append(settings.on_node)
        settings.note_code(code, names)

    def note_held(self, value: Any) -> None:
        """Hear that an object of the program holds another value from now on: other code may be reached through it."""
        session = active.get()
        if session is not None and type(value) not in PLAIN:
            session.likenesses.forget()

    def on_function_reached(self, function: Any, code: CodeType, names: frozenset[str], owner: Any) -> None:
        """Hear of a function that the program may call, its own code, the names in it, and whose method it is."""
        scan = scan_of(code)
        self._compares = self._compares or bool(scan.comparisons)
        self._looks_at_results = self._looks_at_results or self._compares or scan.tests_values
        self._finds_weights = self._finds_weights or not names.isdisjoint(_FINDING_WEIGHTS)
        if names_operators(names) and not self.runs_leaves and self._finds_operators(function, owner):
            self.note_refusal(error := _unknown_identity(code))
            raise error
        refuse_moved_state(function, code, names, self.context.root if owner is None else owner)
        if "training" in names:
            self._readers.append((function, code, owner))
        self._names_forward = self._names_forward or not names.isdisjoint(FORWARDS)
        if asks_default_dtype(code) or holds_what_asks(function, scan.globals):
            self._surroundings.note_mode("get_default_dtype", (), torch.get_default_dtype())
        if self._draws is not None:
            self._draws.note_function(function, names)
        if not names.isdisjoint(CHANGING_GRADIENTS):
            self.paused += 1
            self._states.keep_gradients(_weights_found_by(function, names))
            self.paused -= 1
        if not names.isdisjoint(HOOKING):
            self._states.keep_weight_hooks()
        if not names.isdisjoint(SETTERS):
            self._note_setter(code, names)
        if not names.isdisjoint(_UNHEARD) or writes_of(code).deletes:
            self._states.expect_changes()
        if self._outside is not None:
            self._outside.note_function(function, code, names)

    def on_plain_function(self, function: FunctionType, code: CodeType, owner: Any) -> bool:
        """Hear of a function that the program may call, and that does nothing but call others.

        Args:
            function: The function.
            code: Its own code.
            owner: The object whose method it is.

        Returns:
            Whether it says the same of all objects.
        """
        if self._is_remarkable(code):
            self.on_function_reached(function, code, scan_of(code).names, owner)
            return False
        if self._outside is not None:
            self._outside.note_code(code)
        return True

    @staticmethod
    def _is_remarkable(code: CodeType, known: frozenset[str] = FORWARDS) -> bool:
        """Return whether there is more to know of a function that does nothing but call others.

        Args:
            code: Of the function.
            known: Names that say nothing more.
        """
        scan = scan_of(code)
        if scan.names.isdisjoint(_REMARKABLE):
            return False
        # That of ``super()`` is the module's own.
        return scan.forwards or not scan.names & _REMARKABLE <= known

    def on_question_found(self, function: FunctionType, code: CodeType, question: Any) -> None:
        """Hear that a function finds what asks something that no value hears of, and where its calls are not heard of.

        Args:
            function: Of the program.
            code: Its own code.
            question: One of Python's functions (see `fxplug.capture.world.is_question`).

        Raises:
            TraceError: It may be asked of a traced value.
        """
        if _GENERATED in code.co_filename:
            return  # What a captured program asks is in its graph.
        if question in IDENTITY:
            error = _unknown_identity(code)
        else:
            error = unheard_question(code, question, "FXP-T044" if question is id else "FXP-T040")
        self.note_refusal(error)
        raise error

    def _finds_operators(self, function: Any, owner: Any) -> bool:
        """Return whether a function finds the functions that compare by identity, and may compare two values."""
        program = self.context.root if owner is None else owner
        if isinstance(program, GraphModule) and _GENERATED in function.__code__.co_filename:
            found = program.graph.nodes_that_call(lambda op, target: target in IDENTITY)
            return any(len(node.all_input_nodes) > 1 for node in found)
        held: dict[str, Any] = getattr(function, "__globals__", {})
        names = {name: held.get(name) for name in ("is_", "is_not", "operator")}
        return any(
            value in (*IDENTITY, operator) for value in names.values() if callable(value) or value is operator
        )

    def _note_readers(self) -> None:
        """Let the flags count that methods of modules may have read which are called by their names.

        Those that a forward reads which runs because its module is called are known by then.
        """
        root = self.context.root
        for function, code, owner in self._readers:
            flags = flags_in(code)
            readers = list(self._states.modules_with(function))
            for path, module in readers:
                is_other = function is not getattr(type(module), "forward", None)
                for flag in flags:
                    if self._names_forward or is_other or flag is None:
                        self._surroundings.note_flag_at(flag, path, module)
            if readers or is_installed(code.co_filename) or not isinstance(root, nn.Module):
                continue
            # It is no method of a module: the flag is that of something else, any of them perhaps.
            for flag in flags if owner is None and not _is_method(function) else flags - {""}:
                is_any = flag is None or owner is None
                asked = root if flag is None or owner is None else _held_at(owner, flag)
                path = self._paths.get(id(asked))
                if path is not None:
                    self._surroundings.note_flag_at(None if is_any else "", path, asked)

    def on_beginning(self) -> None:
        """Hear that the program begins, when what it may call from the start was heard of."""

    def on_hash(self, value: Any) -> None:
        """Hear that the program asks a tensor for its hash: a tensor that is no traced value is what it is."""

    def on_thread(self, run: Callable[..., Any]) -> Callable[..., Any]:
        """Return what a thread that the program starts is to run: what it would, as a traced value says who records."""
        return run

    def on_extended_shape(
        self, original: Callable[..., Any], distribution: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Return the sizes of samples of a distribution of torch: as it says itself, where none stands for a number."""
        return original(distribution, *args, **kwargs)

    def note_refusal(self, error: TraceError) -> None:
        """Remember an error that a program must not swallow."""
