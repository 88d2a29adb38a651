"""Every converter: its network, sizes and dtypes, what the network computes, and its engine."""

from __future__ import annotations

import importlib.util
import math

import pytest
import torch
from torch import nn

from fxplug.testing.operators import operator_cells

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("tensorrt_rtx") is None, reason="TensorRT for RTX is not installed"
)
aten = torch.ops.aten
TOLERANCES = {torch.float16: 2e-2}
DTYPES = (torch.float32, torch.float16, torch.int64, torch.bool)
# What is refused, by a part of the name of the cell, and the reason that is given for it.
REFUSED = {
    "(of integers), int": "TensorRT raises floating-point numbers to a power only",
    "aten.index_put.default (added)": "TensorRT does not add where it replaces",
    "aten.sort.stable": "TensorRT does not keep the order of equal elements",
    ", int64, rank": "TensorRT multiplies matrices of floating-point numbers only",
    "(with statistics)": "result 1 of native_layer_norm_default is not computed by TensorRT",
    "aten.max_pool": "with_indices_default is not computed by TensorRT",
}
QUANTIZED = ("tensor.default", "tensor.tensor", "channel.default")
LEAST_OPERATORS, LEAST_CELLS = 240, 2000


def numbers(*sizes, seed=0):
    return torch.randn(*sizes, generator=torch.Generator().manual_seed(seed))


def held(*sizes, seed=1):
    return nn.Parameter(numbers(*sizes, seed=seed), requires_grad=False)


def whole(*values):
    return torch.tensor(values)


X, M, Q = numbers(2, 4, 6, 6), numbers(4, 6), numbers(2, 2, 5, 8)
ENCODER = (8, 2, held(24, 8), held(24), held(8, 8), held(8))
# Operators that the suite of fxplug.testing has no case of.
CALLS = {
    "_fused_rms_norm.default": (M, [6], held(6), 1e-6),
    "_native_multi_head_attention.default": (*[numbers(2, 5, 8)] * 3, *ENCODER),
    "_prelu_kernel.default": (X, held(1, 4, 1, 1)),
    "_reshape_alias.default": (M, [3, 8], [8, 1]),
    "_scaled_dot_product_cudnn_attention.default": (Q, Q + 1, Q * 2, None, False, 0.0, True),
    "_scaled_dot_product_efficient_attention.default": (Q, Q + 1, Q * 2, numbers(2, 2, 5, 5), False),
    "_scaled_dot_product_flash_attention.default": (Q, Q + 1, Q * 2, 0.0, True),
    "_transformer_encoder_layer_fwd.default": (
        numbers(2, 5, 8), *ENCODER, True, False, 1e-5, held(8), held(8), held(8), held(8),
        held(16, 8), held(16), held(8, 16), held(8),
    ),
    "_unsafe_index.Tensor": (M, [whole(0, -1), whole(2, 3)]),
    "_unsafe_index_put.default": (M, [whole(0, 2)], numbers(2, 6)),
    "_upsample_nearest_exact1d.default": (numbers(1, 2, 5), [8]),
    "_upsample_nearest_exact2d.default": (X, [9, 4]),
    "_upsample_nearest_exact3d.default": (numbers(1, 2, 3, 3, 3), [6, 2, 3]),
    "addbmm.default": (numbers(3, 5), numbers(2, 3, 4), numbers(2, 4, 5)),
    "addr.default": (numbers(3, 5), numbers(3), numbers(5)),
    "_embedding_bag.default": (held(7, 4), whole(1, 6, 0, 6, 2), whole(0, 0, 3), False, 1),
    "_embedding_bag_forward_only.default": (held(7, 4), whole(1, 6, 0), whole(0, 2, 3), False, 2, False, None, True),
    "as_strided.default": (M, [2, 3], [6, 2]),
    "bitwise_and.Scalar_Tensor": (-7, whole(1, -5, 7, -(2**63))),
    "bitwise_or.Scalar_Tensor": (6, whole(1, -5, 7, 2**62)),
    "bitwise_xor.Scalar_Tensor": (-1, whole(1, -5, 7, 2**63 - 1)),
    "bitwise_left_shift.Tensor_Scalar": (whole(1, -5, 7), 3),
    "bitwise_right_shift.Tensor_Scalar": (whole(1, -5, 7), 1),
    "bucketize.Tensor": (M, nn.Parameter(torch.tensor([-1.0, 0.0, 1.0]), requires_grad=False)),
    "count_nonzero.default": (M.relu(),),
    "deg2rad.default": (M,),
    "diag_embed.default": (M,),
    "dist.default": (M, M + 1, 3),
    "fill.Tensor": (M, torch.tensor(3.0)),
    "index_fill.int_Tensor": (M, 1, whole(0, 5), torch.tensor(2.0)),
    "isneginf.default": (torch.tensor([-math.inf, 0.0, math.inf]),),
    "isposinf.default": (torch.tensor([-math.inf, 0.0, math.inf]),),
    "kthvalue.default": (M, 2, 1, True),
    "lift_fresh.default": (M,),
    "lift_fresh_copy.default": (M,),
    "logaddexp2.default": (M, M.flip(0)),
    "median.default": (M,),
    "median.dim": (M, 1),
    "norm.Scalar": (M, 1),
    "rad2deg.default": (M,),
    "sgn.default": (M,),
    "sinc.default": (torch.tensor([0.0, 0.5, -2.0]),),
    "std_mean.correction": (M, [1]),
    "trace.default": (numbers(3, 5),),
    "unsafe_split.Tensor": (M, 4, 1),
    "upsample_bicubic2d.default": (X, [9, 4], False),
    "upsample_bilinear2d.default": (X, [9, 4], True),
    "upsample_linear1d.default": (numbers(1, 2, 5), [8], False),
    "upsample_nearest1d.default": (numbers(1, 2, 5), [8]),
    "upsample_nearest2d.default": (X, [9, 4]),
    "upsample_nearest3d.default": (numbers(1, 2, 3, 3, 3), [6, 2, 3]),
    "upsample_trilinear3d.default": (numbers(1, 2, 3, 3, 3), [6, 2, 3], False),
    "vdot.default": (numbers(5), numbers(5, seed=2)),
}  # fmt: skip
# Eager has these on a GPU alone, or not by itself: what they are computed with instead.
STAND_INS = {
    "_scaled_dot_product_cudnn_attention.default": lambda q, k, v, *_: attention(q, k, v, None, causal=True),
    "_scaled_dot_product_efficient_attention.default": lambda q, k, v, mask, *_: attention(q, k, v, mask),
    "_scaled_dot_product_flash_attention.default": lambda q, k, v, *_: attention(q, k, v, None, causal=True),
}


def attention(q, k, v, mask, *, causal=False):
    return nn.functional.scaled_dot_product_attention(q, k, v, mask, is_causal=causal)


def overload(name):
    operator, _, kind = name.partition(".")
    return getattr(getattr(aten, operator), kind)


@pytest.mark.parametrize("name", [name for name in CALLS if name not in STAND_INS])
def test_a_call(name):
    from fxplug_tensorrt.testing import check_call

    checked = check_call(overload(name), *CALLS[name])

    assert checked.plan
    assert checked.found


@pytest.mark.parametrize("name", STAND_INS)
def test_attention_that_eager_has_on_a_gpu_alone(name):
    from fxplug_tensorrt.converters import builtin_converters
    from fxplug_tensorrt.network import Conversion

    build = Conversion()
    build.like = (None,) * len(overload(name)._schema.returns)
    args = [
        build.input(f"x{number}", value.dtype, value.shape) if isinstance(value, torch.Tensor) else value
        for number, value in enumerate(CALLS[name])
    ]
    made, *rest = builtin_converters()[overload(name)].function(build, *args)
    build.output("y", made)

    assert rest == [None] * (len(build.like) - 1)
    torch.testing.assert_close(
        computed(build, CALLS[name]), STAND_INS[name](*CALLS[name]), rtol=1e-5, atol=1e-5
    )


def computed(build, args):
    from fxplug.lower import Slot
    from fxplug_tensorrt.conversion import Converted, Place
    from fxplug_tensorrt.testing import evaluate

    places = tuple(
        Place(f"x{number}", number, None, value.dtype)
        for number, value in enumerate(args)
        if isinstance(value, torch.Tensor)
    )
    (found,) = evaluate(Converted(build, places, Slot(0), (("y", torch.float32),)), args)
    return found


def test_every_cell_of_the_operator_suite_is_computed_or_refused_by_name():
    """Networks of all cells are built and computed; and an engine of each operator."""
    from fxplug_tensorrt.conversion import convert
    from fxplug_tensorrt.converters import builtin_converters
    from fxplug_tensorrt.engine import build_plan
    from fxplug_tensorrt.network import NotConvertibleError
    from fxplug_tensorrt.options import TensorRTOptions
    from fxplug_tensorrt.testing import evaluate

    known = builtin_converters()
    passed, built, wrong, cells = set(), set(), [], 0
    for cell in operator_cells(dtypes=DTYPES):
        if cell.case.target not in known:
            continue  # Expressed by others before networks are written.
        program = cell.program()
        try:
            written = convert(
                program.module, program.runs[0], known, open_dimensions=(0,) if cell.dynamic else ()
            )
            for inputs, expected in zip(program.runs, program.expected, strict=True):
                tolerance = TOLERANCES.get(cell.dtype, 1e-5)
                torch.testing.assert_close(
                    tuple(evaluate(written, inputs)), expected, rtol=tolerance, atol=tolerance, equal_nan=True,
                    check_stride=False,
                )  # fmt: skip
        except NotConvertibleError as error:
            if not any(part in cell.name and reason in error.message for part, reason in REFUSED.items()):
                wrong.append(f"{cell.name}: {error.message}")
            continue
        except AssertionError as error:
            wrong.append(f"{cell.name}: {error}")
            continue
        cells += 1
        passed.add(cell.case.operator)
        if cell.case.operator not in built:
            built.add(cell.case.operator)
            assert build_plan(written, TensorRTOptions(batch_sizes=(1, 2, 4) if cell.dynamic else ()))

    assert wrong == []
    assert len(passed) >= LEAST_OPERATORS
    assert cells >= LEAST_CELLS


def test_every_converter_is_tried():
    from fxplug_tensorrt.converters import builtin_converters

    tried = {cell.case.operator for cell in operator_cells()} | {f"aten.{name}" for name in CALLS}
    # With numbers that are known, `full` and `arange` are computed at once; sizes that are left open are tried below.
    below = {"aten.sym_size.int", "aten.full.default", "aten.arange.default", "aten.arange.start"}
    below |= {
        "aten.arange.start_step",
        "aten.log_sigmoid_forward.default",
        "aten.zeros.default",
        "aten.ones.default",
    }
    # In files of their own.
    below |= {"aten.mkldnn_rnn_layer.default", "aten._cudnn_rnn.default"}
    below |= {f"fxplug.{'de' * back}quantize_per_{kind}" for kind in QUANTIZED for back in (False, True)}

    assert {str(target) for target in builtin_converters()} - tried == below
    assert len({target._schema.name for target in builtin_converters()}) >= 180


def test_the_logarithm_of_the_sigmoid():
    from fxplug_tensorrt.testing import check_program

    checked = check_program(nn.LogSigmoid(), (40 * M,))

    assert checked.plan


def test_sizes_that_are_left_open_are_computed():
    import fxplug
    from fxplug_tensorrt.conversion import convert
    from fxplug_tensorrt.converters import builtin_converters
    from fxplug_tensorrt.testing import evaluate

    def program(x):
        count = x.shape[0]
        places = torch.arange(2, count, 2)
        made = (torch.full((count, 2), 7.0), torch.zeros(count), torch.ones(2, count, dtype=torch.int64))
        return x.reshape(count * 3, 2), places, torch.arange(count) + x.shape[0], *made

    module = fxplug.decompose(
        fxplug.symbolic_trace(program), (numbers(5, 6),), to="aten", dynamic={0: {0: "batch"}}
    )
    converted = convert(module, (numbers(5, 6),), builtin_converters(), open_dimensions=(0,))

    for count in (3, 5, 8):
        given = numbers(count, 6, seed=count)
        for found, expected in zip(evaluate(converted, (given,)), program(given), strict=True):
            torch.testing.assert_close(found, expected)
