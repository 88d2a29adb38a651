"""The int8 matrix product of PyTorch: the only module that knows by which operators it is done.

These are oneDNN's operators, the ones that PyTorch's own compiler emits for x86 CPUs. They take plain int8 and uint8
tensors; the older ``torch.ops.quantized`` ones need tensors of the type ``torch.qint8``, whose making is deprecated.
"""

from __future__ import annotations

import functools
import threading
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from fxplug_quant.affine import as_integers, as_quantized, expect_quantized_tensors
from fxplug_quant.errors import QuantizationError, UnknownNameError

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from torch import Tensor

    from fxplug_quant.affine import Affine

__all__ = [
    "ENGINES",
    "FusedLinear",
    "Geometry",
    "Weights",
    "activation_levels",
    "check_engine",
    "dynamic_operator",
    "fits_qnnpack",
    "has_fbgemm",
    "pack_conv",
    "pack_conv_transpose",
    "pack_fused_linear",
    "pack_linear_for",
    "pack_weight",
    "run_conv",
    "run_conv_transpose",
    "run_fused_linear",
    "run_linear",
    "run_linear_into",
    "run_qnnpack_dynamic",
    "run_qnnpack_linear",
]

ENGINES = ("x86", "onednn", "fbgemm", "qnnpack")
"""Where linear layers are computed: the faster one for each call, or always the same. Convolutions: oneDNN."""
_PARTS_OF_TORCH = frozenset({"fbgemm", "qnnpack"})
"""Engines that a build of PyTorch has or lacks; the others need oneDNN alone, as convolutions do."""

_ENGINE_LOCK = threading.Lock()
"""torch packs for the engine that a global variable names."""


@dataclass(frozen=True)
class Weights:
    """Packed weights and what is needed beside them."""

    packed: Tensor
    scale: Tensor
    """float32, one per output feature or channel."""
    zero_point: Tensor
    """int32 zeros, one per output feature or channel."""
    bias: Tensor | None
    """float32."""


@dataclass(frozen=True)
class Geometry:
    """Where a convolution looks; each tuple has a number for each spatial dimension."""

    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    groups: int
    output_padding: tuple[int, ...] = ()
    """Of a transposed convolution."""


def check_engine(engine: str) -> None:
    """Check that an engine is known, and that this machine has it.

    Raises:
        UnknownNameError: There is no such engine.
        QuantizationError: This PyTorch or CPU lacks it.
    """
    if engine not in ENGINES:
        raise UnknownNameError("quantized engine", engine, ENGINES)
    activation_levels()
    if engine in _PARTS_OF_TORCH and not _has(engine):
        supported = ", ".join(name for name in torch.backends.quantized.supported_engines if name != "none")
        raise QuantizationError(
            f"Cannot compute with the engine {engine!r}: PyTorch {torch.__version__} on this machine has only "
            f'{supported or "none"}. Choose engine = "x86", which takes what there is.',
            code="FXP-Q001",
        )


def pack_weight(int_weight: Tensor) -> Tensor:
    """Return int8 weights, (out, in), in the layout that `run_linear` reads.

    The result is opaque: it can neither be copied nor compared nor saved.
    """
    return torch.ops.onednn.qlinear_prepack(int_weight, None)


def run_linear(
    activations: Tensor,
    scale: float,
    zero_point: int,
    packed: Tensor,
    weight_scale: Tensor,
    weight_zero_point: Tensor,
    bias: Tensor | None,
) -> Tensor:
    """Return ``(activations - zero_point) * scale @ weight.T + bias`` in float32, the product taken in integers.

    Args:
        activations: uint8, at most `activation_levels`.
        scale: What one step of the activations is worth.
        zero_point: The step that stands for 0.
        packed: From `pack_weight`.
        weight_scale: float32, one per output feature.
        weight_zero_point: int32 zeros, one per output feature.
        bias: float32.
    """
    return torch.ops.onednn.qlinear_pointwise.default(
        activations,
        scale,
        zero_point,
        packed,
        weight_scale,
        weight_zero_point,
        bias,
        1.0,  # Scale and zero point of the output, which mean nothing for float32.
        0,
        torch.float32,
        "none",
        [],
        "",
    )


def run_linear_into(
    activations: Tensor,
    affine: Affine,
    weights: Weights,
    *,
    output: Affine | None = None,
    relu: bool = False,
    other: Tensor | None = None,
    other_affine: Affine | None = None,
) -> Tensor:
    """Return a linear layer's output for uint8 activations, as uint8 steps of `output`, or in float32 without it.

    Args:
        activations: At most `activation_levels`.
        affine: What steps of the activations mean.
        weights: What `pack_weight` made, with scales and bias.
        output: What steps of the output mean.
        relu: Whether negative results become 0.
        other: uint8, shaped as the output; it is added before the ReLU, and its memory is written.
        other_affine: What steps of `other` mean.
    """
    scale, zero_point = (1.0, 0) if output is None else (output.scale, output.zero_point)
    dtype = torch.float32 if output is None else torch.uint8
    post = "relu" if relu else "none"
    if other is None or other_affine is None:
        return torch.ops.onednn.qlinear_pointwise.default(
            activations,
            affine.scale,
            affine.zero_point,
            weights.packed,
            weights.scale,
            weights.zero_point,
            weights.bias,
            scale,
            zero_point,
            dtype,
            post,
            [],
            "",
        )
    return torch.ops.onednn.qlinear_pointwise.binary(
        activations,
        affine.scale,
        affine.zero_point,
        weights.packed,
        weights.scale,
        weights.zero_point,
        other,
        weights.bias,
        scale,
        zero_point,
        dtype,
        other_affine.scale,
        other_affine.zero_point,
        "sum",
        1.0,
        post,
        [],
        "",
    )


def pack_fused_linear(int_weight: Tensor, weight_scale: Tensor, bias: Tensor | None) -> Any:
    """Return a linear layer as FBGEMM reads it, None where this PyTorch has no FBGEMM.

    The result is opaque, as that of `pack_weight`.
    """
    return pack_linear_for("fbgemm", int_weight, weight_scale, bias)


def pack_linear_for(engine: str, int_weight: Tensor, weight_scale: Tensor, bias: Tensor | None) -> Any:
    """Return a linear layer as FBGEMM or QNNPACK reads it, None where this PyTorch lacks the engine.

    The result is opaque, as that of `pack_weight`.
    """
    if not _has(engine):
        return None
    with _packing_for(engine):
        if has_one_scale(weight_scale):  # FBGEMM multiplies by it in fewer steps.
            weight = torch.ops.aten._make_per_tensor_quantized_tensor.default(
                int_weight, float(weight_scale[0]), 0
            )
        else:
            weight = torch.ops.aten._make_per_channel_quantized_tensor.default(
                int_weight, weight_scale.double(), torch.zeros(len(weight_scale), dtype=torch.int64), 0
            )
        return torch.ops.quantized.linear_prepack(weight, bias)


def has_one_scale(weight_scale: Tensor) -> bool:
    """Return whether all outputs have the same scale; no, where that cannot be seen, as of tensors without data."""
    is_plain = type(weight_scale) is torch.Tensor and weight_scale.is_cpu and len(weight_scale) > 0
    return is_plain and bool((weight_scale == weight_scale[0]).all())


class FusedLinear(NamedTuple):
    """A linear layer that FBGEMM computes from float32 to float32; see `run_fused_linear`.

    Between two layers the caches of a core are full of weights, so that each Python function on the way to an operator
    is read from memory again: what can be found out beforehand stands here.
    """

    operator: Callable[..., Tensor]
    packed: Any
    elements: int
    """Up to so many elements of an input it is the fastest."""

    @staticmethod
    def of(packed: Any, elements: int, *, relu: bool = False) -> FusedLinear:
        """Return how to compute with what `pack_fused_linear` made."""
        operators = torch.ops.quantized
        operator = (
            operators.linear_with_input_q_dq_qweight_dq_relu_output_fp32.default
            if relu
            else operators.linear_with_input_q_dq_qweight_dq_output_fp32.default
        )
        return FusedLinear(_without_python(operator), packed, elements)


def has_fbgemm() -> bool:
    """Return whether this PyTorch has FBGEMM."""
    return _has("fbgemm")


def _has(engine: str) -> bool:
    return engine in torch.backends.quantized.supported_engines


@contextmanager
def _packing_for(engine: str) -> Generator[None]:
    with _ENGINE_LOCK:
        former = torch.backends.quantized.engine
        torch.backends.quantized.engine = engine
        try:
            expect_quantized_tensors()
            yield
        finally:
            torch.backends.quantized.engine = former


def run_fused_linear(values: Tensor, affine: Affine, packed: Any, *, relu: bool = False) -> Tensor:
    """Return a linear layer's float32 output for a float32 input, which FBGEMM rounds to steps by itself.

    Args:
        values: The input, contiguous.
        affine: To which steps it is rounded.
        packed: From `pack_fused_linear`.
        relu: Whether negative results become 0.
    """
    operator = FusedLinear.of(packed, 0, relu=relu).operator
    if values.dim() == 1:
        return operator(values[None], affine.scale, affine.zero_point, packed)[0]
    return operator(values, affine.scale, affine.zero_point, packed)


def dynamic_operator(*, relu: bool = False) -> Callable[[Tensor, Any], Tensor]:
    """Return what computes a linear layer from float32 to float32, and finds the range of its input itself.

    It takes the input, of two dimensions or more, and what `pack_linear_for` made. It gives the input 8 bits, and takes
    no steps below 6.1e-5. Of NaN and infinities it makes numbers without a word.
    """
    operators = torch.ops.quantized
    return _without_python(
        operators.linear_relu_dynamic.default if relu else operators.linear_dynamic.default
    )


def _without_python(operator: Any) -> Callable[..., Tensor]:
    """Return what an operator calls in the end.

    Before that, an operator that takes a packed layer is three functions of Python, which look through its arguments
    for stand-ins that no packed layer here is: per cents of the time of a model at few rows.
    """
    return getattr(operator, "_op", operator)


def run_qnnpack_linear(
    steps: Tensor, affine: Affine, packed: Any, output: Affine, *, relu: bool = False
) -> Tensor:
    """Return a linear layer's output as uint8 steps, computed by QNNPACK, which adds in 32 bits on every CPU.

    Args:
        steps: uint8, two dimensions or more.
        affine: What they mean.
        packed: From `pack_linear_for`.
        output: What steps of the output mean.
        relu: Whether negative results become 0.
    """
    operators = torch.ops.quantized
    operator = operators.linear_relu.default if relu else operators.linear.default
    result = as_integers(operator(as_quantized(steps, affine), packed, output.scale, output.zero_point))
    levels = activation_levels()
    # Who reads these steps may be oneDNN.
    return result if levels == 255 else result.clamp_(max=levels)


def fits_qnnpack(weight_scale: Tensor, bias: Tensor | None, affine: Affine, output: Affine) -> bool:
    """Return whether QNNPACK can compute a linear layer with given steps.

    It keeps the bias in the steps of the products, in 32 bits, and cuts off what does not fit without a word; and it
    knows no steps of products that are much smaller than those of the output.

    Args:
        weight_scale: float32, one per output feature.
        bias: float32, one per output feature.
        affine: What steps of the activations mean.
        output: What steps of the output mean.
    """
    steps = weight_scale.double() * affine.scale
    largest = 0.0 if bias is None else float((bias.double().abs() / steps).max())
    return largest < 2**30 and float(steps.min()) / output.scale >= 2**-32


def run_qnnpack_dynamic(values: Tensor, packed: Any, *, relu: bool = False) -> Tensor:
    """Return a linear layer's float32 output for a float32 input, which QNNPACK rounds to steps of 8 bits.

    Args:
        values: Two dimensions or more. Its range is found here.
        packed: From `pack_linear_for`.
        relu: Whether negative results become 0.
    """
    return dynamic_operator(relu=relu)(values, packed)


def pack_conv(
    int_weight: Tensor, weight_scale: Tensor, affine: Affine, geometry: Geometry, shape: Any
) -> Tensor:
    """Return the int8 weights of a convolution in the layout that is fastest for inputs of one shape."""
    return torch.ops.onednn.qconv_prepack(
        int_weight,
        weight_scale,
        affine.scale,
        affine.zero_point,
        geometry.stride,
        geometry.padding,
        geometry.dilation,
        geometry.groups,
        list(shape),
    )


def run_conv(  # noqa: PLR0913 - those of the operator
    activations: Tensor,
    affine: Affine,
    weights: Weights,
    geometry: Geometry,
    *,
    output: Affine | None = None,
    relu: bool = False,
    other: Tensor | None = None,
    other_affine: Affine | None = None,
) -> Tensor:
    """Return a convolution's output; arguments are as those of `run_linear_into`.

    An `other` is possible with two spatial dimensions only; it has channels last.
    """
    scale, zero_point = (1.0, 0) if output is None else (output.scale, output.zero_point)
    dtype = torch.float32 if output is None else torch.uint8
    before = (activations, affine.scale, affine.zero_point, weights.packed, weights.scale, weights.zero_point)
    shape = (geometry.stride, geometry.padding, geometry.dilation, geometry.groups, scale, zero_point, dtype)
    if other is not None and other_affine is not None:
        return torch.ops.onednn.qconv2d_pointwise.binary(
            *before,
            other,
            weights.bias,
            *shape,
            other_affine.scale,
            other_affine.zero_point,
            "sum",
            1.0,
            "relu" if relu else "none",
            [],
            None,
        )
    # oneDNN's operator for three dimensions has no ReLU. Steps that begin at 0 cut off what is negative by themselves.
    fused = relu and len(geometry.stride) < 3
    result = torch.ops.onednn.qconv_pointwise.default(
        *before, weights.bias, *shape, "relu" if fused else "none", [], None
    )
    if relu and not fused:
        return result.relu_() if output is None else result.clamp_(min=zero_point)
    return result


def pack_conv_transpose(
    int_weight: Tensor, weight_scale: Tensor, bias: Tensor | None, geometry: Geometry
) -> Any:
    """Return the int8 weights of a transposed convolution as FBGEMM reads them.

    That of oneDNN is wrong where the zero point of the input is not 0 (PyTorch 2.13).

    Args:
        int_weight: Input channels first.
        weight_scale: One for all.
        bias: float32.
        geometry: With a padding of the output.
    """
    with _packing_for("fbgemm"):
        weight = torch.ops.aten._make_per_tensor_quantized_tensor.default(int_weight, float(weight_scale), 0)
        dimensions = len(geometry.stride)
        return getattr(torch.ops.quantized, f"conv_transpose{dimensions}d_prepack")(
            weight,
            bias,
            geometry.stride,
            geometry.padding,
            geometry.output_padding,
            geometry.dilation,
            geometry.groups,
        )


def run_conv_transpose(steps: Tensor, affine: Affine, packed: Any, output: Affine) -> Tensor:
    """Return the uint8 steps of a transposed convolution's output for uint8 steps of its input."""
    operator = getattr(torch.ops.quantized, f"conv_transpose{steps.dim() - 2}d")
    return as_integers(operator(as_quantized(steps, affine), packed, output.scale, output.zero_point))


@functools.cache
def activation_levels() -> int:
    """Return the largest activation for which this CPU computes exactly: 255, or 127 where sums of pairs saturate.

    CPUs without VNNI add two products in 16 bits. A product of 255 and 127, twice, does not fit; of 127 and
    127 it does.

    Raises:
        QuantizationError: There is no int8 matrix product here.
    """
    try:
        for levels in (255, 127):
            if all(_is_exact(rows, levels) for rows in (1, 16)):
                return levels
        found = "its results are wrong"
    except (AttributeError, RuntimeError) as error:
        found = str(error).partition("\n")[0]
    raise QuantizationError(
        f"Cannot compute in int8: PyTorch {torch.__version__} has no working int8 linear operator of oneDNN on this "
        f"machine ({found}). Use a PyTorch build with oneDNN, such as the ones for x86-64 CPUs, or leave the pass out.",
        code="FXP-Q001",
    )


def _is_exact(rows: int, levels: int) -> bool:
    features, outputs = 64, 32
    packed = pack_weight(torch.full((outputs, features), 127, dtype=torch.int8))
    result = run_linear(
        torch.full((rows, features), levels, dtype=torch.uint8),
        1.0,
        0,
        packed,
        torch.ones(outputs, dtype=torch.float32),
        torch.zeros(outputs, dtype=torch.int32),
        None,
    )
    return bool((result == features * 127 * levels).all())
