"""Ways to write things in Python through torch.fx and fxplug: signatures, calls, operators, indexing, results."""

# Annotations are part of what is compared, so they are no text here: no `from __future__ import annotations`.
import copy
import functools
import itertools
import math
import operator
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

PROGRAMS: dict[str, dict[str, Any]] = {}


def form(
    make_inputs: Callable[[], tuple[Any, ...]], **options: Any
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    def register(function: Callable[..., Any]) -> Callable[..., Any]:
        PROGRAMS[function.__name__] = {"make": lambda: function, "make_inputs": make_inputs, **options}
        return function

    return register


def one() -> tuple[Any, ...]:
    return (torch.linspace(-1, 1, 6).reshape(2, 3),)


def two() -> tuple[Any, ...]:
    return (torch.linspace(-1, 1, 6).reshape(2, 3), torch.linspace(2, 3, 6).reshape(2, 3))


def cube() -> tuple[Any, ...]:
    return (torch.linspace(-1, 1, 24).reshape(2, 3, 4),)


def image() -> tuple[Any, ...]:
    return (torch.linspace(-1, 1, 2 * 3 * 8 * 8).reshape(2, 3, 8, 8),)


# -- parameters


@form(lambda: (), make_keywords=lambda: {"x": one()[0], "scale": 3.0})
def keyword_only_parameters(*, x, scale):
    return x * scale


@form(one, make_keywords=lambda: {"bias": 2.0})
def keyword_only_default(x, *, bias=1.0, scale=-0.5):
    return x * scale + bias


@form(two)
def positional_only_parameters(x, y, /):
    return x - y


@form(two)
def starred_parameter(*values):
    return values[0] + values[1]


@form(one, make_keywords=lambda: {"shift": two()[1]})
def double_starred_parameter(x, **rest):
    return x + rest["shift"]


@form(two, make_keywords=lambda: {"scale": 2.0})
def every_kind_of_parameter(x, *rest, scale=1.0, **more):
    return x * scale + rest[0]


@form(one)
def defaults_of_python(x, a=None, b=True, c="sum", d=-0.0, e=(1, [2]), f=1j):
    return x + 1


CPU = torch.device("cpu")


@form(one)
def defaults_of_torch(x, kind=torch.float64, where=CPU, form=torch.strided, index=...):
    return x + 1


@form(one)
def default_is_used(x, other=2.5, sizes=(3, 2)):
    return x.reshape(sizes) * other


@form(lambda: ([torch.ones(2), torch.zeros(2)], {"k": torch.full((2,), 3.0)}))
def generic_annotations(x: list[Tensor], y: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
    return x[0] + x[1], y["k"]


@form(one)
def union_annotation(x: Tensor, scale: float | None = None) -> Tensor | None:
    return x * 2


@form(one)
def any_annotation(x: Any, op: Callable[..., Any] = torch.relu) -> Any:
    return x.abs()


@form(two)
def parameters_like_globals(operator, math):
    return operator.sin() + math * float("inf") + torch.relu(operator)


@form(two)
def parameters_like_the_receiver(self, other):
    return self + other


# -- calls


@form(lambda: (image()[0], torch.linspace(-1, 1, 2 * 3 * 9).reshape(2, 3, 3, 3), torch.ones(2)))
def convolution_with_every_keyword(x, weight, bias):
    return F.conv2d(input=x, weight=weight, bias=bias, stride=(2, 1), padding=1, dilation=1, groups=1)


@form(lambda: (image()[0], torch.zeros(3), torch.ones(3)))
def batch_norm_with_every_keyword(x, mean, var):
    return F.batch_norm(
        x,
        running_mean=mean.detach(),
        running_var=var.detach(),
        weight=None,
        bias=None,
        training=False,
        momentum=0.2,
        eps=1e-4,
    )


@form(lambda: (torch.tensor([[0, 1], [2, 0]]), torch.linspace(-1, 1, 12).reshape(3, 4)))
def embedding_with_every_keyword(x, weight):
    return F.embedding(
        input=x,
        weight=weight,
        padding_idx=0,
        max_norm=None,
        norm_type=2.0,
        scale_grad_by_freq=False,
        sparse=False,
    )


@form(lambda: (torch.linspace(-1, 1, 6).reshape(2, 3), torch.tensor([0, 2])))
def loss_with_every_keyword(x, y):
    return F.cross_entropy(
        input=x, target=y, weight=None, ignore_index=-1, reduction="none", label_smoothing=0.1
    )


@form(cube)
def interpolation_with_every_keyword(x):
    return F.interpolate(
        input=x, size=None, scale_factor=2.0, mode="linear", align_corners=False, recompute_scale_factor=None
    )


@form(two)
def keywords_out_of_order(x, y):
    return torch.sub(alpha=3, other=y, input=x), torch.clamp(max=0.5, min=-0.5, input=x)


@form(two)
def starred_arguments(x, y):
    pair, sizes, options, scale = (x, y), [3, 2], {"dim": 1, "descending": True}, {"alpha": 2}
    return (
        torch.maximum(*pair),
        x.view(*sizes),
        torch.sort(x, **options).values,
        torch.add(x, *[y], **scale),
    )


@form(cube)
def methods_with_keywords(x):
    return (
        x.sum(dim=(0, 2), keepdim=True),
        x.permute(dims=(2, 0, 1)),
        x.std(dim=-1, correction=0),
        x.flatten(start_dim=1),
    )


@form(two)
def functions_as_arguments(x, y):
    apply = [torch.sin, F.gelu, operator.neg, lambda value: value * 2]
    return [function(x) for function in apply] + [functools.reduce(torch.add, (x, y, x))]


@form(two)
def partial_inside(x, y):
    double = functools.partial(torch.mul, other=2)
    return double(x) + functools.partial(torch.add, alpha=3)(x, y)


def _traced_decorator(function):
    @functools.wraps(function)
    def wrapper(*args, **kwargs):
        return function(*args, **kwargs) * 2

    return wrapper


@_traced_decorator
def _decorated_helper(x, shift=1):
    return x + shift


@form(one)
def decorated_helper(x):
    return _decorated_helper(x), _decorated_helper(x, shift=3)


@form(one)
def recursion(x):
    def power(value, times):
        return value if times == 0 else power(value * x, times - 1)

    return power(x, 3)


# -- Python's own control flow over plain values


@form(one)
def constant_conditions(x, mode="fast"):
    steps = 3 if len("abc") == 3 else 5
    for step in range(steps):
        if step % 2:
            continue
        x = x + step
    return x


@form(one)
def constant_match(x):
    match ("scale", 2):
        case ("scale", factor):
            return x * factor
        case _:
            return x


@form(one)
def exceptions_of_the_program(x):
    try:
        return {"a": 1}["b"] * x
    except KeyError as error:
        return x + len(error.args)
    finally:
        x = None


@form(one)
def walrus_and_deletion(x):
    if (doubled := x * 2) is not None:
        del x
    return doubled + 1


@form(two)
def iteration_tools(x, y):
    pairs = itertools.product([x, y], [1, 2])
    return [value * factor for value, factor in pairs], sum(map(operator.mul, [x, y], [2, 3]))


@form(two)
def plain_data_in_between(x, y):
    named = {"x": x, "y": y} | {"z": x + y}
    first, *rest = sorted(named)
    return [named[name] for name in (first, *rest)], f"{len(named)} values"


# -- indexing


@form(cube)
def slices_with_steps(x):
    return x[::2], x[:, 1::2, :-1], x[0, ..., ::3], x[..., -2:]


@form(cube)
def indices_with_none_and_ellipsis(x):
    return x[None], x[None, ..., None], x[:, None, 0], x[...], x[()], x[(0, Ellipsis, slice(None, 2))]


@form(lambda: (*cube(), torch.tensor([0, 1])))
def advanced_indices(x, y):
    return x[[1, 0]], x[x > 0.5], x[:, y], x[y, [0, 2]], x[..., y, 0], x[True], x[y[:, None], y]


@form(cube)
def indices_of_computed_bounds(x):
    return x[: x.shape[0] - 1], x[:, x.size(1) // 2 :], x[..., : x.shape[-1] // 2 : 2]


@form(cube)
def nested_indices(x):
    return x[0][1][2], x[:, 1][:, 2:][0], x.max(dim=-1)[1][0]


@form(cube)
def assigned_through_functions(x):
    y = x.clone()
    return torch.index_fill(y, 1, torch.tensor([0, 2]), 5.0), y.index_put(
        (torch.tensor([1]),), torch.tensor(2.0)
    )


# -- operators


@form(lambda: (torch.tensor([[True, False], [False, True]]), torch.tensor([[3, 5], [1, 2]])))
def reflected_bit_operators(x, y):
    return True & x, False | x, True ^ x, 8 >> y, 1 << y


@form(lambda: (torch.linspace(1, 2, 9).reshape(3, 3),))
def reflected_with_tensors(x):
    return torch.ones(3, 3) @ x, torch.ones(3) - x, torch.full((3,), 2.0) ** x, torch.ones(3, 3) / x


@form(two)
def reflected_comparisons(x, y):
    return 0 < x, 0.5 >= x, 2 == y, 1 != x, y > x  # noqa: SIM300


@form(two)
def chained_comparison(x, y):
    return torch.logical_and(x > -0.5, x < 0.5) & ~torch.isnan(y), torch.logical_or(x <= y, y.eq(2))


@form(two)
def operators_of_constants(x, y):
    return x * (2**10) + (7 // 2) - (5 % 3), -((x + -1.0) ** 2), (x + 1) * (y - 1) / (x - -1), not None


@form(lambda: (torch.linspace(-1, 1, 9).reshape(3, 3), torch.eye(3)))
def augmented_matrix_product(x, y):
    x = x * 1
    x @= y
    x /= 2
    return x


@form(one)
def in_place_operator_functions(x):
    y = x * 1
    return operator.iadd(y, 1), y


@form(one)
def complex_constants(x):
    return x * 1j, x.to(torch.complex64) + (2 - 3j), torch.complex(x, x).conj().imag


@form(one)
def extreme_constants(x):
    return (
        x * 1e-45,
        x + 2**53,
        x * float("nan"),
        x.clamp(-math.inf, 1e30),
        x - torch.finfo(torch.float32).eps,
    )


# -- sizes and factories


@form(cube)
def arithmetic_of_sizes(x):
    count = x.shape[0] * x.size(1)
    return x.reshape(count, -1), x.view(x.shape[0], -1) / x.numel(), x * x.shape[-1] ** -0.5, x.sum() / count


@form(cube)
def parts_of_sizes(x):
    return x.shape[:2], x.size()[1:], x.new_zeros(x.shape[1:]), x.view(x.size()), x.shape[-1] // 2


@form(one)
def factories_like_inputs(x):
    return (
        torch.ones_like(x) + torch.full_like(x, 2.0),
        x.new_full((2, x.size(1)), 1.5),
        torch.arange(3, dtype=torch.float32) + x,
        torch.empty_like(x, dtype=torch.float64).fill_(3),
    )


@form(one)
def attributes_of_tensors(x):
    return x.shape, x.device, x.is_floating_point(), x.data.mT, x.itemsize, x.is_leaf


# -- results


@form(two)
def dict_of_everything(x, y):
    return {"x": x, 1: [y, (x + y, None)], (2, "k"): {"deep": (True, 0.5, "text")}, None: torch.float16}


@form(one)
def empty_containers(x):
    return [], (), {}, x


@form(cube)
def result_of_torch(x):
    return torch.max(x, dim=1), x.sort(), x.shape


@form(cube)
def result_holds_a_slice(x):
    return slice(x.size(0), None, 2), x


@form(one)
def same_constant_everywhere(x, scale=2.0):
    return 2.0, [2.0, x * 2.0], {"2.0": 2.0}


# -- copies and views


@form(one)
def copies_of_values(x):
    return copy.copy(x) + 1, copy.deepcopy(x.detach()) * 2


@form(cube)
def views_of_many_kinds(x):
    return (
        x.swapaxes(0, 1),
        x.movedim(0, -1),
        x.unfold(2, 2, 1),
        x.as_strided((2, 2), (1, 2)),
        x.diagonal(dim1=1, dim2=2),
        x.unflatten(2, (2, 2)),
        x.narrow(1, 0, 2),
        x.squeeze().unsqueeze(-1),
    )


@form(cube)
def reductions_of_many_kinds(x):
    return (
        torch.logsumexp(x, (0, 1)),
        x.cumsum(-1),
        x.amin((1, 2)),
        torch.var_mean(x, dim=0),
        x.argmax(),
        torch.quantile(x, 0.25, dim=2),
        x.norm(p="fro"),
        torch.count_nonzero(x),
    )


@form(two)
def combinations_of_many_kinds(x, y):
    return (
        torch.lerp(x, y, 0.3),
        torch.addcmul(x, x, y, value=2),
        torch.cdist(x, y),
        torch.outer(x[0], y[0]),
        torch.kron(x, y),
        torch.tensordot(x, y, dims=([1], [1])),
        torch.meshgrid(x[0], y[1], indexing="ij"),
        torch.scatter(x, 1, torch.tensor([[0, 1, 2]]), y),
    )


@form(image)
def layers_of_many_kinds(x):
    return (
        F.pad(x, (1, 2, 0, 1), "reflect"),
        F.unfold(x, (2, 2), stride=2),
        F.adaptive_max_pool2d(x, 2, return_indices=True),
        F.lp_pool2d(x, 2.0, 2),
        F.group_norm(x, 3),
        F.dropout2d(x, training=False),
        F.pixel_unshuffle(x, 2),
        F.hardtanh(x, -0.5, 0.5, inplace=False),
        F.softplus(x, beta=2, threshold=10),
    )
