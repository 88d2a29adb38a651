"""A plugin from somewhere else: its wheel is built, installed, used and removed."""

from __future__ import annotations


def test_it_is_listed_while_it_is_installed_and_leaves_no_trace(full_environment, sample_wheel):
    with full_environment.installed(sample_wheel, "fxplug-sample"):
        assert "fxplug-sample" in full_environment.python("-m", "fxplug", "plugins", "list")

    assert "sample" not in full_environment.python("-m", "fxplug", "plugins", "list")
