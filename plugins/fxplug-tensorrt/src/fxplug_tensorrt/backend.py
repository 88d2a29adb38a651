"""The backend: what TensorRT could run of a graph."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn

from fxplug.errors import BackendError
from fxplug.lower import Backend, LoweringContext, Support
from fxplug_tensorrt._trt import find_engine
from fxplug_tensorrt.options import Precision, TensorRTOptions
from fxplug_tensorrt.support import reason_against

if TYPE_CHECKING:
    from collections.abc import Mapping

    from fxplug.execute import GraphModule
    from fxplug.ir import Node

__all__ = ["TensorRTBackend"]


class TensorRTBackend(Backend):
    """Says which calls TensorRT has layers for, and why it leaves the others. Builds nothing yet.

    Works where TensorRT is not installed, and where there is no GPU.

    Args:
        precision: See `TensorRTOptions`.
        min_block_size: See `TensorRTOptions`.

    Raises:
        ConfigError: A value is not allowed.
    """

    def __init__(self, precision: Precision = "fp32", min_block_size: int = 1) -> None:
        self.options = TensorRTOptions(precision, min_block_size)

    def supports(self, node: Node, context: LoweringContext) -> Support:
        """Say whether TensorRT has layers for `node`."""
        reason = reason_against(node, context)
        return Support(ok=not reason, reason=reason)

    def compile(
        self, subgraph: GraphModule, example_inputs: tuple[Any, ...], options: Mapping[str, Any]
    ) -> NoReturn:
        """Refuse: this version builds nothing.

        Raises:
            BackendError: Always. Where TensorRT is missing, the message says what to install.
        """
        engine = find_engine()
        if engine is None:
            raise BackendError(
                "Cannot build with TensorRT: neither TensorRT for RTX nor TensorRT is installed. Install the former "
                'with: pip install "fxplug-tensorrt[rtx]"'
            )
        raise BackendError(
            f"Cannot build with TensorRT: {engine.title} is installed, but this version of fxplug-tensorrt only "
            f"reports which nodes TensorRT could run. Leave the backend out to run the module in PyTorch.",
            code="FXP-L002",
        )
