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


@pytest.mark.parametrize("name", MODELS)
def test_with_open_batch_sizes_nothing_of_a_quantized_model_stays_behind(name):
    build, sizes = MODELS[name]
    model, backend = build(), TensorRTBackend(targets=("SM86",), batch_sizes=(1, 4, 8))

    lowered = lower(fxplug.symbolic_trace(model), backend, (numbers(*sizes),), name="tensorrt", strict=True)

    (partition,) = fxplug.lower.lowered_partitions(lowered.module).values()
    assert partition.engine.record.plan
    converted = backend.converted(partition.__dict__["eager"], (numbers(*sizes),))
    assert tuple(converted.build.net.get_input(0).shape) == (-1, *sizes[1:])
    from fxplug_tensorrt.testing import evaluate

    for count in (1, 5, 8):
        x = numbers(count, *sizes[1:], seed=count)
        torch.testing.assert_close(evaluate(converted, (x,))[0], model(x), rtol=1e-5, atol=1e-5)


def test_a_weight_that_pytorch_dequantizes_is_an_input_of_fixed_sizes():
    """As of int32, which TensorRT does not dequantize: the batch is open, and the weight is not."""

    class Wide(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("weight", torch.arange(-12, 12).reshape(4, 6).to(torch.int32))

        def forward(self, x):
            weight = ops.dequantize_per_tensor(self.weight, 0.1, 0, -100, 100, torch.int32)
            return F.linear(x, weight).relu()

    backend = TensorRTBackend(targets=("SM86",), batch_sizes=(1, 2, 8))

    lowered = lower(fxplug.symbolic_trace(Wide()), backend, (numbers(2, 6),), name="tensorrt")

    (partition,) = fxplug.lower.lowered_partitions(lowered.module).values()
    record = partition.engine.record
    shapes = {text.split()[2] for text in record.summary.inputs}
    assert shapes == {"?x6", "4x6"}
    (fixed,) = record.fixed_inputs
    assert f"{fixed} FLOAT 4x6" in record.summary.inputs


# -- floating-point numbers of eight bits


FP8 = (-448, 448, torch.float8_e4m3fn)


class Eighth(nn.Module):
    """A product whose factors are floating-point numbers of eight bits."""

    def __init__(self):
        super().__init__()
        weight = numbers(16, 32, seed=3)
        self.register_buffer("weight", ops.quantize_per_tensor(weight, 0.01, 0, *FP8))
        self.bias = held(numbers(16, seed=4))

    def forward(self, x):
        x = ops.dequantize_per_tensor(ops.quantize_per_tensor(x, 0.02, 0, *FP8), 0.02, 0, *FP8)
        return F.linear(x, ops.dequantize_per_tensor(self.weight, 0.01, 0, *FP8), self.bias)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_floating_point_numbers_of_eight_bits_and_what_comes_back_are_those_of_pytorch(dtype):
    from fxplug_tensorrt.testing import check_call

    values = torch.cat([X.flatten() * 4, torch.tensor([0.0, -0.0, 1e9, -1e9, torch.inf, -torch.inf])]).to(
        dtype
    )

    made = check_call(ops.quantize_per_tensor.default, values, 0.0213, 0, *FP8, tolerance=0, options=FOR_FP8)
    back = check_call(
        ops.dequantize_per_tensor.default, made.expected[0], 0.0213, 0, *FP8, tolerance=0, options=FOR_FP8
    )

    assert made.found[0].dtype is torch.float8_e4m3fn
    assert made.found[0].float().abs().max() == 448
    assert made.plan
    assert back.plan


FOR_FP8 = TensorRTOptions(targets=("SM89", "SM120"))


@pytest.mark.parametrize("axis", [0, 1])
def test_floating_point_weights_of_eight_bits_have_scales_by_channel(axis):
    from fxplug_tensorrt.testing import check_call

    scales = held(torch.rand(X.shape[axis], generator=torch.Generator().manual_seed(5)) + 0.01)
    meaning = (scales, held(torch.zeros(X.shape[axis])), axis, *FP8)
    stored = held(ops.quantize_per_channel(X, *meaning))

    back = check_call(ops.dequantize_per_channel.default, stored, *meaning, tolerance=0, options=FOR_FP8)

    assert back.plan


@pytest.mark.parametrize("precision", ["fp32", "fp16", "bf16"])
def test_a_product_of_floating_point_numbers_of_eight_bits_is_built_and_equals_eager(precision):
    from fxplug_tensorrt.testing import check_program

    model, options = Eighth().eval(), TensorRTOptions(precision, targets=("SM89", "SM120"))

    checked = check_program(
        model, (numbers(4, 32),), options=options, tolerance=1e-5 if precision == "fp32" else 0.1
    )

    assert checked.plan
    net = checked.converted.build.net
    made = {}
    for number in range(net.num_layers):
        layer = net.get_layer(number)
        made[layer.get_output(0).name] = layer
    assert layers(checked.converted).count("QUANTIZE") == 1
    assert layers(checked.converted).count("DEQUANTIZE") == 2
    (quantize,) = [layer for layer in made.values() if layer.type.name == "QUANTIZE"]
    assert quantize.get_output(0).dtype.name == "FP8"


@pytest.mark.parametrize("targets", [("SM75",), ("SM80",), ("SM86", "SM89")], ids=str)
def test_the_builder_refuses_floating_point_numbers_of_eight_bits_for_gpus_that_have_none(targets):
    from fxplug.errors import BackendError
    from fxplug_tensorrt.engine import build_plan

    converted = TensorRTBackend().converted(fxplug.symbolic_trace(Eighth().eval()), (numbers(4, 32),))

    with pytest.raises(BackendError, match="because the model contains HW-specific datatypes: fp8_e4m3"):
        build_plan(converted, TensorRTOptions(targets=targets))


def test_for_gpus_without_floating_point_numbers_of_eight_bits_these_stay_in_pytorch():
    module, inputs = fxplug.symbolic_trace(Eighth().eval()), (numbers(4, 32),)

    lowered = lower(module, TensorRTBackend(targets=("SM86", "SM89")), inputs, name="tensorrt")

    reason = "it has float8_e4m3fn, which GPUs have from SM89 on, and targets names SM86"
    assert {node.name: node.reason for node in lowered.report.unsupported} == dict.fromkeys(
        ("quantize_per_tensor", "dequantize_per_tensor", "dequantize_per_tensor_1"), reason
    )
    assert lowered.fallback == ""
    assert [part.nodes for part in lowered.report.partitions] == [("linear",)]


def test_narrower_bounds_of_floating_point_numbers_of_eight_bits_are_kept():
    from fxplug_tensorrt.testing import check_call

    made = check_call(
        ops.quantize_per_tensor.default, X * 40, 0.1, 0, -240, 240, torch.float8_e4m3fn, tolerance=0,
        options=FOR_FP8,
    )  # fmt: skip

    assert made.found[0].float().abs().max() == 240


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


def test_a_zero_point_of_floating_point_numbers_of_eight_bits_is_refused():
    def program(x):
        return ops.dequantize_per_tensor(ops.quantize_per_tensor(x, 0.5, 3, *FP8), 0.5, 3, *FP8)

    report = plan_lowering(fxplug.symbolic_trace(program), TensorRTBackend(), "tensorrt", (X,))

    reason = "it has a zero point, which TensorRT does not know for float8_e4m3fn"
    assert [node.reason for node in report.unsupported] == [reason, reason]


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
            lambda x: x.to(torch.float8_e4m3fn),
            (X,),
            "TensorRT makes float8_e4m3fn by quantizing only",
        ),
        (
            lambda x: x.to(torch.float32),
            (X.to(torch.float8_e4m3fn),),
            "TensorRT does not compute with float8_e4m3fn; it only dequantizes it",
        ),
        (
            lambda x: ops.quantize_per_tensor(x, 0.5, 0, -100, 100, torch.float8_e5m2),
            (X,),
            "TensorRT does not compute with float8_e5m2",
        ),
        (
            lambda x: x.to(torch.uint8),
            (X,),
            "TensorRT makes integers of eight bits by quantizing only",
        ),
    ],
    ids=[
        "int16",
        "int32",
        "computed",
        "negative",
        "number",
        "sum",
        "joined",
        "float8",
        "from float8",
        "float8_e5m2",
        "cast",
    ],
)
def test_what_is_refused_stays_in_pytorch_with_its_reason(program, inputs, reason):
    report = plan_lowering(fxplug.symbolic_trace(program), TensorRTBackend(), "tensorrt", inputs)

    assert [node.reason for node in report.unsupported][-1:] == [reason]
