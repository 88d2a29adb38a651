"""Running a compiled model on tensors of PyTorch, without copies."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from fxplug_openvino._engine import core, load_engine
from fxplug_openvino.conversion import Slot

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from fxplug_openvino.conversion import Converted

__all__ = ["OpenVINOModule"]


class OpenVINOModule(nn.Module):
    """Runs a model in OpenVINO. Threads may share it: each call has an inference request of its own.

    Args:
        converted: The model.
        device: OpenVINO's name of the device.
        properties: OpenVINO's properties of a compiled model.

    Raises:
        BackendError: OpenVINO refuses the model.
    """

    def __init__(self, converted: Converted, device: str, properties: Mapping[str, Any]) -> None:
        super().__init__()
        self._ov = load_engine()
        self._device = device
        self.compiled_model = core().compile_model(converted.model, device, dict(properties))
        """OpenVINO's compiled model."""
        self._kept = converted.kept  # The compiled model may read weights where they are.
        self._inputs = converted.inputs
        self._results = converted.results
        self._dtypes = converted.dtypes
        shapes = [output.get_partial_shape() for output in self.compiled_model.outputs]
        self._sizes: list[tuple[int, ...] | None] = [
            tuple(shape.to_shape()) if shape.is_static else None for shape in shapes
        ]
        self._idle: list[Any] = []

    def forward(self, *inputs: Any) -> Any:
        """Run the model."""
        try:
            request = self._idle.pop()
        except IndexError:
            request = self.compiled_model.create_infer_request()
        # What a request holds on to has to live until it is done, so the tensors are kept in names.
        given = [self._given(inputs, place) for place in self._inputs]
        results = self._outputs(request)
        for number, tensor in enumerate(given):
            request.set_input_tensor(number, self._tensor(tensor))
        request.infer()
        made = [
            self._copied(request.get_output_tensor(number), self._dtypes[number])
            if tensor is None
            else tensor
            for number, tensor in enumerate(results)
        ]
        self._idle.append(request)
        return _filled(self._results, made)

    def _given(self, inputs: Sequence[Any], place: tuple[int, int | None]) -> torch.Tensor:
        position, inner = place
        tensor: torch.Tensor = inputs[position] if inner is None else inputs[position][inner]
        return tensor.detach().contiguous()

    def _outputs(self, request: Any) -> list[torch.Tensor | None]:
        made: list[torch.Tensor | None] = []
        for number, (sizes, dtype) in enumerate(zip(self._sizes, self._dtypes, strict=True)):
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


def _filled(results: Any, made: Sequence[torch.Tensor]) -> Any:
    if isinstance(results, Slot):
        return made[results.number]
    if isinstance(results, (tuple, list)):
        parts = [_filled(part, made) for part in results]
        return tuple(parts) if isinstance(results, tuple) else parts
    if isinstance(results, dict):
        return {name: _filled(part, made) for name, part in results.items()}
    return results
