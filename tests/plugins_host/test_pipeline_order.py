"""Pipelines are the same whatever the order in which plugins were installed, and whoever else is."""

from __future__ import annotations

from itertools import permutations
from types import ModuleType

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fxplug.errors import PassOrderError
from fxplug.passes import PHASES
from fxplug.plugins import PassRecord, PluginCandidate, PluginManager, hookimpl

PLUGINS = ("alpha", "beta", "gamma", "delta")
SHORT_NAMES = ("fold", "merge", "split")
DECLARED = st.lists(
    st.sampled_from(("fold", "alpha:fold", "beta:merge", "dead-code", "missing")), max_size=1
).map(tuple)


def offering(*records):
    @hookimpl
    def fxplug_register_passes():
        return list(records)

    return fxplug_register_passes


def manager_of(plugins, order):
    candidates = []
    for name in order:
        module = ModuleType(f"fake_plugin_{name}")
        module.fxplug_register_passes = offering(*plugins[name])
        candidates.append(PluginCandidate.of_module(module, name, version="1.0"))
    return PluginManager(candidates=candidates, environ={}, version="0.1.0")


def steps(plugins, order):
    try:
        return [step.name for step in manager_of(plugins, order).resolve_pipeline("inference").steps]
    except PassOrderError as error:
        return str(error)


@st.composite
def several_plugins(draw):
    return {
        plugin: [
            PassRecord(
                name,
                object,
                "",
                phase=draw(st.sampled_from(PHASES)),
                before=draw(DECLARED),
                after=draw(DECLARED),
                pipelines=("inference",),
            )
            for name in draw(st.lists(st.sampled_from(SHORT_NAMES), unique=True))
        ]
        for plugin in PLUGINS
    }


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(several_plugins(), st.randoms(use_true_random=False))
def test_the_order_of_installation_has_no_influence(plugins, chance):
    expected = steps(plugins, PLUGINS)

    for _ in range(3):
        shuffled = list(PLUGINS)
        chance.shuffle(shuffled)
        assert steps(plugins, shuffled) == expected


@pytest.mark.parametrize("order", list(permutations(["ants", "bees", "cats"])))
def test_a_plugin_that_says_nothing_of_others_does_not_change_their_order(order):
    """Two passes of one short name stand beside each other in no list."""

    def joining(name):
        return PassRecord(name, object, "", pipelines=("inference",))

    plugins = {"bees": [joining("wax")], "cats": [joining("purr")]}
    others = [name for name in order if name != "ants"]
    alone = steps(plugins, others)
    together = steps({**plugins, "ants": [joining("purr")]}, order)

    assert alone == [
        *("dead-code", "remove-identities", "fuse-conv-bn", "bees:wax", "cats:purr", "onednn-fuse"),
        "propagate-shapes",
    ]
    assert [name for name in together if not name.startswith("ants")] == alone
