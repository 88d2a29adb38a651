"""A decomposition after which values have other sizes or another dtype is refused, and not passed on."""

from __future__ import annotations

import re

import pytest
import torch
from torch import nn

import fxplug
from fxplug.errors import DecompositionError
from fxplug.plugins import PluginManager

NONE = PluginManager(candidates=[], environ={})
PAIR = torch.randn(3, 4)
aten = torch.ops.aten


def decompose(program, *inputs, to="aten", **options):
    module = fxplug.trace(program, inputs, manager=NONE)
    return fxplug.decompose(module, inputs, to=to, manager=NONE, **options)


def rectified(x):
    return torch.relu(x)


def test_another_shape_is_refused():
    table = {aten.relu.default: lambda x: aten.clamp_min.default(x, 0).unsqueeze(0)}

    with pytest.raises(DecompositionError) as caught:
        decompose(rectified, PAIR, table=table)

    text = re.sub(r" \(.*?'\)", "", str(caught.value))
    assert text == (
        "Cannot decompose node 'relu', a call of torch.relu, to ATen: what it returns would be float32[1, 3, 4], and "
        "is float32[3, 4] in the program. A decomposition is wrong: one of the table, or one that PyTorch "
        f"{torch.__version__} has of its own. Pass another table, use another version of PyTorch, or take the call out "
        "of the program and decompose the parts beside it. [FXP-R002]"
    )
    assert "test_wrong_decompositions.py" in str(caught.value)


def test_another_dtype_is_refused():
    table = {aten.relu.default: lambda x: aten.clamp_min.default(x, 0).double()}

    with pytest.raises(DecompositionError, match=r"would be float64\[3, 4\], and is float32\[3, 4\]"):
        decompose(rectified, PAIR, table=table)


def test_open_sizes_are_those_of_the_examples():
    right = {aten.relu.default: lambda x: aten.clamp_min.default(x, 0)}
    wrong = {aten.relu.default: lambda x: aten.clamp_min.default(x, 0).repeat(2, 1)}

    assert torch.equal(decompose(rectified, PAIR, table=right, dynamic={0: {0: "n"}})(PAIR), PAIR.relu())
    with pytest.raises(DecompositionError, match=r"would be float32\[6, 4\], and is float32\[3, 4\]"):
        decompose(rectified, PAIR, table=wrong, dynamic={0: {0: "n"}})


def test_a_value_inside_is_looked_at_too():
    def program(x):
        return torch.relu(x).softmax(0).sum()

    table = {aten.relu.default: lambda x: aten.clamp_min.default(x, 0).unsqueeze(0)}
    with pytest.raises(DecompositionError, match="Cannot decompose node 'relu'"):
        decompose(program, PAIR, table=table)


def test_what_is_written_in_place_is_looked_at():
    def program(x):
        y = x + 1
        y.relu_()
        return y.sum()

    table = {aten.relu.default: lambda x: aten.clamp_min.default(x, 0).unsqueeze(0)}
    with pytest.raises(DecompositionError):
        decompose(program, PAIR, table=table)


def largest(x):
    return torch.max(x, 1)[0] + 1


def test_an_element_of_several_is_named_as_one():
    def wrong(x, dim, keepdim=False):
        return aten.amax.default(x, [dim], True), aten.argmax.default(x, dim, keepdim)

    with pytest.raises(DecompositionError) as caught:
        decompose(largest, PAIR, table={aten.max.dim: wrong})
    assert "Cannot decompose node 'max_1', a call of torch.max, to ATen" in str(caught.value)
    assert "element [0] of what it returns would be float32[3, 1], and is float32[3] in" in str(caught.value)


def test_an_element_that_nothing_reads_may_be_another():
    def other(x, dim, keepdim=False):
        return aten.amax.default(x, [dim], keepdim), x

    assert torch.equal(decompose(largest, PAIR, table={aten.max.dim: other})(PAIR), PAIR.amax(1) + 1)


def test_all_elements_are_looked_at_where_they_are_returned():
    def other(x, dim, keepdim=False):
        return aten.amax.default(x, [dim], keepdim), x

    with pytest.raises(
        DecompositionError, match=r"element \[1\] of what .* float32\[3, 4\], and is int64\[3\]"
    ):
        decompose(lambda x: torch.max(x, 1), PAIR, table={aten.max.dim: other})


class Last(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.LSTM(4, 5, num_layers=2)

    def forward(self, x):
        return self.layer(x)[1][0].mean()


@pytest.fixture
def wrong_lstm(monkeypatch):
    """PyTorch has a decomposition of LSTMs of its own; some versions return the states with another dimension."""
    operator = torch.ops.aten.lstm.input
    former = dict(operator.py_kernels)

    def changed(kernel):
        def wrong(*args):
            out, *states = kernel(*args)
            return out, *(state.reshape(2, 1, 2, 5) for state in states)

        return wrong

    for key, kernel in former.items():
        monkeypatch.setitem(operator.py_kernels, key, changed(kernel))
    operator._dispatch_cache.clear()
    yield
    monkeypatch.undo()
    operator._dispatch_cache.clear()


@pytest.mark.parametrize("to", ["aten", "core-aten"])
def test_decompositions_of_torch_are_looked_at(wrong_lstm, to):
    with pytest.raises(DecompositionError) as caught:
        decompose(Last().eval(), torch.randn(3, 2, 4), to=to)
    assert "element [1][0] of what it returns would be float32[2, 1, 2, 5], and is float32[2, 2, 5]" in str(
        caught.value
    )
    assert caught.value.code == "FXP-R002"


def test_the_program_is_not_changed_by_being_looked_at():
    layer = nn.BatchNorm1d(4)
    before = {name: value.clone() for name, value in layer.state_dict().items()}
    state = torch.get_rng_state()

    decompose(nn.Sequential(layer, nn.Dropout()), PAIR)

    assert torch.equal(torch.get_rng_state(), state)
    for name, value in layer.state_dict().items():
        assert torch.equal(value, before[name])
