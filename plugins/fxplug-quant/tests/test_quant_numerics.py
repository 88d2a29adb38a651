"""What int8 operators compute, beside torch.ao's reference for the same scales and zero points: within one step."""

from __future__ import annotations

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import nn

from fxplug_quant import (
    Int8Add,
    Int8Cat,
    Int8Conv,
    Int8ConvTranspose,
    Int8Embedding,
    Int8EmbeddingBag,
    Int8Linear,
    Int8Mul,
)
from fxplug_quant.affine import Affine, quantize
from fxplug_quant.edges import AsIntegers, AsQuantized, ReluOfSteps
from fxplug_quant.engine import Geometry, activation_levels
from fxplug_quant.linear import state_of

pytestmark = [
    pytest.mark.filterwarnings("ignore:torch.ao.quantization is deprecated:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:.*quantized tensor.*:UserWarning"),
    pytest.mark.skipif(
        activation_levels() != 255, reason="this CPU gives activations 7 bits, torch.ao's reference 8"
    ),
]
# The reference is deprecated; a PyTorch without it has nothing to compare with.
reference = pytest.importorskip("torch.ao.nn.quantized.reference")
ao_quantized = pytest.importorskip("torch.ao.nn.quantized")

SETTINGS = settings(
    max_examples=8,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)


@st.composite
def affines(draw: st.DrawFn) -> Affine:
    return Affine(draw(st.sampled_from([0.003, 0.0117, 0.05, 1.0])), draw(st.integers(0, 255)))


def values_for(affine: Affine, shape: tuple[int, ...], seed: int) -> torch.Tensor:
    """Return values of which some lie beyond the steps."""
    generator = torch.Generator().manual_seed(seed)
    return (torch.rand(shape, generator=generator) * 300 - 22 - affine.zero_point) * affine.scale


def rounded(values: torch.Tensor, affine: Affine) -> torch.Tensor:
    return torch.quantize_per_tensor(values, affine.scale, affine.zero_point, torch.quint8)


def check(found: torch.Tensor, expected: torch.Tensor, output: Affine) -> None:
    """Compare steps with those of a float32 reference."""
    wanted = rounded(expected, output).int_repr()
    assert found.dtype is torch.uint8
    assert found.shape == wanted.shape
    assert int((found.int() - wanted.int()).abs().max() if found.numel() else 0) <= 1


def output_for(expected: torch.Tensor, zero_point: int) -> Affine:
    """Return steps that most of the values fit into."""
    spread = float(expected.std()) if expected.numel() > 1 else 1.0
    return Affine(max(spread, 1e-3) / 40, zero_point)


REFERENCES = {
    "linear": reference.Linear,
    "conv1d": reference.Conv1d,
    "conv2d": reference.Conv2d,
    "conv3d": reference.Conv3d,
    "conv_transpose1d": reference.ConvTranspose1d,
    "conv_transpose2d": reference.ConvTranspose2d,
    "conv_transpose3d": reference.ConvTranspose3d,
}


def ao_reference(layer: nn.Module, kind: str, scale: torch.Tensor) -> nn.Module:
    """Return torch.ao's reference of a layer, whose weights have our scales."""
    parameters = {
        "qscheme": torch.per_channel_affine if len(scale) > 1 else torch.per_tensor_affine,
        "dtype": torch.qint8,
        "scale": scale if len(scale) > 1 else float(scale),
        "zero_point": torch.zeros(len(scale), dtype=torch.int) if len(scale) > 1 else 0,
        **({"axis": 0} if len(scale) > 1 else {}),
    }
    return REFERENCES[kind].from_float(layer, parameters)


@pytest.mark.parametrize("relu", [False, True])
@pytest.mark.parametrize("kind", list(REFERENCES))
@SETTINGS
@given(data=st.data())
def test_layers_with_weights_are_within_a_step_of_the_reference(kind, relu, data):
    torch.manual_seed(data.draw(st.integers(0, 1000)))
    bias = data.draw(st.booleans())
    if kind == "linear":
        size = data.draw(st.integers(1, 40))
        layer: nn.Module = nn.Linear(size, data.draw(st.integers(2, 24)), bias=bias)
        shape = (*data.draw(st.sampled_from([(1,), (5,), (2, 3), (0,)])), size)
    else:
        layer, shape = drawn_convolution(kind, data, bias=bias)
    layer.eval()
    meaning = data.draw(affines())
    inputs = values_for(meaning, shape, seed=1)
    state = state_of(layer)
    with torch.no_grad():
        expected = ao_reference(layer, kind, state[1])(rounded(inputs, meaning).dequantize())
        expected = expected.relu() if relu else expected
    output = output_for(expected, 0 if relu else data.draw(st.integers(40, 200)))
    options = {"input_affine": meaning, "output_affine": output, "post": "relu" if relu else "none"}
    if kind == "linear":
        ours: nn.Module = Int8Linear(*state, **options)
    else:
        padding = getattr(layer, "output_padding", ()) if "transpose" in kind else ()
        geometry = Geometry(layer.stride, layer.padding, layer.dilation, layer.groups, padding)
        ours = (Int8ConvTranspose if "transpose" in kind else Int8Conv)(*state, geometry=geometry, **options)

    with torch.no_grad():
        check(ours(inputs), expected, output)
        if kind == "linear":
            # What gives floats rounds the input alone.
            floats = Int8Linear(*state, **{**options, "output_affine": None})(inputs)
            torch.testing.assert_close(floats, expected, atol=output.scale, rtol=1e-4)


def drawn_convolution(kind: str, data: st.DataObject, *, bias: bool) -> tuple[nn.Module, tuple[int, ...]]:
    dimensions = int(kind[-2])
    groups = data.draw(st.sampled_from([1, 1, 2]))
    inputs, outputs = groups * data.draw(st.integers(1, 4)), groups * data.draw(st.integers(1, 4))
    stride, dilation = data.draw(st.integers(1, 2)), data.draw(st.integers(1, 2))
    options = {
        "stride": stride,
        "padding": data.draw(st.integers(0, 1)),
        "dilation": dilation,
        "groups": groups,
        "bias": bias,
    }
    transposed = "transpose" in kind
    if transposed and max(stride, dilation) > 1:
        options["output_padding"] = data.draw(st.integers(0, 1))
    name = f"Conv{'Transpose' if transposed else ''}{dimensions}d"
    layer = getattr(nn, name)(inputs, max(outputs, 2 * groups), data.draw(st.integers(1, 3)), **options)
    sizes = tuple(data.draw(st.integers(5, 7)) for _ in range(dimensions))
    return layer, (data.draw(st.integers(1, 2)), inputs, *sizes)


@pytest.mark.parametrize("relu", [False, True])
@pytest.mark.parametrize("operation", ["add", "mul", "cat"])
@SETTINGS
@given(data=st.data())
def test_calls_without_weights_are_within_a_step_of_the_reference(operation, relu, data):
    shape = data.draw(st.sampled_from([(3,), (2, 5), (1, 4, 3, 3), (2, 3, 2, 2, 2), (0, 4)]))
    left, right, output = (data.draw(affines()) for _ in range(3))
    first, second = values_for(left, shape, seed=1), values_for(right, shape, seed=2)
    output = Affine(max(left.scale, right.scale) * 1.7, output.zero_point)
    if operation == "mul":
        output = Affine(left.scale * right.scale * 97, output.zero_point)
    steps = [quantize(first, left, 255), quantize(second, right, 255)]
    helper = ao_quantized.QFunctional()
    helper.scale, helper.zero_point = output.scale, output.zero_point
    given_to_ao = [rounded(first, left), rounded(second, right)]
    if operation == "cat":
        expected = helper.cat(given_to_ao, dim=-1)
        found = Int8Cat([left, right], output, relu=relu)(steps, -1)
    else:
        expected = getattr(helper, operation)(*given_to_ao)
        found = (Int8Add if operation == "add" else Int8Mul)(left, right, output, relu=relu)(*steps)

    with torch.no_grad():
        exact = [value.dequantize().double() for value in given_to_ao]
        result = torch.cat(exact, -1) if operation == "cat" else getattr(torch, operation)(*exact)
        result, reference_steps = result.float(), expected.dequantize()
        if relu:
            result, reference_steps = result.relu(), reference_steps.relu()
        check(found, reference_steps, output)
        check(found, result, output)


@pytest.mark.parametrize("relu", [False, True])
@pytest.mark.parametrize("kind", ["linear", "conv2d"])
@SETTINGS
@given(data=st.data())
def test_residuals_inside_of_layers_are_within_a_step_of_the_reference(kind, relu, data):
    torch.manual_seed(data.draw(st.integers(0, 1000)))
    bias = data.draw(st.booleans())
    if kind == "linear":
        layer: nn.Module = nn.Linear(24, 10, bias=bias)
        shape: tuple[int, ...] = (data.draw(st.integers(1, 6)), 24)
    else:
        layer, shape = drawn_convolution(kind, data, bias=bias)
    meaning, added = data.draw(affines()), data.draw(affines())
    inputs = values_for(meaning, shape, seed=1)
    state = state_of(layer)
    with torch.no_grad():
        expected = ao_reference(layer, kind, state[1])(rounded(inputs, meaning).dequantize())
        added = Affine(float(expected.std()) / 30, added.zero_point)
        other = values_for(added, tuple(expected.shape), seed=2)
        expected = expected + rounded(other, added).dequantize()
        expected = expected.relu() if relu else expected
    output = output_for(expected, 0 if relu else data.draw(st.integers(40, 200)))
    post = "relu" if relu else "none"
    options = {"input_affine": meaning, "output_affine": output, "other_affine": added, "post": post}
    if kind == "linear":
        ours: nn.Module = Int8Linear(*state, **options)
    else:
        geometry = Geometry(layer.stride, layer.padding, layer.dilation, layer.groups)
        ours = Int8Conv(*state, geometry=geometry, **options)

    with torch.no_grad():
        steps = quantize(other, added, 255)
        before = steps.clone()
        check(ours(inputs, steps), expected, output)
        assert torch.equal(steps, before)


def test_values_between_two_steps_go_to_the_even_one():
    affine = Affine(0.5, 10)
    inputs = torch.tensor([-0.25, 0.25, 0.75, -0.75, 1e9, -1e9])

    assert quantize(inputs, affine, 255).tolist() == rounded(inputs, affine).int_repr().tolist()
    assert quantize(inputs, affine, 255).tolist() == [10, 10, 12, 8, 255, 0]


@pytest.mark.parametrize("kind", ["linear", "conv2d"])
@SETTINGS
@given(data=st.data())
def test_activations_behind_layers_are_those_of_the_reference(kind, data):
    torch.manual_seed(data.draw(st.integers(0, 1000)))
    if kind == "linear":
        layer: nn.Module = nn.Linear(24, 10)
        shape: tuple[int, ...] = (data.draw(st.integers(0, 6)), 24)
    else:
        layer, shape = drawn_convolution(kind, data, bias=True)
    meaning = data.draw(affines())
    inputs, state = values_for(meaning, shape, seed=1), state_of(layer)
    with torch.no_grad():
        before = ao_reference(layer, kind, state[1])(rounded(inputs, meaning).dequantize())
    # Floats come out of the layer: what may differ is the order of sums, and nothing is rounded but the input.
    atol = 1e-5 * float(before.abs().max() if before.numel() else 1)

    for post, activation in ACTIVATIONS.items():
        options = {"input_affine": meaning, "post": post}
        if kind == "linear":
            ours: nn.Module = Int8Linear(*state, **options)
        else:
            geometry = Geometry(layer.stride, layer.padding, layer.dilation, layer.groups)
            ours = Int8Conv(*state, geometry=geometry, **options)
        with torch.no_grad():
            torch.testing.assert_close(ours(inputs), activation(before), atol=atol, rtol=1e-4)


ACTIVATIONS = {
    "relu": nn.ReLU(),
    "selu": nn.SELU(),
    "gelu": nn.GELU(),
    "gelu-tanh": nn.GELU("tanh"),
    "sigmoid": nn.Sigmoid(),
    "silu": nn.SiLU(),
    "tanh": nn.Tanh(),
}


@SETTINGS
@given(data=st.data())
def test_a_relu_of_steps_is_that_of_the_reference(data):
    meaning = data.draw(affines())
    inputs = values_for(meaning, data.draw(st.sampled_from([(3,), (2, 5), (1, 4, 3, 3), (0, 4)])), seed=1)

    found = ReluOfSteps(meaning)(quantize(inputs, meaning, 255))

    assert torch.equal(found, rounded(rounded(inputs, meaning).dequantize().relu(), meaning).int_repr())


@pytest.mark.parametrize("operation", ["max_pool2d", "avg_pool2d", "adaptive_avg_pool2d"])
@SETTINGS
@given(data=st.data())
def test_pools_are_within_a_step_of_the_reference(operation, data):
    meaning = data.draw(affines())
    sizes = (data.draw(st.integers(4, 9)), data.draw(st.integers(4, 9)))
    inputs = values_for(meaning, (data.draw(st.integers(1, 2)), data.draw(st.integers(1, 5)), *sizes), seed=1)
    if data.draw(st.booleans()):
        inputs = inputs.contiguous(memory_format=torch.channels_last)
    pool = getattr(nn.functional, operation)
    if operation == "adaptive_avg_pool2d":
        arguments: dict[str, object] = {"output_size": data.draw(st.sampled_from([1, 2, (1, 3)]))}
    else:
        arguments = {"kernel_size": data.draw(st.integers(2, 3)), "stride": data.draw(st.integers(1, 3))}
        arguments |= {"padding": data.draw(st.integers(0, 1)), "ceil_mode": data.draw(st.booleans())}
    if operation == "avg_pool2d":
        arguments["count_include_pad"] = data.draw(st.booleans())

    steps = quantize(inputs, meaning, 255)
    found = AsIntegers()(pool(AsQuantized(meaning)(steps), **arguments))

    check(found, pool(rounded(inputs, meaning).dequantize(), **arguments), meaning)


@pytest.mark.filterwarnings("ignore:.*embedding.*:UserWarning")
@pytest.mark.parametrize("mode", ["", "sum", "mean", "max"])
@SETTINGS
@given(data=st.data())
def test_tables_are_within_a_step_of_the_reference(mode, data):
    torch.manual_seed(data.draw(st.integers(0, 1000)))
    rows, size = data.draw(st.integers(1, 9)), data.draw(st.integers(1, 3)) * 4
    chosen = torch.randint(0, rows, data.draw(st.sampled_from([(1, 4), (3, 2)])))
    table: nn.Module = nn.EmbeddingBag(rows, size, mode=mode) if mode else nn.Embedding(rows, size)
    ours = (Int8EmbeddingBag if mode else Int8Embedding).from_float(table)
    scale, low = ours.weight_scale, ours.weight_low
    weight = torch.quantize_per_channel(table.weight.detach(), scale, -low / scale, 0, torch.quint8)

    # Rounded rows of the reference, for the same scales and least values.
    assert int((weight.int_repr().int() - ours.int_weight.int()).abs().max()) <= 1
    if mode in {"", "sum"}:
        kind = ao_quantized.EmbeddingBag if mode else ao_quantized.Embedding
        theirs = kind(rows, size, **({"mode": "sum", "include_last_offset": True} if mode else {}))
        theirs.set_weight(weight)
        offsets = torch.arange(0, chosen.numel() + 1, chosen.shape[1])
        expected = theirs(chosen.flatten(), offsets) if mode else theirs(chosen)
    else:
        with torch.no_grad():
            table.weight.copy_(weight.dequantize())
            expected = table(chosen)

    many = chosen.shape[1] if mode == "sum" else 1
    torch.testing.assert_close(ours(chosen), expected, atol=1.01 * many * float(scale.max()), rtol=0)
