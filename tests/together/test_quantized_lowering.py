"""What fxplug-quant exports runs in fxplug-openvino in eight bits."""

from __future__ import annotations

import importlib.util

import pytest
import torch
from torch import nn

from fxplug.lower import lower, lowered_partitions

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("openvino") is None, reason="OpenVINO is not installed"
)

EIGHT_BITS = {"i8", "u8"}


def exported():
    import fxplug_quant

    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 8, 3), nn.ReLU(), nn.Flatten()).eval()
    inputs = torch.randn(8, 3, 10, 10)
    prepared = fxplug_quant.prepare(model, None, inputs).calibrate([inputs])
    return fxplug_quant.export_canonical(prepared), inputs


def test_a_quantized_model_is_one_partition_in_eight_bits_and_equals_eager_within_a_step():
    from fxplug_openvino import OpenVINOBackend
    from fxplug_openvino.saturation import is_exact_in_eight_bits

    module, inputs = exported()
    lowered = lower(module, OpenVINOBackend(), (inputs,), name="openvino", strict=True)

    (part,) = lowered_partitions(lowered.module).values()
    runtime = part.engine.compiled_model.get_runtime_model()
    layers = [
        node
        for node in runtime.get_ordered_ops()
        if "Convolution" in node.get_rt_info()["layerType"].astype(str)
    ]
    assert len(layers) == 2
    precisions = {node.get_rt_info()["runtimePrecision"].astype(str) for node in layers}
    assert precisions <= (EIGHT_BITS if is_exact_in_eight_bits("CPU") else {"f32"})

    others = torch.randn(8, 3, 10, 10, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        for values in (inputs, others):
            found, expected = lowered.module(values), module(values)
            step = (expected.max() - expected.min()) / 255
            assert (found - expected).abs().max() <= step
            assert expected.abs().max() > 20 * step
        assert not torch.allclose(lowered.module(inputs), lowered.module(others))
