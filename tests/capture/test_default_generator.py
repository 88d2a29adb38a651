"""The generators of torch: drawing from the default one, asking where they are, and setting them."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import fxplug
from fxplug.errors import TraceError, TraceWarning

X = torch.ones(3)


def draws(program):
    found = []
    for seed in (1, 2):
        torch.manual_seed(seed)
        found += [program(X), program(X), torch.rand(1)]
    return found


def check(program, captured):
    wanted, found = draws(program), draws(captured)
    assert all(map(torch.equal, wanted, found))


ON_EXAMPLES = {
    "draw": lambda x: x + torch.rand(3, generator=torch.default_generator),
    "method": lambda x: x.clone().normal_(generator=torch.default_generator),
    "initial_seed": lambda x: x + torch.initial_seed(),
    "random.initial_seed": lambda x: x + torch.random.initial_seed() % 2,
    "state": lambda x: x + torch.rand(3) + torch.get_rng_state().sum(),
}


@pytest.mark.parametrize("mode", ["value", "shape"])
@pytest.mark.parametrize("checked", [True, False])
@pytest.mark.parametrize("name", ON_EXAMPLES)
def test_the_default_generator_is_that_of_torch(name, checked, mode):
    program = ON_EXAMPLES[name]
    check(program, fxplug.trace(program, (X,), mode=mode, check=checked))


def test_the_default_generator_is_that_of_torch_behind_a_file(tmp_path):
    captured = fxplug.trace(ON_EXAMPLES["draw"], (X,))
    fxplug.save(captured, tmp_path / "module.fxp")
    check(ON_EXAMPLES["draw"], fxplug.load(tmp_path / "module.fxp"))


@pytest.mark.parametrize("name", ["initial_seed", "random.initial_seed", "state"])
def test_without_examples_asking_for_a_seed_is_refused(name):
    with pytest.raises(TraceError, match="tells where the random numbers of torch are") as info:
        fxplug.symbolic_trace(ON_EXAMPLES[name])
    assert info.value.code == "FXP-T053"


def test_torch_may_ask_for_itself_without_examples():
    layer = nn.Linear(3, 3)

    def program(x):
        return torch.utils.checkpoint.checkpoint(layer, x, use_reentrant=False)

    with pytest.warns(TraceWarning, match="operation by operation"):
        captured = fxplug.symbolic_trace(program)
    assert torch.equal(captured(X), program(X))


def seeded_by_chance():
    generator = torch.Generator()
    generator.seed()
    return generator


held = torch.Generator()
SETTING = {
    "initial_seed": lambda x: x + torch.default_generator.initial_seed(),
    "manual_seed": lambda x: x + torch.rand(3, generator=held.manual_seed(5)),
    "set_state": lambda x: held.set_state(held.get_state()) and x,
    "seed": lambda x: x + held.seed(),
    "default seed": lambda x: x + torch.default_generator.seed(),
    "made": lambda x: x + torch.rand(3, generator=seeded_by_chance()),
}


@pytest.mark.parametrize("name", SETTING)
def test_setting_a_generator_that_was_there_before_is_refused(capture_as, name):
    held.manual_seed(3)
    with pytest.raises(TraceError) as info:
        capture_as(SETTING[name])
    assert info.value.code in {"FXP-T053", "FXP-T006"}


def test_setting_a_generator_that_a_module_holds_is_refused(capture_as):
    class Noisy(nn.Module):
        def __init__(self):
            super().__init__()
            self.generator = torch.Generator()

        def forward(self, x):
            self.generator.manual_seed(5)
            return x + 1

    with pytest.raises(
        TraceError, match=r"torch.Generator.manual_seed is called at .*test_default_generator"
    ):
        capture_as(Noisy())


def test_a_generator_that_the_program_makes_may_be_seeded(capture_unchecked, request):
    def program(x):
        return x + torch.rand(3, generator=torch.Generator().manual_seed(5))

    if "symbolic" in request.node.name:
        pytest.skip("it takes no generators")
    check(program, capture_unchecked(program))


@pytest.mark.parametrize("mode", ["value", "shape"])
def test_a_generator_that_a_module_holds_is_the_same_for_each_run_of_the_check(mode):
    class Noisy(nn.Module):
        def __init__(self):
            super().__init__()
            self.generator = torch.Generator().manual_seed(1)

        def forward(self, x):
            return x + torch.rand(3, generator=self.generator)

    captured, eager = fxplug.trace(Noisy(), (X,), mode=mode), Noisy()
    for _ in range(2):
        assert torch.equal(captured(X), eager(X))
