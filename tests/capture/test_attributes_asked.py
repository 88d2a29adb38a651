"""Attributes of inputs that a program asks for and the examples do not have, and inputs that are there or are not."""

from __future__ import annotations

import copy
import logging
import pickle

import pytest
import torch
from torch import nn

import fxplug
from fxplug.errors import GuardError


def scaled(value=None, **attributes):
    x = torch.ones(2, 3) if value is None else value
    for name, held in attributes.items():
        setattr(x, name, held)
    return x


def by_default(x):
    return x * getattr(x, "scale", 1.0)


def by_question(x):
    return x * 2 if hasattr(x, "scale") else x


def by_trial(x):
    try:
        return x * x.scale
    except AttributeError:
        return x


def by_table(x):
    return x * vars(x).get("scale", 1.0)


def by_dict(x):
    return x * x.__dict__.get("scale", 1.0)


def by_computed_name(x, name="sca"):
    return x * getattr(x, f"{name}le", 1.0)


def in_batch(batch):
    return batch["x"] * getattr(batch["x"], "scale", 1.0)


ASKING = [by_default, by_question, by_trial, by_table, by_dict, by_computed_name]


@pytest.mark.parametrize("mode", ["shape", "value"])
@pytest.mark.parametrize("program", ASKING)
def test_an_attribute_that_the_example_lacks_is_guarded(program, mode):
    captured = fxplug.trace(program, (torch.ones(2, 3),), mode=mode)

    for one in (captured, copy.deepcopy(captured), pickle.loads(pickle.dumps(captured))):
        torch.testing.assert_close(one(torch.ones(2, 3) * 2), program(torch.ones(2, 3) * 2))
        with pytest.raises(GuardError, match=r"not hasattr\(x, 'scale'\)|len\(list\(vars\(x\)\)\) == 0"):
            one(scaled(scale=3.0))


def by_many_names(x):
    for scale in (
        getattr(x, "a", 1),
        getattr(x, "b", 1),
        getattr(x, "c", 1),
        getattr(x, "d", 1),
        getattr(x, "e", 1),
    ):
        x = x * scale
    for scale in (
        getattr(x, "f", 1),
        getattr(x, "g", 1),
        getattr(x, "h", 1),
        getattr(x, "i", 1),
        getattr(x, "j", 1),
    ):
        x = x * scale
    return x


class WithScale(torch.Tensor):
    j = 3


@pytest.mark.parametrize("mode", ["shape", "value"])
def test_many_names_that_the_example_lacks_make_one_guard(mode):
    captured = fxplug.trace(by_many_names, (scaled(),), mode=mode)
    assert [guard for guard in map(str, captured.guards) if "hasattr" in guard] == []
    assert captured(scaled()).tolist() == scaled().tolist()
    for other in (scaled(j=2.0), scaled().as_subclass(WithScale)):
        with pytest.raises(GuardError):
            captured(other)


def test_attributes_of_tensors_in_containers_are_guarded():
    captured = fxplug.trace(in_batch, ({"x": torch.ones(2)},))

    with pytest.raises(GuardError, match="not hasattr"):
        captured({"x": scaled(scale=3.0)})


def test_files_keep_the_guard(tmp_path):
    captured = fxplug.trace(by_default, (torch.ones(2, 3),))
    fxplug.save(captured, tmp_path / "module.fxplug")

    with pytest.raises(GuardError, match="not hasattr"):
        fxplug.load(tmp_path / "module.fxplug")(scaled(scale=3.0))


class AsksItself(nn.Module):
    def forward(self, x):
        if hasattr(self, "unknown") or getattr(self, "other", False):
            return x
        try:
            return x * self.missing
        except AttributeError:
            return x * 2


def test_what_a_module_asks_itself_is_no_question_about_inputs():
    captured = fxplug.trace(AsksItself(), (torch.ones(2, 3),))

    assert not [guard for guard in captured.guards if "hasattr" in guard.text]


def optional(x, mask=None):
    return x if mask is None else x * mask


def in_dict(x, batch):
    return x if batch["mask"] is None else x * batch["mask"]


@pytest.mark.parametrize(
    ("program", "example", "other", "said"),
    [
        (optional, torch.ones(3), None, "captured for mask is not None, and now it is None"),
        (optional, None, torch.ones(3), "captured for mask is None, and now it is a tensor of shape (3,)"),
        (optional, None, 2.0, "captured for mask is None, and now it is of the class float"),
        (in_dict, {"mask": torch.ones(3)}, {"mask": None}, "batch_mask is not None, and now it is None"),
        (
            in_dict,
            {"mask": None},
            {"mask": torch.ones(3)},
            "batch_mask is None, and now it is a tensor of shape (3,)",
        ),
    ],
)
@pytest.mark.parametrize("mode", ["shape", "value"])
def test_the_message_says_which_input_is_missing_or_new(mode, program, example, other, said):
    x = torch.ones(2, 3)
    captured = fxplug.trace(program, (x, example), mode=mode)

    with pytest.raises(GuardError) as caught:
        captured(x, other)
    assert said in caught.value.message
    assert "on_guard_failure='recapture'" in caught.value.message


def test_other_inputs_are_captured_anew():
    x = torch.ones(2, 3)
    captured = fxplug.trace(in_dict, (x, {"mask": torch.ones(3)}), on_guard_failure="eager")

    assert torch.equal(captured(x, {"mask": None}), x)


# -- places of assignments


class Own(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.zeros(3))

    def forward(self, x):
        self.mean = x.mean(0)
        return x - self.mean


class Makes(nn.Module):
    def forward(self, x):
        return Own()(x)


class Holds(nn.Module):
    def __init__(self):
        super().__init__()
        self.held = [Own()]

    def forward(self, x):
        own = self.held[0]
        own.mean = x.mean(1)
        return x * own.mean.sum()


@pytest.mark.parametrize(("model", "function"), [(Makes(), Own.forward), (Holds(), Holds.forward)])
@pytest.mark.parametrize("mode", ["symbolic", "value"])
def test_an_assigned_buffer_of_a_module_outside_is_told_with_its_line(mode, model, function):
    with pytest.raises(fxplug.TraceError) as caught:
        fxplug.trace(model, (torch.ones(2, 3),), mode=mode)

    lines = [line for _, _, line in function.__code__.co_lines() if line is not None]
    assert caught.value.code == "FXP-T009"
    assert any(f"{__file__}:{line} in forward" in caught.value.message for line in lines)


# -- messages about traced numbers

LOG = logging.getLogger("tests.capture.told")


def logs(x):
    LOG.info("%d rows of %5.2f, 100%%", x.shape[0], x.mean())
    LOG.info("%(rows)03d rows", {"rows": x.shape[0]})
    LOG.info("%s of %r", x.shape, x.sum())
    LOG.info("all %s", "plain")
    return x * 2


def test_loggers_tell_of_traced_numbers_without_a_value(caplog, capsys):
    caplog.set_level(logging.INFO)

    captured = fxplug.symbolic_trace(logs)

    assert capsys.readouterr().err == ""
    first, second, _, last = (record.message for record in caplog.records)
    assert first == "Proxy(getitem) rows of Proxy(mean), 100%"
    assert second == "Proxy(getitem_1) rows"
    assert last == "all plain"
    assert torch.equal(captured(torch.ones(2)), torch.ones(2) * 2)


def test_loggers_tell_of_examples_as_in_eager(caplog):
    caplog.set_level(logging.INFO)

    fxplug.trace(logs, (torch.ones(2, 3),), check=False)

    assert caplog.records[0].message == "2 rows of  1.00, 100%"
