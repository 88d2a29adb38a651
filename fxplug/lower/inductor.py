"""The backend that compiles partitions with PyTorch's own compiler."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from fxplug.analyze.isolation import copy_values
from fxplug.errors import BackendError, ConfigError
from fxplug.ir import effects
from fxplug.lower.backend import Backend, LoweringContext, Support
from fxplug.passes.kept_state import saved_before_trial
from fxplug.passes.sharing import writes_state

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import nn

    from fxplug.execute import GraphModule
    from fxplug.ir import Node

__all__ = ["InductorBackend", "InductorOptions"]

_MODES = ("default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs")


@dataclass(frozen=True)
class InductorOptions:
    """Options of the backend ``inductor``.

    Raises:
        ConfigError: A value is not allowed.
    """

    mode: str = "default"
    """As ``torch.compile`` has it."""
    dynamic: bool | None = None
    """Whether sizes stay open; None lets ``torch.compile`` find out."""

    def __post_init__(self) -> None:
        if self.mode not in _MODES:
            known = ", ".join(map(repr, _MODES))
            raise ConfigError(
                f"Cannot use mode={self.mode!r} for inductor: it is no mode. Use one of {known}."
            )


class InductorBackend(Backend):
    """Runs each partition through ``torch.compile``.

    Args:
        mode: See `InductorOptions`.
        dynamic: See `InductorOptions`.
    """

    def __init__(self, mode: str = "default", dynamic: bool | None = None) -> None:  # noqa: FBT001 - an option
        self.options = InductorOptions(mode, dynamic)

    def supports(self, node: Node, context: LoweringContext) -> Support:
        """Say yes to what has no effects that nobody knows, and writes no parameters and buffers."""
        effect = effects.effect_of(node, context.module)
        if effect.unknown or effect.outside:
            return Support(ok=False, reason="it may do something that a compiled program would leave out")
        if effect.writes and writes_state(node, effect, context.module):
            return Support(ok=False, reason="it writes state, which stays where a checkpoint finds it")
        return Support(ok=True)

    def compile(
        self, subgraph: GraphModule, example_inputs: tuple[Any, ...], options: Mapping[str, Any]
    ) -> nn.Module:
        """Return the compiled subgraph; it is compiled now, not at the first call.

        Raises:
            BackendError: It cannot be compiled.
        """
        compiled: Any = torch.compile(
            subgraph, mode=self.options.mode, dynamic=self.options.dynamic, backend="inductor"
        )
        saved = saved_before_trial(subgraph, subgraph)
        try:
            with torch.no_grad():
                compiled(*copy_values(example_inputs))
        except Exception as error:
            text = str(error).splitlines()[0] if str(error) else ""
            raise BackendError(f"Cannot compile with inductor: {type(error).__name__}: {text}") from error
        finally:
            saved.restore()
        return compiled

    def profile(self, example_inputs: tuple[Any, ...]) -> None:
        """Accept all inputs: it compiles anew for others."""
