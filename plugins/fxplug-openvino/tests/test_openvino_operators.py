"""Calls of many kinds: what OpenVINO computes of them equals eager."""

from __future__ import annotations

import importlib.util

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import fxplug
from fxplug.lower import lower, plan_lowering
from fxplug_openvino import ConverterRecord, OpenVINOBackend

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("openvino") is None, reason="OpenVINO is not installed"
)


def numbers(*sizes, seed=0):
    return torch.randn(*sizes, generator=torch.Generator().manual_seed(seed))


X = numbers(2, 3, 8, 8)
M = numbers(4, 6)
POSITIVE = M.abs() + 0.1
UNIT = torch.tanh(M) * 0.9
WHOLE = torch.arange(24).reshape(4, 6) % 7
MASK = M > 0

UNARY = {
    "abs exp sin cos tanh sigmoid relu neg floor ceil round trunc sign erf atan sinh cosh asinh square exp2": M,
    "log log2 log10 sqrt rsqrt reciprocal": POSITIVE,
    "asin acos atanh tan": UNIT,
    "isnan isinf logical_not": M,
}
ACTIVATIONS = (
    F.relu, F.gelu, F.silu, F.mish, F.hardswish, F.hardsigmoid, F.hardtanh, F.relu6, F.softplus, F.elu, F.selu, F.celu,
    F.leaky_relu, F.softsign, lambda x: F.gelu(x, approximate="tanh"), lambda x: F.softmax(x, -1),
    lambda x: F.log_softmax(x, 0), lambda x: F.glu(x, 1), lambda x: F.prelu(x, torch.tensor([0.3])),
)  # fmt: skip
TWO = {
    "add": lambda x, y: x + y,
    "add scaled": lambda x, y: torch.add(x, y, alpha=3),
    "sub": lambda x, y: x - 2 * y,
    "rsub": lambda x, y: 1 - x + y,
    "mul": lambda x, y: x * y,
    "div": lambda x, y: x / y,
    "floor div": lambda x, y: torch.div(x, y, rounding_mode="floor"),
    "trunc div": lambda x, y: torch.div(x, y, rounding_mode="trunc"),
    "remainder": torch.remainder,
    "fmod": torch.fmod,
    "pow": lambda x, y: (x.abs() + 0.1) ** y,
    "square": lambda x, y: x**2 + y,
    "maximum": torch.maximum,
    "minimum": torch.minimum,
    "compared": lambda x, y: (x > y, x <= y, x == y, x != 0.5),
    "where": lambda x, y: torch.where(x > 0, x, y),
    "masked fill": lambda x, y: x.masked_fill(y > 0, -1.0),
    "logical": lambda x, y: (x > 0) & (y > 0) | ~(x > 1),
    "clamp": lambda x, y: x.clamp(-0.5, 0.5) + y.clamp(min=0),
    "lerp": lambda x, y: torch.lerp(x, y, 0.3),
    "addcmul": lambda x, y: torch.addcmul(x, x, y, value=2),
    "mixed dtypes": lambda x, y: x + (y > 0) + 1,
    "matmul": lambda x, y: x @ y.t(),
    "einsum": lambda x, y: torch.einsum("ij,kj->ik", x, y),
    "cat": lambda x, y: torch.cat([x, y], 1),
    "stack": lambda x, y: torch.stack([x, y], -1),
    "linear": F.linear,
    "cosine": lambda x, y: F.cosine_similarity(x, y, dim=1),
    "attention": lambda x, y: F.scaled_dot_product_attention(x[None, None], y[None, None], y[None, None]),
}
ONE = {
    "sum": lambda x: x.sum(),
    "sum of one": lambda x: x.sum(1, keepdim=True),
    "mean": lambda x: x.mean((0, 1)),
    "amax": lambda x: x.amax(0),
    "max": lambda x: x.max(1),
    "min": lambda x: x.min(-1, keepdim=True),
    "prod": lambda x: x.prod(1),
    "any": lambda x: ((x > 2).any(1), (x > -9).all(), (x > 9).any()),
    "var": lambda x: (x.var(1), x.std(0, unbiased=False), x.var()),
    "argmax": lambda x: (x.argmax(), x.argmin(1)),
    "topk": lambda x: x.topk(2, dim=1),
    "cumsum": lambda x: x.cumsum(1),
    "logsumexp": lambda x: x.logsumexp(1),
    "norm": lambda x: (x.norm(dim=1), F.normalize(x, dim=1)),
    "views": lambda x: (x + 1).view(2, 12).reshape(-1, 3).t().unsqueeze(0).squeeze(),
    "permute": lambda x: (x + 1).view(2, 2, 6).permute(2, 0, 1).transpose(0, 1),
    "expand": lambda x: x.unsqueeze(1).expand(-1, 3, -1) * 2,
    "slices": lambda x: (x[1:, ::2] + 1, x[:, -1], x[2] * 2, x[..., None] + x.sum(), x[:, 1:-1]),
    "split": lambda x: x.split(4, 1),
    "chunk": lambda x: x.chunk(3, 1)[1],
    "unbind": lambda x: x.unbind(0)[2] + 1,
    "flip": lambda x: x.flip(0, 1),
    "roll": lambda x: (x.roll(1, 1), x.roll(2)),
    "repeat": lambda x: x.repeat(2, 1, 3),
    "pad": lambda x: F.pad(x, (1, 2, 0, 1), value=3.0),
    "gather": lambda x: x.gather(1, torch.tensor([[0], [1], [5], [2]])),
    "index": lambda x: ((2 * x)[torch.tensor([0, -1])], x[torch.tensor([0, 1]), torch.tensor([2, -3])]),
    "index select": lambda x: x.index_select(1, torch.tensor([3, 1])),
    "likes": lambda x: (torch.zeros_like(x) + x, torch.full_like(x, 2.0) * x),
    "triangles": lambda x: (x.tril(), x.triu(1)),
    "casts": lambda x: (x.to(torch.int32), (x > 0).float(), (3 * x).long().float()),
    "arange": lambda x: x + torch.arange(6),
    "in place": lambda x: (x + 1).relu_().mul_(2).add_(x),
    "dropout": lambda x: F.dropout(x, training=False) + 1,
}
LAYERS = {
    "conv": (nn.Conv2d(3, 6, 3, padding=1), X),
    "conv of groups": (nn.Conv2d(3, 6, 3, stride=2, groups=3, dilation=2, padding=(2, 1)), X),
    "conv of one": (nn.Conv1d(3, 4, 3), numbers(2, 3, 9)),
    "conv of three": (nn.Conv3d(2, 4, 2), numbers(1, 2, 4, 4, 4)),
    "conv without a batch": (nn.Conv2d(3, 4, 3), X[0]),
    "transposed conv": (nn.ConvTranspose2d(3, 4, 3, stride=2, padding=1, output_padding=1), X),
    "transposed conv of groups": (nn.ConvTranspose2d(3, 6, 3, groups=3), X),
    "linear": (nn.Linear(8, 5), X),
    "batch norm": (nn.BatchNorm2d(3), X),
    "batch norm of one": (nn.BatchNorm1d(6), M),
    "layer norm": (nn.LayerNorm((8, 8)), X),
    "group norm": (nn.GroupNorm(3, 3), X),
    "instance norm": (nn.InstanceNorm2d(3), X),
    "max pool": (nn.MaxPool2d(3, 2, 1, ceil_mode=True), X),
    "max pool of one": (nn.MaxPool1d(2), numbers(2, 3, 8)),
    "avg pool": (nn.AvgPool2d(3, 2, 1), X),
    "avg pool without padding": (nn.AvgPool2d(3, 2, 1, count_include_pad=False), X),
    "adaptive pool": (nn.AdaptiveAvgPool2d((3, 5)), X),
    "adaptive pool of one": (nn.AdaptiveAvgPool2d(1), X),
    "adaptive max pool": (nn.AdaptiveMaxPool2d(2), X),
    "upsample nearest": (nn.Upsample(scale_factor=2), X),
    "upsample bilinear": (nn.Upsample(scale_factor=2, mode="bilinear", align_corners=False), X),
    "embedding": (nn.Embedding(7, 3), WHOLE),
    "pixel shuffle": (nn.PixelShuffle(2), numbers(1, 4, 3, 3)),
    "reflection pad": (nn.ReflectionPad2d(2), X),
    "replication pad": (nn.ReplicationPad2d(1), X),
    "flatten": (nn.Sequential(nn.Flatten(), nn.Linear(192, 4)), X),
    "encoder": (nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), numbers(2, 5, 8)),
    "pre-norm encoder": (
        nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, norm_first=True),
        numbers(2, 5, 8),
    ),
}


class One(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, x):
        return self.function(x)


class Two(One):
    def forward(self, x, y):
        return self.function(x, y)


def check(model, *inputs):
    module = fxplug.symbolic_trace(model.eval())
    lowered = lower(module, OpenVINOBackend(), inputs, name="openvino", strict=True)
    with torch.no_grad():
        expected, found = model(*inputs), lowered.module(*inputs)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", [name for names in UNARY for name in names.split()])
def test_functions_of_one_tensor(name):
    values = next(values for names, values in UNARY.items() if name in names.split())
    check(One(getattr(torch, name)), values)


@pytest.mark.parametrize("function", ACTIVATIONS, ids=[str(number) for number in range(len(ACTIVATIONS))])
def test_activations(function):
    check(One(function), 3 * M)


@pytest.mark.parametrize("name", TWO)
def test_calls_of_two_tensors(name):
    check(Two(TWO[name]), M, numbers(4, 6, seed=1))


@pytest.mark.parametrize("name", ONE)
def test_calls_of_one_tensor(name):
    check(One(ONE[name]), M)


@pytest.mark.parametrize("name", LAYERS)
def test_layers(name):
    layer, inputs = LAYERS[name]
    for part in layer.modules():
        if isinstance(part, (nn.BatchNorm1d, nn.BatchNorm2d)):
            part.running_mean.uniform_(-1, 1)
            part.running_var.uniform_(0.5, 2)
    check(nn.Sequential(layer), inputs)


def test_whole_numbers_and_masks_go_in_and_out():
    check(Two(lambda x, mask: (x * 2 + 1, x // 2, mask & (x > 3), x.sum(), mask.sum(1))), WHOLE, MASK)


def test_calls_of_which_none_computes_stay_in_pytorch():
    module = fxplug.symbolic_trace(lambda x: x.view(-1)[2:])

    lowered = lower(module, OpenVINOBackend(), (M,), name="openvino")

    assert lowered.module is module
    assert "fewer than min_block_size=1" in lowered.fallback


def test_what_is_not_supported_splits_the_module_and_says_why():
    def program(x):
        y = torch.linalg.inv(torch.relu(x @ x.t()) + torch.eye(4))
        return torch.tanh(y) * 2

    model = One(program)
    lowered = lower(fxplug.symbolic_trace(model), OpenVINOBackend(), (M,), name="openvino")

    (left,) = lowered.report.unsupported
    assert left.reason.startswith("there is no converter for aten.linalg_inv_ex.default")
    assert left.source.endswith(f"test_openvino_operators.py:{program.__code__.co_firstlineno + 1}")
    assert [partition.fallback for partition in lowered.report.partitions] == ["", ""]
    torch.testing.assert_close(lowered.module(M), model(M), rtol=1e-3, atol=1e-4)


def test_the_batch_may_have_any_size_where_it_is_left_open():
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(144, 5)).eval()
    backend = OpenVINOBackend(dynamic_batch=True)
    lowered = lower(fxplug.symbolic_trace(model), backend, (X,), name="openvino", strict=True)

    for count in (1, 2, 7):
        images = numbers(count, 3, 8, 8, seed=count)
        torch.testing.assert_close(lowered.module(images), model(images), rtol=1e-4, atol=1e-5)


def test_a_dtype_that_openvino_does_not_compute_with_stays_in_pytorch():
    report = plan_lowering(
        fxplug.symbolic_trace(lambda x: x + 1), OpenVINOBackend(), "openvino", (M.double(),)
    )

    assert report.nodes[0].reason == "OpenVINO does not compute with float64"


def test_a_converter_of_somebody_else_comes_first():
    calls = []

    def convert(build, x):
        calls.append(x.rank)
        return build.ops.multiply(x.output, build.constant(2.0, x.dtype))

    backend = OpenVINOBackend(converters=[ConverterRecord(torch.ops.aten.relu.default, convert)])
    lowered = lower(fxplug.symbolic_trace(lambda x: x.relu()), backend, (M,), name="openvino", strict=True)

    assert set(calls) == {2}
    assert torch.equal(lowered.module(M), 2 * M)


def test_a_converter_that_raises_leaves_the_call_in_pytorch():
    def convert(build, x):
        raise ValueError("no relu today")

    backend = OpenVINOBackend(converters=[ConverterRecord(torch.ops.aten.relu.default, convert)])
    report = plan_lowering(fxplug.symbolic_trace(lambda x: x.relu()), backend, "openvino", (M,))

    assert "the converter of aten.relu.default fails" in report.nodes[0].reason
    assert report.nodes[0].reason.endswith("ValueError: no relu today")


def test_results_of_two_calls_share_no_memory():
    lowered = lower(
        fxplug.symbolic_trace(lambda x: x * 2), OpenVINOBackend(), (M,), name="openvino", strict=True
    )
    first = lowered.module(M)
    kept = first.clone()
    lowered.module(M + 1)

    assert torch.equal(first, kept)
