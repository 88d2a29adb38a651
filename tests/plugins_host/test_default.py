"""The manager of the process: made once, when it is needed, and forgotten on request."""

from __future__ import annotations

import math
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from fxplug.errors import ConfigError
from fxplug.ir import OUTSIDE, RANDOM, Graph, effects, writes
from fxplug.plugins import EffectRecord, PluginWarning, default_manager, hookimpl, reset_default_manager
from fxplug.plugins.effects import apply_effects


@pytest.fixture(autouse=True)
def fresh(monkeypatch):
    monkeypatch.setenv("FXPLUG_CONFIG", "")
    for variable in ("FXPLUG_LOAD_PLUGINS", "FXPLUG_DISABLE_PLUGINS", "FXPLUG_STRICT"):
        monkeypatch.delenv(variable, raising=False)
    reset_default_manager()
    yield
    reset_default_manager()


def test_it_is_made_once_even_by_many_threads():
    gate = threading.Barrier(8)

    def ask():
        gate.wait()
        return default_manager()

    with ThreadPoolExecutor(8) as pool:
        managers = {id(future.result()) for future in [pool.submit(ask) for _ in range(8)]}

    assert len(managers) == 1


def test_it_finds_installed_plugins_and_reads_the_configuration(site, monkeypatch, tmp_path):
    site.install("alpha")
    site.install("beta")
    config = tmp_path / "fxplug.toml"
    config.write_text('[plugins]\ndisable = ["alpha"]\n')
    monkeypatch.setenv("FXPLUG_CONFIG", str(config))

    manager = default_manager()

    assert manager.config.file == config
    assert manager.plugin_info("alpha").status == "disabled"
    assert manager.plugin_info("beta").status == "active"


def test_a_failure_is_told_again_at_the_next_use(monkeypatch, tmp_path):
    monkeypatch.setenv("FXPLUG_CONFIG", str(tmp_path / "missing.toml"))

    for _ in range(2):
        with pytest.raises(ConfigError):
            default_manager()
    monkeypatch.setenv("FXPLUG_CONFIG", "")

    assert default_manager().config.file is None


def test_a_plugin_that_uses_the_host_while_it_is_imported_is_refused(site):
    site.install("eager", "from fxplug.plugins import default_manager\ndefault_manager()")

    with pytest.warns(PluginWarning, match="Cannot use plugins while they are being loaded"):
        manager = default_manager()

    assert manager.plugin_info("eager").status == "failed"


# -- effects -----------------------------------------------------------------------------------------------------


def effect_of(target):
    graph = Graph()
    return effects.effect_of(graph.call_function(target, (graph.placeholder("x"),)))


def log_value(value):
    return value


def test_effects_hold_while_the_manager_does(site):
    module = site.install(
        "logs",
        """
        from fxplug.plugins import EffectRecord
        from fxplug.ir import OUTSIDE

        def log_value(value):
            return value

        @hookimpl
        def fxplug_register_effects():
            return [EffectRecord(log_value, OUTSIDE)]
        """,
    )
    default_manager()
    import sys

    target = sys.modules[module].log_value
    assert effect_of(target) == OUTSIDE

    reset_default_manager()

    assert effect_of(target).unknown


def test_what_several_say_about_one_target_is_joined_and_what_was_there_comes_back():
    former = effect_of(math.sqrt)
    undo = apply_effects(
        [
            EffectRecord(math.sqrt, RANDOM),
            EffectRecord(math.sqrt, lambda node, module: writes(0)),
            EffectRecord(math.sqrt, lambda node, module: None),
        ]
    )

    assert effect_of(math.sqrt) == RANDOM.join(writes(0))

    undo()

    assert effect_of(math.sqrt) == former


@pytest.mark.parametrize(
    ("record", "reason"),
    [
        (EffectRecord([], OUTSIDE), r"the target of its EffectRecord, \[\], is not hashable"),
        (EffectRecord(log_value, "outside"), "holds 'outside'"),
    ],
)
def test_an_effect_record_that_is_not_sound_is_refused(manager_of, record, reason):
    register = hookimpl(specname="fxplug_register_effects")(lambda: [record])

    with pytest.warns(PluginWarning, match=reason):
        manager = manager_of({"odd": {"fxplug_register_effects": register}})

    assert manager.effect_records() == ()
