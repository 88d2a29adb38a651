"""Running engines on tensors of PyTorch, on its CUDA streams.

What touches a GPU here was written where there is none: it is checked against the documentation and by stand-ins alone.
"""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from fxplug.errors import BackendError
from fxplug.lower import fill_results
from fxplug_tensorrt._trt import load_engine, make_log, why_engines_do_not_run
from fxplug_tensorrt.saving import EngineRecord, read_engine, write_engine
from fxplug_tensorrt.summary import engine_facts, size_text

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence
    from pathlib import Path

__all__ = ["TensorRTModule", "load_module"]

_MOST_PROBLEMS = 5


def load_module(path: str | Path) -> TensorRTModule:
    """Return the module of an engine that `TensorRTModule.save` wrote.

    Raises:
        BackendError: The file is none of those, is damaged, or was built for another TensorRT or GPU.
    """
    record = read_engine(path)
    if problem := record.problem():
        raise BackendError(f"Cannot load the engine {str(path)!r}: {problem}. Build the engine anew here.")
    return TensorRTModule(record)


class TensorRTModule(nn.Module):
    """Runs an engine. It is made ready for the GPU with the first call, so that it can be built and saved without one.

    Threads may share it. Calls on one CUDA stream share memory for intermediate values, as they follow one another.

    Args:
        record: The engine.
    """

    def __init__(self, record: EngineRecord) -> None:
        super().__init__()
        self.record = record
        """The engine, and how what it takes and gives is arranged."""
        self._engine: Any = None
        self._contexts: dict[int, Any] = {}
        self._lock = threading.Lock()

    def __getstate__(self) -> dict[str, Any]:
        """Leave out what belongs to this process."""
        return {**self.__dict__, "_engine": None, "_contexts": {}, "_lock": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Take over what `__getstate__` kept."""
        super().__setstate__(state)
        self._lock = threading.Lock()

    def save(self, path: str | Path) -> None:
        """Write the engine to a file, which `load_module` reads."""
        write_engine(self.record, path)

    def forward(self, *inputs: Any) -> Any:
        """Run the engine on the current CUDA stream.

        Raises:
            BackendError: No GPU runs engines here, an input is not where the engine reads it, or has other sizes.
        """
        given = [place.tensor(inputs) for place in self.record.inputs]
        self._check(given)
        with self._lock:
            made = self._run(given)
        return fill_results(self.record.results, made)

    def _check(self, given: Sequence[torch.Tensor]) -> None:
        sizes = self.record.batch_sizes
        for place, tensor in zip(self.record.inputs, given, strict=True):
            if tensor.dtype is not place.dtype:
                raise BackendError(
                    f"Cannot run the engine: {place.name} is {tensor.dtype}, and {place.dtype} is expected."
                )
            if place.name in self.record.fixed_inputs:
                continue
            if sizes and tensor.dim() and not sizes[0] <= tensor.shape[0] <= sizes[2]:
                raise BackendError(
                    f"Cannot run the engine: the first size of {place.name} is {tensor.shape[0]}, and it was built for "
                    f"{sizes[0]} to {sizes[2]}. Build it with other batch_sizes.",
                    code="FXP-L003",
                )

    def _run(self, given: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        engine = self._ready()
        for place, tensor in zip(self.record.inputs, given, strict=True):
            if tensor.device.type != "cuda":
                raise BackendError(
                    f"Cannot run the engine: {place.name} is on {tensor.device}, and engines read GPU memory. Move "
                    "model and inputs to the GPU."
                )
        stream = torch.cuda.current_stream(given[0].device if given else None)
        context = self._context(engine, stream.cuda_stream)
        for place, tensor in zip(self.record.inputs, given, strict=True):
            context.set_input_shape(place.name, tuple(tensor.shape))
            context.set_tensor_address(place.name, tensor.data_ptr())
        made: list[torch.Tensor] = []
        for name, dtype in self.record.outputs:
            tensor = torch.empty(tuple(context.get_tensor_shape(name)), dtype=dtype, device=stream.device)
            context.set_tensor_address(name, tensor.data_ptr())
            made.append(tensor)
        if not context.execute_async_v3(stream.cuda_stream):
            raise BackendError(
                "Cannot run the engine: TensorRT fails to start it; its sizes or memory do not fit."
            )
        return made

    def _ready(self) -> Any:
        """Return TensorRT's engine."""
        if self._engine is None:
            trt = load_engine()
            if reason := why_engines_do_not_run():
                raise BackendError(
                    f"Cannot run the engine: TensorRT finds no GPU that it runs on ({reason}). It was built for "
                    f"{self.record.device or 'another machine'}; save it, and load it there."
                )
            log = make_log()
            self._log = log
            self._runtime = trt.Runtime(log)
            self._engine = self._runtime.deserialize_cuda_engine(self.record.plan)
            if self._engine is None:
                reason = " ".join(log.complaints[-1].split()) if log.complaints else "no reason given"
                raise BackendError(
                    f"Cannot run the engine: TensorRT does not take it ({reason}). It was built by "
                    f"{self.record.made_by} for {self.record.device}; build it anew here."
                )
        return self._engine

    def _context(self, engine: Any, stream: int) -> Any:
        """Return what runs calls on one stream, where they wait for one another."""
        if stream not in self._contexts:
            if self.record.cuda_graphs and hasattr(engine, "create_runtime_config"):
                trt = load_engine()
                config = engine.create_runtime_config()
                config.cuda_graph_strategy = trt.CudaGraphStrategy.WHOLE_GRAPH_CAPTURE
                self._contexts[stream] = engine.create_execution_context(config)
            else:
                self._contexts[stream] = engine.create_execution_context()
        return self._contexts[stream]

    def layers(self) -> str:
        """Return what TensorRT tells of the layers of the engine, as JSON."""
        trt = load_engine()
        inspector = self._ready().create_engine_inspector()
        return str(inspector.get_engine_information(trt.LayerInformationFormat.JSON))

    def facts(self) -> list[tuple[str, str, str]]:
        """Return what is in the engine: of what it is told, what, and what was found.

        Where the engine runs, TensorRT's inspector tells its layers, tactics and memory. Elsewhere nobody can look into
        it, and its network is told of: what was written, before TensorRT joined and chose anything.
        """
        record = self.record
        built = ("engine", "built by", f"{record.made_by} for {record.device or 'the GPU at hand'}")
        size = ("engine", "size", size_text(len(record.plan)))
        if not (reason := record.problem() or why_engines_do_not_run()):
            engine = self._ready()
            memory = int(getattr(engine, "device_memory_size_v2", 0) or engine.device_memory_size)
            found = engine_facts(self.layers(), memory, len(record.plan))
            return [built, *(("engine", what, told) for what, told in found)]
        left = ("engine", "layers, tactics, memory", f"not known, as the engine does not run here: {reason}")
        summary = [] if record.summary is None else record.summary.facts()
        return [built, size, left, *(("network as written", what, told) for what, told in summary)]

    # -- new weights

    def refit(self, weights: Mapping[str, torch.Tensor], changed: Collection[str] | None = None) -> None:
        """Give the engine new weights; it runs with them from the next call on, and is saved with them.

        Either all weights are new or, after an error, none.

        Args:
            weights: Name in the engine -> values, all of `EngineRecord.weights`, with their dtypes, as
                `fxplug_tensorrt.engine_weights` returns them.
            changed: Names of those that are others than before; None where that is not known. A weight that is not
                among them need not be one that TensorRT takes.

        Raises:
            BackendError: The engine was not built for it, a weight does not fit or is none that TensorRT takes, or no
                GPU runs engines here.
        """
        self.check_weights(weights)
        with self._lock:
            engine, trt = self._ready(), load_engine()
            refitter = trt.Refitter(engine, self._log)
            taken = set(refitter.get_all_weights())
            if lost := sorted(set(weights if changed is None else changed) - taken):
                raise BackendError(
                    f"Cannot refit the engine: TensorRT does not take {', '.join(map(repr, lost))} anew. Lower the "
                    "module again with the new weights."
                )
            torch.cuda.synchronize()  # Calls that are under way have the old weights.
            held = {name: tensor.detach().to("cpu").contiguous() for name, tensor in weights.items()}
            for name, tensor in held.items():
                kind = refitter.get_weights_prototype(name).dtype if name in taken else None
                if kind is not None and not refitter.set_named_weights(
                    name, trt.Weights(kind, tensor.data_ptr(), tensor.numel())
                ):
                    raise self._failed_refit(f"it refuses {name!r}")
            if not refitter.refit_cuda_engine():
                raise self._failed_refit("it does not take them together")
            self.record = replace(self.record, plan=bytes(engine.serialize()))

    def _failed_refit(self, what: str) -> BackendError:
        """Return the error of weights that TensorRT refuses; the next call makes the engine anew from its bytes."""
        reason = " ".join(self._log.complaints[-1].split()) if self._log.complaints else "no reason given"
        self.take_over(self.record)
        return BackendError(f"Cannot refit the engine: TensorRT takes no new weights, as {what} ({reason}).")

    def take_over(self, record: EngineRecord) -> None:
        """Run another engine from the next call on: one that takes and gives the same."""
        self.record = record
        self._engine = None
        self._contexts.clear()

    def check_weights(self, weights: Mapping[str, torch.Tensor]) -> None:
        """Check that weights are those that the engine keeps; no GPU is needed for it.

        Args:
            weights: See `refit`.

        Raises:
            BackendError: The engine was not built for it, or a weight is missing, unknown or of another dtype or size.
        """
        known = {entry.name: entry for entry in self.record.weights}
        if not known:
            raise BackendError(
                "Cannot refit the engine: it was not built for new weights. Build it with refit=True, on a machine "
                "with a GPU."
            )
        problems = [f"{name!r} is missing" for name in known if name not in weights]
        problems += [f"{name!r} is none of its weights" for name in weights if name not in known]
        for name, tensor in weights.items():
            entry = known.get(name)
            if entry is not None and (tensor.dtype, tensor.numel()) != (entry.dtype, entry.count):
                problems.append(
                    f"{name!r} is {tensor.dtype} with {tensor.numel()} elements, and the engine keeps {entry.dtype} "
                    f"with {entry.count}"
                )
        if problems:
            raise BackendError(f"Cannot refit the engine: {'; '.join(problems[:_MOST_PROBLEMS])}.")

    def extra_repr(self) -> str:
        """Return what is shown of it."""
        return f"{len(self.record.plan)} bytes for {self.record.device or 'the GPUs of this TensorRT'}"
