"""Random programs, split at random: results and effects are those of the whole, and groups fulfil what they promise."""

from __future__ import annotations

import copy
import random

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import fxplug
from fxplug.errors import PartitionError
from fxplug.execute import GraphModule
from fxplug.ir import RegionEntry
from fxplug.passes import fold_submodule, group_nodes, inline_submodule, requirements

SETTINGS = settings(max_examples=80, deadline=None)
SEEDS = st.integers(min_value=0, max_value=10**6)
LOG = []


def log(value):
    """Note what is seen, in the order in which it is."""
    LOG.append(value.detach().clone())
    return value


def random_program(seed):
    """Return a module with reads and writes of values, views, parameters and buffers, draws, and calls of `log`."""
    rng = random.Random(seed)
    torch.manual_seed(seed)
    graph = fxplug.Graph()
    inputs = [graph.placeholder("x"), graph.placeholder("y")]
    pool = [*inputs, graph.get_attr("weight"), graph.get_attr("buffer")]
    pool.append(graph.call_function(torch.mul, (pool[0], 1.5)))
    for _ in range(rng.randint(3, 14)):
        value, other = rng.choice(pool), rng.choice(pool)
        kind = rng.randrange(12)
        if kind < 5:
            pool.append(
                graph.call_function(rng.choice([torch.add, torch.mul, torch.maximum]), (value, other))
            )
        elif kind < 8:
            method, *rest = ("tanh",) if kind < 7 else ("view", -1)
            pool.append(graph.call_method(method, (value, *rest)))
        elif kind == 8:
            target = rng.choice([node for node in pool if node.target != "weight"])
            pool.append(graph.call_method(rng.choice(["add_", "mul_"]), (target, 0.5)))
        elif kind == 9:
            pool.append(graph.call_function(torch.rand_like, (value,)))
        elif kind == 10:
            pool.append(graph.call_module(rng.choice(["norm", "relu"]), (value,)))
        elif rng.random() < 0.5:
            graph.call_function(log, (value,))
    for node in graph.nodes:
        if node.op == "call_function" and rng.random() < 0.2:
            node.region = (RegionEntry(torch.no_grad),)
    graph.output([rng.choice(pool), {"more": rng.choice(pool)}])
    values = {
        "weight": torch.nn.Parameter(torch.randn(4), requires_grad=False),
        "buffer": torch.randn(4),
        "norm": Statistics(),
        "relu": torch.nn.ReLU(inplace=rng.random() < 0.5),
    }
    return GraphModule(values, graph)


class Statistics(torch.nn.Module):
    """Of which nobody knows that it writes a buffer."""

    def __init__(self):
        super().__init__()
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, x):
        self.seen += x.sum()
        return x + self.seen


def outcome(module, seed, *, same=False):
    """Return all that can be seen of two calls: results, inputs, state, and what was logged."""
    LOG.clear()
    torch.manual_seed(seed)
    x = torch.linspace(-1, 1, 4)
    y = x if same else torch.linspace(1, 2, 4)
    results = [module(x, y) for _ in range(2)]
    return results, x, y, list(LOG)


def same_outcome(module, make, seed):
    """Check that a module does what one made by `make` does, which shares nothing with it."""
    for same in (False, True):
        expected_module, copied = make(), copy.deepcopy(module)
        expected, found = outcome(expected_module, seed, same=same), outcome(copied, seed, same=same)
        torch.testing.assert_close(found, expected, rtol=0, atol=0, equal_nan=True)
        sums = [
            sorted(float(value.double().sum()) for value in one.buffers())
            for one in (copied, expected_module)
        ]
        torch.testing.assert_close(*sums, rtol=0, atol=0, equal_nan=True)


@SETTINGS
@given(seed=SEEDS, count=st.integers(1, 4))
def test_a_split_does_what_the_whole_does_or_is_refused(seed, count):
    module = random_program(seed)
    rng = random.Random(seed)
    before = str(module.graph)
    # Mostly in the order of the program, so that not all are refused.
    calls = [node for node in module.graph.nodes if node.op.startswith("call_")]
    place = {
        node: rng.randrange(count) if rng.random() < 0.15 else number * count // len(calls)
        for number, node in enumerate(calls)
    }
    try:
        result = fxplug.split_module(module, None, place.__getitem__)
    except PartitionError:
        assert count > 1
        return
    result.graph.lint()
    assert str(module.graph) == before
    inside = [node for part in result.children() for node in part.graph.nodes if node.op.startswith("call_")]
    assert len(inside) == len(calls)
    same_outcome(result, lambda: random_program(seed), seed)


@SETTINGS
@given(seed=SEEDS, parts=st.integers(1, 4))
def test_a_pipeline_does_what_the_whole_does(seed, parts):
    module = random_program(seed)
    calls = [node for node in module.graph.nodes if node.op.startswith("call_")]
    if parts > len(calls):
        return
    result = fxplug.split_by_size(module, parts, weigh=lambda node: len(node.name))

    assert [node.target for node in result.graph.find_nodes(op="call_module")] == [
        f"submod_{number}" for number in range(parts)
    ]
    same_outcome(result, lambda: random_program(seed), seed)


def pairs_in_cycles(groups, before):
    """Return whether a walk leads out of a group and back into it: for groups as single nodes, by brute force."""
    place = {node: number for number, group in enumerate(groups) for node in group}
    unit = {node: place.get(node, node) for node in before}
    needs = {one: set() for one in unit.values()}
    for node, used in before.items():
        needs[unit[node]] |= {unit[other] for other in used if unit[other] != unit[node]}
    reached = {one: set(found) for one, found in needs.items()}
    for _ in needs:
        for found in reached.values():
            found |= {further for other in found for further in reached[other]}
    return [one for one, found in reached.items() if one in found]


@SETTINGS
@given(seed=SEEDS, share=st.floats(0.2, 0.95), size=st.integers(1, 4), sets=st.integers(0, 3))
def test_groups_are_what_they_promise(seed, share, size, sets):
    module = random_program(seed)
    rng = random.Random(seed)
    calls = [node for node in module.graph.nodes if node.op.startswith("call_")]
    chosen = {node for node in calls if rng.random() < share}
    together = [rng.sample(calls, min(len(calls), 2)) for _ in range(sets)]
    groups = group_nodes(module, chosen.__contains__, min_block_size=size, together=together)
    grouped = [node for group in groups for node in group]

    assert len(set(grouped)) == len(grouped)
    assert chosen.issuperset(grouped)
    assert all(len(group) >= size for group in groups)
    assert all(group == sorted(group) for group in groups)
    before = requirements(module)
    assert not pairs_in_cycles(groups, before)
    place = {node: number for number, group in enumerate(groups) for node in group}
    for nodes in together:
        assert len({place.get(node) for node in nodes}) == 1
    if size == 1 and not together:
        assert chosen == set(grouped)
    # None of them could be put together.
    for number in range(1, len(groups)):
        for other in range(number):
            merged = [group for position, group in enumerate(groups) if position not in {number, other}]
            assert pairs_in_cycles([*merged, groups[number] + groups[other]], before)
    split = fxplug.split_by(module, chosen.__contains__, min_block_size=size, together=together)
    inside = [node for part in split.children() if isinstance(part, GraphModule) for node in part.graph.nodes]
    assert len([node for node in inside if node.op.startswith("call_")]) == len(grouped)
    same_outcome(split, lambda: random_program(seed), seed)


@SETTINGS
@given(seed=SEEDS)
def test_folding_and_inlining_change_nothing_that_can_be_seen(seed):
    module = random_program(seed)
    rng = random.Random(seed)
    before = requirements(module)
    calls = list(before)
    first = rng.randrange(len(calls))
    nodes = calls[first : first + rng.randint(1, 6)]
    nodes = [node for node in nodes if rng.random() < 0.8] or nodes
    is_possible = not pairs_in_cycles([nodes], before)
    text, tensors = str(module.graph), {id(value) for value in (*module.parameters(), *module.buffers())}
    try:
        fold_submodule(module, nodes, "inner")
    except PartitionError:
        assert not is_possible
        assert str(module.graph) == text
        return
    assert is_possible
    module.graph.lint()
    same_outcome(module, lambda: random_program(seed), seed)
    assert inline_submodule(module, "inner") == 1
    module.graph.lint()
    same_outcome(module, lambda: random_program(seed), seed)
    assert {id(value) for value in (*module.parameters(), *module.buffers())} == tensors
    assert sorted(node.op for node in module.graph.nodes if node.op != "get_attr") == sorted(
        node.op for node in random_program(seed).graph.nodes if node.op != "get_attr"
    )
