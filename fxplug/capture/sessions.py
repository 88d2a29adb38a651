"""Which trace runs in this thread or task: the one context variable that everything intercepted asks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from fxplug.capture import current
from fxplug.capture.caches import Caches
from fxplug.capture.likeness import Likenesses
from fxplug.capture.methods_by_name import MethodsByName
from fxplug.semantics.internals import DISABLED_DISPATCH, autograd_modes

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager
    from contextvars import ContextVar
    from types import CodeType, FrameType, FunctionType

    import torch
    from torch import nn

    from fxplug.errors import TraceError
    from fxplug.ir import Graph

__all__ = ["ModuleInterceptor", "Session", "active", "active_interceptor", "likeness_of"]

_DISPATCH = "__torch_function__"


class ModuleInterceptor(Protocol):
    """Who is asked, while it traces, what a use of a module means."""

    graph: Graph
    """What is recorded."""
    root: nn.Module
    """What the paths of the graph refer to."""
    hears_every_attribute: bool
    """Whether it is asked about submodules that are read, and not only about parameters and buffers."""
    hears_tensor_attributes: bool
    """Whether it is asked about parameters and buffers that are read."""

    def on_module_call(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Return the value that stands for a call of `module`."""
        ...

    def on_module_attribute(self, module: nn.Module, name: str, value: Any) -> Any:
        """Return what stands for a parameter, buffer or submodule that was found to be `value`."""
        ...

    def torch_calls(self, session: Session) -> AbstractContextManager[Any]:
        """Return what hears of calls of torch while it is entered."""
        ...

    def on_number_made(self, kind: type, value: Any) -> Any:
        """Return what ``int(value)`` or ``float(value)`` gives, or what stands for it."""
        ...

    def on_cached_call(self, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Return what a call of a function gives whose results are kept, or what stands for it."""
        ...

    def writes_to(self, tensor: torch.Tensor) -> Any:
        """Return something that is another one when a tensor was written to, or is to be, by the graph."""
        ...

    def on_function_call(
        self, target: Any, original: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Return what stands for a call of a function that is kept as a call; `original` makes it."""
        ...

    def on_module_assignment(self, module: nn.Module, name: str, value: Any) -> bool:
        """Hear that an attribute is about to be assigned; return whether that is all that happens."""
        ...

    paused: int
    """Above zero while nothing is to be heard."""
    new_constants: list[Any]
    """The reads of constants since the last call of torch was recorded."""

    def note_refusal(self, error: TraceError) -> None:
        """Hear of an error that the program must not catch."""
        ...

    def on_plain_call(self, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Make or record a call of torch without traced values."""
        ...

    def on_constants_read(self, result: Any) -> None:
        """Hear that a call was recorded that has constants among its arguments."""
        ...

    def on_opaque_call(self, call: Any) -> Any:
        """Record or make a call that stays whole."""
        ...

    def must_stay_whole(self, call: Any) -> bool:
        """Return whether the function of a checkpoint is to be made again in each call, and can be."""
        ...

    def knows_module(self, value: Any) -> bool:
        """Return whether a value is a part of the root, or no module at all."""
        ...

    def on_mode_kept(self, path: str, module: nn.Module) -> None:
        """Hear that a module at a path of the root has to stay in the mode that it is in."""
        ...

    def on_seeding(self, original: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Hear that the random numbers of torch are set."""
        ...

    def on_conversion(self, name: str, original: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Convert a module (``"Module._apply"``), change a container, or hear that two tensors are to be exchanged."""
        ...

    def on_random(self, kind: str, generator: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Hear that a generator of Python is ``"made"``, gets a ``"seed"`` or a ``"state"``, or does ``"draw"``."""
        ...

    def on_world_asked(self, kind: str, name: str) -> None:
        """Hear that a function is called that asks for the time, or for random numbers (see `world`)."""
        ...

    def on_generator_state(self, name: str, generator: Any) -> None:
        """Hear that a method of a generator of torch is called that sets where it is, or tells of it."""
        ...

    def on_gradient_hook(self, name: str) -> None:
        """Hear that a hook is put on a function of torch that computes a gradient."""
        ...

    def on_calls_taken_over(self, mode: Any) -> None:
        """Hear that a mode is entered that takes calls of torch, or its operators, upon itself."""
        ...

    def on_calls_given_back(self, mode: Any) -> None:
        """Hear that such a mode is left."""
        ...

    def on_mode_asked(self, name: str, arguments: tuple[Any, ...], answer: Any) -> Any:
        """Hear that a function of torch is asked for a mode; return the answer."""
        ...

    def on_function_reached(self, function: Any, code: CodeType, names: frozenset[str], owner: Any) -> None:
        """Hear of a function that the program may call, its own code, the names in it, and whose method it is."""
        ...

    def on_plain_function(self, function: FunctionType, code: CodeType, owner: Any) -> bool:
        """Hear of a function that the program may call, and in which there is nothing to look for.

        Returns:
            Whether nobody need say so of another object.
        """
        ...

    def on_question_found(self, function: FunctionType, code: CodeType, question: Any) -> None:
        """Hear that a function finds what asks something of values, where its calls are not heard of."""
        ...

    def is_input(self, value: Any) -> bool:
        """Return whether an object is one of the inputs of the program."""
        ...

    def on_unseen_function(self, frame: FrameType) -> None:
        """Hear that a frame records something that runs a function which nobody has looked at."""
        ...

    def on_heard_call(self, function: FunctionType) -> None:
        """Hear that the program calls a function that is in `Session.heard`, given with its own code."""
        ...

    def on_beginning(self) -> None:
        """Hear that the program begins, when what it may call from the start was heard of."""
        ...

    def on_hash(self, value: Any) -> None:
        """Hear that the program asks a tensor for its hash."""
        ...

    def on_thread(self, run: Callable[..., Any]) -> Callable[..., Any]:
        """Return what a thread that the program starts is to run in the place of a function."""
        ...

    def on_extended_shape(
        self, original: Callable[..., Any], distribution: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Return the sizes of samples of a distribution of torch."""
        ...

    def on_context_enter(self, enter: Callable[[Any], Any], context: Any) -> Any:
        """Enter a context of torch, and return what its ``__enter__`` returns."""
        ...

    def on_context_exit(self, leave: Callable[..., Any], context: Any, error: tuple[Any, ...]) -> Any:
        """Leave a context of torch, and return what its ``__exit__`` returns."""
        ...

    def on_grad_mode_made(self, make: Callable[..., None], context: Any, arguments: tuple[Any, ...]) -> None:
        """Make a ``set_grad_enabled``, which takes effect at once."""
        ...

    def on_grad_mode_decorates(self, decorate: Callable[[Any, Any], Any], context: Any, function: Any) -> Any:
        """Decorate a function with a ``set_grad_enabled``, which ends its effect."""
        ...


class Session:
    """One trace. A context that was copied inside it, as tasks do, may outlive it, and then finds nobody here."""

    __slots__ = (
        *(
            "asked",
            "caches",
            "calls",
            "conversions",
            "created",
            "defers",
            "entered",
            "heard",
            "install_rest",
            "interceptor",
            "leaves",
            "libraries",
            "likenesses",
            "looked",
            "modes",
        ),
        *(
            "is_plain",
            "is_running",
            "made",
            "methods",
            "namespaces",
            "plain",
            "probes",
            "reached",
            "unhandled",
            "unnamed",
            "watched",
        ),
    )

    def __init__(self, interceptor: ModuleInterceptor) -> None:
        self.interceptor: ModuleInterceptor | None = interceptor
        self.modes = autograd_modes()
        """How torch computed when the trace began."""
        self.leaves: dict[int, Any] = {}
        """Id -> callable, of what this trace keeps as a call and others do not."""
        self.namespaces: set[int] = set()
        """The globals, by id, that have been looked through."""
        self.conversions: set[tuple[int, str]] = set()
        """The names of classes of numbers, each with the id of the globals, that something else stands for."""
        self.asked: set[tuple[int, str]] = set()
        """The same for those of which it is known whether something may stand for them."""
        self.likenesses = Likenesses()
        """Which modules and objects lead to the same code."""
        self.methods = MethodsByName()
        """The methods of those that no code has named yet."""
        self.reached: dict[tuple[int, int], Any] = {}
        """Id, and likeness of the object whose method it is -> function, of those that have been looked at for
        questions that no traced value hears."""
        self.libraries = 0
        """How many of them are of installed libraries."""
        self.defers = False
        """Whether those of installed libraries are looked at when they are called: names lead to too many."""
        self.created: dict[int, Any] = {}
        """Id -> object, of those that were made by the functions of a program whose calls are told of."""
        self.unnamed: set[int] = set()
        """The ids of the code of those that were called, and to which no name leads."""
        self.watched: set[int] = set()
        """Those of them that ask something about what they are called with."""
        self.made: dict[int, CodeType] = {}
        """Id -> code, of the functions that they make when they run, and that do."""
        self.heard: set[int] = set()
        """Those of them whose calls the interceptor wants to hear of."""
        self.is_plain = self.is_running = False
        """Whether all of the program is known to be plain functions (see `fxplug.capture.plain_functions`); and whether
        it runs, and not what is done before it and behind it."""
        self.unhandled: dict[int, FunctionType] = {}
        """Id of one of these that handles errors -> what runs in its place, and lets them through."""
        self.looked: set[int] = set()
        """The ids of the code of those of them that are no functions of Python or torch, and of functions in them."""
        self.caches = Caches()
        """The functions among them whose results are kept."""
        self.install_rest: Callable[[], None] | None = None
        """Installs what hears of all that functions do which are not plain; None where it is installed."""
        self.plain: dict[tuple[Any, ...], list[Any]] = {}
        """Forward, and layout of a module -> what it calls (see `fxplug.capture.plain_functions`), of those in which
        there is nothing to look for."""
        self.entered: set[int] = set()
        """The likenesses of modules whose forward, with the hooks around it, needs no further look."""
        self.calls: Any = None
        """What hears of calls of torch while the program is traced without examples (a mode of torch)."""
        self.probes: list[tuple[Any, TraceError | None]] = []
        """Traced values that torch was given a number for, and what is to be said if nobody hears of the call."""

    def probe(self, proxy: Any, error: TraceError | None) -> None:
        """Let torch take a traced value for a number, until it is heard what it wanted it for.

        Args:
            proxy: The traced value.
            error: What is to be said if it is not heard; None for a number that has a value.
        """
        # Otherwise torch would take it for the tuple of all sizes, and have no place for further ones.
        vars(proxy)[_DISPATCH] = DISABLED_DISPATCH
        self.probes.append((proxy, error))

    def settle(self) -> None:
        """Hear what torch wanted the numbers for: the values are traced values again."""
        for proxy, _ in self.probes:
            vars(proxy).pop(_DISPATCH, None)
        self.probes.clear()


active: ContextVar[Session | None] = current.active
"""The trace of the running thread or task."""


def likeness_of(module: nn.Module) -> int:
    """Return the same number for modules that lead to the same code, as far as the running trace goes."""
    session = active.get()
    return 0 if session is None else session.likenesses.of(module)


def active_interceptor() -> ModuleInterceptor | None:
    """Return who traces in this thread or task, None when nobody does."""
    session = active.get()
    return None if session is None else session.interceptor
