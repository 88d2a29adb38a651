"""Programs that put a distribution of torch into an attribute at each call, as policies that are learned do."""

import copy
import weakref

import pytest
import torch
from torch import nn
from torch.distributions import (
    AffineTransform,
    Categorical,
    Independent,
    Normal,
    TransformedDistribution,
    kl_divergence,
)

import fxplug

MODES = ["shape", "value"]
# Captured programs keep nothing, and say so.
pytestmark = pytest.mark.filterwarnings("ignore:While :fxplug.errors.TraceWarning")


class Holder:
    """Holds the distribution that it was given last."""

    distribution = None

    def proba_distribution(self, mean):
        raise NotImplementedError

    def log_prob(self, value):
        return self.distribution.log_prob(value)


class Gaussian(Holder):
    def proba_distribution(self, mean):
        self.distribution = Normal(mean, torch.ones_like(mean), validate_args=False)
        return self


class Discrete(Holder):
    def proba_distribution(self, mean):
        self.distribution = Categorical(logits=mean, validate_args=False)
        return self

    def log_prob(self, value):
        return self.distribution.log_prob(value.argmax(-1))


class Several(Holder):
    def proba_distribution(self, mean):
        self.distribution = [Categorical(logits=one, validate_args=False) for one in mean.split(1, dim=1)]
        return self

    def log_prob(self, value):
        return torch.stack([one.log_prob(torch.zeros(())) for one in self.distribution])


class Nested(Holder):
    def proba_distribution(self, mean):
        base = Normal(mean, 1.0, validate_args=False)
        moved = TransformedDistribution(base, [AffineTransform(1.0, 2.0)], validate_args=False)
        self.distribution = Independent(moved, 1, validate_args=False)
        return self


class Policy(nn.Module):
    def __init__(self, kind):
        super().__init__()
        self.linear = nn.Linear(4, 2)
        self.action_dist = kind()

    def forward(self, x):
        mean = self.linear(x)
        if isinstance(self.action_dist, Holder):
            found = self.action_dist.proba_distribution(mean)
        return mean, found.log_prob(mean + 1)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("kind", [Gaussian, Discrete, Several, Nested])
def test_an_attribute_that_is_overwritten_before_it_is_read_is_no_state(kind, mode):
    model = Policy(kind)
    captured = fxplug.trace(model, (torch.rand(3, 4),), mode=mode)
    assert model.action_dist.distribution is None
    for made in (captured, copy.deepcopy(captured)):
        for batch in (3, 5, 3):
            x = torch.rand(batch, 4)
            torch.testing.assert_close(made(x), model(x))
    with pytest.raises(fxplug.TraceError) as caught:
        fxplug.trace(Policy(kind), (torch.rand(3, 4),), mode=mode, on_mutation="error")
    assert caught.value.code == "FXP-T067"


class Trusted(Policy):
    """Stays near what it did in its last call."""

    def forward(self, x):
        former, mean = self.action_dist.distribution, self.linear(x)
        found = self.action_dist.proba_distribution(mean).distribution
        return mean if former is None else mean + kl_divergence(former, found)


class Once(Policy):
    """Keeps the first distribution for all its calls."""

    def forward(self, x):
        if self.action_dist.distribution is None:
            self.action_dist.proba_distribution(self.linear(x))
        return x + self.action_dist.distribution.mean.sum()


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(("is_warm", "code"), [(False, "FXP-T055"), (True, "FXP-T061")])
def test_a_distribution_that_the_next_call_reads_is_state(is_warm, code, mode):
    model = Trusted(Gaussian)
    if is_warm:
        model(torch.rand(3, 4))
    with pytest.raises(fxplug.TraceError) as caught:
        fxplug.trace(model, (torch.rand(3, 4),), mode=mode)
    assert caught.value.code == code


class Sized(Policy):
    """Goes by the size of the last batch alone."""

    def forward(self, x):
        former = self.action_dist.distribution
        self.action_dist.proba_distribution(self.linear(x))
        return x * 1 if former is None else x * former.batch_shape[0]


@pytest.mark.parametrize("mode", MODES)
def test_a_size_in_a_distribution_that_the_next_call_reads_is_state(mode):
    model = Sized(Gaussian)
    with pytest.raises(fxplug.TraceError) as caught:
        fxplug.trace(model, (torch.rand(3, 4),), mode=mode)
    assert caught.value.code == "FXP-T055"
    model(torch.rand(5, 4))
    with pytest.raises(fxplug.TraceError) as caught:
        fxplug.trace(model, (torch.rand(3, 4),), mode=mode)
    assert caught.value.code == "FXP-T055"
    model(torch.rand(3, 4))  # From here on, all calls with three rows find the size of one with three rows.
    captured = fxplug.trace(model, (torch.rand(3, 4),), mode=mode)
    x = torch.rand(3, 4)
    torch.testing.assert_close(captured(x), model(x))
    with pytest.raises(fxplug.GuardError):
        captured(torch.rand(5, 4))


@pytest.mark.parametrize("mode", MODES)
def test_a_distribution_that_is_made_once_is_state(mode):
    with pytest.raises(fxplug.TraceError) as caught:
        fxplug.trace(Once(Gaussian), (torch.rand(3, 4),), mode=mode)
    assert caught.value.code == "FXP-T055"


class Counting(Policy):
    """The distribution holds a number that goes on from call to call."""

    def forward(self, x):
        former = self.action_dist.distribution
        scale = 1.0 if former is None else former.scale + 1
        self.action_dist.distribution = Normal(0.0, scale, validate_args=False)
        return x * 1 if former is None or former.scale < 100 else x * 2


def test_a_distribution_that_goes_on_from_call_to_call_is_state():
    with pytest.raises(fxplug.TraceError) as caught:
        fxplug.trace(Counting(Gaussian), (torch.rand(3, 4),))
    assert caught.value.code == "FXP-T055"


class Remembered:
    def __init__(self, value):
        self.value = value
        self.maker = weakref.ref(Holder())  # Which is gone at once.


class Remembering(nn.Module):
    def __init__(self):
        super().__init__()
        self.last = None

    def forward(self, x):
        self.last = Remembered(x * 2)
        return self.last.value + 1


@pytest.mark.parametrize("mode", MODES)
def test_references_to_what_is_gone_are_alike(mode):
    model = Remembering()
    captured = fxplug.trace(model, (torch.ones(3),), mode=mode)
    assert model.last is None
    assert torch.equal(captured(torch.ones(5)), torch.full((5,), 3.0))
