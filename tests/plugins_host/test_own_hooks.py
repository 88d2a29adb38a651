"""A plugin declares hooks, others implement them, and it is no matter who is absent."""

from __future__ import annotations

import sys
from textwrap import dedent

import pytest

from fxplug.errors import PluginError, PluginLoadError, UnknownNameError
from fxplug.plugins import PluginWarning

OWNER = """
import {specs} as PLUGIN_HOOKSPECS
"""
SPECS = """
from fxplug import hookspec

@hookspec
def quant_converters(kind, width):
    '''Offer converters.'''

@hookspec(firstresult=True)
def quant_engine():
    '''Choose the engine.'''
"""


def install_owner(site, specs=SPECS, name="quant", source=""):
    module = f"fake_plugin_{name.replace('-', '_')}_specs"
    (site.folder / f"{module}.py").write_text(dedent(specs))
    site.install(name, OWNER.format(specs=module) + dedent(source))


def converters(answer, marker="@hookimpl"):
    return f"{marker}\ndef quant_converters(kind):\n    return {answer}\n"


def test_the_owner_hears_every_answer_in_the_order_of_the_plugins(site):
    install_owner(site)
    site.install("zeta", converters("f'zeta {kind}'"))
    site.install("alpha", converters("f'alpha {kind}'"))
    site.install("silent", converters("None"))
    site.install(
        "late", "@hookimpl(trylast=True)\ndef quant_converters(width, kind):\n    return kind, width\n"
    )

    manager = site.manager()

    assert manager.ask("quant_converters", kind="int8", width=4) == ["alpha int8", "zeta int8", ("int8", 4)]
    assert manager.plugin_info("quant").declared_hooks == ("quant_converters", "quant_engine")
    assert manager.plugin_info("alpha").hooks == ("quant_converters",)


def test_the_first_answer_is_the_only_one_where_the_declaration_says_so(site):
    install_owner(site)
    for name, answer in (("a", None), ("b", "x86"), ("c", "qnnpack")):
        site.install(name, f"@hookimpl\ndef quant_engine():\n    return {answer!r}\n")

    manager = site.manager()

    assert manager.ask("quant_engine") == ["x86"]


def test_one_that_fails_is_named_and_the_others_are_still_asked(site):
    install_owner(site)
    site.install("broken", converters("1 / 0"))
    site.install("good", converters("kind"))
    manager = site.manager()

    with pytest.warns(
        PluginWarning, match=r"Hook 'quant_converters' of plugin 'broken' \(fxplug-broken 1.0\) raised"
    ):
        assert manager.ask("quant_converters", kind="int8", width=4) == ["int8"]

    assert [failure.hook for failure in manager.plugin_info("broken").failures] == ["quant_converters"]
    with pytest.raises(PluginError, match="raised ZeroDivisionError"):
        site.manager(strict=True).ask("quant_converters", kind="int8", width=4)


def test_asking_is_checked(site):
    install_owner(site)
    manager = site.manager()

    with pytest.raises(
        UnknownNameError, match=r"no hook of a plugin named 'quant_convertors'\. Did you mean"
    ):
        manager.ask("quant_convertors")
    with pytest.raises(UnknownNameError):
        manager.ask("fxplug_register_passes")
    with pytest.raises(PluginError, match=r"it was given \(kind\), and takes \(kind, width\)"):
        manager.ask("quant_converters", kind="int8")
    assert manager.ask("quant_converters", kind="int8", width=4) == []


# -- absent owners -----------------------------------------------------------------------------------------------


def test_without_the_owner_an_optional_implementation_waits(site):
    site.install("guest", converters("1", "@hookimpl(optionalhook=True)"))

    info = site.manager().plugin_info("guest")

    assert (info.status, info.hooks, info.idle_hooks) == ("active", (), ("quant_converters",))
    install_owner(site)
    assert site.manager().plugin_info("guest").hooks == ("quant_converters",)


def test_without_the_owner_one_that_is_not_optional_is_told_how_to_be(site):
    site.install("guest", converters("1"))

    with pytest.warns(PluginWarning) as caught:
        site.manager()

    assert (
        "it implements the hook 'quant_converters', which neither fxplug nor an active plugin declares; if it belongs "
        "to a plugin that may be absent, mark it with @hookimpl(optionalhook=True)."
    ) in str(caught[0].message)


def test_a_misspelt_hook_of_a_plugin_is_refused_with_the_nearest_name(site):
    install_owner(site)
    site.install("guest", "@hookimpl\ndef quant_convertors(kind):\n    return 1\n")

    with pytest.warns(
        PluginWarning, match="unknown hook 'quant_convertors'. Did you mean 'quant_converters'?"
    ):
        site.manager()


def test_an_implementation_of_a_plugins_hook_is_checked_as_any_other(site):
    install_owner(site)
    site.install("guest", "@hookimpl(optionalhook=True)\ndef quant_converters(kid):\n    return 1\n")

    with pytest.warns(
        PluginWarning, match=r"takes the unknown parameter 'kid'; the hook offers \(kind, width\)"
    ):
        site.manager()


def test_switching_the_owner_off_harms_nobody(site):
    install_owner(site)
    site.install("guest", converters("1"))

    manager = site.manager(disable=["quant"])

    info = manager.plugin_info("guest")
    assert (info.status, info.hooks, info.idle_hooks) == ("active", (), ("quant_converters",))
    with pytest.raises(UnknownNameError):
        manager.ask("quant_converters", kind="int8", width=4)
    assert "fake_plugin_quant_specs" not in sys.modules


@pytest.mark.parametrize("guest", ["apple", "zebra"])
@pytest.mark.parametrize(
    "fault",
    [
        "import missing_library",
        "@hookimpl\ndef fxplug_node_created(nod):\n    return None\n",
        "@hookimpl\ndef fxplug_register_passes():\n    raise ValueError('no')\n",
    ],
    ids=["import", "signature", "record"],
)
def test_hooks_of_an_owner_that_is_broken_are_taken_back(site, guest, fault):
    install_owner(site, source=fault)
    site.install(guest, converters("1"))

    with pytest.warns(PluginWarning) as caught:
        manager = site.manager()

    assert [str(warning.message)[:14] for warning in caught] == ["Plugin 'quant'"]
    info = manager.plugin_info(guest)
    assert (info.status, info.hooks, info.idle_hooks) == ("active", (), ("quant_converters",))
    assert manager.plugin_info("quant").declared_hooks == ()
    with pytest.raises(UnknownNameError):
        manager.ask("quant_converters", kind="int8", width=4)


# -- declarations that are not sound -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("specs", "reason"),
    [
        (
            "@hookspec\ndef converters(): ...\n",
            "it declares the hook 'converters'; the names of its hooks begin with 'quant_'",
        ),
        ("@hookspec\ndef fxplug_more(): ...\n", "it declares the hook 'fxplug_more'; the names"),
        ("@hookspec(historic=True)\ndef quant_old(): ...\n", "declares the hook 'quant_old' as historic"),
        ("@hookspec\ndef quant_new(kind=1): ...\n", "declares the hook 'quant_new' with 'kind=1'"),
        ("", "PLUGIN_HOOKSPECS names fake_plugin_quant_specs, which holds no function marked with hookspec"),
    ],
    ids=["prefix", "ours", "historic", "default", "empty"],
)
def test_a_declaration_that_is_not_sound_is_refused(site, specs, reason):
    install_owner(site, f"from fxplug import hookspec\n{specs}")

    with pytest.raises(PluginLoadError) as caught:
        site.manager(strict=True)

    assert reason in str(caught.value)


def test_the_declarations_are_a_module(site):
    site.install("quant", "PLUGIN_HOOKSPECS = 'specs'")

    with pytest.warns(PluginWarning, match="PLUGIN_HOOKSPECS is 'specs'; it must be a module"):
        site.manager()


def test_two_plugins_cannot_declare_one_hook(site):
    install_owner(site, "from fxplug import hookspec\n@hookspec\ndef tensor_rt_ops(): ...\n", name="tensor")
    install_owner(
        site, "from fxplug import hookspec\n@hookspec\ndef tensor_rt_ops(): ...\n", name="tensor-rt"
    )

    with pytest.warns(
        PluginWarning, match="declares the hook 'tensor_rt_ops', which plugin 'tensor' declares too"
    ):
        manager = site.manager()

    assert manager.plugin_info("tensor").declared_hooks == ("tensor_rt_ops",)
