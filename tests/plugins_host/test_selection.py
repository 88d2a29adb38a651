"""Which plugins are loaded: argument, then environment, then configuration."""

from __future__ import annotations

import sys

import pytest

from fxplug.errors import ConfigError, PluginError, UnknownNameError
from fxplug.plugins import Config, PluginsConfig


@pytest.fixture
def three(site):
    for name in ("alpha", "beta", "gamma"):
        site.install(name)
    return site


def active(manager):
    return [info.name for info in manager.plugin_infos() if info.status == "active"]


def disabling(*names):
    return Config(plugins=PluginsConfig(disable=names))


def test_everything_is_loaded_by_default(three):
    assert active(three.manager()) == ["alpha", "beta", "gamma"]


def test_the_argument_is_stronger_than_every_variable(three):
    environ = {"FXPLUG_LOAD_PLUGINS": "beta", "FXPLUG_DISABLE_PLUGINS": "*"}

    assert active(three.manager(load=["alpha"], environ=environ)) == ["alpha"]
    assert active(three.manager(load=[], environ=environ)) == []
    assert active(three.manager(disable=["beta"], environ=environ)) == []


def test_the_list_of_plugins_to_load_is_stronger_than_those_that_disable(three):
    environ = {"FXPLUG_LOAD_PLUGINS": "beta, gamma", "FXPLUG_DISABLE_PLUGINS": "beta"}

    assert active(three.manager(environ=environ, config=disabling("gamma"))) == ["beta", "gamma"]


def test_an_empty_list_of_plugins_to_load_loads_none(three):
    manager = three.manager(environ={"FXPLUG_LOAD_PLUGINS": ""})

    assert active(manager) == []
    assert manager.plugin_info("beta").reason == "it is not among those that FXPLUG_LOAD_PLUGINS lists"


def test_a_star_disables_all(three):
    assert active(three.manager(environ={"FXPLUG_DISABLE_PLUGINS": "*"})) == []


def test_variable_and_configuration_disable_together(three):
    manager = three.manager(environ={"FXPLUG_DISABLE_PLUGINS": "alpha"}, config=disabling("beta"))

    assert active(manager) == ["gamma"]
    assert manager.plugin_info("alpha").reason == "switched off by FXPLUG_DISABLE_PLUGINS"
    assert manager.plugin_info("beta").reason == "switched off by plugins.disable"


def test_the_reason_names_file_and_line(three, config_file, tmp_path):
    config = config_file('[tool.fxplug.plugins]\ndisable = ["fxplug-beta"]\n')

    reason = three.manager(config=config).plugin_info("beta").reason

    assert reason == f"switched off by plugins.disable at {tmp_path / 'pyproject.toml'}:2"


def test_a_disabled_plugin_is_not_imported(site):
    module = site.install("quiet", "raise RuntimeError('imported')")

    manager = site.manager(disable=["quiet"])

    assert module not in sys.modules
    assert manager.plugin_info("quiet").status == "disabled"


@pytest.mark.parametrize("name", ["beta", "fxplug-beta", "FXPLUG_beta"])
def test_a_plugin_may_be_named_by_its_distribution(three, name):
    assert active(three.manager(disable=[name])) == ["alpha", "gamma"]


@pytest.mark.parametrize(
    ("arguments", "source"),
    [
        ({"load": ["betta"]}, "the argument 'load'"),
        ({"disable": ["betta"]}, "the argument 'disable'"),
        ({"environ": {"FXPLUG_LOAD_PLUGINS": "betta"}}, "FXPLUG_LOAD_PLUGINS"),
        ({"environ": {"FXPLUG_DISABLE_PLUGINS": "betta"}}, "FXPLUG_DISABLE_PLUGINS"),
        ({"config": disabling("betta")}, "plugins.disable"),
    ],
    ids=["load", "disable", "load-variable", "disable-variable", "config"],
)
def test_an_unknown_name_is_an_error_wherever_it_stands(three, arguments, source):
    with pytest.raises(UnknownNameError) as caught:
        three.manager(**arguments)

    assert str(caught.value) == (
        f"There is no plugin named 'betta'. Did you mean 'beta'? The name stands in {source}. [FXP-F001]"
    )


def test_without_any_plugin_the_error_says_so(site):
    with pytest.raises(UnknownNameError, match=r"There is no plugin named 'viz'. None is available."):
        site.manager(disable=["viz"])


# -- required plugins --------------------------------------------------------------------------------------------


def requiring(*texts):
    return Config(plugins=PluginsConfig(require=texts))


def test_required_plugins_that_are_active_are_fine(three):
    assert len(active(three.manager(config=requiring("alpha>=1.0", "fxplug-beta")))) == 3


def test_a_required_plugin_that_is_not_installed_is_an_error(three):
    with pytest.raises(UnknownNameError) as caught:
        three.manager(config=requiring("delta>=1"))

    assert str(caught.value) == (
        "There is no plugin named 'delta'. Did you mean 'beta'? It is required by plugins.require; install "
        "it. [FXP-F001]"
    )


def test_a_required_plugin_that_is_disabled_is_an_error(three):
    with pytest.raises(
        PluginError, match=r"'alpha' \(fxplug-alpha 1.0\) is required by .* but it is disabled"
    ):
        three.manager(config=requiring("alpha"), disable=["alpha"])


def test_a_required_plugin_of_another_version_is_an_error(three):
    with pytest.raises(PluginError, match=r"does not fit 'alpha>=2'.*pip install 'fxplug-alpha>=2'"):
        three.manager(config=requiring("alpha>=2"))


def test_a_malformed_requirement_is_an_error(three):
    with pytest.raises(ConfigError, match=r"Cannot read 'alpha >> 2' in plugins.require"):
        three.manager(config=requiring("alpha >> 2"))


@pytest.mark.parametrize("text", ["alpha @ file:///x", "alpha[extra]", "alpha; python_version < '3'"])
def test_a_requirement_that_says_more_than_name_and_version_is_an_error(three, text):
    with pytest.raises(ConfigError, match=r"Cannot use .* in plugins\.require: the \w+ .* says nothing here"):
        three.manager(config=requiring(text))
