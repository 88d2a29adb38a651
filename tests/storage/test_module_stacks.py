"""The module stacks of nodes are in a file what they are in memory: kept, taken away, edited, or not yet asked for."""

from __future__ import annotations

import copy
import json
import pickle
import zipfile

import pytest
import torch
from torch import nn

import fxplug
from fxplug.analyze import ShapeProp
from fxplug.storage import load, save


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(2, 2), nn.ReLU())

    def forward(self, x):
        return self.inner(x) + 1


def stored(module, tmp_path):
    save(module, tmp_path / "module.fxplug")
    return load(tmp_path / "module.fxplug")


WAYS = {
    "file": stored,
    "pickle": lambda module, _: pickle.loads(pickle.dumps(module)),
    "copy": lambda module, _: copy.deepcopy(module),
}


def notes(module):
    """Return the names of notes of each node, and its module stack as the paths of modules and the names of classes."""
    return [
        (
            [name for name in node.meta if name != "nn_module_stack"],
            {
                key: (path, kind if isinstance(kind, str) else f"{kind.__module__}.{kind.__qualname__}")
                for key, (path, kind) in node.meta.get("nn_module_stack", {}).items()
            }
            if "nn_module_stack" in node.meta
            else None,
        )
        for node in module.graph.nodes
    ]


def untouched(_):
    pass


def asked(module):
    for node in module.graph.nodes:
        assert node.meta is not None


def with_shapes(module):
    ShapeProp(module).propagate(torch.ones(1, 2))


def cleared(module):
    for node in module.graph.nodes:
        node.meta.clear()


def without_stacks(module):
    for node in module.graph.nodes:
        node.meta.pop("nn_module_stack", None)
        node.meta["note"] = 1


def edited(module):
    for node in module.graph.nodes:
        node.meta["nn_module_stack"] = {"other": ("other", "package.Other")}


def under_other_keys(module):
    for node in module.graph.nodes:
        stack = node.meta.get("nn_module_stack", {})
        # With the names of classes: the class itself is one that no file names.
        node.meta["nn_module_stack"] = {
            f"_{key}": (path, f"{kind.__module__}.{kind.__qualname__}") for key, (path, kind) in stack.items()
        }


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    "change", [untouched, asked, with_shapes, cleared, without_stacks, edited, under_other_keys]
)
def test_module_stacks_come_back_as_they_were(change, way, tmp_path):
    module = fxplug.symbolic_trace(Model())
    change(module)
    loaded = WAYS[way](module, tmp_path)

    assert notes(loaded) == notes(module)
    assert any(stack for _, stack in notes(loaded)) is (change not in {cleared, without_stacks})


def test_stacks_that_say_what_origins_say_take_no_room(tmp_path):
    sizes = []
    for change in (untouched, asked):
        module = fxplug.symbolic_trace(Model())
        change(module)
        save(module, tmp_path / "module.fxplug")
        with zipfile.ZipFile(tmp_path / "module.fxplug") as archive:
            sizes.append(len(archive.read("graph.json")))

    assert sizes[0] == sizes[1]


def test_a_stack_of_an_origin_without_modules_stands_for_nothing(tmp_path, opened):
    module = fxplug.symbolic_trace(lambda x: x + 1)
    for node in module.graph.nodes:
        node.meta["note"] = 1
    save(module, tmp_path / "module.fxplug")
    file = opened(tmp_path / "module.fxplug")

    def change(data):
        for row in data["graphs"][0]["nodes"]:
            row[7]["nn_module_stack"] = {"$stack": None}

    file.edit("graph.json", change)
    assert [node.meta for node in load(tmp_path / "module.fxplug").graph.nodes] == [{"note": 1}] * 3


@pytest.mark.parametrize("value", [{"$stack": 1}, {"$stack": {}}, {"$stack": None, "more": 1}])
def test_another_stack_is_no_value(tmp_path, opened, value):
    module = fxplug.symbolic_trace(Model())
    with_shapes(module)
    save(module, tmp_path / "module.fxplug")
    file = opened(tmp_path / "module.fxplug")
    file.node("inner_0", meta={"nn_module_stack": value})

    assert "which no rule explains" in file.refusal()


def test_a_file_of_version_4_has_the_stacks_that_it_left_out(tmp_path, opened):
    module = fxplug.symbolic_trace(Model())
    with_shapes(module)
    expected = notes(module)
    save(module, tmp_path / "module.fxplug")
    file = opened(tmp_path / "module.fxplug")

    def change(data):
        for row in data["graphs"][0]["nodes"]:
            if len(row) > 7:
                row[7] = {name: value for name, value in (row[7] or {}).items() if name != "nn_module_stack"}

    file.edit("graph.json", change)
    manifest = json.loads(file.members["manifest.json"])
    file.members["manifest.json"] = json.dumps({**manifest, "format_version": 4}).encode()
    file.write()

    assert notes(load(tmp_path / "module.fxplug")) == expected
