"""Every hook is declared as its users need it."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import pluggy
import pytest

from fxplug.plugins import hookspecs
from fxplug.plugins.markers import PROJECT

HOOKS = hookspecs.__all__
HOOK_NAME = re.compile(r"\bfxplug_[a-z][a-z_]*[a-z]\b")
NO_HOOKS = frozenset(
    {
        "fxplug_active_trace",
        "fxplug_guards_warn",
        "fxplug_printing",
        "fxplug_version",
        "fxplug_viz",
    }
)
"""What is named like a hook in the sources and is none."""


@pytest.mark.parametrize("hook", HOOKS)
def test_a_hook_is_marked_typed_and_described(hook):
    function = getattr(hookspecs, hook)
    text = inspect.getdoc(function)

    assert hasattr(function, f"{PROJECT}_spec")
    assert "return" in function.__annotations__
    for section in ("When", "Returns", "Order", "Errors", "Example"):
        assert f"\n{section}:\n    " in text
    assert ("Args:" in text) == bool(inspect.signature(function).parameters)
    for parameter in inspect.signature(function).parameters:
        assert parameter in function.__annotations__
        assert f"    {parameter}: " in text


def test_every_hook_of_the_module_is_listed():
    assert sorted(name for name in vars(hookspecs) if name.startswith("fxplug_")) == sorted(HOOKS)


def test_what_registers_returns_records_that_are_known():
    from fxplug.plugins.registration import RECORDS

    assert sorted(RECORDS) == sorted(hook for hook in HOOKS if hook.startswith("fxplug_register_"))


def test_no_code_speaks_of_a_hook_that_is_not_declared():
    package = Path(hookspecs.__file__).resolve().parents[1]
    unknown = {
        f"{path.relative_to(package)}: {name}"
        for path in sorted(package.rglob("*.py"))
        for name in HOOK_NAME.findall(path.read_text(encoding="utf-8"))
        if name not in HOOKS and name not in NO_HOOKS
    }

    assert unknown == set()


def test_the_declarations_are_known_to_pluggy():
    manager = pluggy.PluginManager(PROJECT)
    manager.add_hookspecs(hookspecs)

    assert {name for name in vars(manager.hook) if not name.startswith("_")} == set(HOOKS)
