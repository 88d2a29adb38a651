"""Formulas of single calls give what one counts by hand."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import fxplug
from fxplug.plugins import PluginManager

NONE = PluginManager(candidates=[], environ={})
ROWS = torch.tensor([1, 5, 5])
TABLE = torch.randn(1000, 4)


def costs(program, *inputs):
    def call(*args):
        return program(*args)

    traced = program if isinstance(program, nn.Module) else call
    return fxplug.cost(traced, inputs, manager=NONE)


def last(program, *inputs):
    """Return the cost of the last call of a program."""
    return costs(program, *inputs).nodes[-1]


def numbered(*programs):
    return [pytest.param(program, id=str(place)) for place, program in enumerate(programs)]


class Takes(nn.Module):
    """Makes a program of a call of a module with several arguments or results."""

    def __init__(self, module):
        super().__init__()
        self.module = module

    def forward(self, *args):
        result = self.module(*args)
        return result[0] if isinstance(result, tuple) else result


# -- lookups and views: bytes


@pytest.mark.parametrize(
    "program",
    numbered(
        lambda table, rows: table[rows],
        lambda table, rows: table[rows, :],
        lambda table, rows: table.index_select(0, rows),
        lambda table, rows: torch.index_select(table, dim=0, index=rows),
        lambda table, rows: F.embedding(rows, table),
        lambda table, rows: F.embedding(input=rows, weight=table),
        torch.embedding,
        torch.ops.aten.embedding.default,
        lambda table, rows: torch.ops.aten.index.Tensor(table, [rows]),
    ),
)
def test_a_lookup_of_rows_reads_these_rows_and_the_indices(program):
    node = last(program, TABLE, ROWS)

    assert (node.multiply_adds, node.bytes_read, node.bytes_written) == (0, 3 * 4 * 4 + 3 * 8, 3 * 4 * 4)


def test_ten_rows_of_a_large_table():
    table = torch.empty(100_000, 64, device="meta")
    rows = torch.empty(10, dtype=torch.int64, device="meta")

    assert last(lambda t, i: t.index_select(0, i), table, rows).bytes == 2 * 10 * 64 * 4 + 10 * 8


def test_lookups_of_elements():
    index = torch.zeros(2, 4, dtype=torch.int64)
    assert last(lambda x, i: x.gather(0, i), TABLE, index).bytes == 2 * 8 * 4 + 8 * 8
    assert last(lambda x, i: torch.gather(x, dim=0, index=i), TABLE, index).bytes == 2 * 8 * 4 + 8 * 8
    assert last(torch.take, TABLE, index).bytes == 2 * 8 * 4 + 8 * 8
    assert last(lambda x: x[[0, 2]], TABLE).bytes == 2 * 2 * 4 * 4
    assert last(lambda x: x[:, [0, 2]], TABLE).bytes == 2 * 1000 * 2 * 4
    assert last(lambda x: x[True], TABLE).bytes == 2 * 4000 * 4
    mask = torch.arange(1000) < 7
    assert last(lambda x, m: x[m], TABLE, mask).bytes == 2 * 7 * 4 * 4 + 1000


@pytest.mark.parametrize("index", [3, slice(2, 5), (slice(None), 1), (None, ..., 0)], ids=str)
def test_plain_indices_are_views(index):
    assert last(lambda x: x[index], TABLE).bytes == 0


def test_a_single_number_in_a_tensor_is_a_plain_index():
    assert last(lambda x, i: x[i], TABLE, torch.tensor(3)).bytes == 0


def test_tables_that_rescale_their_rows_are_not_known():
    (node,) = costs(nn.Sequential(nn.Embedding(10, 4, max_norm=1.0)), ROWS).unknown
    assert node.target == "Embedding"
    assert costs(lambda i, t: F.embedding(i, t, max_norm=1.0), ROWS, TABLE.clone()).unknown


@pytest.mark.parametrize(
    "program",
    numbered(
        lambda x: x.t().reshape(12),
        lambda x: x.t().flatten(),
        lambda x: torch.reshape(x.t(), (2, 6)),
        lambda x: torch.flatten(x.t()),
        lambda x: x.t().contiguous(),
        lambda x: x.double(),
        lambda x: x.to(torch.float64),
        lambda x: x.to("cpu", torch.float64),
        lambda x: x.to(torch.float32, copy=True),
    ),
)
def test_what_has_to_copy_is_counted(program):
    node = last(program, torch.randn(3, 4))

    assert (node.multiply_adds, node.bytes_read) == (0, 12 * 4)
    assert node.bytes_written in {12 * 4, 12 * 8}


def test_a_flatten_layer_that_has_to_copy_is_counted():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.flatten = nn.Flatten()

        def forward(self, x):
            return self.flatten(x.permute(0, 2, 1))

    assert last(Model(), torch.randn(2, 3, 4)).bytes == 2 * 24 * 4


@pytest.mark.parametrize(
    "program",
    numbered(
        lambda x: x.reshape(12),
        lambda x: x.t().reshape(4, 3, 1),
        lambda x: x.flatten(),
        lambda x: x.t().t().contiguous(),
        lambda x: x.float(),
        lambda x: x.to(torch.float32),
        lambda x: x.to(dtype=torch.float32),
        lambda x: x.type_as(x),
        lambda x: x.unflatten(1, (2, 2)),
        lambda x: x.swapdims(0, 1),
        lambda x: x.diagonal(),
        lambda x: torch.ops.aten.slice.Tensor(x, 0, 0, 2),
        lambda x: x.expand_as(x),
        lambda x: F.dropout(x, training=False),
    ),
)
def test_what_comes_back_as_it_is_moves_nothing(program):
    node = last(program, torch.randn(3, 4))

    assert (node.multiply_adds, node.bytes) == (0, 0)


# -- element by element


@pytest.mark.parametrize(
    ("program", "shape", "expected"),
    [
        (nn.AvgPool2d(3, stride=1), (1, 3, 8, 8), 3 * 6 * 6 * 9),
        (nn.AvgPool1d(2), (1, 3, 8), 3 * 4 * 2),
        (nn.AvgPool3d((1, 2, 3)), (1, 2, 3, 4, 6), 2 * 3 * 2 * 2 * 6),
        (lambda x: F.avg_pool2d(x, 3, 1), (1, 3, 8, 8), 972),
        (lambda x: F.avg_pool2d(x, kernel_size=(3, 1), stride=1), (1, 3, 8, 8), 3 * 6 * 8 * 3),
        (nn.AdaptiveAvgPool2d(1), (1, 3, 8, 8), 3 * 64),
        # Windows of 7 elements for a result of 3: [0, 3), [2, 5), [4, 7).
        (nn.AdaptiveAvgPool1d(3), (1, 2, 7), 2 * 9),
        (lambda x: F.adaptive_avg_pool2d(x, (3, 1)), (1, 2, 7, 5), 2 * 9 * 5),
        (nn.PReLU(), (3, 4), 12),
        (nn.LeakyReLU(), (3, 4), 12),
        (lambda x: F.leaky_relu(x, 0.2), (3, 4), 12),
        (lambda x: F.prelu(x, torch.ones(1)), (3, 4), 12),
        (nn.Upsample(scale_factor=2, mode="bilinear"), (1, 3, 4, 4), 3 * 64 * 4),
        (nn.Upsample(scale_factor=2), (1, 3, 4, 4), 0),
        (nn.UpsamplingBilinear2d(scale_factor=2), (1, 3, 4, 4), 3 * 64 * 4),
        (lambda x: F.interpolate(x, 6, mode="linear"), (1, 3, 4), 18 * 2),
        (lambda x: F.interpolate(x, (8, 8), mode="bicubic"), (1, 3, 4, 4), 3 * 64 * 16),
        (lambda x: F.interpolate(x, 3, mode="area"), (1, 2, 7), 2 * 9),
        (lambda x: torch.index_add(x, 0, ROWS, torch.ones(3, 4)), (6, 4), 12),
        (lambda x: x.scatter_add(0, torch.zeros(2, 4, dtype=torch.int64), x), (6, 4), 8),
        (lambda x: x.cumsum(0).cumsum_(0), (6, 4), 48),
        (nn.Dropout(), (3, 4), 12),
        (nn.Dropout().eval(), (3, 4), 0),
        (F.dropout, (3, 4), 12),
        (lambda x: torch.dropout(x, 0.5, train=False), (3, 4), 0),
        (nn.BatchNorm1d(4), (3, 4), 36),
        (nn.BatchNorm1d(4, track_running_stats=False).eval(), (3, 4), 36),
    ],
)
def test_element_by_element(program, shape, expected):
    program = nn.Sequential(program) if isinstance(program, nn.Module) else program
    table = costs(program, torch.randn(shape))

    assert table.unknown == ()
    assert table.multiply_adds == expected


def test_adding_to_some_rows_in_place_touches_these_rows():
    node = last(lambda x, i, s: x.index_add_(0, i, s), TABLE.clone(), ROWS, torch.ones(3, 4))

    assert (node.multiply_adds, node.bytes_read, node.bytes_written) == (12, 2 * 48 + 24, 48)


@pytest.mark.parametrize(
    "program",
    numbered(
        lambda x: F.interpolate(x, scale_factor=0.5, mode="bilinear", antialias=True),
        lambda x: x.scatter(0, torch.zeros(1, 1, 1, 1, dtype=torch.int64), 2.0, reduce="add"),
        lambda x: x.index_put((torch.zeros(1, dtype=torch.int64),), x[:1], accumulate=True),
    ),
)
def test_what_depends_on_more_is_not_known(program):
    assert len(costs(program, torch.randn(1, 3, 8, 8)).unknown) == 1


# -- products


@pytest.mark.parametrize(
    ("equation", "shapes", "expected"),
    [
        ("bij,bjk->bik", [(2, 3, 4), (2, 4, 5)], 2 * 3 * 4 * 5),
        ("ij,jk", [(3, 4), (4, 5)], 60),
        ("...ij, ...jk -> ...ik", [(2, 7, 3, 4), (7, 4, 5)], 2 * 7 * 60),
        ("i,j->ij", [(3,), (4,)], 12),
        ("ij,ij->", [(3, 4), (3, 4)], 12),
        # What stands on one side alone is summed up first: 24 additions, then 12 multiply-adds.
        ("ijk,ij->i", [(3, 4, 2), (3, 4)], 24 + 12),
        ("ij->ji", [(3, 4)], 0),
        ("ij->j", [(3, 4)], 12),
        ("ii->i", [(3, 3)], 0),
        ("ii", [(3, 3)], 3),
    ],
)
def test_einsum_counts_what_its_equation_says(equation, shapes, expected):
    tensors = [torch.randn(shape) for shape in shapes]
    table = costs(lambda *args: torch.einsum(equation, *args), *tensors)

    assert table.unknown == ()
    assert table.multiply_adds == expected
    assert costs(lambda *args: torch.einsum(equation, list(args)), *tensors).multiply_adds == expected


def test_einsum_of_three_operands_is_not_known():
    square = torch.randn(3, 3)

    assert [
        node.target for node in costs(lambda x: torch.einsum("ij,jk,kl->il", x, x, x), square).unknown
    ] == ["einsum"]


@pytest.mark.parametrize(
    ("program", "shapes", "expected"),
    [
        (torch.tensordot, [(2, 3, 4), (3, 4, 5)], 2 * 5 * 12),
        (lambda a, b: torch.tensordot(a, b, dims=0), [(2,), (3,)], 6),
        (lambda a, b: torch.tensordot(a, b, dims=([2, 0], [0, 1])), [(2, 3, 4), (4, 2, 5)], 3 * 5 * 8),
        (torch.inner, [(2, 4), (3, 4)], 24),
        (torch.inner, [(2, 4), ()], 8),
        (torch.addbmm, [(3, 5), (2, 3, 4), (2, 4, 5)], 2 * 60),
        (lambda m, v, x: torch.addmv(x, mat=m, vec=v), [(3, 4), (4,), (3,)], 12),
        (lambda a, b, x: torch.addmm(x, mat1=a, mat2=b), [(3, 4), (4, 5), (3, 5)], 60),
        (lambda a, b, x: torch.baddbmm(x, batch1=a, batch2=b), [(2, 3, 4), (2, 4, 5), (5,)], 120),
        (F.bilinear, [(2, 3), (2, 4), (5, 3, 4)], 2 * 5 * (12 + 4)),
    ],
)
def test_products(program, shapes, expected):
    table = costs(program, *[torch.randn(shape) for shape in shapes])

    assert table.unknown == ()
    assert table.multiply_adds == expected


@pytest.mark.parametrize(("transposed", "expected"), [(False, 6 * 3 * 3 * 2 * 9), (True, 4 * 5 * 5 * 2 * 9)])
def test_the_operator_for_all_convolutions(transposed, expected):
    weight = torch.randn((4, 2, 3, 3) if transposed else (6, 2, 3, 3))

    def program(x, w):
        return torch.ops.aten.convolution.default(
            x, w, None, [1, 1], [0, 0], [1, 1], transposed, [0, 0], 1 if transposed else 2
        )

    assert costs(program, torch.randn(1, 4, 5, 5), weight).multiply_adds == expected


# -- recurrent layers


def lstm_step(x, h, c, w, u):
    i, f, g, o = (F.linear(x, w) + F.linear(h, u)).chunk(4, -1)
    c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
    return torch.sigmoid(o) * torch.tanh(c)


def gru_step(x, h, c, w, u):
    xr, xz, xn = F.linear(x, w).chunk(3, -1)
    hr, hz, hn = F.linear(h, u).chunk(3, -1)
    r, z = torch.sigmoid(xr + hr), torch.sigmoid(xz + hz)
    n = torch.tanh(xn + r * hn)
    return n + z * (h - n)


def rnn_step(x, h, c, w, u):
    return torch.tanh(F.linear(x, w) + F.linear(h, u))


@pytest.mark.parametrize(
    ("cell", "layer", "step", "gates"),
    [
        (nn.LSTMCell, nn.LSTM, lstm_step, 4),
        (nn.GRUCell, nn.GRU, gru_step, 3),
        (nn.RNNCell, nn.RNN, rnn_step, 1),
    ],
)
def test_recurrent_layers_cost_what_their_steps_cost(cell, layer, step, gates):
    x, h = torch.randn(2, 5), torch.randn(2, 3)
    once = costs(step, x, h, h, torch.randn(gates * 3, 5), torch.randn(gates * 3, 3)).multiply_adds
    later = costs(
        step, torch.randn(2, 6), h, h, torch.randn(gates * 3, 6), torch.randn(gates * 3, 3)
    ).multiply_adds

    assert costs(Takes(cell(5, 3)), x).multiply_adds == once
    assert costs(Takes(layer(5, 3)), torch.randn(7, 2, 5)).multiply_adds == 7 * once
    deep = layer(5, 3, num_layers=2, bidirectional=True, batch_first=True, dropout=0.5)
    assert costs(Takes(deep.eval()), torch.randn(2, 7, 5)).multiply_adds == 7 * 2 * (once + later)
    dropped = 7 * 2 * 2 * 3
    assert costs(Takes(deep.train()), torch.randn(2, 7, 5)).multiply_adds == 7 * 2 * (once + later) + dropped


@pytest.mark.filterwarnings("ignore:LSTM with projections is not supported with oneDNN")
def test_recurrent_layers_counted_by_hand():
    x = torch.randn(7, 2, 5)

    assert costs(Takes(nn.LSTM(5, 3)), x).multiply_adds == 14 * (4 * (5 * 3 + 3 * 3) + 13 * 3)
    assert costs(Takes(nn.GRU(5, 3)), x).multiply_adds == 14 * (3 * (5 * 3 + 3 * 3) + 10 * 3)
    assert costs(Takes(nn.RNN(5, 3, nonlinearity="relu")), x).multiply_adds == 14 * (5 * 3 + 3 * 3 + 3)
    projected = 14 * (4 * (5 * 3 + 2 * 3) + 13 * 3 + 3 * 2)
    assert costs(Takes(nn.LSTM(5, 3, proj_size=2)), x).multiply_adds == projected


# -- attention


def test_attention_with_keys_of_its_own():
    module = nn.MultiheadAttention(8, 2, add_bias_kv=True, add_zero_attn=True, batch_first=True)
    query, key = torch.randn(2, 3, 8), torch.randn(2, 5, 8)

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.attention = module

        def forward(self, q, k):
            return self.attention(q, k, k)[0]

    projections = 2 * 8 * 8 * (2 * 3 + 2 * 5)
    assert costs(Model(), query, key).multiply_adds == projections + 2 * 2 * 3 * (5 + 2) * 8

    def function(q, k):
        return F.multi_head_attention_forward(
            q, k, k, 8, 2, module.in_proj_weight, module.in_proj_bias, module.bias_k, module.bias_v, True, 0.0,
            module.out_proj.weight, module.out_proj.bias,
        )[0]  # fmt: skip

    assert (
        costs(function, query.transpose(0, 1), key.transpose(0, 1)).multiply_adds == 2048 + 2 * 2 * 3 * 7 * 8
    )


# -- what stays unknown


def test_a_layer_whose_weight_is_computed_is_named():
    module = nn.utils.parametrizations.weight_norm(nn.Conv2d(3, 8, 3))
    table = costs(nn.Sequential(module), torch.randn(1, 3, 8, 8))

    assert [node.target for node in table.unknown] == ["ParametrizedConv2d"]


@pytest.mark.filterwarnings("ignore:.*weight_norm.* is deprecated:FutureWarning")
def test_a_layer_whose_weight_a_hook_computes_counts_without_the_hook():
    module = nn.utils.weight_norm(nn.Conv2d(3, 8, 3))
    table = costs(nn.Sequential(module), torch.randn(1, 3, 8, 8))

    assert table.multiply_adds == 8 * 6 * 6 * 27
