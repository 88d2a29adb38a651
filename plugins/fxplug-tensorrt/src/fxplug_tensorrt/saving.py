"""Engines as files: what an engine is, beside its bytes, and the checks before it is used."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from fxplug.errors import BackendError
from fxplug.lower import Place, read_results, results_data
from fxplug_tensorrt._trt import find_engine
from fxplug_tensorrt.summary import NetworkSummary, summarize_network

if TYPE_CHECKING:
    from fxplug_tensorrt.conversion import Converted
    from fxplug_tensorrt.options import TensorRTOptions

__all__ = ["EngineRecord", "EngineWeight", "read_engine", "write_engine"]

_MAGIC = b"fxplug-tensorrt engine 1\n"
_DIGEST = 32
_HEAD = 8


@dataclass(frozen=True)
class EngineWeight:
    """A tensor that an engine keeps, and that it can be given anew."""

    name: str
    """In the engine."""
    dtype: torch.dtype
    """As the engine keeps it."""
    count: int
    """Of elements."""


@dataclass(frozen=True)
class EngineRecord:
    """An engine, and how what it takes and gives is arranged."""

    plan: bytes
    """What TensorRT deserialises."""
    made_by: str
    """Edition and version of TensorRT."""
    device: str
    """The GPU that it was built for, or the names of several."""
    inputs: tuple[Place, ...]
    results: Any
    """What the program returns, with a `Slot` in the place of each tensor."""
    outputs: tuple[tuple[str, torch.dtype], ...]
    batch_sizes: tuple[int, ...] = ()
    """Smallest, usual and largest size of the first dimension; empty where it is fixed."""
    cuda_graphs: bool = False
    fixed_inputs: tuple[str, ...] = ()
    """Names of inputs none of whose sizes is open, whatever `batch_sizes` says."""
    weights: tuple[EngineWeight, ...] = ()
    """What can be given anew; empty where it was not built for that."""
    summary: NetworkSummary | None = None
    """The network that it was built of; None where the file that it comes from does not say."""

    @classmethod
    def of(cls, converted: Converted, options: TensorRTOptions, plan: bytes) -> EngineRecord:
        """Return the record of an engine that was built here."""
        engine = find_engine()
        given = [converted.build.net.get_input(number) for number in range(converted.build.net.num_inputs)]
        kept = converted.build.kept.items() if options.refit else ()
        return cls(
            plan,
            engine.title if engine is not None else "",
            ", ".join(options.targets) or device_name(),
            converted.inputs,
            converted.results,
            converted.outputs,
            options.batch_sizes,
            options.cuda_graphs,
            tuple(value.name for value in given if -1 not in tuple(value.shape)),
            tuple(EngineWeight(name, value.dtype, value.numel()) for name, value in kept),
            summarize_network(converted),
        )

    def problem(self) -> str:
        """Return why the engine is not used here, for people; empty when it is."""
        engine = find_engine()
        title = engine.title if engine is not None else "no TensorRT"
        if title != self.made_by:
            return f"it was built by {self.made_by}, and {title} is installed"
        here = device_name()
        if here and here not in self.device.split(", "):
            return f"it was built for {self.device}, and this machine has {here}"
        return ""


def device_name() -> str:
    """Return TensorRT's name of the GPU at hand, e.g. ``"SM86"``; empty where PyTorch sees none."""
    if not torch.cuda.is_available():
        return ""
    major, minor = torch.cuda.get_device_capability()
    return f"SM{major}{minor}"


def write_engine(record: EngineRecord, path: str | Path) -> None:
    """Write an engine to a file."""
    head = {
        "made_by": record.made_by,
        "device": record.device,
        "inputs": [[place.name, place.position, place.inner, _name(place.dtype)] for place in record.inputs],
        "results": _packed(record.results),
        "outputs": [[name, _name(dtype)] for name, dtype in record.outputs],
        "batch_sizes": list(record.batch_sizes),
        "cuda_graphs": record.cuda_graphs,
        "fixed_inputs": list(record.fixed_inputs),
        "weights": [[entry.name, _name(entry.dtype), entry.count] for entry in record.weights],
        "summary": None if record.summary is None else record.summary.data(),
    }
    text = json.dumps(head).encode()
    body = len(text).to_bytes(_HEAD, "little") + text + record.plan
    Path(path).write_bytes(_MAGIC + hashlib.sha256(body).digest() + body)


def read_engine(path: str | Path) -> EngineRecord:
    """Return the engine of a file. Nothing of it is executed.

    Raises:
        BackendError: It is no such file, or it is damaged.
    """
    data = Path(path).read_bytes()
    if not data.startswith(_MAGIC):
        raise BackendError(
            f"Cannot load the engine {str(path)!r}: it is no file that fxplug-tensorrt wrote, or of another version "
            "of it. Build the engine anew."
        )
    digest, body = data[len(_MAGIC) :][:_DIGEST], data[len(_MAGIC) + _DIGEST :]
    if hashlib.sha256(body).digest() != digest:
        raise BackendError(
            f"Cannot load the engine {str(path)!r}: the file is damaged, its checksum is another. Copy it again, or "
            "build the engine anew."
        )
    length = int.from_bytes(body[:_HEAD], "little")
    head = json.loads(body[_HEAD : _HEAD + length])
    summary = head.get("summary")
    return EngineRecord(
        body[_HEAD + length :],
        head["made_by"],
        head["device"],
        tuple(Place(name, position, inner, _dtype(dtype)) for name, position, inner, dtype in head["inputs"]),
        read_results(head["results"], len(head["outputs"])),
        tuple((name, _dtype(dtype)) for name, dtype in head["outputs"]),
        tuple(head["batch_sizes"]),
        head["cuda_graphs"],
        # Files of earlier versions have no more.
        tuple(head.get("fixed_inputs", ())),
        tuple(EngineWeight(name, _dtype(dtype), count) for name, dtype, count in head.get("weights", ())),
        None if summary is None else NetworkSummary.of(summary),
    )


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _dtype(name: str) -> torch.dtype:
    return getattr(torch, name)


def _packed(results: Any) -> Any:
    try:
        return results_data(results)
    except TypeError as error:
        raise BackendError(
            f"Cannot save the engine: the program returns what is not written to files ({error}). Return tensors, "
            "numbers and text."
        ) from error
