"""New weights for lowered modules: an engine never goes on with old ones without a word."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch
from torch import nn

import fxplug
from fxplug.errors import PassError
from fxplug.lower import lower

sys.path.insert(0, str(Path(__file__).parent))
from keeping_backend import Keeping, Net, manager, traced

X = torch.linspace(-1, 1, 6).reshape(2, 3)


class Sealed(nn.Module):
    """An engine without any tensor that PyTorch sees."""

    def __init__(self, part):
        super().__init__()
        self.__dict__["part"] = part

    def forward(self, *inputs):
        return self.__dict__["part"](*inputs)


class Sealing(Keeping):
    """Engines keep their weights to themselves."""

    def compile(self, subgraph, example_inputs, options):
        return Sealed(super().compile(subgraph, example_inputs, options))

    def artefact(self, engine):
        return super().artefact(engine.__dict__["part"])


def lowered(backend):
    return lower(traced(), backend, (X,), name="keeping").module


@pytest.mark.parametrize("kind", [Keeping, Sealing])
@pytest.mark.parametrize("refused", [(), ("tanh",)])
@pytest.mark.parametrize("strict", [True, False])
def test_weights_of_engines_are_refused(kind, refused, strict):
    module = lowered(kind(1, *refused))
    before = module(X)

    with pytest.raises(PassError, match=r"'submod_0\.first\.weight' is lowered to 'keeping'") as caught:
        fxplug.load_original_state_dict(module, Net().state_dict(), strict)

    assert caught.value.code == "FXP-P031"
    assert torch.equal(module(X), before)


def test_weights_outside_of_engines_are_loaded():
    module, other = lowered(Sealing(1, "second")), Net()
    state = other.state_dict()

    with pytest.raises(PassError, match="FXP-P031"):
        fxplug.load_original_state_dict(module, state)
    del state["first.weight"], state["first.bias"]
    found = fxplug.load_original_state_dict(module, state, strict=False)

    assert found.missing_keys == ["first.weight", "first.bias"]
    assert torch.equal(module.second.weight, other.second.weight)


def test_an_engine_without_weights_minds_nothing():
    module, other = lowered(Sealing(1, "first", "second")), Net()

    assert fxplug.load_original_state_dict(module, other.state_dict()) == ([], [])
    assert torch.equal(module(X), other(X))


@pytest.mark.parametrize("engines", ["stored", "rebuild"])
@pytest.mark.parametrize("is_called", [True, False])
def test_weights_of_engines_in_files_are_refused(tmp_path, engines, is_called):
    fxplug.save(lowered(Sealing()), tmp_path / "m", manager=manager())
    module = fxplug.load(tmp_path / "m", engines=engines, manager=manager(Sealing()))
    if is_called:
        module(X)

    with pytest.raises(PassError, match=r"engines='eager'.* \[FXP-P031\]"):
        fxplug.load_original_state_dict(module, Net().state_dict())


def test_a_file_takes_new_weights_without_its_engines(tmp_path):
    fxplug.save(lowered(Sealing()), tmp_path / "m", manager=manager())
    module, other = fxplug.load(tmp_path / "m", engines="eager", manager=manager()), Net()

    assert fxplug.load_original_state_dict(module, other.state_dict()) == ([], [])
    assert torch.equal(module(X), other(X))


def test_what_was_lowered_takes_new_weights_and_is_lowered_again():
    program = fxplug.optimize(Net().eval(), (X,), measure=False, manager=manager()).graph_module
    module, other = lower(program, Sealing(), (X,), name="keeping").module, Net()
    with pytest.raises(PassError, match="lower it again"):
        fxplug.load_original_state_dict(module, other.state_dict())

    fxplug.load_original_state_dict(program, other.state_dict())
    assert torch.equal(lower(program, Sealing(), (X,), name="keeping").module(X), other(X))


def test_an_engine_in_a_lowered_part_is_refused():
    """A part that was lowered twice, as by two backends one after the other."""
    inner = lowered(Sealing(1, "tanh"))
    module = lower(inner, Sealing(), (X,), name="outer").module

    with pytest.raises(PassError, match="FXP-P031"):
        fxplug.load_original_state_dict(module, Net().state_dict())
