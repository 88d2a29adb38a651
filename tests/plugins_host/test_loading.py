"""A plugin that is broken is named with its reason and a remedy, undone completely, and skipped."""

from __future__ import annotations

import sys
import warnings

import pytest

from fxplug.errors import (
    IncompatiblePluginError,
    PluginConflictError,
    PluginLoadError,
)
from fxplug.plugins import Config, PluginsConfig, PluginWarning

GOOD = """
@hookimpl
def fxplug_is_leaf_module(module):
    return True

@hookimpl
def fxplug_register_passes():
    return [fxplug.PassRecord("tidy", object, "Tidies.")]

@hookimpl
def fxplug_register_backends():
    return [fxplug.BackendRecord("engine", object, "Runs.")]

@hookimpl
def fxplug_register_commands():
    return [fxplug.CommandRecord("show", object, "Shows.")]
"""

HALF = """
@hookimpl
def fxplug_is_leaf_module(module):
    return True
"""


def load_broken(site, source, **install):
    """Load a broken plugin beside a good one; return what is said about it, and check that nothing of it is left."""
    site.install("broken", source, **install)
    site.install("good", GOOD)
    with pytest.warns(PluginWarning) as caught:
        manager = site.manager()
    (warning,) = caught
    info = manager.plugin_info("broken")
    assert (info.status, info.hooks, info.passes) == ("failed", (), ())
    assert (
        str(warning.message)
        == f"Plugin 'broken' (fxplug-broken 1.0) is skipped: {info.reason}"
        + ("" if info.reason.endswith("?") else ".")
        + f" {info.remedy}"
    )
    assert manager.plugin_info("good").status == "active"
    assert [name for name in manager.passes() if ":" in name] == ["good:tidy"]
    assert [entry.plugin for entry in manager._implementations("fxplug_is_leaf_module")] == ["good", "core"]
    return info


def test_a_sound_plugin_is_active_and_says_what_it_offers(site):
    site.install("good", GOOD)

    (info,) = site.manager().plugin_infos()

    assert (info.name, info.distribution, info.version, info.status) == (
        "good",
        "fxplug-good",
        "1.0",
        "active",
    )
    assert info.hooks == (
        "fxplug_is_leaf_module",
        "fxplug_register_backends",
        "fxplug_register_commands",
        "fxplug_register_passes",
    )
    assert (info.passes, info.backends, info.commands) == (("good:tidy",), ("good:engine",), ("good:show",))
    assert (info.reason, info.remedy, info.error) == ("", "", None)


def test_an_error_at_import_is_reported_with_its_cause(site):
    info = load_broken(site, "import a_library_that_is_missing")

    assert info.reason == (
        "importing fake_plugin_fxplug_broken raised ModuleNotFoundError: No module named 'a_library_that_is_missing'"
    )
    assert info.remedy == (
        "Update or uninstall fxplug-broken (pip uninstall fxplug-broken), or switch the plugin off: "
        "FXPLUG_DISABLE_PLUGINS=broken."
    )
    assert isinstance(info.error, PluginLoadError)
    assert isinstance(info.error.__cause__, ModuleNotFoundError)


def test_a_plugin_that_leaves_the_process_is_skipped(site):
    assert load_broken(site, "raise SystemExit(3)").reason.endswith("raised SystemExit: 3")


def test_an_interrupt_while_importing_goes_through(site):
    site.install("slow", "raise KeyboardInterrupt")

    with pytest.raises(KeyboardInterrupt):
        site.manager()


def test_an_entry_point_that_is_no_module_is_refused(site):
    site.install("broken", "class Plugin: pass", target="fake_plugin_fxplug_broken:Plugin")

    with pytest.warns(
        PluginWarning, match=r"'fake_plugin_fxplug_broken:Plugin' gives <class .*>, which is not a module"
    ):
        site.manager()


def test_a_misspelt_hook_is_refused_with_the_nearest_name(site):
    info = load_broken(site, HALF + "@hookimpl\ndef fxplug_register_pases():\n    return []\n")

    assert info.reason == (
        "it implements the unknown hook 'fxplug_register_pases'. Did you mean 'fxplug_register_passes'?"
    )


def test_a_hook_of_somebody_else_may_be_optional(site):
    site.install(
        "guest", "@hookimpl(optionalhook=True)\ndef tensorrt_register_converters():\n    return []\n"
    )

    assert site.manager().plugin_info("guest").status == "active"


@pytest.mark.parametrize(
    ("definition", "reason"),
    [
        (
            "@hookimpl\ndef fxplug_node_created(node, ctx):\n    return None\n",
            "its 'fxplug_node_created' takes the unknown parameter 'ctx'; the hook offers (node, context)",
        ),
        (
            "@hookimpl\ndef fxplug_register_passes(registry):\n    return []\n",
            "its 'fxplug_register_passes' takes the unknown parameter 'registry'; the hook offers no arguments",
        ),
        (
            "@hookimpl\ndef fxplug_node_created(node, context=None):\n    return None\n",
            (
                "its 'fxplug_node_created' gives the parameter 'context' a default value, which may hide what fxplug "
                "passes; remove the default"
            ),
        ),
        (
            "@hookimpl\ndef fxplug_node_created(*args):\n    return None\n",
            "its 'fxplug_node_created' takes '*args'; hooks take plain parameters, by name",
        ),
        (
            "@hookimpl(wrapper=True)\ndef fxplug_node_created(node):\n    return (yield)\n",
            "its 'fxplug_node_created' is a wrapper; hooks of fxplug have answers of their own and no wrappers",
        ),
        (
            "@hookimpl\nasync def fxplug_node_created(node):\n    return None\n",
            "its 'fxplug_node_created' is a coroutine function; write 'def', not 'async def'",
        ),
        ("PLUGIN_BEFORE = 'good'\n", "PLUGIN_BEFORE is 'good'; it must be a list of plugin names"),
    ],
    ids=["unknown-parameter", "no-parameter-wanted", "default", "star", "wrapper", "async", "place"],
)
def test_an_implementation_that_does_not_fit_its_hook_is_refused(site, definition, reason):
    assert load_broken(site, HALF + definition).reason == reason


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("raise ValueError('no')", "its 'fxplug_register_passes' raised ValueError: no"),
        (
            "return fxplug.PassRecord('a', object, '')",
            "its 'fxplug_register_passes' returned a PassRecord; it must return a list of them",
        ),
        (
            "return ['a']",
            "its 'fxplug_register_passes' returned 'a' in the list; it must hold PassRecord only",
        ),
        (
            "return [fxplug.PassRecord('a:b', object, '')]",
            "its PassRecord is named 'a:b'; names are lower-case words joined by hyphens",
        ),
        (
            "return 2 * [fxplug.PassRecord('a', object, '')]",
            "its 'fxplug_register_passes' offers 'a' twice",
        ),
        (
            "return [fxplug.PassRecord('a', object, '', before='dead-code')]",
            "'before' of its PassRecord 'a' is 'dead-code'; it must be a tuple of names",
        ),
        (
            "return [fxplug.PassRecord('a', object, '', phase='early')]",
            "the phase of its PassRecord 'a' is 'early'; it must be one of prepare, optimize, quantize, lower, finish",
        ),
        (
            "return [fxplug.PassRecord('a', object, '', options=dict)]",
            "the options of its PassRecord 'a' are <class 'dict'>; they must be a dataclass or None",
        ),
        (
            "return [fxplug.PassRecord('a', 3, '')]",
            "the factory of its PassRecord 'a' is 3, which cannot be called",
        ),
    ],
    ids=["raises", "single", "foreign", "name", "twice", "text", "phase", "options", "factory"],
)
def test_records_that_are_not_sound_are_refused(site, body, reason):
    assert load_broken(site, f"{HALF}@hookimpl\ndef fxplug_register_passes():\n    {body}\n").reason == reason


def test_records_may_be_yielded_and_there_may_be_none(site):
    site.install(
        "some", "@hookimpl\ndef fxplug_register_passes():\n    yield fxplug.PassRecord('a', object, '')\n"
    )
    site.install("none", "@hookimpl\ndef fxplug_register_passes():\n    return None\n")

    assert "some:a" in site.manager().passes()


@pytest.mark.parametrize("name", ["core", "Quant", "my_plugin", "a:b"])
def test_a_name_that_is_no_namespace_is_refused(site, name):
    site.install(name, distribution="odd")

    with pytest.warns(PluginWarning, match="its entry point is named"):
        manager = site.manager()

    assert manager.plugin_infos()[0].status == "failed"


def test_two_distributions_that_claim_one_plugin_name_are_both_skipped_until_one_is_disabled(site):
    site.install("quant", GOOD, distribution="acme-quant")
    site.install("quant", GOOD, distribution="other-quant", version="3.0")

    with pytest.warns(PluginWarning) as caught:
        manager = site.manager()

    assert [info.status for info in manager.plugin_infos()] == ["failed", "failed"]
    assert str(caught[0].message) == (
        "Plugin 'quant' (acme-quant 1.0) is skipped: the plugin name 'quant' is claimed by acme-quant 1.0 and "
        'other-quant 3.0. Uninstall one of them, or switch one off by its distribution: disable = ["other-quant"] in '
        "the table [tool.fxplug.plugins]."
    )
    settled = site.manager(disable=["other-quant"])
    assert [info.status for info in settled.plugin_infos()] == ["active", "disabled"]
    with pytest.raises(PluginConflictError):
        site.manager(strict=True)


def test_a_name_belongs_to_the_distribution_that_is_named_after_it(site):
    site.install("quant", GOOD, distribution="fxplug-quant")
    site.install("quant", "raise AssertionError('imported')", distribution="a-quant", version="3.0")

    with pytest.warns(PluginWarning) as caught:
        manager = site.manager()

    assert [(info.distribution, info.status) for info in manager.plugin_infos()] == [
        ("a-quant", "failed"),
        ("fxplug-quant", "active"),
    ]
    assert manager.plugin_info("quant").distribution == "fxplug-quant"
    (warning,) = caught
    assert str(warning.message) == (
        "Plugin 'quant' (a-quant 3.0) is skipped: the plugin name 'quant' is claimed by a-quant 3.0 and fxplug-quant "
        "1.0; it belongs to fxplug-quant, which is named after it. Uninstall one of them, or switch one off by its "
        'distribution: disable = ["a-quant"] in the table [tool.fxplug.plugins].'
    )
    with pytest.raises(PluginConflictError):
        site.manager(strict=True)


def test_a_module_is_one_plugin_only(site):
    module = site.install("one", GOOD)
    site.install("other", target=module)

    with pytest.warns(
        PluginWarning, match=r"its module .* is that of plugin 'one' \(fxplug-one 1.0\) already"
    ):
        manager = site.manager()

    assert [info.status for info in manager.plugin_infos()] == ["active", "failed"]


# -- versions ----------------------------------------------------------------------------------------------------


def test_a_plugin_for_another_fxplug_is_refused_before_it_is_imported(site):
    module = site.install("old", "raise RuntimeError('imported')", requires=["FXPlug >=0.2,<0.3", "torch"])

    with pytest.warns(PluginWarning) as caught:
        manager = site.manager()

    assert module not in sys.modules
    assert manager.plugin_info("old").status == "incompatible"
    assert str(caught[0].message) == (
        "Plugin 'old' (fxplug-old 1.0) is skipped: it requires fxplug <0.3,>=0.2, but fxplug 0.1.0 is running; it was "
        "not imported. Install a release of fxplug-old made for fxplug 0.1.0, or switch the plugin off: "
        "FXPLUG_DISABLE_PLUGINS=old."
    )
    with pytest.raises(IncompatiblePluginError):
        site.manager(strict=True)


@pytest.mark.parametrize(
    "requires",
    [
        [],
        ["fxplug"],
        ["fxplug>=0.1,<0.2"],
        ["fxplug-quant>=7"],
        ['fxplug>=9; extra == "next"'],
        ['fxplug>=9; python_version < "3"'],
    ],
    ids=["none", "any", "fits", "another", "extra", "marker"],
)
def test_a_range_that_does_not_exclude_the_running_version_is_no_obstacle(site, requires):
    site.install("fine", requires=requires)

    assert site.manager().plugin_info("fine").status == "active"


# -- strictness --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "arguments",
    [
        {"strict": True},
        {"environ": {"FXPLUG_STRICT": "1"}},
        {"config": Config(plugins=PluginsConfig(strict=True))},
        {"config": Config(plugins=PluginsConfig(strict=True)), "environ": {"FXPLUG_STRICT": ""}},
    ],
    ids=["argument", "variable", "config", "empty-variable"],
)
def test_strictness_makes_a_failing_plugin_an_error(site, arguments):
    site.install("broken", "import a_library_that_is_missing")

    with pytest.raises(PluginLoadError) as caught:
        site.manager(**arguments)

    assert str(caught.value) == (
        "Cannot load plugin 'broken' (fxplug-broken 1.0): importing fake_plugin_fxplug_broken raised "
        "ModuleNotFoundError: No module named 'a_library_that_is_missing'. Update or uninstall fxplug-broken (pip "
        "uninstall fxplug-broken), or switch the plugin off: FXPLUG_DISABLE_PLUGINS=broken. [FXP-H001]"
    )


def test_a_stronger_source_switches_strictness_off(site):
    site.install("broken", "import a_library_that_is_missing")
    config = Config(plugins=PluginsConfig(strict=True))

    with pytest.warns(PluginWarning):
        site.manager(config=config, environ={"FXPLUG_STRICT": "0"})


def test_strictness_minds_neither_sound_nor_disabled_plugins(site):
    site.install("good", GOOD)
    site.install("broken", "import a_library_that_is_missing")

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        manager = site.manager(strict=True, disable=["broken"])

    assert manager.plugin_info("good").status == "active"


def test_an_empty_list_of_candidates_refuses_discovery(site, monkeypatch):
    site.install("good", GOOD)

    manager = site.manager(candidates=[])

    assert manager.plugin_infos() == []
    with pytest.raises(LookupError, match="There is no plugin named 'good'"):
        manager.plugin_info("good")


# -- functions that are not marked -------------------------------------------------------------------------------


UNMARKED = "def fxplug_is_leaf_module(module):\n    return True\n"


@pytest.mark.parametrize(
    "source",
    [UNMARKED, f"import pluggy\n@pluggy.HookimplMarker('other')\n{UNMARKED}"],
    ids=["not marked", "marked for another project"],
)
def test_a_function_that_is_called_as_a_hook_and_not_marked_is_refused(site, source):
    site.install("deaf", source)

    with pytest.warns(
        PluginWarning,
        match=r"its 'fxplug_is_leaf_module' is not marked as the implementation of a hook; add @fxplug\.hookimpl",
    ):
        manager = site.manager()

    assert manager.plugin_info("deaf").status == "failed"


def test_a_misspelt_function_that_is_not_marked_is_told_the_nearest_hook(site):
    site.install("deaf", "def fxplug_is_laef_module(module):\n    return True\n")

    with pytest.warns(
        PluginWarning, match=r"rename it, or write 'fxplug_is_leaf_module' with @fxplug\.hookimpl"
    ):
        site.manager()


def test_functions_that_only_look_like_hooks_are_nobodys_fault(site):
    site.install(
        "helper",
        """
        import sys
        from types import ModuleType
        from fxplug import trace as fxplug_trace, hookspec
        from fxplug.capture import is_leaf_by_class as fxplug_is_leaf_module
        import fxplug as fxplug_host
        fxplug_limit = 3
        PLUGIN_HOOKSPECS = ModuleType("declarations")
        def helper_convert(node): pass
        PLUGIN_HOOKSPECS.helper_convert = hookspec(helper_convert)
        """,
    )
    site.install("user", "def helper_convert(node):\n    return node\n")

    manager = site.manager(strict=True)

    assert [info.status for info in manager.plugin_infos()] == ["active", "active"]
    assert manager.plugin_info("user").hooks == ()
