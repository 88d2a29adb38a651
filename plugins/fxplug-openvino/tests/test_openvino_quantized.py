"""Quantized values become what OpenVINO runs in eight bits."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import fxplug
import fxplug.semantics
from fxplug.lower import lower, plan_lowering
from fxplug_openvino import OpenVINOBackend
from fxplug_openvino.saturation import is_exact_in_eight_bits

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("openvino") is None, reason="OpenVINO is not installed"
)
ops = torch.ops.fxplug


class Quantized(nn.Module):
    """Two convolutions whose inputs and weights are quantized, as plugins that quantize write them."""

    def __init__(self):
        super().__init__()
        generator = torch.Generator().manual_seed(1)
        for number, (outputs, inputs) in enumerate(((16, 8), (8, 16))):
            weight = torch.randint(-127, 128, (outputs, inputs, 3, 3), generator=generator).to(torch.int8)
            self.register_buffer(f"weight_{number}", weight)
            self.register_buffer(f"scales_{number}", torch.rand(outputs, generator=generator) * 0.002 + 0.001)
            self.register_buffer(f"zeros_{number}", torch.zeros(outputs, dtype=torch.int64))

    def forward(self, x):
        for number, (scale, zero, low, high, dtype) in enumerate(
            ((0.03, 3, -128, 127, torch.int8), (0.02, 0, 0, 255, torch.uint8))
        ):
            stored = ops.quantize_per_tensor(x, scale, zero, low, high, dtype)
            x = ops.dequantize_per_tensor(stored, scale, zero, low, high, dtype)
            weight = ops.dequantize_per_channel(
                getattr(self, f"weight_{number}"),
                getattr(self, f"scales_{number}"),
                getattr(self, f"zeros_{number}"),
                0,
                -127,
                127,
                torch.int8,
            )
            x = F.relu(F.conv2d(x, weight, padding=1))
        return x


def lowered(model, inputs, **options):
    module = fxplug.symbolic_trace(model)
    return lower(module, OpenVINOBackend(**options), (inputs,), name="openvino", strict=True).module


def images(seed=0):
    return torch.randn(2, 8, 12, 12, generator=torch.Generator().manual_seed(seed))


def test_what_is_quantized_equals_eager_and_different_inputs_differ():
    model = Quantized().eval()
    engine = lowered(model, images())

    for seed in (0, 1):
        expected, found = model(images(seed)), engine(images(seed))
        # Values half way between two integers may go to the other one, which is one step.
        assert (found - expected).abs().mean() < 0.01 * expected.abs().mean()
    assert not torch.allclose(engine(images(0)), engine(images(1)))


def precisions_of_convolutions(engine):
    (part,) = (part for part in engine.modules() if hasattr(part, "compiled_model"))
    return [
        node.get_rt_info()["runtimePrecision"].astype(str)
        for node in part.compiled_model.get_runtime_model().get_ops()
        if node.get_rt_info()["layerType"].astype(str) == "Convolution"
    ]


def test_convolutions_run_in_eight_bits_where_their_sums_are_exact():
    precisions = precisions_of_convolutions(lowered(Quantized().eval(), images()))

    assert len(precisions) == 2
    assert set(precisions) <= ({"i8", "u8"} if is_exact_in_eight_bits("CPU") else {"f32"})


ON_ANOTHER_CPU = """
import sys
sys.path.insert(0, sys.argv[1])
import torch
import test_openvino_quantized as tests
from fxplug_openvino import OpenVINOBackend
from fxplug_openvino.saturation import is_exact_in_eight_bits

assert not is_exact_in_eight_bits("CPU")
backend = OpenVINOBackend()
assert backend.environment()["int8"] == "saturates"
model, engine = tests.Quantized().eval(), tests.lowered(tests.Quantized().eval(), tests.images())
expected, found = model(tests.images()), engine(tests.images())
# Values half way between two integers may go to the other one, which is one step.
assert (found - expected).abs().mean() < 0.01 * expected.abs().mean()
assert tests.precisions_of_convolutions(engine) == ["f32", "f32"]
(part,) = (part for part in engine.modules() if hasattr(part, "compiled_model"))
again = backend.restore(backend.artefact(part))
assert torch.equal(again(tests.images()), found)
chosen = tests.lowered(tests.Quantized().eval(), tests.images(), precision="default")
assert set(tests.precisions_of_convolutions(chosen)) <= {"i8", "u8"}
print("done")
"""


def test_where_sums_of_products_saturate_they_are_computed_in_floats():
    """OpenVINO's convolutions were wrong by nine per cent on CPUs without VNNI."""
    found = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", ON_ANOTHER_CPU, str(Path(__file__).parent)],
        capture_output=True,
        text=True,
        timeout=300,
        env=os.environ | {"ONEDNN_MAX_CPU_ISA": "AVX2"},
        check=False,
    )

    assert found.stdout.endswith("done\n"), found.stderr


def test_other_devices_than_the_cpu_are_believed():
    assert is_exact_in_eight_bits("GPU.0")
    assert is_exact_in_eight_bits("CPU.of.nobody")  # It is refused where the model is built.


@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8])
def test_stored_integers_are_those_of_pytorch(dtype):
    limits = torch.iinfo(dtype)
    values = torch.linspace(-9, 9, 181)

    def program(x):
        return ops.quantize_per_tensor(x, 0.07, 5, limits.min, limits.max, dtype) + 0

    found, expected = lowered(program, values)(values), program(values)
    assert found.dtype is expected.dtype is dtype
    assert (found.int() - expected.int()).abs().max() <= 1
    assert (found == expected).float().mean() > 0.97


def test_scales_and_zero_points_may_be_tensors_and_a_half_comes_back():
    scale, zero = torch.tensor([0.5]), torch.tensor([2])
    values = torch.arange(-20, 20, dtype=torch.float16)

    def program(x):
        stored = ops.quantize_per_tensor(x, scale, zero, -128, 127, torch.int8)
        return (
            ops.dequantize_per_tensor(stored, scale, zero, -128, 127, torch.int8, out_dtype=torch.float16) * 1
        )

    torch.testing.assert_close(lowered(program, values)(values), program(values))


def test_values_of_more_than_eight_bits_stay_in_pytorch():
    def program(x):
        return ops.quantize_per_tensor(x, 0.5, 0, -1000, 1000, torch.int16)

    report = plan_lowering(fxplug.symbolic_trace(program), OpenVINOBackend(), "openvino", (images(),))

    assert report.nodes[0].reason == "values are stored as int16; OpenVINO quantizes to eight bits"
