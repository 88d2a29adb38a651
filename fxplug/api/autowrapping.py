"""Finding the function whose calls are to stay calls because it cannot be captured."""

from __future__ import annotations

import gc
import inspect
import sys
from types import CodeType, FrameType, FunctionType
from typing import TYPE_CHECKING, Any

from torch import nn

from fxplug.capture.sources import passes_calls_on

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from fxplug.errors import TraceError

__all__ = ["function_to_keep", "submodule_to_keep"]


def submodule_to_keep(error: TraceError, root: Any, kept: Sequence[nn.Module]) -> nn.Module | None:
    """Return the innermost submodule in which a line stands that cannot be captured, None when there is none.

    Args:
        error: Says that the line cannot be captured.
        root: What is captured.
        kept: Those that are kept already.
    """
    if not isinstance(root, nn.Module):
        return None
    below = {id(module) for module in root.modules() if module is not root}
    for frame in _frames(error):
        names = frame.f_code.co_varnames[:1]
        owner = frame.f_locals.get(names[0]) if names else None
        if id(owner) in below and not any(owner is module for module in kept):
            return owner
    return None


def function_to_keep(
    error: TraceError, root: Any, kept: Sequence[Callable[..., Any]]
) -> Callable[..., Any] | None:
    """Return the innermost function around a line that cannot be captured whose calls a graph can hold.

    That is a function that is found by its name, as functions of a module and methods of a class are: what is made anew
    in each call of another function may hold values of that call.

    Args:
        error: Says that the line cannot be captured.
        root: What is captured; its own function cannot be kept.
        kept: Those that are kept already.

    Returns:
        The function, None when there is none.
    """
    own = _code_of(root)
    for frame in _frames(error):
        if frame.f_code is own:
            return None
        function = _function_of(frame.f_code)
        if function is None or any(function is known for known in kept) or _is_module_call(frame, root):
            continue
        return function
    return None


def _frames(error: BaseException | None) -> Iterator[FrameType]:
    """Yield the frames of the program, innermost first, that an error came through."""
    frames: list[FrameType] = []
    while error is not None:
        inside: list[FrameType] = []
        traceback = error.__traceback__
        while traceback is not None:
            if not passes_calls_on(traceback.tb_frame.f_code.co_filename):
                inside.append(traceback.tb_frame)
            traceback = traceback.tb_next
        # What is raised again behind the program comes from an error that was raised in it.
        if inside and inside[-1].f_code.co_name != "<module>":
            frames = inside
        error = error.__cause__
    return reversed(frames)


def _code_of(root: Any) -> CodeType | None:
    function = type(root).forward if isinstance(root, nn.Module) else root
    return getattr(getattr(function, "__func__", function), "__code__", None)


def _function_of(code: CodeType) -> FunctionType | None:
    """Return the function that has this code, if it closes over nothing and is found under its name."""
    for value in gc.get_referrers(code):
        if isinstance(value, FunctionType) and not value.__closure__ and _found_by_name(value) is value:
            return value
    return None


def _found_by_name(function: FunctionType) -> Any:
    holder: Any = sys.modules.get(function.__module__)
    for part in function.__qualname__.split("."):
        holder = inspect.getattr_static(holder, part, None)
    return getattr(holder, "__func__", holder)


def _is_module_call(frame: FrameType, root: Any) -> bool:
    """Return whether a frame runs a method of the root, which no graph can have for an argument."""
    names = frame.f_code.co_varnames[:1]
    return bool(names) and frame.f_locals.get(names[0]) is root and isinstance(root, nn.Module)
