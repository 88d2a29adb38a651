"""Int8 against float and against torch.ao's FX flow, in one run: medians and spread.

All variants run in turn, so that a busy machine slows all of them alike. Run it from the root of the repository:

    python plugins/fxplug-quant/benchmarks/compare.py recommender --threads 1
    python plugins/fxplug-quant/benchmarks/compare.py resnet50 --batches 1 8

torch.ao is deprecated; it is here as what to compare with. Without it (a PyTorch that dropped it) it is left out.
"""

from __future__ import annotations

import argparse
import copy
import statistics
import sys
import time
import warnings
from pathlib import Path

import torch
from torch import nn

sys.path.insert(0, str(Path(__file__).parents[3]))

import fxplug_quant
from examples.deep_recommender import deep_recommender
from examples.resnet50 import resnet50

_ITEMS = 17_768
_BATCHES = {"recommender": (1, 16, 64, 128), "resnet50": (1, 8)}


def ratings(rows: int, seed: int) -> torch.Tensor:
    """Return the ratings of some users, about 200 each."""
    generator = torch.Generator().manual_seed(seed)
    stars = torch.randint(1, 6, (rows, _ITEMS), generator=generator).float()
    return stars * (torch.rand(rows, _ITEMS, generator=generator) < 200 / _ITEMS)


def images(rows: int, seed: int) -> torch.Tensor:
    """Return random images, each with structure and a contrast of its own so that they differ in more than noise."""
    generator = torch.Generator().manual_seed(seed)
    coarse = (
        torch.randn(rows, 3, 14, 14, generator=generator) * torch.rand(rows, 3, 1, 1, generator=generator) * 2
    )
    wide = nn.functional.interpolate(coarse, size=224, mode="bilinear")
    return wide + 0.3 * torch.randn(rows, 3, 224, 224, generator=generator)


def float_resnet() -> nn.Module:
    """Return ResNet-50 with the batch-norm statistics of its inputs, without which all images look alike to it."""
    model = resnet50()
    norms = [part for part in model.modules() if isinstance(part, nn.BatchNorm2d)]
    for norm in norms:
        norm.reset_running_stats()
        norm.momentum = None
    model.train()
    with torch.no_grad():
        for seed in range(2):
            model(images(8, 1000 + seed))
    return model.eval()


def ao_variant(model: nn.Module, batches: list[torch.Tensor], *, static: bool) -> nn.Module | None:
    """Return what torch.ao's FX flow makes of a model; None where it is not there."""
    try:
        from torch.ao.quantization import (  # noqa: PLC0415
            QConfigMapping,
            default_dynamic_qconfig,
            get_default_qconfig_mapping,
        )
        from torch.ao.quantization.quantize_fx import convert_fx, prepare_fx  # noqa: PLC0415
    except ImportError:
        return None
    torch.backends.quantized.engine = "x86"
    mapping = (
        get_default_qconfig_mapping("x86") if static else QConfigMapping().set_global(default_dynamic_qconfig)
    )
    prepared = prepare_fx(copy.deepcopy(model), mapping, (batches[0],))
    with torch.no_grad():
        for batch in batches if static else ():
            prepared(batch)
    return convert_fx(prepared)


def signal_to_noise(expected: torch.Tensor, found: torch.Tensor) -> float:
    """Return decibels, of outputs without what all inputs have in common."""
    expected, found = expected - expected.mean(0), found - found.mean(0)
    return float(10 * torch.log10(expected.square().sum() / (expected - found).square().sum()))


def measure(variants: dict[str, nn.Module], batch: torch.Tensor, rounds: int) -> dict[str, list[float]]:
    """Return milliseconds of each call, the variants in turn."""
    found: dict[str, list[float]] = {name: [] for name in variants}
    with torch.inference_mode():
        for model in variants.values():
            model(batch)
            model(batch)
        names = list(variants)
        for turn in range(rounds):
            # Who comes after the float model finds the caches empty; each is that one in turn.
            first = turn % len(names)
            for name in (*names[first:], *names[:first]):
                model = variants[name]
                start = time.perf_counter()
                model(batch)
                found[name].append(1e3 * (time.perf_counter() - start))
    return found


def main() -> None:
    """Measure one model and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", choices=_BATCHES)
    parser.add_argument("--batches", type=int, nargs="*")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=21)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    warnings.simplefilter("ignore")
    is_resnet = options.model == "resnet50"
    make = images if is_resnet else ratings
    model = float_resnet() if is_resnet else deep_recommender()
    data = [make(8 if is_resnet else 64, seed) for seed in range(1, 5)]
    variants: dict[str, nn.Module | None] = {
        "float": model,
        "static": fxplug_quant.convert(fxplug_quant.prepare(model, None, data[0]).calibrate(data)),
        "torch.ao static": ao_variant(model, data, static=True),
    }
    if not is_resnet:
        variants["dynamic"] = fxplug_quant.convert(
            fxplug_quant.prepare(model, {"mode": "dynamic-int8"}, data[0])
        )
        variants["torch.ao dynamic"] = ao_variant(model, data, static=False)
    usable = {name: variant for name, variant in variants.items() if variant is not None}
    fresh = make(8, 99)
    with torch.inference_mode():
        expected = model(fresh)
        likeness = nn.functional.cosine_similarity(expected[0], expected[1], dim=0)
        print(
            f"{options.model}, {options.threads} thread(s), PyTorch {torch.__version__}, cosine {likeness:.2f}"
        )
        for name, variant in usable.items():
            if name != "float":
                print(f"  {name:18} {signal_to_noise(expected, variant(fresh)):6.1f} dB")
    for rows in options.batches or _BATCHES[options.model]:
        times = measure(usable, make(rows, 7), options.rounds)
        base = statistics.median(times["float"])
        print(f"batch {rows}")
        for name, found in times.items():
            median = statistics.median(found)
            low, _, high = statistics.quantiles(found, n=4)
            print(
                f"  {name:18} {median:9.2f} ms  quartiles {low:8.2f} to {high:8.2f}  {base / median:5.2f} x float"
            )


if __name__ == "__main__":
    main()
