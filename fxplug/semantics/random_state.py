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
    from collections.abc import Generator, Iterable

__all__ = ["kept_random_state", "random_state", "seed_random_state", "set_random_state"]

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
    """Seed PyTorch's default generator of the CPU.

    Args:
        seed: Any number that PyTorch takes as a seed.
    """
    with _LOCK:
        torch.default_generator.manual_seed(seed)


@contextmanager
def kept_random_state(devices: Iterable[int] = ()) -> Generator[None]:
    """Give the default generators back as they were; what runs inside starts from them.

    Args:
        devices: CUDA devices whose generators are included.
    """
    with _LOCK:
        before = random_state()
        on_devices = [(device, torch.cuda.get_rng_state(device)) for device in devices]
    try:
        yield
    finally:
        with _LOCK:
            set_random_state(before)
            for device, state in on_devices:
                torch.cuda.set_rng_state(state, device)
