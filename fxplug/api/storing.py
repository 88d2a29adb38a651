"""Files of graph modules, with the names and types that plugins bring."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fxplug import storage
from fxplug.plugins import PluginManager, default_manager

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Iterable

    from fxplug.execute import GraphModule
    from fxplug.storage import Provisions

__all__ = ["load", "save"]


def save(
    module: GraphModule,
    path: str | os.PathLike[str],
    *,
    allow: Iterable[str] = (),
    manager: PluginManager | None = None,
) -> None:
    """Write a graph module into one file, from which `load` restores it exactly, running nothing.

    `fxplug.storage.save` says what is kept. Functions that plugins have named (the hook
    ``fxplug_register_storage_targets``) and constants of types that they have declared
    (``fxplug_register_constants``) are kept too; the file notes which distribution brought them, and in which version.

    Args:
        module: What to save. It is not changed.
        path: The file, by convention with the extension ``.fxplug``. Its folder must exist.
        allow: Functions that the graph calls and that a file may not name by itself, as
            ``"package.module:function"``, and methods that neither tensors nor plain values have, as
            ``".name"``. `load` needs the same.
        manager: The plugins that take part; by default those that are installed and selected. They are asked only when
            the module holds something that fxplug does not know.

    Raises:
        StorageError: The module holds something that a file cannot, or the file cannot be written. The
            message names the node, submodule or path and says what to do.

    Example:
        >>> fxplug.save(module, "model.fxplug")  # doctest: +SKIP
        >>> fxplug.load("model.fxplug")  # doctest: +SKIP
    """
    storage.save(module, path, allow=allow, provisions=_provisions(manager))


def load(
    path: str | os.PathLike[str], *, allow: Iterable[str] = (), manager: PluginManager | None = None
) -> GraphModule:
    """Restore a graph module from a file that `save` wrote.

    Loading is safe with files from strangers: nothing is unpickled, compiled or run, and nothing is imported
    that `allow` does not name, except installed plugins where the file names something of theirs. The graph is compiled
    when the module is first called.

    Args:
        path: The file.
        allow: Functions that the graph may call besides, as ``"package.module:function"``; their modules are
            imported. Methods beyond those of tensors and plain values as ``".name"``.
        manager: The plugins that take part; by default those that are installed and selected.

    Returns:
        The module, on the CPU, with the training flags it was saved with.

    Raises:
        StorageError: The file is missing, damaged, of a newer version, or names a function that is not allowed, or one
            that a plugin brought which takes no part. The message says which, and what to do.
    """
    return storage.load(path, allow=allow, provisions=_provisions(manager))


def _provisions(manager: PluginManager | None) -> Callable[[], Provisions]:
    def ask() -> Provisions:
        # Plugins are loaded only if it comes to that.
        return (default_manager() if manager is None else manager).provisions()

    return ask
