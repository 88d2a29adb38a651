"""A Transformer encoder (6 layers of 512) in int8 against float, in one run: medians, spread, and error.

All variants run in turn, so that a busy machine slows all of them alike. Run it from the root of the repository:

    python plugins/fxplug-quant/benchmarks/transformer.py --threads 1
"""

from __future__ import annotations

import argparse
import statistics
import time

import torch
from torch import nn

import fxplug_quant

_FEATURES = 512
_SHAPES = ((1, 1), (1, 32), (8, 64))
"""Batch and length."""


def encoder() -> nn.Module:
    """Return the encoder."""
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(_FEATURES, 8, 4 * _FEATURES, batch_first=True)
    return nn.TransformerEncoder(layer, 6, enable_nested_tensor=False).eval()


def variants(model: nn.Module) -> dict[str, nn.Module]:
    """Return name -> module: in float, and in every mode."""
    data = [torch.randn(4, 32, _FEATURES) for _ in range(2)]
    found: dict[str, nn.Module] = {"float": model}
    for mode in ("dynamic-int8", "static-int8", "weight-int8"):
        prepared = fxplug_quant.prepare(model, {"mode": mode}, data[0])
        if prepared.observers:
            prepared.calibrate(data)
        found[mode] = fxplug_quant.convert(prepared)
    return found


def measure(modules: dict[str, nn.Module], inputs: torch.Tensor, rounds: int) -> dict[str, list[float]]:
    """Return milliseconds of each call, the modules in turn."""
    times: dict[str, list[float]] = {name: [] for name in modules}
    for turn in range(rounds + 2):
        for name, module in modules.items():
            start = time.perf_counter()
            module(inputs)
            if turn >= 2:  # The first ones pack weights and fill caches.
                times[name].append(1e3 * (time.perf_counter() - start))
    return times


def main() -> None:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=21)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    modules = variants(encoder())
    print(f"encoder, {options.threads} thread(s), PyTorch {torch.__version__}")
    with torch.inference_mode():
        fresh = torch.randn(4, 32, _FEATURES)
        expected = modules["float"](fresh)
        for name, module in modules.items():
            print(f"  {name:12} relative error {(module(fresh) - expected).norm() / expected.norm():.4f}")
        for shape in _SHAPES:
            times = measure(modules, torch.randn(*shape, _FEATURES), options.rounds)
            base = statistics.median(times["float"])
            print(f"batch {shape[0]}, length {shape[1]}")
            for name, found in times.items():
                median = statistics.median(found)
                low, _, high = statistics.quantiles(found, n=4)
                quartiles = f"quartiles {low:7.2f} to {high:7.2f}"
                print(f"  {name:12} {median:8.2f} ms  {quartiles}  {base / median:5.2f} x float")


if __name__ == "__main__":
    main()
