"""Writing a program of ATen operators as a network of TensorRT."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from fxplug.lower import AtenProgram, ConverterRecord, Place, write_program
from fxplug_tensorrt.network import Conversion

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from fxplug import GraphModule

__all__ = ["Converted", "ConverterRecord", "Place", "convert", "convert_program"]


@dataclass(frozen=True)
class Converted:
    """A network, and how what it takes and gives is arranged."""

    build: Conversion
    """Holds the network, and the memory that it reads."""
    inputs: tuple[Place, ...]
    results: Any
    """What the program returns, with a `fxplug.lower.Slot` in the place of each tensor."""
    outputs: tuple[tuple[str, torch.dtype], ...]
    """Name and dtype of each result."""


def convert(
    module: GraphModule,
    inputs: Sequence[Any],
    converters: Mapping[Any, ConverterRecord],
    *,
    computed_in: torch.dtype = torch.float32,
    open_dimensions: Sequence[int] = (),
) -> Converted:
    """Return a network that computes what a program of ATen operators computes.

    Args:
        module: Made by ``fxplug.decompose(..., to="aten")``.
        inputs: Examples.
        converters: Operator -> how its calls are written.
        computed_in: What takes the place of float32 inside; inputs and results keep theirs.
        open_dimensions: Dimensions of inputs whose size is left open.

    Raises:
        NotConvertibleError: Something in it cannot be written; the message says what.
    """
    program = AtenProgram(module, tuple(inputs), tuple(open_dimensions))
    return convert_program(program, converters, computed_in=computed_in)


def convert_program(
    program: AtenProgram,
    converters: Mapping[Any, ConverterRecord],
    *,
    computed_in: torch.dtype = torch.float32,
    refits: bool = False,
    targets: Sequence[str] = (),
) -> Converted:
    """Return a network that computes what a program of ATen operators computes.

    Args:
        program: Not changed.
        converters: See `convert`.
        computed_in: See `convert`.
        refits: Whether weights get names, by which an engine takes others.
        targets: GPUs that the engine is for, by TensorRT's names.

    Raises:
        NotConvertibleError: Something in it cannot be written; the message says what.
    """
    build = Conversion(computed_in, refits=refits, targets=targets)
    written = write_program(program, build, converters)
    if refits:
        build.name_weights()
    return Converted(build, written.inputs, written.results, written.outputs)
