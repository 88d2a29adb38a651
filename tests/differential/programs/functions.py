"""Small functions through torch.fx and fxplug: equal graphs, equal values, equal gradients."""

# Annotations are part of what is compared, so they are no text here: no `from __future__ import annotations`.
import math
import operator
from collections.abc import Callable
from typing import Any, NamedTuple, Optional

import torch
from torch import Tensor
from torch.nn import functional as F

PROGRAMS: dict[str, dict[str, Any]] = {}


def program(make_inputs: Callable[[], tuple[Any, ...]]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    def register(function: Callable[..., Any]) -> Callable[..., Any]:
        PROGRAMS[function.__name__] = {"make": lambda: function, "make_inputs": make_inputs}
        return function

    return register


def one() -> tuple[Any, ...]:
    return (torch.linspace(-1, 1, 6).reshape(2, 3),)


def two() -> tuple[Any, ...]:
    return (torch.linspace(-1, 1, 6).reshape(2, 3), torch.linspace(2, 3, 6).reshape(2, 3))


def square() -> tuple[Any, ...]:
    return (torch.linspace(-1, 1, 9).reshape(3, 3), torch.linspace(0.5, 2, 9).reshape(3, 3))


def image() -> tuple[Any, ...]:
    return (torch.linspace(-1, 1, 2 * 3 * 8 * 8).reshape(2, 3, 8, 8),)


def indices() -> tuple[Any, ...]:
    return (torch.linspace(-1, 1, 6).reshape(2, 3), torch.tensor([1, 0]))


@program(one)
def identity(x):
    return x


@program(one)
def constant_result(x):
    return 5


@program(one)
def no_result(x):
    return None


@program(two)
def arithmetic(x, y):
    return (x + 1) * y - 2 / y + x // 0.3 + x % 0.7 + (y**2) @ x.t()[:, :1].expand(3, 3)


@program(two)
def reflected_arithmetic(x, y):
    return 1 + x, 2 - x, 3 * x, 4 / y, 5 // y, 7 % y, 2**x


@program(two)
def comparisons(x, y):
    return x < y, x <= 0, x > y, x >= 0.5, x == y, x != 0


@program(square)
def unary_operators(x, y):
    return -x, +x, abs(x), ~(x > 0)


@program(lambda: (torch.tensor([1, 2, 3]), torch.tensor([4, 5, 6])))
def bit_operators(x, y):
    return x & y, x | y, x ^ y, x << 1, y >> 1, 1 & x, 2 | x, 3 ^ x


@program(square)
def matrix_product(x, y):
    return x @ y


@program(two)
def methods(x, y):
    return x.add(y).mul(2).view(-1).sum().reshape(1), y.max(dim=1).values


@program(two)
def torch_functions(x, y):
    return torch.add(x, y, alpha=2), torch.where(x > 0, x, y), torch.clamp(x, min=0)


@program(two)
def concatenation(x, y):
    return torch.cat([x, y], dim=1), torch.stack((x, y))


@program(image)
def functional_layers(x):
    return F.adaptive_avg_pool2d(F.relu(F.max_pool2d(x, 2)), (1, 1)).flatten(1)


@program(one)
def functional_softmax(x):
    return F.softmax(x, dim=-1), F.log_softmax(x, 1), F.gelu(x), F.layer_norm(x, (3,))


@program(one)
def dropout_in_training(x):
    return F.dropout(x, 0.5, training=True)


@program(one)
def random_numbers(x):
    return x + torch.rand_like(x), torch.bernoulli(torch.sigmoid(x))


@program(one)
def slices(x):
    return x[0], x[:, 1], x[..., None], x[0:2, ::2], x[-1, -1], x[:, [0, 2]]


@program(indices)
def index_with_tensor(x, y):
    return x[y], x[y, y]


@program(one)
def slice_with_traced_bound(x):
    return x[:, : x.shape[0]]


@program(one)
def shape_reads(x):
    return x.shape, x.size(0), x.dim(), x.dtype, x.shape[1]


@program(one)
def shape_arithmetic(x):
    return x.view(x.size(0) * x.size(1)), x.reshape(x.shape[0], -1)


@program(one)
def attributes(x):
    return x.T, x.ndim, x.requires_grad


@program(one)
def unpacking_of_chunks(x):
    first, second, third = x.chunk(3, dim=1)
    return first + third - second


@program(one)
def unpacking_of_shape(x):
    rows, columns = x.shape
    return x.reshape(columns, rows)


@program(one)
def unpacking_of_topk(x):
    values, positions = torch.topk(x, 2)
    return values, positions


@program(one)
def nested_unpacking(x):
    (first, _), last = x.split([2, 1], dim=1)[0].unbind(1), x.split([2, 1], dim=1)[1]
    return first, last


@program(two)
def nested_result(x, y):
    return {"sum": x + y, "parts": [x * 2, (y, 3)], "name": "value"}


class Pair(NamedTuple):
    left: Any
    right: Any


@program(two)
def namedtuple_result(x, y):
    return Pair(x + y, x)


@program(one)
def same_value_twice(x):
    doubled = x * 2
    return doubled + doubled, doubled


@program(one)
def unused_value(x):
    x.sum()
    return x * 2


@program(one)
def default_argument(x, scale=2.0, flag=True):
    return x * scale


@program(one)
def optional_argument(x, other=None):
    return x * 2


@program(one)
def annotated(x: Tensor, scale: float = 2.0) -> Tensor:
    return x * scale


@program(one)
def optional_annotation(x: Tensor, mask: Optional[Tensor] = None) -> Tensor:  # noqa: UP045
    return x * 2


@program(one)
def lambda_inside(x):
    add = lambda value: value + 1  # noqa: E731
    return add(x)


def _helper(value, factor):
    return value * factor


@program(one)
def helper_function(x):
    return _helper(_helper(x, 2), 3)


@program(one)
def closure(x):
    factor = 4

    def inner(value):
        return value * factor

    return inner(x)


@program(one)
def python_loop(x):
    for step in range(4):
        x = x + step
    return x


@program(one)
def comprehension(x):
    return sum([x * factor for factor in (1, 2, 3)])


@program(two)
def special_constants(x, y):
    return x + math.pi, x * float("inf"), x * -0.0, x.to(torch.float64), x.clamp(min=-1e-30)


@program(one)
def devices_and_formats(x):
    return x.to(torch.device("cpu")), x.contiguous(memory_format=torch.contiguous_format)


@program(one)
def operator_module(x):
    return operator.add(x, 1), operator.neg(x), operator.getitem(x, 0)


@program(one)
def in_place_methods(x):
    y = x.clone()
    y.add_(1)
    y.mul_(2)
    return y


@program(one)
def in_place_method_of_an_input(x):
    x.mul_(3)
    return x.sum()


@program(one)
def in_place_functional(x):
    return F.relu(x.clone(), inplace=True)


@program(two)
def out_argument(x, y):
    target = torch.empty_like(x).detach()
    torch.add(x.detach(), y.detach(), out=target)
    return target


@program(one)
def augmented_add(x):
    y = x * 1
    y += 1
    return y


@program(lambda: (torch.tensor([5, 6, 7]),))
def augmented_operators(x):
    x -= 1
    x *= 3
    x //= 2
    x %= 7
    x **= 2
    x <<= 1
    x >>= 1
    x &= 31
    x |= 1
    x ^= 3
    return x


@program(one)
def augmented_add_of_an_alias(x):
    y = x * 1
    z = y
    y += 1
    return z


@program(one)
def augmented_add_of_an_input(x):
    x += 1
    return x * 2


@program(one)
def item_assignment(x):
    y = x.clone()
    y[0] = 7.0
    return y


@program(two)
def slice_assignment(x, y):
    z = torch.zeros_like(x)
    z[:, 1:] = y[:, :2]
    return z + x


@program(one)
def einsum(x):
    return torch.einsum("ij,kj->ik", x, x)


@program(one)
def linalg(x):
    return torch.linalg.norm(x), torch.linalg.vector_norm(x, ord=1)


@program(one)
def fft(x):
    return torch.fft.rfft(x).real


@program(one)
def special(x):
    return torch.special.expit(x)


@program(one)
def tensor_constant(x):
    return x + torch.tensor([1.0, 2.0, 3.0])


@program(one)
def same_tensor_constant_twice(x):
    constant = torch.ones(3)
    return x * constant + constant


@program(one)
def keyword_arguments(x):
    return torch.sum(input=x, dim=1, keepdim=True), F.pad(x, pad=(1, 1), mode="constant", value=2.0)


@program(one)
def aten_operator(x):
    return torch.ops.aten.relu.default(x), torch.ops.aten.add.Tensor(x, x, alpha=2)


@program(one)
def chained_getitem(x):
    return torch.sort(x, dim=1)[0][:, 0]


@program(one)
def detached(x):
    return x.detach() * 2 + x


@program(image)
def interpolation(x):
    return F.interpolate(x, scale_factor=2, mode="nearest"), F.pixel_shuffle(x[:, :1].expand(2, 4, 8, 8), 2)


@program(one)
def cast_methods(x):
    return x.double(), x.long(), x.bool(), x.type_as(x), x.int().float()


@program(two)
def losses(x, y):
    return F.mse_loss(x, y), F.l1_loss(x, y, reduction="sum"), F.smooth_l1_loss(x, y)


@program(two)
def reserved_names(x, input):  # noqa: A002
    sum = x + input  # noqa: A001
    len = sum * 2  # noqa: A001
    return len - sum


@program(lambda: ({"a": torch.ones(2), "b": torch.zeros(2)},))
def dict_input(batch):
    return batch["a"] + batch["b"]


@program(lambda: ((torch.ones(2), torch.zeros(2)),))
def tuple_input(pair):
    first, second = pair
    return first - second
