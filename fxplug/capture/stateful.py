"""Objects of torch with a state that no graph holds, and that a program moves on: optimizers, schedulers and others."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fxplug.capture.attributes import attribute_of
from fxplug.capture.hazards import scan_of
from fxplug.errors import TraceError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import CodeType

__all__ = ["STATEFUL_USES", "refuse_moved_state"]

STATEFUL_USES = frozenset(
    {"draw", "fast_forward", "get_last_lr", "get_scale", "param_groups", "reset", "scale", "state", "step"}
    | {"unscale_", "update", "zero_grad"}
)
"""Names by which programs move such an object on, or ask it where it is."""
_HOMES = ("torch.amp.grad_scaler", "torch.cuda.amp.grad_scaler", "torch.optim.", "torch.quasirandom")
"""The modules of Python that define their classes; modules of torch among these keep their state in buffers."""


def refuse_moved_state(function: Any, code: CodeType, names: frozenset[str], owner: Any) -> None:
    """Refuse a function that moves on an optimizer, or the like, which was there before the program.

    Args:
        function: The function.
        code: Its own code.
        names: Those of globals, attributes and methods in it.
        owner: The object whose method it is; None for a function.

    Raises:
        TraceError: It may do so. Nothing has run yet.
    """
    if names.isdisjoint(STATEFUL_USES):
        return
    for name, value in _found_by(function, code, names, owner):
        kind = type(value)
        if str(kind.__module__).startswith(_HOMES) and _is_stateful(value):
            raise TraceError(
                f"Cannot trace: {code.co_name} ({code.co_filename}:{code.co_firstlineno}) uses {name!r}, a "
                f"{kind.__module__}.{kind.__qualname__}, whose state goes on with every call. The graph has no place "
                "for it, and the capture would move it on. Take the step outside of the program, or keep the function "
                "that takes it as a call (fxplug.wrap).",
                code="FXP-T055",
            )


def _is_stateful(value: Any) -> bool:
    # Averaged models are modules: their weights and counters are in the graph.
    return not hasattr(value, "_parameters") and not isinstance(value, type)


def _found_by(function: Any, code: CodeType, names: frozenset[str], owner: Any) -> Iterator[tuple[str, Any]]:
    """Yield what a function finds under its names: in its object, its globals and its closure."""
    own: dict[str, Any] = attribute_of(owner, "__dict__", {})
    for held, looked_for in ((own, names), (function.__globals__, scan_of(code).globals)):
        yield from ((name, held[name]) for name in held.keys() & looked_for)
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=False):
        try:
            yield name, cell.cell_contents
        except ValueError:  # It has no value yet.
            continue
