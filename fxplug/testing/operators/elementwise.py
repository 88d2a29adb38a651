"""Cases of operators that compute every element by itself."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from fxplug.testing.operators.case import (
    DTYPES,
    FLOATS,
    INTEGERS,
    NUMBERS,
    RANKS,
    Call,
    Draw,
    OperatorCase,
    call,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["cases"]

_WHOLE = (*INTEGERS, torch.bool)
_TRUE = (torch.bool, torch.float32, torch.int64)

_ANY = (
    *("cos", "sin", "tanh", "sigmoid", "erf", "exp2", "atan", "asinh"),
    *("expm1", "sinh", "cosh", "exp"),
)
"""Functions of numbers, of which whole ones become floating-point."""
_FLOATING = ("silu", "mish", "hardswish", "hardsigmoid", "softplus", "gelu", "selu", "relu6", "log_sigmoid")
_SIGNED = ("relu", "abs", "neg", "sign", "square")
_POSITIVE = ("log", "log2", "log10", "log1p", "sqrt", "rsqrt", "reciprocal")
_UNIT = ("asin", "acos", "atanh", "tan")
_COMPARISONS = ("eq", "ne", "lt", "le", "gt", "ge")
_EXACT = {"floor", "ceil", "trunc", "round"}


def cases() -> Iterator[OperatorCase]:
    """Yield the cases."""
    yield from _of_one()
    yield from _activations()
    yield from _comparisons()
    yield from _arithmetic()
    yield from _logic()
    yield from _choices()
    yield from _copies()


def _case(
    name: str, arguments: Callable[[Draw], Call], dtypes: Any = FLOATS, ranks: Any = RANKS, **more: Any
) -> OperatorCase:
    return OperatorCase(f"aten.{name}", arguments, dtypes, ranks, **more)


def _one(draw: Draw, *args: Any, **kwargs: Any) -> Call:
    return call(draw.tensor(), *args, **kwargs)


def _two(draw: Draw, *args: Any, **kwargs: Any) -> Call:
    return call(draw.tensor(), draw.tensor(), *args, **kwargs)


def _of_one() -> Iterator[OperatorCase]:
    for name in _ANY:
        yield _case(f"{name}.default", _one, (*FLOATS, torch.int64, torch.bool))
    for name in _SIGNED:
        yield _case(f"{name}.default", _one, NUMBERS)
    for name in sorted(_EXACT):
        yield _case(f"{name}.default", _one, (*FLOATS, torch.int64))
    for name in _POSITIVE:
        yield _case(f"{name}.default", lambda d: call(d.positive()), (*FLOATS, torch.int64))
    for name in _UNIT:
        yield _case(f"{name}.default", lambda d: call(d.unit()), (*FLOATS, torch.bool))
    yield _case("acosh.default", lambda d: call(d.positive()), FLOATS)
    yield _case("erfc.default", _one)
    yield _case("frac.default", _one)
    yield _case("round.decimals", lambda d: call(d.tensor(), decimals=1))
    yield _case("logit.default", lambda d: call(d.unit().abs() + 0.0625), atol=1e-3, note="inside")
    yield _case("logit.default", lambda d: call(d.unit().abs(), 0.1), atol=1e-3, note="with eps")
    for name in ("relu", "abs", "tanh", "sigmoid"):
        yield _case(f"{name}.default", lambda d: call(d.special()), ranks=(2,), note="not finite")
    for name in ("isnan", "isinf", "isfinite"):
        yield _case(f"{name}.default", lambda d: call(d.special()))
        yield _case(f"{name}.default", _one, INTEGERS, ranks=(2,), note="of integers")
    yield _case("nan_to_num.default", lambda d: call(d.special(), 1.0, 2.0, -3.0))
    yield _case("signbit.default", _one, (*FLOATS, torch.int64))


def _activations() -> Iterator[OperatorCase]:
    for name in _FLOATING:
        yield _case(f"{name}.default", _one)
    for name, more in (
        ("softplus", (2.0, 3.0)),
        ("elu", ()),
        ("elu", (0.5, 1.5, 2.0)),
        ("celu", ()),
        ("celu", (0.5,)),
        ("leaky_relu", ()),
        ("leaky_relu", (0.3,)),
        ("hardtanh", ()),
        ("hardtanh", (-0.5, 2.0)),
        ("threshold", (0.5, -2.0)),
        ("hardshrink", (0.75,)),
        ("softshrink", (0.75,)),
    ):
        note = ", ".join(map(str, more)) if name not in {"threshold", "hardshrink", "softshrink"} else ""
        yield _case(f"{name}.default", partial(_with, more=more), note=note)
    yield _case("gelu.default", lambda d: call(d.tensor(), approximate="tanh"), note="tanh")
    yield _case("glu.default", lambda d: call(d.tensor(*d.shape[:-1], 6), -1), ranks=(2, 4))
    yield _case("prelu.default", lambda d: call(d.tensor(), d.weight(1)), ranks=(2, 4), note="one slope")
    yield _case("prelu.default", lambda d: call(d.tensor(), d.weight(3)), ranks=(2, 4), note="of channels")


def _with(draw: Draw, more: tuple[Any, ...]) -> Call:
    return call(draw.tensor(), *more)


def _comparisons() -> Iterator[OperatorCase]:
    for name in _COMPARISONS:
        yield _case(f"{name}.Tensor", lambda d: call(*d.pair()), DTYPES)
        yield _case(f"{name}.Scalar", lambda d: call(d.sparse(), 0), DTYPES)
    yield _case("lt.Scalar", lambda d: call(d.tensor(), 1.5), INTEGERS, ranks=(2,), note="integer and number")
    yield _case("eq.Tensor", lambda d: call(d.special(), d.special()), ranks=(2,), note="not finite")
    yield _case(
        "gt.Tensor",
        lambda d: call(d.tensor(), d.tensor(dtype=torch.float32)),
        INTEGERS,
        ranks=(2,),
        note="mixed dtypes",
    )


def _arithmetic() -> Iterator[OperatorCase]:
    yield _case("add.Tensor", _two, DTYPES)
    for name in ("sub", "rsub"):
        yield _case(f"{name}.Tensor", _two, NUMBERS)
    yield _case("mul.Tensor", _two, DTYPES)
    for name in ("add", "sub", "rsub"):
        yield _case(f"{name}.Tensor", lambda d: _two(d, alpha=3), NUMBERS, ranks=(2,), note="alpha")
        yield _case(f"{name}.Scalar", lambda d: call(d.tensor(), 2), NUMBERS)
        yield _case(f"{name}.Scalar", lambda d: call(d.tensor(), 2.5, 2), ranks=(2,), note="alpha")
    yield _case(
        "add.Tensor",
        lambda d: call(d.tensor(2, 3, 4), d.tensor(2, 1, 1)),
        ranks=(3,),
        note="broadcast",
        dynamic=False,
    )
    yield _case(
        "mul.Tensor", lambda d: call(d.tensor(), d.held(0.5, d.dtype)), ranks=(0, 2), note="scalar tensor"
    )
    yield _case(
        "add.Tensor", lambda d: call(d.tensor(), d.tensor(dtype=torch.int64)), ranks=(2,), note="mixed dtypes"
    )
    yield _case(
        "mul.Tensor", lambda d: call(d.tensor(), d.mask()), NUMBERS, ranks=(2,), note="with truth values"
    )
    yield _case("mul.Scalar", lambda d: call(d.tensor(), 3), NUMBERS)
    yield _case(
        "mul.Scalar", lambda d: call(d.tensor(), 1.5), INTEGERS, ranks=(2,), note="integer and number"
    )
    yield _case("div.Tensor", lambda d: call(d.tensor(), d.nonzero()), NUMBERS)
    yield _case("div.Tensor", lambda d: call(d.tensor(), d.tensor()), ranks=(2,), note="by zero, too")
    yield _case("div.Scalar", lambda d: call(d.tensor(), 3), NUMBERS)
    for mode in ("floor", "trunc"):
        for overload, other in (("Tensor_mode", None), ("Scalar_mode", 3)):
            arguments = partial(_divided, other=other, rounding_mode=mode)
            yield _case(f"div.{overload}", arguments, NUMBERS, note=mode)
    yield _case("floor_divide.default", lambda d: call(d.tensor(), d.nonzero()), NUMBERS)
    yield _case("floor_divide.Scalar", lambda d: call(d.tensor(), 2), NUMBERS)
    for name in ("remainder", "fmod"):
        yield _case(f"{name}.Tensor", lambda d: call(d.tensor(), d.nonzero()), NUMBERS)
        yield _case(f"{name}.Scalar", lambda d: call(d.tensor(), -3), (*FLOATS, torch.int64, torch.int32))
    yield from _powers()
    yield from _compound()


def _divided(draw: Draw, other: Any, rounding_mode: str) -> Call:
    return call(draw.tensor(), draw.nonzero() if other is None else other, rounding_mode=rounding_mode)


def _powers() -> Iterator[OperatorCase]:
    yield _case("pow.Tensor_Tensor", lambda d: call(d.positive(), d.tensor()), rtol=1e-3)
    yield _case(
        "pow.Tensor_Tensor",
        lambda d: call(d.tensor(), d.index(4).to(d.dtype)),
        INTEGERS,
        ranks=(2,),
        note="of integers",
    )
    for exponent in (2, 3, 0.5, -1, 0):
        kind = "positive" if exponent == 0.5 else "nonzero"
        yield _case("pow.Tensor_Scalar", partial(_power, kind=kind, exponent=exponent), note=str(exponent))
    yield _case("pow.Tensor_Scalar", lambda d: _one(d, 2), INTEGERS, ranks=(2,), note="of integers")
    yield _case("pow.Scalar", lambda d: call(1.5, d.tensor()))


def _power(draw: Draw, kind: str, exponent: float) -> Call:
    return call(getattr(draw, kind)(), exponent)


def _compound() -> Iterator[OperatorCase]:
    yield _case("addcmul.default", lambda d: call(d.tensor(), d.tensor(), d.tensor(), value=2), NUMBERS)
    yield _case("addcdiv.default", lambda d: call(d.tensor(), d.tensor(), d.nonzero(), value=0.5))
    yield _case("lerp.Scalar", lambda d: _two(d, 0.25))
    yield _case("lerp.Tensor", lambda d: call(d.tensor(), d.tensor(), d.unit()))
    for name in ("maximum", "minimum"):
        yield _case(f"{name}.default", _two, DTYPES)
        yield _case(f"{name}.default", lambda d: call(d.special(), d.tensor()), ranks=(2,), note="not finite")
    for name in ("fmax", "fmin"):
        yield _case(f"{name}.default", lambda d: call(d.special(), d.special()))
    yield _case("atan2.default", lambda d: call(d.tensor(), d.nonzero()))
    yield _case("atan2.default", _two, ranks=(2,), note="with zeros")
    yield _case("hypot.default", _two)
    yield _case("logaddexp.default", _two)
    yield _case("xlogy.Tensor", lambda d: call(d.tensor(), d.positive()))
    yield _case("copysign.Tensor", lambda d: call(d.tensor(), d.nonzero()))
    yield _case("heaviside.default", _two)


def _logic() -> Iterator[OperatorCase]:
    for name in ("logical_and", "logical_or", "logical_xor"):
        yield _case(f"{name}.default", lambda d: call(d.sparse(), d.sparse()), _TRUE)
    yield _case("logical_not.default", lambda d: call(d.sparse()), _TRUE)
    yield _case("bitwise_not.default", _one, _WHOLE)
    for name in ("bitwise_and", "bitwise_or", "bitwise_xor"):
        yield _case(f"{name}.Tensor", _two, _WHOLE)
        yield _case(f"{name}.Scalar", lambda d: call(d.tensor(), 5), INTEGERS)
    for name in ("__lshift__", "__rshift__"):
        yield _case(f"{name}.Scalar", lambda d: call(d.tensor(), 2), INTEGERS)


def _choices() -> Iterator[OperatorCase]:
    yield _case("clamp.default", lambda d: _one(d, -1, 2), (*FLOATS, torch.int64, torch.int32))
    yield _case("clamp.default", lambda d: _one(d, None, 2), NUMBERS, ranks=(2,), note="above")
    yield _case("clamp.default", lambda d: call(d.special(), -1, 2), ranks=(2,), note="not finite")
    yield _case("clamp.Tensor", lambda d: call(d.tensor(), d.tensor() - 1, d.tensor() + 1))
    for name in ("clamp_min", "clamp_max"):
        yield _case(f"{name}.default", lambda d: _one(d, 1), NUMBERS)
        yield _case(f"{name}.Tensor", _two, NUMBERS)
    yield _case("where.self", lambda d: call(d.mask(), d.tensor(), d.tensor()), DTYPES)
    yield _case("where.ScalarOther", lambda d: call(d.mask(), d.tensor(), 2))
    yield _case("where.ScalarSelf", lambda d: call(d.mask(), 2, d.tensor()))
    yield _case("masked_fill.Scalar", lambda d: call(d.tensor(), d.mask(), 1), DTYPES)
    yield _case(
        "masked_fill.Scalar", lambda d: call(d.tensor(), d.mask(), -float("inf")), ranks=(2,), note="infinity"
    )
    yield _case("masked_fill.Tensor", lambda d: call(d.tensor(), d.mask(), d.held(0.5, d.dtype)))


def _copies() -> Iterator[OperatorCase]:
    for name in ("clone", "alias", "detach"):
        yield _case(f"{name}.default", _one, DTYPES)
    for dtype in (torch.float32, torch.int64, torch.bool, torch.float16, torch.int32):
        note = f"to {str(dtype).removeprefix('torch.')}"
        arguments = partial(_converted, dtype=dtype)
        yield _case("_to_copy.default", arguments, DTYPES, ranks=(0, 2), note=note)
    yield _case("dropout.default", lambda d: _one(d, 0.5, False), note="in evaluation")
    yield _case("fill.Scalar", lambda d: _one(d, 2), NUMBERS)


def _converted(draw: Draw, dtype: torch.dtype) -> Call:
    return call(draw.sparse() if dtype is torch.bool else draw.tensor(), dtype=dtype)
