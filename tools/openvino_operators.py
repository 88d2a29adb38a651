"""Write the page of fxplug-openvino that says which operators it runs; needs the plugin and OpenVINO.

python tools/openvino_operators.py      # some minutes: every cell is built, run and compared with eager
"""

from __future__ import annotations

from operators_page import version_of, write_page

from fxplug.testing import run_operator_suite
from fxplug_openvino import OpenVINOBackend

_OUTSIDE = {
    "not finite": "OpenVINO's relu, clamp, maximum and minimum return a number where an element is not-a-number"
}

_INTRODUCTION = """\
<!-- Made by tools/openvino_operators.py from what the engine computed. Run the tool to make it anew. -->

# Operators

Calls of ATen operators that fxplug-openvino runs, found by running them. Each cell is an operator in one dtype, with
so many dimensions, with fixed sizes or an open batch. It was built, run on two inputs, and compared with eager PyTorch,
in precision f32. What is refused stays in PyTorch.

Made with OpenVINO {openvino} and PyTorch {torch}. To see what your own installation does:

```bash
fxplug backends coverage openvino --open-batch dynamic_batch --without "not finite"
```

"""


def main() -> None:
    """Write the page."""
    coverage = run_operator_suite(
        OpenVINOBackend(), "openvino", open_batch=OpenVINOBackend(dynamic_batch=True), outside=_OUTSIDE
    )
    versions = {name: version_of(name) for name in ("openvino", "torch")}
    write_page("fxplug-openvino", _INTRODUCTION.format(**versions), coverage)


if __name__ == "__main__":
    main()
