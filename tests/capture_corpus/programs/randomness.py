"""Random numbers and factories."""

from __future__ import annotations

import random

import torch
from torch import nn
from torch.nn import functional as F

from capture_corpus.corpus import program
from capture_corpus.inputs import larger, one, tracked, vector


@program(one, others=larger)
def random_like(x):
    return x + torch.rand_like(x)


@program(one, rows=(8,), without_dead_code=True)
def two_draws(x):
    return torch.rand_like(x), torch.rand_like(x)


@program(one, rows=(12,))
def random_tensor(x):
    return x + torch.rand(3) * torch.randn(2, 1)


@program(one, rows=(12,))
def random_tensor_in_place(x):
    noise = torch.empty(3).uniform_()
    return x + noise.bernoulli_(0.5) + x.clone().normal_()


@program(one, rows=(12,), symbolic="FXP-T053", shape="FXP-T053", value="FXP-T053")
def random_of_python(x):
    return x * random.random() + random.randint(0, 9)


@program(one, rows=(12,), symbolic="FXP-T053", shape="FXP-T053", value="FXP-T053")
def layer_drop(x):
    for scale in (2.0, 3.0, 5.0):
        if random.random() < 0.5:
            x = x * scale
    return x


_generator = random.Random(3)


@program(one, symbolic="FXP-T053", shape="FXP-T053", value="FXP-T053")
def generator_of_a_module(x):
    return x * _generator.uniform(1, 2)


@program(one)
def generator_with_a_seed(x):
    return x * random.Random(5).uniform(1, 2)


@program(one, rows=(12,), needs="numpy", symbolic="FXP-T053", shape="FXP-T053", value="FXP-T053")
def random_of_numpy(x):
    import numpy as np

    return x * float(np.random.rand())


@program(one, symbolic="FXP-T053")
def seeded_inside(x):
    torch.manual_seed(3)
    return x + torch.rand(2, 3)


@program(one, symbolic="FXP-T006")
def generator_made_inside(x):
    generator = torch.Generator().manual_seed(5)
    return x + torch.rand(3, generator=generator) + torch.randperm(3, generator=generator)


@program(one, factory=True, symbolic="FXP-T006")
def generator_kept_outside():
    generator = torch.Generator().manual_seed(7)
    return lambda x: x + torch.rand(3, generator=generator)


@program(one)
def draw_that_nobody_reads(x):
    torch.rand(5)
    return x + torch.rand(3)


@program(lambda: (torch.tensor([0.1, 0.2, 0.7]),))
def multinomial(weights):
    return torch.multinomial(weights, 4, replacement=True), torch.bernoulli(weights)


@program(tracked, symbolic="FXP-T053")
def forked_generators(x):
    with torch.random.fork_rng():
        noise = torch.randn(3)
    return x * noise + torch.randn(3)


@program(one, symbolic="FXP-T005")
def sampled_distribution(x):
    return torch.distributions.Normal(x, torch.ones_like(x)).rsample()


@program(tracked)
def functional_dropout(x):
    return F.dropout(x, 0.5), F.dropout1d(x, 0.5), torch.nn.functional.gumbel_softmax(x, hard=True)


@program(tracked, flips=True)
class RecurrentDropout(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm = nn.LSTM(3, 4, num_layers=2, dropout=0.5)

    def forward(self, x):
        output, (hidden, cell) = self.lstm(x)
        return output, hidden[-1], cell


# -- factories


@program(one)
def constant_factories(x):
    return x + torch.ones(3) * torch.linspace(0, 1, 3) + torch.eye(2, 3) - torch.arange(3)


@program(one)
def constant_that_is_returned(x):
    return torch.zeros(3), x + 1


@program(vector, symbolic="FXP-T005")
def constant_that_is_written(x):
    total = torch.zeros(())
    for part in x.unbind():
        total += part
        total.mul_(2)
    return total


@program(one)
def tensor_of_numbers(x):
    return x * torch.tensor([1.0, 2.0, 3.0]) + torch.as_tensor([[1], [2]]) + torch.scalar_tensor(2)


@program(one)
def default_dtype_changed_inside(x):
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        return x + torch.ones(3)
    finally:
        torch.set_default_dtype(before)


@program(one)
def default_device_inside(x):
    with torch.device("cpu"):
        return x + torch.ones(3)


@program(one)
def parameter_made_inside(x):
    weight = nn.Parameter(torch.full((3,), 2.0))
    return (x * weight).sum()


@program(one)
def initialised_inside(x):
    return x @ nn.init.xavier_uniform_(torch.empty(3, 2))
