"""What a program unpacks into names has as many parts as there are names, or the captured program says so."""

from __future__ import annotations

import copy
import pickle
import tempfile
from pathlib import Path

import pytest
import torch
import torch.fx
from torch import nn

import fxplug
from fxplug.errors import GuardError
from fxplug.semantics.checks import check_length


class Unpacking(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 3)

    def forward(self, x):
        rows, columns = x.shape
        first, second = self.layer(x)
        return (first + second).reshape(1, columns) * rows


def of_size(x):
    first, *others = x.size()
    return x.reshape(first, -1), others


def nested(parts):
    x, (h, c) = parts
    return x + h + c


def of_split(x):
    first, _ = x.split(2)
    return first


def of_unbind(x):
    first, second = x.unbind()
    return first - second


@pytest.mark.parametrize(
    ("program", "fitting", "others"),
    [
        (Unpacking(), torch.rand(2, 3), [torch.rand(3, 3), torch.rand(1, 3), torch.rand(2, 3, 3)]),
        (nested, (1, (2, 3)), [(1, (2, 3, 4)), (1, (2, 3), 4)]),
        (of_split, torch.rand(4), [torch.rand(5), torch.rand(2)]),
        (of_unbind, torch.rand(2, 2), [torch.rand(3, 2), torch.rand(1, 2)]),
    ],
)
def test_other_numbers_of_parts_are_errors_as_in_eager(program, fitting, others):
    captured = fxplug.symbolic_trace(program)

    torch.testing.assert_close(captured(fitting), program(fitting), rtol=0, atol=0)
    for other in others:
        with pytest.raises(ValueError, match="unpack"):
            program(other)
        with pytest.raises(GuardError, match=r"values to unpack at .* and now there are \d"):
            captured(other)


def test_what_a_starred_name_takes_is_unknown():
    with pytest.raises(fxplug.TraceError) as caught:
        fxplug.symbolic_trace(of_size)
    assert caught.value.code == "FXP-T005"


def test_the_error_names_the_line():
    captured = fxplug.symbolic_trace(of_unbind)

    with pytest.raises(GuardError) as caught:
        captured(torch.rand(3))
    assert "captured for 2 values to unpack at " in caught.value.message
    assert "('first, second = x.unbind()'), and now there are 3." in caught.value.message
    assert [guard.text.startswith("2 values to unpack") for guard in captured.guards] == [True]


def of_results(x):
    a, b = x.chunk(2)
    c, d = torch.split(x, [1, 3])
    e, f = x.topk(2)
    g, h = x.max(dim=0)
    i, j = torch.var_mean(x)
    k, m = torch.broadcast_tensors(x, x)
    n, o = nn.functional.max_pool1d(x[None], 2, return_indices=True)
    return a, b, c, d, e, f, g, h, i, j, k, m, n, o


class OfLayers(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm, self.gru, self.pool = nn.LSTM(4, 4), nn.GRU(4, 4), nn.MaxPool1d(2, return_indices=True)

    def forward(self, x):
        y, (h, c) = self.lstm(x)
        z, state = self.gru(y)
        values, places = self.pool(z)
        return h, c, state, values, places


@pytest.mark.parametrize(("program", "x"), [(of_results, torch.rand(4)), (OfLayers(), torch.rand(2, 4))])
def test_what_has_a_certain_number_of_parts_is_not_checked(program, x):
    captured = fxplug.symbolic_trace(program)

    assert not captured.graph.find_nodes(op="call_function", target=check_length)
    for ours, theirs in zip(captured(x), program(x), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=0)


def stored(captured):
    with tempfile.TemporaryDirectory() as folder:
        fxplug.save(captured, Path(folder) / "module.fxplug")
        return fxplug.load(Path(folder) / "module.fxplug")


@pytest.mark.filterwarnings("ignore:`torch.jit.*` is deprecated:DeprecationWarning")
@pytest.mark.parametrize(
    "copied",
    [
        copy.deepcopy,
        lambda captured: pickle.loads(pickle.dumps(captured)),
        stored,
        fxplug.symbolic_trace,
        torch.fx.symbolic_trace,
        lambda captured: fxplug.trace(captured, (torch.rand(2, 3),)),
        torch.jit.script,
    ],
    ids=["deepcopy", "pickle", "save", "symbolic_trace", "torch.fx", "trace", "script"],
)
def test_copies_check_too(copied):
    program = Unpacking()
    other = copied(fxplug.symbolic_trace(program))

    x = torch.rand(2, 3)
    torch.testing.assert_close(other(x), program(x), rtol=0, atol=0)
    with pytest.raises(Exception, match=r"values to unpack|x\) == 2"):
        other(torch.rand(3, 3))


def test_proxies_made_by_hand_have_as_many_parts_as_there_are_names():
    graph = fxplug.Graph()
    first, second = fxplug.Proxy(graph.placeholder("x"))

    graph.output((first + second).node)
    assert fxplug.GraphModule(nn.Module(), graph)(torch.tensor([1.0, 2.0, 4.0])) == 3


def attention(qkv):
    q, k, v = qkv.unbind(0)
    return torch.softmax(q @ k.transpose(-2, -1), -1) @ v


def test_patterns_match_where_parts_are_counted():
    captured = fxplug.symbolic_trace(lambda x: attention(x * 2).relu())

    def replacement(qkv):
        return nn.functional.scaled_dot_product_attention(qkv[0], qkv[1], qkv[2], scale=1.0)

    matches = fxplug.replace_pattern(captured, attention, replacement)

    assert len(matches) == 1
    x = torch.rand(3, 1, 4, 2)
    torch.testing.assert_close(captured(x), attention(x * 2).relu())
    with pytest.raises(GuardError, match="3 values to unpack"):
        captured(torch.rand(4, 1, 4, 2))


def written_before(x):
    x.add_(1)
    first, second = x
    return first + second


def written_behind(x):
    _first, _second = x
    return x.add_(1)


@pytest.mark.parametrize("program", [written_before, written_behind])
def test_a_program_that_has_written_already_is_not_run_once_more(program):
    captured = fxplug.trace(program, (torch.zeros(2, 3),), mode="symbolic", on_guard_failure="eager")
    actual, expected = torch.zeros(3, 3), torch.zeros(3, 3)

    with pytest.raises(ValueError, match="too many values"):
        program(expected)
    with pytest.raises(fxplug.GuardError if program is written_before else ValueError):
        captured(actual)

    assert torch.equal(actual, expected)
