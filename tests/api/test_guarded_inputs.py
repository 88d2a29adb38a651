"""What a program may find in its inputs beyond what the examples hold, and of which class they are, is guarded."""

from __future__ import annotations

from collections import OrderedDict, defaultdict
from typing import Any

import pytest
import torch
from torch import nn

import fxplug
from fxplug import GuardError

ONE, TWO = torch.ones(2), torch.tensor([0.0, 5.0])


class Batch:
    def __init__(self, x: torch.Tensor, **others: Any) -> None:
        self.x = x
        vars(self).update(others)


class BatchWithDefault(Batch):
    mask: Any = None

    def doubled(self) -> torch.Tensor:
        return self.x * 2


class AsksByName(nn.Module):
    def forward(self, batch: Any) -> torch.Tensor:
        mask = getattr(batch, "mask", None)
        return batch.x if mask is None else batch.x * mask


class AsksWhetherThere(nn.Module):
    def forward(self, batch: Any) -> torch.Tensor:
        return batch.x * batch.mask if hasattr(batch, "mask") else batch.x


class Tries(nn.Module):
    def forward(self, batch: Any) -> torch.Tensor:
        try:
            return batch.x * batch.mask
        except AttributeError:
            return batch.x


class ReadsOfTheClass(nn.Module):
    def forward(self, batch: Any) -> torch.Tensor:
        return batch.x if batch.mask is None else batch.x * batch.mask


class LooksIntoTheDict(nn.Module):
    def forward(self, batch: Any) -> torch.Tensor:
        return batch.x * batch.mask if "mask" in batch.__dict__ else batch.x


class Counts(nn.Module):
    def forward(self, batch: Any) -> torch.Tensor:
        return batch.x * len(vars(batch))


class OfAList(nn.Module):
    def forward(self, batches: list[Any]) -> torch.Tensor:
        return batches[0].x * batches[0].mask if hasattr(batches[0], "mask") else batches[0].x


@pytest.mark.parametrize("mode", ["shape", "value"])
@pytest.mark.parametrize(
    ("program", "kind"),
    [
        (AsksByName, Batch),
        (AsksByName, BatchWithDefault),
        (AsksWhetherThere, Batch),
        (Tries, Batch),
        (ReadsOfTheClass, BatchWithDefault),
        (LooksIntoTheDict, Batch),
        (Counts, Batch),
    ],
)
def test_attributes_that_the_example_has_not_are_guarded(program, kind, mode):
    root = program()
    captured = fxplug.trace(root, (kind(ONE),), mode=mode)

    assert torch.equal(captured(kind(TWO)), root(kind(TWO)))
    assert not torch.equal(root(kind(ONE, mask=TWO)), root(kind(ONE)))
    with pytest.raises(GuardError, match=r"list\(vars\("):
        captured(kind(ONE, mask=TWO))


def test_attributes_of_objects_in_lists_are_guarded():
    captured = fxplug.trace(OfAList(), ([Batch(ONE)],))

    assert torch.equal(captured([Batch(TWO)]), TWO)
    with pytest.raises(GuardError, match=r"list\(vars\("):
        captured([Batch(ONE, mask=TWO)])


def test_other_attributes_than_the_program_asks_for_may_be_there():
    class Reads(nn.Module):
        def forward(self, batch: Any) -> torch.Tensor:
            return batch.x * 2

    captured = fxplug.trace(Reads(), (Batch(ONE),))
    with_methods = fxplug.trace(Reads(), (BatchWithDefault(ONE),))

    asked = [str(guard) for guard in with_methods.guards if "vars" in str(guard)]
    assert asked == ["not 'mask' in list(vars(batch))"]  # Methods are none of its values.
    assert torch.equal(captured(Batch(TWO, mask=ONE, name="other")), TWO * 2)


def test_the_guard_is_kept_by_files(tmp_path):
    captured, allowed = fxplug.trace(AsksByName(), (BatchWithDefault(ONE),)), [f"{__name__}:BatchWithDefault"]
    fxplug.save(captured, tmp_path / "asks.fxplug", allow=allowed)
    loaded = fxplug.load(tmp_path / "asks.fxplug", allow=allowed)

    assert torch.equal(loaded(BatchWithDefault(TWO)), TWO)
    with pytest.raises(GuardError, match=r"list\(vars\("):
        loaded(BatchWithDefault(ONE, mask=TWO))


@pytest.mark.parametrize("mode", ["shape", "value"])
@pytest.mark.parametrize("kind", [OrderedDict, lambda parts: defaultdict(list, parts)])
def test_dicts_of_another_class_are_another_structure(kind, mode):
    def program(parts):
        return parts["x"] * 2 if isinstance(parts, (OrderedDict, defaultdict)) else parts["x"]

    captured = fxplug.trace(program, ({"x": ONE},), mode=mode)
    assert torch.equal(captured({"x": TWO}), TWO)
    with pytest.raises(GuardError, match=r"is a (Ordered|default)"):
        captured(kind({"x": TWO}))

    captured = fxplug.trace(program, (kind({"x": ONE}),), mode=mode)
    assert torch.equal(captured(kind({"x": TWO})), TWO * 2)
    with pytest.raises(GuardError, match="is a dict"):
        captured({"x": TWO})


@pytest.mark.parametrize("mode", ["shape", "value"])
def test_a_tensor_does_not_decide_in_the_place_of_a_number(mode):
    def program(x, n):
        return x * ((n > 0) + (n > 1))

    captured = fxplug.trace(program, (TWO, 2.0), mode=mode)

    assert torch.equal(captured(TWO, 3), program(TWO, 3))
    assert not torch.equal(captured(TWO, 2.0), program(TWO, torch.tensor(2.0)))
    with pytest.raises(GuardError, match=r"not isinstance\(n, torch.Tensor\)"):
        captured(TWO, torch.tensor(2.0))


def test_a_tensor_may_stand_for_a_number_that_decides_nothing():
    captured = fxplug.trace(lambda x, n: x * n, (TWO, 2.0))

    assert torch.equal(captured(TWO, torch.tensor(3.0)), TWO * 3)


def test_parts_of_complex_numbers_are_assigned_in_the_last_dimension():
    def program(x):
        y = x.clone()
        y.imag = torch.zeros(())
        return y

    captured = fxplug.trace(program, (torch.randn(2, 3, dtype=torch.cfloat),))

    x = torch.randn(4, 3, dtype=torch.cfloat)
    assert torch.equal(captured(x), program(x))
    with pytest.raises(GuardError, match="dim"):
        captured(torch.randn(4, 5, 3, dtype=torch.cfloat))
