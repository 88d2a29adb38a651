"""Everything that a trace intercepts in torch, as one closed list.

Each interceptor asks a context variable whether the running thread or task is tracing and otherwise does what
the original does. They are installed while at least one trace runs anywhere, and taken out again on every way out.

The list:

- ``nn.Module.__call__``: a call of a module becomes a node, or is entered.
- ``nn.Module.__getattr__``: reading a parameter or buffer gives a proxy. Only for traces that want to hear of it.
- ``nn.Module.__setattr__``: assigning a parameter or buffer is answered for this trace alone, so that other threads
  never see a proxy; of other assignments the trace takes note first, to put them back.
- ``__enter__`` and ``__exit__`` of torch's own contexts, such as ``no_grad``: nodes know what is entered around them;
  and how ``set_grad_enabled`` is made, because that takes effect without being entered.
- ``__enter__`` and ``__exit__`` of modes that take calls of torch upon themselves (``TorchFunctionMode``,
  ``TorchDispatchMode``).
- Functions of torch whose calls stay whole, such as ``autograd.Function.apply`` (see `fxplug.capture.opaque`), and
  those that set the random numbers of torch; and that by which ``torch.cond`` and its like compile what they run: under
  the modes of a trace torch would give that up, but for the rest of the process, too.
- What converts modules (``module.to(...)``, ``module.half()``), adds to containers of modules or takes from them, or
  exchanges tensors: it changes tables of modules past every assignment.
- ``torch.fx.Tracer.trace``: a trace of torch.fx that the program starts has the modules for itself.
- The flag by which torch.fx says that it traces: libraries that ask hear yes inside a trace, and no elsewhere.
- The methods of ``random.Random`` by which generators of a program's own draw: they would be constants.
- Functions that tell the time or have the system make random numbers, where a program finds them (see
  `fxplug.capture.world`).
- ``torch.Tensor.__hash__``: a program that uses its inputs as keys asks whether two are one.
- ``logging.LogRecord.getMessage``: people may be told of a traced number as of any other (``log.info("%d rows", n)``).
- ``threading.Thread.start`` and ``ThreadPoolExecutor.submit``: on examples, nothing is heard of what a thread calls.
- How ``torch.distributions.Distribution`` puts together the sizes of samples, some of which may hang on the inputs.
- ``isinstance`` of what `typing` has for classes (``Optional[A]``), which asks for the type of the very object.
- ``torch.jit.ScriptFunction.__call__``: what TorchScript has compiled runs no Python, and is a call as a whole.
- ``torch.autograd.grad``, which gives None for what is not used: a program may ask whether it did.
- Functions of torch that tell of its modes, such as ``torch.is_grad_enabled``: what a program goes on with is guarded.
- Functions and methods that are kept as calls, and the globals in which they are found (see `fxplug.capture.wrapping`).
- Calls of torch in this thread that hold a traced value where torch expects a number (see `fxplug.capture.calls`).
"""

from __future__ import annotations

import logging
import random
import threading
import typing
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from types import FunctionType
from typing import TYPE_CHECKING, Any, TypeAlias, cast

import torch
from torch import nn
from torch.autograd.graph import saved_tensors_hooks
from torch.overrides import TorchFunctionMode

from fxplug.capture.answers import asked_of_alias
from fxplug.capture.comparisons import hear_of_gradients
from fxplug.capture.keeping import CHANGES_CONTAINERS
from fxplug.capture.opaque import COMPILED, hear_opaque_call
from fxplug.capture.proxy import is_proxy
from fxplug.capture.regions import CONTEXTS
from fxplug.capture.sessions import ModuleInterceptor, Session, active, active_interceptor
from fxplug.capture.shims import hear_of_mode
from fxplug.capture.told import told_text
from fxplug.capture.trampolines import Patches, PatchGroup, SlotPatch, Trampoline, patch_for
from fxplug.capture.world import modes_named
from fxplug.capture.wrapping import (
    body_of,
    enter_plainly,
    hear_of_asked,
    hold_leaves,
    hold_modes,
    hold_unhandled,
    hold_wrapped,
    keep_calls_of,
    look_through,
    unhandled_body,
)
from fxplug.execute import GraphModule
from fxplug.semantics.internals import (
    COMPILES_CHOICES,
    TORCH_FX_PATCHED,
    TorchDispatchMode,
    TorchFxTracer,
    global_hook_tables,
    hooks_around_forward,
    is_compiler_loaded,
    is_under_modes,
    load_compiler,
    opaque_functions,
    set_torch_fx_flag,
    torch_fx_flag,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable
    from types import CodeType, ModuleType

__all__ = [
    "ModuleInterceptor",
    "active_interceptor",
    "entering",
    "entering_module",
    "entering_plainly",
    "hear_of_contexts",
    "hear_of_questions",
    "intercept",
    "let_errors_through",
    "original_call",
    "originals",
    "own_code",
]

_EVERY_TRACE = "every trace"


class originals:  # noqa: N801 - a place for values that change
    """What stood in ``nn.Module`` when the first of the running traces began; others may have put it there."""

    call: Callable[..., Any] = nn.Module.__call__


def original_call(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
    """Call a module as it is called when nothing is traced."""
    return originals.call(module, *args, **kwargs)


_patches = Patches()
_running: set[Session] = set()
_hearing_every: set[Session] = set()
"""Those of the running traces that want to hear of reads of submodules, too."""
_lasting: dict[tuple[type, str], Trampoline | SlotPatch] = {}
"""Kept when nothing is installed any more: the next trace most likely needs the same ones."""
_lasting_groups: dict[str, PatchGroup] = {}
"""The same for what is patched together."""


# -- templates (see `Trampoline`): their strings in angle brackets stand for objects

_CONSTANTS = {"<active>": active.get, "<isinstance>": isinstance, "<tensor>": torch.Tensor}


def _call(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
    current: Any = "<active>"
    session = current()
    if session is None or (interceptor := session.interceptor) is None:
        original: Any = "<original>"
        return original(self, *args, **kwargs)
    return interceptor.on_module_call(self, args, kwargs)


def _getattr(self: Any, name: str) -> Any:
    anybody_hears_every: Any = "<hears every>"
    is_torchs_own: Any = "<own>"
    if is_torchs_own and not anybody_hears_every:
        # Most reads of a model are of its submodules, which torch's own method finds last.
        held = self.__dict__
        if "_modules" in held and name in held["_modules"]:
            return held["_modules"][name]
    current: Any = "<active>"
    session = current()
    if session is None or (interceptor := session.interceptor) is None:
        original: Any = "<original>"
        return original(self, name)
    hears_every: bool = interceptor.hears_every_attribute
    # As torch's own method does, which looks there first: most of what is heard of are weights.
    if is_torchs_own and not hears_every and name in (held := self.__dict__).get("_parameters", ()):
        value = held["_parameters"][name]
    else:
        beneath: Any = "<beneath>"
        value = beneath(self, name)
    if not hears_every and not interceptor.hears_tensor_attributes:
        return value
    is_instance: Any = "<isinstance>"
    if not hears_every and not is_instance(value, "<tensor>"):
        return value
    return interceptor.on_module_attribute(self, name, value)


def _setattr(self: Any, name: str, value: Any) -> None:
    current: Any = "<active>"
    session = current()
    if (
        session is None
        or (interceptor := session.interceptor) is None
        or not interceptor.on_module_assignment(self, name, value)
    ):
        original: Any = "<original>"
        original(self, name, value)


def _enter(self: Any) -> Any:
    original: Any = "<original>"
    current: Any = "<active>"
    session = current()
    if session is None or (interceptor := session.interceptor) is None:
        return original(self)
    return interceptor.on_context_enter(original, self)


def _enter_mode(self: Any) -> Any:
    original: Any = "<original>"
    current: Any = "<active>"
    session = current()
    if session is not None and (interceptor := session.interceptor) is not None:
        interceptor.on_calls_taken_over(self)
    return original(self)


def _exit_mode(self: Any, *error: Any) -> Any:
    original: Any = "<original>"
    current: Any = "<active>"
    session = current()
    left = original(self, *error)
    if session is not None and (interceptor := session.interceptor) is not None and error[0] is None:
        interceptor.on_calls_given_back(self)
    return left


def _exit(self: Any, *error: Any) -> Any:
    original: Any = "<original>"
    current: Any = "<active>"
    session = current()
    if session is None or (interceptor := session.interceptor) is None:
        return original(self, *error)
    return interceptor.on_context_exit(original, self, error)


def _grad_mode(self: Any, *args: Any, **kwargs: Any) -> None:
    original: Any = "<original>"
    current: Any = "<active>"
    session = current()
    if session is None or (interceptor := session.interceptor) is None:
        original(self, *args, **kwargs)
    else:
        interceptor.on_grad_mode_made(original, self, (*args, *kwargs.values()))


def _grad_mode_call(self: Any, function: Any) -> Any:
    original: Any = "<original>"
    current: Any = "<active>"
    session = current()
    if session is None or (interceptor := session.interceptor) is None:
        return original(self, function)
    return interceptor.on_grad_mode_decorates(original, self, function)


def _opaque(*args: Any, **kwargs: Any) -> Any:
    original: Any = "<original>"
    current: Any = "<active>"
    session = current()
    if session is None or (interceptor := session.interceptor) is None:
        return original(*args, **kwargs)
    hear: Any = "<hear>"
    return hear(interceptor, "<kind>", original, args, kwargs)


def _hear_opaque(
    interceptor: ModuleInterceptor, kind: str, original: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """Tell a tracer of a call; see `hear_opaque_call`."""
    # The compiler takes down functions of torch as it finds them, for the rest of the process: it must not find what
    # stands in their places meanwhile. What other threads trace is not to miss anything for it.
    if kind in COMPILED and not is_compiler_loaded() and len(_running) == 1:
        with _patches.lifted():
            load_compiler()
    return hear_opaque_call(interceptor, kind, original, args, kwargs)


def _compiling(function: Any, args: Any, kwargs: Any = None) -> Any:
    original: Any = "<original>"
    is_under_modes: Any = "<under modes>"
    if is_under_modes():
        return function(*args, **(kwargs or {}))
    return original(function, args, kwargs)


def _seeding(*args: Any, **kwargs: Any) -> Any:
    original: Any = "<original>"
    current: Any = "<active>"
    session = current()
    if session is None or (interceptor := session.interceptor) is None:
        return original(*args, **kwargs)
    return interceptor.on_seeding(original, args, kwargs)


def _conversion(*args: Any, **kwargs: Any) -> Any:
    original: Any = "<original>"
    current: Any = "<active>"
    session = current()
    if session is None or (interceptor := session.interceptor) is None:
        return original(*args, **kwargs)
    return interceptor.on_conversion("<name>", original, args, kwargs)


def _mode(*args: Any, **kwargs: Any) -> Any:
    original: Any = "<original>"
    answer = original(*args, **kwargs)
    current: Any = "<active>"
    session = current()
    if session is None or (interceptor := session.interceptor) is None:
        return answer
    hear: Any = "<hear>"
    return hear(interceptor, "<name>", args, kwargs, answer)


def _random(self: Any, *args: Any, **kwargs: Any) -> Any:
    original: Any = "<original>"
    current: Any = "<active>"
    session = current()
    if session is not None and (interceptor := session.interceptor) is not None:
        interceptor.on_random("<kind>", self, args, kwargs)
    return original(self, *args, **kwargs)


def _alias(self: Any, obj: Any) -> bool:
    original: Any = "<original>"
    is_traced: Any = "<traced>"
    if not is_traced(obj):
        return original(self, obj)
    ask: Any = "<ask>"
    return ask(original, self, obj)


def _scripted(self: Any, *args: Any, **kwargs: Any) -> Any:
    original: Any = "<original>"
    current: Any = "<active>"
    session = current()
    if session is None or (interceptor := session.interceptor) is None:
        return original(self, *args, **kwargs)
    bound: Any = "<bound>"
    return interceptor.on_function_call(self, bound(original, self), args, kwargs)


def _hash(self: Any) -> int:
    original: Any = "<original>"
    current: Any = "<active>"
    session = current()
    if session is not None and (interceptor := session.interceptor) is not None:
        interceptor.on_hash(self)
    return original(self)


def _message(self: Any) -> str:
    original: Any = "<original>"
    current: Any = "<active>"
    session = current()
    told: Any = "<told>"
    if session is None or session.interceptor is None or (text := told(self.msg, self.args)) is None:
        return original(self)
    return text


def _start(self: Any) -> None:
    original: Any = "<original>"
    current: Any = "<active>"
    session = current()
    if session is not None and (interceptor := session.interceptor) is not None:
        run = self.run
        found = interceptor.on_thread(run)
        if found is not run:
            self.run = found
    original(self)


def _submit(self: Any, function: Any, /, *args: Any, **kwargs: Any) -> Any:
    original: Any = "<original>"
    current: Any = "<active>"
    session = current()
    if session is not None and (interceptor := session.interceptor) is not None:
        function = interceptor.on_thread(function)
    return original(self, function, *args, **kwargs)


def _extended_shape(self: Any, *args: Any, **kwargs: Any) -> Any:
    original: Any = "<original>"
    current: Any = "<active>"
    session = current()
    if session is None or (interceptor := session.interceptor) is None:
        return original(self, *args, **kwargs)
    return interceptor.on_extended_shape(original, self, args, kwargs)


def _trace(*args: Any, **kwargs: Any) -> Any:
    original: Any = "<original>"
    outside: Any = "<outside>"
    return outside(original, args, kwargs)


def _outside(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Call a function as if nothing were traced."""
    if active.get() is None:
        return function(*args, **kwargs)
    token = active.set(None)
    try:
        return function(*args, **kwargs)
    finally:
        active.reset(token)


class _Flag:
    """What stands in for torch.fx's flag: true in the threads and tasks that trace."""

    def __init__(self) -> None:
        self.beneath = False
        """What the flag was: torch.fx itself may be tracing, and then everybody hears so."""

    def __bool__(self) -> bool:
        # With example inputs, libraries see real tensors, and need not do anything else than they always do.
        return self.beneath or getattr(active_interceptor(), "mode", "") == "symbolic"


_FLAG = _Flag()


class _FlagPatch:
    """Puts the stand-in for torch.fx's flag in place.

    A trace of torch.fx notes the flag when it starts, sets it, and puts back what it noted, whatever happened
    meanwhile. The stand-in may so come back when no trace needs it any more. It then says no, until the next trace
    takes it away.
    """

    def install(self) -> None:
        """Put it in place."""
        found = torch_fx_flag()
        if found is not _FLAG:
            _FLAG.beneath = bool(found)
            set_torch_fx_flag(_FLAG)

    def remove(self) -> None:
        """Put back what was there, unless torch.fx has set the flag since."""
        if torch_fx_flag() is _FLAG:
            set_torch_fx_flag(_FLAG.beneath)
        _FLAG.beneath = False


_INTERCEPTED: tuple[tuple[type, str, Any, dict[str, Any]], ...] = (
    (nn.Module, "__call__", _call, _CONSTANTS),
    (nn.Module, "__getattr__", _getattr, {**_CONSTANTS, "<hears every>": _hearing_every}),
    (nn.Module, "__setattr__", _setattr, _CONSTANTS),
    (torch.Tensor, "__hash__", _hash, _CONSTANTS),
    (TorchFxTracer, "trace", _trace, {"<outside>": _outside}),
)

_ALIASES = [
    kind
    for kind in dict.fromkeys((*type(typing.Optional[int]).__mro__, *type(typing.Sequence).__mro__))  # noqa: UP045 - its class
    if isinstance(vars(kind).get("__instancecheck__"), FunctionType)
]
"""The classes of what `typing` has for others, such as ``Optional[A]``, that ask for the type of the very object."""

_Intercepted: TypeAlias = "tuple[tuple[type, str, Any, dict[str, Any]], ...]"
_METHODS_OF_CONTEXTS: _Intercepted = (
    *((kind, "__enter__", _enter, _CONSTANTS) for kind in CONTEXTS),
    *((kind, "__exit__", _exit, _CONSTANTS) for kind in CONTEXTS),
    (torch.set_grad_enabled, "__init__", _grad_mode, _CONSTANTS),
    (torch.set_grad_enabled, "__call__", _grad_mode_call, _CONSTANTS),
)
_METHODS: _Intercepted = (
    (TorchFunctionMode, "__enter__", _enter_mode, _CONSTANTS),
    (TorchFunctionMode, "__exit__", _exit_mode, _CONSTANTS),
    (TorchDispatchMode, "__enter__", _enter_mode, _CONSTANTS),
    (TorchDispatchMode, "__exit__", _exit_mode, _CONSTANTS),
    (saved_tensors_hooks, "__enter__", _enter_mode, _CONSTANTS),
    (saved_tensors_hooks, "__exit__", _exit_mode, _CONSTANTS),
    *(
        (kind, name, _random, {**_CONSTANTS, "<kind>": heard})
        for kind, heard, names in (
            (random.Random, "made", ("__init__",)),
            (random.Random, "seed", ("seed",)),
            (random.Random, "state", ("setstate",)),
            (random.Random, "draw", ("gauss", "getrandbits", "random")),
            (random.SystemRandom, "draw", ("getrandbits", "randbytes", "random")),
        )
        for name in names
    ),
    (logging.LogRecord, "getMessage", _message, {**_CONSTANTS, "<told>": told_text}),
    (threading.Thread, "start", _start, _CONSTANTS),
    (ThreadPoolExecutor, "submit", _submit, _CONSTANTS),
    # It makes a ``torch.Size``, which takes nothing that stands for a number.
    (torch.distributions.Distribution, "_extended_shape", _extended_shape, _CONSTANTS),
    *(
        (kind, "__instancecheck__", _alias, {"<traced>": is_proxy, "<ask>": asked_of_alias})
        for kind in _ALIASES
    ),
    # What TorchScript has compiled takes no traced value.
    (torch.jit.ScriptFunction, "__call__", _scripted, {**_CONSTANTS, "<bound>": partial}),
)
_SEEDING = (torch.get_rng_state, torch.initial_seed, torch.manual_seed, torch.seed, torch.set_rng_state)
_CONVERSIONS = {
    "Module._apply": vars(nn.Module)["_apply"],
    "torch.utils.swap_tensors": torch.utils.swap_tensors,
    **{
        f"{kind.__name__}.{name}": function
        for kind in (nn.Module, nn.ModuleDict, nn.ModuleList, nn.Sequential)
        for name, function in vars(kind).items()
        if name in CHANGES_CONTAINERS and isinstance(function, FunctionType)
    },
}
"""What puts other tensors or modules into modules, or into tensors, without assigning anything."""


# -- installing


def _patch(
    owner: type, name: str, template: Any, constants: dict[str, Any], found: Any
) -> Trampoline | SlotPatch:
    patch = _lasting.get((owner, name))
    if patch is None or not patch.fits(found):
        own = getattr(found, "__module__", None) == owner.__module__
        patch = patch_for(owner, name, template, {**constants, "<own>": own}, found)
        if patch.is_lasting:
            _lasting[owner, name] = patch
    if owner is nn.Module and name == "__call__":
        originals.call = patch.original
    return patch


def _methods_patch() -> PatchGroup:
    """Return what hears of all that takes no part in most traces, and is therefore put in place in one go."""
    return _group_patch("methods", _METHODS, _patches_of_functions)


def _contexts_patch() -> PatchGroup:
    """Return what hears of contexts of torch that are entered and left."""
    return _group_patch("contexts", _METHODS_OF_CONTEXTS)


def _group_patch(
    name: str, intercepted: _Intercepted, more: Callable[[], list[Trampoline]] | None = None
) -> PatchGroup:
    """Return several patches as one.

    Args:
        name: Under which it is kept until the next trace.
        intercepted: The methods: class, name, what runs in their place, and what this is told.
        more: Returns patches of functions.
    """
    kept = _lasting_groups.get(name)
    if kept is not None and kept.fits():
        return kept
    found = [(owner, name, vars(owner).get(name)) for owner, name, _, _ in intercepted]
    methods = [
        _patch(owner, name, template, constants, method)
        for (owner, name, template, constants), (_, _, method) in zip(intercepted, found, strict=True)
    ]
    group = PatchGroup([*methods, *(() if more is None else more())], found)
    # The functions are torch's own, and stay; a method may be somebody's, who has put it there for a while.
    are_own = all(_is_own(owner, method) for owner, _, method in found)
    if are_own and all(patch.is_lasting for patch in methods):
        _lasting_groups[name] = group
    else:
        _lasting_groups.pop(name, None)
    return group


def _patches_of_functions() -> list[Trampoline]:
    """Return the patches of functions that take no part in most traces."""
    functions = [
        Trampoline(function, _opaque, {**_CONSTANTS, "<hear>": _hear_opaque, "<kind>": kind})
        for kind, function in opaque_functions().items()
    ]
    if COMPILES_CHOICES is not None:  # Older releases of torch compile in another way.
        functions.append(Trampoline(COMPILES_CHOICES, _compiling, {"<under modes>": is_under_modes}))
    functions += [Trampoline(cast("FunctionType", function), _seeding, _CONSTANTS) for function in _SEEDING]
    functions += [
        Trampoline(function, _conversion, {**_CONSTANTS, "<name>": name})
        for name, function in _CONVERSIONS.items()
    ]
    functions += [
        Trampoline(function, _mode, {**_CONSTANTS, "<hear>": hear_of_mode, "<name>": name})
        for name, function in modes_named()
        if isinstance(function, FunctionType)
    ]
    constants = {**_CONSTANTS, "<hear>": hear_of_gradients, "<name>": "grad"}
    functions.append(Trampoline(cast("FunctionType", torch.autograd.grad), _mode, constants))
    return functions


def _is_own(owner: type, method: Any) -> bool:
    """Return whether what a class has is from where the class is, or from C; None is what it only inherits."""
    if isinstance(method, FunctionType):
        return method.__module__ == owner.__module__
    return type(method).__module__ == "builtins"


def _install(interceptor: ModuleInterceptor) -> None:
    """Install what every trace needs."""
    hears_reads = interceptor.hears_every_attribute or interceptor.hears_tensor_attributes
    for owner, name, template, constants in _INTERCEPTED:
        found = vars(owner)[name]
        if template is _getattr and not hears_reads and not hasattr(found, TORCH_FX_PATCHED):
            continue  # Modules that run as they are read each of their parameters by this method.
        # A running trace of torch.fx has put a function of its own around this one, and takes it away when it ends,
        # whatever runs here then: both are told.
        inner = getattr(found, "__wrapped__", found) if hasattr(found, TORCH_FX_PATCHED) else found
        key = (owner, name)
        _patches.hold(_EVERY_TRACE, key, partial(_patch, owner, name, template, constants, inner))
        if inner is not found:
            own = cast("Trampoline", _patches.find(key))
            _patches.hold(
                _EVERY_TRACE,
                (*key, found),
                partial(Trampoline, found, template, {**constants, "<own>": False}, beneath=own.original),
            )
    _patches.hold(_EVERY_TRACE, "flag", _FlagPatch)
    hold_wrapped(_patches, _EVERY_TRACE)


def _install_rest() -> None:
    """Install what every trace needs of a program that does more than to call modules and torch."""
    with _patches.lock:
        _patches.hold(_EVERY_TRACE, "methods", _methods_patch)
        _patches.hold(_EVERY_TRACE, "contexts", _contexts_patch)
        hold_modes(_patches, _EVERY_TRACE)


@contextmanager
def intercept(
    interceptor: ModuleInterceptor,
    modules: Iterable[ModuleType] = (),
    functions: Iterable[Callable[..., Any]] = (),
) -> Generator[None]:
    """Ask `interceptor` about every use of a module in this thread or task while the context lasts.

    Args:
        interceptor: Who traces.
        modules: Python modules whose functions this trace keeps as calls.
        functions: Functions that this trace keeps as calls.

    Raises:
        TraceError: A name that some module wrapped does not exist.
    """
    session = Session(interceptor)
    token = active.set(session)
    try:
        with _patches.lock:
            _running.add(session)
            if interceptor.hears_every_attribute:
                _hearing_every.add(session)
            _install(interceptor)
            if getattr(interceptor, "may_be_plain", False) and not any(global_hook_tables()):
                session.install_rest = _install_rest
            else:
                _install_rest()
            hold_leaves(_patches, session, modules, functions)
        with interceptor.torch_calls(session):
            yield
    finally:
        session.interceptor = session.calls = None
        active.reset(token)
        session.caches.restore()
        with _patches.lock:
            _patches.release(session)
            _running.discard(session)
            _hearing_every.discard(session)
            if not _running:
                _patches.release(_EVERY_TRACE)


def own_code(function: FunctionType) -> CodeType:
    """Return the code of a function, whatever code runs in its place meanwhile."""
    return body_of(_patches, function).__code__


def entering(function: Callable[..., Any]) -> Callable[..., Any]:
    """Hear that a function is about to be traced, and return what runs its body, even if calls of it are kept."""
    root = getattr(function, "__self__", None)
    keep_calls_of(_patches, root)
    look_through(_patches, function)
    for hook in hooks_around_forward(root) if isinstance(root, nn.Module) else ():
        look_through(_patches, hook)
    session = active.get()
    if session is not None and session.interceptor is not None:
        session.interceptor.on_beginning()
    if session is not None and session.unhandled:
        return unhandled_body(session, function)
    return body_of(_patches, function)


def entering_plainly(module: nn.Module) -> bool | None:
    """Hear that the forward of a module is about to be traced, if there is nothing to look for in it.

    Returns:
        Whether there is nothing more to say of it than of others that are alike; None if `entering_module` is to hear
        of it.
    """
    session = active.get()
    return None if session is None else enter_plainly(_patches, session, module)


def hear_of_questions(namespaces: Iterable[tuple[dict[str, Any], frozenset[str]]]) -> None:
    """Hear of calls of functions of Python by the functions of some modules, given by what they find, and the names."""
    session = active.get()
    if session is not None:
        for namespace, names in namespaces:
            hear_of_asked(_patches, session, namespace, names)


def hear_of_contexts() -> None:
    """Hear of contexts of torch that are entered and left."""
    with _patches.lock:
        _patches.hold(_EVERY_TRACE, "contexts", _contexts_patch)


def let_errors_through(functions: Iterable[FunctionType]) -> bool:
    """Let errors through functions that handle them, while a plain program is traced; False where that cannot be."""
    session = active.get()
    with _patches.lock:
        return session is not None and hold_unhandled(_patches, session, functions)


def entering_module(module: nn.Module) -> None:
    """Hear that the forward of a module is about to be traced."""
    session = active.get()
    if session is None:
        return
    likeness = session.likenesses.of(module)
    if likeness in session.entered:
        return
    if isinstance(module, GraphModule):
        keep_calls_of(_patches, module)
    else:
        session.entered.add(likeness)
    look_through(_patches, module.forward)
    for hook in hooks_around_forward(module):
        look_through(_patches, hook)
