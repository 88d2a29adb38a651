"""Generators of random numbers in graphs."""

from __future__ import annotations

import torch

from fxplug.ir import PURE, effects

__all__ = ["generator_from_state"]


def generator_from_state(state: torch.Tensor, device: torch.device) -> torch.Generator:
    """Return a new generator that draws what another one drew from a state on.

    Args:
        state: What `torch.Generator.get_state` has given: bytes, on the CPU.
        device: Of the generator.
    """
    generator = torch.Generator(device)
    generator.set_state(state)
    return generator


effects.register_target(generator_from_state, PURE)
