"""The backend: what OpenVINO could run of a graph."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn

from fxplug.errors import BackendError
from fxplug.lower import Backend, LoweringContext, Support
from fxplug_openvino._engine import find_engine
from fxplug_openvino.options import OpenVINOOptions, Precision
from fxplug_openvino.support import reason_against

if TYPE_CHECKING:
    from collections.abc import Mapping

    from fxplug.execute import GraphModule
    from fxplug.ir import Node

__all__ = ["OpenVINOBackend"]


class OpenVINOBackend(Backend):
    """Says which calls OpenVINO has operations for, and why it leaves the others. Builds nothing yet.

    Works where OpenVINO is not installed.

    Args:
        device: See `OpenVINOOptions`.
        precision: See `OpenVINOOptions`.

    Raises:
        ConfigError: A value is not allowed.
    """

    def __init__(self, device: str = "CPU", precision: Precision = "default") -> None:
        self.options = OpenVINOOptions(device, precision)

    def supports(self, node: Node, context: LoweringContext) -> Support:
        """Say whether OpenVINO has operations for `node`."""
        reason = reason_against(node, context)
        return Support(ok=not reason, reason=reason)

    def compile(
        self, subgraph: GraphModule, example_inputs: tuple[Any, ...], options: Mapping[str, Any]
    ) -> NoReturn:
        """Refuse: this version builds nothing.

        Raises:
            BackendError: Always. Where OpenVINO is missing, the message says what to install.
        """
        version = find_engine()
        if version is None:
            raise BackendError(
                "Cannot build with OpenVINO: its runtime is not installed. Install it with: "
                'pip install "fxplug-openvino[engine]"'
            )
        raise BackendError(
            f"Cannot build with OpenVINO: OpenVINO {version} is installed, but this version of fxplug-openvino only "
            f"reports which nodes OpenVINO could run. Leave the backend out to run the module in PyTorch.",
            code="FXP-L002",
        )
