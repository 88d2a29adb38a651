"""``FXPLUG_TRACE_PLUGINS``: who was asked what, what was answered, how long it took; and nothing when it is unset."""

from __future__ import annotations

import logging
import re

import pytest
from torch import nn

from fxplug.capture import Tracer
from fxplug.errors import ConfigError, PluginError

PLUGIN = """
@hookimpl
def fxplug_is_leaf_module(module, qualified_name):
    return True if qualified_name == "layer" else None

@hookimpl
def fxplug_node_created(node):
    return {"asked.note": node.name}

@hookimpl
def fxplug_register_passes():
    return []
"""


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(2, 2)
        self.other = nn.ReLU()

    def forward(self, x):
        return self.other(self.layer(x))


@pytest.fixture(autouse=True)
def _logger():
    logger = logging.getLogger("fxplug.plugins")
    level, handlers = logger.level, list(logger.handlers)
    yield
    logger.setLevel(level)
    logger.handlers[:] = handlers


def lines_of(caplog):
    """Return the lines about plugins, without times."""
    lines = [re.sub(r"\d+ us$", "N us", record.getMessage()) for record in caplog.records]
    return [line for line in lines if ": core (fxplug " not in line]


def test_every_call_is_a_line(site, caplog):
    site.install("asked", PLUGIN)
    manager = site.manager(environ={"FXPLUG_TRACE_PLUGINS": "1"})
    assert lines_of(caplog) == ["fxplug_register_passes(): asked (fxplug-asked 1.0) answered [], N us"]
    caplog.clear()

    Tracer(policy=manager.trace_policy()).trace(Model())

    lines = lines_of(caplog)
    assert {record.name for record in caplog.records} == {"fxplug.plugins"}
    assert (
        "fxplug_is_leaf_module(Linear, 'layer', TraceContext): asked (fxplug-asked 1.0) answered True, N us"
        in lines
    )
    assert (
        "fxplug_is_leaf_module(ReLU, 'other', TraceContext): asked (fxplug-asked 1.0) no answer, N us"
        in lines
    )
    assert (
        "fxplug_node_created(layer, TraceContext): asked (fxplug-asked 1.0) answered {'asked.note': 'layer'}, N us"
        in lines
    )


def test_what_is_raised_is_a_line_too(site, caplog):
    site.install("broken", "@hookimpl\ndef fxplug_node_created(node):\n    raise ValueError('no')\n")
    manager = site.manager(environ={"FXPLUG_TRACE_PLUGINS": "yes"})

    with pytest.raises(PluginError, match="raised ValueError: no"):
        Tracer(policy=manager.trace_policy()).trace(Model())

    assert lines_of(caplog)[0].endswith("broken (fxplug-broken 1.0) raised ValueError: no, N us")


@pytest.mark.parametrize("environ", [{}, {"FXPLUG_TRACE_PLUGINS": ""}, {"FXPLUG_TRACE_PLUGINS": "0"}])
def test_unset_it_wraps_nothing(site, caplog, environ):
    site.install("asked", PLUGIN.replace("(node)", "(node, context)"))
    manager = site.manager(environ=environ)

    (entry,) = manager._implementations("fxplug_node_created")
    Tracer(policy=manager.trace_policy()).trace(Model())

    assert entry.function.__module__ == "fake_plugin_fxplug_asked"
    assert caplog.records == []


def test_a_value_that_is_neither_yes_nor_no_is_an_error(site):
    with pytest.raises(
        ConfigError, match="Cannot read the environment variable FXPLUG_TRACE_PLUGINS: it is 'all'"
    ):
        site.manager(environ={"FXPLUG_TRACE_PLUGINS": "all"})
