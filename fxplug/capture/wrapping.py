"""Functions that stay calls: `wrap`, what libraries registered with ``torch.fx.wrap``, and a tracer's own.

A function that is written in Python is caught wherever it is called from: its code is exchanged while traces run (see
`fxplug.capture.trampolines`). Everything else can be caught in the globals of modules only (see
`fxplug.capture.shims`): what a module wraps, in that module; what a tracer keeps, in the module that defines it, unless
that is ``builtins``, and in those of the functions and modules that it traces.
"""

from __future__ import annotations

import builtins
import os
import sys
import threading
import uuid
import weakref
from functools import partial
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from torch import nn

from fxplug.capture.caches import CACHED
from fxplug.capture.compared import made_to_compare
from fxplug.capture.comparisons import check_call, check_comparisons
from fxplug.capture.conversions import (
    CONVERSIONS,
    called_conversions,
    conversions_heard_in,
    is_used_otherwise,
    missed_conversion,
)
from fxplug.capture.hazards import ASKED_BY_NAME, leads_astray, reachable
from fxplug.capture.identity import IDENTITY
from fxplug.capture.listeners import Untold
from fxplug.capture.live_code import letting_errors_through
from fxplug.capture.operands import Call
from fxplug.capture.originals import note_shim, original_of
from fxplug.capture.plain_functions import PlainPart, holds_the_same, layout_of, plain_parts
from fxplug.capture.proxy import Proxy, TracerBase, traced_value
from fxplug.capture.reached import function_behind
from fxplug.capture.sessions import Session, active
from fxplug.capture.shims import call_leaf, class_patch, shim_for
from fxplug.capture.sources import carrier_name, is_installed
from fxplug.capture.trampolines import NamespacePatch, Patches, Trampoline, patch_for, with_code
from fxplug.capture.unseen import CallsOfFunctionsPatch, function_named_by, function_of, is_called_by_plugin
from fxplug.capture.world import (
    MODES_IN_C,
    CallsPatch,
    FramesPatch,
    PartialPatch,
    asked_of_world,
    draws_of_python,
    functions_in,
    imports_questions,
    imports_world,
    is_question,
    may_draw_of_numpy,
    mode_asked,
    modes_named,
    world_found_by,
    world_kept_by,
)
from fxplug.errors import TraceError
from fxplug.execute import GraphModule
from fxplug.execute.guards import GuardedForward
from fxplug.semantics.checks import PLAIN_CHECKS, class_of, is_instance, same_value
from fxplug.semantics.internals import (
    MODULES_WITH_MODES,
    global_hook_tables,
    is_run_as_written,
    stands_in_for_scripts,
    torch_fx_wrapped_functions,
    torch_fx_wrapped_methods,
)
from fxplug.semantics.random_sources import draws_for_everybody

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from types import FrameType

    from fxplug.capture.hazards import Scan
    from fxplug.capture.sessions import ModuleInterceptor
    from fxplug.capture.trampolines import Patch

__all__ = [
    "body_of",
    "check_inputs",
    "hear_of_asked",
    "hold_leaves",
    "hold_modes",
    "hold_wrapped",
    "is_wrapped_for_torch_fx",
    "look_through",
    "wrap",
]

T = TypeVar("T")

_functions: weakref.WeakSet[Any] = weakref.WeakSet()
"""Python functions that were wrapped."""
_names: dict[tuple[int, str], dict[str, Any]] = {}
"""(Id of the globals, name) -> the globals, of what was wrapped by name."""
_objects: dict[int, tuple[Any, dict[str, Any]]] = {}
"""Id -> (the callable, globals of the module that wrapped it), of what is not written in Python."""


def wrap(fn_or_name: T) -> T:
    """Keep calls of a function as calls: a trace records them as one node, and does not look inside.

    A call is recorded if a traced value is among its arguments, at any depth of tuples, lists, dicts and dataclasses;
    other calls are made while tracing, as always. It works wherever the function is called from, and for traces that
    start afterwards. The function itself is neither replaced nor changed outside of traces.

    Args:
        fn_or_name: A function, as a decorator too, anywhere; or the name of a callable that the calling module has
            among its globals when a trace starts, or of one of Python's builtins, such as ``"len"``. With a name, the
            call must stand at the top level of the module.

    Returns:
        What was passed.

    Raises:
        TraceError: It is nothing that can be kept as a call, or a name that is given inside a function.

    Example:
        ::

            import fxplug as fx

            fx.wrap("len")

            @fx.wrap
            def resize(image, size): ...
    """
    caller = sys._getframe(1)  # pyright: ignore[reportPrivateUsage]
    namespace = caller.f_globals
    if isinstance(fn_or_name, str):
        if caller.f_code.co_name != "<module>":
            raise TraceError(
                f"Cannot wrap {fn_or_name!r} by its name inside {caller.f_code.co_name!r}: names are looked up among "
                "the globals of a module. Call wrap at the top level of the module, or pass the function itself.",
                code="FXP-T020",
            )
        _names[id(namespace), fn_or_name] = namespace
        return fn_or_name
    value: Any = original_of(fn_or_name)
    reason = _why_not(value)
    if reason is not None:
        raise TraceError(f"Cannot wrap {fn_or_name!r}: {reason}", code="FXP-T020")
    if isinstance(value, FunctionType):
        _functions.add(value)
    else:
        _objects[id(value)] = (value, namespace)
    return fn_or_name


def _why_not(value: Any) -> str | None:
    """Return why calls of `value` cannot be kept, with what to do, or None if they can."""
    if isinstance(value, nn.Module):
        return "it is a module. Make it a leaf (leaf_modules in the configuration, or a tracer's is_leaf_module)."
    if isinstance(value, MethodType):
        return f"it is a bound method. Wrap the function behind it, {value.__func__.__qualname__}."
    if isinstance(value, type) and type(value) is not type:
        return f"it is a class with a metaclass, {type(value).__name__}. Wrap a function that makes its instances."
    if isinstance(value, type) and issubclass(value, BaseException):
        return (
            "it is an exception, which a program raises and catches. Wrap a function that makes or raises it."
        )
    if not callable(value):
        return f"it is a {type(value).__name__}, which cannot be called. Pass a function, or the name of one."
    return None


def is_wrapped_for_torch_fx(function: Any) -> bool:
    """Return whether calls of a function stay calls because ``torch.fx.wrap`` was told of it, and for nothing else."""
    if not isinstance(function, FunctionType) or function in _functions:
        return False
    session = active.get()
    if session is not None and id(function) in session.leaves:
        return False
    named = [namespace.get(name) for (_, name), namespace in list(_names.items())]
    return all(function is not value for value in named) and any(
        original_of(namespace.get(name)) is function for name, namespace in torch_fx_wrapped_functions()
    )


# -- what is installed while any trace runs


def hold_wrapped(patches: Patches, holder: object) -> None:
    """Install what keeps calls of all wrapped functions, until `holder` releases it.

    Raises:
        TraceError: A module wrapped a name that it does not have, or that is not callable.
    """
    for function in list(_functions):
        _hold_standing(patches, holder, function, {}, None)
    for value, namespace in list(_objects.values()):
        _hold_standing(patches, holder, value, namespace, None)
    for (_, name), namespace in list(_names.items()):
        value = _resolve(namespace, name)
        if value is not None:
            _hold_standing(patches, holder, value, namespace, name)
    for name, namespace in torch_fx_wrapped_functions():
        found = namespace[name] if name in namespace else getattr(builtins, name, None)
        value = original_of(found)
        # What torch.fx itself would refuse is for torch.fx to complain about.
        if type(value) is FunctionType or (value is not None and _why_not(value) is None):
            _hold_standing(patches, holder, value, namespace, name)
    for owner, name in torch_fx_wrapped_methods():
        key = ("method", id(owner), name)
        patches.hold(holder, key, lambda owner=owner, name=name: _method_patch(owner, name))


def hold_modes(patches: Patches, holder: object) -> None:
    """Hear of what is asked of torch for its modes, wherever a program does; torch itself asks, too, and is told apart.

    Those of its functions that are written in Python are heard of by their code (see `fxplug.capture.interception`).
    """
    for module in MODULES_WITH_MODES:
        patches.hold(holder, (id(module), "modes"), partial(_modes_patch, module))


def _modes_patch(module: ModuleType) -> NamespacePatch:
    patch = _lasting_modes.get(module)
    if patch is None:
        # Where somebody has put another function, it is left alone for as long.
        own = [(name, value) for name, value in MODES_IN_C.items() if name in vars(module)]
        lent = {name: (value, shim_for(value, always=False)) for name, value in own}
        for value, shim in lent.values():
            stands_in_for_scripts(shim, value)
        patch = _lasting_modes[module] = NamespacePatch(vars(module), lent)
    return patch


_lasting_modes: dict[ModuleType, NamespacePatch] = {}
"""Module -> what hears of what is asked of it: made when a trace first needs it."""


def _resolve(namespace: Mapping[str, Any], name: str) -> Any:
    missing = object()
    value = original_of(namespace.get(name, getattr(builtins, name, missing)))
    module = namespace.get("__name__")
    if value is missing:
        is_gone = getattr(sys.modules.get(str(module)), "__dict__", None) is not namespace
        if is_gone or getattr(namespace.get("__spec__"), "_initializing", False):
            return None  # Or another thread is importing the module, and the name is on its way.
        raise TraceError(
            f"Cannot trace: module {module!r} called wrap({name!r}), but has no such name. Correct the name there.",
            code="FXP-T020",
        )
    reason = _why_not(value)
    if reason is not None:
        raise TraceError(
            f"Cannot trace: module {module!r} called wrap({name!r}), which is {value!r}: {reason}",
            code="FXP-T020",
        )
    return value


def _hold_standing(
    patches: Patches, holder: object, value: Any, namespace: dict[str, Any], name: str | None
) -> None:
    """Keep calls of something for every trace, under `name`, or under all names that `namespace` has for it."""
    if isinstance(value, FunctionType):
        _kept.add(value)
        _hold_function(patches, holder, value)
        return
    for found in [name] if name is not None else _names_of(value, namespace):
        _hold_name(patches, holder, namespace, found, value, always=True)
    home = _home_of(value)
    if name is None and home is not None:
        _hold_name(patches, holder, vars(home), value.__name__, value, always=True)


def _names_of(value: Any, namespace: Mapping[str, Any]) -> list[str]:
    names = [name for name, found in list(namespace.items()) if original_of(found) is value]
    own = str(getattr(value, "__name__", None))
    if not names and getattr(builtins, own, None) is value and own not in namespace:
        names.append(own)
    return names


def _hold_name(
    patches: Patches,
    holder: object,
    namespace: dict[str, Any],
    name: str,
    value: Any,
    *,
    always: bool = False,
) -> None:
    if isinstance(value, FunctionType):
        return  # Caught itself.
    shim = shim_for(value, always=always)
    patches.hold(holder, (id(namespace), name), lambda: NamespacePatch(namespace, {name: (value, shim)}))


def _home_of(value: Any) -> ModuleType | None:
    """Return the module in which others find a function that is not written in Python, as they find ``math.sqrt``."""
    home = sys.modules.get(str(getattr(value, "__module__", None)))
    if home is None or home is builtins or isinstance(value, type):
        return None
    return home if original_of(vars(home).get(getattr(value, "__name__", ""))) is value else None


# -- Python functions


_kept: weakref.WeakSet[Any] = weakref.WeakSet()
"""Those of which every trace keeps the calls: wrapped themselves, or by a name."""
_trampolines: weakref.WeakKeyDictionary[Any, Trampoline] = weakref.WeakKeyDictionary()
"""Kept for the next trace, which most likely needs the same ones."""


def _leaf(*args: Any, **kwargs: Any) -> Any:
    current: Any = "<active>"
    original: Any = "<original>"
    session = current()
    if session is None:
        return original(*args, **kwargs)
    call: Any = "<call>"
    return call(session, "<reference>", original, args, kwargs)


def _call(
    session: Session,
    reference: Callable[[], Any],
    original: Any,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Any:
    function = reference()
    if session.is_plain and (unhandled := session.unhandled.get(id(function))) is not None:
        return unhandled(*args, **kwargs)
    if id(function) in session.heard and session.interceptor is not None:
        session.interceptor.on_heard_call(original)
    is_kept = function in _kept
    if id(function) in session.watched and not is_kept and id(function) not in session.leaves:
        check_comparisons(session, original, args, kwargs)
    result = call_leaf(session, function, original, args, kwargs, always=is_kept)
    if id(function) in session.caches.computing and session.interceptor is not None:
        session.caches.note_result(function, result, session.interceptor)
    return result


def _hold_function(patches: Patches, holder: object, function: FunctionType) -> None:
    patches.hold(holder, id(function), lambda: _trampoline_for(function))


def _trampoline_for(function: FunctionType) -> Trampoline:
    trampoline = _trampolines.get(function)
    if trampoline is None or not trampoline.fits(function):
        trampoline = _new_trampoline(function)
        if trampoline.is_lasting:
            _trampolines[function] = trampoline
    return trampoline


def _new_trampoline(function: FunctionType) -> Trampoline:
    constants = {"<active>": active.get, "<call>": _call}
    filename = carrier_name(function.__code__.co_filename)
    return Trampoline(function, _leaf, constants, filename, shows_signature=True)


def hold_unhandled(patches: Patches, session: Session, functions: Iterable[FunctionType]) -> bool:
    """Let errors through functions that handle them, for one plain trace: it is none where one is raised.

    Returns:
        False where something else has been put in the place of one of them; nothing is to be run then.
    """
    for function in functions:
        if patches.find(id(function)) is not None:
            return False
        code = letting_errors_through(function.__code__)
        session.unhandled[id(function)] = with_code(function, code)
        # Not for the next trace, too: it keeps the globals of the function, and these keep that.
        patches.hold(session, id(function), partial(_new_trampoline, function))
    return True


def unhandled_body(session: Session, function: Any) -> Any:
    """Return what runs in the place of a function or method in a plain trace: what lets errors through, if it does."""
    if isinstance(function, MethodType):
        run = session.unhandled.get(id(function.__func__))
        return function if run is None else MethodType(run, function.__self__)
    return session.unhandled.get(id(function), function)


def body_of(patches: Patches, function: Any) -> Any:
    """Return what runs the body of a function or method, even if calls of it are kept as calls."""
    if isinstance(function, MethodType):
        body = body_of(patches, function.__func__)
        return function if body is function.__func__ else MethodType(body, function.__self__)
    if isinstance(function, FunctionType):
        trampoline = patches.find(id(function))
        return trampoline.original if isinstance(trampoline, Trampoline) else function
    return function


def _method(*args: Any, **kwargs: Any) -> Any:
    call: Any = "<call>"
    return call("<original>", args, kwargs)


def _method_patch(owner: type, name: str) -> Patch:
    def call(original: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        session = active.get()
        if session is not None and session.interceptor is not None:
            proxy = traced_value(args, kwargs)
            if proxy is not None:
                return proxy.tracer.create_proxy("call_method", name, args, kwargs)
        return original(*args, **kwargs)

    return patch_for(owner, name, _method, {"<call>": call})


# -- what one trace keeps


def hold_leaves(
    patches: Patches,
    session: Session,
    modules: Iterable[ModuleType] = (),
    functions: Iterable[Callable[..., Any]] = (),
) -> None:
    """Keep calls of functions for one trace, until `session` releases what it holds.

    Args:
        patches: Where it is installed.
        session: The trace.
        modules: Whose public functions are kept, those that they only import included.
        functions: Further functions.

    Raises:
        TraceError: One of `functions` is nothing that can be kept as a call.
    """
    for module in modules:
        if _is_compiled(module):
            session.leaves.update(_hold_module(patches, session, module))
            continue
        for name, value in _public_functions(module):
            session.leaves[id(value)] = value
            _hold_name(patches, session, vars(module), name, value)
            if isinstance(value, FunctionType):
                _hold_function(patches, session, value)
    for function in functions:
        value = original_of(function)
        reason = _why_not(value)
        if reason is not None:
            raise TraceError(f"Cannot keep calls of {function!r}: {reason}", code="FXP-T020")
        session.leaves[id(value)] = value
        home = _home_of(value)
        if isinstance(value, FunctionType):
            _hold_function(patches, session, value)
        elif home is not None and _is_compiled(home):
            _hold_module(patches, session, home)
        elif home is not None:
            _hold_name(patches, session, vars(home), value.__name__, value)


def look_through(patches: Patches, function: Callable[..., Any]) -> None:
    """Catch what this trace keeps, and is not written in Python, in the globals of a function that it enters."""
    session = active.get()
    namespace: dict[str, Any] | None = getattr(function, "__globals__", None)
    if session is None or session.is_plain:
        return
    _watch(patches, session, function)
    if namespace is not None:
        _hold_kept(patches, session, namespace)


def enter_plainly(patches: Patches, session: Session, module: nn.Module) -> bool | None:
    """Enter the forward of a module, if there is nothing to look for in it and nothing runs around it.

    Returns:
        Whether there is nothing more to say of the module than of others that are alike; None if it is to be looked
        through.
    """
    forward = getattr(type(module), "forward", None)
    if type(forward) is not FunctionType or any(global_hook_tables()):
        return None
    try:
        if not is_run_as_written(vars(module)):
            return None
        layout = forward, *layout_of(module)
    except KeyError:  # It lacks a table that every module has.
        return None
    parts = session.plain.get(layout)
    if parts is not None and holds_the_same(module, parts):
        return True
    found = _watch_plainly(patches, session, forward, module)
    if found is None:
        return None
    _hold_kept(patches, session, forward.__globals__)
    if found.is_alike:
        session.plain[layout] = found.parts
    return found.is_alike


def _hold_kept(patches: Patches, session: Session, namespace: dict[str, Any]) -> None:
    """Catch what this trace keeps, and is not written in Python, in the globals of a function."""
    if id(namespace) in session.namespaces:
        return
    session.namespaces.add(id(namespace))
    kept = session.leaves
    if not kept.keys().isdisjoint(map(id, list(namespace.values()))):
        for name, value in list(namespace.items()):
            if id(value) in kept:
                _hold_name(patches, session, namespace, name, value)
    for key in _BUILTINS.keys() & kept.keys():
        if _BUILTINS[key] not in namespace:
            _hold_name(patches, session, namespace, _BUILTINS[key], kept[key])


def _plain(function: Any) -> Any:
    """Return the function or bound method that runs where something is called."""
    while isinstance(function, partial):
        function = function.func
    if isinstance(function, GuardedForward):
        function = function.__wrapped__
    if not isinstance(function, (FunctionType, MethodType)):
        function = getattr(function, "__call__", function)  # noqa: B004 - an object whose class says how it is called
    return function


def _watch(patches: Patches, session: Session, function: Callable[..., Any]) -> None:
    """Hear of the questions that no traced value hears (see `fxplug.capture.hazards`), in what a function may call."""
    function = _plain(function)
    receiver = getattr(function, "__self__", None)
    if _watch_plainly(patches, session, function, receiver) is not None:
        return
    if session.install_rest is not None:
        session.install_rest()
        session.install_rest = None
    is_astray, calls = False, Untold()
    with calls:
        for found, owner, scan in reachable(function, receiver, session, partial(body_of, patches)):
            held_by = receiver if owner is None else owner
            is_astray = is_astray or _may_find_others(patches, session, found, held_by, scan)
            _watch_one(patches, session, found, (owner, held_by), scan)
            calls.renew()
    if is_astray or session.defers:
        patches.hold(
            session,
            ("functions", id(session)),
            lambda: CallsOfFunctionsPatch(session, partial(_enter_unseen, patches, session)),
        )


class _Plain(NamedTuple):
    """What was found of a function in which there is nothing to look for."""

    parts: list[PlainPart]
    is_alike: bool
    """Whether all that there was to do about it is done, whatever else it is a method of."""


def _watch_plainly(patches: Patches, session: Session, function: Any, receiver: Any) -> _Plain | None:
    """Do what is left to do about a function in which there is nothing to look for; return None for any other one."""
    interceptor = session.interceptor
    if interceptor is None or getattr(interceptor, "hears_functions", False):
        return None
    try:
        parts = plain_parts(function, receiver, partial(_code_of, patches))
    except KeyError:  # A module lacks a table that every module has.
        return None
    if parts is None:
        return None
    is_alike = True
    for called, code, *_ in parts:
        session.looked.add(id(code))
        is_alike &= interceptor.on_plain_function(called, code, receiver)
        if id(called) in session.heard or id(called) in session.caches.computing:
            _hold_function(patches, session, called)
    return _Plain(parts, is_alike)


def _code_of(patches: Patches, function: FunctionType) -> CodeType:
    return body_of(patches, function).__code__


def _watch_one(
    patches: Patches, session: Session, found: FunctionType, objects: tuple[Any, Any], scan: Scan
) -> None:
    """Hear of the questions in one function.

    Args:
        patches: Where what hears is installed.
        session: The trace.
        found: The function.
        objects: The one whose method it is, None for a function, and the one that it may be given.
        scan: What stands in its code.
    """
    owner, held_by = objects
    runs_on_examples = getattr(session.interceptor, "mode", "symbolic") != "symbolic"
    namespace = found.__globals__
    session.looked |= scan.codes
    if session.interceptor is not None:
        code = body_of(patches, found).__code__
        session.interceptor.on_function_reached(found, code, scan.names, owner)
    # Examples answer all questions but those for the class of a number, which stands for one, and for a length.
    hear_of_asked(
        patches,
        session,
        namespace,
        scan.asks & (_ASKED_OF_EXAMPLES if runs_on_examples else ASKED_BY_NAME),
    )
    if runs_on_examples:
        _hear_of_cached(patches, session, namespace, scan.globals)
        if "__class__" in scan.names and getattr(session.interceptor, "without_data", None) is not None:
            patches.hold(session, "class of what has no data", class_patch)
    # A function without an object of its own may be given this one.
    if not scan.names.isdisjoint(CONVERSIONS):
        _hear_of_conversions(patches, session, namespace, body_of(patches, found).__code__)
    _hear_of_world(patches, session, found, held_by, scan.names)
    _hear_of_modes(patches, session, namespace, scan.names)
    if (scan.tests or scan.pairs or scan.comparisons) and not runs_on_examples:
        session.watched.add(id(found))
        _hold_function(patches, session, found)
        _hear_of_made(patches, session, body_of(patches, found).__code__)
    elif id(found) in session.heard or id(found) in session.caches.computing:
        _hold_function(patches, session, found)


def _may_find_others(
    patches: Patches, session: Session, function: FunctionType, owner: Any, scan: Scan
) -> bool:
    """Return whether a function may find some that no name leads to, so that all calls are to be heard of."""
    if is_installed(body_of(patches, function).__code__.co_filename):
        return False
    is_wanted = scan.is_blind or getattr(session.interceptor, "hears_functions", False)
    return is_wanted or leads_astray(function, owner, scan.names)


def _enter_unseen(patches: Patches, session: Session, frame: FrameType) -> None:
    """Look at a function that is being called, as if a name had led to it, and at what it is called with."""
    code, interceptor = frame.f_code, session.interceptor
    if interceptor is None or interceptor.paused or not session.is_running or active.get() is not session:
        return
    if code.co_name == "__init__" and code.co_argcount:
        made = frame.f_locals.get(code.co_varnames[0])
        session.created[id(made)] = made
    function = _unseen_function(session, interceptor, frame)
    if function is None or is_called_by_plugin(frame):
        return
    session.looked.add(id(code))
    look_through(patches, function)
    plain = function.__func__ if isinstance(function, MethodType) else function
    if id(plain) in session.heard:
        interceptor.on_heard_call(body_of(patches, plain))
    if id(plain) in session.watched:
        count = code.co_argcount
        given = [frame.f_locals.get(name) for name in code.co_varnames[: count + code.co_kwonlyargcount]]
        named = dict(zip(code.co_varnames[count:], given[count:], strict=False))
        check_comparisons(session, body_of(patches, plain), tuple(given[:count]), named)


def _unseen_function(session: Session, interceptor: ModuleInterceptor, frame: FrameType) -> Any:
    """Return the function that a frame runs; None where it was looked at, with an object that leads to the same."""
    key = id(frame.f_code)
    is_known = key in session.looked
    if is_known and (not session.defers or key in session.unnamed):
        return None
    function = function_named_by(frame) if is_known else function_of(frame)
    receiver = getattr(function, "__self__", None)
    # Those of plugins are not the program.
    if function is None or issubclass(type(receiver), (Proxy, TracerBase)):
        session.looked.add(key)
        session.unnamed.add(key)
        return None
    number = 0
    if isinstance(function, MethodType):
        # What such an object holds is what the program was given, or has computed.
        if interceptor.is_input(receiver) or id(receiver) in session.created:
            function = function.__func__
        else:
            number = session.likenesses.of(receiver)
    return None if is_known and (id(function_behind(function)), number) in session.reached else function


def _hear_of_made(patches: Patches, session: Session, code: CodeType) -> None:
    """Hear of calls of the functions that a function makes when it runs, and that compare what they are called with."""
    made = made_to_compare(code)
    if made:
        session.made.update((id(part), part) for part in made)
        patches.hold(session, ("made", id(session)), partial(FramesPatch, session.made, _enter_made))


def _enter_made(frame: FrameType) -> None:
    session = active.get()
    if session is not None and session.interceptor is not None:
        call = Call(frame.f_code, dict(frame.f_locals), frame.f_globals)
        check_call(session.interceptor, call)


def hear_of_asked(
    patches: Patches, session: Session, namespace: dict[str, Any], names: frozenset[str]
) -> None:
    """Hear of questions that functions of Python answer."""
    for name in names:
        value = getattr(builtins, name)
        if original_of(namespace.get(name, value)) is value:
            _hold_name(patches, session, namespace, name, value)


def _hear_of_cached(
    patches: Patches, session: Session, namespace: dict[str, Any], names: frozenset[str]
) -> None:
    """Hear of calls of functions whose results are kept (``functools.lru_cache``), where they are called by name."""
    for name in names:
        value = original_of(namespace.get(name))
        if issubclass(type(value), CACHED):
            _hold_name(patches, session, namespace, name, value)


_ASKED_OF_EXAMPLES = frozenset({"len", "type"})


def _hear_of_conversions(
    patches: Patches, session: Session, namespace: dict[str, Any], code: CodeType
) -> None:
    """Hear of calls of ``int`` and ``float``, if no code of the module of Python needs the classes themselves.

    Raises:
        MissedConversionError: This code does, and what stands for a class is in its place already.
    """
    interceptor = session.interceptor
    if getattr(interceptor, "plain_conversions", True):
        return
    held = [name for name in CONVERSIONS if (id(namespace), name) in session.conversions]
    if any(is_used_otherwise(code, name) for name in held):
        raise missed_conversion(code)
    called = {
        name
        for name in called_conversions(code).difference(held)
        if (id(namespace), name) not in session.asked
    }
    # Looking through a module of Python takes long, and all of its functions get the same answer.
    session.asked.update((id(namespace), name) for name in called)
    for name in conversions_heard_in(namespace, called) if called else ():
        value = CONVERSIONS[name]
        if original_of(namespace.get(name, value)) is value:
            session.conversions.add((id(namespace), name))
            _hold_name(patches, session, namespace, name, value)


def _hear_of_world(
    patches: Patches, session: Session, function: FunctionType, owner: Any, names: frozenset[str]
) -> None:
    """Hear of what a function of the program asks of the world around it."""
    code = body_of(patches, function).__code__
    if is_installed(code.co_filename):
        return
    namespace = function.__globals__
    for name, value in world_found_by(namespace, names):
        _hear_of_found(patches, session, namespace, name, value)
    _hear_of_kept(patches, session, function, owner, names)
    if imports_world(code, names):
        _hear_of_calls(patches, session)
    if threading.active_count() > 1:  # Otherwise the states of the generators tell.
        _hear_of_draws(patches, session, function, code, names)


def _hear_of_found(
    patches: Patches, session: Session, namespace: dict[str, Any], name: str, value: Any
) -> None:
    """Hear of calls of what a function finds by a name: a function that asks the world, or a module with some."""
    if isinstance(value, ModuleType):
        patches.hold(session, (id(namespace), name), partial(_lend_module, namespace, name, value))
        for found in functions_in(value).values():
            if isinstance(found, FunctionType):
                _hold_function(patches, session, found)
    elif not isinstance(value, FunctionType):
        runs_on_examples = getattr(session.interceptor, "mode", "symbolic") != "symbolic"
        if value is type or not (is_question(value) and (runs_on_examples or value in IDENTITY)):
            _hold_name(patches, session, namespace, name, value)
    elif mode_asked(value) is None:
        _hold_function(patches, session, value)


def _hear_of_draws(
    patches: Patches, session: Session, function: FunctionType, code: CodeType, names: frozenset[str]
) -> None:
    """Hear that a function draws of the generators that all threads share."""
    if draws_of_python(function.__globals__, code, names):
        _hear_of_calls(patches, session)
    if may_draw_of_numpy(function, names) and session.interceptor is not None:
        session.interceptor.on_world_asked("possible numbers", "numpy")


def _hear_of_kept(
    patches: Patches, session: Session, function: FunctionType, owner: Any, names: frozenset[str]
) -> None:
    """Hear of it where the function finds it elsewhere than under a name."""
    interceptor, code = session.interceptor, body_of(patches, function).__code__
    if imports_questions(code, names) and interceptor is not None:
        interceptor.on_question_found(function, code, type)
    for value in world_kept_by(function, owner, names):
        if is_question(asked := value.func if isinstance(value, partial) else value):
            if interceptor is not None:
                interceptor.on_question_found(function, code, asked)
            continue
        if isinstance(value, FunctionType) and mode_asked(value) is not None:
            continue  # Heard of in every trace.
        if isinstance(value, FunctionType) and asked_of_world(value) is not None:
            _hold_function(patches, session, value)
        elif draws_for_everybody(value):
            if session.interceptor is not None:
                session.interceptor.on_world_asked("possible numbers", "numpy")
        elif isinstance(value, partial):
            lent = shim_for(value.func, always=False)
            patches.hold(session, ("partial", id(value)), partial(PartialPatch, value, lent))
        else:
            _hear_of_calls(patches, session)


def _hear_of_calls(patches: Patches, session: Session) -> None:
    patches.hold(session, ("calls", id(session)), CallsPatch)
    for module in (os, uuid):
        for value in functions_in(module).values():
            if isinstance(value, FunctionType):
                _hold_function(patches, session, value)


def _hear_of_modes(
    patches: Patches, session: Session, namespace: dict[str, Any], names: frozenset[str]
) -> None:
    """Hear of what a function asks torch for by a name of its own."""
    for name, value in modes_named(names):
        # What it finds in torch is heard of in every trace.
        if original_of(namespace.get(name)) is value and not isinstance(value, FunctionType):
            _hold_name(patches, session, namespace, name, value)


_lent_modules: dict[str, ModuleType] = {}


def _lend_module(namespace: dict[str, Any], name: str, module: ModuleType) -> NamespacePatch:
    """Return what lends a name a module with stand-ins; the module itself is everybody's, and stays as it is."""
    lent = _lent_modules.get(module.__name__)
    if lent is None:
        lent = _lent_modules[module.__name__] = ModuleType(module.__name__)
        note_shim(lent, module)
    vars(lent).update(vars(module))
    for key, value in functions_in(module).items():
        if not isinstance(value, FunctionType):
            setattr(lent, key, shim_for(value, always=False))
    return NamespacePatch(namespace, {name: (module, lent)})


def check_inputs(function: Callable[..., Any], receiver: tuple[Any, ...], values: Mapping[str, Any]) -> None:
    """Look at the values with which a root is called, whose calls are not heard of.

    Args:
        function: What is traced, with its own code.
        receiver: The object itself, for a method.
        values: Name of a parameter -> value.

    Raises:
        TraceError: The root compares one of them by identity, and that hangs on who calls it.
    """
    session = active.get()
    plain = function.__func__ if isinstance(function, MethodType) else function
    if session is not None and session.reached and isinstance(plain, FunctionType):
        check_comparisons(session, plain, receiver, values)


_BUILTINS = {id(value): name for name, value in vars(builtins).items() if callable(value)}


def keep_calls_of(patches: Patches, root: object) -> None:
    """Keep the calls that a captured module has kept, so that capturing it again gives the same graph."""
    session = active.get()
    if session is None or not isinstance(root, GraphModule):
        return
    # Examples answer what a check asks; proxies do not.
    is_symbolic = getattr(session.interceptor, "mode", "symbolic") == "symbolic"
    checks = (*PLAIN_CHECKS, class_of, is_instance, same_value) if is_symbolic else ()
    kept = {
        id(node.target): node.target
        for node in root.graph.nodes
        if node.has_note("is_wrapped") or node.target in checks
    }
    hold_leaves(
        patches, session, functions=[value for key, value in kept.items() if key not in session.leaves]
    )


# -- modules that are not written in Python

_compiled_modules: dict[ModuleType, bool] = {}


def _is_compiled(module: ModuleType) -> bool:
    """Return whether no function has the module's names as its globals: they are then caught as a whole."""
    known = _compiled_modules.get(module)
    if known is None:
        values = list(vars(module).values())
        known = _compiled_modules[module] = not any(isinstance(value, FunctionType) for value in values)
    return known


_module_patches: dict[ModuleType, tuple[NamespacePatch, dict[int, Any]]] = {}


def _hold_module(patches: Patches, holder: object, module: ModuleType) -> dict[int, Any]:
    """Catch all functions of a module that is not written in Python, and return them by id."""
    known = _module_patches.get(module)
    if known is None:
        functions = dict(_public_functions(module))
        replacements = {name: (value, shim_for(value, always=False)) for name, value in functions.items()}
        patch = NamespacePatch(vars(module), replacements)
        known = _module_patches[module] = (patch, {id(value): value for value in functions.values()})
    patches.hold(holder, (id(vars(module)), None), lambda: known[0])
    return known[1]


def _public_functions(module: ModuleType) -> Iterable[tuple[str, Any]]:
    for name, found in list(vars(module).items()):
        value = original_of(found)
        if not name.startswith("_") and callable(value) and not isinstance(value, type):
            yield name, value
