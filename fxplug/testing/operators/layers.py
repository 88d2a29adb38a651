"""Cases of the operators of layers: products, convolutions, norms, pools, resizing and attention."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from fxplug.testing.operators.case import FLOATS, Call, Draw, OperatorCase, call

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from torch import nn

__all__ = ["cases"]


def cases() -> Iterator[OperatorCase]:
    """Yield the cases."""
    yield from _products()
    yield from _convolutions()
    yield from _norms()
    yield from _pools()
    yield from _resized()
    yield from _attention()


def _case(
    name: str, arguments: Callable[[Draw], Call], ranks: Any = (2,), dtypes: Any = FLOATS, **more: Any
) -> OperatorCase:
    return OperatorCase(f"aten.{name}", arguments, dtypes, ranks, **more)


def _products() -> Iterator[OperatorCase]:
    whole = (*FLOATS, torch.int64)
    yield _case("mm.default", lambda d: call(d.tensor(d.batch, 4), d.weight(4, 5)), dtypes=whole)
    yield _case(
        "mm.default", lambda d: call(d.tensor(3, 4), d.tensor(4, 5)), note="of two inputs", dynamic=False
    )
    yield _case("bmm.default", lambda d: call(d.tensor(d.batch, 3, 4), d.tensor(d.batch, 4, 5)), (3,), whole)
    yield _case("mv.default", lambda d: call(d.tensor(d.batch, 4), d.weight(4)), dtypes=whole)
    yield _case("dot.default", lambda d: call(d.tensor(d.batch), d.tensor(d.batch)), (1,), whole)
    yield _case(
        "matmul.default", lambda d: call(d.tensor(*d.shape[:-1], 4), d.weight(4, 5)), (2, 3, 4), whole
    )
    yield _case(
        "matmul.default",
        lambda d: call(d.tensor(4), d.weight(4, 5)),
        (1,),
        note="of one dimension",
        dynamic=False,
    )
    yield _case(
        "matmul.default",
        lambda d: call(d.tensor(d.batch, 2, 3, 4), d.tensor(d.batch, 1, 4, 3)),
        (4,),
        note="broadcast",
    )
    yield _case("addmm.default", lambda d: call(d.weight(5), d.tensor(d.batch, 4), d.weight(4, 5)))
    yield _case(
        "addmm.default",
        lambda d: call(d.weight(5), d.tensor(d.batch, 4), d.weight(4, 5), beta=0.5, alpha=2),
        note="scaled",
    )
    yield _case(
        "baddbmm.default",
        lambda d: call(
            d.tensor(d.batch, 3, 5), d.tensor(d.batch, 3, 4), d.tensor(d.batch, 4, 5), beta=0.5, alpha=2
        ),
        (3,),
    )
    yield _case("addmv.default", lambda d: call(d.tensor(d.batch), d.tensor(d.batch, 4), d.weight(4)))
    yield _case(
        "linear.default", lambda d: call(d.tensor(*d.shape[:-1], 4), d.weight(5, 4), d.weight(5)), (2, 3, 4)
    )
    yield _case(
        "linear.default",
        lambda d: call(d.tensor(4), d.weight(5, 4), d.weight(5)),
        (1,),
        note="of one dimension",
        dynamic=False,
    )
    yield _case("linear.default", lambda d: call(d.tensor(d.batch, 4), d.weight(5, 4)), note="without bias")
    yield _case(
        "einsum.default", lambda d: call("bij,jk->bik", [d.tensor(d.batch, 3, 4), d.weight(4, 5)]), (3,)
    )
    yield _case(
        "einsum.default",
        lambda d: call("bhid,bhjd->bhij", [d.tensor(d.batch, 2, 3, 4), d.tensor(d.batch, 2, 5, 4)]),
        (4,),
        note="attention",
    )
    yield _case("outer.default", lambda d: call(d.tensor(d.batch), d.weight(3)), (1,))
    yield _case("cosine_similarity.default", lambda d: call(d.tensor(d.batch, 5), d.tensor(d.batch, 5)))
    yield _case(
        "_cdist_forward.default",
        lambda d: call(d.tensor(d.batch, 3, 4), d.tensor(d.batch, 5, 4), 2.0, None),
        (3,),
        FLOATS[:2],
    )
    yield _case("linalg_cross.default", lambda d: call(d.tensor(d.batch, 3), d.tensor(d.batch, 3)))


def _convolved(  # noqa: PLR0913, PLR0917 - what a convolution has
    draw: Draw,
    count: int,
    weight: tuple[int, int],
    stride: int = 1,
    padding: Any = 0,
    dilation: int = 1,
    transposed: bool = False,  # noqa: FBT001, FBT002
    output_padding: int = 0,
    groups: int = 1,
) -> Call:
    outputs = weight[1] * groups if transposed else weight[0]
    pads = list(padding) if isinstance(padding, tuple) else [padding] * count
    return call(
        draw.image(weight[0] if transposed else weight[1] * groups, *(7, 6, 5)[:count]),
        draw.weight(*weight, *[3] * count),
        draw.weight(outputs),
        [stride] * count,
        pads,
        [dilation] * count,
        transposed,
        [output_padding] * count,
        groups,
    )


def _convolutions() -> Iterator[OperatorCase]:
    for count in (1, 2, 3):
        yield _case(
            "convolution.default",
            partial(_convolved, count=count, weight=(4, 3)),
            (count + 2,),
            note=f"{count}d",
        )
        yield _case(
            "convolution.default",
            partial(
                _convolved, count=count, weight=(4, 2), transposed=True, stride=2, padding=1, output_padding=1
            ),
            (count + 2,),
            note=f"{count}d transposed",
        )
    for note, more in (
        ("strides", {"weight": (4, 3), "stride": 2, "padding": 1}),
        ("dilated", {"weight": (4, 3), "dilation": 2, "padding": (2, 1)}),
        ("groups", {"weight": (4, 3), "groups": 2}),
        ("each channel", {"weight": (3, 1), "groups": 3, "padding": 1}),
        ("transposed groups", {"weight": (4, 3), "groups": 2, "transposed": True}),
        ("transposed dilated", {"weight": (4, 3), "dilation": 2, "transposed": True}),
    ):
        yield _case("convolution.default", partial(_convolved, count=2, **more), (4,), note=note)
    yield _case(
        "convolution.default",
        lambda d: call(
            d.image(3, 6, 6), d.weight(4, 3, 3, 3), None, [1, 1], [0, 0], [1, 1], False, [0, 0], 1
        ),
        (4,),
        note="without bias",
    )
    for count in (1, 2, 3):
        yield _case(f"conv{count}d.default", partial(_conv, count=count), (count + 2,))
    yield _case(
        "conv2d.padding",
        lambda d: call(d.image(3, 6, 5), d.weight(4, 3, 3, 5), d.weight(4), padding="same"),
        (4,),
    )
    yield _case(
        "conv_transpose2d.input",
        lambda d: call(d.image(3, 4, 5), d.weight(3, 4, 2, 3), d.weight(4), [2, 1], [1, 0]),
        (4,),
    )
    yield _case("im2col.default", lambda d: call(d.image(2, 5, 6), [2, 3], [1, 1], [0, 1], [1, 2]), (4,))


def _conv(draw: Draw, count: int) -> Call:
    return call(draw.image(3, *(7, 6, 5)[:count]), draw.weight(4, 3, *[3] * count), draw.weight(4))


def _statistics(draw: Draw, channels: int) -> tuple[nn.Parameter, ...]:
    return draw.weight(channels), draw.weight(channels), draw.weight(channels), draw.positive_weight(channels)


def _norms() -> Iterator[OperatorCase]:
    yield _case(
        "_native_batch_norm_legit_no_training.default",
        lambda d: call(d.tensor(), *_statistics(d, 3), 0.1, 1e-5),
        (2, 3, 4, 5),
        results=(0,),
    )
    yield _case(
        "_native_batch_norm_legit_no_training.default",
        lambda d: call(d.tensor(), None, None, *_statistics(d, 3)[2:], 0.1, 1e-5),
        (4,),
        results=(0,),
        note="without weights",
    )
    yield _case(
        "batch_norm.default", lambda d: call(d.tensor(), *_statistics(d, 3), False, 0.1, 1e-3, False), (2, 4)
    )
    yield _case(
        "_native_batch_norm_legit.no_stats",
        lambda d: call(d.tensor(), d.weight(3), d.weight(3), True, 0.1, 1e-5),
        (3, 4),
        FLOATS[:2],
        results=(0,),
    )
    yield _case(
        "instance_norm.default",
        lambda d: call(d.tensor(), d.weight(3), d.weight(3), None, None, True, 0.1, 1e-5, False),
        (3, 4),
        FLOATS[:2],
    )
    for name, results in (("native_layer_norm", (0,)), ("layer_norm", None)):
        yield _case(
            f"{name}.default",
            lambda d: call(d.tensor(*d.shape[:-1], 6), [6], d.weight(6), d.weight(6), 1e-5),
            (2, 3, 4),
            results=results,
        )
        yield _case(
            f"{name}.default",
            lambda d: call(d.tensor(), [4, 5], None, None, 1e-5),
            (4,),
            results=results,
            note="of two",
        )
    yield _case(
        "native_layer_norm.default",
        lambda d: call(d.tensor(d.batch, 6), [6], d.weight(6), d.weight(6), 1e-5),
        (2,),
        FLOATS[:1],
        note="with statistics",
    )
    yield _case(
        "native_group_norm.default",
        lambda d: call(d.image(6, 4, 5), d.weight(6), d.weight(6), d.batch, 6, 20, 3, 1e-5),
        (4,),
        FLOATS[:2],
        results=(0,),
        dynamic=False,
    )
    yield _case("group_norm.default", lambda d: call(d.image(6, 4, 5), 2, d.weight(6), d.weight(6)), (4,))
    yield _case("group_norm.default", lambda d: call(d.tensor(d.batch, 6), 3), (2,), note="without weights")
    yield _case(
        "rms_norm.default", lambda d: call(d.tensor(*d.shape[:-1], 6), [6], d.weight(6), 1e-5), (2, 3)
    )


def _pooled(draw: Draw, count: int, more: tuple[Any, ...]) -> Call:
    return call(draw.image(3, *(8, 7, 6)[:count]), *more)


def _pools() -> Iterator[OperatorCase]:
    for count in (1, 2, 3):
        size, two, one = [3] * count, [2] * count, [1] * count
        plain, edged = (two,), (size, two, one)
        for name in ("avg_pool", "max_pool"):
            pool = f"{name}{count}d.default"
            # PyTorch averages volumes in these alone.
            dtypes = FLOATS[:2] if (name, count) == ("avg_pool", 3) else FLOATS
            yield _case(pool, partial(_pooled, count=count, more=plain), (count + 2,), dtypes)
            yield _case(pool, partial(_pooled, count=count, more=edged), (count + 2,), dtypes, note="padded")
        yield _case(
            f"avg_pool{count}d.default",
            partial(_pooled, count=count, more=(*edged, True, False)),
            (count + 2,),
            FLOATS[:2],
            note="ceil, without padding",
        )
        yield _case(
            f"avg_pool{count}d.default",
            partial(_pooled, count=count, more=(*edged, True, True)),
            (count + 2,),
            FLOATS[:1],
            note="ceil",
        )
        yield _case(
            f"max_pool{count}d.default",
            partial(_pooled, count=count, more=(*edged, one, True)),
            (count + 2,),
            note="ceil",
        )
        yield _case(
            f"max_pool{count}d.default",
            partial(_pooled, count=count, more=(size, one, [0] * count, two)),
            (count + 2,),
            FLOATS[:1],
            note="dilated",
        )
        for kind in ("avg", "max"):
            for note, wanted in (("divides", 1), ("to three", 3)):
                arguments = partial(_pooled, count=count, more=([wanted] * count,))
                name = f"adaptive_{kind}_pool{count}d.default"
                yield _case(
                    name,
                    arguments,
                    (count + 2,),
                    FLOATS[:1],
                    note=note,
                    results=None if kind == "avg" else (0,),
                )
    yield _case(
        "max_pool2d.default",
        lambda d: call(d.tensor(3, 8, 7), [2, 2]),
        (3,),
        note="without a batch",
        dynamic=False,
    )
    yield _case(
        "avg_pool2d.default",
        lambda d: call(d.image(3, 8, 6), [2, 2], [2, 2], [0, 0], False, True, 3),
        (4,),
        FLOATS[:1],
        note="its own divisor",
    )
    for count in (2, 3):
        arguments = partial(_distinct, count=count)
        yield _case(f"max_pool{count}d_with_indices.default", arguments, (count + 2,), FLOATS[:2])
    yield _case("_adaptive_avg_pool2d.default", lambda d: call(d.image(3, 7, 5), [3, 2]), (4,))
    yield _case(
        "_adaptive_avg_pool3d.default", lambda d: call(d.image(3, 7, 5, 4), [3, 2, 2]), (5,), FLOATS[:2]
    )


def _distinct(draw: Draw, count: int) -> Call:
    return call(draw.distinct(draw.batch, 2, *(6, 7, 4)[:count]), [2] * count, [2] * count)


def _resized() -> Iterator[OperatorCase]:
    for count, kind in ((1, "linear"), (2, "bilinear"), (3, "trilinear")):
        sizes = (5, 6, 4)[:count]
        for note, more in (
            ("scaled", (None, False, [2.0] * count)),
            ("aligned", ([9, 8, 7][:count], True, None)),
            ("smaller", ([3, 4, 2][:count], False, None)),
        ):
            arguments = partial(_resize, sizes=sizes, more=more)
            yield _case(
                f"upsample_{kind}{count}d.vec",
                arguments,
                (count + 2,),
                FLOATS[:1] if note != "scaled" else FLOATS,
                note=note,
            )
        for name in ("nearest", "nearest-exact"):
            overload = f"{'_upsample_nearest_exact' if name != 'nearest' else 'upsample_nearest'}{count}d.vec"
            for note, more in (("scaled", (None, [2.0] * count)), ("sized", ([7, 9, 5][:count], None))):
                arguments = partial(_resize, sizes=sizes, more=more)
                yield _case(
                    overload, arguments, (count + 2,), FLOATS[:1] if note != "scaled" else FLOATS, note=note
                )
    yield _case(
        "upsample_bicubic2d.vec",
        lambda d: call(d.image(3, 5, 6), None, False, [2.0, 2.0]),
        (4,),
        FLOATS[:2],
        note="scaled",
    )
    yield _case(
        "upsample_bicubic2d.vec",
        lambda d: call(d.image(3, 5, 6), [7, 9], True, None),
        (4,),
        FLOATS[:2],
        note="aligned",
    )
    yield _case(
        "grid_sampler_2d.default",
        lambda d: call(d.image(3, 5, 6), d.unit(d.batch, 4, 3, 2), 0, 0, False),
        (4,),
        FLOATS[:2],
    )
    yield _case(
        "grid_sampler_2d.default",
        lambda d: call(d.image(3, 5, 6), d.tensor(d.batch, 4, 3, 2), 0, 1, True),
        (4,),
        FLOATS[:2],
        note="border, aligned",
    )


def _resize(draw: Draw, sizes: tuple[int, ...], more: tuple[Any, ...]) -> Call:
    return call(draw.image(3, *sizes), *more)


def _attention() -> Iterator[OperatorCase]:
    for name in ("_softmax", "_log_softmax"):
        yield _case(f"{name}.default", lambda d: call(d.tensor(), -1, False), (2, 4))
        yield _case(f"{name}.default", lambda d: call(d.tensor(), 1, False), (3, 4), note="inner")
    for name in ("softmax", "log_softmax"):
        yield _case(f"{name}.int", lambda d: call(d.tensor(), -1), (1, 2, 4))
        yield _case(
            f"{name}.int",
            lambda d: call(d.tensor(), -1, torch.float32),
            (2,),
            (torch.int64, torch.float16),
            note="of another dtype",
        )
    yield _case("_safe_softmax.default", lambda d: call(d.tensor(), -1), (2, 4))
    plain = partial(_attended, lengths=(3, 5))
    yield _case("scaled_dot_product_attention.default", plain, (4,), rtol=2e-2, atol=2e-2, note="plain")
    yield _case(
        "scaled_dot_product_attention.default",
        partial(_attended, lengths=(3, 5), mask="bool"),
        (4,),
        FLOATS[:2],
        note="hidden",
    )
    yield _case(
        "scaled_dot_product_attention.default",
        partial(_attended, lengths=(3, 5), mask="float"),
        (4,),
        FLOATS[:2],
        note="weighted",
    )
    yield _case(
        "scaled_dot_product_attention.default",
        partial(_attended, lengths=(5, 5), is_causal=True),
        (4,),
        FLOATS[:2],
        note="causal",
    )
    yield _case(
        "scaled_dot_product_attention.default",
        partial(_attended, lengths=(3, 5), scale=0.3),
        (4,),
        FLOATS[:2],
        note="scaled",
    )
    yield _case(
        "_scaled_dot_product_flash_attention_for_cpu.default",
        partial(_attended, lengths=(4, 6)),
        (4,),
        FLOATS[:2],
        results=(0,),
    )


def _attended(draw: Draw, lengths: tuple[int, int], mask: str = "", **more: Any) -> Call:
    queries, keys = lengths
    if mask == "bool":
        # Everybody may look at the first key.
        more["attn_mask"] = draw.mask(draw.batch, 1, queries, keys) | (torch.arange(keys) == 0)
    elif mask:
        more["attn_mask"] = draw.tensor(draw.batch, 1, queries, keys)
    shape = (draw.batch, 2)
    return call(
        draw.tensor(*shape, queries, 4), draw.tensor(*shape, keys, 4), draw.tensor(*shape, keys, 4), **more
    )
