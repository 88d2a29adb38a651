"""What the plugin tells fxplug, and what follows from it."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import fxplug
from fxplug.errors import ConfigError, StorageError
from fxplug.passes import Pipeline, PipelineStep
from fxplug.plugins import PluginCandidate, PluginManager
from fxplug_quant import DynamicInt8, DynamicInt8Linear, DynamicInt8Options, plugin


@pytest.fixture
def manager() -> PluginManager:
    return PluginManager(candidates=[PluginCandidate.of_module(plugin, "quant")], environ={})


@pytest.fixture
def model() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(32, 16), nn.ReLU(), nn.Linear(16, 4)).eval()


# -- what it offers ---------------------------------------------------------------------------------------------


def test_it_offers_passes_for_the_quantize_phase():
    records = plugin.fxplug_register_passes()
    record = records[0]

    names = [
        "dynamic-int8",
        "static-int8",
        "open-attention",
        "equalize",
        "smooth",
        "correct-bias",
        "weight-int8",
        "weight-int4",
    ]
    assert [entry.name for entry in records] == names
    assert {entry.phase for entry in records} == {"quantize"}
    assert records[1].after == ("fuse-conv-bn", "remove-identities")
    assert record.phase == "quantize"
    assert record.options is DynamicInt8Options
    assert record.pipelines == ()
    made = record.factory(min_features=4)
    assert isinstance(made, DynamicInt8)
    assert made.options == DynamicInt8Options(min_features=4)


def test_int8_layers_are_leaves_and_others_are_no_concern():
    assert plugin.fxplug_is_leaf_module(DynamicInt8Linear(4, 4)) is True
    assert plugin.fxplug_is_leaf_module(nn.Linear(4, 4)) is None


def test_all_layers_that_may_be_in_files_are_leaves():
    leaves = {kind: plugin.fxplug_is_leaf_module(kind.__new__(kind)) for kind in plugin._LAYERS.values()}
    assert set(leaves.values()) == {True}, leaves


def test_int8_layers_are_known_to_be_pure():
    effects = {record.target: record.effect for record in plugin.fxplug_register_effects()}

    assert effects[DynamicInt8Linear].is_pure


def test_a_quantized_module_can_be_saved_and_costs_what_it_did(manager, model, tmp_path):
    inputs = (torch.randn(3, 32),)
    float_costs = fxplug.cost(model, inputs, manager=manager)
    options = {"name": "dynamic-int8", "min_features": 1}
    quantized = fxplug.symbolic_trace(model, manager=manager)
    manager.resolve_pipeline([options]).run(quantized, inputs)
    assert isinstance(quantized.get_submodule("0"), DynamicInt8Linear)
    path = tmp_path / "module.fxplug"

    fxplug.save(quantized, path, manager=manager)
    loaded = fxplug.load(path, manager=manager)

    with torch.no_grad():
        assert torch.equal(loaded(*inputs), quantized(*inputs))
    costs = fxplug.cost(quantized, inputs, manager=manager)
    assert costs.unknown == ()
    assert costs.multiply_adds == float_costs.multiply_adds
    without = PluginManager(candidates=[], environ={})
    with pytest.raises(StorageError, match="'@quant:dynamic-int8-linear' was brought by the plugin 'quant'"):
        fxplug.load(path, manager=without)


def test_the_host_takes_the_plugin(manager):
    (info,) = manager.plugin_infos()

    assert info.status == "active"
    assert info.hooks == (
        "fxplug_is_leaf_module",
        "fxplug_register_commands",
        "fxplug_register_effects",
        "fxplug_register_flop_formulas",
        "fxplug_register_passes",
        "fxplug_register_storage_targets",
    )
    names = (
        "dynamic-int8",
        "static-int8",
        "open-attention",
        "equalize",
        "smooth",
        "correct-bias",
        "weight-int8",
        "weight-int4",
    )
    assert info.passes == tuple(f"quant:{name}" for name in names)
    assert info.commands == ("quant:quant",)


# -- what follows -----------------------------------------------------------------------------------------------


def test_a_pipeline_runs_the_pass(model):
    record = plugin.fxplug_register_passes()[0]
    pipeline = Pipeline("small", [PipelineStep("quant:dynamic-int8", record, {"min_features": 16})])

    (report,) = pipeline.run(fxplug.symbolic_trace(model))

    assert report.result is not None
    assert (
        report.result.summary == "quantized 1 linear layer to int8; 1 left in float: fewer than 16 features"
    )


def test_optimize_quantizes_and_measures_the_error(manager, model):
    inputs = torch.randn(8, 32)

    result = fxplug.optimize(
        model, inputs, passes=["dynamic-int8"], manager=manager, rtol=0, atol=0.1, measure=False
    )

    assert 0 < result.check.max_abs_error < 0.1
    assert [type(part) for part in result.module.children()] == [
        DynamicInt8Linear,
        nn.ReLU,
        DynamicInt8Linear,
    ]
    assert type(model[0]) is nn.Linear


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"min_features": 0}, "every layer has at least 1 feature"),
        ({"min_feature": 2}, "Did you mean 'min_features'?"),
    ],
    ids=["value", "name"],
)
def test_the_host_refuses_bad_options_before_anything_runs(manager, model, options, message):
    with pytest.raises(ConfigError) as caught:
        manager.resolve_pipeline([{"name": "quant:dynamic-int8", **options}])

    assert "pass 'quant:dynamic-int8'" in str(caught.value)
    assert message in str(caught.value)


def test_a_quantized_model_can_be_traced_again(manager, model):
    quantized = fxplug.symbolic_trace(model, manager=manager)
    manager.resolve_pipeline(["dynamic-int8"]).run(quantized)
    inputs = torch.randn(8, 32)

    again = fxplug.symbolic_trace(quantized, manager=manager)

    assert [node.op for node in again.graph.nodes] == [node.op for node in quantized.graph.nodes]
    assert torch.equal(again(inputs), quantized(inputs))


def test_torch_is_not_told_to_use_another_quantization_engine(model):
    before = torch.backends.quantized.engine
    traced = fxplug.symbolic_trace(model)

    DynamicInt8().run(traced, fxplug.PassContext())
    traced(torch.randn(2, 32))

    assert torch.backends.quantized.engine == before


def test_new_weights_of_the_original_are_refused_and_not_left_out(manager, model):
    quantized = fxplug.symbolic_trace(model, manager=manager)
    manager.resolve_pipeline(["dynamic-int8"]).run(quantized, (torch.randn(3, 32),))
    before = quantized.get_submodule("0").int_weight.clone()

    with pytest.raises(
        fxplug.PassError, match=r"'0\.int_weight' was made or changed by pass quant:dynamic-int8"
    ):
        fxplug.load_original_state_dict(quantized, model.state_dict())

    assert torch.equal(quantized.get_submodule("0").int_weight, before)
