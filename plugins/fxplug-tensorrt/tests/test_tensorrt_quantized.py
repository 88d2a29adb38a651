"""Quantized values become layers of TensorRT that quantize and dequantize."""

from __future__ import annotations

import importlib.util

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import fxplug
import fxplug.semantics
from fxplug.lower import lower, plan_lowering
from fxplug_tensorrt import TensorRTBackend, TensorRTOptions

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("tensorrt_rtx") is None, reason="TensorRT for RTX is not installed"
)
ops = torch.ops.fxplug
KINDS = {
    "int8": (torch.int8, -128, 127, 0),
    "int8 without the least": (torch.int8, -127, 127, 0),
    "int8 with a zero point": (torch.int8, -128, 127, 5),
    "uint8 around 128": (torch.uint8, 0, 255, 128),
    "uint8 from 0": (torch.uint8, 0, 255, 0),
    "uint8 of seven bits": (torch.uint8, 0, 127, 40),
}


def numbers(*sizes, seed=0):
    return torch.randn(*sizes, generator=torch.Generator().manual_seed(seed))


def held(value):
    return nn.Parameter(value, requires_grad=False)


X = numbers(4, 6, 5)
SCALES = held(torch.rand(6, generator=torch.Generator().manual_seed(2)) * 0.03 + 0.01)


def layers(converted):
    net = converted.build.net
    return [net.get_layer(number).type.name for number in range(net.num_layers)]


class Rounded(nn.Module):
    """Quantizes and dequantizes, as plugins that quantize write it."""

    def __init__(self, scale, zero, low, high, dtype):
        super().__init__()
        self.meaning = (scale, zero, low, high, dtype)

    def forward(self, x):
        return ops.dequantize_per_tensor(ops.quantize_per_tensor(x, *self.meaning), *self.meaning)


class Layer(nn.Module):
    """A layer whose input and weight are quantized."""

    def __init__(self, layer, rounded, seed):
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        shape = tuple(layer.weight.shape)
        self.layer, self.rounded = layer, rounded
        self.register_buffer("weight", torch.randint(-127, 128, shape, generator=generator).to(torch.int8))
        self.register_buffer("scales", torch.rand(shape[0], generator=generator) * 0.002 + 0.001)
        self.register_buffer("zeros", torch.zeros(shape[0], dtype=torch.int64))
        self.bias = held(torch.randn(shape[0], generator=generator) * 0.1)

    def forward(self, x):
        x = self.rounded(x)
        weight = ops.dequantize_per_channel(self.weight, self.scales, self.zeros, 0, -127, 127, torch.int8)
        if isinstance(self.layer, nn.Linear):
            return F.linear(x, weight, self.bias)
        return F.conv2d(x, weight, self.bias, padding=self.layer.padding)


SYMMETRIC = (0.02, 0, -128, 127, torch.int8)
POSITIVE = (0.03, 0, 0, 255, torch.uint8)


def cnn(first=SYMMETRIC, later=SYMMETRIC):
    return nn.Sequential(
        *(Layer(nn.Conv2d(3, 8, 3, padding=1), Rounded(*first), 1), nn.ReLU(), nn.MaxPool2d(2)),
        *(Layer(nn.Conv2d(8, 8, 3, padding=1), Rounded(*later), 2), nn.ReLU()),
        *(nn.AdaptiveAvgPool2d(1), nn.Flatten(), Layer(nn.Linear(8, 5), Rounded(*later), 3)),
    ).eval()


def mlp():
    return nn.Sequential(
        *(Layer(nn.Linear(12, 16), Rounded(*SYMMETRIC), 1), nn.ReLU()),
        Layer(nn.Linear(16, 4), Rounded(*SYMMETRIC), 2),
    ).eval()


MODELS = {
    "CNN": (cnn, (2, 3, 12, 12)),
    "CNN of unsigned values": (lambda: cnn((0.03, 128, 0, 255, torch.uint8), POSITIVE), (2, 3, 12, 12)),
    "MLP": (mlp, (3, 12)),
}


@pytest.mark.parametrize("name", MODELS)
def test_a_quantized_model_is_built_and_equals_eager(name):
    from fxplug_tensorrt.testing import check_program, evaluate

    build, sizes = MODELS[name]
    model = build()

    checked = check_program(model, (numbers(*sizes),))

    assert checked.plan
    (found,) = evaluate(checked.converted, (numbers(*sizes, seed=5),))
    torch.testing.assert_close(found, model(numbers(*sizes, seed=5)), rtol=1e-5, atol=1e-5)
    assert not torch.allclose(found, checked.found[0])


@pytest.mark.parametrize("precision", ["fp32", "fp16", "bf16"])
def test_what_a_convolution_takes_comes_from_dequantizing_layers(precision):
    """That is how TensorRT knows that it may compute with integers."""
    from fxplug_tensorrt.testing import check_program

    checked = check_program(
        cnn(), (numbers(2, 3, 12, 12),), options=TensorRTOptions(precision), tolerance=0.1
    )

    net = checked.converted.build.net
    found = [net.get_layer(number) for number in range(net.num_layers)]
    makers = {layer.get_output(0).name: layer.type.name for layer in found}
    for layer in found:
        if layer.type.name == "CONVOLUTION":
            assert [makers[layer.get_input(number).name] for number in range(2)] == ["DEQUANTIZE"] * 2
    assert [layer.type.name for layer in found].count("QUANTIZE") == 3
    assert checked.plan


def test_lowering_leaves_nothing_of_a_quantized_model_behind():
    module = fxplug.symbolic_trace(cnn(later=POSITIVE))
    backend = TensorRTBackend(targets=("SM86",))

    lowered = lower(module, backend, (numbers(2, 3, 12, 12),), name="tensorrt", strict=True)

    assert lowered.fallback == ""
    assert lowered.report.coverage == 1.0
    assert len(lowered.report.partitions) == 1


# -- single calls


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("kind", KINDS)
def test_stored_integers_and_what_comes_back_are_those_of_pytorch(kind, dtype):
    from fxplug_tensorrt.testing import check_call

    stored, low, high, zero = KINDS[kind]
    meaning = (0.0213, zero, low, high, stored)
    values = torch.cat([X.flatten() * 2, torch.tensor([0.0, -0.0, 1e9, -1e9, torch.inf, -torch.inf])]).to(
        dtype
    )

    made = check_call(ops.quantize_per_tensor.default, values, *meaning, tolerance=0)
    back = check_call(ops.dequantize_per_tensor.default, made.expected[0], *meaning, tolerance=0)

    assert made.found[0].dtype is stored
    assert {int(made.found[0].min()), int(made.found[0].max())} == {low, high}
    assert made.plan
    assert back.plan


@pytest.mark.parametrize("axis", [0, 1, -1])
@pytest.mark.parametrize("kind", KINDS)
def test_channels_have_scales_and_zero_points_of_their_own(kind, axis):
    from fxplug_tensorrt.testing import check_call

    stored, low, high, zero = KINDS[kind]
    count = X.shape[axis]
    zeros = zero + (torch.arange(count) % 3 if zero else torch.zeros(count))
    meaning = (held(SCALES[:count]), held(zeros.to(torch.int32)), axis, low, high, stored)

    made = check_call(ops.quantize_per_channel.default, X, *meaning, tolerance=0)
    back = check_call(
        ops.dequantize_per_channel.default, made.expected[0], *meaning, kwargs={"out_dtype": torch.float16},
        tolerance=0,
    )  # fmt: skip

    assert made.plan
    assert back.found[0].dtype is torch.float16


def test_a_scale_and_a_zero_point_may_be_tensors_that_the_model_holds():
    from fxplug_tensorrt.testing import check_call

    meaning = (held(torch.tensor([0.05])), held(torch.tensor([3])), -128, 127, torch.int8)

    made = check_call(ops.quantize_per_tensor.tensor, X, *meaning, tolerance=0)
    assert check_call(ops.dequantize_per_tensor.tensor, made.found[0], *meaning, tolerance=0).plan


def test_what_fits_takes_one_layer_and_a_zero_point_takes_more():
    from fxplug_tensorrt.testing import check_call

    def kinds(zero):
        made = check_call(ops.quantize_per_tensor.default, X, 0.02, zero, -128, 127, torch.int8)
        return set(layers(made.converted)) - {"CONSTANT", "IDENTITY", "SHUFFLE"}

    assert kinds(0) == {"QUANTIZE"}
    assert kinds(7) == {"QUANTIZE", "ELEMENTWISE", "UNARY"}


# -- what is refused


@pytest.mark.parametrize(
    ("program", "inputs", "reason"),
    [
        (
            lambda x: ops.quantize_per_tensor(x, 0.5, 0, -1000, 1000, torch.int16),
            (X,),
            "TensorRT does not compute with int16",
        ),
        (
            lambda x: ops.quantize_per_tensor(x, 0.5, 0, -1000, 1000, torch.int32),
            (X,),
            "values are stored as int32; TensorRT quantizes to eight bits",
        ),
        (
            lambda x: ops.quantize_per_tensor(x, x.amax().reshape(1), torch.zeros(1), -128, 127, torch.int8),
            (X,),
            "its scale or zero point is computed by the program",
        ),
        (
            lambda x: ops.quantize_per_tensor(
                x, torch.tensor([-0.5]), torch.tensor([0]), -128, 127, torch.int8
            ),
            (X,),
            "its scale is not above zero, or not finite",
        ),
        (
            lambda x: ops.quantize_per_tensor(x.sum(), 0.5, 0, -128, 127, torch.int8),
            (X,),
            "TensorRT quantizes no single numbers",
        ),
        (
            lambda x: x + 1,
            (torch.ones(3, dtype=torch.int8),),
            "TensorRT does not compute with integers of eight bits; it only dequantizes them",
        ),
        (
            lambda x: torch.cat([x, x]),
            (torch.ones(3, dtype=torch.uint8),),
            "TensorRT does not compute with integers of eight bits; it only dequantizes them",
        ),
        (
            lambda x: x.to(torch.uint8),
            (X,),
            "TensorRT makes integers of eight bits by quantizing only",
        ),
    ],
    ids=["int16", "int32", "computed", "negative", "number", "sum", "joined", "cast"],
)
def test_what_is_refused_stays_in_pytorch_with_its_reason(program, inputs, reason):
    report = plan_lowering(fxplug.symbolic_trace(program), TensorRTBackend(), "tensorrt", inputs)

    assert [node.reason for node in report.unsupported][-1:] == [reason]
