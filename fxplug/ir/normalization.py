"""Normal forms of calls: the same arguments, matched to the parameters of the callee, with defaults filled in.

What the parameters of a callee are is told by rules, which are registered by whoever knows the library it comes from.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from fxplug.errors import GraphError

if TYPE_CHECKING:
    from fxplug.ir.node import Node

__all__ = [
    "ArgsKwargsPair",
    "CallTypes",
    "NormalizationRegistry",
    "NormalizationRule",
    "bind_arguments",
    "normalization",
]

_BY_NAME = frozenset({inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY})


class ArgsKwargsPair(NamedTuple):
    """Positional and keyword arguments of a call."""

    args: tuple[Any, ...]
    """By position."""
    kwargs: dict[str, Any]
    """By keyword, in the order of the parameters."""


@dataclass(frozen=True, slots=True)
class CallTypes:
    """What is known of the types of a call's arguments."""

    args: tuple[Any, ...] = ()
    """By position."""
    kwargs: Mapping[str, Any] | None = None
    """By keyword."""

    def __bool__(self) -> bool:
        return bool(self.args or self.kwargs)


NormalizationRule = Callable[["Node", Any, CallTypes, bool], "ArgsKwargsPair | None"]
"""Asked with (node, called module or None, types, whether all arguments come by keyword); None means no answer."""


def bind_arguments(
    signature: inspect.Signature, args: tuple[Any, ...], kwargs: Mapping[str, Any], *, only_keywords: bool
) -> ArgsKwargsPair | None:
    """Match arguments to the parameters of a signature.

    Args:
        signature: Of the callee.
        args: Positional arguments.
        kwargs: Keyword arguments.
        only_keywords: Whether all arguments come by keyword; otherwise those given by position stay so.

    Returns:
        The arguments with defaults filled in; None when they do not fit, or a parameter cannot be given by name.
    """
    if any(parameter.kind not in _BY_NAME for parameter in signature.parameters.values()):
        return None
    try:
        bound = signature.bind(*args, **kwargs)
    except TypeError:
        return None
    bound.apply_defaults()
    values = list(bound.arguments.items())
    kept = 0 if only_keywords else len(args)
    return ArgsKwargsPair(tuple([value for _, value in values[:kept]]), dict(values[kept:]))


class NormalizationRegistry:
    """Answers how a call is written in full."""

    def __init__(self) -> None:
        self._rules: list[NormalizationRule] = []

    def register_rule(self, rule: NormalizationRule) -> None:
        """Add a rule; the rule added last is asked first."""
        self._rules.insert(0, rule)

    def normalize(
        self,
        node: Node,
        root: object,
        arg_types: tuple[Any, ...] | None = None,
        kwarg_types: Mapping[str, Any] | None = None,
        *,
        only_keywords: bool = False,
    ) -> ArgsKwargsPair | None:
        """Return the arguments of `node` in full, None when nobody knows its parameters.

        `Node.normalized_arguments` says more.
        """
        if node.op not in {"call_function", "call_module"}:
            return None
        module: Any = None
        if node.op == "call_module":
            module = root
            for part in str(node.target).split("."):
                module = getattr(module, part, None)
            if module is None:
                raise GraphError(
                    f"Cannot normalize the arguments of node {node.name!r}: it calls {node.target!r}, which the root "
                    "does not have. Pass the module that the graph refers to."
                )
        types = CallTypes(tuple(arg_types or ()), kwarg_types)
        for rule in self._rules:
            answer = rule(node, module, types, only_keywords)
            if answer is not None:
                return answer
        return None


normalization = NormalizationRegistry()
"""The registry that nodes ask."""
