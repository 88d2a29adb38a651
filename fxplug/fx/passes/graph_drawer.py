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
            f"Cannot draw {name!r}: fxplug itself draws nothing, plugins do. pip install fxplug-viz, then call "
            f"fxplug_viz.draw(graph_module, 'model.svg'), or fxplug_viz.GraphDrawer(graph_module, {name!r}), which has "
            "the methods of this class.",
            code="FXP-H005",
        )
