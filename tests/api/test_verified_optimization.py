"""``fxplug.optimize`` with verified passes: levels, tolerances, and what is told of passes that were undone."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import fxplug
from fxplug.api import MismatchError
from fxplug.errors import ConfigError
from fxplug.passes import (
    LEVELS,
    Pass,
    PassRecord,
    PassResult,
    PassVerificationError,
)
from fxplug.plugins import Config, PipelineConfig

X = torch.linspace(-1, 1, 6).reshape(2, 3)


@pytest.fixture
def model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 3), nn.ReLU()).eval()


@pytest.fixture
def manager(manager_with):
    class Moves(Pass):
        def __init__(self, amount=1.01):
            self.amount = amount

        def run(self, module, context):
            output = module.graph.output_node()
            with module.graph.inserting_before(output):
                output.args = (module.graph.call_function(torch.mul, (output.args[0], self.amount)),)
            return PassResult(modified=True)

    def make(*, on_error="raise", verify="structure", rtol=None):
        passes = ("moves", "dead-code")  # In this order: neither declares another one.
        config = Config(pipelines={"mine": PipelineConfig(passes, on_error, verify=verify, rtol=rtol)})
        return manager_with(config, fxplug_register_passes=lambda: [PassRecord("moves", Moves, "Moves.")])

    return make


def run(model, manager, **options):
    return fxplug.optimize(model, (X,), manager=manager, measure=False, **options)


@pytest.mark.parametrize("level", LEVELS)
def test_every_level_takes_the_built_in_pipeline(model, manager, level):
    model = nn.Sequential(nn.Conv2d(1, 2, 1), nn.BatchNorm2d(2), nn.ReLU()).eval()
    result = fxplug.optimize(model, torch.randn(2, 1, 4, 4), manager=manager(), measure=False, verify=level)
    assert result.check.passed
    fold = next(report for report in result.passes if report.name == "fuse-conv-bn")
    assert fold.result.modified
    assert fold.verified.startswith(level if level != "structure" else "")


def test_the_pass_is_named_instead_of_the_whole(model, manager):
    with pytest.raises(MismatchError) as found:
        run(model, manager(), pipeline="mine")
    assert not isinstance(found.value, PassVerificationError)
    with pytest.raises(
        PassVerificationError, match=r"Pass 'sample:moves' of .* changed what the module computes"
    ):
        run(model, manager(), pipeline="mine", verify="numeric")


def test_the_pipeline_of_the_configuration_says_how(model, manager):
    with pytest.raises(PassVerificationError):
        run(model, manager(verify="numeric"), pipeline="mine")
    result = run(model, manager(verify="numeric", rtol=0.1), pipeline="mine", rtol=0.2)
    assert result.passes[0].verified


def test_an_argument_prevails_over_the_configuration(model, manager):
    with pytest.raises(MismatchError) as found:
        run(model, manager(verify="numeric"), pipeline="mine", verify="structure")
    assert not isinstance(found.value, PassVerificationError)


def test_a_refused_pass_leaves_a_module_that_is_right(model, manager):
    result = run(model, manager(on_error="rollback", verify="numeric"), pipeline="mine")
    assert result.check.max_abs_error == 0
    assert {report.name: bool(report.error) for report in result.passes} == {
        "sample:moves": True,
        "dead-code": False,
    }
    assert any("'sample:moves' failed and was undone" in warning for warning in result.warnings)


def test_passes_behind_a_stop_are_told(model, manager):
    result = run(model, manager(on_error="stop", verify="numeric"), pipeline="mine", rtol=None)
    assert [report.skipped for report in result.passes] == ["", "pass 'sample:moves' failed"]
    assert "As a pass failed, these did not run: 'dead-code'." in result.warnings


def test_a_level_that_does_not_exist(model, manager):
    with pytest.raises(ConfigError, match="Cannot verify passes at the level 'all'"):
        run(model, manager(), verify="all")
