"""What a trace reads from its root: parameters, buffers, other tensors, and what the root does not hold."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from fxplug.capture.comparisons import check_weight
from fxplug.capture.parameters import ParameterProxy
from fxplug.capture.proxy import Proxy, TracerBase
from fxplug.capture.sameness import tell_alike
from fxplug.semantics.internals import buffers_of, modules_below, parameters_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fxplug.capture.state import ModuleStates
    from fxplug.ir import Node

__all__ = ["RootReader"]


class RootReader(TracerBase):
    """A tracer whose nodes refer to a module."""

    root: nn.Module
    """What the graph's paths refer to."""
    param_shapes_constant: bool
    """Whether shapes of parameters are read as constants."""
    _states: ModuleStates
    _tensor_paths: dict[int, str] | None
    _reading: tuple[Any, str | None]
    _compares: bool
    _finds_weights: bool
    """Whether the program may find weights otherwise than by their attributes (``parameters()``): no proxies then."""
    _first_reads: dict[int, tuple[str, torch.Tensor]]
    """Id of each weight that was read in a program that compares values by identity -> its path, and the weight."""

    def _mixed(self, kind: type[Proxy], node: Node) -> Any:
        """Return the class of the proxy that is to stand for `node`, where `kind` is what it has to be."""
        return kind

    def _lift(self, value: Any, prefix: str) -> Node:
        for path, module in self.root.named_modules():
            for name, held in vars(module).items():
                if _is_same(held, value) and self._states.held_before(module, name, held):
                    return self.create_node("get_attr", f"{path}.{name}" if path else name, (), {})
        return super()._lift(value, prefix)

    def _path_of_tensor(self, tensor: torch.Tensor) -> str | None:
        if self._tensor_paths is None:
            self._tensor_paths = {
                id(value): f"{prefix}.{name}" if prefix else name
                for prefix, module, name, value in _tensors_of(self.root)
                if self._states.held_before(module, name, value)
            }
        return self._tensor_paths.get(id(tensor))

    def _holder(self) -> Any:
        return self.root

    def getattr(self, attr: str, attr_val: Any, parameter_proxy_cache: dict[str, Any]) -> Any:
        """Return what stands for an attribute that a module has in one of its tables.

        By default a parameter or buffer of the root is one proxy for each path, and everything else is what it is.

        Args:
            attr: Name of the attribute, without the path of its module.
            attr_val: Its value.
            parameter_proxy_cache: Path -> proxy, for this trace.
        """
        if not isinstance(attr_val, torch.Tensor):
            return attr_val
        value, path = self._reading
        if value is not attr_val:  # A subclass asks for another one than it was asked for.
            path = self._path_of_tensor(attr_val)
        return attr_val if path is None else self._read(path, attr_val, parameter_proxy_cache)

    def _read(self, path: str, value: torch.Tensor, proxies: dict[str, Any]) -> Any:
        proxy = proxies.get(path)
        if proxy is not None:
            if self._compares:
                check_weight(self, proxy, value, is_listed=self._finds_weights)
            return proxy
        named: dict[str, Any] = {}
        if self.param_shapes_constant and isinstance(value, nn.Parameter) and self._takes_factory():
            named["proxy_factory_fn"] = lambda node: self._mixed(ParameterProxy, node)(  # pyright: ignore[reportUnknownLambdaType]
                self, node, path, value
            )
        proxy = proxies[path] = self.create_proxy("get_attr", path, (), {}, **named)
        return self._read_again(path, value, proxies) if self._compares else proxy

    def _read_again(self, path: str, value: torch.Tensor, proxies: dict[str, Any]) -> Any:
        """Return what stands for a weight that was read just now, in a program that compares values by identity.

        The root may hold it under another path, too, and the program may ask whether they are one.
        """
        first, _ = self._first_reads.setdefault(id(value), (path, value))
        known = proxies.get(first, proxies[path])
        if known is not proxies[path]:
            tell_alike(self, known, proxies[path])
            proxies[path] = known
        check_weight(self, known, value, is_listed=self._finds_weights)
        return known

    def _takes_factory(self) -> bool:
        """Return whether `create_proxy`, which older subclasses override without it, takes a factory of proxies."""
        parameters = inspect.signature(self.create_proxy).parameters.values()
        return any(
            parameter.name == "proxy_factory_fn" or parameter.kind is parameter.VAR_KEYWORD
            for parameter in parameters
        )


def _is_same(held: Any, value: Any) -> bool:
    # Python sees one scripted object through many; they are equal.
    scripted = isinstance(held, torch.ScriptObject) and isinstance(value, torch.ScriptObject)
    return held is value or (scripted and held == value)


def _tensors_of(root: nn.Module) -> Iterator[tuple[str, nn.Module, str, torch.Tensor]]:
    """Yield (path of the module, module, name, value) of every tensor below `root`, registered or a plain attribute."""
    # There are thousands of attributes of a few classes: only where a table has a new class, or one of tensors, is each
    # of its values looked at.
    others: set[type] = set()
    for prefix, module in reversed(modules_below(root)):
        for table in (vars(module), buffers_of(module), parameters_of(module)):
            if not table or others.issuperset(map(type, table.values())):
                continue
            for name, value in table.items():
                kind = type(value)
                if kind in others:
                    continue
                if issubclass(kind, torch.Tensor):
                    yield prefix, module, name, value
                else:
                    others.add(kind)
