"""Cases of operators that arrange, join, take apart, pick and make elements."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from fxplug.testing.operators.case import DTYPES, FLOATS, Call, Draw, OperatorCase, call

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["cases"]

_SOME = (torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.bool)


def cases() -> Iterator[OperatorCase]:
    """Yield the cases."""
    yield from _views()
    yield from _slices()
    yield from _joined()
    yield from _padded()
    yield from _picked()
    yield from _scattered()
    yield from _made()


def _case(
    name: str, arguments: Callable[[Draw], Call], dtypes: Any = _SOME, ranks: Any = (2, 4), **more: Any
) -> OperatorCase:
    return OperatorCase(f"aten.{name}", arguments, dtypes, ranks, **more)


def _views() -> Iterator[OperatorCase]:
    for name in ("view", "reshape", "_unsafe_view"):
        yield _case(f"{name}.default", lambda d: call(d.tensor(), [-1]))
        yield _case(
            f"{name}.default", lambda d: call(d.tensor(d.batch, 3, 4), [-1, 2, 6]), ranks=(3,), note="three"
        )
    yield _case("flatten.using_ints", lambda d: call(d.tensor(), 1), ranks=(3, 4))
    yield _case("unflatten.int", lambda d: call(d.tensor(d.batch, 6), 1, [2, -1]), ranks=(2,))
    yield _case(
        "permute.default", lambda d: call(d.tensor(), [*range(1, d.rank), 0]), DTYPES, ranks=(2, 4, 5)
    )
    yield _case("transpose.int", lambda d: call(d.tensor(), 0, -1), ranks=(2, 3, 4))
    yield _case("t.default", lambda d: call(d.tensor()), ranks=(0, 1, 2))
    yield _case("movedim.int", lambda d: call(d.tensor(), 0, -1), ranks=(2, 4))
    yield _case("squeeze.default", lambda d: call(d.tensor(2, 1, 3, 1)), ranks=(4,), dynamic=False)
    yield _case("squeeze.dim", lambda d: call(d.tensor(d.batch, 1, 3), 1), ranks=(3,))
    yield _case("squeeze.dim", lambda d: call(d.tensor(d.batch, 1, 3), -1), ranks=(3,), note="not one")
    yield _case("squeeze.dims", lambda d: call(d.tensor(d.batch, 1, 3, 1), [1, -1]), ranks=(4,))
    yield _case("unsqueeze.default", lambda d: call(d.tensor(), -1), ranks=(0, 2, 4))
    yield _case("unsqueeze.default", lambda d: call(d.tensor(), 0), note="in front")
    yield _case("expand.default", lambda d: call(d.tensor(d.batch, 1, 4), [-1, 3, -1]), ranks=(3,))
    yield _case(
        "expand.default", lambda d: call(d.tensor(2, 1), [3, 2, 5]), ranks=(2,), note="wider", dynamic=False
    )
    yield _case("broadcast_to.default", lambda d: call(d.tensor(1, 3), [4, 3]), ranks=(2,), dynamic=False)
    yield _case("flip.default", lambda d: call(d.tensor(), [0, -1]), ranks=(2, 4))
    yield _case("roll.default", lambda d: call(d.tensor(), [1], [1]), ranks=(2, 4))
    yield _case("roll.default", lambda d: call(d.tensor(), [2, -1], [0, 1]), note="two")
    yield _case("roll.default", lambda d: call(d.tensor(), [3]), ranks=(2,), note="flat")
    yield _case("repeat.default", lambda d: call(d.tensor(), [2, *[1] * (d.rank - 1)]), ranks=(1, 2, 4))
    yield _case(
        "repeat.default", lambda d: call(d.tensor(2, 3), [2, 1, 3]), ranks=(2,), note="wider", dynamic=False
    )
    yield _case("tile.default", lambda d: call(d.tensor(), [2]), ranks=(2, 4))
    yield _case("repeat_interleave.self_int", lambda d: call(d.tensor(), 2, 1), ranks=(2, 4))
    yield _case("pixel_shuffle.default", lambda d: call(d.tensor(d.batch, 8, 3, 3), 2), ranks=(4,))
    yield _case("pixel_unshuffle.default", lambda d: call(d.tensor(d.batch, 2, 4, 6), 2), ranks=(4,))
    yield _case("channel_shuffle.default", lambda d: call(d.tensor(d.batch, 6, 3, 3), 3), ranks=(4,))
    yield _case("unfold.default", lambda d: call(d.tensor(d.batch, 7), 1, 3, 2), ranks=(2,))
    yield _case("diagonal.default", lambda d: call(d.tensor(d.batch, 4, 5), 0, 1, 2), ranks=(3,))
    yield _case(
        "diagonal.default", lambda d: call(d.tensor(3, 4), 1), ranks=(2,), note="above", dynamic=False
    )
    for name in ("tril", "triu"):
        yield _case(f"{name}.default", lambda d: call(d.tensor(d.batch, 4, 5)), DTYPES, ranks=(3,))
        yield _case(
            f"{name}.default", lambda d: call(d.tensor(4, 4), -1), ranks=(2,), note="below", dynamic=False
        )


def _slices() -> Iterator[OperatorCase]:
    for note, more in (
        ("", (1, 1, 3)),
        ("to the end", (-1, 1)),
        ("from the end", (1, -2, -1)),
        ("steps", (-1, 0, 9223372036854775807, 2)),
        ("of the batch", (0, 1)),
        ("beyond", (1, -100, 100)),
    ):
        yield _case("slice.Tensor", partial(_with, more=more), note=note)
    yield _case("select.int", lambda d: call(d.tensor(), 1, 1), DTYPES)
    yield _case("select.int", lambda d: call(d.tensor(), -1, -2), note="from the end")
    yield _case("select.int", lambda d: call(d.tensor(), 0, 0), note="of the batch")
    yield _case("narrow.default", lambda d: call(d.tensor(), 1, 1, 2))
    yield _case("split.Tensor", lambda d: call(d.tensor(), 2, 1))
    yield _case("split_with_sizes.default", lambda d: call(d.tensor(d.batch, 6), [1, 3, 2], -1), ranks=(2,))
    yield _case("chunk.default", lambda d: call(d.tensor(d.batch, 7), 3, 1), ranks=(2,))
    yield _case("tensor_split.sections", lambda d: call(d.tensor(d.batch, 7), 3, 1), ranks=(2,))
    yield _case("unbind.int", lambda d: call(d.tensor(), 1))
    yield _case(
        "slice_scatter.default",
        lambda d: call(d.tensor(d.batch, 6), d.tensor(d.batch, 2), 1, 2, 4),
        ranks=(2,),
    )
    yield _case(
        "select_scatter.default",
        lambda d: call(d.tensor(d.batch, 3, 4), d.tensor(d.batch, 4), 1, 1),
        ranks=(3,),
    )


def _with(draw: Draw, more: tuple[Any, ...]) -> Call:
    return call(draw.tensor(), *more)


def _joined() -> Iterator[OperatorCase]:
    yield _case("cat.default", lambda d: call([d.tensor(), d.tensor()], 1), DTYPES)
    yield _case(
        "cat.default", lambda d: call([d.tensor(), d.tensor(), d.tensor()]), ranks=(1, 2), note="of batches"
    )
    yield _case(
        "cat.default",
        lambda d: call([d.tensor(), d.tensor(dtype=torch.int64)], -1),
        FLOATS,
        (2,),
        note="mixed dtypes",
    )
    yield _case("stack.default", lambda d: call([d.tensor(), d.tensor()], 0), DTYPES, ranks=(0, 2, 4))
    yield _case("stack.default", lambda d: call([d.tensor(), d.tensor()], -1), note="at the end")


def _padded() -> Iterator[OperatorCase]:
    yield _case("constant_pad_nd.default", lambda d: call(d.tensor(), [1, 2], 3), DTYPES)
    yield _case("constant_pad_nd.default", lambda d: call(d.tensor(), [1, 2, 0, 1]), note="two")
    yield _case(
        "constant_pad_nd.default", lambda d: call(d.tensor(d.batch, 6), [-1, -2]), ranks=(2,), note="cut"
    )
    for kind in ("reflection", "replication"):
        for count in (1, 2, 3):
            arguments = partial(_pad, count=count)
            yield _case(f"{kind}_pad{count}d.default", arguments, FLOATS, ranks=(count + 1, count + 2))


def _pad(draw: Draw, count: int) -> Call:
    sizes = (draw.batch, *(4, 5, 6, 5)[: draw.rank - 1])
    return call(draw.tensor(*sizes), [1, 2, 2, 1, 1, 1][: 2 * count])


def _picked() -> Iterator[OperatorCase]:
    yield _case("gather.default", lambda d: call(d.tensor(), d.rank - 1, d.index(d.shape[-1])), DTYPES)
    yield _case(
        "gather.default",
        lambda d: call(d.tensor(2, 5), 1, d.index(5, 2, 3)),
        ranks=(2,),
        note="fewer",
        dynamic=False,
    )
    yield _case(
        "gather.default",
        lambda d: call(d.tensor(4, 5), 1, d.index(5, 2, 3)),
        ranks=(2,),
        note="fewer rows",
        dynamic=False,
    )
    yield _case("index_select.default", lambda d: call(d.tensor(), 1, d.held([2, 0, 2])), DTYPES)
    yield _case("embedding.default", lambda d: call(d.weight(7, 4), d.index(7)), FLOATS, ranks=(1, 2, 3))
    yield _case(
        "embedding.default", lambda d: call(d.weight(7, 4), d.index(7), 0), FLOATS, ranks=(2,), note="padding"
    )
    yield _case(
        "embedding_bag.default",
        lambda d: call(d.weight(7, 4), d.index(7, 6), d.held([0, 2, 5])),
        FLOATS[:2],
        ranks=(1,),
        results=(0,),
        dynamic=False,
    )
    yield _case("index.Tensor", lambda d: call(d.tensor(), [None, d.held([2, 0, -1])]), DTYPES)
    yield _case(
        "index.Tensor",
        lambda d: call(d.tensor(5, 4), [d.index(5, 3)]),
        ranks=(2,),
        note="of the first",
        dynamic=False,
    )
    yield _case(
        "index.Tensor",
        lambda d: call(d.tensor(), [None, d.held([2, 0]), d.held([1, -1])]),
        ranks=(3, 4),
        note="two",
    )
    yield _case(
        "index.Tensor",
        lambda d: call(d.tensor(), [None, d.held([2, 0]), None, d.held([1, -1])]),
        ranks=(4,),
        note="apart",
    )
    yield _case(
        "index.Tensor",
        lambda d: call(d.tensor(), [None, d.held([[2], [0]]), d.held([[1, 0, 3]])]),
        ranks=(3,),
        note="broadcast",
    )
    yield _case("take.default", lambda d: call(d.tensor(3, 4), d.index(12, 5)), ranks=(2,), dynamic=False)
    yield _case("take_along_dim.default", lambda d: call(d.tensor(), d.index(d.shape[1]), 1))
    yield _case("one_hot.default", lambda d: call(d.index(5), 5), (torch.int64,), ranks=(1, 2))


def _scattered() -> Iterator[OperatorCase]:
    yield _case("scatter.value", lambda d: call(d.tensor(), 1, d.places(1)[:, :2].contiguous(), 2), DTYPES)
    yield _case("scatter.src", lambda d: call(d.tensor(), 1, d.places(1), d.tensor()), DTYPES)
    yield _case(
        "scatter.src",
        lambda d: call(d.tensor(3, 6), 1, d.places(1, 2, 4), d.tensor(3, 5)),
        ranks=(2,),
        note="a part",
        dynamic=False,
    )
    yield _case(
        "scatter_add.default",
        lambda d: call(d.tensor(), 1, d.index(d.shape[1]), d.tensor()),
        (*FLOATS, torch.int64),
    )
    for mode in ("sum", "prod", "amax", "amin", "mean"):
        yield _case(
            "scatter_reduce.two", partial(_scatter_reduced, mode=mode), FLOATS[:2], ranks=(2,), note=mode
        )
    yield _case(
        "scatter_reduce.two",
        lambda d: call(d.tensor(), 1, d.places(1), d.tensor(), "sum", include_self=False),
        FLOATS[:2],
        ranks=(2,),
        note="without itself",
    )
    yield _case(
        "index_put.default",
        lambda d: call(d.tensor(5, 4), [d.places(0, 5)[:3]], d.tensor(3, 4)),
        ranks=(2,),
        dynamic=False,
    )
    yield _case(
        "index_put.default",
        lambda d: call(d.tensor(5, 4), [d.index(5, 6)], d.tensor(6, 4), True),
        FLOATS,
        (2,),
        note="added",
        dynamic=False,
    )
    yield _case(
        "index_add.default",
        lambda d: call(d.tensor(), 1, d.held([2, 0]), d.tensor(d.batch, 2)),
        FLOATS,
        ranks=(2,),
    )
    yield _case(
        "index_copy.default", lambda d: call(d.tensor(), 1, d.held([2, 0]), d.tensor(d.batch, 2)), ranks=(2,)
    )
    yield _case("index_fill.int_Scalar", lambda d: call(d.tensor(), 1, d.held([2, 0]), 1), ranks=(2, 4))


def _scatter_reduced(draw: Draw, mode: str) -> Call:
    return call(draw.tensor(), 1, draw.index(draw.shape[1]), draw.tensor(), mode)


def _made() -> Iterator[OperatorCase]:
    for name in ("zeros_like", "ones_like"):
        yield _case(f"{name}.default", lambda d: call(d.tensor()), DTYPES, ranks=(0, 2, 4))
    yield _case("full_like.default", lambda d: call(d.tensor(), 2), DTYPES, ranks=(0, 2, 4))
    yield _case(
        "full_like.default",
        lambda d: call(d.tensor(), 2, dtype=torch.float32),
        ranks=(2,),
        note="of another dtype",
    )
    for name in ("new_zeros", "new_ones"):
        yield _case(f"{name}.default", lambda d: call(d.tensor(), [2, 3]), ranks=(2,))
    yield _case("new_full.default", lambda d: call(d.tensor(), [2, 3], 1), ranks=(2,))
    yield _case(
        "meshgrid.indexing",
        lambda d: call([d.tensor(3), d.tensor(4)], indexing="ij"),
        ranks=(1,),
        dynamic=False,
    )
