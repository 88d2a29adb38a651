"""Write the page of fxplug-tensorrt that says which operators it writes; needs the plugin, TensorRT for RTX and numpy.

python tools/tensorrt_operators.py      # some minutes: every cell is built, computed and compared with eager; no GPU
"""

from __future__ import annotations

from operators_page import version_of, write_page

from fxplug.testing import run_operator_suite
from fxplug_tensorrt.testing import NetworkEngine

_INTRODUCTION = """\
<!-- Made by tools/tensorrt_operators.py from what networks of TensorRT compute. Run the tool to make it anew. -->

# Operators

Calls of ATen operators that fxplug-tensorrt writes as layers of TensorRT. Each cell is an operator in one dtype, with
so many dimensions, with fixed sizes or an open batch. TensorRT built its network and its engine, without a GPU. What
the network computes on two inputs was compared with eager PyTorch, **by the reference evaluator in PyTorch, not by
TensorRT on a GPU**. Integers of eight bits are for [quantized values](../README.md#quantized-values) alone. What is
refused stays in PyTorch.

Made with TensorRT for RTX {tensorrt_rtx} and PyTorch {torch}.

"""


def main() -> None:
    """Write the page."""
    coverage = run_operator_suite(NetworkEngine(), "tensorrt", open_batch=NetworkEngine(open_batch=True))
    versions = {name: version_of(name) for name in ("tensorrt_rtx", "torch")}
    write_page("fxplug-tensorrt", _INTRODUCTION.format(**versions), coverage)


if __name__ == "__main__":
    main()
