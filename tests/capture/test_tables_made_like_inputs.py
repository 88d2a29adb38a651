"""Tables that a program makes once, with the dtype, device or sizes of its inputs, and none of their values."""

import copy

import pytest
import torch
from torch import nn

import fxplug

pytestmark = pytest.mark.filterwarnings("ignore:While :fxplug.errors.TraceWarning")
MODES = ["shape", "value"]


class Kept(nn.Module):
    """Makes its table at the first call."""

    table = None

    def make(self, x):
        raise NotImplementedError

    def forward(self, x):
        if self.table is None or self.table.shape[-1] != x.shape[-1]:
            self.table = self.make(x)
        return x + self.table


class NewFull(Kept):
    def make(self, x):
        return x.new_full((x.shape[-1],), 3)


class NewOnes(Kept):
    def make(self, x):
        return x.new_ones(x.shape[-1]) * 2


class NewTensor(Kept):
    def make(self, x):
        return x.new_tensor([1.0]).expand(x.shape[-1])


class TypeAs(Kept):
    def make(self, x):
        return torch.arange(x.shape[-1]).type_as(x) + 0.5


class To(Kept):
    def make(self, x):
        return torch.arange(x.shape[-1]).to(x)


class Named(Kept):
    def make(self, x):
        return torch.full((x.shape[-1],), 2, dtype=x.dtype, device=x.device)


class NeedsNoGradient(Kept):
    def make(self, x):
        table = torch.arange(x.shape[-1]).to(x)
        table.requires_grad = False
        return table.requires_grad_(False)


class OfComputed(Kept):
    """What it is like is none of the inputs: it is checked where it is computed."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.scale = torch.tensor(2.0)

    def make(self, x):
        y = self.linear(x)
        return y.new_full((x.shape[-1],), 2) * self.scale + torch.arange(x.shape[-1]).type_as(y)

    def forward(self, x):
        return self.linear(super().forward(x))


class Anchors(nn.Module):
    """As heads of detectors do it: for each size of a list of maps, and again where the first one has another size."""

    shape = anchors = strides = None

    def __init__(self):
        super().__init__()
        self.convs = nn.ModuleList([nn.Conv2d(3, 2, 3, stride=step, padding=1) for step in (1, 2)])

    def forward(self, x):
        maps = [conv(x) for conv in self.convs]
        shape = maps[0].shape
        if self.shape != shape:
            points = []
            for one in maps:
                rows, columns = one.shape[2:]
                steps = (
                    torch.arange(rows).type_as(maps[0]) + 0.5,
                    torch.arange(columns).type_as(maps[0]) + 0.5,
                )
                points.append(torch.stack(torch.meshgrid(*steps, indexing="ij"), -1).view(-1, 2))
            self.anchors = torch.cat(points).transpose(0, 1)
            self.strides = torch.cat(
                [one.new_full((one[0, 0].numel(), 1), 8, dtype=one.dtype) for one in maps]
            ).t()
            self.shape = shape
        found = torch.cat([one.flatten(2) for one in maps], 2)
        return (found + self.anchors) * self.strides


KINDS = [NewFull, NewOnes, NewTensor, TypeAs, To, Named, NeedsNoGradient, OfComputed]


def same_weights(kind, made):
    fresh = kind()
    fresh.load_state_dict(made.state_dict())
    return fresh


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("kind", KINDS)
def test_only_the_traits_of_the_inputs_are_fixed(kind, mode):
    model = kind()
    captured = fxplug.trace(model, (torch.rand(2, 4),), mode=mode)
    assert model.table is None
    for made in (captured, copy.deepcopy(captured)):
        reference = same_weights(kind, model)
        for batch in (2, 3, 1):
            x = torch.rand(batch, 4)
            torch.testing.assert_close(made(x), reference(x))
    with pytest.raises(fxplug.GuardError):
        captured(torch.rand(2, 5))
    if kind is not OfComputed:  # A program that has its table would go on with that of the first dtype.
        with pytest.raises(fxplug.GuardError):
            captured(torch.rand(2, 4).double())


def test_a_dtype_of_something_computed_is_checked_there():
    model = OfComputed()
    captured = fxplug.trace(model, (torch.rand(2, 4),))
    captured.double()
    with pytest.raises(fxplug.GuardError):
        captured(torch.rand(2, 4).double())


@pytest.mark.parametrize("mode", MODES)
def test_tables_for_the_maps_of_a_detector_are_captured(mode):
    torch.manual_seed(0)
    model = Anchors()
    captured = fxplug.trace(model, (torch.rand(2, 3, 8, 8),), mode=mode)
    assert model.anchors is None
    reference = same_weights(Anchors, model)
    for _ in range(2):
        x = torch.rand(2, 3, 8, 8)
        torch.testing.assert_close(captured(x), reference(x))
    with pytest.raises(fxplug.GuardError):
        captured(torch.rand(2, 3, 6, 8))


class ZerosLike(Kept):
    def make(self, x):
        return torch.zeros_like(x) + 2


class FullLike(Kept):
    def make(self, x):
        return torch.full_like(input=x, fill_value=2)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("kind", [ZerosLike, FullLike])
def test_a_table_of_the_size_of_an_input_fixes_that_size(kind, mode):
    captured, reference = fxplug.trace(kind(), (torch.rand(2, 4),), mode=mode), kind()
    for _ in range(2):
        x = torch.rand(2, 4)
        torch.testing.assert_close(captured(x), reference(x))
    with pytest.raises(fxplug.GuardError):
        captured(torch.rand(3, 4))
    with pytest.raises(fxplug.GuardError):  # The table has the strides of the first input.
        captured(torch.rand(4, 2).t())


class OfValues(Kept):
    def make(self, x):
        return x.new_full((4,), x.sum().item())


class OfTensors(Kept):
    def make(self, x):
        return x.mean(0).type_as(x)


class Drawn(Kept):
    def make(self, x):
        return torch.rand_like(x[0])


class Filled(Kept):
    def make(self, x):
        table = x.new_zeros(4)
        table[1:] = x[0, 1:]
        return table


class NeedsAGradient(Kept):
    def make(self, x):
        return x.new_zeros(4).requires_grad_()


class Written(Kept):
    """The table is made of nothing of the inputs, and goes on from call to call."""

    def make(self, x):
        return x.new_zeros(4)

    def forward(self, x):
        y = super().forward(x)
        self.table.add_(x.mean(0))
        return y


@pytest.mark.parametrize("kind", [OfValues, OfTensors, Drawn, Filled, NeedsAGradient, Written])
def test_a_table_of_values_is_refused(kind):
    with pytest.raises(fxplug.TraceError) as caught:
        fxplug.trace(kind(), (torch.rand(2, 4),), mode="value")
    assert caught.value.code == "FXP-T055"


@pytest.mark.parametrize("on_guard_failure", ["recapture", "eager"])
def test_where_other_calls_run_too_such_programs_are_refused(on_guard_failure):
    with pytest.raises(fxplug.TraceError) as caught:
        fxplug.trace(TypeAs(), (torch.rand(2, 4),), on_guard_failure=on_guard_failure)
    assert caught.value.code == "FXP-T055"


class AsksMore(nn.Module):
    """Asks something of what it computes only once it has its table."""

    table = None

    def forward(self, x):
        if self.table is None:
            self.table = x.new_ones(4)
        elif (x * 2).sum() > 100:
            return x
        return x + self.table


def test_a_second_call_that_asks_more_of_what_it_computes_is_refused():
    with pytest.raises(fxplug.TraceError) as caught:
        fxplug.trace(AsksMore(), (torch.rand(2, 4),))
    assert caught.value.code == "FXP-T055"


class AsksOther(nn.Module):
    """What its first call asks of a computed value is not what its second call asks."""

    table = None

    def forward(self, x):
        y = x * 2
        if self.table is None:
            if y.sum() > 4:
                y = y + 1
            self.table = x.new_ones(4)
        elif y.sum() > 8:
            y = y + 1
        return y + self.table


def test_a_second_call_that_asks_something_else_is_refused():
    with pytest.raises(fxplug.TraceError) as caught:
        fxplug.trace(AsksOther(), (torch.ones(2, 4),))
    assert caught.value.code == "FXP-T055"


class AsksLess(AsksOther):
    def forward(self, x):
        y = x * 2
        if self.table is None:
            assert y.sum() > 4
            self.table = x.new_ones(4)
        return y + self.table


def test_a_second_call_may_ask_less_of_what_is_computed():
    captured = fxplug.trace(AsksLess(), (torch.ones(2, 4),))
    torch.testing.assert_close(captured(torch.ones(3, 4)), torch.full((3, 4), 3.0))
    with pytest.raises(fxplug.GuardError):
        captured(torch.zeros(2, 4))


class AsksLater(nn.Module):
    """Both calls ask the same of something that is computed in many steps, which are counted otherwise in each."""

    table = None

    def forward(self, x):
        if self.table is None:
            self.table = torch.arange(x.shape[-1]) + 1 + 1
        y = x + self.table
        for _ in range(20):
            y = y + 1
        return y if y.sum() > 0 else -y


@pytest.mark.parametrize("on_guard_failure", ["error", "recapture"])
def test_questions_are_compared_by_what_they_ask(on_guard_failure):
    model = AsksLater()
    if on_guard_failure == "recapture":
        model(torch.ones(2, 4))
    captured, reference = (
        fxplug.trace(model, (torch.ones(2, 4),), on_guard_failure=on_guard_failure),
        AsksLater(),
    )
    for rows in (2, 3):
        x = torch.rand(rows, 4)
        torch.testing.assert_close(captured(x), reference(x))
    if on_guard_failure == "error":
        with pytest.raises(fxplug.GuardError):
            captured(-torch.full((2, 4), 100.0))


@pytest.mark.parametrize("mode", MODES)
def test_gradients_that_are_not_needed_stay_so_for_what_hangs_on_the_inputs(mode):
    def stopped(x, y):
        return x.detach().requires_grad_(False) * y, torch.ones(2).requires_grad_(False) * y

    captured = fxplug.trace(stopped, (torch.rand(2), torch.rand(2, requires_grad=True)), mode=mode)
    x, y = torch.rand(2, requires_grad=True), torch.rand(2, requires_grad=True)
    (captured(x, y)[0].sum() + captured(x, y)[1].sum()).backward()
    assert x.grad is None
    torch.testing.assert_close(y.grad, x.detach() + 1)
