"""Passes on the example models: the same values, and a second run that changes nothing."""

from __future__ import annotations

import copy
import importlib.util
import sys
from pathlib import Path

import pytest
import torch

import fxplug
from fxplug.passes import BUILTIN_PASSES, Pipeline, PipelineStep

CHECKOUT = Path(__file__).resolve().parents[2]


def load(path):
    spec = importlib.util.spec_from_file_location(f"models_for_passes_{Path(path).stem}", CHECKOUT / path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # Dataclasses look for the module that they are made in.
    spec.loader.exec_module(module)
    return module


OWN = load("benchmarks/own_models.py").OWN_MODELS
OPTIONS = {"fold-constants": {"trainable": True}}
NAMES = ("fold-constants", "normalize", "functionalize", "channels-last", "mixed-precision")
RECORDS = {record.name: record for record in BUILTIN_PASSES}


def pipeline(name):
    return Pipeline("trial", [PipelineStep(name, RECORDS[name], OPTIONS.get(name, {}))])


def captured(model):
    torch.manual_seed(0)
    program = model.build().eval()
    inputs = model.inputs(2)
    return program, inputs, fxplug.trace(copy.deepcopy(program), inputs)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("model", OWN, ids=lambda model: model.name)
def test_models_compute_the_same(model, name):
    program, inputs, module = captured(model)

    pipeline(name).run(module, inputs)
    again = pipeline(name).run(module, inputs)[0]

    assert not again.result.modified
    tolerance = RECORDS[name].tolerance or 1e-5
    with torch.no_grad():
        torch.testing.assert_close(
            module(*copy.deepcopy(inputs)),
            program(*copy.deepcopy(inputs)),
            rtol=tolerance,
            atol=10 * tolerance,
        )


@pytest.mark.parametrize("name", NAMES[1:])  # None of the models computes with constants alone.
def test_each_pass_finds_something_in_some_model(name):
    def changes(model):
        _, inputs, module = captured(model)
        return pipeline(name).run(module, inputs)[0].result.modified

    assert any(map(changes, OWN))
