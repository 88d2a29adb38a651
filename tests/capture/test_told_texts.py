"""Texts that a program prints or logs of its values: nothing hangs on them, so nothing is guarded for them."""

from __future__ import annotations

import logging

import pytest
import torch

import fxplug
from fxplug.errors import TraceError

LOG = logging.getLogger(__name__)


def prints_a_formatted_tensor(x):
    print(f"mean {x.mean():.3f}")  # noqa: T201 - as programs do
    return x * 2


def prints_a_tensor(x):
    print(x)  # noqa: T201
    return x * 2


def prints_a_filled_text(x):
    print("%d rows" % x.shape[0], "%.1f" % x.shape[1], "%s" % x.shape[0])  # noqa: T201, UP031
    return x * 2


def logs_a_text(x):
    LOG.info(f"{x.shape} with mean {x.mean():.2f}")  # noqa: G004
    return x * 2


def logs_a_number(x):
    LOG.warning("mean %.3f of %d rows, %s", x.mean().item(), x.shape[0], x.shape)
    return x * 2


def logs_by_an_adapter(x):
    logging.LoggerAdapter(LOG, {}).info("rows %d", x.shape[0])
    return x * 2


PROGRAMS = [
    prints_a_formatted_tensor,
    prints_a_tensor,
    prints_a_filled_text,
    logs_a_text,
    logs_a_number,
    logs_by_an_adapter,
]


@pytest.mark.parametrize("mode", ["value", "shape"])
@pytest.mark.parametrize("program", PROGRAMS)
def test_texts_for_people_are_no_guards(program, mode, caplog, capsys):
    if mode == "shape" and program is logs_a_number:
        with pytest.raises(TraceError, match=r"item\(\) needs the values .*FXP-T066"):
            fxplug.trace(program, (torch.rand(2, 3),), mode=mode)
        return
    with caplog.at_level(logging.INFO):
        module = fxplug.trace(program, (torch.rand(2, 3),), mode=mode)

    assert {guard.text for guard in module.guards} <= {"x.dim() == 2", "type(x) is torch.Tensor"}
    x = torch.rand(4, 5)
    assert torch.equal(module(x), x * 2)
    told = caplog.text if "logs" in program.__name__ else capsys.readouterr().out
    assert told
    assert "Logging error" not in capsys.readouterr().err


def keeps_the_text(x):
    text = f"{x.shape[0]}"
    return x * len(text)


def reads_the_text_back(x):
    return x * len("%d" % x.shape[0])  # noqa: UP031


def uses_a_method_of_its_own(x):
    kept = []

    class Log:
        def info(self, text):
            kept.append(text)

    log = Log()
    log.info(f"{x.shape[0]}")  # noqa: G004
    return x * len(kept[0])


@pytest.mark.parametrize("mode", ["value", "shape"])
@pytest.mark.parametrize("program", [keeps_the_text, reads_the_text_back, uses_a_method_of_its_own])
def test_other_texts_are_guarded(program, mode):
    module = fxplug.trace(program, (torch.rand(2, 3),), mode=mode)

    assert torch.equal(module(torch.ones(2, 3)), program(torch.ones(2, 3)))
    with pytest.raises(fxplug.GuardError, match=r"x\.shape\[0\]"):
        module(torch.ones(12, 3))
