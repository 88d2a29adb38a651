"""Programs that draw from the distributions of torch, whose sizes hang on the inputs."""

from __future__ import annotations

import pytest
import torch
from torch import distributions as D
from torch.nn import functional as F

import fxplug

COLUMNS = 6


def _halves(x):
    mean, scale = x.chunk(2, -1)
    return mean, F.softplus(scale) + 0.1


def _drawn(make, **how):
    def program(x):
        distribution = make(x)
        drawn = distribution.sample(**how)
        return drawn, distribution.log_prob(drawn), distribution.mean

    return program


PROGRAMS = {
    "normal": _drawn(lambda x: D.Normal(*_halves(x))),
    "normal, several": _drawn(lambda x: D.Normal(*_halves(x)), sample_shape=(5,)),
    "normal, several by a list": _drawn(lambda x: D.Normal(*_halves(x)), sample_shape=[2, 2]),
    "normal of sizes of the input": lambda x: D.Normal(*_halves(x)).rsample(x.shape[:1]),
    "independent": _drawn(lambda x: D.Independent(D.Normal(*_halves(x)), 1)),
    "laplace": _drawn(lambda x: D.Laplace(*_halves(x))),
    "uniform": _drawn(lambda x: D.Uniform(-_halves(x)[1], _halves(x)[1])),
    "gamma": _drawn(lambda x: D.Gamma(_halves(x)[1], _halves(x)[1])),
    "beta": _drawn(lambda x: D.Beta(_halves(x)[1], _halves(x)[1])),
    "dirichlet": _drawn(lambda x: D.Dirichlet(F.softplus(x) + 0.1)),
    "bernoulli": _drawn(lambda x: D.Bernoulli(logits=x)),
    "poisson": _drawn(lambda x: D.Poisson(F.softplus(x))),
    "categorical": lambda x: D.Categorical(logits=x).sample(),
    "one of several": _drawn(lambda x: D.OneHotCategorical(logits=x)),
    "inverse gamma": _drawn(lambda x: D.InverseGamma(x.exp(), torch.tensor(2.0))),
    "covariance": _drawn(
        lambda x: D.MultivariateNormal(_halves(x)[0], scale_tril=torch.diag_embed(_halves(x)[1]))
    ),
    "transformed": lambda x: D.TransformedDistribution(
        D.Normal(*_halves(x)), [D.TanhTransform(cache_size=1)]
    ).rsample(),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_distribution_is_captured_for_any_batch(name):
    program = PROGRAMS[name]

    captured = fxplug.trace(program, (torch.randn(4, COLUMNS),))

    for rows in (4, 2, 7):
        x = torch.randn(rows, COLUMNS)
        torch.manual_seed(rows)
        expected = program(x)
        torch.manual_seed(rows)
        torch.testing.assert_close(captured(x), expected)


def test_sizes_of_samples_that_are_no_tuple_are_refused_as_in_eager():
    def program(x):
        return D.Normal(*_halves(x)).sample(3)

    x = torch.randn(4, COLUMNS)
    with pytest.raises(TypeError) as told:
        program(x)
    with pytest.raises(TypeError) as captured:
        fxplug.trace(program, (x,))
    assert str(captured.value).startswith(str(told.value))


def test_what_a_distribution_checks_about_its_arguments_is_guarded():
    def program(mean, scale):
        return D.Normal(mean, scale, validate_args=True).log_prob(mean + 1)

    captured = fxplug.trace(program, (torch.zeros(3), torch.ones(3)))

    torch.testing.assert_close(
        captured(torch.zeros(2), torch.ones(2)), program(torch.zeros(2), torch.ones(2))
    )
    with pytest.raises(fxplug.GuardError):
        captured(torch.zeros(2), -torch.ones(2))


def test_without_data_a_distribution_that_checks_nothing_is_captured():
    def program(x):
        return D.Normal(*_halves(x), validate_args=False).rsample()

    captured = fxplug.trace(program, (torch.randn(4, COLUMNS),), mode="shape")

    x = torch.randn(2, COLUMNS)
    torch.manual_seed(0)
    expected = program(x)
    torch.manual_seed(0)
    torch.testing.assert_close(captured(x), expected)


def test_sizes_that_are_broadcast_hang_on_the_inputs():
    def program(x, y):
        return torch.zeros(torch.broadcast_shapes(x.shape, y.shape)) + x + y

    for mode in ("value", "shape"):
        captured = fxplug.trace(program, (torch.randn(4, 1), torch.randn(3)), mode=mode)
        x, y = torch.randn(2, 1), torch.randn(5)
        torch.testing.assert_close(captured(x, y), program(x, y))
        with pytest.raises(RuntimeError, match="broadcast"):
            captured(torch.randn(2, 4), torch.randn(5))


def test_sizes_that_were_broadcast_are_broadcast_again():
    def program(x):
        sizes = torch.broadcast_shapes(x.size(), x.new_ones(()).shape)
        return x.expand(torch.broadcast_shapes(sizes, (1,)))

    for mode in ("value", "shape"):
        captured = fxplug.trace(program, (torch.randn(4, 2),), mode=mode)
        x = torch.randn(3, 2)
        assert torch.equal(captured(x), x)
