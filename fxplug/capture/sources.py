"""Which frames belong to the user's program, and which only carried a call into the tracer."""

from __future__ import annotations

import inspect
import os
import sys
import sysconfig
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import torch

from fxplug.capture.bytecode import read_once
from fxplug.capture.current import active
from fxplug.errors import TraceError
from fxplug.ir import ModuleScope, Origin, SourceLine
from fxplug.semantics.internals import autograd_modes

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from types import CellType, CodeType, FrameType

    from fxplug.ir import StoredOrigin

__all__ = [
    "Place",
    "belongs_to_program",
    "caller_level",
    "carrier_name",
    "frames_of_program",
    "is_asked_by_program",
    "is_installed",
    "is_of_other_library",
    "is_own",
    "is_standard",
    "line_of_program",
    "passes_calls_on",
    "place_in_program",
    "user_line",
]

_OURS = str(Path(__file__).resolve().parents[1]) + os.sep
_TORCH = str(Path(torch.__file__).resolve().parent) + os.sep
_TORCH_MODULES = str(Path(_TORCH, "nn", "modules")) + os.sep
_MODULE_BASE = str(Path(_TORCH_MODULES, "module.py"))
_STANDARD = tuple(os.path.join(sysconfig.get_path(key), "") for key in ("stdlib", "platstdlib"))
_PACKAGES = tuple(os.path.join(sysconfig.get_path(key), "") for key in ("purelib", "platlib"))
_TRACER = str(Path(__file__).with_name("tracer.py"))

_SUSPENDED = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR
_STAND_INS = frozenset(
    str(Path(__file__).with_name(name)) for name in ("keeping.py", "shims.py", "wrapping.py")
)
"""Where calls come by of what is lent a stand-in."""

_is_carrier: dict[str, bool] = {}


def passes_calls_on(filename: str) -> bool:
    """Return whether code in `filename` only passes calls on: fxplug itself, and torch except its module classes."""
    known = _is_carrier.get(filename)
    if known is None:
        inside_torch = filename.startswith(_TORCH) and not filename.startswith(_TORCH_MODULES)
        known = _is_carrier[filename] = filename.startswith(_OURS) or inside_torch or filename == _MODULE_BASE
    return known


def is_own(filename: str) -> bool:
    """Return whether code in `filename` is of fxplug itself."""
    return filename.startswith(_OURS)


_is_standard: dict[str, bool] = {}


def is_standard(filename: str) -> bool:
    """Return whether code in `filename` belongs to Python itself."""
    known = _is_standard.get(filename)
    if known is None:
        is_below = filename.startswith(_STANDARD) and not filename.startswith(_PACKAGES)
        known = _is_standard[filename] = is_below or filename.startswith("<frozen ")
    return known


_is_installed: dict[str, bool] = {}


def is_installed(filename: str) -> bool:
    """Return whether code in `filename` belongs to Python, to fxplug, torch or another installed library."""
    known = _is_installed.get(filename)
    if known is None:
        parts = set(Path(filename).parts)
        known = _is_installed[filename] = (
            filename.startswith((_OURS, _TORCH, *_PACKAGES))
            or not parts.isdisjoint(("site-packages", "dist-packages"))
            or is_standard(filename)
        )
    return known


def is_of_other_library(filename: str, namespace: Mapping[str, Any]) -> bool:
    """Return whether code belongs to an installed library that is neither Python nor fxplug nor torch.

    Args:
        filename: Of the code; what a library has made of a text has none.
        namespace: The globals of the code.
    """
    if filename.startswith("<"):
        filename = str(namespace.get("__file__", ""))
    return is_installed(filename) and not (filename.startswith((_OURS, _TORCH)) or is_standard(filename))


def carrier_name(filename: str) -> str:
    """Return another name of a source file, under which code in it only passes calls on.

    Tracebacks find the lines under it, and whoever judges a file by its directory judges it the same.
    """
    directory, base = os.path.split(filename)
    name = os.path.join(directory, os.curdir, base)  # A Path would drop the dot.
    _is_carrier[name] = True
    return name


class Place:
    """Where a trace is: the module whose forward runs, and how far up the stack its own frames reach."""

    __slots__ = ("around", "boundary", "caller", "frame", "inner", "last", "looked", "scope", "session")

    def __init__(self, boundary: CodeType, caller: Origin | None, scope: ModuleScope | None) -> None:
        self.boundary = boundary
        """Code of the function at which a walk up the stack ends."""
        self.caller = caller
        """Describes what lies beyond the boundary."""
        self.scope = scope
        """The module whose forward runs."""
        self.session: Any = None
        """What runs the program, while it runs (see `fxplug.capture.current`)."""
        self.looked: set[int] | None = None
        """The ids of the code of the functions that were looked at, where others are to be told of."""
        self.frame: FrameType | None = None
        """The outermost frame of the program below the boundary, once it was met. Remembering it makes the walk for
        most nodes a few frames long. It is dropped when the place is left: a frame keeps everything in it alive."""

        self.last: Origin | None = None
        """The origin that was given out last for `frame`: the nodes of one line, or of a loop, share theirs."""
        self.inner: FrameType | None = None
        """The frame of a function that the program has called, from which the walk went up last. Those around it stand
        where they are as long as it runs."""
        self.around: Origin | None = None
        """Where they stand."""

    def leave(self) -> None:
        """Let go of the frames: one that is kept keeps those that have called it, and all that is in them.

        The one that has made this place would be among them, and nothing but a collection would free them then.
        """
        self.frame = self.inner = None

    def origin(self, depth: int = 2) -> Origin | None:
        """Return the position in the program that is being run.

        Args:
            depth: How many frames above this one the walk starts.
        """
        frame: FrameType | None = sys._getframe(depth)  # pyright: ignore[reportPrivateUsage]
        mark = self.frame
        known = _is_carrier
        while frame is not None:
            if frame is mark:
                last, offset = self.last, frame.f_lasti
                if last is None or last.offset != offset or last.module is not self.scope:
                    # As its constructor does, which takes twice as long: most nodes of a trace get here.
                    last = self.last = Origin.__new__(Origin)
                    last.code, last.offset, last.caller = frame.f_code, offset, self.caller
                    last.module, last.history = self.scope, ()
                return last
            code = frame.f_code
            if frame is self.inner and (around := self.around) is not None and around.module is self.scope:
                return Origin(code, frame.f_lasti, around, self.scope)
            carries = known.get(code.co_filename)
            if carries is None:
                carries = passes_calls_on(code.co_filename)
            if not carries:
                return self._walk(frame)
            if code is self.boundary:
                break
            frame = frame.f_back
        if self.caller is None and self.scope is not None:
            return Origin(None, module=self.scope)
        return self.caller

    def origin_of_call(self, path: str, kind: type, depth: int) -> StoredOrigin:
        """Return the position in the program that is being run, where a module is called that stays whole.

        Args:
            path: Of the module.
            kind: Its class.
            depth: As in `origin`.
        """
        frame = sys._getframe(depth)  # pyright: ignore[reportPrivateUsage]
        # The first is so for all calls but the first one of a forward, the second for most of these.
        if frame is self.frame or self._is_outermost(frame):
            return [frame.f_code, frame.f_lasti, self.caller, self.scope, path, kind]
        former = self.scope
        if frame is not self.inner:
            self.origin(depth + 1)  # It finds what is around the frame.
        around = self.around
        if frame is self.inner and around is not None and around.module is former:
            return [frame.f_code, frame.f_lasti, around, former, path, kind]
        self.scope = ModuleScope(path, kind, former)
        try:
            return self.origin(depth + 1)
        finally:
            self.scope = former

    def origins_inside(
        self, path: str, kind: type, chains: Iterable[tuple[tuple[CodeType, int], ...]], depth: int
    ) -> list[StoredOrigin]:
        """Return positions in a module whose forward does not run, where the program that is being run calls it.

        Args:
            path: Of the module.
            kind: Its class.
            chains: For each position the code and offset of the functions there, outermost first.
            depth: As in `origin`.
        """
        frame = sys._getframe(depth)  # pyright: ignore[reportPrivateUsage]
        around = self.scope
        if frame is self.frame or self._is_outermost(frame):
            code, offset, caller = frame.f_code, frame.f_lasti, self.caller
            return [[code, offset, caller, around, path, kind, *chain] for chain in chains]
        origin, scope = self.origin(depth + 1), ModuleScope(path, kind, around)
        found: list[StoredOrigin] = []
        for chain in chains:
            inner = origin
            for code, offset in chain:
                inner = Origin(code, offset, inner, scope)
            found.append(inner)
        return found

    def _is_outermost(self, frame: FrameType) -> bool:
        """Return whether a frame is of the program, and no other one lies between it and the boundary; remember it."""
        known, boundary = _is_carrier, self.boundary
        walker: FrameType | None = frame
        while walker is not None:
            code = walker.f_code
            if code is boundary:
                break
            carries = known.get(code.co_filename)
            if carries is not (walker is not frame):  # Or it was not met yet: whoever walks finds out.
                return False
            walker = walker.f_back
        self.frame, self.last = frame, None
        return True

    def _walk(self, frame: FrameType) -> Origin | None:
        """Return the origin of a chain of calls that starts in `frame`, and remember its outermost frame.

        Raises:
            TraceError: It does not run where the program is traced, and would be recorded as something else.
        """
        session: Any = self.session
        looked = self.looked
        if session is not None and active.get() is not session:
            _check_unheard(frame, session)
        found: list[tuple[CodeType, int]] = []
        outermost = frame
        walker: FrameType | None = frame
        known, boundary, mark = _is_carrier, self.boundary, self.frame
        while walker is not None:
            code = walker.f_code
            if code is boundary:
                break
            carries = known.get(code.co_filename)
            if carries is None:
                carries = passes_calls_on(code.co_filename)
            if not carries:
                if looked is not None and id(code) not in looked and not is_installed(code.co_filename):
                    cast("Any", session).interceptor.on_unseen_function(walker)
                found.append((code, walker.f_lasti))
                outermost = walker
            if walker is mark:
                break
            walker = walker.f_back
        if outermost is not self.frame:
            self.frame, self.last = outermost, None
        origin = around = self.caller
        for code, offset in reversed(found):
            around, origin = origin, Origin(code, offset, origin, self.scope)
        # A generator goes on where it is asked for more, which may be elsewhere.
        is_called = len(found) > 1 and not frame.f_code.co_flags & _SUSPENDED
        self.inner, self.around = (frame, around) if is_called else (None, None)
        return origin


def _check_unheard(frame: FrameType, session: Any) -> None:
    """Look at what runs in another thread, or in a context that knows nothing of the trace.

    Raises:
        TraceError: It is inside of a layer of torch, or gradients and the like are not as where the program began.
    """
    file = frame.f_code.co_filename
    tracer = session.interceptor
    is_alike = session.modes == autograd_modes() and not tracer.graph.current_region
    if is_alike and not file.startswith(_TORCH_MODULES):
        return
    line = SourceLine(file, frame.f_lineno, frame.f_code.co_name)
    error = TraceError(
        f"Cannot record what is done at {line} ({line.text!r}): it runs in another thread, or in an empty context "
        "(contextvars.Context()), and contexts such as no_grad, calls of modules and questions are not heard of there. "
        "Run it where the program runs, take the context along (contextvars.copy_context().run(...)), or keep the "
        "function around this line as a call (fxplug.wrap).",
        code="FXP-T063",
    )
    tracer.note_refusal(error)  # A thread ends without a word.
    raise error


def line_of_program(frames: Iterable[SourceLine]) -> SourceLine | None:
    """Return the innermost frame that is not inside torch, or else the innermost one.

    Args:
        frames: From the innermost one outward, as `Origin.frames` gives them.
    """
    innermost: SourceLine | None = None
    for frame in frames:
        innermost = innermost or frame
        if not frame.filename.startswith(_TORCH):
            return frame
    return innermost


def user_line(depth: int = 2) -> SourceLine | None:
    """Return the innermost line of the user's program on the stack.

    A line inside torch.nn counts only where the program has none of its own, as when such a module is the root.
    """
    return _user_lines(depth + 1)[0]


def place_in_program(depth: int = 2) -> str:
    """Return where in the user's program the caller is, and where in torch it went from there, for a message."""
    frame: FrameType | None = sys._getframe(depth)  # pyright: ignore[reportPrivateUsage]
    while frame is not None:
        code = frame.f_code
        if not passes_calls_on(code.co_filename) and not is_standard(code.co_filename):
            break
        frame = frame.f_back
    if frame is not None and not frame.f_code.co_filename.startswith(_TORCH):  # As most.
        known = _places_in(frame.f_code)
        text = known.get(frame.f_lasti)
        if text is None:
            line = SourceLine(frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name)
            text = known[frame.f_lasti] = f" at {line} ({line.text!r})"
        return text
    line, inside = _user_lines(depth + 1)
    if line is None:
        return ""
    text = f" at {line} ({line.text!r})"
    return text if inside is None else f"{text}, inside torch at {inside} ({inside.text!r})"


@read_once
def _places_in(code: CodeType) -> dict[int, str]:
    """Return where what is called from a function, for messages: the blocks of a network run the same lines."""
    return {}


def frames_of_program() -> Iterator[FrameType]:
    """Yield the frames of the program that is being traced, from the innermost one outward."""
    frame: FrameType | None = sys._getframe(1)  # pyright: ignore[reportPrivateUsage]
    while frame is not None and not (frame.f_code.co_name == "trace" and frame.f_code.co_filename == _TRACER):
        if not passes_calls_on(frame.f_code.co_filename):
            yield frame
        frame = frame.f_back


def is_asked_by_program(name: str) -> bool:
    """Return whether the function `name`, which is being called, is called by the program, and not by torch itself."""
    frame: FrameType | None = sys._getframe(1)  # pyright: ignore[reportPrivateUsage]
    while frame is not None and (frame.f_code.co_filename in _STAND_INS or frame.f_code.co_name == name):
        frame = frame.f_back
    return frame is not None and not passes_calls_on(frame.f_code.co_filename)


def caller_level() -> int:
    """Return the ``stacklevel`` at which a warning of the caller points at a line outside fxplug and torch."""
    level = 0
    frame: FrameType | None = sys._getframe(1)  # pyright: ignore[reportPrivateUsage]
    while frame is not None:
        level += 1
        if not frame.f_code.co_filename.startswith((_OURS, _TORCH)):
            break
        frame = frame.f_back
    return level


def _user_lines(depth: int) -> tuple[SourceLine | None, SourceLine | None]:
    """Return the innermost line of the program, and the innermost one inside torch.nn if that is further in."""
    frame: FrameType | None = sys._getframe(depth)  # pyright: ignore[reportPrivateUsage]
    inside: SourceLine | None = None
    while frame is not None:
        code = frame.f_code
        if not passes_calls_on(code.co_filename) and not is_standard(code.co_filename):
            line = SourceLine(code.co_filename, frame.f_lineno, code.co_name)
            if not code.co_filename.startswith(_TORCH):
                return line, inside
            inside = inside or line
        elif inside is not None and code.co_name == "trace" and code.co_filename == _TRACER:
            break  # What lies further out only started the trace.
        frame = frame.f_back
    return inside, None


_RUNNING = "_run"
"""The method of a tracer that runs a program."""


def belongs_to_program(name: str, cell: CellType) -> bool:
    """Return whether a variable that a function closes over is one of a function that runs in the program by now.

    The program has made both then: what is in it is not there for the next call.

    Args:
        name: Of the variable.
        cell: What it is to the function.
    """
    try:
        value = cell.cell_contents
    except ValueError:  # It has no value yet.
        return False
    frame: FrameType | None = sys._getframe(1)  # pyright: ignore[reportPrivateUsage]
    while frame is not None:
        code = frame.f_code
        if code.co_name == _RUNNING and code.co_filename == _TRACER:
            return False
        if name in code.co_cellvars and frame.f_locals.get(name) is value:
            return True
        frame = frame.f_back
    return False
