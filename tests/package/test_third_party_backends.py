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

ASK = """
import json, warnings
warnings.filterwarnings("ignore", message="Failed to initialize NumPy")
from fxplug_openvino import OpenVINOBackend
import torch
found = OpenVINOBackend().converters
record = found.get(torch.ops.aten.erfinv.default)
print(json.dumps([len(found), None if record is None else record.function.__module__]))
"""


@pytest.fixture
def model(tmp_path):
    path = tmp_path / "model.py"
    path.write_text(MODEL)
    return f"{path}:Model"


def test_a_wheel_adds_one_converter(full_environment, write_wheel, tmp_path):
    wheel = write_wheel(
        tmp_path / "wheel", "acme-converters", "1.0", {"acme_converters.py": CONVERTER}, {"acme": "acme_converters"}
    )

    def ask():
        return json.loads(full_environment.python("-W", "ignore", "-c", ASK).splitlines()[-1])

    def declared():
        return full_environment.python("-W", "ignore", "-m", "fxplug", "plugins", "show", "acme")

    before = ask()
    with full_environment.installed(wheel, "acme-converters"):
        during = ask()
        shown = declared()
    assert before[1] is None
    assert during == [before[0] + 1, "acme_converters"]
    assert "openvino_converters" in shown
    assert ask() == before


def test_a_wheel_brings_a_backend(full_environment, write_wheel, tmp_path, model):
    wheel = write_wheel(
        tmp_path / "wheel", "acme-rocket", "2.0", {"acme_rocket.py": BACKEND}, {"acme-rocket": "acme_rocket"}
    )

    def fxplug(*arguments):
        return full_environment.python("-W", "ignore", "-m", "fxplug", *arguments)

    with full_environment.installed(wheel, "acme-rocket"):
        listed = fxplug("backends", "list")
        plan = json.loads(
            "{" + fxplug("plan", model, "--example", "2x3", "--backend", "rocket", "--json").partition("{")[2]
        )
        report = fxplug("optimize", model, "--example", "2x3", "--backend", "rocket", "--no-measure")
    assert "rocket" in listed
    assert "acme-rocket 2.0" in listed
    assert [part["nodes"] for part in plan["partitions"]] == [["first"], ["second"]]
    assert {node["reason"] for node in plan["nodes"] if not node["partition"]} == {"rockets run modules alone"}
    assert "runs 2 partitions" in report
    assert "rocket" not in fxplug("backends", "list")
