"""Constants in graphs, and operations of every corner that have nothing unusual about them but their arguments."""

from __future__ import annotations

import enum
import math

import torch
from torch.nn import functional as F

from capture_corpus.corpus import program
from capture_corpus.inputs import cube, image, one, ramp, two, vector


@program(one, rows=(31,))
def signed_zeros_and_nans(x):
    zeros = torch.copysign(torch.ones(3), torch.tensor(-0.0)) * x
    return zeros, torch.full((2,), -0.0).signbit(), x * math.nan, x.clamp(max=-math.inf), x + 1e-45


@program(one, rows=(31,))
def complex_constants(x):
    return x * 2j, x + complex(math.inf, -0.0), torch.tensor(1 + 1j) * x


class Flags(enum.Flag):
    RELU = enum.auto()
    NEGATE = enum.auto()
    DOUBLE = enum.auto()


def _apply(x, flags=Flags.RELU | Flags.NEGATE, *, also=frozenset({Flags.DOUBLE})):
    for flag, function in ((Flags.RELU, torch.relu), (Flags.NEGATE, torch.neg)):
        if flag in flags:
            x = function(x)
    return x * 2 if Flags.DOUBLE in also else x


@program(one, rows=(31,))
def flags(x):
    return _apply(x) + _apply(x, Flags.NEGATE, also=frozenset())


class Level(int):
    """A number with a text of its own."""

    __slots__ = ()

    def __repr__(self):
        return "__import__('os').getpid()"


@program(cube, rows=(30, 31))
def numbers_with_another_text(x):
    return x.sum(Level(1)) * Level(3)


@program(one, rows=(31,))
def bytes_and_objects(x):
    names = {b"scale": 2, None: 3, (1, "a"): 4, 1.5: 5}
    return x * names[b"scale"] + sum(names[key] for key in (None, (1, "a"), 1.5))


@program(vector, rows=(31,))
def large_numbers(x):
    return x.double() * 2**62 + x.long() * -(2**63), torch.tensor([2**63 - 1]) - 1, x * 1e20


@program(one, rows=(31,))
def tensor_constants_of_the_module(x):
    return x * _TABLE + _TABLE.sum() + F.one_hot(_INDICES, 3)


_TABLE = torch.tensor([0.5, 1.5, 2.5])
_INDICES = torch.tensor([2, 0])


@program(one)
def dtypes_devices_layouts(x):
    y = x.to(torch.float64).to(device="cpu", dtype=torch.float16, non_blocking=True).type(torch.float32)
    return (
        y.to(x),
        x.type_as(torch.zeros(1, dtype=torch.int64)),
        x.contiguous(memory_format=torch.preserve_format),
    )


@program(image)
def memory_formats(x):
    y = x.contiguous(memory_format=torch.channels_last)
    return y * 2, y.is_contiguous(memory_format=torch.channels_last), y.stride()


@program(two)
def operators_by_their_overload(x, y):
    return torch.ops.aten.add.Tensor(x, y, alpha=2), torch.ops.aten.mul(x, 3), torch.ops.prim.device(x)


@program(two)
def functions_of_namespaces(x, y):
    spectrum = torch.fft.rfft(x).abs() + torch.special.expit(y)[:, :2]
    return spectrum, torch.linalg.norm(y, dim=1), torch.nn.functional.cosine_similarity(x, y)


@program(lambda: (ramp(1, 2, 4, 4), ramp(3, 2, 3, 3)), symbolic="FXP-T001")
def functional_convolution(x, weight):
    out = F.conv2d(x, weight, bias=None, stride=(1, 2), padding="same" if weight.shape[-1] == 5 else 1)
    return F.max_pool2d(out, 2, return_indices=True)


@program(vector, symbolic="FXP-T068")
def method_called_on_the_class(x):
    return torch.Tensor.add(x, torch.Tensor.mul(x, 2)), torch.Tensor.__mul__(x, 3), torch.Tensor.sum(x)


@program(two)
def comparisons_that_stay_tensors(x, y):
    return (x < y) & (x != y) | ~(x >= 0.5), (x == y).int() ^ 1, torch.logical_and(x, y)
