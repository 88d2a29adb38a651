"""Threads that a program starts: torch does not tell there what is called, but it tells who looks.

What a thread computes of traced tensors is not recorded, and what it leaves for the program, a number in a list, would
be a constant. So each thread that the program starts looks whether it calls torch with one of them.
"""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any

from torch.overrides import TorchFunctionMode

from fxplug.capture.arguments import iterate_parts
from fxplug.capture.sources import user_line
from fxplug.errors import TraceError

if TYPE_CHECKING:
    from collections.abc import Callable

    from fxplug.capture.examples.tracer import ExampleTracer

__all__ = ["watched"]


class _Looking(TorchFunctionMode):
    """Lets a tracer hear of the first call of torch in another thread that is given a traced value.

    Args:
        tracer: Forgotten when it is gone: a thread may outlive it.
    """

    def __init__(self, tracer: ExampleTracer) -> None:
        super().__init__()
        self._tracer = weakref.ref(tracer)

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        tracer = self._tracer()
        if tracer is not None and any(map(tracer.is_traced_elsewhere, iterate_parts((args, kwargs)))):
            tracer.refuse_in_the_end(_unheard())
            self._tracer = _nobody
        return func(*args, **kwargs)


def _nobody() -> None:
    return None


def watched(tracer: ExampleTracer, run: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that does what another one does, in a thread of its own, while a tracer is told of it."""

    def look(*args: Any, **kwargs: Any) -> Any:
        with _Looking(tracer):
            return run(*args, **kwargs)

    return look


def _unheard() -> TraceError:
    line = user_line(3)
    return TraceError(
        f"Cannot record what is done at {line} ({line.text!r}): it runs in another thread, and with example inputs "
        "calls of torch are not heard of there. Run it where the program runs, or keep the function around this line "
        "as a call (fxplug.wrap)."
        if line is not None
        else "Cannot record what is done in another thread: calls of torch are not heard of there.",
        code="FXP-T063",
    )
