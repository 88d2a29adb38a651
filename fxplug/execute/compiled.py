"""What stands in a module for a program that was compiled for an engine."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import nn

if TYPE_CHECKING:
    from fxplug.execute.graph_module import GraphModule

__all__ = ["CompiledPart"]


class CompiledPart(nn.Module):
    """A part of a program that an engine runs. The engine keeps the weights that the part had when it was compiled.

    Args:
        backend: The name of the backend that compiled it.
        eager: The same in PyTorch.
    """

    def __init__(self, backend: str, eager: GraphModule) -> None:
        super().__init__()
        self.backend = backend
        # No submodule: what the engine was compiled from is no part of the state of this module.
        self.__dict__["eager"] = eager

    @property
    def program(self) -> GraphModule:
        """What the engine was compiled from."""
        made: Any = self.__dict__["eager"]
        return made
