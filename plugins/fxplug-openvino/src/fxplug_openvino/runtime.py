"""Running a compiled model on tensors of PyTorch, without copies."""

from __future__ import annotations

import io
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from fxplug.errors import BackendError
from fxplug.lower import fill_results
from fxplug_openvino._engine import core, environment, load_engine
from fxplug_openvino.layout import Layout
from fxplug_openvino.ranges import LIMIT, is_within

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from fxplug_openvino.conversion import Converted

__all__ = ["OpenVINOModule", "PendingResult"]


class PendingResult:
    """A call that is under way.

    Args:
        request: OpenVINO's.
        collect: Returns the result when it is there.
        memory: What the request reads and writes meanwhile.
    """

    def __init__(self, request: Any, collect: Callable[[], Any], memory: Any) -> None:
        self._request = request
        self._collect = collect
        self._memory = memory
        self._lock = threading.Lock()
        self._is_collected = False
        self._result: Any = None

    def done(self) -> bool:
        """Return whether `result` would not wait."""
        with self._lock:
            return self._is_collected or bool(self._request.wait_for(0))

    def result(self) -> Any:
        """Wait for the result.

        Raises:
            BackendError: OpenVINO fails.
        """
        with self._lock:
            if not self._is_collected:
                try:
                    self._request.wait()
                except RuntimeError as error:
                    raise _failed(error) from error
                self._result = self._collect()
                self._is_collected = True
                self._memory = None
            return self._result

    def __del__(self) -> None:
        # The memory must not go while the engine writes to it.
        if not getattr(self, "_is_collected", True):
            with suppress(RuntimeError):
                self._request.wait()


class OpenVINOModule(nn.Module):
    """Runs a model in OpenVINO. Threads may share it: each call has an inference request of its own.

    Made by `compiled` and `restored`.

    Args:
        compiled_model: OpenVINO's compiled model.
        layout: How what it takes and gives is arranged.
        device: OpenVINO's name of the device.
        properties: OpenVINO's properties of a compiled model.
        kept: Memory that the model may read while it runs.
    """

    def __init__(
        self,
        compiled_model: Any,
        layout: Layout,
        device: str,
        properties: Mapping[str, Any],
        kept: tuple[Any, ...] = (),
    ) -> None:
        super().__init__()
        self._ov = load_engine()
        self._device = device
        self._properties = dict(properties)
        self.compiled_model = compiled_model
        """OpenVINO's compiled model."""
        self._kept = kept
        self.layout = layout
        """How what it takes and gives is arranged."""
        shapes = [output.get_partial_shape() for output in compiled_model.outputs]
        self._sizes: list[tuple[int, ...] | None] = [
            tuple(shape.to_shape()) if shape.is_static else None for shape in shapes
        ]
        self._idle: list[Any] = []
        self._imported: bytes | None = None

    @classmethod
    def compiled(cls, converted: Converted, device: str, properties: Mapping[str, Any]) -> OpenVINOModule:
        """Return the module for a model that is compiled now.

        Args:
            converted: The model.
            device: OpenVINO's name of the device.
            properties: OpenVINO's properties of a compiled model.

        Raises:
            BackendError: OpenVINO refuses the model.
        """
        try:
            model = core().compile_model(converted.model, device, dict(properties))
        except RuntimeError as error:
            raise _refused("build", "the model", device, error) from error
        layout = Layout(converted.inputs, converted.results, converted.dtypes, converted.limit)
        return cls(model, layout, device, properties, converted.kept)  # It may read weights where they are.

    @classmethod
    def restored(cls, artefact: bytes, device: str, properties: Mapping[str, Any]) -> OpenVINOModule:
        """Return the module for what `artefact` returned.

        Args:
            artefact: What was kept.
            device: OpenVINO's name of the device.
            properties: OpenVINO's properties of a compiled model.

        Raises:
            BackendError: It is damaged, or OpenVINO refuses it.
        """
        head, mark, blob = artefact.partition(b"\n")
        layout = Layout.read(head) if mark else None
        if layout is None:
            raise BackendError("Cannot restore a model of OpenVINO: its head is damaged. Compile it again.")
        return cls.imported(blob, layout, device, properties)

    @classmethod
    def imported(
        cls, blob: bytes, layout: Layout, device: str, properties: Mapping[str, Any]
    ) -> OpenVINOModule:
        """Return the module for a model that OpenVINO exported.

        Raises:
            BackendError: It is damaged, or OpenVINO refuses it.
        """
        try:
            model = core().import_model(blob, device, dict(properties))
        except RuntimeError as error:
            raise _refused("restore", "what was kept", device, error) from error
        if len(model.inputs) != len(layout.inputs) or len(model.outputs) != len(layout.dtypes):
            raise BackendError(
                "Cannot restore a model of OpenVINO: its head is that of another. Compile it again."
            )
        made = cls(model, layout, device, properties)
        # What OpenVINO exports of an imported model, it refuses to import again.
        made._imported = blob
        return made

    def artefact(self) -> bytes | None:
        """Return the compiled model as bytes for `restored`; None where its results cannot be written down."""
        head = self.layout.written()
        return None if head is None else head + b"\n" + self._exported()

    def _exported(self) -> bytes:
        if self._imported is not None:
            return self._imported
        stream = io.BytesIO()
        self.compiled_model.export_model(stream)
        return stream.getvalue()

    def __deepcopy__(self, memo: dict[int, Any]) -> OpenVINOModule:
        return self  # A model is never changed, and threads may share it.

    def __reduce__(self) -> tuple[Any, ...]:
        made_in = environment(self._device, [])
        return _unpickled, (self._exported(), self.layout, self._device, self._properties, made_in)

    def problem_with(self, inputs: Sequence[Any]) -> str:
        """Return why inputs cannot be computed with, for people; empty when they can."""
        limit = self.layout.limit
        for position, inner in self.layout.inputs:
            tensor: torch.Tensor = inputs[position] if inner is None else inputs[position][inner]
            is_checked = tensor.dtype is torch.int64 or (tensor.dtype is torch.int32 and limit < LIMIT)
            if is_checked and not is_within(tensor, limit):
                return (
                    f"input {position} holds whole numbers beyond {limit}, and with such numbers OpenVINO, which "
                    "computes with 32 bits, gives wrong results"
                )
        return ""

    def forward(self, *inputs: Any) -> Any:
        """Run the model.

        Raises:
            BackendError: OpenVINO fails.
        """
        request, results, given = self._prepared(inputs)
        try:
            request.infer()
        except RuntimeError as error:
            raise _failed(error) from error
        del given  # What a request holds on to has to live until it is done.
        return self._collected(request, results)

    def submit(self, *inputs: Any) -> PendingResult:
        """Begin to run the model; several calls may be under way at once.

        The inputs must not be changed until the result is there.
        """
        request, results, given = self._prepared(inputs)
        request.start_async()
        return PendingResult(request, lambda: self._collected(request, results), given)

    def _prepared(self, inputs: Sequence[Any]) -> tuple[Any, list[torch.Tensor | None], list[torch.Tensor]]:
        """Return a request that has its inputs and places for its results, and the tensors whose memory it uses."""
        try:
            request = self._idle.pop()
        except IndexError:
            request = self.compiled_model.create_infer_request()
        given = [self._given(inputs, place) for place in self.layout.inputs]
        results = self._outputs(request)
        for number, tensor in enumerate(given):
            request.set_input_tensor(number, self._tensor(tensor))
        return request, results, given

    def _collected(self, request: Any, results: Sequence[torch.Tensor | None]) -> Any:
        made = [
            self._copied(request.get_output_tensor(number), self.layout.dtypes[number])
            if tensor is None
            else tensor
            for number, tensor in enumerate(results)
        ]
        self._idle.append(request)
        return fill_results(self.layout.results, made)

    def _given(self, inputs: Sequence[Any], place: tuple[int, int | None]) -> torch.Tensor:
        position, inner = place
        tensor: torch.Tensor = inputs[position] if inner is None else inputs[position][inner]
        return tensor.detach().contiguous()

    def _outputs(self, request: Any) -> list[torch.Tensor | None]:
        made: list[torch.Tensor | None] = []
        for number, (sizes, dtype) in enumerate(zip(self._sizes, self.layout.dtypes, strict=True)):
            if sizes is None:
                made.append(None)
                continue
            tensor = torch.empty(sizes, dtype=dtype)
            request.set_output_tensor(number, self._tensor(tensor))
            made.append(tensor)
        return made

    def _tensor(self, tensor: torch.Tensor) -> Any:
        """Return a view of a tensor's memory."""
        if tensor.dtype is torch.bfloat16:
            return self._ov.Tensor(tensor.view(torch.int16).numpy(), list(tensor.shape), self._ov.Type.bf16)
        return self._ov.Tensor(tensor.numpy(), shared_memory=True)

    def _copied(self, result: Any, dtype: torch.dtype) -> torch.Tensor:
        if dtype is torch.bfloat16:
            return torch.from_numpy(result.data.view("int16").copy()).view(dtype).reshape(tuple(result.shape))
        return torch.from_numpy(result.data.copy())

    def extra_repr(self) -> str:
        """Return what is shown of it."""
        return f"device={self._device!r}"


def _unpickled(
    blob: bytes, layout: Layout, device: str, properties: Mapping[str, Any], made_in: Mapping[str, str]
) -> OpenVINOModule:
    """Return the module for what a pickle holds.

    Raises:
        BackendError: OpenVINO is missing, or the model was compiled with another one or for another processor.
    """
    here = environment(device, [])
    if here != made_in:
        there, found = (
            ", ".join(f"{name} {value}" for name, value in known.items()) for known in (made_in, here)
        )
        raise BackendError(
            f"Cannot unpickle a model of OpenVINO: it was compiled with {there}; here it is {found}. Lower the module "
            "again here, or write it with fxplug.save, of which fxplug.load(path, engines='rebuild') compiles it anew."
        )
    return OpenVINOModule.imported(blob, layout, device, properties)


def _failed(error: RuntimeError) -> BackendError:
    return BackendError(f"Cannot run in OpenVINO: {str(error).strip().splitlines()[-1]}")


def _refused(step: str, what: str, device: str, error: RuntimeError) -> BackendError:
    reason = str(error).strip().splitlines()[-1]
    return BackendError(f"Cannot {step} with OpenVINO: it refuses {what} on {device!r}: {reason}")
