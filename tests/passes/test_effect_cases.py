"""What acts is neither lost, nor merged, nor moved: every built-in pass on programs that write, draw, log, and alias.

Each case is run as it was captured and, transformed, twice in a row with the same seed. Compared are outputs and which
of them share memory, inputs after the call, the module's state, the log, the need of gradients and gradients, and the
random numbers that come next.
"""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import fxplug
from fxplug.passes import (
    BUILTIN_PASSES,
    BUILTIN_PIPELINES,
    Pass,
    PassContext,
    PassResult,
    Pipeline,
    PipelineStep,
)

LOG = []


@fxplug.wrap
def note(value):
    LOG.append(tuple(value.shape))
    return value


@fxplug.wrap
def note_quietly(value):
    LOG.append("seen")


def hooked(module, arguments, result):
    LOG.append("hook")


class Model(nn.Module):
    """What the programs use."""

    def __init__(self, program, *, training):
        super().__init__()
        torch.manual_seed(3)
        self.program = program
        self.conv = nn.Conv2d(4, 4, 3, padding=1)
        self.other_conv = nn.Conv2d(4, 4, 3, padding=1)
        self.norm = nn.BatchNorm2d(4)
        self.cumulative = nn.BatchNorm2d(4, momentum=None)
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)
        self.dropout, self.rrelu = nn.Dropout(0.5), nn.RReLU()
        self.relu_ = nn.ReLU(inplace=True)
        self.watched = nn.ReLU()
        self.watched.register_forward_hook(hooked)
        self.register_buffer("count", torch.ones(4))
        self.register_buffer("steps", torch.zeros((), dtype=torch.int64))
        self.register_buffer("alias", self.count)
        self.weight = nn.Parameter(torch.randn(4, 4))
        for norm in (self.norm, self.cumulative):
            norm.running_mean.normal_()
            norm.running_var.uniform_(0.5, 2)
        self.train(training)

    def forward(self, x):
        return self.program(self, x)


def image(x):
    return x[None].transpose(1, 2)


def _write_through(x, view):
    base = x + 1
    before = base * 2
    view(base).mul_(3)
    return before, base * 2


def _no_grad_twice(m, x):
    with torch.no_grad():
        quiet = torch.relu(m.first(x))
    return quiet + torch.relu(m.first(x))


def _autocast_twice(m, x):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        low = m.first(x)
    return low.float(), m.first(x)


def _item(x, value):
    x[0] = value
    return x


def _augmented(x):
    y = x * 2
    z = y
    y += 1
    return y, z * 2


def _out_of_max(x):
    values, indices = torch.empty(3, 4), torch.empty(3, 4, dtype=torch.int64)
    torch.max(x, -1, out=(values, indices))
    return values + 1, indices * 2


def _discarded(*values):
    return values[-1]


EVAL = {
    # in place
    "an unused write to an input": lambda m, x: (x.add_(1), x.sum())[1],
    "an unused write to a value": lambda m, x: ((y := x * 2).add_(1), y.sum())[1],
    "a write between equal calls": lambda m, x: (x + 1, x.mul_(2), x + 1)[::2],
    "a write by a function between equal calls": lambda m, x: (x + 1, torch.sigmoid_(x), x + 1)[::2],
    "a write by an option between equal calls": lambda m, x: (x + 1, F.relu(x, inplace=True), x + 1)[::2],
    "a write by a module between equal calls": lambda m, x: (x + 1, m.relu_(x), x + 1)[::2],
    "a write of an item": lambda m, x: (x.sum(), _item(x, 0.0), x.sum())[::2],
    "a write of an item to a value": lambda m, x: _item(x * 2, x[1]).sum(),
    "an augmented assignment to what has two names": lambda m, x: _augmented(x),
    "a write through a slice": lambda m, x: _write_through(x, lambda base: base[:, 1]),
    "a write through a transposed view": lambda m, x: _write_through(x, lambda base: base.transpose(0, 1)),
    "a write through one of several views": lambda m, x: _write_through(x, lambda base: base.chunk(2, -1)[1]),
    "a write through what may be a view": lambda m, x: _write_through(x, lambda base: base.reshape(-1)),
    "a write through what is no copy": lambda m, x: _write_through(x, lambda base: base.contiguous()),
    "a write through a detached value": lambda m, x: _write_through(x.detach(), lambda base: base.detach()),
    "a write seen through an expanded value": lambda m, x: (
        (wide := (y := x[:1, 0] * 1).expand(2, 5)),
        y.add_(1),
        wide * 2,
    )[1:],
    "a write that puts values in places": lambda m, x: (
        (y := x * 1).index_put_((torch.tensor([0]),), x[1]),
        y.sum(0),
    )[1],
    "a write where a mask says so": lambda m, x: ((y := x * 1).masked_fill_(y > 0, 7.0), y.sum())[1],
    "a copy into an input": lambda m, x: (x.copy_(x * 3), x.mean())[1],
    "a write to a clone": lambda m, x: ((y := x.clone()).zero_(), x * 2, y)[1:],
    "a write to what is filled first": lambda m, x: torch.empty(5).fill_(2.0) + x + torch.empty(5).fill_(3.0),
    "a value detached in place": lambda m, x: ((y := m.first(x[..., :4])).detach_(), y * 2)[1],
    "a write of a sum of what is written": lambda m, x: ((y := x * 1).add_(y.sum()), y.sum())[1],
    # out=
    "an unused call with out=": lambda m, x: ((y := torch.empty_like(x)), torch.add(x, 1, out=y), y * 2)[2],
    "out= into an input": lambda m, x: (torch.add(x, 1, out=x), x * 2)[1],
    "out= into two values": lambda m, x: _out_of_max(x),
    "out= between equal calls": lambda m, x: (x.exp(), torch.neg(x, out=x), x.exp())[::2],
    # state
    "a buffer that counts": lambda m, x: (m.steps.add_(1), x * m.steps)[1],
    "an unused update of a buffer": lambda m, x: _discarded(m.steps.add_(1), x * 2),
    "a buffer read before and after a write": lambda m, x: (m.count * 2, m.count.add_(1), m.count * 2)[::2],
    "a buffer written under another name": lambda m, x: (m.count * 2, m.alias.add_(1), m.count * 2)[::2],
    "a constant made of a buffer that a later call writes": lambda m, x: (
        x[..., :4] + (m.count * 2 + 1),
        m.count.mul_(2),
    )[0],
    "a buffer written through a view": lambda m, x: (m.count[1:].neg_(), m.count * x[..., :4])[1],
    "a parameter written without gradients": lambda m, x: (m.weight.detach().mul_(0.5), x[..., :4] @ m.weight.t())[1],
    "a convolution's weight that is written": lambda m, x: (
        m.conv.weight.detach().mul_(0.5),
        m.norm(m.conv(image(x))),
    )[1],
    "a batch norm's mean that is written": lambda m, x: (m.norm.running_mean.add_(1), m.norm(m.conv(image(x))))[1],
    "a convolution used twice, once before a batch norm": lambda m, x: (
        m.norm(m.conv(image(x))),
        m.conv(image(x)) * 2,
    ),
    "a convolution whose value is written before the batch norm": lambda m, x: m.norm(m.relu_(m.conv(image(x)))),
    "a convolution whose value is also returned": lambda m, x: ((y := m.conv(image(x))), m.norm(y)),
    "two convolutions before one batch norm": lambda m, x: (
        m.norm(m.conv(image(x))) + m.norm(m.other_conv(image(x)))
    ),
    "functional batch norm that updates statistics": lambda m, x: F.batch_norm(
        m.conv(image(x)), m.norm.running_mean, m.norm.running_var, training=True
    ),
    "a convolution's value that is written through what may be a view": lambda m, x: (
        (y := F.silu(m.conv(image(x)))).detach().reshape(1, -1).add_(1),
        y * 2,
    )[1],
    "a convolution's value of which a part is written": lambda m, x: (
        (y := m.conv(image(x))).detach().flatten(2)[:, 1].add_(1),
        m.other_conv(y) + y,
    )[1],
    "linear layers with something written in between": lambda m, x: m.second(m.first(x[..., :4]).mul_(2)),
    "linear layers of which the first is used again": lambda m, x: ((y := m.first(x[..., :4])), m.second(y)),
    # random numbers
    "random numbers that nobody uses": lambda m, x: _discarded(torch.rand(3), x * 2),
    "random numbers drawn twice": lambda m, x: (torch.rand(5) + x, torch.rand(5) + x),
    "random numbers like a value, twice": lambda m, x: torch.rand_like(x) - torch.rand_like(x),
    "random permutations that nobody uses": lambda m, x: _discarded(torch.randperm(7), x + 1),
    "random numbers in place": lambda m, x: ((y := x * 1).bernoulli_(0.5), y + 1)[1],
    "dropout by a function, twice": lambda m, x: F.dropout(x, 0.5) + F.dropout(x, 0.5),
    "dropout that is switched off": lambda m, x: m.dropout(x) + F.dropout(x, training=False),
    "a choice by chance": lambda m, x: F.gumbel_softmax(x, dim=-1) + F.gumbel_softmax(x, dim=-1),
    # logging and checks
    "a call that notes": lambda m, x: note(x) + note(x),
    "a call that notes and gives nothing": lambda m, x: _discarded(note_quietly(x), x + 1),
    "notes of equal values": lambda m, x: (note(x + 1), note(x + 1)),
    "a module with a hook": lambda m, x: _discarded(m.watched(x), m.watched(x) * 2),
    "a check that nobody uses": lambda m, x: _discarded(torch._assert(x.shape[0] > 0, "no rows"), x + 1),
    # aliasing
    "a view that is returned": lambda m, x: (x.view(-1), x[0]),
    "an input that is returned": lambda m, x: (x, x * 2),
    "equal values that are both returned": lambda m, x: (x + 1, x + 1),
    "a value returned twice": lambda m, x: ((y := x + 1), y),
    "a constant that is returned": lambda m, x: (torch.zeros(3), x * 2),
    "equal constants that are returned": lambda m, x: (torch.ones(2), torch.ones(2), x),
    "a constant that is written": lambda m, x: (torch.zeros(5).add_(1) + x, torch.zeros(5) + x),
    "a view of a parameter that is returned": lambda m, x: (m.weight.t(), x * 2),
    "a parameter that is returned": lambda m, x: (m.weight, m.count),
    "what a buffer is computed from is returned": lambda m, x: (m.count * 2, x),
    "a copy that may be none": lambda m, x: (x.contiguous(), x.to(torch.float32), x.float()),
    "an identity whose value is written": lambda m, x: (m.dropout(x).add_(1), x * 2),
    # regions
    "equal calls of which one has no gradients": lambda m, x: _no_grad_twice(m, x[..., :4]),
    "equal calls of which one is of less precision": lambda m, x: _autocast_twice(m, x[..., :4]),
}  # fmt: skip

TRAINING = {
    "dropout": lambda m, x: m.dropout(x) + m.dropout(x),
    "dropout that nobody uses": lambda m, x: _discarded(m.dropout(x), x + 1),
    "a random slope": lambda m, x: m.rrelu(x) - m.rrelu(x),
    "batch norm": lambda m, x: m.norm(image(x)),
    "batch norm that nobody uses": lambda m, x: _discarded(m.norm(image(x)), x + 1),
    "batch norm twice on one value": lambda m, x: m.norm(y := image(x)) + m.norm(y),
    "batch norm behind a convolution": lambda m, x: m.norm(m.conv(image(x))),
    "cumulative batch norm": lambda m, x: m.cumulative(m.conv(image(x))),
    "linear layers": lambda m, x: m.second(m.first(x[..., :4])),
}

CASES = {
    **{name: (program, False) for name, program in EVAL.items()},
    **{f"{name}, in training": (program, True) for name, program in TRAINING.items()},
}


def tensors_of(value):
    return [leaf for leaf in torch.utils._pytree.tree_leaves(value) if isinstance(leaf, torch.Tensor)]


def sharing(tensors):
    """Return which of some tensors have memory in common."""
    places = [tensor.untyped_storage().data_ptr() for tensor in tensors]
    return [places.index(place) for place in places]


def observed(module):
    """Return all that can be seen of two calls."""
    before = {name: value.clone() for name, value in module.state_dict().items()}
    seen = []
    for call in range(2):
        torch.manual_seed(call)
        LOG.clear()
        module.zero_grad()
        x = torch.linspace(-2, 2, 60).reshape(3, 4, 5) + call
        results = tensors_of(module(x))
        own = [*module.parameters(), *module.buffers()]
        floats = [
            result.float().sum()
            for result in results
            if result.requires_grad and not any(result is tensor for tensor in own)
        ]
        if floats:
            sum(floats).backward()
        mine = {tensor.untyped_storage().data_ptr() for tensor in own}
        seen.append(
            {
                "outputs": [result.detach().clone() for result in results],
                "gradients needed": [result.requires_grad for result in results],
                "memory": sharing([*results, x]),
                "memory of the state": [result.untyped_storage().data_ptr() in mine for result in results],
                "input": x.clone(),
                "log": list(LOG),
                "next random numbers": torch.rand(2),
                "written state": {
                    name: value.clone()
                    for name, value in module.state_dict().items()
                    if name in before and not torch.equal(value, before[name])
                },
                "gradients": {name: p.grad for name, p in module.named_parameters() if p.grad is not None},
            }
        )
        with torch.no_grad():  # Whatever a caller does to results must reach no other call.
            for result, is_state in zip(results, seen[-1]["memory of the state"], strict=True):
                if result.is_floating_point() and not is_state:
                    result.add_(100)
    return seen


def check(seen, expected, *, with_gradients, tolerance=None):
    for ours, theirs in zip(seen, expected, strict=True):
        for what, value in theirs.items():
            if what == "gradients" and not with_gradients:
                continue
            if what == "log":
                assert ours[what] == value
                continue
            loose = {} if tolerance is None else {"rtol": 0, "atol": 6 * tolerance}
            torch.testing.assert_close(
                ours[what], value, **loose, msg=lambda text, what=what: f"{what}: {text}"
            )


@pytest.mark.parametrize("record", BUILTIN_PASSES, ids=lambda record: record.name)
@pytest.mark.parametrize("name", CASES)
def test_a_pass_leaves_every_effect_as_it_was(name, record):
    program, training = CASES[name]
    model = Model(program, training=training)
    expected = observed(fxplug.symbolic_trace(copy.deepcopy(model)))
    module = fxplug.symbolic_trace(copy.deepcopy(model))
    names = [name for name, _ in module.named_parameters()]

    Pipeline("effects", [PipelineStep(record.name, record)]).run(module, (torch.randn(3, 4, 5),))

    same_parameters = not record.tolerance and [name for name, _ in module.named_parameters()] == names
    check(observed(module), expected, with_gradients=same_parameters, tolerance=record.tolerance or None)


PIPELINES = {
    "onednn-fuse": ["onednn-fuse"],
    "inference": list(BUILTIN_PIPELINES["inference"]),
}


@pytest.mark.parametrize("passes", PIPELINES.values(), ids=PIPELINES)
@pytest.mark.parametrize("name", EVAL)
def test_effects_stay_where_no_gradient_is_asked_for(name, passes):
    """What is fused for oneDNN is computed in another way only here."""
    records = {record.name: record for record in BUILTIN_PASSES}
    program, training = CASES[name]
    model = Model(program, training=training).requires_grad_(False)
    expected = observed(fxplug.symbolic_trace(copy.deepcopy(model)))
    module = fxplug.symbolic_trace(copy.deepcopy(model))

    steps = [PipelineStep(name, records[name]) for name in passes]
    Pipeline("effects", steps).run(module, (torch.randn(3, 4, 5),))

    check(observed(module), expected, with_gradients=False)


@pytest.mark.parametrize("name", CASES)
def test_the_cases_are_captured_as_they_are_in_eager(name):
    program, training = CASES[name]
    model = Model(program, training=training)
    module = fxplug.symbolic_trace(copy.deepcopy(model))
    expected = observed(model)
    for call in expected:  # What the graph does not refer to is no part of the module.
        call["written state"] = {
            name: value for name, value in call["written state"].items() if name in module.state_dict()
        }
    check(observed(module), expected, with_gradients=False)


class Careless(Pass):
    """Removes what nobody uses and merges what looks alike, whatever it does."""

    def run(self, module, context):
        seen = {}
        for node in module.graph.nodes:
            if node.op in {"placeholder", "get_attr", "output"}:
                continue
            key = node.op, node.target, repr(node.args), repr(node.kwargs)
            if key in seen:
                node.replace_all_uses_with(seen[key])
            seen.setdefault(key, node)
        for node in reversed(module.graph.nodes):
            if not node.users and node.op not in {"placeholder", "output"}:
                module.graph.erase_node(node)
        return PassResult(modified=True)


def test_a_careless_pass_is_found_out_by_most_cases():
    found = []
    for name, (program, training) in CASES.items():
        model = Model(program, training=training)
        expected = observed(fxplug.symbolic_trace(copy.deepcopy(model)))
        module = fxplug.symbolic_trace(copy.deepcopy(model))
        Careless().run(module, PassContext())
        try:
            check(observed(module), expected, with_gradients=True)
        except (AssertionError, RuntimeError):
            found.append(name)

    assert len(CASES) >= 75
    assert len(found) >= 40, sorted(set(CASES) - set(found))


@pytest.mark.parametrize("parts", [2, 5])
@pytest.mark.parametrize("name", CASES)
def test_splitting_leaves_every_effect_as_it_was(name, parts):
    program, training = CASES[name]
    model = Model(program, training=training)
    expected = observed(fxplug.symbolic_trace(copy.deepcopy(model)))
    module = fxplug.symbolic_trace(copy.deepcopy(model))
    calls = [node for node in module.graph.nodes if node.op.startswith("call_")]
    numbers = {node: index * parts // len(calls) for index, node in enumerate(calls)}

    split = fxplug.split_module(module, module, lambda node: numbers.get(node, 0))

    assert bool(calls) is any(name.startswith("submod_") for name, _ in split.named_children())
    seen = observed(split)
    for call, theirs in zip(seen, expected, strict=True):
        for what in (
            "written state",
            "gradients",
        ):  # Parts hold them under paths of their own, some under several.
            assert {str(value) for value in call[what].values()} == {
                str(value) for value in theirs[what].values()
            }
            del call[what], theirs[what]
    check(seen, expected, with_gradients=True)
