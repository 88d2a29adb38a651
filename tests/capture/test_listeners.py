"""Whom Python tells of calls: not while torch or a trace works by itself, and everybody who listens else."""

from __future__ import annotations

import sys
import warnings

import pytest
import torch
from torch import nn

import fxplug
from fxplug.capture.listeners import FunctionCallsPatch, stop_telling, tell_again

THIS = sys.modules[__name__]
X = torch.linspace(-2, 2, 12).reshape(3, 4)


class Hearing(FunctionCallsPatch):
    def __init__(self):
        super().__init__()
        self.heard = []

    def on_call(self, frame):
        self.heard.append(frame.f_code.co_name)


@pytest.fixture
def hearing():
    made = []

    def make():
        made.append(Hearing())
        made[-1].install()
        return made[-1]

    former = sys.getprofile()
    yield make
    for one in reversed(made):
        one.remove()
    assert sys.getprofile() is former


def is_called():
    pass


def test_nobody_is_told_until_it_is_told_again(hearing):
    one = hearing()
    told = stop_telling()
    is_called()
    assert sys.getprofile() is None
    tell_again(told)
    is_called()
    assert one.heard.count("is_called") == 1


def test_nothing_is_stopped_where_nobody_listens():
    former = sys.getprofile()
    sys.setprofile(None)
    try:
        told = stop_telling()
        tell_again(told)
        assert told is None
        assert sys.getprofile() is None
    finally:
        sys.setprofile(former)


def test_who_listened_before_is_told_all_the_time():
    former, heard = sys.getprofile(), []

    def listen(frame, event, _):
        if event == "call":
            heard.append(frame.f_code.co_name)

    sys.setprofile(listen)
    one = Hearing()
    try:
        assert stop_telling() is None
        one.install()
        told = stop_telling()
        is_called()
        tell_again(told)
    finally:
        one.remove()
        found = sys.getprofile()
        sys.setprofile(former)
    assert told is None
    assert found is listen
    assert heard.count("is_called") == one.heard.count("is_called") == 1


def test_who_begins_to_listen_meanwhile_passes_it_on(hearing):
    one = hearing()
    told = stop_telling()
    other = hearing()
    is_called()
    tell_again(told)
    is_called()
    assert (one.heard.count("is_called"), other.heard.count("is_called")) == (1, 2)


def helper_adds(x):
    return x + 1


def helper_counts(x):
    COUNTS["calls"] += 1
    return x * COUNTS["calls"]


COUNTS = {"calls": 0}


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x):
        rows = x.shape[0] * 2 - x.shape[0]
        return self.layer(x).relu().view(rows, -1) + 1


class Net(nn.Module):
    def __init__(self, kind):
        super().__init__()
        self.kind = kind
        self.blocks = nn.ModuleList([Block() for _ in range(8)])

    def forward(self, x):
        x = getattr(THIS, f"helper_{self.kind}")(x)
        for block in self.blocks:
            x = block(x)
        return getattr(THIS, f"helper_{self.kind}")(x)


def test_what_a_trace_does_by_itself_is_not_told_of(monkeypatch):
    told = {"program": 0, "other": 0}
    hear = FunctionCallsPatch._hear

    def counted(self, frame, event, argument):
        if event == "call":
            told["program" if frame.f_code.co_filename == __file__ else "other"] += 1
        hear(self, frame, event, argument)

    monkeypatch.setattr(FunctionCallsPatch, "_hear", counted)
    net = Net("adds")
    fxplug.trace(net, (X,), check=False)
    fewer = dict(told)
    assert fewer["program"] >= 10
    for name in ("examples.listening", "examples.layers", "tracer"):
        monkeypatch.setattr(f"fxplug.capture.{name}.stop_telling", sys.getprofile)
        monkeypatch.setattr(f"fxplug.capture.{name}.tell_again", sys.setprofile, raising=False)
    told.update(program=0, other=0)
    fxplug.trace(net, (X,), check=False)
    assert told["program"] == fewer["program"]
    assert told["other"] > 2 * fewer["other"]


def test_a_function_behind_calls_of_torch_is_heard_of():
    class Later(nn.Module):
        def forward(self, x):
            x = getattr(THIS, "helper_" + "adds")(x.relu())
            return getattr(THIS, "helper_" + "counts")(x.relu())

    with pytest.raises(fxplug.TraceError, match="COUNTS") as caught:
        fxplug.trace(Later(), (X,))
    assert caught.value.code == "FXP-T055"
    assert COUNTS["calls"] == 0


def test_an_inner_trace_of_any_kind_leaves_what_is_told():
    told = []

    class Outer(nn.Module):
        def forward(self, x):
            x = getattr(THIS, "helper_" + "adds")(x)
            told.append(sys.getprofile())
            fxplug.symbolic_trace(nn.Sequential(nn.ReLU()))
            told.append(sys.getprofile())
            fxplug.trace(nn.Sequential(nn.ReLU()), (torch.ones(2),))
            told.append(sys.getprofile())
            fxplug.trace(Net("adds"), (torch.ones(3, 4),), check=False)
            told.append(sys.getprofile())
            return x

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        fxplug.trace(Outer(), (X.clone(),), check=False)
    assert len(told) >= 4
    assert isinstance(told[-4].__self__, FunctionCallsPatch)
    assert [one is told[-4] for one in told[-4:]] == [True] * 4


def test_an_inner_trace_leaves_the_listener_of_the_outer_one():
    class Outer(nn.Module):
        def forward(self, x):
            x = getattr(THIS, "helper_" + "adds")(x)
            fxplug.symbolic_trace(nn.ReLU())
            fxplug.trace(nn.Sequential(nn.ReLU()), (torch.ones(2),))
            return getattr(THIS, "helper_" + "counts")(x)

    with pytest.raises(fxplug.TraceError, match="COUNTS"):
        fxplug.trace(Outer(), (X.clone(),))
    assert COUNTS["calls"] == 0
    assert sys.getprofile() is None or not isinstance(
        getattr(sys.getprofile(), "__self__", None), FunctionCallsPatch
    )
