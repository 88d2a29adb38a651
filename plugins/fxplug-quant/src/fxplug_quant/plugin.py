"""What this plugin answers when fxplug asks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fxplug.ir import PURE, writes
from fxplug.plugins import (
    CommandRecord,
    EffectRecord,
    FlopFormulaRecord,
    PassRecord,
    StorageTargetRecord,
    hookimpl,
)
from fxplug_quant.attention import OpenAttention
from fxplug_quant.bias_correction import CorrectBias
from fxplug_quant.dynamic import DynamicInt8
from fxplug_quant.edges import (
    AsIntegers,
    AsQuantized,
    Dequantize,
    Int8Add,
    Int8Cat,
    Int8Mul,
    Quantize,
    ReluOfSteps,
)
from fxplug_quant.equalization import Equalize
from fxplug_quant.exporting import layers_alone
from fxplug_quant.int4 import WeightInt4Linear
from fxplug_quant.linear import DynamicInt8Linear, WeightInt8Linear
from fxplug_quant.masks import AttentionMask
from fxplug_quant.options import (
    CorrectBiasOptions,
    DynamicInt8Options,
    SmoothOptions,
    StaticInt8Options,
    WeightInt4Options,
    WeightInt8Options,
)
from fxplug_quant.packing import PackingModule
from fxplug_quant.smoothing import Smooth
from fxplug_quant.static import StaticInt8, WeightInt4, WeightInt8
from fxplug_quant.static_layers import Int8Conv, Int8ConvTranspose, Int8Linear
from fxplug_quant.tables import Int8Embedding, Int8EmbeddingBag

if TYPE_CHECKING:
    from collections.abc import Iterable

    from click import Command
    from torch import nn

    from fxplug.analyze import OperatorCall
    from fxplug.ir import Effect, Node

__all__ = [
    "fxplug_is_leaf_module",
    "fxplug_register_commands",
    "fxplug_register_effects",
    "fxplug_register_flop_formulas",
    "fxplug_register_passes",
    "fxplug_register_storage_targets",
]

_ROUNDING = ("static-int8", "dynamic-int8", "weight-int8", "weight-int4")
_LAYERS: dict[str, type[nn.Module]] = {
    "dynamic-int8-linear": DynamicInt8Linear,
    "weight-int8-linear": WeightInt8Linear,
    "weight-int4-linear": WeightInt4Linear,
    "int8-linear": Int8Linear,
    "int8-conv": Int8Conv,
    "int8-conv-transpose": Int8ConvTranspose,
    "int8-embedding": Int8Embedding,
    "int8-embedding-bag": Int8EmbeddingBag,
    "int8-add": Int8Add,
    "int8-mul": Int8Mul,
    "int8-cat": Int8Cat,
    "relu-of-steps": ReluOfSteps,
    "attention-mask": AttentionMask,
    "quantize": Quantize,
    "dequantize": Dequantize,
    "as-quantized": AsQuantized,
    "as-integers": AsIntegers,
}
"""Name in files -> class."""
_CLASSES = tuple(_LAYERS.values())
_BASES = (PackingModule, Int8Embedding, AsIntegers, AttentionMask)
"""What these derive from, and nothing else does: each trace asks for each module, and four classes are asked sooner."""


@hookimpl
def fxplug_register_passes() -> Iterable[PassRecord]:
    """Offer the quantizing passes."""
    return [
        PassRecord(
            "dynamic-int8",
            DynamicInt8,
            "Gives linear layers int8 weights and rounds their input to 8 bits at run time.",
            phase="quantize",
            options=DynamicInt8Options,
            preserves=frozenset({"shapes"}),
            replaces_parameters=True,
            idempotent=True,
            # Weights and inputs have 8 bits each; layers behind one another add up.
            tolerance=0.05,
        ),
        PassRecord(
            "static-int8",
            StaticInt8,
            "Gives linear layers and convolutions int8 weights, and values between them 8 bits by calibration.",
            phase="quantize",
            after=("fuse-conv-bn", "remove-identities"),
            options=StaticInt8Options,
            replaces_parameters=True,
            idempotent=True,
            tolerance=0.1,
        ),
        PassRecord(
            "open-attention",
            OpenAttention,
            "Makes linear layers and scaled products of multi-head attention, so that its weights can be quantized.",
            phase="quantize",
            before=("equalize", "smooth", "correct-bias", *_ROUNDING),
            replaces_parameters=True,
            idempotent=True,
        ),
        PassRecord(
            "equalize",
            Equalize,
            "Makes channels between layers alike in size, so that rounding loses none; the outputs stay.",
            phase="quantize",
            before=("smooth", "correct-bias", *_ROUNDING),
            after=("fuse-conv-bn", "remove-identities"),
            preserves=frozenset({"shapes", "effects"}),
            replaces_parameters=True,
            idempotent=True,
        ),
        PassRecord(
            "smooth",
            Smooth,
            "Moves what is hard to round from the output of norms into linear layers; the outputs stay.",
            phase="quantize",
            before=("correct-bias", *_ROUNDING),
            after=("fuse-conv-bn", "remove-identities"),
            options=SmoothOptions,
            preserves=frozenset({"shapes", "effects"}),
            replaces_parameters=True,
        ),
        PassRecord(
            "correct-bias",
            CorrectBias,
            "Adds to biases what rounding the weights is going to take away from the mean of outputs.",
            phase="quantize",
            before=_ROUNDING,
            after=("fuse-conv-bn", "remove-identities"),
            options=CorrectBiasOptions,
            preserves=frozenset({"shapes", "effects"}),
            replaces_parameters=True,
            tolerance=0.05,
        ),
        PassRecord(
            "weight-int8",
            WeightInt8,
            "Gives linear layers int8 weights and computes with them in float.",
            phase="quantize",
            options=WeightInt8Options,
            replaces_parameters=True,
            idempotent=True,
            tolerance=0.05,
        ),
        PassRecord(
            "weight-int4",
            WeightInt4,
            "Gives linear layers int4 weights in groups and computes with them in float.",
            phase="quantize",
            options=WeightInt4Options,
            replaces_parameters=True,
            idempotent=True,
            # A step is an eighth of the largest weights of a group.
            tolerance=0.2,
        ),
    ]


@hookimpl
def fxplug_register_commands() -> Iterable[CommandRecord]:
    """Offer ``fxplug quant``."""
    return [CommandRecord("quant", _make_quant, "Plan the quantization of a model, or quantize it.")]


def _make_quant() -> Command:
    # A trace in somebody's program asks this plugin too, and needs no command line.
    from fxplug_quant.command import quant  # noqa: PLC0415

    return quant


@hookimpl
def fxplug_register_effects() -> Iterable[EffectRecord]:
    """Say that int8 layers do nothing but compute their output, so that an unused one may go."""
    records = [EffectRecord(kind, PURE) for kind in _CLASSES if kind not in {Int8Linear, Int8Conv}]
    return [*records, EffectRecord(Int8Linear, _layer_effect), EffectRecord(Int8Conv, _layer_effect)]


def _layer_effect(node: Node, module: Any) -> Effect:
    """Return what a static layer does: one that adds a second input may write its memory."""
    overwrites = len(node.args) > 1 and not getattr(module, "keeps_other", True)
    return writes(1) if overwrites else PURE


@hookimpl
def fxplug_register_flop_formulas() -> Iterable[FlopFormulaRecord]:
    """Count the multiply-adds of int8 layers, as many as those of float layers are."""
    kinds = (DynamicInt8Linear, WeightInt8Linear, WeightInt4Linear, Int8Linear, Int8Conv, Int8ConvTranspose)
    records = [FlopFormulaRecord(kind, _multiply_adds) for kind in kinds]
    records += [FlopFormulaRecord(kind, _elements) for kind in (Quantize, Dequantize, Int8Add, Int8Mul)]
    moving = (AttentionMask, Int8Embedding, Int8EmbeddingBag, Int8Cat, ReluOfSteps, AsQuantized, AsIntegers)
    return [*records, *(FlopFormulaRecord(kind, _none) for kind in moving)]


def _multiply_adds(call: OperatorCall) -> int | None:
    module = call.module
    if isinstance(module, WeightInt4Linear):
        return call.elements() * module.in_features
    weight = getattr(module, "int_weight", None)
    if weight is None:
        return None
    # A transposed convolution multiplies each element of its input by the weights of that channel.
    shape = call.shape(0, "input") if isinstance(module, Int8ConvTranspose) else None
    elements = call.elements() if shape is None else shape.numel()
    return elements * (weight.numel() // max(len(weight), 1))


def _elements(call: OperatorCall) -> int:
    return call.elements()


def _none(_: OperatorCall) -> int:
    return 0


@hookimpl
def fxplug_register_storage_targets() -> Iterable[StorageTargetRecord]:
    """Name int8 layers in files, so that a quantized module can be saved, and give them to exported programs."""
    return [StorageTargetRecord(name, kind, python=layers_alone) for name, kind in _LAYERS.items()]


@hookimpl
def fxplug_is_leaf_module(module: nn.Module) -> bool | None:
    """Keep int8 layers whole when a quantized model is traced again."""
    return True if isinstance(module, _BASES) else None
