"""The order of plugins follows their names and what they declare, never how they were installed."""

from __future__ import annotations

import itertools

import pytest

from fxplug.errors import PluginConflictError
from fxplug.plugins import PluginCandidate, PluginManager, PluginWarning, hookimpl


def noting(name, **options):
    """Return an implementation that says whose it is."""

    @hookimpl(**options)
    def fxplug_node_created(node):
        node.append(name)

    return fxplug_node_created


def asked(manager):
    """Return in which order plugins are asked to annotate a node."""
    heard = []
    manager.trace_policy().node_created(heard, None)
    return heard


def candidates(plugin_module, plugins):
    return [
        PluginCandidate.of_module(plugin_module(name, **members), name, version="1.0")
        for name, members in plugins.items()
    ]


def test_among_equals_the_order_is_that_of_the_names_however_they_are_registered(plugin_module):
    plugins = candidates(plugin_module, {name: {"fxplug_node_created": noting(name)} for name in "abc"})

    for shuffled in itertools.permutations(plugins):
        assert asked(PluginManager(candidates=shuffled, environ={})) == ["a", "b", "c"]


def test_tryfirst_and_trylast_go_before_names_and_names_order_each_rank(plugin_module):
    ranks = {
        "a": {"trylast": True},
        "b": {"trylast": True},
        "c": {},
        "d": {},
        "e": {"tryfirst": True},
        "f": {"tryfirst": True},
    }
    plugins = candidates(
        plugin_module, {name: {"fxplug_node_created": noting(name, **rank)} for name, rank in ranks.items()}
    )

    for shuffled in (plugins, plugins[::-1], plugins[3:] + plugins[:3]):
        assert asked(PluginManager(candidates=shuffled, environ={})) == ["e", "f", "c", "d", "a", "b"]


def test_plugins_refine_the_order_by_name_of_plugin_or_distribution(plugin_module):
    plugins = candidates(
        plugin_module,
        {
            "a": {"fxplug_node_created": noting("a"), "PLUGIN_AFTER": ["fxplug-c", "nobody"]},
            "b": {"fxplug_node_created": noting("b")},
            "c": {"fxplug_node_created": noting("c")},
            "d": {"fxplug_node_created": noting("d"), "PLUGIN_BEFORE": ("b",)},
        },
    )

    for shuffled in itertools.permutations(plugins):
        assert asked(PluginManager(candidates=shuffled, environ={})) == ["c", "a", "d", "b"]


def test_a_cycle_is_printed_and_those_in_it_are_skipped(manager_of):
    plugins = {
        "a": {"fxplug_node_created": noting("a"), "PLUGIN_BEFORE": ["b"]},
        "b": {"fxplug_node_created": noting("b"), "PLUGIN_BEFORE": ["c"]},
        "c": {"fxplug_node_created": noting("c"), "PLUGIN_BEFORE": ["a"]},
        "d": {"fxplug_node_created": noting("d"), "PLUGIN_AFTER": ["a"]},
    }

    with pytest.warns(PluginWarning) as caught:
        manager = manager_of(plugins)

    assert asked(manager) == ["d"]
    assert len(caught) == 3
    reason = manager.plugin_info("a").reason
    assert reason.startswith("PLUGIN_BEFORE and PLUGIN_AFTER contradict each other: ")
    chain = reason.partition(": ")[2].split(" before ")
    assert chain[0] == chain[-1]
    assert "'a' before 'b'" in " before ".join(chain + chain[1:])
    with pytest.raises(PluginConflictError, match="contradict each other"):
        manager_of(plugins, strict=True)


def test_offers_are_listed_in_the_same_order_after_those_of_the_core(plugin_module):
    from fxplug.plugins import PassRecord

    def offering(name):
        return hookimpl(specname="fxplug_register_passes")(lambda: [PassRecord(f"pass-{name}", object, "")])

    plugins = candidates(plugin_module, {name: {"fxplug_register_passes": offering(name)} for name in "ab"})

    for shuffled in itertools.permutations(plugins):
        names = list(PluginManager(candidates=shuffled, environ={}).passes())
        assert names == [
            "dead-code",
            "common-subexpressions",
            "fold-constants",
            "normalize",
            "functionalize",
            "channels-last",
            "mixed-precision",
            "fuse-conv-bn",
            "merge-linear",
            "replace-activations",
            "remove-identities",
            "onednn-fuse",
            "inline-submodules",
            "propagate-shapes",
            "a:pass-a",
            "b:pass-b",
        ]


def test_what_fxplug_says_comes_behind_whatever_plugins_say(manager_of):
    last = hookimpl(specname="fxplug_is_leaf_module", trylast=True)(lambda: None)
    usual = hookimpl(specname="fxplug_is_leaf_module")(lambda: None)
    manager = manager_of({"a": {"fxplug_is_leaf_module": last}, "z": {"fxplug_is_leaf_module": usual}})

    assert [entry.plugin for entry in manager._implementations("fxplug_is_leaf_module")] == ["z", "a", "core"]
