"""Calls of torch that hold a traced value where torch expects a number.

Torch hands a call over to a traced value only where it has understood the other arguments. For ``table[:n]`` or
``torch.tensor(n)`` it has not, when ``n`` stands for a number that is unknown: a mode of torch hears of the call before
anything is looked at. For ``torch.zeros(n, 3)`` torch wants a number first, only to find out that these are sizes. It
gets one then (see `fxplug.capture.callsites`), and the mode sees to it that nothing comes of it.
"""

from __future__ import annotations

from types import MethodWrapperType
from typing import TYPE_CHECKING, Any

import torch
from torch.overrides import TorchFunctionMode

from fxplug.capture.arguments import iterate_parts
from fxplug.capture.arrays import call_without_array
from fxplug.capture.proxy import traced_value
from fxplug.capture.sessions import Session, active
from fxplug.errors import TraceError
from fxplug.semantics.internals import put_on_calls, remove_mode, take_off_calls

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["TracedCalls", "unheard"]


class unheard:  # noqa: N801 - entered as a function of contextlib would be, in a third of its time
    """Let nobody hear of what this thread does with modules and torch, as if it was not traced."""

    __slots__ = ("_calls", "_token")

    def __enter__(self) -> None:
        session = active.get()
        calls = None if session is None else session.calls
        self._token = active.set(None)
        self._calls = calls if calls is not None and take_off_calls(calls) else None

    def __exit__(self, *error: object) -> None:
        if self._calls is not None:
            put_on_calls(self._calls)
        active.reset(self._token)


def _without_arrays(
    error: TraceError, interceptor: Any, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]] | None:
    """Return a call that does without arrays of NumPy what one that was refused does; None where there is none."""
    if error.code != "FXP-T006":
        return None
    if function in _INDEXING:
        key = interceptor.create_index(args[1])
        return None if key is args[1] else (function, (args[0], key, *args[2:]), kwargs)
    made = call_without_array(function, args, kwargs)
    if made is None:
        return None
    make, options = made
    return torch.Tensor.to, (interceptor.on_plain_call(make, args, {}),), options


_INDEXING = frozenset({torch.Tensor.__getitem__, torch.Tensor.__setitem__})


class TracedCalls(TorchFunctionMode):
    """Records every call of torch that has a traced value among its arguments; makes the others.

    Args:
        session: The trace for which it does so.
    """

    def __init__(self, session: Session) -> None:
        super().__init__()
        self._session = session

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Hear of a call."""
        named = kwargs or {}
        session = self._session
        interceptor = session.interceptor
        if interceptor is None or active.get() is not session:
            return func(*args, **named)
        # An attribute of a tensor can be set to a tensor only: what torch says to that is the better answer.
        proxy = None if isinstance(func, MethodWrapperType) else traced_value(args, named)
        if proxy is None:
            return interceptor.on_plain_call(func, args, named)
        if session.probes:
            self._settle(args, named)
        try:
            result = type(proxy).__torch_function__(func, types, args, named)
        except TraceError as error:
            again = _without_arrays(error, interceptor, func, args, named)
            if again is None:
                raise
            func, args, named = again
            result = type(proxy).__torch_function__(func, types, args, named)
        if interceptor.new_constants:
            interceptor.on_constants_read(result)
        return result

    def _settle(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Take back the numbers that were given out for this call."""
        leaves = list(iterate_parts((args, kwargs)))
        for proxy, error in self._session.probes:
            if error is not None and not any(leaf is proxy for leaf in leaves):
                raise error
        self._session.settle()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: object
    ) -> None:
        """Take the mode away, and nothing that the program may have put on top of it.

        Raises:
            TraceError: A number that was given out to find out about a call may have been used as one.
        """
        remove_mode(self)
        refusals = [refusal for _, refusal in self._session.probes if refusal is not None]
        if error is None and refusals:
            raise refusals[0]
