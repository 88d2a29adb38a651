"""Files keep the map from a transformed module to the original's weights, and refuse one that is damaged."""

from __future__ import annotations

import json
import zipfile

import pytest
from torch import nn

import fxplug
from fxplug.errors import StorageError
from fxplug.passes import BUILTIN_PASSES, Pass, PassRecord, PassResult, Pipeline, PipelineStep
from fxplug.storage import load, save
from fxplug.storage.container import GRAPHS, MODULES


class Model(nn.Sequential):
    def __init__(self):
        super().__init__(nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4))


def fused(trace, *steps):
    module = trace(Model().eval())
    record = next(record for record in BUILTIN_PASSES if record.name == "fuse-conv-bn")
    Pipeline("test", [PipelineStep(record.name, record), *steps]).run(module)
    return module


@pytest.fixture
def damage(trace, tmp_path, stored):
    """Change the map in a file, and return what loading it says."""
    path = tmp_path / "map.fxplug"
    save(fused(trace), path)
    file = type(stored)(path)

    def change(member, edit):
        file.edit(member, edit)
        with pytest.raises(StorageError) as caught:
            load(path)
        return str(caught.value)

    return change


def map_of(modules):
    return modules["modules"][-1][3]["state_origins"]


def test_files_hold_plain_data(trace, tmp_path):
    save(fused(trace), tmp_path / "map.fxplug")
    with zipfile.ZipFile(tmp_path / "map.fxplug") as archive:
        data = map_of(json.loads(archive.read(MODULES)))
    assert sorted(data) == ["original", "recipes", "table", "tensors"]
    assert [name for name, _ in data["recipes"]] == ["fold_weight", "fold_bias"]
    assert sorted(data["tensors"]) == ["0.bias", "0.weight"]


def test_what_a_file_cannot_name_is_left_out_and_listed(trace, tmp_path):
    def foreign(weight):
        return weight.tracer.create_proxy("call_function", mystery, (weight,), {})

    class Odd(Pass):
        def run(self, module, context):
            conv = module.get_submodule("0")
            context.derive(conv.weight, (conv.weight,), foreign)
            return PassResult(modified=True)

    module = fused(trace, PipelineStep("odd", PassRecord("odd", Odd, "Test.")))
    save(module, tmp_path / "map.fxplug")
    with zipfile.ZipFile(tmp_path / "map.fxplug") as archive:
        listed = json.loads(archive.read("manifest.json"))["left_out_meta"]
    assert {"module": "", "node": "", "what": "meta['fxplug.state_origins']"} in listed
    loaded = load(tmp_path / "map.fxplug")
    with pytest.raises(fxplug.PassError, match="or what it knew of the original is lost"):
        fxplug.load_original_state_dict(loaded, Model().state_dict())


def mystery(weight):
    return weight + 1


@pytest.mark.parametrize(
    ("change", "found"),
    [
        (lambda data: data.pop("table"), "The map of weights"),
        (lambda data: data["table"].append([]), "a row of 'table' in the map of weights has 0 parts"),
        (lambda data: data["table"][0].__setitem__(0, "other"), "does not fit together"),
        (lambda data: data["table"][0].__setitem__(1, 0), "does not fit together"),
        (lambda data: data["table"][-1].__setitem__(2, [10**9] * 5), "The number of an origin"),
        (
            lambda data: data["table"][-1].__setitem__(2, [len(data["table"]) - 1] * 5),
            "The number of an origin",
        ),
        (lambda data: data["table"][-1].__setitem__(2, []), "does not fit together"),
        (lambda data: data["tensors"].__setitem__("0.bias", 99), "The number of an origin"),
        (lambda data: data["recipes"][0].__setitem__(1, 99), "The number of a graph"),
        (lambda data: data["original"].__setitem__("0.bias", [1, [3]]), "no dtype for '0.bias'"),
        (lambda data: data["original"]["0.bias"].__setitem__(1, ["x"]), "A size"),
    ],
    ids=[
        *("field", "row", "key", "recipe of a key", "far input", "own input", "no inputs"),
        *("tensor", "graph", "dtype", "size"),
    ],
)
def test_a_damaged_map_is_refused(damage, change, found):
    assert found in damage(MODULES, lambda modules: change(map_of(modules)))


def test_a_recipe_reads_nothing_but_its_inputs(damage):
    # The program of the module itself, which calls a submodule.
    text = damage(MODULES, lambda modules: map_of(modules)["recipes"][0].__setitem__(1, 0))
    assert "reads something besides its inputs" in text


def test_a_recipe_names_nothing_that_a_graph_may_not_name(damage):
    def change(graphs):
        row = next(row for row in graphs["graphs"][-1]["nodes"] if row[0] == "call_function")
        row[2] = "os:system"

    assert "os:system" in damage(GRAPHS, change)


def test_untransformed_modules_have_no_map(trace, tmp_path):
    save(trace(Model().eval()), tmp_path / "plain.fxplug")
    assert load(tmp_path / "plain.fxplug").meta == {}
