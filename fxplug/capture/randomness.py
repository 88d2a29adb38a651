"""The states of the random numbers of Python, numpy and torch around a trace."""

from __future__ import annotations

import ctypes
import random
import sys
import threading
import warnings
from typing import Any

from fxplug.capture.sources import caller_level, place_in_program
from fxplug.errors import TraceError, TraceWarning

__all__ = ["RandomStates", "refuse_draws", "seeding_error"]


class RandomStates:
    """Takes note of the states of Python and numpy when it is made; torch tells of its own draws.

    Taking note costs less than a microsecond each: the states of Python and numpy are compared as bytes, because
    asking for them takes longer than a small trace.
    """

    def __init__(self) -> None:
        self._python = _read_python()
        self._numpy = _read_numpy()

    def restore(self) -> list[str]:
        """Put back what has changed, unless other threads run, which may be those that have drawn.

        Returns:
            Whose random numbers had been drawn or seeded: ``"random"`` (of Python), ``"numpy"``.
        """
        changed: list[str] = []
        is_alone = threading.active_count() == 1
        if _read_python() != self._python:
            changed.append("random")
            if is_alone:
                _restore_python(self._python)
        # Numpy may have been imported meanwhile; who draws first then has not set a state that could be put back.
        if self._numpy is not None and _read_numpy() != self._numpy:
            changed.append("numpy")
            if is_alone:
                _restore_numpy(self._numpy)
        return changed


def refuse_draws(generators: list[str]) -> None:
    """Refuse a program that has drawn random numbers while it was traced: in the graph they would be constants.

    Args:
        generators: Whose numbers were drawn (see `RandomStates.restore`).

    Raises:
        TraceError: There are such, and no other thread could have drawn them.
    """
    if not generators:
        return
    source = {"random": "Python's random module", "numpy": "numpy.random"}[generators[0]]
    if threading.active_count() > 1:
        warnings.warn(
            f"While tracing, random numbers were drawn from {source}, by the program or by another thread. If it was "
            "the program, they are the same in every call of what was captured.",
            TraceWarning,
            stacklevel=caller_level(),
        )
        return
    raise TraceError(
        f"Cannot trace: the program drew random numbers from {source}, or seeded it. That cannot be recorded, and in "
        "the captured program they would be the same in every call. Draw them with functions of torch (torch.rand, "
        "torch.randint), pass them as inputs, or keep the function that draws them as a call (fxplug.wrap).",
        code="FXP-T053",
    )


def seeding_error(name: str) -> TraceError:
    """Return the error for setting the state of torch's random numbers.

    Args:
        name: Of the function.
    """
    return TraceError(
        f"Cannot trace: torch.{name} is called{place_in_program()}, which sets the random numbers of everybody and "
        "cannot be recorded. Call it before the program, or keep the function that calls it as a call (fxplug.wrap).",
        code="FXP-T053",
    )


_WORDS = 624
"""Of the state of a Mersenne twister, beside its position."""
_SIZE = 4 * (_WORDS + 1)


def _twister_of_python() -> int | None:
    """Return the address of the state behind Python's module `random`, None where it is not laid out as expected."""
    generator: Any = getattr(random, "_inst", None)
    if sys.implementation.name != "cpython" or generator is None:
        return None
    address = id(generator) + object.__basicsize__
    position, *words = (ctypes.c_uint32 * (_WORDS + 1)).from_buffer_copy(ctypes.string_at(address, _SIZE))
    return address if (*words, position) == generator.getstate()[1] else None


_ADDRESS = _twister_of_python()


def _read_python() -> Any:
    return random.getstate() if _ADDRESS is None else ctypes.string_at(_ADDRESS, _SIZE)


def _restore_python(state: Any) -> None:
    if isinstance(state, bytes):
        position, *words = (ctypes.c_uint32 * (_WORDS + 1)).from_buffer_copy(state)
        version, _, following = random.getstate()
        state = (version, (*words, position), following)
    random.setstate(state)


def _read_numpy() -> bytes | None:
    """Return the state of numpy's global generator, None where numpy is not loaded or the generator is another one."""
    numpy: Any = sys.modules.get("numpy")
    mtrand: Any = sys.modules.get("numpy.random.mtrand")
    if numpy is None or mtrand is None:
        return None
    bits = mtrand._rand._bit_generator
    if type(bits).__name__ != "MT19937":
        return None
    return ctypes.string_at(bits.ctypes.state_address, _SIZE)


def _restore_numpy(state: bytes) -> None:
    numpy: Any = sys.modules["numpy"]
    *words, position = (ctypes.c_uint32 * (_WORDS + 1)).from_buffer_copy(state)
    name, _, _, has_next, following = numpy.random.get_state()
    numpy.random.set_state((name, words, position, has_next, following))
