"""New weights for engines: a state dict becomes the weights that an engine keeps, and these reach it."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

import fxplug
from fxplug import GraphModule
from fxplug.errors import BackendError
from fxplug.lower import lowered_partitions
from fxplug_tensorrt.backend import TensorRTBackend
from fxplug_tensorrt.runtime import TensorRTModule
from fxplug_tensorrt.summary import summarize_network

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from torch import nn

    from fxplug.lower import LoweredPartition
    from fxplug_tensorrt.conversion import Converted
    from fxplug_tensorrt.saving import EngineRecord

__all__ = ["NewWeights", "engine_weights", "refit"]


@dataclass(frozen=True)
class NewWeights:
    """What one engine is to be given."""

    weights: Mapping[str, torch.Tensor]
    """Name in the engine -> values, in the dtype and the order in which the engine keeps them."""
    changed: frozenset[str]
    """Names of those that are others than they were when the module was lowered."""
    program: GraphModule
    """What the engine computes then, in PyTorch."""


def engine_weights(
    module: nn.Module,
    state_dict: Mapping[str, Any],
    strict: bool = True,  # noqa: FBT001, FBT002 - as torch has it
) -> dict[str, NewWeights]:
    """Return what engines are to be given for new weights of the original; needs TensorRT, and no GPU.

    Networks are written again with the new weights, so that whatever is computed of weights beforehand (those of a
    batch norm, halves) is computed again. What passes have folded before is folded again where they said how.

    Args:
        module: What `fxplug.lower.lower` made. Not changed.
        state_dict: As the original has it; not changed.
        strict: Whether its keys have to be those of the original; if not, tensors of which no key is given stay.

    Returns:
        Path of a partition -> weights for its engine, one entry for each engine of TensorRT.

    Raises:
        PassError: Keys or shapes are not those of the original, or a pass made a tensor and did not say how; it is
            named.
        BackendError: The module has no engine of TensorRT, one was not built for new weights, or other numbers in a
            weight would make another network; the message names it.
    """
    partitions = _partitions(module)
    restored = _with_new_weights(module, partitions, state_dict, strict=strict)
    return {path: _new_weights(path, part, restored) for path, part in partitions.items()}


def refit(
    module: nn.Module,
    state_dict: Mapping[str, Any],
    strict: bool = True,  # noqa: FBT001, FBT002 - as torch has it
) -> tuple[str, ...]:
    """Give the engines of a lowered module new weights, without building them again. Needs a GPU that runs them.

    Everything is checked before the first engine is given anything. The original module is not changed; parts that run
    in PyTorch are given the new weights, too.

    Args:
        module: What `fxplug.lower.lower` made with a backend that has ``refit=True``.
        state_dict: As the original has it.
        strict: See `engine_weights`.

    Returns:
        The paths of the partitions whose engines were given weights.

    Raises:
        PassError: See `engine_weights`.
        BackendError: See `engine_weights`; or no GPU runs engines here.
    """
    partitions = _partitions(module)
    restored = _with_new_weights(module, partitions, state_dict, strict=strict)
    found = {path: _new_weights(path, part, restored) for path, part in partitions.items()}
    former: list[tuple[TensorRTModule, EngineRecord]] = []
    try:
        for path, new in found.items():
            engine = _engine(partitions[path])
            former.append((engine, engine.record))
            engine.refit(new.weights, new.changed)
    except BaseException:
        for engine, record in former:
            engine.take_over(record)
        raise
    for path, new in found.items():
        partitions[path].__dict__["eager"] = new.program
    _replace_others(module, restored, partitions)
    return tuple(found)


def _partitions(module: nn.Module) -> dict[str, LoweredPartition]:
    """Return the partitions that TensorRT runs, which are all there are.

    Raises:
        BackendError: There is none, or another engine runs one.
    """
    found = lowered_partitions(module)
    for path, part in found.items():
        if not isinstance(part.engine, TensorRTModule):
            raise BackendError(
                f"Cannot refit the module: partition {path!r} runs on {part.backend!r}, which takes no new weights "
                "here. Lower the module again with the new weights."
            )
    if not found or not isinstance(module, GraphModule):
        raise BackendError(
            f"Cannot refit the {type(module).__name__}: no engine of TensorRT runs a part of it. Give the module that "
            "fxplug.lower.lower made, or fxplug.optimize with the backend 'tensorrt'."
        )
    return found


def _engine(part: LoweredPartition) -> TensorRTModule:
    engine: Any = part.engine  # `_partitions` has looked.
    return engine


def _with_new_weights(
    module: nn.Module,
    partitions: Mapping[str, LoweredPartition],
    state_dict: Mapping[str, Any],
    *,
    strict: bool,
) -> GraphModule:
    """Return a copy of a lowered module with the new weights, in which PyTorch runs the partitions.

    Raises:
        PassError: The state dict does not fit, or it is not known what becomes of it.
    """
    memo: dict[int, Any] = {}
    for part in partitions.values():
        memo[id(part)] = copy.deepcopy(part.__dict__["eager"], memo)
    restored: GraphModule = copy.deepcopy(module, memo)  # pyright: ignore[reportAssignmentType] - see _partitions
    fxplug.load_original_state_dict(restored, state_dict, strict)
    return restored


def _new_weights(path: str, part: LoweredPartition, restored: GraphModule) -> NewWeights:
    program: Any = restored.get_submodule(path)
    engine = _engine(part)
    record = engine.record
    before, after = (_converted(path, part, version) for version in (part.__dict__["eager"], program))
    if record.summary is None or summarize_network(after).structure != record.summary.structure:
        raise BackendError(
            f"Cannot refit partition {path!r}: with the new weights it becomes another network, as with "
            "another zero point. Lower the module again with the new weights."
        )
    weights = after.build.kept
    engine.check_weights(weights)
    changed = {name for name, value in weights.items() if not _same(value, before.build.kept.get(name))}
    return NewWeights(dict(weights), frozenset(changed), program)


def _converted(path: str, part: LoweredPartition, program: GraphModule) -> Converted:
    origin = part.origin
    if origin is None or not isinstance(origin.maker, TensorRTBackend):
        raise BackendError(
            f"Cannot refit partition {path!r}: nobody knows any more how its engine was made. Lower the module again."
        )
    return origin.maker.converted(program, tuple(map(_example, origin.inputs)))


def _example(value: Any) -> Any:
    """Return an example of an input, of which its lowering remembers what it was like."""
    if isinstance(value, (tuple, list)):
        return type(value)(map(_example, value))
    return value.tensor() if hasattr(value, "tensor") else value


def _same(value: torch.Tensor, other: torch.Tensor | None) -> bool:
    if other is None or value.shape != other.shape or value.dtype is not other.dtype:
        return False
    # By their bits: what is no number is the same as itself, and the signs of zeros count.
    return torch.equal(value.reshape(-1).view(torch.uint8), other.reshape(-1).view(torch.uint8))


def _replace_others(module: nn.Module, restored: nn.Module, partitions: Collection[str]) -> None:
    """Let what runs in PyTorch have the new weights; modules that the original holds, too, are replaced by copies."""
    for name, child in restored.named_children():
        if name not in partitions:
            setattr(module, name, child)
    for name, value in (*restored.named_parameters(recurse=False), *restored.named_buffers(recurse=False)):
        setattr(module, name, value)
