"""Refusing questions that need a value."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Protocol

import torch.nested
from torch import nn

from fxplug.capture.arguments import holds_itself, iterate_parts
from fxplug.capture.sources import is_installed, is_standard, passes_calls_on, place_in_program
from fxplug.errors import FxplugError, TraceError
from fxplug.ir import SourceLine

if TYPE_CHECKING:
    from fxplug.ir import Node

__all__ = [
    "add_place",
    "misunderstood",
    "no_assignment",
    "no_condition",
    "no_iteration",
    "refuse_cycles",
    "unknown_value",
]


class UnknownValue(Protocol):
    """A proxy, as far as a refusal needs to know it."""

    @property
    def node(self) -> Node:
        """The node whose value is unknown."""
        ...

    tracer: Any
    """Who records; told of the refusal if it wants to know."""


def unknown_value(
    proxy: UnknownValue, what: str, remedy: str, code: str, *, is_probe: bool = False
) -> TraceError:
    """Return the error for a question that cannot be answered while a value is unknown.

    Args:
        proxy: Stands for the value.
        what: What needs the answer.
        remedy: What to do.
        code: Of the error.
        is_probe: Whether the question may be one by which torch only finds out what it was given.
    """
    place = place_in_program()
    error = TraceError(f"Cannot trace: {what} {proxy.node.name!r} is unknown{place}. {remedy}", code=code)
    note = getattr(proxy.tracer, "note_question", None)
    if note is not None:
        note(error, proxy.node, place)
    return error if is_probe else _noted(proxy.tracer, error)


def _noted(tracer: Any, error: TraceError) -> TraceError:
    # The program may catch it; the tracer must not believe then that all is well.
    note = getattr(tracer, "note_refusal", None)
    if note is not None:
        note(error)
    return error


def no_assignment(shown: str, tracer: Any, name: str) -> TraceError:
    """Return the error for setting an attribute of a traced value.

    Args:
        shown: The traced value, as messages show it.
        tracer: Who records.
        name: Of the attribute.
    """
    error = TraceError(
        f"Cannot trace: the attribute {name!r} of {shown} is assigned{place_in_program()}, and an assignment cannot be "
        "recorded. Change a tensor in place (copy_, requires_grad_), make a new value, or make the enclosing module a "
        "leaf.",
        code="FXP-T015",
    )
    return _noted(tracer, error)


def misunderstood(error: BaseException) -> TraceError | None:
    """Return what to say of an error by which something refused a traced value, None for any other error.

    Args:
        error: What the program raised, or what it called.
    """
    if isinstance(error, FxplugError) or not isinstance(
        error, (TypeError, ValueError, RuntimeError, AttributeError)
    ):
        return None
    if _STAND_IN.search(str(error)) is None and not _is_refused_by_python(error):
        return None
    line = _line_of(error)
    where = "" if line is None else f" at {line} ({line.text!r})"
    return TraceError(
        f"Cannot trace: something takes no traced value{where} ({type(error).__name__}: {error}). Keep to operations "
        "of torch, give example inputs (fxplug.trace), or make the enclosing function a leaf (fxplug.wrap).",
        code="FXP-T068",
    )


# These do not say what they were given: torch.finfo and iinfo, what takes the name of a device, distributions.
_STAND_IN = re.compile(
    r"\b(\w*Proxy|Attribute)\b|^torch\.[fi]info\(\) requires |^(an integer is required|Expected int as r)$"
    r"|^unpackString: expected |^The value argument to log_prob must be a Tensor$"
)
_COMPILED = "Detected that you are using FX to symbolically trace a dynamo-optimized function"


def _is_refused_by_python(error: BaseException) -> bool:
    """Return whether a library of Python, or what torch has written in it, raised an error about a traced value.

    The latter is what makes nested tensors, and what finds the parts of a module by their paths.
    """
    traceback = error.__traceback__
    while traceback is not None and traceback.tb_next is not None:
        traceback = traceback.tb_next
    if traceback is None:
        return False
    frame = traceback.tb_frame
    name = frame.f_code.co_filename
    if str(error).startswith(_COMPILED) and passes_calls_on(name):
        return True
    # What stands for a tensor by its annotation is refused as a tensor is.
    is_of_torch = name == _NESTED or frame.f_code in _FINDING
    if not is_of_torch and (not is_standard(name) or _TENSOR.search(str(error))):
        return False
    parts = iterate_parts(list(frame.f_locals.values()))
    return any(_STAND_IN.fullmatch(kind.__name__) for part in parts for kind in type(part).__mro__)


_TENSOR = re.compile(r"\bTensor\b")
_NESTED = torch.nested.__file__
_FINDING = frozenset({nn.Module.get_parameter.__code__, nn.Module.get_buffer.__code__})


def add_place(error: BaseException, name: str) -> None:
    """Let an error of a program say where the program was when it raised it.

    Args:
        error: Of the program.
        name: What is traced.
    """
    line = _line_of(error)
    add = getattr(error, "add_note", None)  # Python 3.10 has none.
    if add is None or any(note.startswith(_NOTE) for note in getattr(error, "__notes__", ())):
        return
    where = "" if line is None else f" at {line} ({line.text!r})"
    add(f"{_NOTE} {name} was traced{where}.")


_NOTE = "fxplug: this was raised while"


def _line_of(error: BaseException) -> SourceLine | None:
    """Return the innermost line of the program; of a library where it is no line of the program's own."""
    found: SourceLine | None = None
    is_own = False
    traceback = error.__traceback__
    while traceback is not None:
        code = traceback.tb_frame.f_code
        is_library = is_installed(code.co_filename)
        if not passes_calls_on(code.co_filename) and not (is_own and is_library):
            found = SourceLine(code.co_filename, traceback.tb_lineno, code.co_name)
            is_own = not is_library
        traceback = traceback.tb_next
    return found


def refuse_cycles(value: Any, what: str | None = None) -> None:
    """Refuse a value that contains itself, for which there is no end of things to record.

    Args:
        value: What recording did not get through.
        what: How messages call it; by default the arguments of a call, at its line.

    Raises:
        TraceError: It contains itself.
    """
    if holds_itself(value):
        found = what if what is not None else f"an argument{place_in_program()}"
        raise TraceError(
            f"Cannot record {found}: it is, or holds, a list, dict or object that contains itself. Pass its parts "
            "without the cycle.",
            code="FXP-T006",
        )


def no_condition(proxy: UnknownValue) -> TraceError:
    """Return the error for a condition on a traced value."""
    return unknown_value(
        proxy,
        "a condition depends on a traced value;",
        "Give example inputs, and the branch that they take is captured, with a guard: fxplug.trace(root, "
        "example_inputs). Or fix the branch (concrete_args), rewrite it with torch.where, or make the enclosing module "
        "a leaf.",
        "FXP-T001",
    )


def no_iteration(proxy: UnknownValue) -> TraceError:
    """Return the error for iterating over a traced value."""
    return unknown_value(
        proxy,
        "iterating needs to know how many elements there are;",
        "Unpack it into a fixed number of names (a, b = value), index it, give example inputs "
        "(fxplug.trace(root, example_inputs)), or make the enclosing module a leaf.",
        "FXP-T005",
    )
