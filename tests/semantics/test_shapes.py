"""Shape functions against torch: what they tell is so, and where they tell anything torch raises no error."""

from __future__ import annotations

import math
import operator
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import nn
from torch._prims_common import suggest_memory_format
from torch.nn import functional as F

from fxplug.semantics.shapes.abstract import (
    ABSTRACT,
    AbstractFlags,
    AbstractIndices,
    AbstractTensor,
    UnknownShapeError,
    abstract,
)
from fxplug.semantics.shapes.composites import shape_of_call
from fxplug.semantics.shapes.functions import FUNCTIONS, METHODS, METHODS_OF_FLAGS
from fxplug.semantics.shapes.integers import compute, holds_tensors, known_value
from fxplug.semantics.shapes.layers import LAYERS, shape_of_layer
from fxplug.semantics.shapes.reading import converted, read_attribute

DTYPE = torch.float32


@dataclass
class Pair:
    """A tensor, and what was told of it."""

    real: Any
    told: Any


def is_ordered(value: torch.Tensor) -> bool:
    steps = [step for step, size in zip(value.stride(), value.shape, strict=True) if size > 1]
    return steps == sorted(steps, reverse=True)


def assert_so(real: Any, told: Any) -> None:
    """Assert that what was told of a value is so."""
    if isinstance(told, AbstractFlags):
        assert real.dtype is torch.bool
        assert tuple(real.shape) == told.sizes
    elif isinstance(told, AbstractIndices):
        assert real.dtype is torch.int64
        assert tuple(real.shape) == told.sizes
    elif isinstance(told, AbstractTensor):
        assert type(real) is (nn.Parameter if told.memory == "weight" else torch.Tensor)
        assert real.dtype is DTYPE
        assert tuple(real.shape) == tuple(told.sizes)
        assert all(type(size) is int for size in told.sizes)
        assert told.order not in {"contiguous", "dense"} or real.is_contiguous()
        # Torch tells by the strides in which memory format results are to be.
        assert told.order in {"unknown", "dense"} or suggest_memory_format(real) is torch.contiguous_format
        assert told.order != "ordered" or is_ordered(real)
    elif isinstance(told, tuple) and not isinstance(told, torch.Size):
        assert len(real) == len(told)
        for one, other in zip(real, told, strict=True):
            assert_so(one, other)
    elif isinstance(told, torch.Tensor):
        assert torch.equal(real, told)
    else:
        assert type(real) is type(told)
        assert real == told


def memory(value: torch.Tensor) -> int:
    return value.untyped_storage().data_ptr()


SIZES = st.lists(st.integers(1, 4), min_size=0, max_size=4)
LAYOUTS = st.sampled_from(["plain", "plain", "permuted", "sliced", "stretched", "channels last"])


@st.composite
def tensors(
    draw: st.DrawFn,
    all_sizes: st.SearchStrategy[list[int]] = SIZES,
    layouts: st.SearchStrategy[str] = LAYOUTS,
) -> torch.Tensor:
    """Draw a tensor that lies in memory as it likes, and may require a gradient."""
    sizes, layout = draw(all_sizes), draw(layouts)
    value = torch.rand(sizes) + 0.5
    if layout == "permuted" and sizes:
        value = value.permute(draw(st.permutations(range(len(sizes)))))
    elif layout == "sliced" and sizes:
        place = draw(st.integers(0, len(sizes) - 1))
        value = torch.cat([value, value], place).narrow(
            place, draw(st.integers(0, sizes[place])), sizes[place]
        )
    elif layout == "stretched" and sizes:
        value = value[:1].expand(sizes)
    elif layout == "channels last" and len(sizes) == 4:
        value = value.to(memory_format=torch.channels_last)
    return value.detach().requires_grad_(draw(st.booleans()))


DIMS = st.integers(-4, 4)
SMALL = st.integers(-1, 4)
NUMBERS = st.one_of(st.integers(-3, 3), st.floats(-2, 2), st.just(2**40), st.booleans(), st.none())
DTYPES = st.sampled_from([torch.float32, torch.bool, torch.float64, "cpu", torch.device("cpu"), "meta", 1])
MANY_DIMS = st.one_of(DIMS, st.lists(DIMS, max_size=3).map(tuple), st.none())
KEYS = st.one_of(
    DIMS,
    st.none(),
    st.just(Ellipsis),
    st.slices(4),
    st.lists(DIMS, max_size=3),
    st.booleans(),
)


@dataclass(frozen=True)
class Operand:
    """Stands for one of the tensors that there are."""


@dataclass(frozen=True)
class Operands:
    """Stands for several of them."""


T, TS = st.just(Operand()), st.just(Operands())


def sizes_like(value: torch.Tensor) -> st.SearchStrategy[tuple[int, ...]]:
    """Return sizes that a tensor may be given, and some that it may not."""
    count, sizes = value.numel(), tuple(value.shape)
    found = [sizes, (count,), (-1,), (1, *sizes), (*sizes, 1), (*sizes, -1), (*sizes[:1], -1)]
    found += [(-1, size) for size in sizes] + [(*sizes[:2], -1), (-1, *sizes[1:]), (2, -1), (3, -1), (-1, -1)]
    if sizes and sizes[-1] % 2 == 0:
        found += [(*sizes[:-1], 2, sizes[-1] // 2), (*sizes[:-1], 2, -1)]
    if len(sizes) > 1:
        found += [(*sizes[:-2], sizes[-2] * sizes[-1]), (sizes[0] * sizes[1], *sizes[2:])]
    return st.one_of(st.sampled_from(found), st.lists(SMALL, max_size=4).map(tuple))


UNARY = [
    "abs",
    "exp",
    "relu",
    "sigmoid",
    "tanh",
    "square",
    "neg",
    "clone",
    "contiguous",
    "t",
    "squeeze",
    "size",
]
UNARY += [
    "dim",
    "numel",
    "sum",
    "mean",
    "amax",
    "std",
    "norm",
    "relu_",
    "sigmoid_",
    "tanh_",
    "exp_",
    "unbind",
]
UNARY += ["max", "min", "argmax", "zero_", "tril", "log1p", "floor", "sign"]
BINARY = ["add", "sub", "mul", "div", "add_", "sub_", "mul_", "div_", "matmul", "bmm", "expand_as", "view_as"]
BINARY += ["maximum", "minimum", "max"]
EQUATIONS = [
    "ab,bc->ac",
    "a,b->ab",
    "ab->ba",
    "ab->a",
    "aab->b",
    "abc,acd->abd",
    "ab,ab",
    "a,a->b",
    "...a->a",
]
EQUATIONS += ["ab,ab->aa", "ab->", "ab,ab->ab", "a1->a", "abcd->dcba", "\u00e4->\u00e4"]
METHOD_CALLS: list[tuple[str, list[st.SearchStrategy[Any]]]] = [
    *[(name, []) for name in UNARY],
    *[(name, [T]) for name in [*BINARY, "reshape_as"]],
    *[(name, [NUMBERS]) for name in ("add", "sub", "mul", "div", "add_", "mul_", "pow", "clamp")],
    *[(name, [MANY_DIMS]) for name in ("sum", "mean", "amax", "amin", "var", "std", "squeeze", "permute")],
    *[(name, [DIMS]) for name in ("softmax", "log_softmax", "unsqueeze", "size", "unbind", "flatten")],
    *[(name, [MANY_DIMS, st.booleans()]) for name in ("sum", "mean", "amax", "amin", "std")],
    *[(name, [DIMS, DIMS]) for name in ("transpose", "swapaxes", "flatten", "permute", "repeat")],
    ("norm", [st.sampled_from([1, 2, 3]), MANY_DIMS, st.booleans()]),
    *[(name, [SMALL, DIMS]) for name in ("chunk", "split")],
    ("split", [st.lists(SMALL, max_size=3), DIMS]),
    ("permute", [st.permutations(range(3)).map(tuple)]),
    ("permute", [st.permutations(range(4)).map(tuple)]),
    ("repeat", [st.lists(SMALL, max_size=4).map(tuple)]),
    *[(name, [DIMS]) for name in ("max", "min", "argmax", "argmin", "cumsum", "cumprod", "tril", "triu")],
    *[(name, [DIMS, st.booleans()]) for name in ("argmax", "max")],
    ("repeat_interleave", [SMALL]),
    ("repeat_interleave", [SMALL, DIMS]),
    *[(name, [SMALL, SMALL]) for name in ("new_zeros", "new_ones", "new_empty")],
    *[(name, [st.lists(SMALL, max_size=3)]) for name in ("new_zeros", "new_empty")],
    *[(name, [DTYPES]) for name in ("to", "float", "cpu", "type_as")],
    *[(name, [DTYPES, DTYPES]) for name in ("to",)],
    *[(name, [T]) for name in ("to", "type_as")],
    *[(name, [T]) for name in ("logical_and", "logical_xor")],
    ("logical_not", []),
]
ELEMENTWISE = [
    torch.abs,
    torch.cos,
    torch.exp,
    torch.sigmoid,
    torch.relu,
    torch.relu_,
    torch.tanh,
    operator.neg,
]
ACTIVATIONS = [F.relu, F.silu, F.hardswish, F.hardsigmoid, F.mish, F.selu, F.relu6]
OPERATORS = [operator.add, operator.sub, operator.mul, operator.truediv, operator.iadd, operator.imul]
OPERATORS += [operator.isub, operator.itruediv, torch.add, torch.sub, torch.mul, torch.div, operator.pow]
COMPARISONS = [operator.eq, operator.lt, operator.ge, operator.ne]
FLAG_OPERATORS = [operator.and_, operator.or_, operator.xor, torch.logical_and, torch.logical_or]
FUNCTION_CALLS: list[tuple[Any, list[st.SearchStrategy[Any]]]] = [
    *[(function, [T]) for function in [*ELEMENTWISE, *ACTIVATIONS, F.gelu, torch.zeros_like, torch.flatten]],
    *[(function, [T, st.booleans()]) for function in ACTIVATIONS],
    *[(function, [T, st.sampled_from([0.1, True, "a"])]) for function in (F.leaky_relu, F.elu)],
    (F.gelu, [T, st.sampled_from(["tanh", "none", "other"])]),
    *[
        (function, [T, T])
        for function in [*OPERATORS, *COMPARISONS, operator.matmul, torch.matmul, torch.bmm]
    ],
    *[(function, [T, NUMBERS]) for function in [*OPERATORS, *COMPARISONS]],
    *[(function, [NUMBERS, T]) for function in [*OPERATORS, *COMPARISONS]],
    *[(function, [T, DIMS]) for function in (F.softmax, F.log_softmax, torch.softmax, torch.unbind)],
    *[
        (function, [T, DIMS])
        for function in (torch.unsqueeze, torch.squeeze, torch.flatten, torch.sum, torch.mean)
    ],
    *[
        (function, [T, DIMS, DIMS])
        for function in (torch.transpose, torch.swapaxes, torch.flatten, torch.roll)
    ],
    *[(function, [TS, DIMS]) for function in (torch.cat, torch.stack)],
    *[(function, [T, SMALL, DIMS]) for function in (torch.chunk, torch.split)],
    (torch.permute, [T, st.permutations(range(3)).map(tuple)]),
    (torch.addcmul, [T, T, T]),
    (operator.getitem, [T, KEYS]),
    (operator.getitem, [T, st.tuples(KEYS, KEYS)]),
    (operator.getitem, [T, st.tuples(KEYS, KEYS, KEYS)]),
    (operator.setitem, [T, KEYS, NUMBERS]),
    (operator.setitem, [T, KEYS, T]),
    (operator.setitem, [T, st.tuples(KEYS, KEYS), T]),
    *[(function, [T, T]) for function in (*FLAG_OPERATORS, torch.maximum, torch.max, torch.outer)],
    *[(function, [T]) for function in (operator.invert, torch.logical_not, torch.max, torch.argmin)],
    *[(function, [T]) for function in (F.logsigmoid, F.sigmoid, F.tanh, F.softplus, F.glu)],
    *[(function, [T, DIMS]) for function in (torch.min, torch.argmax, torch.cumsum, F.glu, torch.triu)],
    (F.softplus, [T, NUMBERS, NUMBERS]),
    (F.rms_norm, [T, st.lists(SMALL, max_size=2)]),
    (torch.repeat_interleave, [T, SMALL, DIMS]),
    *[(torch.where, [T, *given]) for given in ([T, T], [T, NUMBERS], [NUMBERS, T])],
    (torch.einsum, [st.sampled_from(EQUATIONS), T]),
    (torch.einsum, [st.sampled_from(EQUATIONS), T, T]),
    (F.unfold, [T, st.one_of(SMALL, st.tuples(SMALL, SMALL)), st.integers(1, 2), SMALL, SMALL]),
    (F.fold, [T, st.integers(1, 6), SMALL, st.integers(1, 2), SMALL, SMALL]),
    (F.normalize, [T, st.sampled_from([1, 2.0, 3]), DIMS]),
    (F.dropout, [T, st.sampled_from([0.5, 0.0]), st.booleans()]),
    (F.pad, [T, st.lists(SMALL, max_size=4)]),
    (F.interpolate, [T, st.one_of(SMALL, st.tuples(SMALL, SMALL))]),
    (F.interpolate, [T, st.none(), st.sampled_from([2, 0.5, 1.7]), st.sampled_from(["nearest", "bilinear"])]),
    (F.adaptive_avg_pool2d, [T, st.one_of(SMALL, st.tuples(SMALL, st.none()))]),
    (F.avg_pool2d, [T, SMALL, SMALL, SMALL, st.booleans()]),
    (F.max_pool2d, [T, SMALL, SMALL, SMALL, st.integers(1, 2), st.booleans()]),
    (F.linear, [T, T]),
    (F.linear, [T, T, T]),
    (F.layer_norm, [T, st.lists(SMALL, max_size=2)]),
    (F.group_norm, [T, SMALL]),
    (F.scaled_dot_product_attention, [T, T, T]),
    (torch.conv1d, [T, T]),
    (torch.conv2d, [T, T, st.none(), SMALL, SMALL, SMALL, SMALL]),
]
CALLS = [("call_method", *call) for call in METHOD_CALLS] + [
    ("call_function", *call) for call in FUNCTION_CALLS
]
SIZED = st.sampled_from(["view", "reshape", "expand", torch.reshape])


def tell(op: str, target: Any, args: list[Any]) -> Any:
    if op == "call_function":
        return FUNCTIONS[target](*args)
    table: dict[str, Any] = METHODS if isinstance(args[0], AbstractTensor) else METHODS_OF_FLAGS
    known = table.get(target)
    return converted(args[0], target, args[1:], {}, DTYPE) if known is None else known(*args)


def make(op: str, target: Any, args: list[Any]) -> Any:
    if target is operator.setitem:
        target(*args)
        return args[0]
    return getattr(args[0], target)(*args[1:]) if op == "call_method" else target(*args)


@st.composite
def calls(draw: st.DrawFn, pairs: list[Pair], among: list[Any]) -> tuple[str, Any, list[Any], list[Any]]:
    """Draw a call: its opcode, its target, and what it is given, as it is and as it is told."""
    pick = st.sampled_from(pairs)
    if draw(st.integers(0, 5)) == 0:
        target, pair = draw(SIZED), draw(pick)
        sizes = draw(sizes_like(pair.real))
        op = "call_method" if isinstance(target, str) else "call_function"
        rest = [sizes] if op == "call_function" or draw(st.booleans()) else list(sizes)
        return op, target, [pair.real, *rest], [pair.told, *rest]
    op, target, wanted = draw(st.sampled_from(among))
    real, told = [], []
    for strategy in [T, *wanted] if op == "call_method" else wanted:
        value = draw(strategy)
        if isinstance(value, Operand):
            value = draw(pick)
            real.append(value.real)
            told.append(value.told)
        elif isinstance(value, Operands):
            values = draw(st.lists(pick, min_size=1, max_size=3))
            real.append([one.real for one in values])
            told.append([one.told for one in values])
        else:
            real.append(value)
            told.append(value)
    return op, target, real, told


@settings(
    max_examples=1200,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much],
)
@given(st.data())
def test_what_is_told_of_calls_is_so(data: st.DataObject):
    _check_calls(data, data.draw(st.lists(tensors(), min_size=1, max_size=3)), CALLS)


RARE = {
    torch.where,
    torch.einsum,
    F.unfold,
    F.fold,
    torch.outer,
    F.rms_norm,
    operator.setitem,
    torch.conv1d,
    torch.cat,
}
RARE |= {
    operator.and_,
    operator.or_,
    operator.xor,
    operator.invert,
    torch.logical_and,
    torch.logical_not,
    F.glu,
}
RARE |= {
    "logical_and",
    "logical_not",
    "repeat_interleave",
    "tril",
    "zero_",
    "matmul",
    "add_",
    "new_zeros",
    "to",
    "float",
}
SELDOM = [call for call in CALLS if call[1] in RARE]
SQUARES = st.integers(1, 4).map(lambda count: [2] * count)


@settings(max_examples=800, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(st.data())
def test_what_is_told_of_other_calls_is_so(data: st.DataObject):
    first = data.draw(tensors(SQUARES)).detach()
    pairs = [
        Pair(first * 2, FUNCTIONS[operator.mul](abstract(first, DTYPE), 2)),
        Pair(first > 1, FUNCTIONS[operator.gt](abstract(first, DTYPE), 1)),
    ]
    _check_calls(data, [first, data.draw(tensors(SQUARES))], SELDOM, pairs)


# Those of which strides do not say which dimension comes last.
NARROW = st.lists(st.integers(1, 2), min_size=4, max_size=4)
KEEPING = [
    call for call in CALLS if call[1] in {"contiguous", "clone", "relu", "add", "mul", torch.cat, torch.add}
]
KEEPING += [("call_method", "contiguous", [])] * 4 + [("call_function", torch.conv2d, [T, T])] * 2


@settings(max_examples=600, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(st.data())
def test_what_is_told_of_narrow_tensors_is_so(data: st.DataObject):
    narrow = tensors(NARROW, st.sampled_from(["channels last", "plain"]))
    _check_calls(data, data.draw(st.lists(narrow, min_size=1, max_size=3)), KEEPING)


def _check_calls(
    data: st.DataObject, inputs: list[torch.Tensor], among: list[Any], more: list[Pair] | None = None
) -> None:
    """Make several calls one after the other, and assert that what is told of each is so."""
    before = [one.detach().clone() for one in inputs]
    pairs = [*[Pair(one, abstract(one, DTYPE)) for one in inputs], *(more or ())]
    if data.draw(st.booleans()):
        first = inputs[0].detach()
        pairs.append(Pair(first * 2, FUNCTIONS[operator.mul](abstract(first, DTYPE), 2)))
        pairs.append(Pair(first > 1, FUNCTIONS[operator.gt](abstract(first, DTYPE), 1)))
    with torch.set_grad_enabled(data.draw(st.booleans())):
        for _ in range(data.draw(st.integers(1, 5))):
            op, target, real, told = data.draw(calls(pairs, among))
            try:
                answer = tell(op, target, told)
            except Exception:  # Nothing is known.
                continue
            result = make(op, target, real)
            assert_so(result, answer)
            _assert_memory(inputs, result, answer)
            if type(answer) in ABSTRACT:
                # Torch does not compute with what has been overwritten for a gradient, and the run computes none.
                pairs.append(Pair(result, answer))
            elif isinstance(answer, tuple):
                both = zip(result, answer, strict=True)
                pairs += [Pair(one, other) for one, other in both if type(other) in ABSTRACT]
    for value, old in zip(inputs, before, strict=True):
        assert torch.equal(value.detach(), old)


def _assert_memory(inputs: list[torch.Tensor], result: Any, answer: Any) -> None:
    if isinstance(answer, AbstractTensor) and (answer.memory == "own" or answer.base is not None):
        assert memory(result) not in map(memory, inputs)


# -- layers


def seldom(usual: Any, *others: Any) -> st.SearchStrategy[Any]:
    return st.sampled_from([usual] * 6 + [*others])


@st.composite
def layers(draw: st.DrawFn) -> tuple[nn.Module, torch.Tensor]:
    """Draw a layer, and what it may be given, or not."""
    channels, width = draw(st.sampled_from([1, 2, 4])), draw(st.integers(1, 7))
    dims = draw(seldom(2, 1, 3))
    kind = draw(st.sampled_from(list(LAYERS)))
    layer = _layer(draw, kind, channels, width)
    given_channels = draw(seldom(channels, 3))
    if kind in (nn.Linear, nn.LayerNorm, nn.RMSNorm):
        sizes = [2, *draw(SIZES), draw(seldom(width, 3))]
    elif kind is nn.Embedding:
        return layer, torch.randint(draw(seldom(0, -1)), draw(seldom(width, width + 1)), (2, 3))
    else:
        sizes = [2, given_channels, *[draw(st.integers(1, 8)) for _ in range(_dims_of(kind, dims))]]
        sizes = draw(seldom(sizes, sizes[1:], [*sizes, 2]))
    value = torch.rand(sizes)
    if draw(seldom(False, True)):
        value = value.transpose(-1, -2)
    if draw(seldom(False, True)) and value.dim() == 4:
        value = value.to(memory_format=torch.channels_last)
    return layer.train(draw(seldom(False, True))), value


def _dims_of(kind: type, dims: int) -> int:
    return next((count for count in (1, 2, 3) if kind.__name__.endswith(f"{count}d")), dims)


def _layer(draw: st.DrawFn, kind: type, channels: int, width: int) -> nn.Module:
    kernel, stride = draw(st.integers(1, 4)), draw(st.integers(1, 3))
    padding, dilation = draw(st.integers(0, 2)), draw(seldom(1, 2))
    name = kind.__name__
    if name.startswith("ConvTranspose"):
        return kind(channels, 4, kernel, stride, padding, draw(seldom(0, 1)), bias=draw(st.booleans()))
    if name.startswith("Conv"):
        groups = draw(seldom(1, channels))
        mode, edge = draw(seldom("zeros", "reflect")), draw(seldom(padding, "valid"))
        return kind(channels, 4, kernel, stride, edge, dilation, groups, padding_mode=mode)
    if name.startswith("BatchNorm"):
        return kind(channels, affine=draw(st.booleans()), track_running_stats=draw(seldom(True, False)))
    if name.startswith("MaxPool"):
        flags = {"ceil_mode": draw(st.booleans()), "return_indices": draw(seldom(False, True))}
        return kind(kernel, draw(seldom(None, stride)), min(padding, kernel // 2), dilation, **flags)
    if name.startswith("AvgPool"):
        return kind(kernel, stride, draw(seldom(min(padding, kernel // 2), padding)), draw(st.booleans()))
    return kind(*_settings_of(draw, kind, channels, width))


def _settings_of(draw: st.DrawFn, kind: type, channels: int, width: int) -> tuple[Any, ...]:
    if kind.__name__.startswith("AdaptiveAvgPool"):
        return (draw(st.sampled_from([1, 2, 3])),)
    known: dict[type, tuple[Any, ...]] = {
        nn.ELU: (0.5, draw(st.booleans())),
        nn.Fold: (draw(st.integers(1, 6)), draw(st.integers(1, 3)), 1, draw(st.integers(0, 1))),
        nn.GLU: (draw(st.integers(-3, 3)),),
        nn.LogSoftmax: (draw(st.integers(-5, 4)),),
        nn.RMSNorm: (width, draw(seldom(None, 1e-6, 0.0))),
        nn.Softplus: (draw(st.sampled_from([1, 0.5])), 10),
        nn.Unfold: (draw(st.integers(1, 3)), 1, draw(st.integers(0, 1)), draw(st.integers(1, 2))),
        nn.Embedding: (width, 3, draw(seldom(None, 0, -1))),
        nn.Flatten: (draw(seldom(1, 0, 2, 4)), draw(seldom(-1, 2, 0))),
        nn.GELU: (draw(seldom("none", "tanh")),),
        nn.GroupNorm: (draw(seldom(1, channels)), channels),
        nn.LayerNorm: (width,),
        nn.LeakyReLU: (0.1, draw(st.booleans())),
        nn.Linear: (width, 3),
        nn.PixelShuffle: (draw(st.sampled_from([1, 2])),),
        nn.Softmax: (draw(st.integers(-5, 4)),),
        nn.Upsample: (
            None,
            draw(st.sampled_from([2, 1.5, 0.4])),
            draw(st.sampled_from(["nearest", "bilinear"])),
        ),
    }
    return known.get(kind, ())


@settings(max_examples=1500, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
@given(layers(), st.booleans())
@pytest.mark.filterwarnings("ignore:Using a target size")
def test_what_is_told_of_layers_is_so(drawn, has_gradients):
    layer, value = drawn
    known = known_value(value, DTYPE, "given")
    try:
        answer = shape_of_layer(layer, known, DTYPE)
    except Exception:  # Nothing is known.
        return
    before = value.clone()
    with torch.set_grad_enabled(has_gradients):
        assert_so(layer(value), answer)
    assert torch.equal(value, before)
    assert answer.memory != "own" or memory(layer(value)) != memory(value)


KNOWN_LAYERS = [
    (nn.Conv2d(3, 4, 3, padding=1), (2, 3, 8, 8)),
    (nn.Conv2d(4, 4, (1, 3), (1, 2), groups=2, bias=False), (2, 4, 8, 8)),
    (nn.Conv1d(3, 4, 3), (2, 3, 8)),
    (nn.Conv3d(3, 4, 3), (2, 3, 8, 8, 8)),
    (nn.ConvTranspose2d(3, 4, 2, 2), (2, 3, 8, 8)),
    (nn.BatchNorm2d(3).eval(), (2, 3, 8, 8)),
    (nn.BatchNorm1d(3, affine=False).eval(), (2, 3)),
    (nn.GroupNorm(1, 3), (2, 3, 8)),
    (nn.LayerNorm((3, 8)), (2, 3, 8)),
    (nn.Linear(8, 3), (2, 3, 8)),
    (nn.MaxPool2d(3, 2, 1, ceil_mode=True), (2, 3, 8, 8)),
    (nn.AvgPool2d(2), (2, 3, 8, 8)),
    (nn.AdaptiveAvgPool2d((1, None)), (2, 3, 8, 8)),
    (nn.Upsample(scale_factor=2, mode="bilinear"), (2, 3, 8, 8)),
    (nn.PixelShuffle(2), (2, 4, 8, 8)),
    (nn.Flatten(), (2, 3, 8, 8)),
    (nn.Softmax(-1), (2, 3)),
    (nn.GELU(), (2, 3)),
    (nn.LeakyReLU(0.1), (2, 3)),
    (nn.Dropout(0.5).eval(), (2, 3)),
    (nn.Unfold(3, padding=1), (2, 3, 8, 8)),
    (nn.Fold((4, 4), 2, stride=2), (2, 12, 4)),
    (nn.GLU(1), (2, 4, 8)),
    (nn.ELU(), (2, 3)),
    (nn.LogSoftmax(-1), (2, 3)),
    (nn.RMSNorm(3), (2, 3)),
    (nn.Softplus(), (2, 3)),
]


@pytest.mark.parametrize(("layer", "sizes"), KNOWN_LAYERS, ids=str)
def test_usual_layers_are_known(layer, sizes):
    value = torch.rand(sizes)
    assert_so(layer(value), shape_of_layer(layer, abstract(value, DTYPE), DTYPE))


WRONG_LAYERS = [
    (nn.Conv2d(3, 4, 3), (2, 4, 8, 8)),
    (nn.Conv2d(3, 4, 3), (2, 3, 2, 8)),
    (nn.Conv2d(3, 4, 3), (3, 8, 8)),
    (nn.BatchNorm2d(3).eval(), (2, 3, 8)),
    (nn.BatchNorm2d(3).eval(), (2, 4, 8, 8)),
    (nn.BatchNorm2d(3), (2, 3, 8, 8)),
    (nn.Linear(8, 3), (2, 3)),
    (nn.LayerNorm(8), (2, 3)),
    (nn.GroupNorm(2, 4), (2, 3)),
    (nn.MaxPool2d(3), (2, 3, 2, 2)),
    (nn.Flatten(2), (2, 3)),
    (nn.Softmax(3), (2, 3)),
    (nn.ReLU(inplace=True), (2, 3)),
    (nn.Dropout(0.5), (2, 3)),
    (nn.Unfold(3), (2, 3, 2, 8)),
    (nn.Fold((4, 4), 2), (2, 12, 4)),
    (nn.GLU(1), (2, 3)),
    (nn.RMSNorm(4), (2, 3)),
    (nn.ELU(inplace=True), (2, 3)),
]


@pytest.mark.parametrize(("layer", "sizes"), WRONG_LAYERS, ids=str)
def test_nothing_is_told_of_layers_that_may_raise_write_or_draw(layer, sizes):
    with pytest.raises(UnknownShapeError):
        shape_of_layer(layer, abstract(torch.rand(sizes), DTYPE), DTYPE)


def test_weights_of_another_dtype_device_or_class_are_not_known():
    class Other(nn.Parameter):
        pass

    value = abstract(torch.rand(2, 3), DTYPE)
    layers = [nn.Linear(3, 3, dtype=torch.float64), nn.Linear(3, 3, device="meta"), nn.Linear(3, 3)]
    layers[2].weight = Other(torch.rand(3, 3))
    for layer in layers:
        with pytest.raises(UnknownShapeError):
            shape_of_layer(layer, value, DTYPE)
    with torch.inference_mode():
        frozen = nn.Linear(3, 3)
    with pytest.raises(UnknownShapeError):
        shape_of_layer(frozen, value, DTYPE)


@pytest.mark.parametrize("name", ["weight", "bias", "running_mean"])
def test_what_hides_a_weight_is_not_overlooked(name):
    layer = nn.BatchNorm1d(3).eval()
    layer.__dict__[name] = torch.rand(4)
    with pytest.raises(UnknownShapeError):
        shape_of_layer(layer, abstract(torch.rand(2, 3), DTYPE), DTYPE)


@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize("needed", [True, False])
def test_attention(batch_first, needed):
    layer = nn.MultiheadAttention(8, 2, batch_first=batch_first).eval()
    query, key = torch.rand(2, 5, 8), torch.rand(2, 3, 8)
    if not batch_first:
        query, key = query.transpose(0, 1), key.transpose(0, 1)
    told = [abstract(one, DTYPE) for one in (query, key, key)]
    answer = shape_of_call(layer, told, {"need_weights": needed}, DTYPE)
    result = layer(query, key, key, need_weights=needed)
    assert (result[1] is None) is (answer[1] is None)
    for one, other in zip(result, answer, strict=True):
        if other is not None:
            assert_so(one, other)


def test_attention_that_may_raise_is_not_known():
    layer = nn.MultiheadAttention(8, 2).eval()
    right, wrong = (abstract(torch.rand(2, 5, width), DTYPE) for width in (8, 6))
    many = abstract(torch.rand(2, 4, 8), DTYPE)
    for given_values in ([wrong] * 3, [right, wrong, wrong], [right, right, many], [right, many, many]):
        with pytest.raises(UnknownShapeError):
            shape_of_call(layer, given_values, {}, DTYPE)
    for options in ({"is_causal": True}, {"need_weights": 1}, {"average_attn_weights": False}):
        with pytest.raises(UnknownShapeError):
            shape_of_call(layer, [right] * 3, options, DTYPE)
    with pytest.raises(UnknownShapeError):
        shape_of_call(layer.train(), [right] * 3, {}, DTYPE)


# -- what is easily overlooked


def changed(layer: nn.Module, **settings: Any) -> nn.Module:
    for name, value in settings.items():
        setattr(layer, name, value)
    return layer.eval()


def grey(*sizes: int) -> torch.Tensor:
    return torch.rand(*sizes).to(memory_format=torch.channels_last)


LAST = nn.Conv2d(8, 8, 1).to(memory_format=torch.channels_last)
ORDERS = [
    (
        "numbers with what is contiguous by dimensions of size 1",
        lambda x: F.avg_pool2d(torch.div(x.contiguous() * 2, 2, rounding_mode="floor"), 1),
        torch.rand(1, 2, 1, 1).to(memory_format=torch.channels_last),
    ),
    (
        "another one in channels last",
        lambda x: F.avg_pool2d(F.adaptive_avg_pool2d(x[:, :, 1:, 1:].contiguous(), 1) + x[:, :, :1, :1], 1),
        torch.rand(1, 4, 3, 3).to(memory_format=torch.channels_last),
    ),
    ("steps beyond the end", lambda x: x[:, :, ::8, ::30].relu(), torch.rand(2, 4, 4, 5)),
    (
        "contiguous by dimensions of size 1",
        lambda x: F.avg_pool2d(x.contiguous(), 1),
        torch.rand(1, 2, 1, 1).to(memory_format=torch.channels_last),
    ),
    ("conv of a kernel in channels last", lambda x: F.conv2d(x, LAST.weight), torch.rand(2, 8, 4, 4)),
    ("cat in channels last", lambda x: torch.cat((x, x, x), 1), grey(2, 1, 4, 4)),
    ("pad in channels last", lambda x: F.pad(x, (1, 1, 1, 1)), grey(2, 8, 1, 1)),
    ("pool in channels last", lambda x: F.max_pool2d(x, 2, 1, 1), grey(2, 8, 1, 1)),
    ("rows by transposed indices", lambda x: x[torch.arange(9).view(3, 3).t()], torch.rand(9, 4)),
    ("integers first", lambda x: torch.arange(9).view(3, 3).t() * x, torch.rand(3, 3)),
    (
        "the first of three is stretched",
        lambda x: torch.addcmul(x, x.t(), x @ x.t()),
        torch.rand(3, 1),
    ),
]


def told_by(function: Any, x: Any) -> Any:
    """Return what a function of one tensor is told to give: it is recorded, and gone through."""
    import fxplug
    from fxplug.api.plain_shapes import shapes_of

    tracer = fxplug.Tracer()
    try:
        graph = tracer.trace(function)
    except TypeError:  # It is refused already.
        return None
    shapes = shapes_of(tracer.root, (x,), graph._sentinel, ())
    return shapes.of(graph.output_node().args[0])


@pytest.mark.parametrize(("function", "x"), [case[1:] for case in ORDERS], ids=[case[0] for case in ORDERS])
def test_the_order_in_memory_is_not_taken_for_granted(function, x):
    told = told_by(function, x)
    if told is not None:
        assert_so(function(x), told)
        assert told.order == "unknown"


X, SQUARE, IMAGE = torch.rand(2, 4), torch.rand(4, 4), torch.rand(2, 4, 4, 4)
KNOWN_CALLS = [
    (lambda x: x.mean([2, 3]), IMAGE),
    (lambda x: x.mean(dim=(-1, -2), keepdim=True), IMAGE),
    (lambda x: x.sum(1).std(-1, keepdim=True), IMAGE),
    (lambda x: x.mean() + x.amax(dim=1).norm(dim=-1, keepdim=True), IMAGE),
    (lambda x: F.softmax(x @ x.transpose(-2, -1), dim=-1).masked_fill(x[:, :1] < 0, float("-inf")), IMAGE),
    (lambda x: F.scaled_dot_product_attention(x, x, x, is_causal=True), IMAGE),
    (lambda x: F.scaled_dot_product_attention(x, x, x, x[0, 0] > -1), IMAGE),
    (lambda x: torch.cat([x.chunk(2, dim=1)[0], x], 1).flatten(1).unsqueeze(0).squeeze(0), IMAGE),
    (lambda x: F.interpolate(F.pad(x, (1, 1)), scale_factor=2, mode="bilinear"), IMAGE),
    (lambda x: F.interpolate(x, size=(3, 3), mode="bilinear", align_corners=False), IMAGE),
    (lambda x: torch.roll(x, shifts=(-1, 1), dims=(1, 2)).permute(0, 2, 3, 1).reshape(2, -1), IMAGE),
    (lambda x: F.adaptive_avg_pool2d(x, 1).view(2, -1), IMAGE),
    (lambda x: F.max_pool2d(x, kernel_size=2, stride=2) * F.avg_pool2d(x, 2), IMAGE),
    (lambda x: F.layer_norm(x, (4,)) + F.group_norm(x, 2) + F.gelu(x, approximate="tanh"), IMAGE),
    (lambda x: F.normalize(x, dim=-1).clamp(min=0).pow(2).expand(2, 4, 4, 4).contiguous(), IMAGE),
    (lambda x: x[:, 0, None, ...][..., [-1]].repeat(1, 2, 1, 1), IMAGE),
    (lambda x: x.view(2, 4, 2, 2, -1).unbind(2)[0].swapaxes(1, 2).to(torch.float32).float(), IMAGE),
    (lambda x: F.leaky_relu(x, 0.1, inplace=False) - F.dropout(x, 0.1, training=False), IMAGE),
    (lambda x: (x * 2).relu_().add_(1).mul_(x), IMAGE),
    (lambda x: x[torch.arange(x.size(0) - 1)].mT, IMAGE),
    (lambda x: F.fold(F.unfold(x, 3, padding=1), (4, 4), 3, padding=1), IMAGE),
    (lambda x: x.max(1)[0] + torch.min(x, 1, keepdim=True)[0].squeeze(1), IMAGE),
    (lambda x: x.repeat_interleave(2, dim=0).cumsum(1, dtype=torch.float32), IMAGE),
    (lambda x: F.softmax(x, -1, dtype=torch.float32).to(x.dtype).sum(dim=1, dtype=torch.float32), IMAGE),
    (lambda x: torch.einsum("b c h w, b c v w -> b h v", x, x), IMAGE),
    (lambda x: torch.where((x > 0) & ~(x > 1), x, 0.0) * (x > 0).float(), IMAGE),
    (lambda x: 10000 ** (x / 2) + (-2) ** x, IMAGE),
    (
        lambda x: (
            (x > 0.5).cumsum(1, dtype=torch.float32) + (x > 0.5).sum(-1, keepdim=True, dtype=torch.float32)
        ),
        IMAGE,
    ),
    (lambda x: torch.outer(x[0, 0, 0], x[0, 0, 0]).tril(-1), IMAGE),
    (lambda x: F.glu(x, 1) + F.rms_norm(x, (4,)).minimum(F.softplus(x))[:, :2], IMAGE),
    (lambda x: filled_at(x.new_zeros((4, 4)), x), IMAGE),
    (lambda x: (x * 2).zero_().log1p(), IMAGE),
    (lambda x: torch.div(x, 2, rounding_mode="floor") + x.div(x, rounding_mode="trunc"), IMAGE),
]


def moved_by_one(x):
    x[1:] = x[:-1]
    return x + 1


def filled_with_too_much(x):
    x[0] = x[:, :3] * 2
    return x + 1


def filled_at(mask, x):
    mask[1:, :2] = 1
    mask[0, 1:3] = x[0, 0, 0, :2]
    return mask + 1


@pytest.mark.parametrize(("function", "x"), KNOWN_CALLS, ids=range(len(KNOWN_CALLS)))
def test_usual_calls_are_known(function, x):
    told = told_by(function, x)
    assert isinstance(told, AbstractTensor)
    assert_so(function(x), told)


WRONG_CALLS = [
    (lambda x: x.masked_fill(torch.ones(2, 4, dtype=torch.bool), -1e300), X),
    (lambda x: x.masked_fill(torch.ones(2, 4, dtype=torch.bool), 10**30), X),
    (lambda x: F.scaled_dot_product_attention(x, x, x, torch.ones(4, dtype=torch.bool)), IMAGE),
    (lambda x: F.scaled_dot_product_attention(x, x, x, torch.ones(5, 1, 1, 4, 4, dtype=torch.bool)), IMAGE),
    (lambda x: x.sum(keepdim=True), X),
    (lambda x: x.mean(keepdim=True), X),
    (lambda x: x.norm(dim=(2, 1, -1)), IMAGE),
    (lambda x: x.amax(1, None), IMAGE),
    (lambda x: torch.sum(x, 1, None), IMAGE),
    (lambda x: F.adaptive_avg_pool1d(x, (None,)), torch.rand(2, 3, 4)),
    (lambda x: F.interpolate(x, scale_factor=2, mode="bilinear", align_corners=0), IMAGE),
    (lambda x: torch.roll(x, (), ()), X),
    (lambda x: F.layer_norm(x, (4,), (4,)), X),
    (lambda x: F.layer_norm(x, torch.tensor([4])), X),
    (lambda x: F.max_pool2d(x, 2, 2**33), IMAGE),
    (lambda x: F.max_pool2d(x, 1, 1, 0, 10**12), IMAGE),
    (lambda x: x.add(y=1), X),
    (lambda x: torch.sub(x, y=1), X),
    (lambda x: torch.swapaxes(x, dim0=0, dim1=1), X),
    (lambda x: F.adaptive_avg_pool2d(x, 1, dims=1), IMAGE),
    (lambda x: torch.split(x, split_size=1), X),
    (lambda x: F.leaky_relu(x, slope=0.1), X),
    (lambda x: F.dropout(x, 2.0, training=False), X),
    (lambda x: F.embedding(torch.tensor([1]), x, padding_idx=-5), X),
    (lambda x: F.batch_norm(x, None, None, training=True), torch.rand(1, 4)),
    (lambda x: x.t(), torch.rand(2, 3, 4)),
    (lambda x: x.view(-1, -2, 3), torch.rand(6)),
    (lambda x: x.view(0, -1), X),
    (lambda x: x.permute(1, 2, 0).view(4, -1), torch.rand(2, 3, 4)),
    (lambda x: x[:, :2].view(-1), X),
    (lambda x: x.float(torch.float32), X),
    (lambda x: x - (torch.arange(x.size(1)) > 1), X),
    (lambda x: x.view(-1, -2, -3), torch.rand(6)),
    (lambda x: (h := x * 2)[1:].add_(h[:-1]), SQUARE),
    (lambda x: math.sqrt(x.size(0), base=2), X),
    (lambda x: x.expand(2, 4).relu_(), torch.rand(1, 4).requires_grad_()),
    (lambda x: torch.einsum("ab,bc->ac", x, x), X),
    (lambda x: moved_by_one(x * 2), SQUARE),
    (lambda x: filled_with_too_much(x * 2), X),
    (lambda x: F.glu(x[:, :3]), X),
    (lambda x: F.fold(x, (4, 4), 3), IMAGE[0]),
    (lambda x: x.new_zeros(2, -1), X),
    (lambda x: torch.where(x, x, x), X),
    (lambda x: ~x, X),
    (lambda x: x.cumsum(2, dtype=torch.float32), X),
    (lambda x: x.max(3)[0], X),
    (lambda x: F.rms_norm(x[:, :1], (True,)), X),
    (lambda x: torch.div(x, 2, rounding_mode="up"), X),
]


@pytest.mark.parametrize(("function", "x"), WRONG_CALLS, ids=range(len(WRONG_CALLS)))
def test_nothing_is_told_of_calls_that_raise(function, x):
    with pytest.raises((RuntimeError, TypeError, ValueError, IndexError, OverflowError, AssertionError)):
        function(x)
    assert told_by(function, x) is None


@pytest.mark.parametrize("indices", [torch.tensor(1), torch.arange(3)[1]])
def test_an_index_without_dimensions_gives_a_view(indices):
    told = told_by(lambda x: x[indices], torch.rand(3, 4))
    assert told is None or told.memory != "own"


@pytest.mark.parametrize(
    "part", [lambda h: h.chunk(2, -1)[0], lambda h: h.split(2, -1)[0], lambda h: h.unbind(0)[0]], ids=range(3)
)
@pytest.mark.parametrize("write", [lambda h: h.mul_(2), lambda h: F.relu(h, inplace=True)], ids=range(2))
def test_nothing_is_told_of_a_write_to_what_parts_were_taken_from(part, write):
    def program(x):
        h = x * 2
        taken = part(h)
        write(h)
        return taken + 1

    x = torch.rand(4, 4, requires_grad=True)
    with pytest.raises(RuntimeError, match="is a view"):
        program(x)
    assert told_by(program, x) is None


def test_nothing_is_told_of_writes_to_what_torch_does_not_write_to():
    x = torch.rand(4, 4, requires_grad=True)
    for program in (
        lambda x: (x * 2).chunk(2)[0].mul_(2),
        lambda x: (x * 2).expand(2, 4, 4).mul_(2),
        lambda x: x.mul_(2),
        lambda x: x[0].mul_(2),
    ):
        with pytest.raises(RuntimeError):
            program(x)
        assert told_by(program, x) is None


@pytest.mark.parametrize(
    ("layer", "sizes"),
    [
        (changed(nn.Linear(4, 4), weight=nn.Parameter(torch.rand(0, 4)), bias=None), (2, 4)),
        (changed(nn.Conv2d(3, 4, 1), weight=nn.Parameter(torch.rand(0, 3, 1, 1)), bias=None), (2, 3, 4, 4)),
        (nn.AdaptiveAvgPool1d((None,)), (2, 3, 4)),
    ],
    ids=str,
)
def test_nothing_is_told_of_layers_that_give_nothing(layer, sizes):
    with pytest.raises(UnknownShapeError):
        shape_of_layer(layer, abstract(torch.rand(sizes), DTYPE), DTYPE)


CHANGED = [
    (changed(nn.ConvTranspose2d(4, 4, 2), padding_mode="reflect"), IMAGE),
    (changed(nn.ConvTranspose2d(4, 4, 2), padding=3), IMAGE),
    (changed(nn.ReLU6(), min_val=7.0), X),
    (changed(nn.BatchNorm2d(4), momentum="0.1"), IMAGE),
    (changed(nn.BatchNorm2d(4), eps=-1), IMAGE),
    (changed(nn.Dropout(0.5), p=2), X),
    (changed(nn.Dropout(0.5), p="a"), X),
    (changed(nn.Conv2d(4, 4, 1), stride=(2**70, 1)), IMAGE),
    (changed(nn.AvgPool2d(2), count_include_pad=0), IMAGE),
    (changed(nn.Embedding(4, 4), sparse=-1), torch.tensor([1])),
    (changed(nn.Embedding(4, 4), scale_grad_by_freq=0), torch.tensor([1])),
    (changed(nn.Embedding(4, 4), padding_idx=2.0), torch.tensor([1])),
    (changed(nn.Embedding(4, 4), padding_idx=7), torch.tensor([1])),
]


@pytest.mark.parametrize(("layer", "x"), CHANGED, ids=range(len(CHANGED)))
def test_nothing_is_told_of_layers_with_settings_that_torch_refuses(layer, x):
    with pytest.raises(Exception):  # noqa: B017, PT011 - whatever torch says
        layer(x)
    with pytest.raises((UnknownShapeError, TypeError)):
        shape_of_layer(layer, known_value(x, DTYPE, "given"), DTYPE)


def test_statistics_that_require_a_gradient_are_not_known():
    layer = nn.BatchNorm2d(4).eval()
    layer.running_mean.requires_grad_(True)
    with pytest.raises(UnknownShapeError):
        shape_of_layer(layer, abstract(IMAGE, DTYPE), DTYPE)
    statistics = [abstract(one, DTYPE) for one in (layer.running_mean, torch.ones(4))]
    with pytest.raises(UnknownShapeError):
        FUNCTIONS[F.batch_norm](abstract(IMAGE, DTYPE), *statistics)


def test_attention_without_one_of_its_biases_is_not_known():
    layer = nn.MultiheadAttention(8, 2, bias=False).eval()
    layer.in_proj_bias = nn.Parameter(torch.zeros(24))
    x = abstract(torch.rand(2, 5, 8), DTYPE)
    with pytest.raises(UnknownShapeError):
        shape_of_call(layer, [x, x, x], {}, DTYPE)


def test_a_convolution_of_one_channel_may_give_another_order():
    told = shape_of_layer(nn.Conv2d(1, 4, 2), abstract(torch.rand(2, 1, 2, 3), DTYPE), DTYPE)
    assert told.order == "unknown"


def test_nothing_is_told_of_masks_of_more_dimensions_and_of_other_paddings():
    x, table = abstract(IMAGE, DTYPE), abstract(torch.rand(3, 2), DTYPE)
    with pytest.raises(UnknownShapeError):
        FUNCTIONS[F.scaled_dot_product_attention](x, x, x, AbstractFlags((3, 2, 4, 4, 4)))
    with pytest.raises(UnknownShapeError):
        FUNCTIONS[F.embedding](torch.tensor([1]), table, padding_idx=7)


def test_a_weight_may_be_what_is_made_contiguous_of_it():
    weight = nn.Parameter(torch.rand(4, 4))
    told = METHODS["contiguous"](abstract(weight, DTYPE))
    assert told.memory == "weight"
    assert METHODS["contiguous"](abstract(nn.Parameter(torch.rand(4, 4).t()), DTYPE)).memory == "weight"


# -- integers, numbers and attributes


def test_integers_are_computed():
    indices = torch.tensor([[0, 2]])
    assert holds_tensors((indices, 1))
    assert holds_tensors(([indices, indices], 1))
    assert not holds_tensors((1, "a"))
    assert not holds_tensors((indices, abstract(torch.rand(2), DTYPE)))
    assert not holds_tensors(([indices, abstract(torch.rand(2), DTYPE)], 1))
    with pytest.raises(UnknownShapeError):
        compute("call_method", "view", (indices, torch.float64), {})
    with torch.inference_mode():
        made = torch.tensor([1])
    with pytest.raises(UnknownShapeError):
        known_value(made, DTYPE, "given")
    assert torch.equal(compute("call_function", operator.add, (indices, 1), {}), indices + 1)
    assert torch.equal(compute("call_method", "view", (indices, -1), {}), indices.view(-1))
    assert compute("call_function", getattr, (indices, "shape"), {}) == (1, 2)


@pytest.mark.parametrize(
    ("op", "target"), [("call_method", "add_"), ("call_method", "tolist"), ("call_function", torch.randint)]
)
def test_what_may_do_more_than_compute_is_not_called(op, target):
    value = torch.tensor([1])
    with pytest.raises(UnknownShapeError):
        compute(op, target, (value, 1), {})
    assert value.tolist() == [1]


def test_nothing_is_computed_into_a_tensor_that_there_is():
    value = torch.tensor([1])
    for target, args in ((torch.add, (value, 1)), (torch.arange, (4,))):
        with pytest.raises(UnknownShapeError):
            compute("call_function", target, args, {"out": value})
    assert value.tolist() == [1]


def test_a_tensor_that_was_made_to_require_a_gradient_is_not_written_to():
    made = known_value(torch.zeros(3, requires_grad=True), DTYPE, "own")
    for told in (made, METHODS["view"](made, 3)):
        with pytest.raises(UnknownShapeError):
            METHODS["relu_"](told)


@pytest.mark.parametrize("indices", [[3], [-1], []])
def test_lookups_outside_of_a_table_are_not_known(indices):
    table = abstract(torch.rand(3, 2), DTYPE)
    chosen = torch.tensor(indices, dtype=torch.int64)
    for told in (
        lambda: FUNCTIONS[F.embedding](chosen, table),
        lambda: FUNCTIONS[operator.getitem](table, chosen),
        lambda: shape_of_layer(nn.Embedding(3, 2), chosen, DTYPE),
    ):
        with pytest.raises(UnknownShapeError):
            told()
    assert FUNCTIONS[F.embedding](torch.tensor([[2]]), table).sizes == (1, 1, 2)


def test_masks():
    scores = torch.rand(2, 3, 3)
    mask = torch.ones(3, 3).tril() == 0
    told = FUNCTIONS[operator.eq](abstract(torch.ones(3, 3), DTYPE), 0)
    for one in (mask, told):
        answer = METHODS["masked_fill"](abstract(scores, DTYPE), one, -math.inf)
        assert_so(scores.masked_fill(mask, -math.inf), answer)
    with pytest.raises(UnknownShapeError):
        METHODS["masked_fill"](abstract(scores, DTYPE), torch.ones(2, 2, dtype=torch.bool), 0.0)
    with pytest.raises(UnknownShapeError):
        METHODS["masked_fill"](abstract(scores, DTYPE), torch.ones(3, 3), 0.0)
    query, other = abstract(IMAGE, DTYPE), abstract(IMAGE[:, :, :2], DTYPE)
    with pytest.raises(UnknownShapeError):  # Torch does not look at how many values there are.
        FUNCTIONS[F.scaled_dot_product_attention](query, query, other)


def test_numbers_are_computed_and_nothing_else_is():
    assert FUNCTIONS[operator.floordiv](7, 2) == 3
    assert FUNCTIONS[operator.add](torch.Size([1]), torch.Size([2])) == (1, 2)
    assert FUNCTIONS[math.sqrt](4) == 2
    with pytest.raises(UnknownShapeError):
        FUNCTIONS[operator.add]("a", "b")
    with pytest.raises(UnknownShapeError):
        FUNCTIONS[operator.eq]("a", "a")


def test_attributes():
    value = torch.rand(2, 3)
    told = abstract(value, DTYPE)
    for name in ("shape", "ndim", "dtype", "device"):
        assert read_attribute(told, name, DTYPE) == getattr(value, name)
    assert_so(value.mT, read_attribute(told, "mT", DTYPE))
    with pytest.raises(UnknownShapeError):
        read_attribute(told, "grad", DTYPE)


def test_conversions():
    told, real = abstract(torch.rand(2), DTYPE), torch.rand(2)
    for name, args, kwargs in [
        ("float", (), {}),
        ("to", (DTYPE,), {}),
        ("to", ("cpu",), {}),
        ("to", ("cpu", DTYPE), {}),
        ("to", (told,), {}),
        ("type_as", (told,), {}),
        ("cpu", (), {}),
        ("to", (), {"dtype": DTYPE, "device": torch.device("cpu")}),
    ]:
        assert converted(told, name, args, kwargs, DTYPE) is told
    flags = converted(told, "to", ("cpu",), {"dtype": torch.bool}, DTYPE)
    assert_so(real.to("cpu", dtype=torch.bool), flags)
    for name, args in [("float", ()), ("to", (DTYPE,)), ("to", (told,)), ("type_as", (told,))]:
        assert_so(real, converted(flags, name, args, {}, DTYPE))
    for value, name, args, kwargs in [
        (told, "double", (), {}),
        (told, "to", (torch.float64,), {}),
        (told, "to", ("meta",), {}),
        (told, "half", (), {}),
        (told, "type_as", (1,), {}),
        (told, "type_as", (told,), {"dtype": DTYPE}),
        (told, "to", (), {}),
        (told, "to", (DTYPE, DTYPE), {}),
        (told, "to", (DTYPE,), {"device": "cpu"}),
        (told, "to", ("cpu",), {"device": "cpu"}),
        (told, "to", (), {"copy": True}),
        (told, "float", (), {"dtype": DTYPE}),
        (flags, "to", ("cpu",), {}),
        (flags, "cpu", (), {}),
        (real, "float", (), {}),
    ]:
        with pytest.raises((UnknownShapeError, ValueError, AttributeError)):
            converted(value, name, args, kwargs, DTYPE)


@pytest.mark.parametrize(
    "value",
    [
        torch.rand(2, dtype=torch.float64),
        torch.rand(0, 2),
        torch.rand(2, device="meta"),
        torch.rand(2, 2).to_sparse(),
        torch.rand(2, dtype=torch.complex64),
        torch.tensor([], dtype=torch.int64),
        None,
    ],
    ids=["dtype", "empty", "meta", "sparse", "complex", "no integers", "None"],
)
def test_other_tensors_are_not_known(value):
    with pytest.raises(UnknownShapeError):
        known_value(value, DTYPE, "given") if value is not None else abstract(value, DTYPE)
