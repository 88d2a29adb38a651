"""Running engines on tensors of PyTorch, on its CUDA streams.

What touches a GPU here was written where there is none: it is checked against the documentation and by stand-ins alone.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from fxplug.errors import BackendError
from fxplug_tensorrt._trt import load_engine, make_log, why_engines_do_not_run
from fxplug_tensorrt.conversion import Slot
from fxplug_tensorrt.saving import EngineRecord, read_engine, write_engine

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from fxplug_tensorrt.conversion import Place

__all__ = ["TensorRTModule", "load_module"]


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
        given = [_given(inputs, place) for place in self.record.inputs]
        self._check(given)
        with self._lock:
            made = self._run(given)
        return _filled(self.record.results, made)

    def _check(self, given: Sequence[torch.Tensor]) -> None:
        sizes = self.record.batch_sizes
        for place, tensor in zip(self.record.inputs, given, strict=True):
            if tensor.dtype is not place.dtype:
                raise BackendError(
                    f"Cannot run the engine: {place.name} is {tensor.dtype}, and {place.dtype} is expected."
                )
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

    def extra_repr(self) -> str:
        """Return what is shown of it."""
        return f"{len(self.record.plan)} bytes for {self.record.device or 'the GPUs of this TensorRT'}"


def _given(inputs: Sequence[Any], place: Place) -> torch.Tensor:
    tensor: torch.Tensor = inputs[place.position]
    if place.inner is not None:
        tensor = inputs[place.position][place.inner]
    return tensor.detach().contiguous()


def _filled(results: Any, made: Sequence[torch.Tensor]) -> Any:
    if isinstance(results, Slot):
        return made[results.number]
    if isinstance(results, (tuple, list)):
        parts = [_filled(part, made) for part in results]
        return tuple(parts) if isinstance(results, tuple) else parts
    if isinstance(results, dict):
        return {name: _filled(part, made) for name, part in results.items()}
    return results
