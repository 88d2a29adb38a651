"""Calibration: it goes on where it stopped, gives the same each time, and says how far it is."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

import fxplug
import fxplug_quant
from fxplug.errors import ConfigError
from fxplug_quant.calibration import run_observed
from fxplug_quant.observers import OBSERVERS, ChannelMaxima, ChannelMeans


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
