"""What is exported for backends: fxplug's own quantize and dequantize operators, and what they compute."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import fxplug_quant
from fxplug_quant import QuantizationError


def make() -> tuple[nn.Module, torch.Tensor]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(144, 8)).eval()
    return model, torch.randn(8, 3, 8, 8)


def test_the_export_computes_what_the_int8_layers_do():
    pytest.importorskip("fxplug.semantics.quantization")
    model, inputs = make()

    exported = fxplug_quant.export_canonical(fxplug_quant.prepare(model, None, inputs).calibrate([inputs]))
    converted = fxplug_quant.convert(fxplug_quant.prepare(model, None, inputs).calibrate([inputs]))

    names = [str(node.target) for node in exported.graph.nodes if "fxplug." in str(node.target)]
    assert names.count("fxplug.quantize_per_tensor.default") == 2
    assert names.count("fxplug.dequantize_per_channel.default") == 2
    with torch.no_grad():
        torch.testing.assert_close(exported(inputs), converted(inputs), atol=0.02, rtol=0)


def test_a_symmetric_export_stores_values_as_int8_around_zero_and_keeps_their_range():
    pytest.importorskip("fxplug.semantics.quantization")
    model, inputs = make()

    def exported(**options):
        prepared = fxplug_quant.prepare(model, {"observer": "min-max"}, inputs).calibrate([inputs])
        return fxplug_quant.export_canonical(prepared, **options)

    module = exported(symmetric=True)

    quantized = [node for node in module.graph.nodes if "fxplug.quantize" in str(node.target)]
    assert [node.args[2:] for node in quantized] == [(0, -128, 127, torch.int8)] * 2
    first = quantized[0].args[1]
    assert float(inputs.abs().max()) <= 127.5 * first < 1.02 * float(inputs.abs().max())
    with torch.no_grad():
        expected = model(inputs)
        torch.testing.assert_close(module(inputs), expected, atol=0.05, rtol=0)
        assert not torch.equal(module(inputs), exported()(inputs))


def test_a_core_without_the_operators_is_named():
    if hasattr(torch.ops.fxplug, "quantize_per_tensor"):
        pytest.skip("this fxplug has the operators")
    model, inputs = make()

    with pytest.raises(QuantizationError, match="this fxplug registers none"):
        fxplug_quant.export_canonical(fxplug_quant.prepare(model, None, inputs).calibrate([inputs]))
