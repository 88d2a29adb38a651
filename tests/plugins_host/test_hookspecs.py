"""Every hook is declared as its users need it."""

from __future__ import annotations

import inspect

import pluggy
import pytest

from fxplug.plugins import hookspecs
from fxplug.plugins.markers import PROJECT

HOOKS = hookspecs.__all__


@pytest.mark.parametrize("hook", HOOKS)
def test_a_hook_is_marked_typed_and_described(hook):
    function = getattr(hookspecs, hook)
    text = inspect.getdoc(function)

    assert hasattr(function, f"{PROJECT}_spec")
    assert "return" in function.__annotations__
    assert "Example:" in text
    assert ("Args:" in text) == bool(inspect.signature(function).parameters)
    for parameter in inspect.signature(function).parameters:
        assert parameter in function.__annotations__
        assert f"    {parameter}: " in text


def test_every_hook_of_the_module_is_listed():
    assert sorted(name for name in vars(hookspecs) if name.startswith("fxplug_")) == sorted(HOOKS)


@pytest.mark.parametrize("hook", HOOKS)
def test_the_example_of_a_hook_is_accepted(hook, plugin_module, manager_of):
    text = inspect.getdoc(getattr(hookspecs, hook))
    lines = text.partition("Example:\n    ::\n\n")[2].splitlines()
    code = "\n".join(line[8:] for line in lines)
    from fxplug import hookimpl
    from fxplug.plugins import BackendRecord, CommandRecord, EffectRecord, PassRecord

    names = {
        "hookimpl": hookimpl,
        "PassRecord": PassRecord,
        "BackendRecord": BackendRecord,
        "CommandRecord": CommandRecord,
        "EffectRecord": EffectRecord,
    }
    names |= dict.fromkeys(("make_count_nodes", "make_backend", "make_draw_command", "log_value"), object)
    from fxplug.ir import OUTSIDE

    names["OUTSIDE"] = OUTSIDE
    exec(code, names)

    manager = manager_of({"example": {hook: names[hook]}}, strict=True)

    assert manager.plugin_info("example").hooks == (hook,)


def test_the_declarations_are_known_to_pluggy():
    manager = pluggy.PluginManager(PROJECT)
    manager.add_hookspecs(hookspecs)

    assert {name for name in vars(manager.hook) if not name.startswith("_")} == set(HOOKS)
