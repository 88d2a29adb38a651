"""An optimizer that was made before a pipeline trains the module that comes out of it."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

import fxplug
from fxplug.errors import PassError
from fxplug.passes import Pass, PassRecord, PassResult, Pipeline, PipelineStep

X = torch.linspace(-1, 1, 12).reshape(3, 4)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.second = nn.Linear(4, 4)
        self.register_buffer("offset", torch.ones(4))

    def forward(self, x):
        return self.second(torch.relu(self.first(x))) + self.offset


class Tied(Net):
    def __init__(self):
        super().__init__()
        self.second.weight = self.first.weight


@pytest.fixture
def module():
    torch.manual_seed(0)
    return fxplug.symbolic_trace(Net())


@pytest.fixture
def tied():
    torch.manual_seed(0)
    return fxplug.symbolic_trace(Tied())


def run(module, change, *, on_error="raise", **declared):
    class Change(Pass):
        def run(self, module, context):
            change(module)
            return PassResult(modified=True)

    record = PassRecord("change", Change, "Changes something.", **declared)
    return Pipeline("test", [PipelineStep("change", record, provider="demo 1.2")], on_error).run(module)


def renew(module):
    """Put a new, equal layer in the place of the first one."""
    layer = nn.Linear(4, 4)
    layer.load_state_dict(module.first.state_dict())
    module.add_submodule("first", layer)


def halve(module):
    layer = nn.Linear(4, 4)
    with torch.no_grad():
        layer.weight.copy_(module.first.weight / 2)
        layer.bias.copy_(module.first.bias)
    module.add_submodule("first", layer)


def train(module, optimizer, steps=5):
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = module(X).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


OPTIMIZERS = {
    "sgd": lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9),
    "adam": lambda parameters: torch.optim.Adam(parameters, lr=0.05),
}


@pytest.mark.parametrize("optimizer", OPTIMIZERS.values(), ids=OPTIMIZERS)
@pytest.mark.parametrize("kind", [Net, Tied])
def test_training_goes_on_as_if_nothing_had_happened(optimizer, kind):
    torch.manual_seed(0)
    module = fxplug.symbolic_trace(kind())
    twin = copy.deepcopy(module)
    ours, theirs = (optimizer(part.parameters()) for part in (module, twin))
    assert train(module, ours) == train(twin, theirs)

    if kind is Net:
        run(module, renew)
    else:
        run(module, lambda module: [renew(module), setattr(module.second, "weight", module.first.weight)])

    before = {name: value.clone() for name, value in module.state_dict().items()}
    assert train(module, ours) == train(twin, theirs)
    after = module.state_dict()
    assert all(not torch.equal(after[name], before[name]) for name in before if name != "offset")


class TestWhatIsPutBack:
    def test_the_object_with_the_new_values(self, module):
        parameters = list(module.parameters())
        weight = module.first.weight.detach().clone()
        memory = [value.data_ptr() for value in parameters]
        run(module, halve)
        assert all(ours is theirs for ours, theirs in zip(module.parameters(), parameters, strict=True))
        assert [value.data_ptr() for value in module.parameters()] == memory
        assert torch.equal(module.first.weight, weight / 2)

    def test_gradient_and_flag_are_the_old_ones(self, module):
        module(X).sum().backward()
        module.first.bias.requires_grad_(False)
        gradient = module.first.weight.grad
        run(module, halve)
        assert module.first.weight.grad is gradient
        assert not module.first.bias.requires_grad

    def test_views_see_the_new_values(self, module):
        view = module.first.weight.detach()[0]
        expected = view / 2
        run(module, halve)
        assert torch.equal(view, expected)

    def test_other_strides_and_views_of_the_old_one(self, module):
        weight = module.first.weight
        expected = weight.detach().t().clone()
        run(module, lambda module: setattr(module.first, "weight", nn.Parameter(weight.detach().t())))
        assert module.first.weight is weight
        assert torch.equal(weight, expected)

    def test_tied_ones_stay_tied(self, tied):
        weight = tied.first.weight

        def exchange(module):
            module.first.weight = module.second.weight = nn.Parameter(weight.detach() * 3)

        run(tied, exchange)
        assert tied.first.weight is tied.second.weight is weight

    def test_one_that_got_another_path_is_the_same_object(self, module):
        weight = module.first.weight

        def move(module):
            module.add_submodule("moved", module.first)
            next(iter(module.graph.find_nodes(op="call_module", target="first"))).target = "moved"
            module.delete_submodule("first")

        run(module, move)
        assert module.moved.weight is weight

    def test_two_that_changed_places(self, module):
        first, second = module.first.weight, module.second.weight
        run(module, lambda m: (setattr(m.first, "weight", second), setattr(m.second, "weight", first)))
        assert module.first.weight is second
        assert module.second.weight is first

    def test_new_ones_in_the_memory_of_one_another(self, module):
        first, second = module.first.weight, module.second.weight
        values = first.detach().clone(), second.detach().clone()

        def exchange(module):
            module.first.weight = nn.Parameter(second.detach())
            module.second.weight = nn.Parameter(first.detach())

        run(module, exchange)
        assert module.first.weight is first
        assert module.second.weight is second
        assert torch.equal(first, values[1])
        assert torch.equal(second, values[0])

    def test_old_values_that_the_pass_put_aside_stay(self, module):
        weight = module.first.weight
        values = weight.detach().clone()

        def round_weight(module):
            module.first.register_buffer("unrounded", weight.detach())
            module.first.weight = nn.Parameter(weight.detach().round())

        run(module, round_weight)
        assert module.first.weight is weight
        assert torch.equal(weight, values.round())
        assert torch.equal(module.first.unrounded, values)

    def test_a_failure_undoes_what_was_put_aside(self, module, monkeypatch):
        weight = module.first.weight
        values, memory = weight.detach().clone(), weight.data_ptr()

        def round_weight(module):
            module.first.register_buffer("unrounded", weight.detach())
            module.first.weight = nn.Parameter(weight.detach().round())

        monkeypatch.setattr("fxplug.passes.steps.StepRun._verify", lambda *_: 1 / 0)
        with pytest.raises(PassError, match="ZeroDivisionError"):
            run(module, round_weight)
        assert module.first.weight is weight
        assert weight.data_ptr() == memory
        assert torch.equal(weight, values)
        assert "unrounded" not in dict(module.first.named_buffers())

    def test_new_parameters_may_come(self, module):
        run(module, lambda module: module.register_parameter("extra", nn.Parameter(torch.ones(2))))
        assert torch.equal(module.extra, torch.ones(2))

    def test_a_pass_that_declares_it_has_its_way(self, module):
        weight = module.first.weight
        run(module, halve, replaces_parameters=True)
        assert module.first.weight is not weight

    def test_a_later_failure_gives_back_the_old_values(self, module, monkeypatch):
        weight = module.first.weight
        values = weight.detach().clone()
        monkeypatch.setattr("fxplug.passes.steps.StepRun._verify", lambda *_: 1 / 0)
        with pytest.raises(PassError, match="ZeroDivisionError"):
            run(module, halve)
        assert module.first.weight is weight
        assert torch.equal(weight, values)


def drop(module):
    module.graph.find_nodes(op="call_module", target="first")[0].target = "second"
    module.delete_submodule("first")


class TestWhatIsRefused:
    @pytest.mark.parametrize(
        ("change", "found"),
        [
            (drop, r"'first\.weight' \(float32\[4, 4\]\) is gone; 'first\.bias' \(float32\[4\]\) is gone"),
            (lambda m: m.add_submodule("first", nn.Linear(4, 4, bias=False)), r"'first\.bias' .* is gone"),
            (
                lambda m: m.add_submodule("first", nn.Linear(4, 4, dtype=torch.float64)),
                r"'first\.weight' was float32\[4, 4\] and is float64\[4, 4\]",
            ),
            (
                lambda m: m.add_submodule("first", nn.Linear(5, 4)),
                r"'first\.weight' was float32\[4, 4\] and is float32\[4, 5\]",
            ),
            (
                lambda m: m.add_submodule("first", nn.Linear(4, 4, device="meta")),
                r"is float32\[4, 4\] on meta",
            ),
            (lambda m: setattr(m.second, "weight", m.first.weight), r"'second\.weight' .* is gone"),
            (
                lambda m: (
                    setattr(m.first, "weight", nn.Parameter(torch.ones(4, 4)))
                    or setattr(m.second, "weight", m.first.weight)
                ),
                r"'second\.weight' and 'first\.weight' were two parameters and are one",
            ),
        ],
        ids=["dropped", "bias", "dtype", "shape", "device", "tied", "merged"],
    )
    def test_and_undone(self, module, change, found):
        before = dict(module.named_parameters())
        values = {name: value.detach().clone() for name, value in before.items()}
        text = str(module.graph)
        with pytest.raises(PassError, match=found) as caught:
            run(module, change)
        assert caught.value.code == "FXP-P023"
        assert "Pass 'change' of demo 1.2 does not keep the parameters" in str(caught.value)
        assert "PassRecord(replaces_parameters=True)" in str(caught.value)
        after = dict(module.named_parameters())
        assert before.keys() == after.keys()
        assert all(
            after[name] is value and torch.equal(value, values[name]) for name, value in before.items()
        )
        assert str(module.graph) == text

        run(module, change, replaces_parameters=True)

    def test_tied_ones_that_come_apart(self, tied):
        with pytest.raises(
            PassError, match=r"'first\.weight', which was tied to 'second\.weight', is a para"
        ):
            run(tied, lambda module: module.add_submodule("first", nn.Linear(4, 4)))
        with pytest.raises(
            PassError, match=r"'first\.weight' and 'second\.weight', which were tied, are para"
        ):
            run(tied, lambda m: [m.add_submodule(name, nn.Linear(4, 4)) for name in ("first", "second")])

    def test_long_lists_are_cut(self, module):
        with pytest.raises(PassError, match="; and 1 more"):
            run(module, lambda m: [m.add_submodule(name, nn.Linear(5, 5)) for name in ("first", "second")])

    def test_rollback_reports_it(self, module):
        (report,) = run(module, drop, on_error="rollback")
        assert "does not keep the parameters" in report.error
        module(X)


def test_dead_code_and_folding_declare_what_they_do():
    records = {record.name: record for record in fxplug.passes.BUILTIN_PASSES}
    assert {name for name, record in records.items() if record.replaces_parameters} == {
        "channels-last",
        "dead-code",
        "fold-constants",
        "fuse-conv-bn",
        "merge-linear",
        "mixed-precision",
    }


def test_buffers_are_what_the_pass_leaves(module):
    run(module, lambda module: module.register_buffer("offset", torch.zeros(4)))
    assert torch.equal(module.offset, torch.zeros(4))
