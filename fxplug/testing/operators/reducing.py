"""Cases of operators that make one value of several, and of those that put values in order."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from fxplug.testing.operators.case import DTYPES, FLOATS, INTEGERS, NUMBERS, Call, Draw, OperatorCase, call

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["cases"]

_SUMMED = (*FLOATS, torch.int64, torch.int32, torch.bool)


def cases() -> Iterator[OperatorCase]:
    """Yield the cases."""
    yield from _sums()
    yield from _extremes()
    yield from _truths()
    yield from _statistics()
    yield from _ordered()
    yield from _running()


def _case(
    name: str, arguments: Callable[[Draw], Call], dtypes: Any = FLOATS, ranks: Any = (2, 4), **more: Any
) -> OperatorCase:
    return OperatorCase(f"aten.{name}", arguments, dtypes, ranks, **more)


def _one(draw: Draw, *args: Any, **kwargs: Any) -> Call:
    return call(draw.tensor(), *args, **kwargs)


def _sums() -> Iterator[OperatorCase]:
    yield _case("sum.default", _one, _SUMMED, ranks=(0, 2, 4))
    yield _case("sum.dim_IntList", lambda d: _one(d, [1]), _SUMMED)
    yield _case("sum.dim_IntList", lambda d: _one(d, [0, -1], True), note="kept")
    yield _case(
        "sum.dim_IntList",
        lambda d: _one(d, [1], dtype=torch.float32),
        INTEGERS,
        ranks=(2,),
        note="of another dtype",
    )
    yield _case("mean.default", _one, ranks=(0, 2, 4))
    yield _case("mean.dim", lambda d: _one(d, [1]))
    yield _case("mean.dim", lambda d: _one(d, [0, -1], True), note="kept")
    yield _case("prod.default", _one, (*FLOATS[:2], torch.int64), ranks=(1, 2))
    yield _case("prod.dim_int", lambda d: _one(d, 1), (*FLOATS, torch.int64))
    yield _case("logsumexp.default", lambda d: _one(d, [1]))
    yield _case("logsumexp.default", lambda d: _one(d, [0, -1], True), note="kept")
    yield _case(
        "count_nonzero.dim_IntList", lambda d: call(d.sparse(), [1]), (torch.float32, torch.int64, torch.bool)
    )


def _extremes() -> Iterator[OperatorCase]:
    for name in ("amax", "amin"):
        yield _case(f"{name}.default", lambda d: _one(d, [1]), DTYPES)
        yield _case(f"{name}.default", _one, ranks=(0, 2), note="of all")
        yield _case(f"{name}.default", lambda d: _one(d, [0, -1], True), note="kept")
    for name in ("max", "min"):
        yield _case(f"{name}.default", _one, NUMBERS, ranks=(0, 2, 4))
        yield _case(f"{name}.dim", lambda d: call(d.distinct(), 1), NUMBERS)
        yield _case(f"{name}.dim", lambda d: call(d.distinct(), -1, True), note="kept")
    for name in ("argmax", "argmin"):
        yield _case(f"{name}.default", lambda d: call(d.distinct()), NUMBERS, ranks=(0, 1, 2))
        yield _case(f"{name}.default", lambda d: call(d.distinct(), 1), note="of one")
        yield _case(f"{name}.default", lambda d: call(d.distinct(), 1, True), note="kept")
        yield _case(
            f"{name}.default",
            lambda d: call(d.tensor(d.batch, 40), 1),
            ranks=(2,),
            note="first of equal ones",
        )
    yield _case("aminmax.default", lambda d: call(d.tensor(), dim=1))


def _truths() -> Iterator[OperatorCase]:
    some = (torch.bool, torch.float32, torch.int64)
    for name, share in (("any", 0.6), ("all", 0.2)):
        yield _case(f"{name}.default", partial(_zeroed, share=share), some, ranks=(0, 2, 4))
        yield _case(f"{name}.dim", partial(_zeroed, share=share, more=(1,)), some)
        yield _case(
            f"{name}.dim",
            partial(_zeroed, share=share, more=(-1, True)),
            some,
            note="kept",
        )
        yield _case(f"{name}.dims", partial(_zeroed, share=share, more=([0, -1],)), some)
        yield _case(
            f"{name}.dim",
            partial(_zeroed, share=share, more=(1,)),
            (torch.uint8,),
            ranks=(2,),
            note="of bytes",
        )


def _zeroed(draw: Draw, share: float, more: tuple[Any, ...] = ()) -> Call:
    return call(draw.sparse(share=share), *more)


def _statistics() -> Iterator[OperatorCase]:
    for name in ("var", "std"):
        yield _case(f"{name}.correction", lambda d: _one(d, [1]))
        yield _case(f"{name}.correction", lambda d: _one(d, [0, -1], correction=0, keepdim=True), note="kept")
        yield _case(f"{name}.correction", _one, note="of all")
        yield _case(f"{name}.dim", lambda d: _one(d, [1], False), note="biased")
    yield _case("var_mean.correction", lambda d: _one(d, [1], correction=0))
    for order in (1, 2, 3, float("inf"), 0):
        arguments = partial(_normed, order=order)
        yield _case("linalg_vector_norm.default", arguments, ranks=(2,), note=f"order {order}")
    yield _case("norm.ScalarOpt_dim", lambda d: _one(d, 2, [1], True))


def _normed(draw: Draw, order: float) -> Call:
    return call(draw.sparse(), order, [1])


def _ordered() -> Iterator[OperatorCase]:
    yield _case("topk.default", lambda d: call(d.distinct(d.batch, 6), 3), NUMBERS, ranks=(2,))
    yield _case("topk.default", lambda d: call(d.distinct(), 2, 1), ranks=(3, 4), note="of one")
    yield _case(
        "topk.default", lambda d: call(d.distinct(d.batch, 6), 3, 1, False), ranks=(2,), note="smallest"
    )
    yield _case("sort.default", lambda d: call(d.distinct()), NUMBERS)
    yield _case("sort.default", lambda d: call(d.distinct(), 1, True), note="falling")
    yield _case("sort.stable", lambda d: call(d.tensor(d.batch, 9), stable=True, dim=1), ranks=(2,))
    yield _case("argsort.default", lambda d: call(d.distinct(), 1))


def _running() -> Iterator[OperatorCase]:
    yield _case("cumsum.default", lambda d: _one(d, 1), (*FLOATS, torch.int64, torch.int32, torch.bool))
    yield _case("cumsum.default", lambda d: _one(d, 0), ranks=(1, 2), note="of the batch")
    yield _case("cumprod.default", lambda d: _one(d, 1), FLOATS[:2])
    yield _case("diff.default", _one, (*FLOATS, torch.int64))
