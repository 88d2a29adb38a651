"""Everything that a trace intercepts in torch, as one closed list.

Each interceptor asks a context variable whether the running thread or task is tracing and otherwise does what
the original does. They are installed while at least one trace runs anywhere, counted, and taken out again on
every way out.

The list:

- ``nn.Module.__call__``: a call of a module becomes a node, or is entered.
- ``nn.Module.__getattr__``: reading a parameter or buffer gives a proxy.
- ``nn.Module.__setattr__``: assigning a parameter or buffer is answered for this trace alone, so that other threads
  never see a proxy; of other assignments the trace takes note first, to put them back.
"""

from __future__ import annotations

import threading
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Protocol, cast

import torch
from torch import nn

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

__all__ = ["ModuleInterceptor", "active_interceptor", "intercept", "original_call"]


class _Originals:
    """What stood in ``nn.Module`` when the first of the running traces began; others may have put it there."""

    call: Callable[..., Any] = nn.Module.__call__
    getattr: Callable[[Any, str], Any] = nn.Module.__getattr__
    setattr: Callable[[Any, str, Any], None] = nn.Module.__setattr__


def original_call(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
    """Call a module as it is called when nothing is traced."""
    return _Originals.call(module, *args, **kwargs)


class ModuleInterceptor(Protocol):
    """Who is asked, while it traces, what a use of a module means."""

    def on_module_call(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Return the value that stands for a call of `module`."""
        ...

    def on_module_attribute(self, module: nn.Module, name: str, value: torch.Tensor) -> Any:
        """Return what stands for a parameter or buffer that was found to be `value`."""
        ...

    def on_module_assignment(self, module: nn.Module, name: str, value: Any) -> bool:
        """Hear that an attribute is about to be assigned; return whether that is all that happens."""
        ...


class _Session:
    """One trace. A context that was copied inside it, as tasks do, may outlive it, and then finds nobody here."""

    __slots__ = ("interceptor",)

    def __init__(self, interceptor: ModuleInterceptor) -> None:
        self.interceptor: ModuleInterceptor | None = interceptor


_active: ContextVar[_Session | None] = ContextVar("fxplug_active_trace", default=None)
_lock = threading.Lock()
_running = 0


def active_interceptor() -> ModuleInterceptor | None:
    """Return who traces in this thread or task, None when nobody does."""
    session = _active.get()
    return None if session is None else session.interceptor


def _call(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
    session = _active.get()
    if session is None or (interceptor := session.interceptor) is None:
        return _Originals.call(self, *args, **kwargs)
    return interceptor.on_module_call(self, args, kwargs)


def _getattr(self: Any, name: str) -> Any:
    value = _Originals.getattr(self, name)
    if not isinstance(value, torch.Tensor):
        return value
    session = _active.get()
    if session is None or (interceptor := session.interceptor) is None:
        return value
    return interceptor.on_module_attribute(self, name, value)


def _setattr(self: Any, name: str, value: Any) -> None:
    session = _active.get()
    if (
        session is None
        or (interceptor := session.interceptor) is None
        or not interceptor.on_module_assignment(self, name, value)
    ):
        _Originals.setattr(self, name, value)


@contextmanager
def intercept(interceptor: ModuleInterceptor) -> Generator[None]:
    """Ask `interceptor` about every use of a module in this thread or task while the context lasts."""
    global _running  # noqa: PLW0603 - the count of running traces is process-wide by nature
    with _lock:
        if _running == 0:
            _Originals.call, _Originals.getattr = nn.Module.__call__, nn.Module.__getattr__
            _Originals.setattr = nn.Module.__setattr__
            nn.Module.__call__ = _call
            nn.Module.__getattr__ = cast("Any", _getattr)
            nn.Module.__setattr__ = cast("Any", _setattr)
        _running += 1
    session = _Session(interceptor)
    token = _active.set(session)
    try:
        yield
    finally:
        session.interceptor = None
        _active.reset(token)
        with _lock:
            _running -= 1
            if _running == 0:
                nn.Module.__call__ = _Originals.call
                nn.Module.__getattr__ = cast("Any", _Originals.getattr)
                nn.Module.__setattr__ = cast("Any", _Originals.setattr)
