"""Questions about the class, the attributes and the text of a traced value: the answer of eager, or an error.

Where the kind of a value is certain (see `fxplug.capture.kinds`), the answer is that of any value of the kind. Where it
is not, the question is refused: an answer for the stand-in would be a wrong one.

Only the program that is traced is answered so. What fxplug and torch ask for themselves, and what debuggers ask, is
asked of the stand-in. Above all, torch must not hear that a stand-in is a tensor: it would look for one in memory.
"""

from __future__ import annotations

import sys
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import nn

from fxplug.capture.annotated import rely_on_annotations
from fxplug.capture.callsites import (
    UNCLEAR,
    asked_classes,
    called_by,
    count_of_arguments,
    is_compared,
    is_told_only,
    reads_class,
)
from fxplug.capture.kinds import held_value, kind_of_node
from fxplug.capture.questions import unknown_value
from fxplug.capture.sameness import passes_on, tell_apart
from fxplug.capture.sessions import active
from fxplug.capture.sources import is_own, passes_calls_on, place_in_program
from fxplug.ir.handlers import is_caught
from fxplug.semantics.internals import TYPE_QUESTIONS
from fxplug.semantics.kinds import Kind, attribute_kind

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType

    from fxplug.errors import TraceError
    from fxplug.ir import Node

__all__ = [
    "ANSWERS",
    "COMPARED_ATTRIBUTES",
    "MIXINS",
    "OPTIONAL_ATTRIBUTES",
    "answer_for_directory",
    "asked_of_alias",
    "check_compared_attribute",
    "check_hash",
    "check_pickling",
    "check_text",
    "class_of",
    "missing_attribute",
]

_ANNOTATE = (
    "Annotate the parameter that it comes from (x: torch.Tensor), fix it (concrete_args), or give example inputs: "
    "fxplug.trace(root, example_inputs)."
)
_ONLOOKERS = frozenset(
    {
        *(
            "IPython",
            "_pydevd_bundle",
            "_pytest",
            "bdb",
            "debugpy",
            "logging",
            "pdb",
            "pprint",
            "pydevd",
            "pytest",
        ),
        *("reprlib", "rich", "traceback", "unittest", "warnings"),
    }
)
"""Top-level packages that look at values to show them to people."""
_OF_PROXIES = ("node", "tracer")
"""Attributes by which programs find out that they are traced."""
_TRANSPARENT = frozenset({"__instancecheck__", "__subclasscheck__", "__subclasshook__"})


MIXINS: set[type] = set()
"""Classes that plugins mix into those of proxies."""


class TracedValue(Protocol):
    """A proxy, as far as answers need to know it."""

    @property
    def node(self) -> Node:
        """The node whose value it is."""
        ...

    tracer: Any


def _tracer(proxy: TracedValue) -> Any:
    """Return the tracer of a proxy while it runs the program in this thread or task, None for any other."""
    session = active.get()
    tracer = vars(proxy).get("tracer")
    is_running = session is not None and tracer is not None and session.interceptor is tracer
    return tracer if is_running and getattr(tracer, "answers_questions", False) else None


def _kind(proxy: Any, tracer: Any) -> Kind | None:
    own = vars(proxy)
    if "attr" in own and own.get("_node") is None:  # No node is made for a question.
        return attribute_kind(_kind(own["root"], tracer), own["attr"])
    return kind_of_node(proxy.node, tracer.root)


def _rely_on(
    proxy: Any, tracer: Any, asks: Callable[[type], object] | None = None, *, exactly: bool = False
) -> None:
    """Take note that an answer was given for the kind of a value (see `rely_on_annotations`)."""
    own = vars(proxy)
    while "attr" in own and own.get("_node") is None:
        proxy, asks, exactly = own["root"], None, False
        own = vars(proxy)
    rely_on_annotations(tracer, proxy.node, asks, exactly=exactly)


def _told_class(proxy: Any, tracer: Any) -> type | None:
    """Return the class of a value where its program runs besides: examples say more than annotations."""
    return None if tracer is None or "attr" in vars(proxy) else tracer.tell(proxy, "__class__")


def _asker(frame: FrameType | None, tracer: Any) -> FrameType | None:
    """Return the frame of the program that asks; None where the program does not."""
    while frame is not None and frame.f_code.co_name in _TRANSPARENT:
        frame = frame.f_back
    if frame is None:
        return None
    code = frame.f_code
    # By identity: the code of what is intercepted holds objects, and some of them have no hash.
    if passes_calls_on(code.co_filename) and not any(code is one for one in TYPE_QUESTIONS):
        return None
    if str(frame.f_globals.get("__name__")).partition(".")[0] in _ONLOOKERS or _is_of_tracer(frame, tracer):
        return None
    return frame


def _is_of_tracer(frame: FrameType, tracer: Any) -> bool:
    """Return whether a frame belongs to a method of a tracer's own class, or to what that called."""
    walker: FrameType | None = frame
    while walker is not None and not passes_calls_on(walker.f_code.co_filename):
        names = walker.f_code.co_varnames
        if names and names[0] in {"self", "tracer"} and walker.f_locals.get(names[0]) is tracer:
            return True
        walker = walker.f_back
    return False


def _unknown_kind(proxy: TracedValue, question: str) -> TraceError:
    return unknown_value(proxy, f"{question}, but what kind of value is", _ANNOTATE, "FXP-T040")


# -- what Python asks of the object


def class_of(proxy: Any, frame: FrameType) -> type:
    """Return what the attribute ``__class__`` of a proxy is.

    It is how ``isinstance`` asks what is not of the class that it was given, and so are patterns and abstract classes.

    Args:
        proxy: Of which it is read.
        frame: That reads it.

    Raises:
        TraceError: The program asks, and the answer is not certain.
    """
    tracer = _tracer(proxy)
    asker = None if tracer is None else _asker(frame, tracer)
    if asker is None:
        return type(proxy)
    classes = asked_classes(asker)
    if classes is None:
        if not (reads_class(asker) or called_by(asker) is getattr):
            return type(proxy)  # Whoever is called here asks for itself, as torch does.
        question = "__class__ is read"
    elif classes is not UNCLEAR and _are_of_tracers(classes):
        return type(proxy)
    else:
        question = "isinstance asks for the class of a value"
    if (told := _told_class(proxy, tracer)) is not None:
        return told
    kind = _kind(proxy, tracer)
    if kind is None or (_asks_for_parameters(classes) and _may_be_parameter(proxy, kind, tracer)):
        raise _unknown_kind(proxy, question)
    if classes is not None and issubclass(kind.cls, torch.Tensor) and not _is_answerable(classes):
        raise unknown_value(
            proxy,
            "isinstance is given classes that its line does not name, or types as torch.FloatTensor; what it would "
            "say of",
            "Name the classes in the call (isinstance(x, torch.Tensor)), and compare dtypes instead of asking for "
            "torch.FloatTensor.",
            "FXP-T040",
        )
    if classes is None or classes is UNCLEAR:
        _rely_on(proxy, tracer, exactly=True)
    else:
        _rely_on(proxy, tracer, partial(_is_below, classes))
    return kind.cls


def _is_below(classes: Any, cls: type) -> bool:
    return issubclass(cls, classes)


def _asks_for_parameters(classes: Any) -> bool:
    """Return whether what is asked tells parameters from other tensors: their class, or for any class at all."""
    if isinstance(classes, tuple):
        return any(map(_asks_for_parameters, classes))
    if not isinstance(classes, type) and isinstance(parts := getattr(classes, "__args__", None), tuple):
        return any(map(_asks_for_parameters, parts))  # Those of int | float.
    return classes is None or (isinstance(classes, type) and issubclass(classes, nn.Parameter))


def _may_be_parameter(proxy: Any, kind: Kind, tracer: Any) -> bool:
    """Return whether a value may be a weight, which a call returns as it was given: ``self.weight.contiguous()``."""
    own = vars(proxy)
    if kind.cls is not torch.Tensor or own.get("attr", _ITSELF) != _ITSELF:
        return False
    first = own["root"].node if "attr" in own else proxy.node
    waiting, seen = [first], {first}
    while waiting:
        node = waiting.pop()
        if node.op == "get_attr" and isinstance(held_value(node, tracer.root), nn.Parameter):
            return True
        further = [one for one in node.all_input_nodes if one not in seen] if _hands_on(node, tracer) else []
        seen.update(further)
        waiting += further
    return False


def _hands_on(node: Any, tracer: Any) -> bool:
    if node.target is getattr and node.args[1] != _ITSELF:
        return False
    return node.op not in {"placeholder", "get_attr"} and passes_on(node, tracer.root)


_ITSELF = "real"
"""The attribute of a tensor of real numbers that is the tensor."""


def _is_answerable(classes: Any) -> bool:
    """Return whether asking for these runs nothing that takes what says that it is a tensor for one in memory."""
    if isinstance(classes, tuple):
        return all(map(_is_answerable, classes))
    if not isinstance(classes, type):
        parts = getattr(classes, "__args__", None)  # Those of int | float.
        return isinstance(parts, tuple) and all(map(_is_answerable, parts))
    metaclass: Any = type(classes)
    for base in metaclass.__mro__:
        if "__instancecheck__" in vars(base):
            check = vars(base)["__instancecheck__"]
            return check is vars(type)["__instancecheck__"] or hasattr(check, "__code__")
    return False


def _are_of_tracers(classes: Any) -> bool:
    """Return whether the program asks whether it is being traced."""
    if isinstance(classes, tuple):
        return all(map(_are_of_tracers, classes))
    module = str(getattr(classes, "__module__", None))
    return isinstance(classes, type) and (module.startswith(("torch.fx", "fxplug.")) or classes in MIXINS)


def missing_attribute(proxy: Any, name: str, frame: FrameType) -> None:
    """Answer a request for an attribute that no tensor has, if it is more than a plain read that can be recorded.

    Args:
        proxy: Of which it is read.
        name: Of the attribute.
        frame: That reads it.

    Raises:
        AttributeError: No value of this kind has such an attribute.
        TraceError: The program asks whether there is one, and that is not certain.
    """
    tracer = _tracer(proxy)
    asker = None if tracer is None else _asker(frame, tracer)
    if asker is None:
        return
    has = _has(proxy, name, tracer)
    if has is None and name.startswith("__array_"):  # NumPy asks so whether it is an array of another kind.
        raise AttributeError(name)
    if has is False:
        raise AttributeError(f"{_kind(proxy, tracer).cls.__name__!r} object has no attribute {name!r}")  # pyright: ignore[reportOptionalMemberAccess]
    if has is None and not name.startswith("__"):
        callee = called_by(asker)
        if callee is hasattr or (callee is getattr and count_of_arguments(asker) == 3):
            raise _unknown_kind(proxy, f"{callee.__name__} asks for the attribute {name!r}")
        if tracer is not None and _catches_missing(asker):
            # The read counts, even if nobody needs what is read.
            tracer.create_proxy("call_function", getattr, (proxy, name), {})


def _catches_missing(frame: FrameType | None) -> bool:
    """Return whether a frame of the program, or one that has called it, goes on where an attribute is missing."""
    while frame is not None and not is_own(frame.f_code.co_filename):
        if is_caught(frame.f_code, frame.f_lasti, AttributeError()):
            return True
        frame = frame.f_back
    return False


def asked_of_alias(original: Any, alias: Any, value: Any) -> Any:
    """Answer ``isinstance(x, Optional[A])``, for which Python asks of which type the very object is.

    Args:
        original: Answers where no program asks.
        alias: Of the module `typing`.
        value: A traced one, of which it is asked.

    Raises:
        TraceError: The program asks, and the answer is not certain.
    """
    tracer = _tracer(value)
    asker = None if tracer is None else _asker(sys._getframe(2), tracer)  # pyright: ignore[reportPrivateUsage]
    if asker is None:
        return original(alias, value)
    kind = _kind(value, tracer)
    if kind is None or (_asks_for_parameters(alias) and _may_be_parameter(value, kind, tracer)):
        raise _unknown_kind(value, "isinstance asks for the class of a value")
    _rely_on(value, tracer, alias.__subclasscheck__)
    return alias.__subclasscheck__(kind.cls)


def answer_for_directory(proxy: Any, frame: FrameType) -> list[str] | None:
    """Return the names that a value has, None where it is not the program that asks.

    Args:
        proxy: Of which they are listed.
        frame: That asks.

    Raises:
        TraceError: What kind of value it is is not certain.
    """
    tracer = _tracer(proxy)
    if tracer is None or _asker(frame, tracer) is None:
        return None
    kind = _kind(proxy, tracer)
    if kind is None:
        raise _unknown_kind(proxy, "dir() asks for the attributes of a value")
    _rely_on(proxy, tracer, exactly=True)
    return dir(kind.cls)


def _has(proxy: Any, name: str, tracer: Any) -> bool | None:
    """Return whether a value has an attribute, None where that is not certain."""
    kind = _kind(proxy, tracer)
    if kind is None:
        return None
    if "attr" not in vars(proxy) and proxy.node.op == "get_attr":
        return hasattr(held_value(proxy.node, tracer.root), name)
    _rely_on(proxy, tracer, exactly=name not in dir(kind.cls))
    return name in dir(kind.cls)


def check_compared_attribute(proxy: Any, name: str, frame: FrameType) -> None:
    """Refuse to compare an attribute by identity, which Python does without asking it.

    Raises:
        TraceError: The program may do so with what it reads.
    """
    tracer = _tracer(proxy)
    asker = None if tracer is None else _asker(frame, tracer)
    if asker is not None and is_compared(asker, or_kept=name in OPTIONAL_ATTRIBUTES):
        raise _compared_attribute(proxy, name)


def _compared_attribute(proxy: TracedValue, name: str) -> TraceError:
    return unknown_value(
        proxy,
        f"the attribute {name!r} may be None, or is compared by 'is', and what it is for",
        "Do not ask for it in the program that is traced, or give example inputs: fxplug.trace(root, example_inputs).",
        "FXP-T045",
    )


def check_text(proxy: Any, frame: FrameType) -> None:
    """Refuse to make the text of a value, unless it is for people to read.

    Raises:
        TraceError: The program makes it for itself.
    """
    tracer = _tracer(proxy)
    asker = None if tracer is None else _asker(frame, tracer)
    if asker is not None and not is_told_only(asker):
        raise unknown_value(
            proxy,
            "text is made of a traced value, but the value of",
            "Only what is printed, logged or the message of an error may show a traced value. Fix the input "
            "(concrete_args), or give example inputs: fxplug.trace(root, example_inputs).",
            "FXP-T042",
        )


def check_hash(proxy: Any, frame: FrameType) -> None:
    """Refuse a value as a key or an element of a set, unless it is a tensor, which is hashed by what object it is.

    Raises:
        TraceError: It is none, or may be none.
    """
    tracer = _tracer(proxy)
    if tracer is None or _asker(frame, tracer) is None:
        return
    kind = _kind(proxy, tracer)
    if kind is None or not issubclass(kind.cls, torch.Tensor):
        raise unknown_value(
            proxy,
            "a traced value is looked up as a key, or is hashed; the value of",
            "Use plain keys. For a tensor, annotate the parameter that it comes from (x: torch.Tensor). Or give "
            "example inputs: fxplug.trace(root, example_inputs).",
            "FXP-T043",
        )
    _rely_on(proxy, tracer)
    if all(proxy is not known for known in tracer.hashed):
        for known in tracer.hashed:
            tell_apart(tracer, known, proxy, place_in_program())
        tracer.hashed.append(proxy)


def check_pickling(proxy: Any) -> None:
    """Refuse to pickle a value while it is traced: it would be the stand-in.

    Raises:
        TraceError: It is being traced.
    """
    if _tracer(proxy) is not None:
        raise unknown_value(
            proxy,
            "a traced value is pickled, but the value of",
            "Pickle behind the captured program, or make the enclosing module a leaf.",
            "FXP-T046",
        )


# -- what is asked through functions that Python has no hook for


def _type(original: Any, proxy: Any, *rest: Any) -> Any:
    tracer = _tracer(proxy)
    if rest or tracer is None:
        return original(proxy, *rest)
    if (told := _told_class(proxy, tracer)) is not None:
        return told
    kind = _kind(proxy, tracer)
    if kind is None or _may_be_parameter(proxy, kind, tracer):
        raise _unknown_kind(proxy, "type() asks for the class of a value")
    _rely_on(proxy, tracer, exactly=True)
    return kind.cls


def _callable(original: Any, proxy: Any) -> Any:
    tracer = _tracer(proxy)
    if tracer is None:
        return original(proxy)
    kind = _kind(proxy, tracer)
    if kind is None:
        raise _unknown_kind(proxy, "callable() asks whether a value can be called")
    _rely_on(proxy, tracer)
    return any("__call__" in vars(base) for base in kind.cls.__mro__)


def _id(original: Any, proxy: Any) -> Any:
    if _tracer(proxy) is None:
        return original(proxy)
    raise unknown_value(
        proxy,
        "id() asks which object a value is, but the object that is",
        "Do not tell values apart by their ids, or give example inputs: fxplug.trace(root, example_inputs).",
        "FXP-T044",
    )


def _hasattr(original: Any, proxy: Any, *rest: Any) -> Any:
    tracer = _tracer(proxy)
    if tracer is None or len(rest) != 1 or rest[0] in _OF_PROXIES:
        return original(proxy, *rest)
    has = _has(proxy, rest[0], tracer)
    if has is None:
        raise _unknown_kind(proxy, f"hasattr asks for the attribute {rest[0]!r}")
    return has


def _getattr(original: Any, proxy: Any, *rest: Any) -> Any:
    tracer = _tracer(proxy)
    if tracer is not None and rest and rest[0] == "__class__":
        return _type(type, proxy)
    if tracer is None or len(rest) != 2 or rest[0] in _OF_PROXIES:
        return original(proxy, *rest)
    has = _has(proxy, rest[0], tracer)
    if has is None:
        raise _unknown_kind(proxy, f"getattr asks for the attribute {rest[0]!r} or its default")
    if rest[0] in OPTIONAL_ATTRIBUTES:
        raise _compared_attribute(proxy, rest[0])
    return original(proxy, rest[0]) if has else rest[1]


OPTIONAL_ATTRIBUTES = ("_base", "grad", "grad_fn")
"""Attributes that are None for some tensors."""
COMPARED_ATTRIBUTES = (*OPTIONAL_ATTRIBUTES, "dtype", "layout")
"""Attributes that programs compare by identity."""
ANSWERS: dict[int, Callable[..., Any]] = {
    id(type): _type,
    id(callable): _callable,
    id(id): _id,
    id(hasattr): _hasattr,
    id(getattr): _getattr,
}
"""Id of one of Python's functions -> what answers in its place: (the function, the proxy, further arguments)."""
