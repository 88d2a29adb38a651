"""The effect lattice, the registry, and dead-code removal, which asks it."""

from __future__ import annotations

import itertools
import operator
import types

import pytest

from fxplug.errors import InvalidArgumentError
from fxplug.ir import OUTSIDE, PURE, RANDOM, UNKNOWN, Effect, EffectRegistry, Graph, effects, writes


def pure(*_):
    """A function without effects."""


def noisy(*_):
    """A function that acts outside."""


def random(*_):
    """A function that draws random numbers."""


def stranger(*_):
    """A function that nobody says anything about."""


class Module(types.SimpleNamespace):
    """Stands for a module."""


@pytest.fixture(autouse=True)
def known():
    known = {pure: PURE, noisy: OUTSIDE, random: RANDOM, "shape": PURE, "add_": writes(0), Module: PURE}
    for target, effect in known.items():
        effects.register_target(target, effect)
    yield
    for target in known:
        effects.unregister_target(target)


EFFECTS = [PURE, RANDOM, OUTSIDE, UNKNOWN, writes(0), writes(1, "out"), Effect(reads_state=True)]


def test_only_what_does_nothing_else_is_pure():
    assert [effect for effect in EFFECTS if effect.is_pure] == [PURE]


def test_what_may_be_removed():
    assert [effect for effect in EFFECTS if not effect.must_be_kept] == [PURE, Effect(reads_state=True)]


def test_joining_is_a_least_upper_bound():
    for one, other in itertools.product(EFFECTS, repeat=2):
        joined = one.join(other)
        assert joined == other.join(one)
        assert joined.join(one) == joined
        assert one.join(PURE) == one
        assert joined.must_be_kept == (one.must_be_kept or other.must_be_kept)
    assert writes(0).join(writes("out")) == writes(0, "out")


def node_of(op, target, args=()):
    return Graph().create_node(op, target, args)


def test_what_nobody_knows_is_unknown():
    registry = EffectRegistry()

    assert registry.effect_of(node_of("call_function", stranger)) == UNKNOWN
    assert registry.effect_of(node_of("call_method", "relu")) == UNKNOWN
    assert registry.effect_of(node_of("call_module", "layer")) == UNKNOWN
    assert registry.effect_of(node_of("placeholder", "x")) == PURE
    assert registry.effect_of(node_of("get_attr", "x")) == PURE
    assert registry.effect_of(node_of("output", "output")) == OUTSIDE


def test_targets_answer_before_rules_and_the_last_rule_first():
    registry = EffectRegistry()
    node = node_of("call_function", stranger)
    asked = []
    registry.register_rule(lambda node, module: asked.append("first") or RANDOM)
    registry.register_rule(lambda node, module: asked.append("second"))

    assert registry.effect_of(node) == RANDOM
    assert asked == ["second", "first"]
    registry.register_target(stranger, PURE)
    assert registry.effect_of(node) == PURE
    assert registry.target_entry(stranger) == PURE
    assert asked == ["second", "first"]
    registry.unregister_target(stranger)
    registry.unregister_target(stranger)
    assert registry.effect_of(node) == RANDOM


def test_a_rule_is_asked_about_the_calls_that_it_is_for():
    registry = EffectRegistry()
    asked = []
    registry.register_rule(lambda node, _: asked.append(node.op) or RANDOM, "call_method", "call_module")
    nodes = [
        node_of("call_function", stranger),
        node_of("call_method", "relu"),
        node_of("call_module", "layer"),
    ]

    assert [registry.effect_of(node) for node in nodes] == [UNKNOWN, RANDOM, RANDOM]
    assert asked == ["call_method", "call_module"]


def test_a_rule_about_what_is_no_call_is_refused_whole():
    registry = EffectRegistry()

    with pytest.raises(InvalidArgumentError, match=r"for 'call_modul'\. Did you mean 'call_module'"):
        registry.register_rule(lambda *_: RANDOM, "call_method", "call_modul")
    assert registry.effect_of(node_of("call_method", "relu")) == UNKNOWN


def test_a_rule_for_a_target_sees_the_node_and_may_have_no_opinion():
    registry = EffectRegistry()
    registry.register_target("to", lambda node, module: writes(0) if node.args else None)

    assert registry.effect_of(node_of("call_method", "to", (1,))) == writes(0)
    assert registry.effect_of(node_of("call_method", "to")) == UNKNOWN


def test_a_module_is_asked_for_by_its_class():
    registry = EffectRegistry()
    layer = Module()
    root = Module(layer=types.SimpleNamespace(inner=layer))
    seen = []
    registry.register_target(Module, lambda node, module: seen.append(module) or PURE)
    node = node_of("call_module", "layer.inner")

    assert registry.effect_of(node) == UNKNOWN
    assert registry.effect_of(node, root) == PURE
    node.graph.owning_module = root
    assert registry.effect_of(node) == PURE
    assert seen == [layer, layer]
    assert registry.effect_of(node_of("call_module", "layer.missing"), root) == UNKNOWN


def test_a_callable_that_cannot_be_hashed_is_unknown():
    class Unhashable:
        __hash__ = None

        def __call__(self):
            pass

    assert EffectRegistry().effect_of(node_of("call_function", Unhashable())) == UNKNOWN


def test_nodes_answer_whether_they_are_impure():
    assert not node_of("call_function", pure).is_impure()
    assert node_of("call_function", noisy).is_impure()
    assert node_of("call_function", stranger).is_impure()
    assert node_of("placeholder", "x").is_impure()
    assert node_of("output", "output").is_impure()
    assert not node_of("get_attr", "w").is_impure()
    assert node_of("call_function", random).is_impure()
    assert not node_of("call_function", random).is_impure(impure_random=False)
    assert node_of("call_method", "add_").is_impure(impure_random=False)


# -- dead code


def order(graph):
    return [node.name for node in graph.nodes]


def test_chains_of_unused_pure_nodes_are_removed():
    graph = Graph()
    x = graph.placeholder("x")
    graph.placeholder("unused")
    first = graph.call_function(pure, (x,))
    graph.call_function(pure, (graph.call_method("shape", (first,)),))
    graph.get_attr("w")
    graph.output(x)

    assert graph.eliminate_dead_code() is True

    assert order(graph) == ["x", "unused", "output"]
    assert not x.users.keys() - {graph.output_node()}
    graph.lint()
    version = graph.version
    assert graph.eliminate_dead_code() is False
    assert graph.version == version


@pytest.mark.parametrize(
    "target", [noisy, random, stranger, operator.setitem], ids=lambda target: target.__name__
)
def test_what_has_an_effect_stays_with_all_it_needs(target):
    graph = Graph()
    x = graph.placeholder("x")
    needed = graph.call_function(pure, (x,))
    kept = graph.call_function(target, (needed,))
    graph.output(x)

    assert graph.eliminate_dead_code() is False
    assert order(graph) == ["x", needed.name, kept.name, "output"]


def test_an_unused_write_in_place_stays():
    graph = Graph()
    x = graph.placeholder("x")
    graph.call_method("add_", (x, 1))
    graph.output(x)

    assert graph.eliminate_dead_code() is False


def test_the_caller_may_decide_what_is_impure():
    graph = Graph()
    x = graph.placeholder("x")
    graph.call_function(stranger, (x,))
    graph.call_function(pure, (x,), name="kept")
    asked = []

    assert graph.eliminate_dead_code(lambda node: asked.append(node.name) or node.name == "kept")

    assert order(graph) == ["x", "kept"]
    assert asked == ["kept", "stranger"]


def test_modules_are_looked_up_on_the_owning_module():
    graph = Graph()
    root = Module(layer=Module())
    graph.call_module("layer", (graph.placeholder("x"),))
    graph.output(None)

    assert graph.eliminate_dead_code() is False
    graph.owning_module = root
    assert graph.eliminate_dead_code() is True
    assert order(graph) == ["x", "output"]


def test_a_graph_without_output_loses_all_its_pure_nodes():
    graph = Graph()
    graph.call_function(pure, (graph.placeholder("x"),))

    assert graph.eliminate_dead_code() is True
    assert order(graph) == ["x"]


def counting_rule(answers):
    asked = []

    def rule(node, module):
        asked.append(node.target)
        return answers.get(node.target)

    return rule, asked


def test_what_a_rule_says_whatever_the_arguments_is_asked_once_for_each_set_of_names():
    registry = EffectRegistry()
    rule, asked = counting_rule({"view": PURE, "add_": writes(0)})
    registry.register_rule(rule, "call_method", settles=lambda node: True)

    def effect(target, **kwargs):
        return registry.effect_of(Graph().create_node("call_method", target, (1,), kwargs))

    assert [effect("view"), effect("view"), effect("add_"), effect("add_")] == [PURE, PURE, *[writes(0)] * 2]
    assert asked == ["view", "add_"]
    assert effect("view", out=1) == effect("view", out=2) == PURE
    assert asked == ["view", "add_", "view"]
    assert effect("sort") == effect("sort") == UNKNOWN  # No opinion is no answer to be kept.
    assert asked[3:] == ["sort", "sort"]


def test_one_rule_that_looks_at_arguments_is_enough_to_ask_all_of_them_again():
    registry = EffectRegistry()
    settled, asked = counting_rule({"view": PURE})
    looking, looked = counting_rule({})
    registry.register_rule(settled, "call_method", settles=lambda node: True)
    registry.register_rule(looking, "call_method")
    for _ in range(2):
        assert registry.effect_of(node_of("call_method", "view")) == PURE

    assert asked == looked == ["view", "view"]


def test_what_was_settled_is_forgotten_when_something_is_registered_or_taken_away():
    registry, node = EffectRegistry(), node_of("call_method", "view")
    rule, _ = counting_rule({"view": PURE})
    registry.register_rule(rule, "call_method", settles=lambda node: True)
    assert registry.effect_of(node) == PURE

    registry.register_target("view", RANDOM)
    assert registry.effect_of(node) == registry.effect_of(node) == RANDOM
    registry.unregister_target("view")
    assert registry.effect_of(node) == PURE
    other, _ = counting_rule({"view": OUTSIDE})
    registry.register_rule(other, "call_method")
    assert registry.effect_of(node) == OUTSIDE
    registry.unregister_rule(other)
    registry.unregister_rule(other)
    assert registry.effect_of(node) == PURE
    registry.unregister_rule(rule)
    assert registry.effect_of(node) == UNKNOWN


def test_a_rule_for_a_target_is_asked_about_each_call():
    registry = EffectRegistry()
    registry.register_target("to", lambda node, module: writes(0) if node.args else PURE)
    registry.register_rule(lambda *_: RANDOM, "call_method", settles=lambda node: True)

    for _ in range(2):
        assert registry.effect_of(node_of("call_method", "to", (1,))) == writes(0)
        assert registry.effect_of(node_of("call_method", "to")) == PURE


class Registering(dict):
    """Targets, of which one is registered while another thread asks."""

    def __init__(self, registry, entries):
        super().__init__(entries)
        self.registry = registry

    def get(self, key, default=None):
        found = super().get(key, default)
        self.registry._targets = dict(self)
        self.registry.register_target("view", OUTSIDE)
        return found


@pytest.mark.parametrize("entries", [{}, {"view": PURE}])
def test_what_is_registered_while_somebody_asks_counts_from_then_on(entries):
    registry, node = EffectRegistry(), node_of("call_method", "view")
    registry.register_rule(lambda *_: PURE, "call_method", settles=lambda node: True)
    registry._targets = Registering(registry, entries)

    assert registry.effect_of(node) == PURE
    assert registry.effect_of(node) == OUTSIDE
