"""Wheels of strangers: one adds a converter to another plugin's backend, one brings a backend of its own."""

from __future__ import annotations

import json

import pytest

CONVERTER = """
import torch
from fxplug import hookimpl


@hookimpl(optionalhook=True)
def openvino_converters():
    from fxplug_openvino import ConverterRecord

    def special(build, x):
        raise build.fail("the converter of acme was asked")

    return [ConverterRecord(torch.ops.aten.erfinv.default, special)]


@hookimpl(optionalhook=True)
def tensorrt_converters():
    from fxplug_tensorrt import ConverterRecord

    def special(build, x):
        return build.cast(x, torch.float32)

    return [ConverterRecord(torch.ops.aten.erfinv.default, special)]
"""

# TensorRT itself is not there; the tests of fxplug-tensorrt build an engine with a stranger's converter.
ASK_TENSORRT = """
import torch
from fxplug_tensorrt import TensorRTBackend
print(TensorRTBackend().converters[torch.ops.aten.erfinv.default].function.__module__)
"""

BACKEND = """
from fxplug import hookimpl
from fxplug.plugins import BackendRecord


def make():
    from fxplug import Backend, Support
    from torch import nn

    class Engine(nn.Module):
        def __init__(self, part):
            super().__init__()
            self.part = part

        def forward(self, *inputs):
            return self.part(*inputs)

    class Rocket(Backend):
        def supports(self, node, context):
            ok = node.op == "call_module"
            return Support(ok, "" if ok else "rockets run modules alone")

        def compile(self, subgraph, example_inputs, options):
            return Engine(subgraph)

    return Rocket()


@hookimpl
def fxplug_register_backends():
    return [BackendRecord("rocket", make, "Runs modules very fast.")]
"""

MODEL = """
import torch
from torch import nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(3, 3)
        self.second = nn.Linear(3, 3)

    def forward(self, x):
        return self.second(torch.erfinv(self.first(x).tanh() * 0.5))
"""


@pytest.fixture
def model(tmp_path):
    path = tmp_path / "model.py"
    path.write_text(MODEL)
    return f"{path}:Model"


def test_wheels_of_strangers_bring_a_converter_and_a_backend(full_environment, write_wheel, tmp_path, model):
    converter = write_wheel(
        tmp_path / "one",
        "acme-converters",
        "1.0",
        {"acme_converters.py": CONVERTER},
        {"acme": "acme_converters"},
    )
    backend = write_wheel(
        tmp_path / "two", "acme-rocket", "2.0", {"acme_rocket.py": BACKEND}, {"acme-rocket": "acme_rocket"}
    )

    def fxplug(*arguments):
        return full_environment.python("-W", "ignore", "-m", "fxplug", *arguments)

    with (
        full_environment.installed(converter, "acme-converters"),
        full_environment.installed(backend, "acme-rocket"),
    ):
        operators = _data(fxplug("backends", "show", "openvino", "--json"))["operators"]
        asked = full_environment.python("-W", "ignore", "-c", ASK_TENSORRT)
        listed = fxplug("backends", "list")
        plan = _data(fxplug("plan", model, "--example", "2x3", "--backend", "rocket", "--json"))
        report = fxplug("optimize", model, "--example", "2x3", "--backend", "rocket", "--no-measure")

    assert operators["aten.erfinv.default"] == "acme-converters 1.0"
    assert {value.partition(" ")[0] for value in operators.values()} == {"acme-converters", "fxplug-openvino"}
    assert "acme-rocket 2.0" in listed
    assert [part["nodes"] for part in plan["partitions"]] == [["first"], ["second"]]
    assert {node["reason"] for node in plan["nodes"] if not node["partition"]} == {
        "rockets run modules alone"
    }
    assert "runs 2 partitions" in report
    assert asked.splitlines()[-1] == "acme_converters"


def _data(text):
    return json.loads("{" + text.partition("{")[2])
