"""Who decided what about leaves and nodes: those who decide in a trace, asked in its order."""

from __future__ import annotations

import sys
from types import ModuleType

import pytest
import torch
from torch import nn

import fxplug
from fxplug.api import explain_leaf, explain_node
from fxplug.errors import UnknownNameError
from fxplug.ir import OUTSIDE
from fxplug.plugins import EffectRecord, PluginCandidate, PluginManager, hookimpl, load_config
from fxplug.plugins.effects import apply_effects


def scale(x):
    return x * 3


def shift(x):
    return x + 3


class Block(nn.Module):
    def forward(self, x):
        return x + 1


class Wrapper(nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, x):
        return self.inner(x)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.block = Block()
        self.wrapped = Wrapper(Block())
        self.layers = nn.Sequential(nn.Linear(2, 2))
        self.hidden = [Wrapper(Block())]

    def forward(self, x):
        return shift(scale(torch.relu(self.layers(self.wrapped(self.block(x))))))


ROWS = torch.ones(2, 2)


def implementing(name, function):
    return {name: hookimpl(specname=name)(function)}


def manager_of(config=None, **plugins):
    candidates = []
    for name, members in plugins.items():
        module = ModuleType(f"fxp_{name}")
        vars(module).update(members)
        candidates.append(PluginCandidate.of_module(module, name, version="1.0"))
    return PluginManager(config=config, candidates=candidates, environ={})


@pytest.fixture
def config(tmp_path):
    def write(text):
        (tmp_path / "fxplug.toml").write_text(text)
        return load_config(tmp_path / "fxplug.toml")

    return write


def said(decision):
    return str(decision), decision.answer


IS_BLOCK = implementing("fxplug_is_leaf_module", lambda module: isinstance(module, Block) or None)
SILENT = implementing("fxplug_is_leaf_module", lambda module: None)
RULE = "the tracer's own rule: the classes that torch.nn ships are leaves, except containers"


# -- leaves ------------------------------------------------------------------------------------------------------


def test_a_plugin_decides_after_those_without_an_opinion():
    found = explain_leaf(Model(), "block", manager=manager_of(a=SILENT, b=IS_BLOCK, c=SILENT))

    assert (found.path, found.kind, found.is_leaf) == ("block", f"{__name__}.Block", True)
    assert said(found.decided_by) == ("plugin 'b' (fxplug-b 1.0)", True)
    assert [said(decision) for decision in found.asked_before] == [("plugin 'a' (fxplug-a 1.0)", None)]


@pytest.mark.parametrize(("path", "is_leaf"), [("layers.0", True), ("layers", False), ("block", False)])
def test_where_nobody_has_an_opinion_the_tracer_decides(path, is_leaf):
    found = explain_leaf(Model(), path, manager=manager_of(a=SILENT))

    assert found.is_leaf is is_leaf
    assert said(found.decided_by) == (RULE, is_leaf)
    assert [decision.name for decision in found.asked_before] == ["a"]


def test_a_glob_of_the_configuration_decides_before_any_plugin_and_has_its_line(config, tmp_path):
    through = config(
        '[trace]\nthrough_modules = [\n"x.*",\n"*.Block",\n]\nleaf_modules = [\n"*.Nothing",\n"layers"]\n'
    )
    manager = manager_of(through, a=IS_BLOCK)
    block, layers = (explain_leaf(Model(), path, manager=manager) for path in ("block", "layers"))
    linear = explain_leaf(Model(), "layers.0", manager=manager)

    file = tmp_path / "fxplug.toml"
    assert said(block.decided_by) == (f"trace.through_modules = '*.Block' at {file}:4", False)
    assert said(layers.decided_by) == (f"trace.leaf_modules = 'layers' at {file}:8", True)
    assert (block.is_leaf, layers.is_leaf) == (False, True)
    assert block.asked_before == layers.asked_before == ()
    assert [decision.by for decision in linear.asked_before] == ["configuration", "plugin"]


def test_wrappers_are_looked_through_as_in_a_trace():
    unwraps = implementing(
        "fxplug_unwrap_module", lambda module: module.inner if isinstance(module, Wrapper) else None
    )
    found = explain_leaf(Model(), "wrapped", manager=manager_of(a=unwraps, b=IS_BLOCK))
    parallel = nn.Sequential(nn.DataParallel(nn.Linear(2, 2)))
    built_in = explain_leaf(parallel, "0", manager=manager_of())

    assert (found.path, found.is_leaf) == ("wrapped.inner", True)
    assert [str(decision) for decision in found.unwrapped_by] == ["plugin 'a' (fxplug-a 1.0)"]
    assert (built_in.path, built_in.is_leaf) == ("0.module", True)
    assert [str(decision) for decision in built_in.unwrapped_by] == [
        "fxplug itself: DataParallel is a wrapper"
    ]


@pytest.mark.parametrize("plugins", [{}, {"a": SILENT}, {"a": IS_BLOCK, "b": SILENT}])
def test_what_is_said_of_a_leaf_is_what_a_trace_does(plugins):
    manager = manager_of(**plugins)
    model = Model()
    leaves = {
        node.target
        for node in fxplug.symbolic_trace(model, manager=manager).graph.nodes
        if node.op == "call_module"
    }

    called = {"block", "wrapped.inner", "layers.0"}
    assert {path for path in called if explain_leaf(model, path, manager=manager).is_leaf} == leaves


def test_a_path_that_leads_nowhere_is_an_error_with_the_nearest_one():
    with pytest.raises(UnknownNameError) as caught:
        explain_leaf(Model(), "blok", manager=manager_of())

    assert str(caught.value) == (
        "There is no module named 'blok'. Did you mean 'block'? The root is Model. [FXP-F001]"
    )


# -- nodes -------------------------------------------------------------------------------------------------------


def test_a_node_is_described_with_its_line_and_the_modules_around_it():
    found = explain_node(Model(), "layers_0", manager=manager_of())

    assert (found.opcode, found.target, found.args, found.kwargs) == (
        "call_module",
        "layers.0",
        "(add_1,)",
        "{}",
    )
    assert found.source.startswith(__file__)
    assert found.source_text == "return shift(scale(torch.relu(self.layers(self.wrapped(self.block(x))))))"
    assert "container.py" in found.calls[0]
    assert found.calls[-1] == found.source
    assert [path for path, _ in found.module_stack] == ["", "layers", "layers.0"]
    assert found.leaf is not None
    assert str(found.leaf.decided_by) == RULE
    assert (found.effect, str(found.effect_by[0])) == ("none", "fxplug itself: what it knows of this call")
    assert (found.kept, found.mixins, found.notes) == (None, (), ())


@pytest.mark.parametrize("inputs", [None, (ROWS,)])
def test_a_leaf_node_names_who_made_it_one(inputs, config, tmp_path):
    plugin = explain_node(Model(), "block", inputs, manager=manager_of(a=SILENT, b=IS_BLOCK))
    configured = explain_node(
        Model(),
        "block",
        inputs,
        manager=manager_of(config('[trace]\nleaf_modules = ["block"]\n'), b=IS_BLOCK),
    )

    assert plugin.leaf is not None
    assert configured.leaf is not None
    assert str(plugin.leaf.decided_by) == "plugin 'b' (fxplug-b 1.0)"
    assert [decision.name for decision in plugin.leaf.asked_before] == ["a"]
    assert str(configured.leaf.decided_by) == f"trace.leaf_modules = 'block' at {tmp_path / 'fxplug.toml'}:2"


def test_a_module_that_is_always_whole_is_not_laid_at_the_door_of_a_glob(config):
    model = nn.Sequential(Block())
    model[0].register_full_backward_hook(lambda *_: None)
    manager = manager_of(config('[trace]\nthrough_modules = ["*.Block"]\n'))

    found = explain_node(model, "_0", (ROWS.requires_grad_(),), manager=manager)

    assert found.leaf is not None
    assert found.leaf.is_leaf
    assert "hooks on gradients" in str(found.leaf.decided_by)


@pytest.mark.parametrize("inputs", [None, (ROWS.detach().clone(),)])
def test_a_call_that_is_kept_names_who_kept_it(inputs, config, tmp_path):
    keeps = implementing("fxplug_leaf_functions", lambda: iter([scale]))
    module = sys.modules[__name__].__name__
    manager = manager_of(config(f'[trace]\nleaf_functions = [\n"os:getcwd",\n"{module}:shift"]\n'), a=keeps)

    by_plugin = explain_node(Model(), "scale", inputs, manager=manager)
    by_config = explain_node(Model(), "shift", inputs, manager=manager)

    assert by_plugin.kept is not None
    assert by_config.kept is not None
    assert by_plugin.kept.function == f"{module}.scale"
    assert str(by_plugin.kept.decided_by) == "plugin 'a' (fxplug-a 1.0)"
    assert (
        str(by_config.kept.decided_by)
        == f"trace.leaf_functions = '{module}:shift' at {tmp_path / 'fxplug.toml'}:4"
    )


class Watched:
    pass


class Counted:
    pass


@pytest.mark.filterwarnings(
    "ignore:Plugin .*The argument node of fxplug_create_proxy goes away:DeprecationWarning"
)
def test_mixins_and_notes_name_their_plugins_in_order():
    first = {
        **implementing("fxplug_create_proxy", lambda node: Watched),
        **implementing("fxplug_node_created", lambda node: {"shared": 1, "a.op": node.op}),
    }
    second = {
        **implementing("fxplug_create_proxy", lambda node: Counted if node.op == "call_function" else None),
        **implementing("fxplug_node_created", lambda node: {"shared": 2}),
    }
    manager = manager_of(a=first, b=second)
    found = explain_node(Model(), "relu", manager=manager)
    traced = {node.name: node for node in fxplug.symbolic_trace(Model(), manager=manager).graph.nodes}

    assert [(mixin.name, mixin.by.name) for mixin in found.mixins] == [
        (f"{__name__}.Watched", "a"),
        (f"{__name__}.Counted", "b"),
    ]
    assert [(note.key, note.value, note.by.name, note.counts) for note in found.notes] == [
        ("shared", 1, "a", True),
        ("a.op", "call_function", "a", True),
        ("shared", 2, "b", False),
    ]
    counting = {note.key: note.value for note in found.notes if note.counts}
    assert counting == {key: traced["relu"].meta[key] for key in counting}


def test_an_effect_that_a_plugin_states_names_the_plugin():
    offers = {
        **implementing("fxplug_leaf_functions", lambda: [scale]),
        **implementing("fxplug_register_effects", lambda: [EffectRecord(scale, OUTSIDE)]),
    }
    manager = manager_of(
        a=offers, b=implementing("fxplug_register_effects", lambda: [EffectRecord(scale, OUTSIDE)])
    )
    undo = apply_effects(manager.effect_records())
    try:
        found = explain_node(Model(), "scale", manager=manager)
    finally:
        undo()

    assert found.effect == "acts outside of the program"
    assert [str(decision) for decision in found.effect_by] == [
        "plugin 'a' (fxplug-a 1.0)",
        "plugin 'b' (fxplug-b 1.0)",
    ]


def test_a_node_that_is_not_there_is_an_error_with_the_nearest_name():
    with pytest.raises(
        UnknownNameError, match=r"named 'rleu'. Did you mean 'relu'\? The graph is that of Model"
    ):
        explain_node(Model(), "rleu", manager=manager_of())


def test_explaining_leaves_the_policy_of_the_manager_as_it_is():
    manager = manager_of(b=IS_BLOCK)
    policy = manager.trace_policy()
    explain_node(Model(), "relu", manager=manager)

    assert manager.trace_policy() is policy
