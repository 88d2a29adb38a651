"""What int8 layers do with second inputs of other shapes, and with states whose sizes do not fit."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional

import fxplug_quant
from fxplug_quant.errors import QuantizationError


class MeanAdded(nn.Module):
    def __init__(self, make, first_is_mean: bool, relu: bool):
        super().__init__()
        self.a, self.b, self.c = make(), make(), make()
        self.first_is_mean, self.relu = first_is_mean, relu

    def forward(self, x):
        mean = x.mean(0, keepdim=True)
        total = self.a(mean) + self.b(x) if self.first_is_mean else self.a(x) + self.b(mean)
        return self.c(total.relu() if self.relu else total)


MAKERS = {
    "linear": (lambda: nn.Linear(8, 8), (8,)),
    "conv": (lambda: nn.Conv2d(8, 8, 3, padding=1), (8, 6, 6)),
}


def quantized(model: nn.Module, example: torch.Tensor, data: list[torch.Tensor], **config) -> nn.Module:
    return fxplug_quant.convert(fxplug_quant.prepare(model, config, example).calibrate(data))


def relative_error(found: torch.Tensor, expected: torch.Tensor) -> float:
    return float((found - expected).norm() / expected.norm())


@pytest.mark.parametrize("kind", MAKERS)
@pytest.mark.parametrize("first_is_mean", [False, True])
@pytest.mark.parametrize("relu", [False, True])
@pytest.mark.parametrize("engine", ["x86", "qnnpack"])
def test_a_second_input_may_have_another_shape_than_in_the_example(kind, first_is_mean, relu, engine):
    make, shape = MAKERS[kind]
    torch.manual_seed(0)
    model = MeanAdded(make, first_is_mean, relu).eval()
    module = quantized(
        model, torch.randn(1, *shape), [torch.randn(1, *shape) for _ in range(20)], engine=engine
    )
    x = torch.randn(4, *shape)
    with torch.no_grad():
        assert relative_error(module(x[:1]), model(x[:1])) < 0.05
        assert relative_error(module(x), model(x)) < 0.05


@pytest.mark.parametrize("kind", MAKERS)
def test_sums_of_several_shapes_are_no_part_of_a_layer(kind):
    make, shape = MAKERS[kind]
    torch.manual_seed(0)
    model = MeanAdded(make, first_is_mean=True, relu=False).eval()
    data = torch.randn(6, *shape)
    module = quantized(model, data, [data])
    with torch.no_grad():
        assert relative_error(module(data), model(data)) < 0.05


class ReadLater(nn.Module):
    def __init__(self, make):
        super().__init__()
        self.a, self.b, self.c, self.d = (make() for _ in range(4))

    def forward(self, x):
        first = self.a(x)
        return self.c(self.b(x) + first), self.d(first)


@pytest.mark.parametrize("kind", MAKERS)
def test_a_second_input_that_is_read_later_keeps_its_memory(kind):
    make, shape = MAKERS[kind]
    torch.manual_seed(0)
    model = ReadLater(make).eval()
    data = torch.randn(16, *shape)
    module = quantized(model, data, [data])
    with torch.no_grad():
        for found, expected in zip(module(data), model(data), strict=True):
            assert relative_error(found, expected) < 0.05


class Pooled(nn.Module):
    def __init__(self, pool):
        super().__init__()
        self.a, self.pool, self.b = nn.Conv2d(3, 8, 3, padding=1), pool, nn.Conv2d(8, 4, 1)

    def forward(self, x):
        return self.b(self.pool(self.a(x)))


class ByFunction(nn.Module):
    def __init__(self, *args, **kwargs):
        super().__init__()
        self.args, self.kwargs = args, kwargs

    def forward(self, x):
        return functional.avg_pool2d(x, *self.args, **self.kwargs)


@pytest.mark.parametrize(
    "pool",
    [
        nn.AvgPool2d(4, divisor_override=1),
        ByFunction(4, divisor_override=1),
        ByFunction(4, None, 0, False, True, 1),
        nn.AvgPool2d(4),
        ByFunction(4),
    ],
    ids=["sum", "sum by name", "sum by place", "average", "average of a function"],
)
def test_an_average_by_a_divisor_of_its_own_has_a_range_of_its_own(pool):
    torch.manual_seed(0)
    model, data = Pooled(pool).eval(), torch.rand(8, 3, 16, 16)
    module = quantized(model, data, [data])
    with torch.no_grad():
        assert relative_error(module(data), model(data)) < 0.05


@pytest.mark.parametrize("scale", [1.0, 1e-10])
def test_qnnpack_is_left_where_it_would_lose_a_bias(scale):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(32, 16), nn.Linear(16, 4)).eval()
    with torch.no_grad():
        model[0].weight[3] = 0
        model[0].bias[3] = 5
    data = torch.randn(64, 32) * scale
    module = quantized(model, data, [data], engine="qnnpack")
    with torch.no_grad():
        assert relative_error(module(data), model(data)) < 0.05


def test_qnnpack_is_left_where_a_bias_is_large_for_its_steps():
    torch.manual_seed(0)
    model, data = nn.Sequential(nn.Linear(32, 16)).eval(), torch.randn(64, 32) * 1e-2
    with torch.no_grad():
        model[0].weight.mul_(1e-5)
        model[0].bias.fill_(10)
    module = quantized(model, data, [data], engine="qnnpack")
    with torch.no_grad():
        assert relative_error(module(data), model(data)) < 0.05


@pytest.mark.parametrize("name", ["weight_scale", "bias"])
@pytest.mark.parametrize(
    ("layer", "shape", "mode"),
    [
        (nn.Linear(64, 4096), (200, 64), "dynamic-int8"),
        (nn.Linear(64, 4096), (1, 64), "dynamic-int8"),
        (nn.Linear(64, 4096), (200, 64), "static-int8"),
        (nn.Conv2d(4, 512, 1), (1, 4, 4, 4), "static-int8"),
        (nn.ConvTranspose2d(4, 512, 1), (1, 4, 4, 4), "static-int8"),
    ],
    ids=str,
)
def test_scales_and_biases_that_are_too_few_are_refused(layer, shape, mode, name):
    data = torch.randn(shape)
    prepared = fxplug_quant.prepare(nn.Sequential(layer).eval(), {"mode": mode}, data)
    module = fxplug_quant.convert(prepared.calibrate([data]) if prepared.observers else prepared)
    module(data)
    part = module.get_submodule("0")
    setattr(part, name, torch.full((16,), 1e-3))
    with pytest.raises(QuantizationError, match=rf"its {name} has the shape \(16,\)") as caught:
        module(data)
    assert caught.value.code == "FXP-Q002"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("stride", (0, 0)),
        ("stride", (1,)),
        ("padding", (-5, -5)),
        ("dilation", (0, 0)),
        ("groups", 3),
        ("groups", 0),
        ("output_padding", (-9, -9)),
        ("output_padding", (99, 99)),
    ],
    ids=str,
)
@pytest.mark.parametrize(
    "layer", [nn.Conv2d(4, 8, 3), nn.ConvTranspose2d(4, 8, 3)], ids=["conv", "transposed"]
)
def test_a_geometry_that_cannot_be_is_refused(layer, name, value):
    data = torch.randn(2, 4, 8, 8)
    module = quantized(nn.Sequential(layer).eval(), data, [data])
    part = module.get_submodule("0")
    if not hasattr(part, name):
        return
    setattr(part, name, value)
    with pytest.raises(QuantizationError, match=r"Cannot run Int8Conv") as caught:
        module(data)
    assert caught.value.code == "FXP-Q002"


@pytest.mark.parametrize("name", ["group_size", "int_weight", "weight_scale_centre"])
def test_groups_of_int4_that_do_not_fit_are_refused(name):
    data = torch.randn(2, 64).bfloat16()
    model = nn.Sequential(nn.Linear(64, 128)).eval().bfloat16()
    module = fxplug_quant.convert(fxplug_quant.prepare(model, {"mode": "weight-int4"}, data))
    part = module.get_submodule("0")
    setattr(part, name, 32 if name == "group_size" else getattr(part, name)[:, :16].contiguous())
    with pytest.raises(QuantizationError, match="Cannot run WeightInt4Linear"):
        module(data)


def test_the_default_dtype_is_no_matter():
    model, data = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 4)).eval(), torch.randn(16, 8)
    fxplug_quant.engine.activation_levels.cache_clear()
    fxplug_quant.affine.expect_quantized_tensors.cache_clear()
    torch.set_default_dtype(torch.float64)
    try:
        for mode in ("static-int8", "dynamic-int8"):
            prepared = fxplug_quant.prepare(model, {"mode": mode}, data)
            module = fxplug_quant.convert(prepared.calibrate([data]) if prepared.observers else prepared)
            with torch.no_grad():
                assert relative_error(module(data), model(data)) < 0.05
            assert {buffer.dtype for buffer in module.buffers()} <= {torch.float32, torch.int8, torch.int32}
    finally:
        torch.set_default_dtype(torch.float32)


def test_what_is_made_in_inference_mode_can_be_loaded_into():
    model, data = nn.Sequential(nn.Linear(8, 8), nn.Conv1d(8, 4, 1)).eval(), torch.randn(2, 8, 8)
    with torch.inference_mode():
        module = quantized(model, data, [data])
    module.load_state_dict(module.state_dict())
    assert not any(buffer.is_inference() for buffer in module.buffers())


@pytest.mark.parametrize(("per_channel", "word"), [(True, "channel"), (False, "tensor")])
def test_print_says_how_many_scales_there_are(per_channel, word):
    model, data = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 4)).eval(), torch.randn(16, 8)
    assert f"weight=int8 per {word}" in str(quantized(model, data, [data], per_channel=per_channel))


def test_packing_leaves_the_engine_of_torch_as_it_was():
    others = [name for name in torch.backends.quantized.supported_engines if name not in {"none", "fbgemm"}]
    former = torch.backends.quantized.engine
    torch.backends.quantized.engine = others[0]
    try:
        model, data = nn.Sequential(nn.Linear(8, 4)).eval(), torch.randn(1, 8)
        quantized(model, data, [data])(data)
        assert torch.backends.quantized.engine == others[0]
    finally:
        torch.backends.quantized.engine = former
