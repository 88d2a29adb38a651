"""Lowered modules in files: which plugin an engine belongs to."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import nn

from fxplug.errors import FxplugError, StorageError
from fxplug.lower import Engines, LoweredPartition, restored_partition, stored_partition
from fxplug.semantics.internals import every_module, modules_of
from fxplug.storage import StoredEngine
from fxplug.storage.faults import Refusal, checked

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Mapping

    from fxplug.execute import GraphModule
    from fxplug.plugins import PluginManager

__all__ = ["restore_engines", "stored_engine"]


def stored_engine(part: nn.Module, path: str, manager: Callable[[], PluginManager]) -> nn.Module | None:
    """Return what a file holds in the place of a partition, None for every other module.

    Args:
        part: Any submodule.
        path: Its path.
        manager: Returns the plugins that take part; asked when there is a partition.

    Raises:
        Refusal: Its engine cannot be kept.
    """
    if not isinstance(part, LoweredPartition):
        return None
    try:
        offer = manager().find_backend(part.backend)
        provider = {
            "backend": offer.name,
            "plugin": offer.plugin,
            "distribution": offer.distribution,
            "version": offer.version,
        }
        return stored_partition(part, provider)
    except FxplugError as error:
        raise Refusal(
            f"partition {path!r} is run by the backend {part.backend!r}, which is needed to load it again: "
            f"{error.message}"
        ) from error


def restore_engines(
    module: GraphModule,
    path: str | os.PathLike[str],
    engines: Engines,
    manager: Callable[[], PluginManager],
) -> None:
    """Put partitions in the place of what a file holds for them.

    Args:
        module: Loaded from a file; changed.
        path: Of the file, for errors.
        engines: What is done with compiled engines.
        manager: Returns the plugins that take part; asked when there is an engine.

    Raises:
        StorageError: An engine cannot be used here.
    """
    # Most files hold none, which is plain without a look at each place.
    if not any(issubclass(kind, StoredEngine) for kind in set(map(type, every_module(module)))):
        return
    made: dict[StoredEngine, nn.Module] = {}
    for place, holder, name, part in _engines_below(module):
        try:
            if part not in made:
                made[part] = _restored(part, engines, manager)
        except Refusal as refusal:
            raise StorageError(f"Cannot load {str(path)!r}: submodule {place!r}: {refusal}") from refusal
        except FxplugError as error:
            raise StorageError(f"Cannot load {str(path)!r}: {error.message}") from error
        except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError, RuntimeError) as error:
            raise StorageError(
                f"Cannot load {str(path)!r}: what it says about the engine {place!r} does not fit together: {error!r}. "
                "The file is damaged."
            ) from error
        modules_of(holder)[name] = made[part]


def _engines_below(module: nn.Module) -> list[tuple[str, nn.Module, str, StoredEngine]]:
    """Return path, holder, name in it and engine, of each place in which a file holds an engine.

    Each holder is looked into once: modules that are shared in shared modules have more paths than memory can hold.
    """
    found: list[tuple[str, nn.Module, str, StoredEngine]] = []
    seen: set[nn.Module] = {module}
    pending: list[tuple[str, nn.Module]] = [("", module)]
    while pending:
        prefix, holder = pending.pop()
        for name, part in modules_of(holder).items():
            if isinstance(part, StoredEngine):
                found.append((prefix + name, holder, name, part))
            if isinstance(part, nn.Module) and part not in seen:
                seen.add(part)
                pending.append((f"{prefix}{name}.", part))
    return found


def _restored(part: StoredEngine, engines: Engines, manager: Callable[[], PluginManager]) -> nn.Module:
    facts = part.facts()
    if engines == "eager":
        return part.program
    plugins = manager()
    name, options = str(facts["backend"]), checked(facts["options"], dict, "The options of an engine")
    if name not in plugins.backends():
        raise _missing(facts)
    try:
        offer = plugins.find_backend(name)
        maker = offer.create(**plugins.backend_options(name, options))
    except FxplugError as error:
        raise StorageError(
            f"the backend {name!r} cannot be made as it was when the file was written, by {facts['distribution']} "
            f"{facts['version']}: {error.message} Run it in PyTorch: load(..., engines='eager')."
        ) from error
    return restored_partition(part, maker, engines)


def _missing(facts: Mapping[str, Any]) -> StorageError:
    distribution, version = facts["distribution"], facts["version"]
    pinned = f"{distribution}=={version}" if version else distribution
    return StorageError(
        f"partition {facts['partition']!r} is run by the backend {facts['backend']!r}, which the plugin "
        f"{facts['plugin']!r} of {distribution} {version} brings, and which takes no part here. Install it (pip "
        f"install {pinned}), or switch it on; 'fxplug plugins list --all' says what became of it. In "
        "PyTorch it runs with load(..., engines='eager')."
    )
