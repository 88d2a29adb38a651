"""Files of graph modules, with the names and types that plugins bring."""

from __future__ import annotations

from typing import TYPE_CHECKING, get_args

from fxplug import storage
from fxplug.api.engines import restore_engines, stored_engine
from fxplug.errors import ConfigError, StorageError
from fxplug.lower import Engines
from fxplug.plugins import PluginManager, default_manager
from fxplug.storage.pickles import is_pickle, load_pickle, refused_pickle

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
    progress: Callable[[int, int], object] | None = None,
    manager: PluginManager | None = None,
) -> None:
    """Write a graph module into one file, from which `load` restores it exactly, running nothing.

    `fxplug.storage.save` says what is kept. Functions that plugins have named (the hook
    ``fxplug_register_storage_targets``) and constants of types that they have declared
    (``fxplug_register_constants``) are kept too; the file notes which distribution brought them, and in which version.
    So are partitions that a backend of an installed plugin runs: what it compiled, beside the program.

    Args:
        module: What to save. It is not changed.
        path: The file, by convention with the extension ``.fxplug``. Its folder must exist.
        allow: What the module uses and a file may not name by itself, as ``"package.module:name"``: functions that
            the graph calls, classes of submodules, and classes of enums, namedtuples and dataclasses among the
            arguments; and methods that neither tensors nor plain values have, as ``".name"``. `load` needs the same.
        progress: Called with the number of bytes of weights that are written, and of all.
        manager: The plugins that take part; by default those that are installed and selected. They are asked only when
            the module holds something that fxplug does not know.

    Raises:
        StorageError: The module holds something that a file cannot, or the file cannot be written. The
            message names the node, submodule or path and says what to do.

    Example:
        >>> fxplug.save(module, "model.fxplug")  # doctest: +SKIP
        >>> fxplug.load("model.fxplug")  # doctest: +SKIP
    """
    plugins = _Plugins(manager)
    storage.save(
        module,
        path,
        allow=allow,
        progress=progress,
        provisions=plugins.provisions,
        stand_in=lambda part, place: stored_engine(part, place, plugins.manager),
    )


def load(
    path: str | os.PathLike[str],
    *,
    allow: Iterable[str] = (),
    lazy: bool = False,
    progress: Callable[[int, int], object] | None = None,
    allow_pickle: bool = False,
    engines: Engines = "stored",
    manager: PluginManager | None = None,
) -> GraphModule:
    """Restore a graph module from a file that `save` wrote.

    Loading is safe with files from strangers: nothing is unpickled, compiled or run, and nothing is imported
    that `allow` does not name, except installed plugins where the file names something of theirs. The graph is compiled
    when the module is first called.

    Args:
        path: The file.
        allow: What the file may name besides, as ``"package.module:name"``; the modules are imported. Methods beyond
            those of tensors and plain values as ``".name"``.
        lazy: Map the weights into memory instead of reading them: the system fetches each page when it is first
            needed, and copies it when it is written to, so that the file stays what it is. Their checksum is not
            verified. As long as a tensor of the module is in use, the file must not be changed in place; `save`
            replaces it, which is no change (Windows refuses to replace a file that is mapped).
        progress: Called with the number of bytes of weights that were read, and of all; not called when `lazy`.
        allow_pickle: Load a graph module that ``torch.save`` wrote too, with a warning: such a file runs whatever it
            likes.
        engines: What is done with what backends compiled, in the file of a lowered module. ``"stored"`` uses it, and
            refuses what was compiled with other versions or for another processor; its bytes are given to the engine
            when the module is first called, so the file has to be one that you trust. ``"rebuild"`` compiles the
            program in the file anew, ``"eager"`` runs it in PyTorch.
        manager: The plugins that take part; by default those that are installed and selected.

    Returns:
        The module, on the CPU, with the training flags it was saved with.

    Raises:
        StorageError: The file is missing, damaged, of a newer version, or names a function that is not allowed, or one
            that a plugin brought which takes no part; or an engine in it cannot be used here. The message says which,
            and what to do.
        ConfigError: `engines` is none of the three.
    """
    if engines not in get_args(Engines):
        known = ", ".join(map(repr, get_args(Engines)))
        raise ConfigError(f"Cannot load with engines={engines!r}: use one of {known}.")
    if allow_pickle and is_pickle(path):
        return load_pickle(path)
    plugins = _Plugins(manager)
    try:
        module = storage.load(path, allow=allow, lazy=lazy, progress=progress, provisions=plugins.provisions)
    except StorageError as error:
        if is_pickle(path):
            raise refused_pickle(path) from error
        raise
    restore_engines(module, path, engines, plugins.manager)
    return module


class _Plugins:
    """The plugins that take part, which are loaded only if it comes to that."""

    def __init__(self, manager: PluginManager | None) -> None:
        self._manager = manager

    def manager(self) -> PluginManager:
        return default_manager() if self._manager is None else self._manager

    def provisions(self) -> Provisions:
        return self.manager().provisions()
