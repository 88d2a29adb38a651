"""Random programs of calls that make values, views of them, and writes to both."""

from __future__ import annotations

import operator
import random
from contextlib import suppress

import torch
from torch import nn
from torch.nn import functional as F

import fxplug
from fxplug.ir import RegionEntry

SIZE = 3
X = torch.linspace(-1, 1, SIZE * SIZE).reshape(SIZE, SIZE)


class Held(nn.Module):
    """What the programs read."""

    def __init__(self):
        super().__init__()
        self.register_buffer("table", torch.linspace(1, 2, SIZE * SIZE).reshape(SIZE, SIZE))
        self.register_buffer("same", self.table)
        self.register_buffer("turned", self.table.t())
        self.register_buffer("row", torch.linspace(-1, 1, SIZE))
        self.frozen = nn.Parameter(torch.linspace(0, 1, SIZE * SIZE).reshape(SIZE, SIZE), requires_grad=False)
        self.weight = nn.Parameter(torch.linspace(0, 2, SIZE * SIZE).reshape(SIZE, SIZE))
        self.relu = nn.ReLU(inplace=True)
        self.plain = nn.ReLU()


FRESH = (
    lambda g, a, b: g.call_function(operator.add, (a, b)),
    lambda g, a, b: g.call_function(torch.mul, (a,), {"other": b}),
    lambda g, a, b: g.call_method("sub", (a, b)),
    lambda g, a, b: g.call_function(torch.tanh, (a,)),
    lambda g, a, b: g.call_function(operator.mul, (2, a)),
    lambda g, a, b: g.call_function(F.relu, (a, False)),
    lambda g, a, b: g.call_module("plain", (a,)),
    lambda g, a, b: g.call_function(torch.add, (a, b), {"alpha": 2}),
)
VIEWS = (
    lambda g, a, b: g.call_method("t", (a,)),
    lambda g, a, b: g.call_function(operator.getitem, (a, slice(None))),
    lambda g, a, b: g.call_method("view_as", (g.call_method("contiguous", (a,)), a)),
    lambda g, a, b: g.call_method("expand_as", (a, b)),
    lambda g, a, b: g.call_method("contiguous", (a,)),
)
WRITES = (
    lambda g, a, b: g.call_function(operator.iadd, (a, b)),
    lambda g, a, b: g.call_method("mul_", (a, 0.5)),
    lambda g, a, b: g.call_function(F.relu, (a,), {"inplace": True}),
    lambda g, a, b: g.call_module("relu", (a,)),
    lambda g, a, b: g.call_function(operator.setitem, (a, 0, 0.25)),
    lambda g, a, b: g.call_function(torch.sin, (b,), {"out": a}),
)
READS = ("table", "same", "turned", "frozen", "weight")


def random_program(seed):
    """Return a module with a graph made from a seed; its writes go to whatever there is."""
    rng = random.Random(seed)
    graph = fxplug.Graph()
    pool = [graph.placeholder("x", torch.Tensor)]
    pool += [graph.get_attr(path) for path in rng.sample(READS, 3)]
    values = list(pool)
    for _ in range(rng.randint(4, 12)):
        kind = rng.random()
        makers = FRESH if kind < 0.6 else VIEWS if kind < 0.75 else WRITES
        one, other = rng.choice(pool), rng.choice(pool)
        if makers is WRITES and rng.random() < 0.7:
            one = rng.choice(values[4:] or values)  # Often something that was made here.
        node = rng.choice(makers)(graph, one, other)
        if rng.random() < 0.1:
            node.region = (RegionEntry(torch.no_grad),)
        if node.target is not operator.setitem:
            pool.append(node)
            values.append(node)
    graph.output(tuple(rng.sample(pool, 2)))
    return fxplug.GraphModule(Held(), graph)


def outcome(module, calls=2):
    """Return what calls of a module give and leave behind, each as a copy; the error where there is one."""
    found = []
    for number in range(calls):
        given = X * (number + 1)
        try:
            with torch.no_grad():
                results = module(given)
                found += [value.clone() for value in (*results, given)]
                for value in results:  # The caller may do so; it shows what is a view of what.
                    with suppress(RuntimeError):
                        value.mul_(1.5)
        except Exception as error:
            return found, type(error)
    return found, {
        name: value.clone() for name, value in module.state_dict().items() if not name.endswith("_folded")
    }
