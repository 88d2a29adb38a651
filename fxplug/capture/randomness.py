"""The states of random numbers of Python, numpy and torch around a trace; who draws of them, and who asks the time."""

from __future__ import annotations

import gc
import random
import secrets
import sys
import threading
import warnings
from collections import deque
from contextlib import contextmanager
from functools import partial
from types import BuiltinMethodType, MethodType, ModuleType
from typing import TYPE_CHECKING, Any

from fxplug.capture.attributes import can_be_asked
from fxplug.capture.callsites import called_name, last_argument
from fxplug.capture.containers import OWN_TABLES, elements_of, is_foreign, is_object
from fxplug.capture.sources import (
    caller_level,
    frames_of_program,
    is_installed,
    is_standard,
    passes_calls_on,
    place_in_program,
)
from fxplug.errors import TraceError, TraceWarning
from fxplug.semantics.random_sources import GLOBAL_GENERATOR, HeldGenerator, RandomSources, held_generator

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable, Iterator, Mapping
    from types import FrameType, FunctionType

    from torch import nn

__all__ = ["ASKING_FOR_SEEDS", "RandomStates", "refuse_draws", "seeding_error"]

ASKING_FOR_SEEDS = frozenset({"get_rng_state", "initial_seed"})
"""Functions of torch that tell what its random numbers were set to, and set nothing."""

_FILES = frozenset({random.__file__, secrets.__file__})
_MOST = 100
"""Containers and objects are looked into for generators if they hold at most so many things."""


class RandomStates:
    """Takes note of the states of Python and numpy when it is made; torch tells of its own draws.

    Generators of a program's own are heard of when they draw, if Python has made them, or noted when the functions and
    modules that hold them are entered, if NumPy has.
    """

    def __init__(self) -> None:
        self._sources = self._latest = RandomSources()
        self._by_program: set[str] = set()
        self._heard: set[str] = set()
        self._possible: set[str] = set()
        self._made: dict[int, random.Random] = {}
        self._seeded: set[int] = set()
        self._drawn: dict[int, tuple[random.Random, Any]] = {}
        self._held: dict[int, tuple[str, HeldGenerator]] = {}
        self._classes: set[type] = set()
        self._looked_through: set[type] = set()
        self._error: TraceError | None = None
        self._clock = ""

    @property
    def of_program(self) -> frozenset[str]:
        """Whose random numbers, if they were drawn, the program has drawn: ``"random"`` (of Python), ``"numpy"``."""
        return frozenset(self._heard | self._possible)

    def restore(self) -> list[str]:
        """Put back what has changed, unless it may be another thread that has drawn.

        Returns:
            Whose random numbers had been drawn or seeded: ``"random"`` (of Python), ``"numpy"``, or the name of a
            generator of NumPy that the program holds.
        """
        for generator, state in self._drawn.values():
            generator.setstate(state)
        drawn = self._sources.changed()
        changed = sorted(self._by_program.union(self._latest.changed(), self._heard))
        if threading.active_count() > 1:
            drawn = [name for name in drawn if name in self.of_program]
        if drawn:
            self._sources.restore(drawn)
        changed += [name for name, generator in self._held.values() if generator.restore()]
        self._drawn.clear()
        self._made.clear()
        self._held.clear()
        self._classes.clear()
        return changed

    @contextmanager
    def kept(self) -> Generator[None]:
        """Let what runs inside, a call that stays one, draw: the captured program draws there, too."""
        self._by_program.update(self._latest.changed())
        try:
            yield
        finally:
            self._latest = RandomSources()

    def refuse(self) -> None:
        """Refuse a program that has drawn of a generator of its own; tell of one that has asked for the time.

        Raises:
            TraceError: It has, and the generator was not made and seeded by the program itself.
        """
        if self._error is not None:
            raise self._error
        if self._clock:
            warnings.warn(
                f"While tracing, the program asked for the time ({self._clock}). What it was told is the same in every "
                "call of what was captured. If that is for its log alone, all is well; otherwise make the time an "
                "input.",
                TraceWarning,
                stacklevel=caller_level(),
            )

    def on_made(self, generator: random.Random) -> None:
        """Hear that a generator is made."""
        self._made[id(generator)] = generator

    def on_seed(self, generator: random.Random, seed: Any) -> None:
        """Hear that a generator is seeded."""
        if id(generator) not in self._made:
            self.on_draw(generator)
        elif seed is None:
            self._seeded.discard(id(generator))
        else:
            self._seeded.add(id(generator))

    def on_state(self, generator: random.Random) -> None:
        """Hear that a generator is given a state: that may be the one of another generator."""
        if id(generator) in self._made:
            self._seeded.discard(id(generator))
        else:
            self.on_draw(generator)

    def on_draw(self, generator: random.Random) -> None:
        """Hear that a number is drawn of a generator: one that the program has seeded gives the same in every call."""
        key = id(generator)
        frame = _drawing_frame()
        if key in self._seeded or frame is None:
            return
        if generator is GLOBAL_GENERATOR:  # Its state tells of it, but not that it was this thread.
            self._heard.add("random")
            return
        # A RandomState of NumPy is made with random numbers of the system, and takes the seed that it is given then.
        if called_name(frame) == "RandomState" and type(last_argument(frame)) is int:
            return
        is_system = isinstance(generator, random.SystemRandom)
        if key not in self._drawn and key not in self._made and not is_system:
            self._drawn[key] = (generator, generator.getstate())
        if self._error is None:
            what = (
                "the system (secrets, random.SystemRandom, or a generator of NumPy that was given no seed)"
                if is_system
                else f"a generator of its own ({type(generator).__module__}.{type(generator).__qualname__})"
            )
            self._error = _error(f"{what}{place_in_program()}")

    def on_world_asked(self, kind: str, name: str) -> None:
        """Hear that a function is called which asks for the time, or the system for random numbers.

        Args:
            kind: ``"clock"``, ``"entropy"``, or ``"possible numbers"`` of a generator that all threads share, which
                nobody would hear the program draw.
            name: Of the function, or of the library whose generator it is.
        """
        if kind == "possible numbers":
            self._possible.add(name)
            return
        frame = next(frames_of_program(), None)
        if frame is None or is_installed(frame.f_code.co_filename):
            return  # A library does for itself, as one that logs does.
        if kind == "clock":
            self._clock = self._clock or f"{name}{place_in_program()}"
        elif self._error is None:
            self._error = _error(f"the system ({name}){place_in_program()}")

    def on_generator_state(self, name: str) -> None:
        """Hear that a method of a generator of torch is called that sets where it is, or tells of it."""
        if self._error is None:
            self._error = seeding_error(f"Generator.{name}")

    def note_held(self, path: str, module: nn.Module) -> None:
        """Take note of the generators of NumPy that a module or its class has as attributes, or in them.

        Args:
            path: Of the module; empty for a root.
            module: Not changed.
        """
        if "numpy.random" not in sys.modules:
            return
        prefix = f"{path}." if path else ""
        attributes = vars(module)
        for name in attributes.keys() - OWN_TABLES:
            self._note(prefix + name, attributes[name])
        for kind in () if type(module) in self._classes else type(module).__mro__:
            for name, value in vars(kind).items() if _is_own(kind) else ():
                self._note(prefix + name, value)
        self._classes.add(type(module))

    def note_function(self, function: FunctionType, names: Iterable[str]) -> None:
        """Take note of the generators of NumPy that a function finds by its names."""
        if "numpy.random" not in sys.modules:
            return
        code = function.__code__
        self._note_names("", function.__globals__, frozenset(names))
        defaults = function.__defaults__ or ()
        for name, value in zip(code.co_varnames[code.co_argcount - len(defaults) :], defaults, strict=False):
            self._note(name, value)
        for name, value in (function.__kwdefaults__ or {}).items():
            self._note(name, value)
        for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=False):
            try:
                self._note(name, cell.cell_contents)
            except ValueError:  # It has no value yet.
                continue

    def _note_names(self, prefix: str, namespace: Mapping[str, Any], names: frozenset[str]) -> None:
        for name in namespace.keys() & names:
            value = namespace.get(name)  # Another trace may take its stand-in away meanwhile.
            if not can_be_asked(value):
                continue
            if not isinstance(value, ModuleType):
                self._note(prefix + name, value)
            elif not is_foreign(value.__name__) and vars(value) is not namespace:
                # In a module of the program, what stands behind its name.
                self._note_names(f"{prefix}{name}.", vars(value), names - {name})

    def _note(self, path: str, value: Any) -> None:
        seen: set[int] = set()
        pending = [value]
        while pending:
            part = pending.pop()
            if type(part) is type:  # Many functions find the same classes.
                if part in self._looked_through:
                    continue
                self._looked_through.add(part)
            held = held_generator(part)
            if held is not None:
                self._held.setdefault(id(part), (path, held))
            elif id(part) not in seen and len(seen) < _MOST:
                seen.add(id(part))
                pending.extend(_inside(part))


_CONTAINERS = (dict, list, tuple, set, frozenset, deque)
_METHODS = (MethodType, BuiltinMethodType, partial)


def _is_own(kind: Any) -> bool:
    """Return whether something is a class of a program."""
    return isinstance(kind, type) and not is_foreign(str(kind.__module__))


def _inside(value: Any) -> Iterator[Any]:
    """Yield what may be, or may hold, a generator."""
    if not can_be_asked(value):
        return
    if isinstance(value, _CONTAINERS):
        found = list(elements_of(value))
    elif _is_own(value):
        found = list(vars(value).values())
    else:
        found = gc.get_referents(value) if isinstance(value, _METHODS) or is_object(value) else []
    for part in filter(can_be_asked, found) if len(found) <= _MOST else ():
        is_numpys = str(type(part).__module__).startswith("numpy.random")
        if is_numpys or isinstance(part, (*_CONTAINERS, *_METHODS)) or _is_own(part) or is_object(part):
            yield part


def _drawing_frame() -> FrameType | None:
    """Return the frame that draws, None where a library of Python does for itself, as for the name of a file."""
    frame: FrameType | None = sys._getframe(2)  # pyright: ignore[reportPrivateUsage]
    while frame is not None:
        name = frame.f_code.co_filename
        if name not in _FILES and not passes_calls_on(name):
            return None if is_standard(name) else frame
        frame = frame.f_back
    return None


def refuse_draws(generators: list[str], of_program: frozenset[str] = frozenset()) -> None:
    """Refuse a program that has drawn random numbers while it was traced: in the graph they would be constants.

    Args:
        generators: Whose numbers were drawn (see `RandomStates.restore`).
        of_program: Whose the program has drawn, if anybody has (see `RandomStates.of_program`).

    Raises:
        TraceError: There are such, and it was the program, or no other thread could have drawn them.
    """
    if not generators:
        return
    known = {"random": "Python's random module", "numpy": "numpy.random"}
    # A generator that the program holds is its own, whoever else runs.
    by_program = next((name for name in generators if name in of_program or name not in known), None)
    name = by_program or generators[0]
    source = known.get(name, f"{name!r}, which is or holds a generator of NumPy")
    if by_program is None and threading.active_count() > 1:
        warnings.warn(
            f"While tracing, random numbers were drawn from {source}, by the program or by another thread. If it was "
            "the program, they are the same in every call of what was captured.",
            TraceWarning,
            stacklevel=caller_level(),
        )
        return
    raise _error(source)


def _error(source: str) -> TraceError:
    error = TraceError(
        f"Cannot trace: the program drew random numbers from {source}, or seeded it. That cannot be recorded, and in "
        "the captured program they would be the same in every call. Draw them with functions of torch (torch.rand, "
        "torch.randint), pass them as inputs, or keep the function that draws them as a call (fxplug.wrap).",
        code="FXP-T053",
    )
    error.stands_on_examples = True
    return error


def seeding_error(name: str) -> TraceError:
    """Return the error for setting the state of torch's random numbers, or for asking for it.

    Args:
        name: Of the function.
    """
    does = "sets the random numbers of everybody"
    if name in ASKING_FOR_SEEDS:
        does = "tells where the random numbers of torch are"
    elif name.startswith("Generator."):
        does = "sets where the numbers of a generator are, or tells of it,"
    return TraceError(
        f"Cannot trace: torch.{name} is called{place_in_program()}, which {does} and cannot be recorded. Call it "
        "before the program, give example inputs, or keep the function that calls it as a call (fxplug.wrap).",
        code="FXP-T053",
    )
