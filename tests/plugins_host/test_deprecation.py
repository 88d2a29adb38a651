"""Hooks and arguments that are going away warn with the name of the distribution that uses them."""

from __future__ import annotations

import warnings

import pytest

SPECS = """
import warnings
from fxplug import hookspec

@hookspec(warn_on_impl=DeprecationWarning("quant_old goes away in quant 2.0; implement quant_new."))
def quant_old(kind):
    '''Old.'''

@hookspec(warn_on_impl_args={"width": DeprecationWarning("The argument width goes away in quant 2.0.")})
def quant_new(kind, width):
    '''New.'''
"""


@pytest.fixture
def owner(site):
    (site.folder / "fake_plugin_quant_specs.py").write_text(SPECS)
    site.install("quant", "import fake_plugin_quant_specs as PLUGIN_HOOKSPECS")


@pytest.mark.usefixtures("owner")
@pytest.mark.parametrize(
    ("source", "text"),
    [
        (
            "@hookimpl\ndef quant_old(kind):\n    return kind\n",
            "quant_old goes away in quant 2.0; implement quant_new.",
        ),
        (
            "@hookimpl\ndef quant_new(width):\n    return width\n",
            "The argument width goes away in quant 2.0.",
        ),
    ],
    ids=["hook", "argument"],
)
def test_the_warning_names_plugin_distribution_and_version_and_points_at_the_code(site, source, text):
    module = site.install("user", source, version="3.4")

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        manager = site.manager()

    (warning,) = caught
    assert str(warning.message) == f"Plugin 'user' (fxplug-user 3.4): {text}"
    assert warning.category is DeprecationWarning
    assert warning.filename == str(site.folder / f"{module}.py")
    assert manager.plugin_info("user").status == "active"
    hook = manager.plugin_info("user").hooks[0]
    arguments = {"kind": 1} if hook == "quant_old" else {"kind": 1, "width": 1}
    assert manager.ask(hook, **arguments) == [1]


@pytest.mark.usefixtures("owner")
def test_whoever_does_without_hears_nothing(site):
    site.install("user", "@hookimpl\ndef quant_new(kind):\n    return kind\n")

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        site.manager()
