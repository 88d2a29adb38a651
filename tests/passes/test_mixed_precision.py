"""Mixed precision: products are computed in 16 bits, everything else stays as it is."""

from __future__ import annotations

import copy
import operator
import sys
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import fxplug
from fxplug.errors import ConfigError
from fxplug.passes import BUILTIN_PASSES, MixedPrecision, PassContext, Pipeline, PipelineStep

sys.path.insert(0, str(Path(__file__).parent))
from random_modules import random_module

X = torch.linspace(-1, 1, 2 * 3 * 8).reshape(2, 3, 8)
RECORD = next(record for record in BUILTIN_PASSES if record.name == "mixed-precision")


class Model(nn.Module):
    def __init__(self, program):
        super().__init__()
        self.program = program
        self.linear = nn.Linear(8, 8)
        self.second = nn.Linear(8, 8, bias=False)
        self.conv = nn.Conv1d(3, 4, 3)
        self.up = nn.ConvTranspose1d(3, 4, 3)
        self.weight = nn.Parameter(torch.randn(8, 8))
        self.register_buffer("table", torch.randn(8, 8))

    def forward(self, x):
        return self.program(self, x)


def captured(program):
    torch.manual_seed(0)
    model = Model(program).eval()
    return model, fxplug.symbolic_trace(copy.deepcopy(model))


def converted(module, *inputs, **options):
    context = PassContext(inputs, module=module) if inputs else PassContext()
    result = MixedPrecision(**options).run(module, context)
    module.graph.lint()
    assert result.modified is (result.details["converted"] > 0)
    return result.details["converted"]


def conversions(module):
    return [node.args[1] for node in module.graph.find_nodes(op="call_method", target="to")]


LOW, HIGH = torch.bfloat16, torch.float32
CONVERTED = {
    "linear": (lambda m, x: m.linear(x) + 1, 1, [LOW, HIGH]),
    "a chain": (lambda m, x: m.second(m.linear(x)) + 1, 2, [LOW, HIGH]),
    "with something between": (lambda m, x: m.second(torch.relu(m.linear(x))), 2, [LOW, HIGH, LOW, HIGH]),
    "one input for two": (lambda m, x: m.linear(x) * m.second(x), 2, [LOW, HIGH, HIGH]),
    "called twice": (lambda m, x: m.linear(m.linear(x) + 1), 2, [LOW, HIGH, LOW, HIGH]),
    "conv": (lambda m, x: m.conv(x), 1, [LOW, HIGH]),
    "transposed": (lambda m, x: m.up(x), 1, [LOW, HIGH]),
    "functions": (lambda m, x: F.linear(x, m.weight) @ m.table, 2, [LOW, HIGH]),
    "methods": (lambda m, x: x.matmul(m.weight.t()), 1, [LOW, LOW, HIGH]),
    "attention": (lambda m, x: F.scaled_dot_product_attention(x, x + 1, x), 1, [LOW, LOW, HIGH]),
}


@pytest.mark.parametrize("name", CONVERTED)
def test_products_are_computed_in_low_precision(name):
    program, count, casts = CONVERTED[name]
    model, module = captured(program)

    assert converted(module, X) == count
    assert conversions(module) == casts
    result, expected = module(X), model(X)
    assert result.dtype is torch.float32
    assert not torch.equal(result, expected)
    torch.testing.assert_close(result, expected, rtol=0.05, atol=0.05)
    assert result.requires_grad == expected.requires_grad
    assert converted(module, X) == 0, "a second run finds nothing"


def test_values_are_those_of_the_low_precision():
    model, module = captured(lambda m, x: m.linear(x) + 1)
    converted(module)

    linear = copy.deepcopy(model.linear).to(LOW)
    assert torch.equal(module(X), linear(X.to(LOW)).float() + 1)
    assert module.linear.weight.dtype is LOW
    assert model.linear.weight.dtype is torch.float32


def written_weight(m, x):
    m.table.add_(1)
    return x @ m.table


def in_autocast(m, x):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return m.linear(x)


LEFT = {
    "other operators": lambda m, x: torch.softmax(x * m.table[0], -1),
    "other dtypes": lambda m, x: x.double() @ m.table.double(),
    "integers": lambda m, x: x.long() @ m.table.long(),
    "autocast": in_autocast,
    "random": lambda m, x: F.scaled_dot_product_attention(x, x, x, None, 0.5),
    "out=": lambda m, x: torch.matmul(x, m.table, out=torch.empty_like(x)),
}


@pytest.mark.parametrize("name", LEFT)
def test_what_is_not_certain_to_be_float32_stays(name):
    _, module = captured(LEFT[name])
    code = module.code

    assert converted(module, X) == 0
    assert module.code == code


def test_a_weight_that_is_written_is_converted_where_it_is_used():
    model, module = captured(written_weight)

    assert converted(module, X) == 1
    assert conversions(module) == [LOW, LOW, HIGH]
    for _ in range(2):
        torch.testing.assert_close(module(X), model(X), rtol=0.05, atol=0.1)
    torch.testing.assert_close(module.table, model.table)


def written_result(m, x):
    y = m.linear(x)
    first = m.second(y)
    y.add_(100)
    return first + m.second(y)


def written_input(m, x):
    y = x * 2
    first = m.second(y)
    y.view(-1).add_(100)
    return first + m.second(y)


@pytest.mark.parametrize("program", [written_result, written_input])
def test_a_value_that_is_written_is_converted_anew(program):
    model, module = captured(program)

    assert converted(module, X) >= 2
    torch.testing.assert_close(module(X), model(X), rtol=0.05, atol=0.5)


LOWEST = torch.finfo(torch.float32).min
KEPT = torch.ones(3, 3)
KEPT[0] = KEPT[1, 2] = 0  # The first row sees nothing.


class Masked(nn.Module):
    """Attention with a mask of float32's lowest number: an input, computed, a buffer, or an addend of a product."""

    def __init__(self, form, lowest=LOWEST):
        super().__init__()
        self.form = form
        self.register_buffer("mask", (1 - KEPT) * lowest)

    def forward(self, x, given):
        mask = self.mask if self.form == "buffer" else given
        if self.form == "computed":
            mask = (1 - given) * self.mask.amin()
        if self.form == "addend":
            scores = torch.baddbmm(mask.expand(2, 3, 3), x, x.transpose(1, 2))
            return torch.softmax(scores, -1)
        return F.scaled_dot_product_attention(x, x, x, attn_mask=mask)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("form", ["input", "computed", "buffer", "addend"])
def test_a_row_of_a_mask_of_the_lowest_numbers_stays_a_row_of_numbers(form, dtype):
    inputs = (X, KEPT if form == "computed" else (1 - KEPT) * LOWEST)
    model = Masked(form).eval()
    module = fxplug.symbolic_trace(model)

    assert converted(module, *inputs, dtype=dtype) == 1
    result, expected = module(*inputs), model(*inputs)
    assert not result.isnan().any()
    torch.testing.assert_close(result[:, 1:], expected[:, 1:], rtol=0.05, atol=0.05)
    if dtype == "bfloat16":  # The lowest float16 does not drown the scores of a row that sees nothing.
        torch.testing.assert_close(result, expected, rtol=0.05, atol=0.05)


@pytest.mark.parametrize("form", ["input", "buffer"])
def test_infinite_numbers_of_a_mask_stay_infinite(form):
    mask = torch.where(KEPT == 0, -torch.inf, 0.0)
    model = Masked(form)
    model.mask = mask
    module = fxplug.symbolic_trace(model.eval())
    converted(module, X, mask)
    torch.testing.assert_close(module(X, mask), model(X, mask), rtol=0.05, atol=0.05, equal_nan=True)


def test_one_tensor_is_added_and_multiplied():
    model, module = captured(lambda m, x: x @ m.table + torch.addmm(m.table, m.table, m.weight)[:3])
    with torch.no_grad():
        for holder in (model, module):
            holder.table.mul_(0.1)[0, 0] = LOWEST
    assert converted(module, X) == 2
    factor, addend = sorted((name for name, _ in module.named_buffers()), key=len)
    assert module.get_buffer(factor)[0, 0] == -torch.inf
    assert module.get_buffer(addend)[0, 0] == torch.finfo(LOW).min


def test_functions_need_example_inputs():
    _, module = captured(lambda m, x: F.linear(x, m.weight) + m.linear(x))

    assert converted(module) == 1


@pytest.mark.parametrize("spoil", [
    lambda module: module.linear.register_forward_hook(lambda *_: None),
    lambda module: module.linear.double(),
], ids=["hook", "dtype"])  # fmt: skip
def test_modules_with_hooks_or_other_dtypes_stay(spoil):
    _, module = captured(lambda m, x: m.linear(x))
    spoil(module)

    assert converted(module) == 0


def test_training_mode_is_refused():
    _, module = captured(lambda m, x: m.linear(x))
    result = MixedPrecision().run(module.train(), PassContext())

    assert not result.modified
    assert result.summary == "nothing to convert; 1 left alone in training mode (call eval() first)"


def test_the_kinds_and_the_dtype_are_options():
    program = lambda m, x: m.linear(x) + m.conv(x).sum()  # noqa: E731
    _, module = captured(program)

    assert converted(module, operators=("conv",), dtype="float16") == 1
    assert (module.conv.weight.dtype, module.linear.weight.dtype) == (torch.float16, torch.float32)


@pytest.mark.parametrize("options", [{"operators": ("pool",)}, {"dtype": "float8"}])
def test_what_is_not_known_is_refused(options):
    with pytest.raises(
        ConfigError, match="the dtypes are bfloat16 and float16, the kinds of operators conv, linear"
    ):
        MixedPrecision(**options)


def test_weights_that_others_read_are_kept():
    model, module = captured(lambda m, x: m.linear(x) + m.linear.weight.sum() + m.weight.sum() + x @ m.weight)

    assert converted(module, X) == 2
    assert {name: value.dtype for name, value in module.named_parameters()} == {
        "linear.weight": HIGH,
        "linear.bias": HIGH,
        "linear_bfloat16.weight": LOW,
        "linear_bfloat16.bias": LOW,
        "weight": HIGH,
        "weight_bfloat16": LOW,
    }
    torch.testing.assert_close(module(X), model(X), rtol=0.05, atol=0.05)


def test_new_weights_are_converted_again():
    model, module = captured(lambda m, x: m.linear(x) + x @ m.weight)
    Pipeline("trial", [PipelineStep("mixed-precision", RECORD)]).run(module, (X,))
    torch.manual_seed(9)
    other = Model(model.program).eval()
    fxplug.load_original_state_dict(module, other.state_dict(), strict=False)

    torch.testing.assert_close(module(X), other(X), rtol=0.05, atol=0.05)
    assert {*module.state_dict()} == {"linear.weight", "linear.bias", "weight_bfloat16"}


def test_a_rollback_leaves_no_trace():
    class Fails(fxplug.Pass):
        def run(self, module, context):
            assert MixedPrecision().run(module, context).modified
            raise ValueError("on purpose")

    _, module = captured(lambda m, x: m.linear(x) + x @ m.weight)
    code, linear, state = module.code, module.linear, {**module.state_dict()}
    failing = PipelineStep("fails", fxplug.PassRecord("fails", Fails, "Fails."))
    Pipeline("trial", [failing], on_error="rollback").run(module, (X,))

    assert module.code == code
    assert module.linear is linear
    assert {name: value.dtype for name, value in module.state_dict().items()} == dict.fromkeys(state, HIGH)


def test_new_nodes_keep_origins():
    _, module = captured(lambda m, x: m.linear(x) + 1)
    line = module.graph.find_nodes(op="call_module")[0].origins[0].source().line
    Pipeline("trial", [PipelineStep("mixed-precision", RECORD)]).run(module, (X,))

    assert {node.origins[0].source().line for node in module.graph.find_nodes(op="call_method")} == {line}


@pytest.mark.parametrize("seed", range(20))
def test_random_modules_compute_nearly_the_same(seed):
    module = random_module(seed).eval()
    with module.graph.inserting_before(module.graph.output_node()):
        x = module.graph.find_nodes(op="placeholder")[0]
        product = module.graph.call_function(operator.matmul, (x, module.graph.call_method("t", (x,))))
    module.graph.output_node().args = ((module.graph.output_node().args[0], product),)
    expected = copy.deepcopy(module)
    given = torch.linspace(-1, 1, 6).reshape(2, 3)

    assert converted(module, given) >= 1
    assert converted(module, given) == 0
    torch.testing.assert_close(module(given), expected(given), rtol=0.05, atol=0.05)


def test_it_keeps_within_its_tolerance():
    _, module = captured(lambda m, x: m.second(torch.relu(m.linear(x))))
    pipeline = Pipeline("trial", [PipelineStep("mixed-precision", RECORD)], verify="numeric")
    report = pipeline.run(module, (X,))[0]

    assert report.result.summary == "converted 2 calls"


def test_it_is_offered_by_name():
    model = Model(lambda m, x: m.linear(x)).eval()
    result = fxplug.optimize(model, X, passes=["mixed-precision"], measure=False, rtol=0.05, atol=0.05)

    assert result.passes[0].result.summary == "converted 1 call"
