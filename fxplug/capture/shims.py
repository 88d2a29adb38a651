"""Stand-ins for callables that are not written in Python, put into the globals of modules while traces run.

Python offers no place in which a call of ``len`` or ``math.sqrt`` could be intercepted: it calls a method of the traced
value, and accepts nothing but a number from it. What stands in a module's globals is the only handle. Outside of a
trace, in this thread or any other, a stand-in does what the original does.
"""

from __future__ import annotations

import sys
from functools import update_wrapper
from types import FrameType, FunctionType, new_class
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from fxplug.capture.answers import ANSWERS
from fxplug.capture.caches import CACHED
from fxplug.capture.callsites import called_by, reads_class
from fxplug.capture.comparisons import check_result
from fxplug.capture.conversions import CONVERSIONS
from fxplug.capture.handed import hand_over
from fxplug.capture.originals import note_shim, original_of
from fxplug.capture.proxy import Proxy, traced_value
from fxplug.capture.sessions import Session, active, active_interceptor
from fxplug.capture.sources import is_asked_by_program, passes_calls_on
from fxplug.capture.trampolines import SlotPatch
from fxplug.capture.world import asked_of_world, mode_asked
from fxplug.semantics.internals import DYNAMO_INLINE, FakeTensor, is_fake, rank_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from fxplug.capture.sessions import ModuleInterceptor

__all__ = ["call_leaf", "class_patch", "record_call", "shim_for"]


def call_leaf(
    session: Session,
    target: Any,
    original: Any,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    *,
    always: bool,
) -> Any:
    """Record a call of what is kept as a call, if it receives a traced value; otherwise make it.

    Args:
        session: The trace that runs here, or ran.
        target: Of the node.
        original: What makes the call.
        args: Of the call.
        kwargs: Of the call.
        always: Whether every trace keeps it, and not only those that say so.
    """
    interceptor = session.interceptor
    if interceptor is not None and (always or id(target) in session.leaves):
        return interceptor.on_function_call(target, original, args, kwargs)
    if target is type and len(args) == 1 and not kwargs:
        found = _class_stood_for(args[0])
        if found is not None:
            return found
    if target is type and len(args) == 3 and isinstance(args[2], dict):
        args = (*args[:2], _in_module_of_caller(args[2]))
    if target is len and len(args) == 1 and not kwargs and _is_sized(interceptor, args[0]):
        return args[0].size(0)
    answer = ANSWERS.get(id(target))
    if answer is not None and args and not kwargs and isinstance(args[0], Proxy):
        return answer(original, *args)
    if interceptor is None:
        return original(*args, **kwargs)
    if target in _CONVERSIONS and len(args) == 1 and not kwargs:
        return interceptor.on_number_made(target, args[0])
    return _hear(interceptor, target, original, args, kwargs)


def _hear(
    interceptor: ModuleInterceptor,
    target: Any,
    original: Any,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Any:
    """Make a call of which the trace is to hear, whatever it is given."""
    if isinstance(target, CACHED):
        return interceptor.on_cached_call(target, args, kwargs)
    name = mode_asked(target)
    if name is not None:
        return hear_of_mode(interceptor, name, args, kwargs, original(*args, **kwargs))
    asked = asked_of_world(target, args)
    if asked is not None:
        interceptor.on_world_asked(*asked)
    return original(*args, **kwargs)


_CONVERSIONS = frozenset(CONVERSIONS.values())


def _in_module_of_caller(namespace: dict[str, Any]) -> dict[str, Any]:
    """Return the names of a class that is made, with the module that Python would find it to be made in."""
    if "__module__" in namespace:
        return namespace
    frame: FrameType = sys._getframe(1)  # pyright: ignore[reportPrivateUsage]
    while frame.f_back is not None and str(frame.f_globals.get("__name__")).startswith("fxplug.capture."):
        frame = frame.f_back
    return {"__module__": frame.f_globals.get("__name__"), **namespace}


def _class_stood_for(value: Any) -> type | None:
    """Return the class of what an example stands for, None for what is what it is."""
    if getattr(type(value), "stands_for_number", False):
        return value.__class__
    if is_fake(value):
        return nn.Parameter if isinstance(value, nn.Parameter) else torch.Tensor
    return None


def class_patch() -> SlotPatch:
    """Return what lets tensors without data say, in a trace, that they are of the class that they stand for."""
    return SlotPatch(FakeTensor, "__getattribute__", _attribute, {"<ask>": _asked_class})


def _attribute(self: Any, name: str) -> Any:
    original: Any = "<original>"
    if name != "__class__":
        return original(self, name)
    ask: Any = "<ask>"
    return ask(self)


def _asked_class(value: Any) -> type:
    frame = sys._getframe(2)  # pyright: ignore[reportPrivateUsage]
    found = None if active_interceptor() is None or passes_calls_on(frame.f_code.co_filename) else frame
    is_read = found is not None and (reads_class(found) or called_by(found) is getattr)
    return (_class_stood_for(value) if is_read else None) or type(value)


def _is_sized(interceptor: ModuleInterceptor | None, value: Any) -> bool:
    """Return whether a value is a tensor with a length, in a trace that runs on examples: its size hangs on them."""
    if issubclass(type(value), Proxy):
        # Of a plain program, whose inputs are tensors; for what it computes it is not known.
        is_tensor = value.node.op in {"placeholder", "get_attr"}
        return is_tensor and getattr(interceptor, "_answer", None) is not None
    if getattr(interceptor, "mode", "symbolic") == "symbolic" or not isinstance(value, torch.Tensor):
        return False
    return (type(value) in _PLAIN_TENSORS or is_fake(value)) and rank_of(value) > 0


_PLAIN_TENSORS = frozenset({torch.Tensor, nn.Parameter})


def hear_of_mode(
    interceptor: ModuleInterceptor, name: str, args: tuple[Any, ...], kwargs: dict[str, Any], answer: Any
) -> Any:
    """Tell a trace that a function of torch was asked for a mode, unless torch asks itself; return the answer."""
    if is_asked_by_program(name):
        return interceptor.on_mode_asked(name, (*args, *kwargs.values()), answer)
    return answer


def record_call(target: Any, original: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Record a call if it receives a traced value; otherwise make it.

    Args:
        target: Of the node.
        original: What makes the call.
        args: Of the call.
        kwargs: Of the call.
    """
    proxy = traced_value(args, kwargs)
    if proxy is None:
        return original(*args, **kwargs)
    handed = hand_over(target, args, kwargs)
    if handed is not None:
        handed.refuse_plain_changes(proxy.tracer, target, original)
        handed.give_names(proxy.tracer)
        args, kwargs = handed.args, handed.kwargs
    recorded = proxy.tracer.create_proxy("call_function", target, args, kwargs)
    if handed is not None:
        handed.record_checks(proxy.tracer, target)
    if isinstance(recorded, Proxy):
        # As in torch.fx: what captures it again keeps it again.
        recorded.node.meta["is_wrapped"] = True
        check_result(proxy.tracer, recorded)
        if isinstance(target, FunctionType):
            proxy.tracer.note_kept(target)
    return recorded


def _function_shim(original: Callable[..., Any], *, always: bool) -> FunctionType:
    def shim(*args: Any, **kwargs: Any) -> Any:
        session = active.get()
        if session is None:
            return original(*args, **kwargs)
        return call_leaf(session, original, original, args, kwargs, always=always)

    update_wrapper(shim, original)
    setattr(shim, DYNAMO_INLINE, original)
    if isinstance(original, CACHED):
        for name in ("cache_clear", "cache_info", "cache_parameters"):
            setattr(shim, name, getattr(original, name))
    return shim


class _ClassShim(type):
    """The type of stand-ins for classes: to everything but ``is`` and a class pattern they are the class."""

    def __new__(cls, name: str, bases: tuple[Any, ...], namespace: dict[str, Any], **options: Any) -> Any:
        """Make a stand-in; or the class that a program derives from one, and which has nothing to do with it."""
        if _ORIGINAL in namespace:
            return super().__new__(cls, name, bases, namespace)
        return new_class(name, tuple(map(original_of, bases)), options, lambda body: body.update(namespace))

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        original = _class_behind(cls)
        session = active.get()
        if session is None:
            return original(*args, **kwargs)
        return call_leaf(session, original, original, args, kwargs, always=_is_always(cls))

    def __getattribute__(cls, name: str) -> Any:
        return getattr(_class_behind(cls), name)

    def __setattr__(cls, name: str, value: Any) -> None:
        setattr(_class_behind(cls), name, value)

    def __delattr__(cls, name: str) -> None:
        delattr(_class_behind(cls), name)

    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, _class_behind(cls))

    def __subclasscheck__(cls, subclass: type) -> bool:
        return issubclass(original_of(subclass), _class_behind(cls))

    def __eq__(cls, other: object) -> bool:
        return original_of(other) is _class_behind(cls)

    def __hash__(cls) -> int:
        return hash(_class_behind(cls))

    def __repr__(cls) -> str:
        return repr(_class_behind(cls))

    def __or__(cls, other: Any) -> Any:
        return _class_behind(cls) | original_of(other)

    def __ror__(cls, other: Any) -> Any:
        return original_of(other) | _class_behind(cls)

    def __getitem__(cls, item: Any) -> Any:
        return _class_behind(cls)[item]


_ORIGINAL = "<original>"
_ALWAYS = "<always>"


def _class_behind(shim: type) -> Any:
    return type.__getattribute__(shim, "__dict__")[_ORIGINAL]


def _is_always(shim: type) -> bool:
    return type.__getattribute__(shim, "__dict__")[_ALWAYS]


_shims: dict[tuple[int, bool], Any] = {}
"""(Id of the original, whether always) -> its stand-in, one for all modules. They are kept, and with them what they
stand for."""


def shim_for(original: Any, *, always: bool) -> Any:
    """Return the stand-in for a callable.

    Args:
        original: What it stands for.
        always: Whether every trace keeps its calls, and not only those that say so.
    """
    shim = _shims.get((id(original), always))
    if shim is None:
        if isinstance(original, type):
            shim = _ClassShim(original.__name__, (), {_ORIGINAL: original, _ALWAYS: always})
        else:
            shim = _function_shim(original, always=always)
        _shims[id(original), always] = shim
        note_shim(shim, original)
    return shim
