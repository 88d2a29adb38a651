"""How torch's functions and constants are called, told to the layers that do not know torch."""

from __future__ import annotations

import torch
import torch.nn.functional

from fxplug.codegen import register_named_type, register_root, register_value_type
from fxplug.ir import register_namespace, register_path
from fxplug.semantics.internals import HigherOrderOperator, OpOverload, OpOverloadPacket

__all__: list[str] = []

register_root("torch", torch)
for _prefix, _holder in (
    ("torch", torch),
    ("torch.nn.functional", torch.nn.functional),
    ("torch.Tensor", torch.Tensor),
    ("torch.linalg", torch.linalg),
    ("torch.fft", torch.fft),
    ("torch.special", torch.special),
):
    register_namespace(_prefix, _holder)


def _overload_path(operator: OpOverload) -> str:
    return f"torch.ops.{operator!s}"


for _kind in (torch.dtype, torch.layout, torch.memory_format):
    register_named_type(_kind, str)
register_named_type(OpOverload, _overload_path)
# Pickle finds those in newer protocols alone than that of torch.save.
register_path(torch.memory_format, lambda order: ("torch", str(order).removeprefix("torch.")))
register_path(OpOverload, lambda operator: ("torch", f"ops.{operator!s}"))
register_path(OpOverloadPacket, lambda packet: ("torch", f"ops.{packet!s}"))
register_path(HigherOrderOperator, lambda operator: ("torch", f"ops.higher_order.{operator.__name__}"))
register_value_type(torch.device)
