"""What this plugin answers when fxplug asks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fxplug.ir import PURE
from fxplug.plugins import EffectRecord, FlopFormulaRecord, PassRecord, StorageTargetRecord, hookimpl
from fxplug_quant.dynamic import DynamicInt8
from fxplug_quant.linear import DynamicInt8Linear
from fxplug_quant.options import DynamicInt8Options

if TYPE_CHECKING:
    from collections.abc import Iterable

    from torch import nn

    from fxplug.analyze import OperatorCall

__all__ = [
    "fxplug_is_leaf_module",
    "fxplug_register_effects",
    "fxplug_register_flop_formulas",
    "fxplug_register_passes",
    "fxplug_register_storage_targets",
]


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
        )
    ]


@hookimpl
def fxplug_register_effects() -> Iterable[EffectRecord]:
    """Say that an int8 layer does nothing but compute its output, so that an unused one may go."""
    return [EffectRecord(DynamicInt8Linear, PURE)]


@hookimpl
def fxplug_register_flop_formulas() -> Iterable[FlopFormulaRecord]:
    """Count the multiply-adds of an int8 layer, as many as a float layer has."""
    return [FlopFormulaRecord(DynamicInt8Linear, _multiply_adds)]


def _multiply_adds(call: OperatorCall) -> int | None:
    return call.elements() * call.module.in_features if isinstance(call.module, DynamicInt8Linear) else None


@hookimpl
def fxplug_register_storage_targets() -> Iterable[StorageTargetRecord]:
    """Name int8 layers in files, so that a quantized module can be saved."""
    return [StorageTargetRecord("dynamic-int8-linear", DynamicInt8Linear)]


@hookimpl
def fxplug_is_leaf_module(module: nn.Module) -> bool | None:
    """Keep int8 layers whole when a quantized model is traced again."""
    return True if isinstance(module, DynamicInt8Linear) else None
