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

    The answers are plain values, so that programs can branch on them. They become constants of the graph, and a guard:
    a module whose parameter gets another shape later has to be traced again.

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

    def _asked(self) -> nn.Parameter:
        """Return the parameter, about whose shape something is asked."""
        note = getattr(self.tracer, "note_weight", None)
        if note is not None:
            note(self.name, "shape", self.param)
        return self.param

    def __len__(self) -> int:
        return len(self._asked())

    @property
    def shape(self) -> torch.Size:
        """The sizes of the parameter."""
        return self._asked().shape

    @property
    def ndim(self) -> int:
        """The number of dimensions."""
        return self._asked().ndim

    def size(self, dim: int | None = None) -> Any:
        """Return the sizes of the parameter, or the one in dimension `dim`."""
        return self._asked().size() if dim is None else self._asked().size(dim)

    def dim(self) -> int:
        """Return the number of dimensions."""
        return self._asked().dim()

    def numel(self) -> int:
        """Return the number of elements."""
        return self._asked().numel()

    def nelement(self) -> int:
        """Return the number of elements."""
        return self._asked().nelement()
