"""The hooks there are: those of fxplug, and those that plugins declare for other plugins."""

from __future__ import annotations

import inspect
import warnings
from types import ModuleType
from typing import TYPE_CHECKING, Any

import pluggy

from fxplug.plugins import hookspecs
from fxplug.plugins.markers import PROJECT
from fxplug.plugins.registration import Refused

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["HookTable", "owned_prefix"]

_ATTRIBUTE = "PLUGIN_HOOKSPECS"


def owned_prefix(plugin: str) -> str:
    """Return how the names of the hooks begin that a plugin may declare: ``"tensor_rt_"`` for ``"tensor-rt"``."""
    return f"{plugin.replace('-', '_')}_"


class HookTable(pluggy.PluginManager):
    """pluggy's manager, with hooks that come and go together with the plugin that declares them.

    Args:
        is_absent: Whether a hook that nobody declares would be that of a plugin that is installed and takes no
            part. Implementations of such hooks are left out without a word.
    """

    def __init__(self, is_absent: Callable[[str], bool]) -> None:
        super().__init__(PROJECT)
        self.add_hookspecs(hookspecs)
        self._is_absent = is_absent
        self.own_hooks: dict[str, str] = {}
        """Hook that a plugin declared -> name of the plugin."""

    def parse_hookimpl_opts(self, plugin: Any, name: str) -> pluggy.HookimplOpts | None:
        """Return how a member of a plugin is marked; None when it implements no hook, or one of an absent plugin."""
        options = super().parse_hookimpl_opts(plugin, name)
        if options is None:
            return None
        hook = options.get("specname") or name
        is_known = getattr(self.hook, hook, None) is not None
        return None if not is_known and self._is_absent(hook) else options

    def declare(self, plugin: str, module: ModuleType) -> tuple[str, ...]:
        """Add the hooks that a plugin's entry module declares for others, and return their names.

        Args:
            plugin: Name of the plugin.
            module: Its entry module, which may name the module with the declarations: ``PLUGIN_HOOKSPECS``.

        Raises:
            Refused: A declaration is not sound; then none of them was added.
        """
        namespace: Any = vars(module).get(_ATTRIBUTE)
        if namespace is None:
            return ()
        if not isinstance(namespace, ModuleType):
            raise Refused(f"{_ATTRIBUTE} is {namespace!r}; it must be a module")
        names = [name for name in dir(namespace) if self.parse_hookspec_opts(namespace, name) is not None]
        if not names:
            raise Refused(
                f"{_ATTRIBUTE} names {namespace.__name__}, which holds no function marked with hookspec"
            )
        for name in names:
            self._check_declaration(plugin, namespace, name)
        self.add_hookspecs(namespace)
        self.own_hooks |= dict.fromkeys(names, plugin)
        return tuple(names)

    def _check_declaration(self, plugin: str, namespace: ModuleType, name: str) -> None:
        prefix = owned_prefix(plugin)
        if not name.startswith(prefix) or name.startswith(f"{PROJECT}_"):
            raise Refused(f"it declares the hook {name!r}; the names of its hooks begin with {prefix!r}")
        if name in self.own_hooks:
            raise Refused(
                f"it declares the hook {name!r}, which plugin {self.own_hooks[name]!r} declares too"
            )
        options = self.parse_hookspec_opts(namespace, name)
        if options is not None and options.get("historic"):
            raise Refused(
                f"it declares the hook {name!r} as historic; plugins are loaded once, so that means nothing"
            )
        for parameter in inspect.signature(getattr(namespace, name)).parameters.values():
            if (
                parameter.kind is not parameter.POSITIONAL_OR_KEYWORD
                or parameter.default is not parameter.empty
            ):
                raise Refused(
                    f"it declares the hook {name!r} with {str(parameter)!r}; hooks take plain parameters"
                )

    def idle_hooks(self, module: ModuleType) -> tuple[str, ...]:
        """Return the hooks that a module implements and that no active plugin declares."""
        marked = ((name, super(HookTable, self).parse_hookimpl_opts(module, name)) for name in dir(module))
        hooks = {options.get("specname") or name for name, options in marked if options is not None}
        return tuple(
            sorted(hook for hook in hooks if getattr(getattr(self.hook, hook, None), "spec", None) is None)
        )

    def withdraw(self, hooks: tuple[str, ...]) -> None:
        """Take hooks away whose plugin turned out to be broken."""
        for hook in hooks:
            del self.own_hooks[hook]
            delattr(self.hook, hook)

    def enrol(self, module: ModuleType, name: str, hooks: tuple[str, ...]) -> list[warnings.WarningMessage]:
        """Register the implementations of a plugin.

        Args:
            module: Its entry module.
            name: Its name.
            hooks: Those that it implements.

        Returns:
            What the declarations say against hooks and arguments that are going away.
        """
        specs = [getattr(self.hook, hook).spec for hook in hooks]
        if not any(spec.warn_on_impl or spec.warn_on_impl_args for spec in specs):
            self.register(module, name=name)
            self.check_pending()
            return []
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            self.register(module, name=name)
            self.check_pending()
        return caught
