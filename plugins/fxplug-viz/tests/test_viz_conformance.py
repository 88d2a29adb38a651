"""The plugin keeps to what fxplug asks of every plugin."""

from __future__ import annotations

from fxplug.testing import check_plugin
from fxplug_viz import plugin


def test_it_passes_the_checks_of_fxplug():
    check_plugin(plugin, name="viz").raise_failures()
