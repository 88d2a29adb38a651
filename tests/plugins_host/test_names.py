"""Names of what plugins offer: namespaced, short while unique, and never a silent conflict."""

from __future__ import annotations

import pytest

from fxplug.errors import BackendError, PluginConflictError, PluginError, UnknownNameError
from fxplug.plugins import BackendRecord, CommandRecord, PassRecord, hookimpl


def offering(*names):
    """Return the members of a plugin that offers passes, backends and commands with these names."""

    @hookimpl
    def fxplug_register_passes():
        return [PassRecord(name, object, "") for name in names]

    @hookimpl
    def fxplug_register_backends():
        return [BackendRecord(name, object, "") for name in names]

    @hookimpl
    def fxplug_register_commands():
        return [CommandRecord(name, object, "") for name in names]

    return {
        function.__name__: function
        for function in (fxplug_register_passes, fxplug_register_backends, fxplug_register_commands)
    }


@pytest.fixture
def manager(manager_of):
    return manager_of({"alpha": offering("shared", "own"), "beta": offering("shared", "dead-code")})


def test_a_pass_has_its_plugin_as_namespace_and_tells_where_it_comes_from(manager):
    offer = manager.passes()["alpha:own"]

    assert (offer.name, offer.plugin, offer.distribution, offer.version) == (
        "alpha:own",
        "alpha",
        "fxplug-alpha",
        "1.0",
    )
    assert offer.provider == "fxplug-alpha 1.0"
    assert (offer.alias, offer.shown_name) == ("own", "own")


def test_what_fxplug_offers_has_no_namespace_and_is_also_found_with_one(manager):
    offer = manager.find_pass("dead-code")

    assert (offer.name, offer.plugin, offer.distribution) == ("dead-code", "core", "fxplug")
    assert manager.find_pass("core:dead-code") is offer
    assert manager.find_backend("eager").name == manager.find_backend("core:eager").name == "eager"


def test_a_short_name_works_while_it_is_unique(manager):
    for find in (manager.find_pass, manager.find_backend, manager.find_command):
        assert find("own").name == find("alpha:own").name == "alpha:own"


def test_installing_a_plugin_never_changes_what_a_name_of_fxplug_means(manager):
    assert manager.find_pass("dead-code").plugin == "core"
    assert manager.find_pass("beta:dead-code").plugin == "beta"
    assert manager.passes()["beta:dead-code"].alias is None


def test_a_name_that_two_plugins_claim_is_a_conflict_that_says_how_to_settle_it(manager):
    assert manager.passes()["alpha:shared"].shown_name == "alpha:shared"
    assert manager.find_pass("beta:shared").plugin == "beta"

    with pytest.raises(PluginConflictError) as caught:
        manager.find_pass("shared")

    assert str(caught.value) == (
        "The pass name 'shared' is claimed by several plugins: 'alpha:shared' (fxplug-alpha 1.0) and 'beta:shared' "
        '(fxplug-beta 1.0). Write one of the full names, or switch a plugin off: disable = ["beta"] in the table '
        "[tool.fxplug.plugins]. [FXP-H002]"
    )


def test_the_line_that_the_conflict_names_settles_it(manager_of):
    plugins = {"alpha": offering("shared"), "beta": offering("shared")}

    assert manager_of(plugins, disable=["beta"]).find_pass("shared").plugin == "alpha"


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("fuse-con-bn", "There is no pass named 'fuse-con-bn'. Did you mean 'fuse-conv-bn'? [FXP-F001]"),
        ("alpha:onw", "There is no pass named 'alpha:onw'. Did you mean 'alpha:own'? [FXP-F001]"),
        ("core:own", "There is no pass named 'core:own'. Available: 'alpha:own', "),
    ],
)
def test_an_unknown_name_offers_the_nearest(manager, name, message):
    with pytest.raises(UnknownNameError) as caught:
        manager.find_pass(name)

    assert str(caught.value).startswith(message)


def test_an_unknown_name_tells_of_plugins_that_are_not_active(manager_of):
    manager = manager_of({"alpha": offering("own")}, disable=["alpha"])

    with pytest.raises(UnknownNameError) as caught:
        manager.find_backend("own")

    assert str(caught.value) == (
        "There is no backend named 'own'. Available: 'eager', 'inductor'. Installed but not active: 'alpha' (disabled: "
        "switched off by the argument 'disable'). [FXP-F001]"
    )


def test_what_is_offered_is_made_with_its_options(manager_of):
    @hookimpl
    def fxplug_register_backends():
        return [BackendRecord("engine", lambda level: f"engine at level {level}", "")]

    manager = manager_of({"alpha": {"fxplug_register_backends": fxplug_register_backends}})

    assert manager.find_backend("engine").create(level=3) == "engine at level 3"


def failing(error):
    def factory():
        raise error

    @hookimpl
    def fxplug_register_backends():
        return [BackendRecord("engine", factory, "")]

    return {"alpha": {"fxplug_register_backends": fxplug_register_backends}}


def test_a_factory_that_fails_is_named_with_its_distribution(manager_of):
    offer = manager_of(failing(ZeroDivisionError("by zero"))).find_backend("engine")

    with pytest.raises(PluginError) as caught:
        offer.create()

    assert str(caught.value) == (
        "Cannot make 'alpha:engine' of plugin 'alpha' (fxplug-alpha 1.0): its factory raised ZeroDivisionError: by "
        "zero. Report it to the authors of fxplug-alpha. [FXP-H000]"
    )


def test_what_a_factory_itself_reports_goes_through(manager_of):
    offer = manager_of(failing(BackendError("Install the engine."))).find_backend("engine")

    with pytest.raises(BackendError, match="Install the engine"):
        offer.create()
