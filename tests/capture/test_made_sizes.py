"""A `torch.Size` that a program makes of sizes that hang on its inputs."""

import copy
import pickle

import pytest
import torch
from torch import Size, nn
from torch.nn import functional

import fxplug

MODES = ["shape", "value"]


def rows_of(x):
    return torch.Size((x.shape[0], 4))


PROGRAMS = {
    "a tuple": lambda x: torch.zeros(torch.Size((x.shape[0], 4))) + x,
    "a list": lambda x: x.reshape(torch.Size([x.size(0), -1])),
    "under its own name": lambda x: x.reshape(Size([x.size(0), -1])),
    "a shape": lambda x: x.reshape(torch.Size(x.shape)),
    "a list of a shape": lambda x: x.reshape(torch.Size(list(x.shape))),
    "a generator": lambda x: x.reshape(torch.Size(size for size in x.shape)),
    "by name": lambda x: torch.zeros(size=rows_of(x), dtype=x.dtype) + x,
    "unpacked": lambda x: torch.zeros(*rows_of(x)) + x,
    "a sum": lambda x: torch.zeros(torch.Size((x.shape[0],)) + x.shape[1:]) + x,
    "a sum with a tuple": lambda x: torch.zeros(torch.Size((1,)) + rows_of(x) + (1,))[0, ..., 0] + x,
    "before a shape": lambda x: x.expand(torch.Size([2]) + x.size()),
    "a part": lambda x: torch.ones(rows_of(x)[:1]).sum() + x + rows_of(x)[-2],
    "repeated": lambda x: torch.ones(torch.Size((x.shape[0],)) * 2).sum() + x,
    "copied": lambda x: x.reshape(copy.copy(rows_of(x))) + x.reshape(copy.deepcopy(rows_of(x))),
    "compared": lambda x: x * 2 if x.shape == torch.Size((x.shape[0], 4)) else x,
    "asked": lambda x: x * 2 if rows_of(x)[0] > 1 else x,
    "unpacked into names": lambda x: x.reshape([*rows_of(x)][::-1]),
    "computed with": lambda x: x + rows_of(x)[0] + (1 + rows_of(x)[0]) // 2,
    "an index": lambda x: x[rows_of(x)[0] - 1] + x,
    "resized": lambda x: functional.interpolate(x[None, None], size=torch.Size((x.shape[0] * 2, 4))),
    "returned": lambda x: (torch.Size((x.shape[0] + 1, 4)), x * 2),
    "returned in a list": lambda x: {"sizes": [rows_of(x), rows_of(x)[:1]], "x": x},
}


def same(found, expected):
    assert type(found) is type(expected)
    if isinstance(expected, torch.Tensor):
        torch.testing.assert_close(found, expected)
    elif isinstance(expected, dict):
        same([*found.items()], [*expected.items()])
    elif isinstance(expected, (list, tuple)):
        assert len(found) == len(expected)
        for one, other in zip(found, expected, strict=True):
            same(one, other)
    else:
        assert found == expected


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", PROGRAMS)
def test_the_batch_size_stays_free(name, mode):
    program = PROGRAMS[name]
    captured = fxplug.trace(program, (torch.rand(2, 4),), mode=mode)
    for made in (captured, copy.deepcopy(captured), pickle.loads(pickle.dumps(captured))):
        for rows in (2, 3, 7):
            x = torch.rand(rows, 4)
            same(made(x), program(x))


FIXING = {
    "a key": lambda x: x * {torch.Size((2, 4)): 3, torch.Size((5, 4)): 2}[rows_of(x)],
    "a text": lambda x: x * len(str(torch.Size((x.shape[0] * 5, 4)))),
    "a range": lambda x: x * sum(range(rows_of(x)[0])),
    "the product": lambda x: x * rows_of(x).numel(),
    "a comparison": lambda x: x * 2 if rows_of(x) == (2, 4) else x,
    "a size that is chosen": lambda x: x.reshape(torch.Size((x.shape[0] if x.dim() else 1, 4))),
}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", FIXING)
def test_what_needs_the_very_number_is_guarded(name, mode):
    program = FIXING[name]
    captured = fxplug.trace(program, (torch.rand(2, 4),), mode=mode)
    x = torch.rand(2, 4)
    same(captured(x), program(x))
    with pytest.raises(fxplug.GuardError):
        captured(torch.rand(5, 4))


@pytest.mark.parametrize("mode", MODES)
def test_a_size_is_still_one_to_the_program(mode):
    def kinds(x):
        sizes = rows_of(x)
        assert type(sizes) is torch.Size
        assert isinstance(sizes[0], int)
        assert not isinstance(sizes[0], torch.SymInt)
        return x.reshape(sizes) * 2

    captured = fxplug.trace(kinds, (torch.rand(2, 4),), mode=mode)
    x = torch.rand(3, 4)
    same(captured(x), kinds(x))


@pytest.mark.parametrize("mode", MODES)
def test_sizes_of_layers_are_free(mode):
    class Normed(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(4, 4)

        def forward(self, x):
            y = self.linear(x).reshape(torch.Size((x.size(0), 2, -1)))
            return functional.layer_norm(y, torch.Size(y.shape[-1:])).reshape(torch.Size([y.size(0), -1]))

    model = Normed()
    captured = fxplug.trace(model, (torch.rand(2, 4),), mode=mode)
    x = torch.rand(5, 4)
    same(captured(x), model(x))
