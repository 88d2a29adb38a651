"""The layers of this plugin as a package that needs torch alone, for programs that fxplug exports."""

from __future__ import annotations

import re
from importlib import metadata, resources

__all__ = ["layers_alone"]

_LAYERS = {
    "edges": (
        "AsIntegers",
        "AsQuantized",
        "Dequantize",
        "Int8Add",
        "Int8Cat",
        "Int8Mul",
        "Quantize",
        "ReluOfSteps",
    ),
    "int4": ("WeightInt4Linear",),
    "linear": ("DynamicInt8Linear", "WeightInt8Linear"),
    "masks": ("AttentionMask",),
    "static_layers": ("Int8Conv", "Int8ConvTranspose", "Int8Linear"),
    "tables": ("Int8Embedding", "Int8EmbeddingBag"),
}
"""Module -> layers in it."""
_HELPERS = ("activations", "affine", "engine", "inference", "packing")
_PACKAGE = "fxplug_quant"

_INIT = '''\
"""Layers that compute with integers of 8 and 4 bits, as {name} {version} has them.

They need torch alone. What torch's operators read is packed at the first call, from the
integer weights and scales that are the state of a layer.
"""

{imports}

__all__ = [
{names}
]
'''

_ERRORS = '''\
"""What layers raise."""


class QuantizationError(RuntimeError):
    """A layer cannot do what was asked of it."""

    def __init__(self, message, *, code=""):
        super().__init__(f"{message} [{code}]" if code else message)


class ConfigError(ValueError):
    """A number of groups is none that a layer can have."""


class UnknownNameError(ValueError):
    """There is nothing of a name."""

    def __init__(self, kind, name, known):
        super().__init__(f"Unknown {kind} {name!r}. Known are {', '.join(known)}.")
'''

_HEAD = """\
# ruff: noqa
# fmt: off
# From {name} {version}, but for the imports.
"""


def layers_alone() -> dict[str, str]:
    """Return the layers as a package that needs torch alone: file name -> text."""
    known = {"name": "fxplug-quant", "version": metadata.version("fxplug-quant")}
    texts = {f"{name}.py": _HEAD.format(**known) + _text(name) for name in (*_LAYERS, *_HELPERS)}
    return {"__init__.py": _init(known), "errors.py": _ERRORS, **texts}


def _text(name: str) -> str:
    source = resources.files(_PACKAGE).joinpath(f"{name}.py").read_text(encoding="utf-8")
    return re.sub(r" +# noqa: .*", "", source.replace(f"from {_PACKAGE}.", "from ."))


def _init(known: dict[str, str]) -> str:
    imports: list[str] = []
    for module, names in _LAYERS.items():
        line = f"from .{module} import {', '.join(names)}"
        long = [f"from .{module} import (", *(f"    {name}," for name in names), ")"]
        imports += [line] if len(line) <= 88 else long
    names = sorted(name for names in _LAYERS.values() for name in names)
    return _INIT.format(
        **known, imports="\n".join(imports), names="\n".join(f'    "{name}",' for name in names)
    )
