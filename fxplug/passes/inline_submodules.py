"""Inlining as a pass: the programs of submodules that are graph modules take the place of their calls."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from fxplug.execute import GraphModule
from fxplug.passes.base import Pass, PassContext, PassResult
from fxplug.passes.inlining import inline_submodule, why_not_inlined

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["InlineSubmodules", "InlineSubmodulesOptions"]


@dataclass(frozen=True)
class InlineSubmodulesOptions:
    """What ``inline-submodules`` takes from a configuration."""

    paths: tuple[str, ...] = ()
    """The submodules that are inlined; none: all that are graph modules."""


class InlineSubmodules(Pass):
    """Puts the programs of submodules in the place of their calls, also of those inside of them.

    Submodules with hooks, guards or a calling convention of their own stay as they are.

    Args:
        paths: The submodules that are inlined, which may also be others that can be captured; none: all that are graph
            modules.
    """

    def __init__(self, paths: Sequence[str] = ()) -> None:
        self._paths = frozenset(paths)

    def run(self, module: GraphModule, context: PassContext) -> PassResult:
        """Inline submodules."""
        calls = 0
        left: dict[str, str] = {}
        done = False
        while not done:
            done = True
            for path in module.graph.distinct_targets("call_module"):
                if path in left or not self._takes(module, path):
                    continue
                reason = why_not_inlined(module, module.get_submodule(path))
                first = module.graph.find_nodes(op="call_module", target=path)[0]
                if reason or not context.allows(first, "inline"):
                    left[path] = reason
                    continue
                calls += inline_submodule(module, path)
                done = False
        text = f"inlined {calls} call{'s' if calls != 1 else ''}" if calls else "nothing to inline"
        stay = {path: reason for path, reason in left.items() if reason}
        if stay:
            text += "; " + "; ".join(f"{path!r} stays: {reason}" for path, reason in stay.items())
        return PassResult(calls > 0, text, {"inlined": calls, "left": len(stay)})

    def _takes(self, module: GraphModule, path: str) -> bool:
        if self._paths:
            return path in self._paths
        return isinstance(module.get_submodule(path), GraphModule)
