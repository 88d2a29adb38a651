"""Quantized models against float and against torch.ao's FX flow, in one run: medians, spread, and what is lost.

All variants run in turn, so that a busy machine slows all of them alike. Run it from the root of the repository:

    python plugins/fxplug-quant/benchmarks/quantization.py                    # everything, with 1 and 2 threads
    python plugins/fxplug-quant/benchmarks/quantization.py recommender token --threads 1 --rounds 51
    python plugins/fxplug-quant/benchmarks/quantization.py --processes 5 --write # keep the table in benchmarks/results/

Where a process has its weights in memory makes some per cent of the time of a model at few rows, for as long as it
runs: with several processes the rounds of all of them count alike.
torch.ao is deprecated; it is here as what to compare with. Without it (a PyTorch that dropped it) it is left out.
No time is asserted; **bound** says what is promised, and **holds** whether it was so in this run.
"""

from __future__ import annotations

import argparse
import copy
import json
import random
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

sys.path.insert(0, str(Path(__file__).parents[3]))

import fxplug_quant
from examples.deep_recommender import deep_recommender
from examples.resnet50 import resnet50
from examples.transformer import EncoderLayer

if TYPE_CHECKING:
    from collections.abc import Callable

_ITEMS = 17_768
_WIDTH = 512
_LAYERS = 6
_RESULTS = Path(__file__).parent / "results"


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


@dataclass
class Case:
    """A model with everything that it is compared with."""

    variants: dict[str, nn.Module]
    """``"float"`` first; the names of torch.ao's begin with ``"torch.ao"``."""
    make: Callable[[int, int], torch.Tensor]
    """Makes inputs of so many rows from a seed."""
    batches: tuple[int, ...]
    bound: float
    """So many times as fast as float every variant of fxplug should be; at torch.ao's side at least as fast."""
    fresh: int
    """Rows of the inputs on which errors are taken."""


@dataclass(frozen=True)
class Row:
    """One line of the table."""

    model: str
    threads: int
    batch: int
    variant: str
    milliseconds: float
    quartiles: tuple[float, float]
    to_float: float
    """Times as fast as float: the median of what the rounds say."""
    to_ao: float | None
    decibels: float | None
    """Signal to noise of outputs without what all have in common."""
    megabytes: float
    """Parameters and buffers."""
    bound: str
    holds: bool | None


def converted(model: nn.Module, data: list[torch.Tensor], **config: Any) -> nn.Module:
    """Return what fxplug-quant makes of a model."""
    prepared = fxplug_quant.prepare(model, config, data[0])
    return fxplug_quant.convert(prepared.calibrate(data) if prepared.observers else prepared)


def of_recommender() -> Case:
    """Return the case study that made torch.fx known."""
    model = deep_recommender()
    data = [ratings(64, seed) for seed in range(1, 5)]
    variants = {
        "float": model,
        "static": converted(model, data),
        "torch.ao static": ao_variant(model, data, static=True),
        "dynamic": converted(model, data, mode="dynamic-int8"),
        "dynamic, one scale": converted(model, data, mode="dynamic-int8", per_channel=False),
        "torch.ao dynamic": ao_variant(model, data, static=False),
    }
    return Case(there(variants), ratings, (1, 16, 64, 128), 3.3, 8)


def of_resnet() -> Case:
    """Return ResNet-50."""
    model = float_resnet()
    data = [images(8, seed) for seed in range(1, 5)]
    variants = {
        "float": model,
        "static": converted(model, data),
        "torch.ao static": ao_variant(model, data, static=True),
    }
    return Case(there(variants), images, (1, 8), 3.5, 8)


def sentences(rows: int, seed: int) -> torch.Tensor:
    """Return embedded texts of 64 tokens."""
    return torch.randn(rows, 64, _WIDTH, generator=torch.Generator().manual_seed(seed))


def tokens(rows: int, seed: int) -> torch.Tensor:
    """Return one embedded token for each text."""
    return sentences(rows, seed)[:, :1].contiguous()


def encoder() -> nn.Module:
    """Return a Transformer encoder."""
    torch.manual_seed(0)
    return nn.Sequential(*(EncoderLayer(_WIDTH, 8) for _ in range(_LAYERS))).eval()


def of_encoder() -> Case:
    """Return a Transformer encoder with dynamic int8."""
    model, data = encoder(), [sentences(1, 1)]
    variants = {
        "float": model,
        "dynamic": converted(model, data, mode="dynamic-int8"),
        "torch.ao dynamic": ao_variant(model, data, static=False),
    }
    return Case(there(variants), sentences, (1, 8), 1.0, 4)


class InBfloat16(nn.Module):
    """Computes in bfloat16 with float32 outside."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the output in float32."""
        return self.model(x.bfloat16()).float()


def of_token() -> Case:
    """Return a Transformer encoder with rounded weights at one token, where reading weights is what takes time."""
    model = encoder()
    half, data = encoder().bfloat16(), [tokens(1, 1).bfloat16()]
    variants = {
        "float": model,
        "bfloat16": InBfloat16(half),
        "weight-int8": InBfloat16(converted(half, data, mode="weight-int8")),
        "weight-int4": InBfloat16(converted(half, data, mode="weight-int4")),
        "weight-int8, float32": converted(model, [tokens(1, 1)], mode="weight-int8"),
    }
    return Case(there(variants), tokens, (1,), 1.0, 8)


CASES = {"recommender": of_recommender, "resnet50": of_resnet, "encoder": of_encoder, "token": of_token}


def there(variants: dict[str, nn.Module | None]) -> dict[str, nn.Module]:
    """Return the variants that could be made."""
    return {name: variant for name, variant in variants.items() if variant is not None}


def megabytes(model: nn.Module) -> float:
    """Return how much memory the state of a model takes; torch.ao keeps packed weights that are no tensors."""
    found = [*model.parameters(), *model.buffers()]
    return sum(tensor.numel() * tensor.element_size() for tensor in found) / 1e6


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
        # Who comes after the float model finds the caches empty, so the order is another one in every round: turned
        # around alone, each variant would always come behind the same one.
        names, shuffled = list(variants), random.Random(0)
        for _ in range(rounds):
            shuffled.shuffle(names)
            for name in names:
                model = variants[name]
                start = time.perf_counter()
                model(batch)
                found[name].append(1e3 * (time.perf_counter() - start))
    return found


def promise(least: float, variant: str, to_float: float, to_ao: float | None) -> tuple[str, bool | None]:
    """Return what is promised of a variant, and whether it is so."""
    if variant in {"float", "bfloat16", "weight-int8, float32"} or variant.startswith("torch.ao"):
        return "", None
    bound = f"{least} x float"
    return bound if to_ao is None else f"{bound}, 1.0 x torch.ao", to_float >= least and (to_ao or 1.0) >= 1.0


@dataclass
class Samples:
    """What was found out about one model; plain values, as another process may have found them."""

    bound: float
    noise: dict[str, float]
    """Variant -> decibels."""
    megabytes: dict[str, float]
    times: list[tuple[int, int, dict[str, list[float]]]]
    """Threads, rows and, of each variant, milliseconds of each round."""

    @staticmethod
    def taken(name: str, threads: list[int], batches: list[int] | None, rounds: int) -> Samples:
        """Measure a model in this process."""
        case = CASES[name]()
        noise = noise_of(case)
        times = []
        for count in threads:
            torch.set_num_threads(count)
            times += [
                (count, batch, measure(case.variants, case.make(batch, 7), rounds))
                for batch in batches or case.batches
            ]
        sizes = {variant: megabytes(model) for variant, model in case.variants.items()}
        return Samples(case.bound, noise, sizes, times)

    @staticmethod
    def taken_apart(name: str, options: argparse.Namespace) -> Samples:
        """Measure a model in several processes, one after the other."""
        chosen = ["--threads", *map(str, options.threads), "--rounds", str(options.rounds)]
        if options.batches:
            chosen += ["--batches", *map(str, options.batches)]
        parts = []
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "samples.json")
            for _ in range(options.processes):
                subprocess.run([sys.executable, __file__, name, *chosen, "--samples", str(path)], check=True)
                parts.append(Samples(**json.loads(path.read_text())))
        whole = parts[0]
        for place, (_, _, times) in enumerate(whole.times):
            for part in parts[1:]:
                for variant, found in part.times[place][2].items():
                    times[variant] += found
        return whole


def rows_of(
    name: str, samples: Samples, threads: int, batch: int, times: dict[str, list[float]]
) -> list[Row]:
    """Return the lines about one batch."""
    rows = []
    for variant, found in times.items():
        low, _, high = statistics.quantiles(found, n=4)
        to_float, to_ao = ratio(times["float"], found), None
        other = f"torch.ao {variant.partition(',')[0]}"
        if other in times:
            to_ao = ratio(times[other], found)
        rows.append(
            Row(
                name,
                threads,
                batch,
                variant,
                statistics.median(found),
                (low, high),
                to_float,
                to_ao,
                samples.noise.get(variant),
                samples.megabytes[variant],
                *promise(samples.bound, variant, to_float, to_ao),
            )
        )
    return rows


def ratio(others: list[float], ours: list[float]) -> float:
    """Return the median of what each round says."""
    return statistics.median(other / own for other, own in zip(others, ours, strict=True))


def noise_of(case: Case) -> dict[str, float]:
    """Return variant -> decibels, on inputs that no calibration saw."""
    fresh = case.make(case.fresh, 99)
    with torch.inference_mode():
        expected = case.variants["float"](fresh)
        flat = expected.flatten(1)
        likeness = nn.functional.cosine_similarity(flat[0], flat[1], dim=0)
        print(f"cosine of the outputs for two inputs: {likeness:.2f}")
        return {
            name: signal_to_noise(expected, variant(fresh))
            for name, variant in case.variants.items()
            if name != "float"
        }


def table(rows: list[Row]) -> str:
    """Return Markdown."""
    lines = [
        "| model | threads | batch | variant | ms, quartiles | x float | x torch.ao | dB | MB | bound | holds |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        low, high = row.quartiles
        cells = [
            row.model,
            str(row.threads),
            str(row.batch),
            row.variant,
            f"{row.milliseconds:.2f}, {low:.2f} to {high:.2f}",
            f"{row.to_float:.2f}",
            "" if row.to_ao is None else f"{row.to_ao:.2f}",
            "" if row.decibels is None else f"{row.decibels:.1f}",
            # Where packed weights are no tensors, as in torch.ao's, nothing is known.
            f"{row.megabytes:.1f}" if row.megabytes >= 1 else "",
            row.bound,
            "" if row.holds is None else "yes" if row.holds else "**no**",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def write(rows: list[Row], processes: int, rounds: int) -> None:
    """Keep a table."""
    _RESULTS.mkdir(exist_ok=True)
    data = {
        "torch": torch.__version__,
        "capability": torch.backends.cpu.get_cpu_capability(),
        "processes": processes,
        "rounds": rounds,
    }
    text = json.dumps({**data, "rows": [asdict(row) for row in rows]}, indent=1)
    (_RESULTS / "quantization.json").write_text(f"{text}\n")
    about = f"PyTorch {data['torch']}, {data['capability']}, {processes} x {rounds} rounds"
    (_RESULTS / "quantization.md").write_text(f"# Quantized models\n\n{about}\n\n{table(rows)}\n")


def main() -> None:
    """Measure, print a table, and keep it where that is wished."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("models", nargs="*", metavar="MODEL", help=f"of {', '.join(CASES)}; all without one")
    parser.add_argument("--batches", type=int, nargs="*")
    parser.add_argument("--threads", type=int, nargs="*", default=[1, 2])
    parser.add_argument("--rounds", type=int, default=21)
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument(
        "--samples", type=Path, help="where the samples of one model are written, and no table is made"
    )
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args()
    if not set(options.models) <= set(CASES):
        parser.error(f"there are the models {', '.join(CASES)}")
    if options.samples is not None and len(options.models) != 1:
        parser.error("--samples takes one model")
    if options.rounds < 2:
        parser.error("quartiles need at least 2 rounds")
    warnings.simplefilter("ignore")
    if options.samples is not None:
        samples = Samples.taken(options.models[0], options.threads, options.batches, options.rounds)
        options.samples.write_text(json.dumps(asdict(samples)))
        return
    rows: list[Row] = []
    for name in options.models or CASES:
        print(f"{name}, PyTorch {torch.__version__}")
        if options.processes > 1:
            samples = Samples.taken_apart(name, options)
        else:
            samples = Samples.taken(name, options.threads, options.batches, options.rounds)
        for threads, batch, times in samples.times:
            rows += rows_of(name, samples, threads, batch, times)
            print(table(rows[-len(times) :]))
    if options.write:
        write(rows, options.processes, options.rounds)


if __name__ == "__main__":
    main()
