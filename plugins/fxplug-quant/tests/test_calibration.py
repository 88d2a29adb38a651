"""Calibration: it goes on where it stopped, gives the same each time, and says how far it is."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

import fxplug
import fxplug_quant
from fxplug.errors import ConfigError
from fxplug_quant import QuantizationError
from fxplug_quant.calibration import run_observed
from fxplug_quant.observers import (
    OBSERVERS,
    ChannelMaxima,
    ChannelMeans,
    Histogram,
    MovingAverage,
    Percentile,
    make_observer,
)


@pytest.fixture
def model() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 4)).eval()


@pytest.fixture
def batches() -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    return [torch.randn(16, 8, generator=generator) * (index + 1) for index in range(4)]


def equal(first, second) -> bool:
    return first.keys() == second.keys() and all(
        torch.equal(value, second[key]) if isinstance(value, torch.Tensor) else value == second[key]
        for key, value in first.items()
    )


@pytest.mark.parametrize("observer", sorted(OBSERVERS))
def test_what_was_saved_does_not_change_and_every_observer_goes_on_from_it(model, batches, observer):
    config = {"observer": observer}
    prepared = fxplug_quant.prepare(model, config, batches[0]).calibrate(batches[:2])
    saved = prepared.state_dict()
    before = copy.deepcopy(saved)

    prepared.calibrate(batches[2:])
    others = [fxplug_quant.prepare(model, config, batches[0]) for _ in range(2)]
    for other in others:
        other.load_state_dict(saved)
        assert other.batches == 2
        other.calibrate(batches[2:])

    assert saved.keys() == before.keys()
    assert all(equal(state, before[name]) for name, state in saved.items())
    expected = fxplug_quant.convert(prepared).state_dict()
    for other in others:
        found = fxplug_quant.convert(other).state_dict()
        assert all(torch.equal(value, found[name]) for name, value in expected.items())


def test_an_interruption_keeps_what_was_seen(model, batches):
    def interrupted():
        yield from batches[:2]
        raise KeyboardInterrupt

    prepared = fxplug_quant.prepare(model, None, batches[0])
    with pytest.raises(KeyboardInterrupt):
        prepared.calibrate(interrupted())
    assert prepared.batches == 2
    prepared.calibrate(batches[prepared.batches :])
    whole = fxplug_quant.prepare(model, None, batches[0]).calibrate(batches)

    found, expected = (fxplug_quant.convert(entry).state_dict() for entry in (prepared, whole))
    assert all(torch.equal(value, found[name]) for name, value in expected.items())


def test_progress_and_limit(model, batches):
    counts = []

    def tell(done, total):
        counts.append((done, total))

    given = iter(batches)
    prepared = fxplug_quant.prepare(model, None, batches[0])
    prepared.calibrate(given, progress=tell, limit=2)
    prepared.calibrate(given, progress=tell)
    prepared.calibrate(batches, progress=tell, limit=3)

    assert counts == [(1, 2), (2, 2), (1, None), (2, None), (1, 3), (2, 3), (3, 3)]
    assert prepared.batches == 7


def test_labels_are_no_inputs_also_where_the_module_takes_more():
    class Masked(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(4, 4)

        def forward(self, x, mask=None):
            return self.layer(x if mask is None else x * mask)

    torch.manual_seed(0)
    inputs = torch.randn(8, 4)
    prepared = fxplug_quant.prepare(Masked().eval(), None, inputs)

    prepared.calibrate([(inputs, torch.zeros(8, 4))])

    (observer,) = prepared.observers.values()
    assert observer.high == float(inputs.max())


def test_the_random_state_and_the_batches_stay_as_they_are(batches):
    class Noisy(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(8, 8)

        def forward(self, x):
            x.add_(torch.rand_like(x))
            return self.layer(x)

    before, state = copy.deepcopy(batches), torch.get_rng_state()
    model = Noisy().eval()
    torch.set_rng_state(state)
    results = []
    for _ in range(2):
        prepared = fxplug_quant.prepare(model, None, batches[0]).calibrate(batches)
        results.append(prepared.state_dict())

    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(first, second) for first, second in zip(before, batches, strict=True))
    assert results[0].keys() == results[1].keys()
    assert all(equal(state, results[1][name]) for name, state in results[0].items())


@pytest.mark.parametrize("kind", [ChannelMaxima, ChannelMeans])
@pytest.mark.parametrize(
    ("shape", "channel", "rest"),
    [
        ((2, 3), -3, "it has 2 dimensions, shape [2, 3]. Give a number from -2 to 1."),
        ((2, 3), 2, "it has 2 dimensions, shape [2, 3]. Give a number from -2 to 1."),
        ((4,), -2, "it has 1 dimension, shape [4]. Give a number from -1 to 0."),
        ((), -1, "it has 0 dimensions, shape []. A value without dimensions has none."),
    ],
)
def test_channels_along_a_dimension_that_values_lack_are_refused(kind, shape, channel, rest):
    observer = kind(channel)

    with pytest.raises(ConfigError) as caught:
        observer.observe(torch.ones(shape))

    assert f"Cannot observe the channels of a value along dimension {channel}: {rest}" in str(caught.value)
    assert (observer.seen, observer.low, observer.high) == (0, 0.0, 0.0)


def test_the_value_whose_channels_are_missing_is_named_with_its_line(model):
    captured = fxplug.symbolic_trace(model)
    node = next(node for node in captured.graph.nodes if node.op == "call_module")

    with pytest.raises(ConfigError, match="along dimension -3") as caught:
        run_observed(captured, {node: ChannelMaxima(-3)}, [torch.randn(4, 8)])

    assert f"%{node.name}" in "\n".join(caught.value.__notes__)


# -- states that do not fit --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("saved", "own", "message"),
    [
        ("min-max", "percentile", "the state is of the observer 'min-max', and this one is 'percentile'"),
        ("percentile", "histogram", "the state is of the observer 'percentile', and this one is 'histogram'"),
        ("percentile:60", "percentile:99.99", "with share = 60.0, and this one has share = 99.99"),
        ("moving-average:0.5", "moving-average", "with momentum = 0.5, and this one has momentum = 0.1"),
    ],
)
def test_a_state_of_another_observer_is_refused(model, batches, saved, own, message):
    state = fxplug_quant.prepare(model, {"observer": saved}, batches[0]).calibrate(batches).state_dict()
    prepared = fxplug_quant.prepare(model, {"observer": own}, batches[0])
    before = prepared.state_dict()

    with pytest.raises(QuantizationError) as caught:
        prepared.load_state_dict(state)

    assert "at 'input_1' " in str(caught.value)
    assert message in str(caught.value)
    assert caught.value.code == "FXP-Q006"
    assert prepared.batches == 0
    assert all(equal(found, before[name]) for name, found in prepared.state_dict().items())
    state = dict(state["input_1"])
    del state["operation"]
    with pytest.raises(QuantizationError, match=r"Use the same observer, or calibrate anew\. \[FXP-Q006\]"):
        make_observer(own).load_state(state)


def test_a_state_of_another_module_with_the_same_names_is_refused(model, batches):
    prepared = fxplug_quant.prepare(model, None, batches[0]).calibrate(batches)
    state = prepared.state_dict()
    wider = nn.Sequential(nn.Linear(8, 9), nn.ReLU(), nn.Linear(9, 4)).eval()
    convolutions = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Conv2d(4, 4, 3)).eval()

    for other, example in ((wider, batches[0]), (convolutions, torch.randn(2, 3, 8, 8))):
        found = fxplug_quant.prepare(other, None, example)
        assert found.state_dict().keys() == state.keys()
        with pytest.raises(
            QuantizationError, match=r"at 'input_1' the state has .*Linear\[8, 8\].*\[FXP-Q006\]"
        ):
            found.load_state_dict(state)


def test_states_that_are_damaged_or_of_an_older_version_are_refused_and_nothing_is_taken_over(model, batches):
    state = fxplug_quant.prepare(model, None, batches[0]).calibrate(batches).state_dict()
    prepared = fxplug_quant.prepare(model, None, batches[0])
    last = list(state)[-1]

    def refuses(given, message):
        with pytest.raises(QuantizationError, match=r"Cannot go on with calibration.*\[FXP-Q006\]") as caught:
            prepared.load_state_dict(given)
        assert message in str(caught.value)
        assert all(not observer.seen for observer in prepared.observers.values())

    older = {name: value for name, value in state[last].items() if name not in {"operation", "observer"}}
    refuses(
        {**state, last: older}, f"what it has for {last!r} does not say of which operation and observer it is"
    )
    refuses({**state, last: 3}, f"what it has for {last!r} does not say")
    refuses({**state, 7: {}}, "['7'] are observed in one of the two only")
    refuses([], "the state is a list")
    refuses(
        {**state, last: {**state[last], "counts": torch.zeros(3)}},
        "'counts' in the state is a tensor of float32",
    )
    refuses(
        {**state, last: {**state[last], "seen": -1}}, "'seen' in the state is the int -1, and not the int 0"
    )
    refuses({**state, last: {**state[last], "low": float("nan")}}, "'low' in the state is the float nan")
    refuses({**state, last: {**state[last], "extra": 1}}, "has other parts than this one's: extra")


@pytest.mark.parametrize("limit", [-1, 0, 1.5, "3", True])
def test_a_limit_that_is_no_number_of_batches_is_refused(model, batches, limit):
    prepared = fxplug_quant.prepare(model, None, batches[0])

    with pytest.raises(ConfigError, match=r"as the limit of batches: give a whole number from 1 on"):
        prepared.calibrate(batches, limit=limit)
    with pytest.raises(ConfigError, match=r"as the limit of batches: give a whole number from 1 on"):
        fxplug_quant.sensitivity(model, None, batches, limit=limit)


# -- what observers choose ---------------------------------------------------------------------------------------


def test_a_histogram_moves_what_it_counted_to_the_bins_of_a_wider_range():
    first = torch.linspace(0.0, 1.0, 4096)
    observer = Histogram()
    observer.observe(first)
    observer.observe(torch.tensor([-2.0, 6.0]))

    assert (observer.low, observer.high) == (-2.0, 6.0)
    assert float(observer.counts.sum()) == 4098
    # What lies from 0 to 1 is an eighth of the bins, the third one; the rest is empty but for both ends.
    eighths = observer.counts.reshape(8, -1).sum(1).tolist()
    assert eighths[2] == pytest.approx(4096, abs=64)
    assert eighths[0] == eighths[7] == 1
    assert eighths[4:7] == [0, 0, 0]


@pytest.mark.parametrize(("share", "cut"), [(90.0, 0.05), (98.0, 0.01), (60.0, 0.2)])
def test_a_percentile_cuts_off_half_of_the_rest_at_each_end(share, cut):
    observer = Percentile(share)
    observer.observe(torch.linspace(0.0, 1.0, 100_001))

    low, high = observer.range()

    assert low == pytest.approx(cut, abs=0.002)
    assert high == pytest.approx(1 - cut, abs=0.002)


def test_a_moving_average_begins_at_the_first_batch():
    observer = MovingAverage(0.25)
    observer.observe(torch.tensor([-4.0, 8.0]))
    assert observer.range() == (-4.0, 8.0)

    observer.observe(torch.tensor([0.0, 16.0]))
    assert observer.range() == (-3.0, 10.0)
