"""Dead code: nodes whose value nobody uses and that do nothing else."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fxplug.ir import effects
from fxplug.passes.base import Pass, PassContext, PassResult

if TYPE_CHECKING:
    from fxplug.execute import GraphModule

__all__ = ["DeadCode"]


class DeadCode(Pass):
    """Removes nodes that are not used and have no effect; what may have one is kept.

    Submodules that no node reaches any more are removed with them.
    """

    def run(self, module: GraphModule, context: PassContext) -> PassResult:
        """Remove dead nodes."""
        removed = 0
        for node in module.graph.nodes.reversed():
            if node.users or node.op in {"placeholder", "output"}:
                continue
            if not effects.effect_of(node, module).must_be_kept and context.allows(node, "remove"):
                module.graph.erase_node(node)
                removed += 1
        if removed:
            module.delete_all_unused_submodules()
        return PassResult(
            removed > 0,
            f"removed {removed} dead node{'s' if removed != 1 else ''}" if removed else "nothing to remove",
            {"removed": removed},
        )
