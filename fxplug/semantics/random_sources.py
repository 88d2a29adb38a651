"""The states of the random numbers that Python and NumPy draw for everybody, noted and put back.

Both are read where they lie in memory, because asking for them takes longer than a small program: NumPy takes a quarter
of a millisecond to be given a state that it has already.
"""

from __future__ import annotations

import ctypes
import random
import struct
import sys
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["GLOBAL_GENERATOR", "HeldGenerator", "RandomSources", "draws_for_everybody", "held_generator"]

_WORDS = 624
"""Of the state of a Mersenne twister, beside its position."""
_SIZE = 4 * (_WORDS + 1)


class RandomSources:
    """Takes note of the states of Python's `random` and of NumPy's global generator when it is made."""

    def __init__(self) -> None:
        self._python = _read_python()
        generator = _global_generator()
        self._numpy = None if generator is None else _read_numpy(generator)
        self._bits = None if generator is None else generator._bit_generator

    def changed(self) -> list[str]:
        """Return whose random numbers were drawn or seeded since: ``"random"`` (of Python), ``"numpy"``."""
        names: list[str] = []
        if _read_python() != self._python:
            names.append("random")
        generator = _global_generator()
        if generator is None:
            return names
        if self._numpy is None:
            # Imported meanwhile: `numpy.random` is loaded by the first who says its name.
            self._numpy = _unused_state(generator)
            self._bits = generator._bit_generator
        # What was seeded by the one who loaded it has no state that could be put back.
        is_replaced = self._numpy is None or generator._bit_generator is not self._bits
        if is_replaced or _read_numpy(generator) != self._numpy:
            names.append("numpy")
        return names

    def restore(self, changed: Iterable[str]) -> None:
        """Put back the states of those that are named (see `changed`)."""
        for name in changed:
            if name == "random":
                _restore_python(self._python)
            elif self._numpy is not None:
                _restore_numpy(self._bits, self._numpy)


def _twister_of_python() -> int | None:
    """Return the address of the state behind Python's module `random`, None where it is not laid out as expected."""
    generator: Any = getattr(random, "_inst", None)
    if sys.implementation.name != "cpython" or generator is None:
        return None
    address = id(generator) + object.__basicsize__
    position, *words = (ctypes.c_uint32 * (_WORDS + 1)).from_buffer_copy(ctypes.string_at(address, _SIZE))
    return address if (*words, position) == generator.getstate()[1] else None


_ADDRESS = _twister_of_python()
_generator: Any = getattr(random, "_inst", None)


GLOBAL_GENERATOR = _generator
"""Behind the functions of Python's module `random`."""


def _read_python() -> Any:
    # Numbers of a normal distribution are drawn in pairs: the second one is kept beside the twister.
    if _ADDRESS is None:
        return random.getstate()
    return ctypes.string_at(_ADDRESS, _SIZE), _generator.gauss_next


def _restore_python(state: Any) -> None:
    if _ADDRESS is not None:
        data, following = state
        position, *words = (ctypes.c_uint32 * (_WORDS + 1)).from_buffer_copy(data)
        state = (random.getstate()[0], (*words, position), following)
    random.setstate(state)


# -- NumPy


def _global_generator() -> Any:
    """Return NumPy's global generator, None where NumPy is not loaded."""
    mtrand: Any = sys.modules.get("numpy.random.mtrand")
    # Another thread may be importing it.
    return None if mtrand is None or "numpy" not in sys.modules else getattr(mtrand, "_rand", None)


def draws_for_everybody(value: Any) -> bool:
    """Return whether something is, or draws of, the generator of NumPy that all share; its module is, too."""
    if value is None:
        return False
    if value is sys.modules.get("numpy.random") or value is _global_generator():
        return True
    if type(value).__name__ not in {"method", "cython_function_or_method"}:
        return False
    generator = _global_generator()
    if generator is None:
        return False
    if getattr(value, "__self__", None) is generator:
        return value.__name__ not in {"get_state"}
    name = str(getattr(value, "__name__", ""))
    return name in _OF_MODULE and getattr(sys.modules["numpy.random"], name, None) is value


_OF_MODULE = frozenset({"ranf", "sample", "seed", "set_bit_generator"})
"""Functions of `numpy.random` that are no methods of its generator."""


def _unused_state(generator: Any) -> Any:
    """Return the state of a generator before anybody used it, which its seed tells; None if somebody has seeded it."""
    bits = generator._bit_generator
    if not hasattr(bits, "seed_seq"):  # NumPy before 1.25: nothing tells.
        return _read_numpy(generator)
    seed = bits.seed_seq
    return None if seed is None else _read_numpy(type(generator)(type(bits)(seed)))


def _read_numpy(generator: Any) -> Any:
    """Return the state of a generator of NumPy, as something that compares."""
    bits = generator._bit_generator
    offset = _offset_of_second(type(generator), type(bits)) if type(bits).__name__ == "MT19937" else None
    if offset is None:
        told = generator.get_state(legacy=False)
        return _State(_plain(told), told)
    return (
        ctypes.string_at(bits.ctypes.state_address, _SIZE),
        ctypes.string_at(id(generator) + offset, _second.size),
    )


def _restore_numpy(bits: Any, state: Any) -> None:
    generator = _global_generator()
    if generator._bit_generator is not bits:  # Somebody has put another one in its place.
        sys.modules["numpy.random.mtrand"].set_bit_generator(bits)
    if isinstance(state, _State):
        generator.set_state(state.told)
        return
    *words, position = _words.unpack(state[0])
    generator.set_state(("MT19937", words, position, *_second.unpack(state[1])))


class HeldGenerator:
    """A generator of NumPy that somebody keeps, with its state when this was made.

    Args:
        generator: A ``Generator``, ``RandomState`` or ``BitGenerator``.
    """

    def __init__(self, generator: Any) -> None:
        self._generator = generator
        self._before = self._read()
        self._children = self._count_children()

    def _count_children(self) -> int:
        """Return how many generators this one has made, each with a seed of its own."""
        bits = getattr(self._generator, "bit_generator", self._generator)
        return getattr(getattr(bits, "seed_seq", None), "n_children_spawned", 0)

    def _read(self) -> _State:
        generator = self._generator
        if hasattr(generator, "get_state"):
            told = generator.get_state(legacy=False)
        else:
            told = getattr(generator, "bit_generator", generator).state
        return _State(_plain(told), told)

    def restore(self) -> bool:
        """Put the state back, but for the number of generators made; return whether something had changed."""
        if self._read() == self._before:
            return self._count_children() != self._children
        generator, told = self._generator, self._before.told
        if hasattr(generator, "set_state"):
            generator.set_state(told)
        else:
            getattr(generator, "bit_generator", generator).state = told
        return True


def held_generator(value: Any) -> HeldGenerator | None:
    """Return what takes note of a generator of NumPy, None for anything else and for the global one."""
    if not str(type(value).__module__).startswith("numpy.random"):
        return None
    numpy: Any = sys.modules.get("numpy.random")
    if numpy is None or not isinstance(value, (numpy.Generator, numpy.RandomState, numpy.BitGenerator)):
        return None
    return None if value is _global_generator() else HeldGenerator(value)


@dataclass
class _State:
    """What a generator says of itself, to be compared with what it said before."""

    plain: Any
    """The same with lists for arrays, which compare as a whole."""
    told: dict[str, Any] = field(compare=False)


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _plain(part) for name, part in value.items()}
    return value.tolist() if hasattr(value, "tolist") else value


_words = struct.Struct(f"={_WORDS + 1}I")
_second = struct.Struct("=i4xd")
"""Whether a second number of a normal distribution is kept, and the number."""


@cache
def _offset_of_second(kind: type[Any], bits: type[Any]) -> int | None:
    """Return where in a generator the second number of a pair is kept, found out with one; None if it is not found.

    Numbers of a normal distribution are drawn in pairs, and taking the second one leaves the twister as it is.
    """
    generator = kind(bits(_WORDS))  # Without a seed, NumPy would import what draws one.
    generator.standard_normal()
    expected = _second.pack(*generator.get_state()[3:])
    place = ctypes.string_at(id(generator), kind.__basicsize__).find(expected)
    generator.standard_normal()
    address = id(generator) + place
    is_there = place >= 0 and _second.unpack(ctypes.string_at(address, _second.size))[0] == 0
    return place if is_there else None
