"""What is in an engine, for people: as TensorRT tells of it on a GPU, or as its network was written."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from dataclasses import asdict, dataclass, fields
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from fxplug_tensorrt.conversion import Converted

__all__ = ["NetworkSummary", "engine_facts", "size_text", "summarize_network"]

_STEP = 1024
_UNITS = ("bytes", "KiB", "MiB", "GiB")
_MOST = 12


@dataclass(frozen=True)
class NetworkSummary:
    """A network as it was written, before TensorRT joined its layers and chose how to compute them."""

    layers: Mapping[str, int]
    """Kind, by TensorRT's name -> how many there are; the most frequent first."""
    precisions: Mapping[str, int]
    """Dtype of results, by TensorRT's name -> how many layers have such."""
    weights: int
    """How many tensors are kept in it."""
    weight_bytes: int
    inputs: tuple[str, ...]
    """Name, dtype and sizes of each; a question mark for a size that is left open."""
    structure: str
    """A digest of layers and connections, without weights: two networks with the same take each other's weights."""

    def facts(self) -> list[tuple[str, str]]:
        """Return what is known, as pairs for a table."""
        count = sum(self.layers.values())
        return [
            ("layers", f"{count}: {_listed(self.layers)}"),
            ("precision of layers", _listed(self.precisions)),
            ("weights", f"{self.weights} tensors, {size_text(self.weight_bytes)}"),
            ("inputs", "; ".join(self.inputs)),
        ]

    def data(self) -> dict[str, Any]:
        """Return it as JSON has it; `of` reads it."""
        return asdict(self)

    @classmethod
    def of(cls, data: Mapping[str, Any]) -> NetworkSummary:
        """Return what `data` wrote."""
        known: dict[str, Any] = {entry.name: data[entry.name] for entry in fields(cls)}
        known["inputs"] = tuple(known["inputs"])
        return cls(**known)


def summarize_network(converted: Converted) -> NetworkSummary:
    """Return what is in a network, which need not be built."""
    build = converted.build
    layers = [build.net.get_layer(number) for number in range(build.net.num_layers)]
    results = [layer.get_output(0) for layer in layers if layer.num_outputs]
    inputs = [build.net.get_input(number) for number in range(build.net.num_inputs)]
    kept = build.kept.values()
    return NetworkSummary(
        _counted(_kind(build.trt, layer) for layer in layers),
        _counted(result.dtype.name for result in results),
        len(build.kept),
        sum(value.numel() * value.element_size() for value in kept),
        tuple(f"{value.name} {value.dtype.name} {_sizes_text(tuple(value.shape))}" for value in inputs),
        _structure(build.trt, layers),
    )


def engine_facts(text: str, memory: int, size: int) -> list[tuple[str, str]]:
    """Return what TensorRT's inspector tells of an engine, as pairs for a table.

    Args:
        text: JSON of the inspector; how much it says of a layer depends on TensorRT and on how the engine was built.
        memory: Bytes that a call needs for intermediate values.
        size: Bytes of the engine.
    """
    layers: Sequence[Any] = json.loads(text).get("Layers", [])
    told = [layer for layer in layers if isinstance(layer, dict)]
    kinds = _counted(str(layer.get("LayerType", "unknown")) for layer in told)
    formats = _counted(str(output.get("Format/Datatype", "unknown")) for output in _outputs(told))
    tactics = _counted(str(layer["TacticName"]) for layer in told if layer.get("TacticName"))
    found = [
        (
            "layers",
            f"{len(layers)}: {_listed(kinds)}" if kinds else f"{len(layers)}, of which only names are known",
        )
    ]
    if formats:
        found.append(("precision and layout of results", _listed(formats)))
    if tactics:
        found.append(("tactics", _listed(tactics)))
    return [*found, ("memory of a call", size_text(memory)), ("engine", size_text(size))]


def size_text(count: int) -> str:
    """Return a number of bytes for people."""
    value, unit = float(count), 0
    while value >= _STEP and unit < len(_UNITS) - 1:
        value, unit = value / _STEP, unit + 1
    return f"{count} bytes" if not unit else f"{value:.1f} {_UNITS[unit]}"


def _outputs(layers: Iterable[Mapping[str, Any]]) -> Iterable[Mapping[str, Any]]:
    for layer in layers:
        for output in layer.get("Outputs", ()):
            if isinstance(output, dict):
                yield output


def _kind(trt: Any, layer: Any) -> str:
    # A layer that was given the class of its kind may have a type of its own.
    return str(trt.ILayer.type.__get__(layer).name)


def _counted(names: Iterable[str]) -> dict[str, int]:
    return dict(Counter(names).most_common())


def _listed(counts: Mapping[str, int]) -> str:
    shown = [f"{name} {count}" for name, count in list(counts.items())[:_MOST]]
    more = len(counts) - len(shown)
    return ", ".join(shown) + (f" and {more} more" if more > 0 else "")


def _sizes_text(sizes: tuple[int, ...]) -> str:
    return "x".join("?" if size < 0 else str(size) for size in sizes) or "scalar"


def _structure(trt: Any, layers: Sequence[Any]) -> str:
    digest = hashlib.sha256()
    for layer in layers:
        taken = [layer.get_input(number) for number in range(layer.num_inputs)]
        made = [layer.get_output(number) for number in range(layer.num_outputs)]
        parts = [_kind(trt, layer), *("" if value is None else value.name for value in taken)]
        parts += [f"{value.name} {value.dtype.name} {_sizes_text(tuple(value.shape))}" for value in made]
        digest.update("\n".join([*parts, ""]).encode())
    return digest.hexdigest()
