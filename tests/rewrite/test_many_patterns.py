"""Many patterns over programs of several styles, through fxplug and torch.fx.

Every replacement computes what its pattern does, so that the outcome must be that of eager, whatever is found.
`MORE` names the patterns of which fxplug finds more places; of all others both find the same.
"""

from __future__ import annotations

import copy
import math

import pytest
import torch
import torch.fx
from torch import nn
from torch.fx import subgraph_rewriter
from torch.nn import functional as F

from fxplug.capture import Tracer
from fxplug.execute import GraphModule
from fxplug.rewrite import replace_pattern

# ruff: noqa: PLW0108 - a pattern is a function of Python; functions of torch have no signature to trace

X = torch.linspace(-2, 2, 24, dtype=torch.float64).reshape(2, 3, 4)
Y = torch.linspace(1, 3, 24, dtype=torch.float64).reshape(2, 3, 4)


def arithmetic(x, y):
    a = x + y
    b = torch.add(a, x)
    c = b.add(y) - x * y
    d = torch.mul(c, 2) / (y + 1)
    e = d.mul(y) + 0.5 * d
    f = (e - d) ** 2
    return torch.sqrt(f + 1) - f.pow(2) + torch.pow(d, 2), 1 - e, -f + torch.neg(d)


def activations(x, y):
    a = torch.relu(x) + x.relu() + F.relu(y)
    b = F.gelu(a) * torch.sigmoid(a)
    c = b.sigmoid() * b + torch.tanh(a).tanh()
    d = F.silu(c) + F.leaky_relu(c, 0.1) + F.elu(c) + F.hardtanh(c)
    return F.softmax(d, -1) + torch.softmax(d, dim=-1), torch.exp(torch.log(d * d + 1)), torch.clamp(c, 0, 1)


def shapes(x, y):
    a = x.view(2, -1).reshape(2, 3, 4).transpose(1, 2)
    b = torch.transpose(y, 1, 2).permute(0, 2, 1)
    c = torch.cat([x, y], dim=1).unsqueeze(0).squeeze(0)
    d = torch.stack((x, y)).flatten(1)
    e = c.sum(dim=1) + torch.sum(c, 1) + c.mean(1)
    return (
        a.contiguous(),
        b.flatten(),
        d.max(),
        e[:, 1:],
        x.expand(2, 3, 4),
        torch.matmul(x, a) @ torch.bmm(x, a),
    )


def attention(x, y):
    scores = torch.matmul(x, y.transpose(-2, -1)) / math.sqrt(4)
    weights = torch.softmax(scores, -1)
    mixed = torch.matmul(weights, y)
    normed = F.layer_norm(mixed + x, (4,))
    hidden = F.gelu(F.linear(normed, torch.ones(8, 4, dtype=torch.float64)))
    return F.linear(hidden, torch.ones(4, 8, dtype=torch.float64)) + normed, weights.sum(-1)


PROGRAMS = {program.__name__: program for program in (arithmetic, activations, shapes, attention)}

PATTERNS = {
    "sum": (lambda a, b: a + b, lambda a, b: b + a + 0),
    "sum_by_function": (lambda a, b: torch.add(a, b), lambda a, b: torch.sub(a, -b)),
    "sum_by_method": (lambda a, b: a.add(b), lambda a, b: a.sub(-b)),
    "sum_of_three": (lambda a, b, c: a + b + c, lambda a, b, c: a + (b + c)),
    "difference": (lambda a, b: a - b, lambda a, b: a + (-b)),
    "one_minus": (lambda a: 1 - a, lambda a: -(a - 1)),
    "product": (lambda a, b: a * b, lambda a, b: torch.mul(b, a)),
    "product_by_function": (lambda a, b: torch.mul(a, b), lambda a, b: b * a),
    "product_by_method": (lambda a, b: a.mul(b), lambda a, b: b * a),
    "half": (lambda a: 0.5 * a, lambda a: a / 2),
    "product_and_sum": (lambda a, b, c: a * b + c, lambda a, b, c: c - a * -b),
    "quotient": (lambda a, b: a / b, lambda a, b: a * (1 / b)),
    "square": (lambda a: a**2, lambda a: a * a),
    "square_by_function": (lambda a: torch.pow(a, 2), lambda a: a * a),
    "square_by_method": (lambda a: a.pow(2), lambda a: a * a),
    "any_power": (lambda a, n: a**n, lambda a, n: torch.float_power(a, n)),
    "root": (lambda a: torch.sqrt(a), lambda a: a**0.5),
    "root_of_a_sum": (lambda a: torch.sqrt(a + 1), lambda a: torch.exp(torch.log1p(a) / 2)),
    "negative": (lambda a: -a, lambda a: a * -1),
    "negative_by_function": (lambda a: torch.neg(a), lambda a: a * -1),
    "relu": (lambda a: torch.relu(a), lambda a: torch.clamp(a, min=0)),
    "relu_by_method": (lambda a: a.relu(), lambda a: torch.clamp(a, min=0)),
    "functional_relu": (lambda a: F.relu(a), lambda a: torch.clamp(a, min=0)),
    "sum_of_relus": (
        lambda a, b: torch.relu(a) + b.relu(),
        lambda a, b: torch.clamp(a, 0) + torch.clamp(b, 0),
    ),
    "gelu": (lambda a: F.gelu(a), lambda a: a * 0.5 * (1 + torch.erf(a / math.sqrt(2)))),
    "sigmoid": (lambda a: torch.sigmoid(a), lambda a: 1 / (1 + torch.exp(-a))),
    "swish_in_two": (lambda a: a.sigmoid() * a, lambda a: F.silu(a)),
    "silu": (lambda a: F.silu(a), lambda a: a * torch.sigmoid(a)),
    "tanh": (lambda a: torch.tanh(a), lambda a: 2 * torch.sigmoid(2 * a) - 1),
    "tanh_of_tanh": (lambda a: torch.tanh(a).tanh(), lambda a: torch.tanh(torch.tanh(a) * 1)),
    "leaky_relu": (lambda a: F.leaky_relu(a, 0.1), lambda a: torch.maximum(a, a * 0.1)),
    "leaky_relu_any_slope": (lambda a, s: F.leaky_relu(a, s), lambda a, s: torch.maximum(a, a * s)),
    "elu": (lambda a: F.elu(a), lambda a: torch.where(a > 0, a, torch.expm1(a))),
    "hardtanh": (lambda a: F.hardtanh(a), lambda a: torch.clamp(a, -1, 1)),
    "softmax": (lambda a: torch.softmax(a, dim=-1), lambda a: torch.exp(F.log_softmax(a, -1))),
    "functional_softmax": (lambda a: F.softmax(a, -1), lambda a: torch.exp(F.log_softmax(a, -1))),
    "log_and_exp": (lambda a: torch.exp(torch.log(a)), lambda a: a * 1),
    "clamp": (lambda a: torch.clamp(a, 0, 1), lambda a: a.clamp(min=0).clamp(max=1)),
    "clamp_any": (lambda a, lo, hi: torch.clamp(a, lo, hi), lambda a, lo, hi: a.clamp(lo, hi) * 1),
    "transpose": (lambda a: a.transpose(1, 2), lambda a: a.permute(0, 2, 1)),
    "transpose_by_function": (lambda a: torch.transpose(a, 1, 2), lambda a: a.permute(0, 2, 1)),
    "transpose_any": (lambda a, i, j: a.transpose(i, j), lambda a, i, j: torch.swapaxes(a, i, j)),
    "permute": (lambda a: a.permute(0, 2, 1), lambda a: a.transpose(1, 2)),
    "view": (lambda a: a.view(2, -1), lambda a: a.reshape(2, 12)),
    "reshape": (lambda a: a.reshape(2, 3, 4), lambda a: torch.reshape(a, [2, 3, 4])),
    "view_and_reshape": (lambda a: a.view(2, -1).reshape(2, 3, 4), lambda a: a * 1),
    "cat": (lambda a, b: torch.cat([a, b], dim=1), lambda a, b: torch.hstack([a, b])),
    "cat_of_a_list": (lambda parts: torch.cat(parts, dim=1), lambda parts: torch.concat(parts, 1)),
    "stack": (lambda a, b: torch.stack((a, b)), lambda a, b: torch.cat([a.unsqueeze(0), b.unsqueeze(0)])),
    "squeeze_of_unsqueeze": (lambda a: a.unsqueeze(0).squeeze(0), lambda a: a * 1),
    "sum_over": (lambda a: a.sum(dim=1), lambda a: a.mean(1) * a.shape[1]),
    "sum_over_by_function": (lambda a: torch.sum(a, 1), lambda a: torch.mean(a, 1) * a.shape[1]),
    "mean": (lambda a: a.mean(1), lambda a: a.sum(1) / a.shape[1]),
    "maximum": (lambda a: a.max(), lambda a: a.flatten().sort().values[-1]),
    "flatten": (lambda a: a.flatten(), lambda a: a.reshape(-1)),
    "flatten_from": (lambda a: a.flatten(1), lambda a: a.reshape(a.shape[0], -1)),
    "slice": (lambda a: a[:, 1:], lambda a: a.narrow(1, 1, a.shape[1] - 1)),
    "expand": (lambda a: a.expand(2, 3, 4), lambda a: a * 1),
    "contiguous": (lambda a: a.contiguous(), lambda a: a.clone()),
    "matmul": (lambda a, b: torch.matmul(a, b), lambda a, b: a @ b * 1),
    "matmul_by_operator": (lambda a, b: a @ b, lambda a, b: torch.matmul(a, b) * 1),
    "bmm": (lambda a, b: torch.bmm(a, b), lambda a, b: torch.matmul(a, b) * 1),
    "two_products": (
        lambda a, b, c: torch.matmul(a, b) @ c,
        lambda a, b, c: torch.matmul(a, torch.matmul(b, c)),
    ),
    "scores": (
        lambda q, k, s: torch.matmul(q, k.transpose(-2, -1)) / s,
        lambda q, k, s: torch.matmul(q * (1 / s), k.mT),
    ),
    "attention": (
        lambda q, k, v, s: torch.matmul(torch.softmax(torch.matmul(q, k.transpose(-2, -1)) / s, -1), v),
        lambda q, k, v, s: F.scaled_dot_product_attention(q, k, v, scale=1 / s),
    ),
    "layer_norm": (
        lambda a: F.layer_norm(a, (4,)),
        lambda a: (a - a.mean(-1, True)) / torch.sqrt(a.var(-1, unbiased=False, keepdim=True) + 1e-5),
    ),
    "layer_norm_of_a_sum": (lambda a, b: F.layer_norm(a + b, (4,)), lambda a, b: F.layer_norm(b + a, [4])),
    "linear": (lambda a, w: F.linear(a, w), lambda a, w: a @ w.t()),
    "linear_and_gelu": (lambda a, w: F.gelu(F.linear(a, w)), lambda a, w: F.gelu(a @ w.t())),
    "sum_and_what_it_is_made_of": (
        lambda a, b: (torch.relu(a) + b, torch.relu(a)),
        lambda a, b: (torch.clamp(a, 0) + b, torch.clamp(a, 0)),
    ),
    "nothing_of_the_kind": (lambda a: torch.erfinv(a), lambda a: a),
    "nothing_of_that_kind_with_a_module": (nn.Sequential(nn.Softplus()), nn.Sequential(nn.Softplus())),
}

MORE = frozenset(
    [
        "any_power",
        "functional_relu",
        "functional_softmax",
        "matmul",
        "matmul_by_operator",
        "negative",
        "negative_by_function",
        "product",
        "product_and_sum",
        "product_by_function",
        "product_by_method",
        "relu",
        "relu_by_method",
        "sigmoid",
        "softmax",
        "square",
        "square_by_function",
        "square_by_method",
        "sum",
        "sum_by_function",
        "sum_by_method",
        "sum_of_relus",
        "sum_of_three",
        "sum_over",
        "sum_over_by_function",
        "tanh",
        "transpose",
        "transpose_any",
        "transpose_by_function",
    ]
)
"""Patterns of which fxplug finds more places: the program spells the call, or orders its arguments, otherwise."""


def with_fxplug(program, pattern, replacement):
    tracer = Tracer()
    module = GraphModule(nn.Module(), tracer.trace(program))
    places = replace_pattern(module, copy.deepcopy(pattern), copy.deepcopy(replacement))
    module.graph.lint()
    return len(places), module


def with_torch(program, pattern, replacement):
    module = torch.fx.symbolic_trace(program)
    return len(subgraph_rewriter.replace_pattern(module, copy.deepcopy(pattern), copy.deepcopy(replacement)))


@pytest.mark.parametrize("name", PATTERNS)
def test_the_program_computes_what_it_did_and_no_place_is_missed(name):
    pattern, replacement = PATTERNS[name]
    ours, theirs = {}, {}
    for title, program in PROGRAMS.items():
        ours[title], module = with_fxplug(program, pattern, replacement)
        theirs[title] = with_torch(program, pattern, replacement)
        torch.testing.assert_close(module(X, Y), program(X, Y), rtol=1e-9, atol=1e-9, check_stride=False)

    assert all(ours[title] >= theirs[title] for title in PROGRAMS)
    assert (sum(ours.values()) > sum(theirs.values())) is (name in MORE), (ours, theirs)


def test_there_are_enough_patterns():
    assert len(PATTERNS) >= 70
