"""Pictures of graphs, which fxplug leaves to plugins."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fxplug.errors import PluginError

if TYPE_CHECKING:
    from fxplug.execute import GraphModule

__all__ = ["FxGraphDrawer"]


class FxGraphDrawer:
    """Says who draws: fxplug itself does not.

    Args:
        graph_module: What was to be drawn.
        name: Title of the picture.
        **options: Whatever torch.fx's class takes besides.

    Raises:
        PluginError: Always; the message says what to install.
    """

    def __init__(self, graph_module: GraphModule, name: str, **options: Any) -> None:
        raise PluginError(
            f"Cannot draw {name!r}: fxplug itself draws nothing, plugins do. pip install fxplug-viz, save the module "
            "with fxplug.save(...) and run 'fxplug draw', or call fxplug_viz.dot_text(graph_module).",
            code="FXP-H005",
        )
