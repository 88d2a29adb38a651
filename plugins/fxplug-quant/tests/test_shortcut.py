"""The short way of linear layers that were run before: it is left as soon as anything is not what it was."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
from torch import nn

from fxplug_quant import DynamicInt8Linear, Int8Linear, QuantizationError, engine, linear
from fxplug_quant.affine import affine_of
from fxplug_quant.linear import state_of

pytestmark = pytest.mark.skipif(
    "fbgemm" not in torch.backends.quantized.supported_engines or engine.activation_levels() != 255,
    reason="the short way is FBGEMM's, where activations have 8 bits",
)
_SIZE = 24


def make(kind: str, *, bias: bool = True, post: str = "selu") -> nn.Module:
    torch.manual_seed(0)
    layer = nn.Linear(_SIZE, 16, bias=bias)
    if kind == "dynamic":
        return DynamicInt8Linear.from_float(layer, post=post)
    return Int8Linear(*state_of(layer), input_affine=affine_of(-2.0, 3.0, 255), post=post).eval()


def values(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, _SIZE, generator=torch.Generator().manual_seed(1))


def run_before(kind: str, **options: object) -> nn.Module:
    layer = make(kind, **options)
    layer(values(4))
    assert layer._shortcut is not None
    return layer


def fresh(layer: nn.Module) -> nn.Module:
    """Return a layer with the same state that was never run."""
    other = copy.deepcopy(layer)
    assert other._shortcut is None
    return other


both = pytest.mark.parametrize("kind", ["dynamic", "static"])


@both
@pytest.mark.parametrize("post", ["none", "relu", "selu", "gelu"])
@pytest.mark.parametrize("bias", [True, False])
def test_both_ways_give_the_same(kind, post, bias, monkeypatch):
    layer = run_before(kind, post=post, bias=bias)
    other = fresh(layer)
    for name in ("_computed", "compute"):
        monkeypatch.setattr(type(layer), name, lambda *_: pytest.fail("not by the short way"), raising=False)
    inputs = [*(values(*shape) for shape in ((4,), (1,), (2, 3))), values(_SIZE)[:, :4].t()]
    assert not inputs[-1].is_contiguous()
    found = [layer(given) for given in inputs]
    monkeypatch.undo()

    for result, given in zip(found, inputs, strict=True):
        expected = other(given)
        other = fresh(other)
        assert torch.equal(result, expected)


@pytest.mark.parametrize("factor", [0.0, 1e-30, 1e-9, 1e-3, 1e-2, 1.0, 1e28, 1e31])
@pytest.mark.parametrize("offset", [-8.0, 0.5, 8.0])
@pytest.mark.parametrize("post", ["none", "relu"])
def test_both_ways_find_the_same_steps_for_values_of_every_size(factor, offset, post):
    features = 4096
    layer = DynamicInt8Linear.from_float(nn.Linear(features, 16), post=post)
    given = torch.randn(16, features, generator=torch.Generator().manual_seed(1))
    layer(given)
    assert layer._shortcut is not None
    given = given.add(offset).mul(factor)

    assert torch.equal(layer(given), fresh(layer)(given))


@pytest.mark.parametrize("reach", [0.0154, 0.0157, 0.0159])
@pytest.mark.parametrize("sign", [-1, 1])
def test_steps_are_as_fine_as_the_input_needs_on_both_sides_of_the_finest_that_fbgemm_takes(reach, sign):
    layer = run_before("dynamic", post="none")
    given = values(4).abs()
    given *= sign * reach / given.max()
    exact = nn.functional.linear(given, layer.dequantized_weight(), layer.bias)

    # Half a step of each of the input's values, times the weights.
    bound = reach / 255 / 2 * layer.dequantized_weight().abs().sum(1) + 1e-6
    assert ((layer(given) - exact).abs() <= bound).all()
    assert torch.equal(layer(given), fresh(layer)(given))


@pytest.mark.parametrize(("reach", "calls"), [(-2.0, 1), (2.0, 1), (-0.01, 0), (0.01, 0)])
def test_the_operator_finds_the_steps_of_what_reaches_far_to_either_side(reach, calls):
    layer = run_before("dynamic")
    operator, shortcut = layer._shortcut
    called = []
    layer._shortcut = (lambda *given: called.append(given) or operator(*given)), shortcut

    layer(torch.linspace(0, reach, _SIZE)[None])

    assert len(called) == calls


def test_an_input_of_7_bits_gets_no_8(monkeypatch):
    monkeypatch.setattr(linear, "activation_levels", lambda: 127)
    layer = make("dynamic")
    layer.engine = "fbgemm"
    given = values(4)
    first = layer(given)
    assert layer._shortcut is not None

    assert torch.equal(layer(given), first)


@both
@pytest.mark.parametrize("post", ["none", "relu"])
def test_no_function_of_python_stands_before_the_operator(kind, post, monkeypatch):
    layer = run_before(kind, post=post)
    expected = layer(values(4))
    overload = type(torch.ops.quantized.linear_dynamic.default)
    monkeypatch.setattr(overload, "__call__", lambda *_: pytest.fail("called through Python"))

    assert torch.equal(layer(values(4)), expected)


@both
@pytest.mark.parametrize("name", ["int_weight", "weight_scale", "bias", "input_scale", "input_zero_point"])
@pytest.mark.parametrize("way", ["in place", "anew"])
def test_a_state_that_has_changed_takes_effect(kind, name, way):
    layer = run_before(kind)
    if name not in layer._buffers:
        return
    before = layer(values(4))

    if way == "in place":
        layer._buffers[name].add_(1)
    else:
        setattr(layer, name, layer._buffers[name] + 1)

    assert not torch.equal(layer(values(4)), before)
    assert torch.equal(layer(values(4)), fresh(layer)(values(4)))


@both
def test_a_bias_that_comes_or_goes_takes_effect(kind):
    with_bias, without = run_before(kind), run_before(kind, bias=False)
    with_bias.bias, without.bias = None, torch.ones(16)

    for layer in (with_bias, without):
        assert torch.equal(layer(values(4)), fresh(layer)(values(4)))


@both
def test_another_activation_takes_effect(kind):
    layer = run_before(kind)
    layer.post = "tanh"

    assert torch.equal(layer(values(4)), make(kind, post="tanh")(values(4)))


@both
@pytest.mark.parametrize(
    ("before", "after"), [("none", "relu"), ("relu", "none"), ("relu", "tanh"), ("selu", "relu")]
)
def test_an_activation_that_the_operator_does_takes_effect(kind, before, after):
    layer = run_before(kind, post=before)
    layer.post = after

    for _ in range(2):
        assert torch.equal(layer(values(4)), make(kind, post=after)(values(4)))
    layer.post = before
    assert torch.equal(layer(values(4)), make(kind, post=before)(values(4)))


@both
@pytest.mark.parametrize("name", ["onednn", "fbgemm", "qnnpack"])
def test_another_engine_takes_effect(kind, name):
    layer = run_before(kind)
    layer.engine = name

    for _ in range(2):
        assert torch.equal(layer(values(4)), fresh(layer)(values(4)))
    assert (layer._packing.fused[0] == name) is (name == "fbgemm")


def test_a_scale_of_the_output_takes_effect():
    layer = run_before("static", post="none")
    layer.output_scale, layer.output_zero_point = torch.tensor(0.01), torch.tensor(100, dtype=torch.int32)

    assert layer(values(4)).dtype is torch.uint8


@both
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.int64, torch.uint8, torch.complex64])
def test_what_is_no_float32_is_refused(kind, dtype):
    layer = run_before(kind)

    with pytest.raises(QuantizationError, match=rf"its input is {str(dtype)[6:]} on cpu.*FXP-Q002"):
        layer(values(4).to(dtype))
    with pytest.raises(QuantizationError, match=r"its input is float32 on meta.*FXP-Q002"):
        layer(values(4).to("meta"))


@both
def test_inputs_of_another_number_of_features_are_refused_by_torch(kind):
    with pytest.raises(RuntimeError):
        run_before(kind)(torch.randn(4, _SIZE + 1))


@both
def test_one_dimension_none_at_all_and_many_rows_go_the_usual_way(kind):
    layer = run_before(kind)

    for shape in ((), (0,), (200,)):
        assert torch.equal(layer(values(*shape)), fresh(layer)(values(*shape)))


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_values_that_are_not_finite_are_seen(value):
    dynamic, static, given = run_before("dynamic"), run_before("static"), values(4)
    given[2, 5] = value

    with torch.inference_mode():
        assert not dynamic(given)[2].isfinite().all()
    assert not dynamic(given)[2].isfinite().all()
    assert dynamic(given)[[0, 1, 3]].isfinite().all()
    with pytest.raises(QuantizationError, match="FXP-Q012"):
        static(given)


def test_nan_that_is_written_between_two_layers_is_seen():
    torch.manual_seed(0)
    first, second = (DynamicInt8Linear.from_float(nn.Linear(_SIZE, _SIZE), post="selu") for _ in range(2))
    model = nn.Sequential(first, second)
    model(values(4))
    assert second._shortcut is not None

    def spoil(*called: object) -> None:
        called[-1][1, 2] = float("nan")

    first.register_forward_hook(spoil)
    for mode in (torch.no_grad, torch.inference_mode):
        with mode():
            assert model(values(4))[1].isnan().any()


@both
def test_a_gradient_is_refused(kind):
    layer = run_before(kind)
    expected = layer(values(4))

    result = layer(values(4).requires_grad_())

    assert torch.equal(result, expected)
    with pytest.raises(QuantizationError, match="FXP-Q003"):
        result.sum().backward()


@both
@pytest.mark.parametrize(
    "duplicate", [copy.copy, copy.deepcopy, lambda layer: pickle.loads(pickle.dumps(layer))]
)
def test_copies_do_not_take_it_along(kind, duplicate):
    layer = run_before(kind)
    other = duplicate(layer)

    assert "_shortcut" not in other.__dict__
    assert torch.equal(other(values(4)), layer(values(4)))


@both
def test_compiled_layers_can_be_pickled(kind):
    layer = run_before(kind)
    layer.compile(backend="eager")

    assert torch.equal(pickle.loads(pickle.dumps(layer))(values(4)), layer(values(4)))


@both
def test_tensors_that_count_no_writes_have_none(kind):
    with torch.inference_mode():
        layer = make(kind)
        for name, tensor in list(layer._buffers.items()):
            layer._buffers[name] = None if tensor is None else tensor.clone()
        layer(values(4))
        layer(values(4))

    assert layer._shortcut is None
