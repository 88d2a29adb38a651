"""Proxies of parameters whose shape is a plain value."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import nn

from fxplug.capture.proxy import Proxy
from fxplug.errors import TraceError

if TYPE_CHECKING:
    import torch

    from fxplug.capture.proxy import ProxyFactory
    from fxplug.ir import Node

__all__ = ["ParameterProxy"]


class ParameterProxy(Proxy):
    """Stands for a parameter; questions about its shape are answered by the parameter itself.

    The answers are plain values, so that programs can branch on them. They become constants of the graph: a
    module whose parameter gets another shape later has to be traced again.

    Args:
        tracer: Who records everything else.
        node: The node that reads the parameter.
        name: Path of the parameter.
        param: The parameter.

    Raises:
        TraceError: `param` is no parameter.
    """

    def __init__(self, tracer: ProxyFactory, node: Node, name: str, param: nn.Parameter) -> None:
        super().__init__(node, tracer)
        if not isinstance(param, nn.Parameter):  # pyright: ignore[reportUnnecessaryIsInstance] - a caller's mistake
            raise TraceError(
                f"Cannot make a ParameterProxy for {name!r}: it is a {type(param).__name__}. Use Proxy(node, tracer)."
            )
        self.param = param
        self.name = name

    def __repr__(self) -> str:
        return f"ParameterProxy({self.name})"

    def __len__(self) -> int:
        return len(self.param)

    @property
    def shape(self) -> torch.Size:
        """The sizes of the parameter."""
        return self.param.shape

    @property
    def ndim(self) -> int:
        """The number of dimensions."""
        return self.param.ndim

    def size(self, dim: int | None = None) -> Any:
        """Return the sizes of the parameter, or the one in dimension `dim`."""
        return self.param.size() if dim is None else self.param.size(dim)

    def dim(self) -> int:
        """Return the number of dimensions."""
        return self.param.dim()

    def numel(self) -> int:
        """Return the number of elements."""
        return self.param.numel()

    def nelement(self) -> int:
        """Return the number of elements."""
        return self.param.nelement()
