"""Runs every benchmark in one mode and reports."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.codegen import compare_codegen, compare_compile_floor
from benchmarks.copying import compare_deepcopy
from benchmarks.hooks import measure_hooks
from benchmarks.importing import measure_imports
from benchmarks.interpretation import measure_interpreters
from benchmarks.memory import compare_memory
from benchmarks.report import Report, describe_surroundings
from benchmarks.rewriting import compare_rewriting, measure_rewriting
from benchmarks.scaling import measure_scaling
from benchmarks.splitting import compare_splitting, measure_splitting
from benchmarks.storing import compare_storing, measure_lazy_loading
from benchmarks.trace import compare_long_functions, compare_resnet50, measure_plugin_host
from benchmarks.transactions import measure_transactions

if TYPE_CHECKING:
    from collections.abc import Sequence

    from benchmarks.modes import Mode

__all__ = ["main", "measure"]

_RESULTS = Path(__file__).resolve().parent / "results"


def measure(mode: Mode) -> Report:
    """Run every benchmark."""
    interpreters, eager = measure_interpreters(mode)
    return Report(
        mode.name,
        describe_surroundings(),
        [
            *compare_resnet50(mode),
            *compare_compile_floor(mode),
            *compare_long_functions(mode),
            *compare_codegen(mode),
            *compare_deepcopy(mode),
            *compare_rewriting(mode),
            *compare_splitting(mode),
            *interpreters,
            *compare_memory(mode),
            *compare_storing(mode),
        ],
        [
            *measure_scaling(mode),
            *measure_rewriting(mode),
            *measure_splitting(mode),
            *measure_plugin_host(mode),
            *measure_hooks(mode),
            *measure_transactions(mode),
            *measure_lazy_loading(mode),
            *eager,
            *measure_imports(mode),
        ],
    )


def main(mode: Mode, arguments: Sequence[str] | None = None) -> None:
    """Measure and print; write the results too when ``--write`` is among the arguments."""
    parser = argparse.ArgumentParser(description="Compare fxplug with torch.fx. No time is asserted.")
    parser.add_argument("--write", action="store_true", help="keep the results in benchmarks/results")
    options = parser.parse_args(arguments)
    # What is compared is the core: plugins that happen to be installed would take part in its traces.
    os.environ["FXPLUG_LOAD_PLUGINS"] = ""
    report = measure(mode)
    sys.stdout.write(report.as_markdown())
    if options.write:
        for path in report.write(_RESULTS):
            sys.stdout.write(f"\nwrote {path.name}")
        sys.stdout.write("\n")
