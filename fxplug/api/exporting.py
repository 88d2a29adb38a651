"""Graph modules as Python that people read."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fxplug.plugins import default_manager
from fxplug.storage.export import export_package

if TYPE_CHECKING:
    import os

    from fxplug.execute import GraphModule
    from fxplug.plugins import PluginManager
    from fxplug.storage import Provisions

__all__ = ["export_python"]


def export_python(
    module: GraphModule,
    folder: str | os.PathLike[str],
    *,
    class_name: str | None = None,
    overwrite: bool = False,
    manager: PluginManager | None = None,
) -> None:
    """Write a graph module as a Python package that people can read, compare and edit, and that needs torch alone.

    The package defines a class, whose constructor makes every submodule by its own constructor and whose ``forward``
    is the program, and the function ``load``, which gives an instance with the weights. They are read with
    ``weights_only=True``. Keys of the state dict, ties between weights, training flags, regions such as ``no_grad``
    and guards are kept; guards raise a ValueError. Values have the names of what they are, or take the place of what
    they are computed from; notes (`meta`), origins and node names stay behind: `fxplug.save` keeps them.

    Functions that the program calls and classes of modules that are not torch's are imported from where they are
    defined, unless their plugin says how they are written with torch alone (``python`` of its `StorageTargetRecord`):
    that stands in a folder beside the program, and the plugin is not needed. Layers that oneDNN computes with what
    follows them are written as the calls that they stand for. The text is formatted as ruff formats it.

    Args:
        module: What to write. It is not changed.
        folder: The package; it appears complete or not at all.
        class_name: The class that it defines; by default that of the module.
        overwrite: Whether a package that was exported into this folder before is replaced.
        manager: The plugins that take part; by default those that are installed and selected. They are asked only when
            the module holds something that is not torch's.

    Raises:
        ExportError: Something has no form in Python; the message names it. Nothing was written then.
        InvalidArgumentError: `class_name` cannot be the name of a class.
        OutputError: The folder cannot be written, or holds what fxplug did not write.

    Example:
        With a folder below the working directory::

            fxplug.export_python(module, "exported")
            import exported
            exported.load()
    """

    def provisions() -> Provisions:
        return (default_manager() if manager is None else manager).provisions()

    export_package(module, folder, class_name=class_name, overwrite=overwrite, provisions=provisions)
