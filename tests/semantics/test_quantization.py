"""The operators for quantized values: numbers, refusals, and graphs that hold them."""

from __future__ import annotations

import importlib
import warnings

import pytest
import torch
from torch import nn

import fxplug
from fxplug.errors import InvalidArgumentError
from fxplug.execute import GraphModule
from fxplug.ir import Graph, effects
from fxplug.plugins import PluginManager
from fxplug.semantics import quantization
from fxplug.semantics.quantization import quantization_decompositions

# Registers what the results are held against.
from torch.ao.quantization.fx import _decomposed  # noqa: F401 # isort: skip

NONE = PluginManager(candidates=[], environ={})
OPS = torch.ops.fxplug
TORCH = torch.ops.quantized_decomposed
INT8 = (-128, 127, torch.int8)
UINT8 = (0, 255, torch.uint8)
VALUES = torch.cat([torch.linspace(-40, 40, 4001), torch.tensor([0.0, -0.0, 1e30, -1e30, float("inf")])])


@pytest.mark.parametrize(
    "bounds", [INT8, UINT8, (-127, 127, torch.int8), (-32768, 32767, torch.int16)], ids=str
)
@pytest.mark.parametrize("scale", [0.1, 0.25, 1 / 3, 7.0])
def test_values_are_those_of_torch(bounds, scale):
    point = 3
    ours = OPS.quantize_per_tensor(VALUES, scale, point, *bounds)
    theirs = TORCH.quantize_per_tensor(VALUES, scale, point, *bounds)
    assert ours.dtype == bounds[2]
    assert torch.equal(ours, theirs)
    by_tensors = OPS.quantize_per_tensor.tensor(VALUES, torch.tensor(scale), torch.tensor(point), *bounds)
    assert (by_tensors.int() - ours.int()).abs().max() <= 1
    back = OPS.dequantize_per_tensor(ours, scale, point, *bounds)
    torch.testing.assert_close(back, TORCH.dequantize_per_tensor(theirs, scale, point, *bounds))
    assert back.dtype == torch.float32


E4M3 = (-448, 448, torch.float8_e4m3fn)
E5M2 = (-57344, 57344, torch.float8_e5m2)


@pytest.mark.parametrize("bounds", [E4M3, E5M2], ids=["e4m3fn", "e5m2"])
@pytest.mark.parametrize("scale", [0.1, 0.25, 1 / 3, 7.0])
def test_floating_point_numbers_of_eight_bits_are_those_of_a_cast_and_saturate(bounds, scale):
    low, high, dtype = bounds
    ours = OPS.quantize_per_tensor(VALUES, scale, 0, *bounds)
    steps = VALUES * (1 / scale)
    inside = steps.abs() <= high

    assert ours.dtype == dtype
    assert torch.equal(ours[inside].float(), steps[inside].to(dtype).float())
    assert set(ours[~inside].float().tolist()) == {float(low), float(high)}
    if dtype is torch.float8_e5m2:  # Where a cast does not saturate.
        assert not steps[steps.abs() > 2 * high].to(dtype).float().isfinite().any()
    back = OPS.dequantize_per_tensor(ours, scale, 0, *bounds)
    assert back.dtype == torch.float32
    assert torch.equal(back, ours.float() * scale)


def test_floating_point_numbers_of_eight_bits_are_not_made_whole_and_ties_go_to_even():
    found = OPS.quantize_per_tensor(torch.tensor([0.75, -0.4375, 17.0, 19.0, 1e-9]), 1.0, 0, *E4M3)

    assert found.float().tolist() == [0.75, -0.4375, 16.0, 20.0, 0.0]


@pytest.mark.parametrize("axis", [0, 1, -1])
def test_floating_point_numbers_of_eight_bits_by_channel(axis):
    values = torch.randn(4, 4, 4) * 5
    scales, points = torch.rand(4) + 0.01, torch.zeros(4)
    ours = OPS.quantize_per_channel(values, scales, points, axis, *E4M3)
    for place in range(4):
        alone = OPS.quantize_per_tensor.tensor(
            values.select(axis, place), scales[place], points[place], *E4M3
        )
        assert torch.equal(ours.select(axis, place).float(), alone.float())
    back = OPS.dequantize_per_channel(ours, scales, points, axis, *E4M3, out_dtype=torch.bfloat16)
    assert back.dtype == torch.bfloat16
    shape = [-1 if at == axis % 3 else 1 for at in range(3)]
    assert torch.equal(back, (ours.float() * scales.reshape(shape)).to(torch.bfloat16))


def test_bounds_of_floating_point_numbers_of_eight_bits_may_be_narrower():
    found = OPS.quantize_per_tensor(
        torch.tensor([-300.0, 3.0, 300.0]), 1.0, 0, -240, 240, torch.float8_e4m3fn
    )

    assert found.float().tolist() == [-240.0, 3.0, 240.0]


def test_gradients_reach_scales_of_floating_point_numbers_of_eight_bits():
    stored = torch.tensor([[1.5, -2], [3, 4]]).to(torch.float8_e4m3fn)
    scale = torch.tensor(0.5, requires_grad=True)

    OPS.dequantize_per_tensor.tensor(stored, scale, torch.tensor(0), *E4M3).sum().backward()

    assert scale.grad.item() == 6.5


def test_there_is_no_gradient_of_floating_point_numbers_of_eight_bits_and_torch_warns_of_that():
    values = torch.ones(2, requires_grad=True)
    back = OPS.dequantize_per_tensor(OPS.quantize_per_tensor(values, 1.0, 0, *E4M3), 1.0, 0, *E4M3)

    with pytest.warns(UserWarning, match="an autograd kernel was not registered"):
        back.sum().backward()

    assert values.grad is None


def eighth_linear():
    root = nn.Module()
    root.register_buffer("weight", torch.tensor([[1.5, 2, 3], [4, 5, -6]]).to(torch.float8_e4m3fn))
    graph = Graph()
    x = graph.placeholder("x")
    stored = graph.call_function(OPS.quantize_per_tensor.default, (x, 0.05, 0, *E4M3))
    back = graph.call_function(OPS.dequantize_per_tensor.default, (stored, 0.05, 0, *E4M3))
    weight = graph.call_function(OPS.dequantize_per_tensor.default, (graph.get_attr("weight"), 0.5, 0, *E4M3))
    graph.output(graph.call_function(torch.nn.functional.linear, (back, weight)))
    return GraphModule(root, graph)


def test_graphs_with_floating_point_numbers_of_eight_bits_are_saved_described_and_decomposed(tmp_path):
    module = eighth_linear()
    expected = module(X)
    near = torch.nn.functional.linear(X, module.weight.float() * 0.5)
    assert not torch.equal(expected, near)
    torch.testing.assert_close(expected, near, rtol=0.1, atol=0.5)

    fxplug.save(module, tmp_path / "eighth.fxplug")
    loaded = fxplug.load(tmp_path / "eighth.fxplug")
    assert loaded.weight.dtype is torch.float8_e4m3fn
    assert torch.equal(loaded(X), expected)
    described = [row.value for row in fxplug.shapes(module, X, dynamic={0: {0: "n"}}).nodes]
    assert "float8_e4m3fn[n, 3]" in described
    table = quantization_decompositions()
    gone = fxplug.decompose(module, (X,), to="core-aten", table=table, manager=NONE)
    assert torch.equal(gone(X), expected)


@pytest.mark.parametrize(("dtype", "quantized"), [(torch.int8, torch.qint8), (torch.uint8, torch.quint8)])
def test_values_are_those_of_the_kernels_of_torch(dtype, quantized):
    bounds = INT8 if dtype is torch.int8 else UINT8
    values = torch.cat([torch.randn(10_000) * 10, torch.tensor([4.25, 11.35, -4.25])])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        theirs = torch.quantize_per_tensor(values, 0.1, 5, quantized)
    ours = OPS.quantize_per_tensor.tensor(values, torch.tensor(0.1), torch.tensor(5), *bounds)
    integers = theirs.int_repr()
    # PyTorch's kernels add the zero point first, so that halves go to the other neighbour when it is odd.
    halves = (values * (1 / torch.tensor(0.1)) - 0.5).frac() == 0
    assert torch.equal(ours[~halves], integers[~halves])
    assert (ours.int() - integers.int()).abs().max() <= 1
    torch.testing.assert_close(OPS.dequantize_per_tensor(integers, 0.1, 5, *bounds), theirs.dequantize())


def test_halves_go_to_the_even_neighbour():
    found = OPS.quantize_per_tensor(torch.tensor([0.5, 1.5, 2.5, -0.5, -1.5]), 1.0, 0, *INT8)
    assert found.tolist() == [0, 2, 2, 0, -2]


@pytest.mark.parametrize("axis", [0, 1, -1])
def test_channels_have_scales_of_their_own(axis):
    values = torch.randn(4, 4, 4) * 5
    scales, points = torch.rand(4) + 0.01, torch.tensor([0, 1, -2, 3])
    ours = OPS.quantize_per_channel(values, scales, points, axis, *INT8)
    theirs = TORCH.quantize_per_channel(values, scales, points, axis, *INT8)
    assert torch.equal(ours, theirs)
    for place in range(4):
        alone = OPS.quantize_per_tensor.tensor(
            values.select(axis, place), scales[place], points[place], *INT8
        )
        assert torch.equal(ours.select(axis, place), alone)
    back = OPS.dequantize_per_channel(ours, scales, points, axis, *INT8)
    torch.testing.assert_close(back, TORCH.dequantize_per_channel(theirs, scales, points, axis, *INT8))


def test_half_precision_is_widened_first():
    values = (torch.randn(1000) * 3).to(torch.bfloat16)
    ours = OPS.quantize_per_tensor(values, 0.1, 0, *INT8)
    assert torch.equal(ours, OPS.quantize_per_tensor(values.float(), 0.1, 0, *INT8))
    back = OPS.dequantize_per_tensor(ours, 0.1, 0, *INT8, out_dtype=torch.bfloat16)
    assert torch.equal(back, (ours.float() * 0.1).to(torch.bfloat16))


def test_all_of_int32_is_reached():
    bounds = (-(2**31), 2**31 - 1, torch.int32)
    found = OPS.quantize_per_tensor(torch.tensor([1e30, -1e30, 50331651.0]), 1.0, 0, *bounds)
    assert found.tolist() == [2**31 - 1, -(2**31), int(torch.tensor(50331651.0))]
    assert OPS.dequantize_per_tensor(found, 1.0, 1, *bounds, out_dtype=torch.float64).tolist()[0] == 2**31 - 2


def test_nothing_to_quantize():
    assert OPS.quantize_per_tensor(torch.empty(0, 3), 1.0, 0, *INT8).shape == (0, 3)


def test_gradients_reach_scales():
    stored = torch.tensor([[1, -2], [3, 4]], dtype=torch.int8)
    scale = torch.tensor(0.5, requires_grad=True)
    point = torch.tensor(1)
    OPS.dequantize_per_tensor.tensor(stored, scale, point, *INT8).sum().backward()
    assert scale.grad.item() == (stored.float() - 1).sum().item()
    scales = torch.tensor([0.5, 2.0], requires_grad=True)
    points = torch.tensor([0, 1])
    OPS.dequantize_per_channel(stored, scales, points, 1, *INT8).sum().backward()
    assert scales.grad.tolist() == [4.0, 0.0]
    assert not OPS.quantize_per_tensor(torch.ones(2, requires_grad=True), 1.0, 0, *INT8).requires_grad


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: OPS.quantize_per_tensor(torch.ones(2), 0.0, 0, *INT8),
            r"with the scale 0\.0: it has to be finite",
        ),
        (lambda: OPS.quantize_per_tensor(torch.ones(2), float("nan"), 0, *INT8), "with the scale nan"),
        (
            lambda: OPS.quantize_per_tensor(torch.ones(2), 1.0, 0, 0, 1, torch.float32),
            "stored as one of torch.int8",
        ),
        (
            lambda: OPS.quantize_per_tensor(torch.ones(2), 1.0, 0, -128, 127, torch.uint8),
            "torch.uint8 holds 0 to 255",
        ),
        (lambda: OPS.quantize_per_tensor(torch.ones(2), 1.0, 0, 5, 4, torch.uint8), "between 5 and 4"),
        (
            lambda: OPS.quantize_per_tensor(torch.ones(2), 1.0, 0, -449, 448, torch.float8_e4m3fn),
            "torch.float8_e4m3fn holds -448 to 448",
        ),
        (
            lambda: OPS.quantize_per_tensor(torch.ones(2), 1.0, 0, -240, 240, torch.float8_e4m3fnuz),
            "with torch.float8_e4m3fnuz: quantized values are stored as one of",
        ),
        (lambda: OPS.quantize_per_tensor(torch.ones(2).int(), 1.0, 0, *INT8), "only floating-point values"),
        (
            lambda: OPS.dequantize_per_tensor(torch.ones(2).int(), 1.0, 0, *INT8),
            "were to be stored as torch.int8",
        ),
        (
            lambda: OPS.quantize_per_tensor.tensor(torch.ones(2), torch.ones(2), torch.zeros(2), *INT8),
            r"scale of shape \[2\].*per channel",
        ),
        (
            lambda: OPS.quantize_per_channel(torch.ones(2, 3), torch.ones(2), torch.zeros(2), 1, *INT8),
            "there are 3 channels",
        ),
        (
            lambda: OPS.quantize_per_channel(torch.ones(2, 3), torch.ones(2), torch.zeros(2), 2, *INT8),
            "Cannot quantize along axis 2: the tensor has 2 dimensions",
        ),
        (
            lambda: OPS.dequantize_per_channel(
                torch.ones(2, 3, dtype=torch.int8), torch.ones(2), torch.zeros(2), -3, *INT8
            ),
            "Cannot dequantize along axis -3: the tensor has 2 dimensions",
        ),
    ],
)
def test_what_does_not_fit_is_refused(call, message):
    with pytest.raises(InvalidArgumentError, match=message):
        call()


@pytest.mark.parametrize("name", ["quantize_per_tensor", "quantize_per_channel"])
def test_what_does_not_fit_is_refused_without_data(name):
    point = torch.zeros(3, device="meta")
    values = torch.ones(2, 3, device="meta")
    if "channel" in name:
        operator, more = OPS.quantize_per_channel.default, (1,)
    else:
        operator, more, point = OPS.quantize_per_tensor.tensor, (), point[:1]
    with pytest.raises(InvalidArgumentError, match="holds 0 to 255"):
        operator(values, point, point, *more, -1, 127, torch.uint8)


@pytest.mark.parametrize("axis", [2, -3])
@pytest.mark.parametrize("verb", ["quantize", "dequantize"])
def test_an_axis_that_is_not_there_is_refused_without_data(verb, axis):
    values = torch.ones(2, 3, device="meta", dtype=torch.int8 if verb == "dequantize" else torch.float32)
    points = torch.zeros(3, device="meta")
    with pytest.raises(
        InvalidArgumentError, match=f"Cannot {verb} along axis {axis}: the tensor has 2 dimen"
    ):
        getattr(OPS, f"{verb}_per_channel")(values, points, points, axis, *INT8)


def quantized_linear():
    root = nn.Module()
    root.register_buffer("scales", torch.tensor([0.1, 0.2]))
    root.register_buffer("points", torch.tensor([0, 0]))
    root.register_buffer("weight", torch.tensor([[1, 2, 3], [4, 5, 6]], dtype=torch.int8))
    graph = Graph()
    x = graph.placeholder("x")
    stored = graph.call_function(OPS.quantize_per_tensor.default, (x, 0.05, 10, *UINT8))
    back = graph.call_function(OPS.dequantize_per_tensor.default, (stored, 0.05, 10, *UINT8))
    values = [graph.get_attr(name) for name in ("weight", "scales", "points")]
    weight = graph.call_function(OPS.dequantize_per_channel.default, (*values, 0, *INT8))
    graph.output(graph.call_function(torch.nn.functional.linear, (back, weight)))
    return GraphModule(root, graph)


X = torch.randn(5, 3)


def test_they_have_no_effects():
    module = quantized_linear()
    for node in module.graph.nodes:
        if node.op == "call_function":
            assert effects.effect_of(node).is_pure


def test_graphs_with_them_are_saved_and_loaded(tmp_path):
    module = quantized_linear()
    fxplug.save(module, tmp_path / "quantized.fxplug")
    loaded = fxplug.load(tmp_path / "quantized.fxplug")
    assert [node.target for node in loaded.graph.nodes] == [node.target for node in module.graph.nodes]
    assert torch.equal(loaded(X), module(X))


def test_shapes_and_open_sizes_are_known():
    table = fxplug.shapes(quantized_linear(), X, dynamic={0: {0: "n"}})
    assert [row.value for row in table.nodes if row.opcode == "call_function"] == [
        "uint8[n, 3]",
        "float32[n, 3]",
        "float32[2, 3]",
        "float32[n, 2]",
    ]


def test_decomposing_keeps_them_unless_a_table_says_what_they_are():
    module = quantized_linear()
    kept = fxplug.decompose(module, (X,), to="core-aten", manager=NONE)
    assert OPS.quantize_per_tensor.default in {node.target for node in kept.graph.nodes}
    table = quantization_decompositions()
    gone = fxplug.decompose(module, (X,), to="core-aten", table=table, manager=NONE)
    for node in gone.graph.nodes:
        assert node.op != "call_function" or torch.Tag.core in node.target.tags
    torch.testing.assert_close(kept(X), module(X))
    torch.testing.assert_close(gone(X), module(X))


def test_importing_again_registers_nothing_twice():
    importlib.reload(quantization)
    assert OPS.quantize_per_tensor(torch.ones(1), 1.0, 0, *INT8).item() == 1


def test_they_can_be_traced():
    def program(x):
        return torch.ops.fxplug.quantize_per_tensor(x, 0.1, 0, *INT8)

    module = fxplug.symbolic_trace(program, manager=NONE)
    assert torch.equal(module(X), program(X))
