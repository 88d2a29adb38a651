"""The wheels, installed where nothing else is."""

from __future__ import annotations

PLUGINS = ["openvino", "quant", "tensorrt", "viz"]

# The fixtures are for test suites, which bring pytest; running fxplug.__main__ runs the command line.
IMPORT_EVERYTHING = """
import importlib, pkgutil, fxplug
for module in pkgutil.walk_packages(fxplug.__path__, "fxplug."):
    if not module.name.startswith(("fxplug.__main__", "fxplug.testing.pytest_plugin")):
        importlib.import_module(module.name)
        print(module.name)
"""


def test_every_module_of_the_core_imports_with_the_declared_dependencies_alone(core_environment):
    imported = core_environment.python("-c", IMPORT_EVERYTHING).split()

    assert "fxplug.cli" in imported
    assert "fxplug.ir.graph" in imported
    assert "fxplug.testing.conformance" in imported


def test_the_installed_distributions_fit_together(full_environment):
    assert "No broken requirements found" in full_environment.python("-m", "pip", "check")


def test_the_command_is_installed_and_answers(full_environment, run_command):
    script = full_environment.script("fxplug")

    version = full_environment.python(
        "-c", "from importlib.metadata import version; print(version('fxplug'))"
    )
    assert version.strip() in run_command(str(script), "--version", cwd=full_environment.folder)
    assert "Usage" in run_command(str(script), "--help", cwd=full_environment.folder)


def test_every_plugin_is_discovered(full_environment):
    listing = full_environment.python("-m", "fxplug", "plugins", "list")

    assert [name for name in PLUGINS if name not in listing] == [], listing
