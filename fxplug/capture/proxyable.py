"""Classes whose construction from traced values is recorded."""

from __future__ import annotations

from typing import Any

from fxplug.capture.arguments import iterate_parts
from fxplug.capture.proxy import Proxy

__all__ = ["ProxyableClassMeta"]


class ProxyableClassMeta(type):
    """Metaclass of classes whose construction can stand in a graph.

    Called with a proxy among its arguments, such a class makes no instance: the call becomes a node with the class as
    its target, and what is done with the result is recorded like everything else. Called without one, it makes an
    instance as any class does. No switch is set for it, so that it works in any number of threads at once.

    Example:
        ::

            class Interval(metaclass=ProxyableClassMeta):
                def __init__(self, low, high):
                    self.bounds = low, high

            graph = Tracer().trace(lambda x: Interval(x, x + 1))
    """

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        """Return an instance, or the proxy that stands for one."""
        for part in iterate_parts((args, kwargs)):
            if isinstance(part, Proxy):
                return part.tracer.create_proxy("call_function", cls, args, kwargs)
        return super().__call__(*args, **kwargs)
