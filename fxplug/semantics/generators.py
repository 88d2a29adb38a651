"""Generators of random numbers in graphs."""

from __future__ import annotations

import torch

from fxplug.ir import PURE, effects

__all__ = ["default_generator", "generator_from_state", "is_default"]


def is_default(generator: torch.Generator) -> bool:
    """Return whether a generator is the one from which torch draws where it is given none."""
    if generator is torch.default_generator:
        return True
    return generator.device.type == "cuda" and generator in torch.cuda.default_generators


def default_generator(device: torch.device) -> torch.Generator:
    """Return the generator from which torch draws on a device where it is given none."""
    if device.type == "cuda":
        return torch.cuda.default_generators[device.index or 0]
    return torch.default_generator


def generator_from_state(state: torch.Tensor, device: torch.device) -> torch.Generator:
    """Return a new generator that draws what another one drew from a state on.

    Args:
        state: What `torch.Generator.get_state` has given: bytes, on the CPU.
        device: Of the generator.
    """
    generator = torch.Generator(device)
    generator.set_state(state)
    return generator


effects.register_target(default_generator, PURE)
effects.register_target(generator_from_state, PURE)
