"""The state of PyTorch's random generators, read and set so that threads do not lock one another out.

PyTorch holds the mutex of a generator while it makes the tensor for its state, and a garbage collection may begin
there: its callbacks and finalisers are Python code, so another thread takes over. If that one asks for the same state,
it waits for the mutex without letting go of the interpreter, and nothing moves any more. Whoever asks through this
module waits for a lock of Python's own, which lets others run.
"""

from __future__ import annotations

import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Generator

__all__ = [
    "kept_random_state",
    "random_state",
    "random_states",
    "same_random_states",
    "seed_random_state",
    "set_random_state",
    "set_random_states",
]

# Finalisers that run inside may ask, too.
_LOCK = threading.RLock()


def random_state(generator: torch.Generator | None = None) -> torch.Tensor:
    """Return the state of a generator, as bytes.

    Args:
        generator: PyTorch's default generator of the CPU if there is none.
    """
    with _LOCK:
        return (generator or torch.default_generator).get_state()


def set_random_state(state: torch.Tensor, generator: torch.Generator | None = None) -> None:
    """Set the state of a generator.

    Args:
        state: What `random_state` returned.
        generator: PyTorch's default generator of the CPU if there is none.
    """
    with _LOCK:
        (generator or torch.default_generator).set_state(state)


def seed_random_state(seed: int) -> None:
    """Seed all default generators: the CPU's, and those of devices that are in use.

    Args:
        seed: Any number that PyTorch takes as a seed.
    """
    with _LOCK:
        for generator in _default_generators():
            generator.manual_seed(seed)


def random_states() -> dict[torch.Generator, torch.Tensor]:
    """Return the states of all default generators, each as bytes: the CPU's, and those of devices that are in use.

    A device whose kind nothing has used yet has no generator: looking at it would start the device.
    """
    return {generator: random_state(generator) for generator in _default_generators()}


def set_random_states(states: dict[torch.Generator, torch.Tensor]) -> None:
    """Set the states of default generators.

    Args:
        states: What `random_states` returned. Generators that it does not name keep their states.
    """
    for generator, state in states.items():
        set_random_state(state, generator)


def same_random_states(first: dict[torch.Generator, torch.Tensor]) -> bool:
    """Return whether no default generator has drawn anything.

    Args:
        first: What `random_states` has returned.
    """
    return all(torch.equal(state, random_state(generator)) for generator, state in first.items())


def _default_generators() -> list[torch.Generator]:
    found = [torch.default_generator]
    for devices in (torch.cuda, torch.xpu):
        if devices.is_initialized():
            found += devices.default_generators
    return found


@contextmanager
def kept_random_state() -> Generator[None]:
    """Give the default generators back as they were; what runs inside starts from them.

    Those of devices are among them, where the devices are in use.
    """
    before = random_states()
    try:
        yield
    finally:
        set_random_states(before)
