"""Converters of operators that plugins bring to the backend of another plugin."""

from __future__ import annotations

import pytest
import torch

import fxplug
from fxplug.errors import PluginError
from fxplug.lower import (
    Conversion,
    ConverterRecord,
    ConvertingBackend,
    EngineValue,
    plan_lowering,
    write_program,
)
from fxplug.plugins import PluginWarning

OWNER = "import {specs} as PLUGIN_HOOKSPECS\n"
SPECS = """
from fxplug import hookspec

@hookspec
def tape_converters():
    '''Offer converters of operators.'''
"""
BRINGS = """
import torch
from fxplug.lower import ConverterRecord

def convert(build, x):
    {body}

@hookimpl(optionalhook=True)
def tape_converters():
    yield ConverterRecord(torch.ops.aten.{operator}.default, convert)
"""


class Tape(Conversion):
    engine = "Tape"

    def add_input(self, name, example, sizes):
        return EngineValue(name, example)

    def add_constant(self, tensor):
        return EngineValue("constant", tensor)

    def add_result(self, name, value):
        pass


class TapeBackend(ConvertingBackend):
    engine = "Tape"
    distribution = "fxplug-tape"
    converter_hook = "tape_converters"

    def __init__(self, manager, *converters):
        super().__init__(converters)
        self.manager = manager

    def host(self):
        return self.manager

    def builtin_converters(self):
        yield ConverterRecord(torch.ops.aten.relu.default, lambda build, x: "own")

    def written(self, program):
        return write_program(program, Tape(), self.converters)

    def compile(self, subgraph, example_inputs, options):
        return self.converted(subgraph, example_inputs)


def install_owner(site):
    (site.folder / "fake_plugin_tape_specs.py").write_text(SPECS)
    site.install("tape", OWNER.format(specs="fake_plugin_tape_specs"))


def brings(body, operator="tanh"):
    return BRINGS.format(body=body, operator=operator)


def reasons(backend):
    module = fxplug.symbolic_trace(lambda x: torch.tanh(torch.relu(x)))
    report = plan_lowering(module, backend, "tape", (torch.ones(2),))
    return {node.name: node.reason for node in report.unsupported}


def test_a_plugin_brings_a_converter(site):
    install_owner(site)
    assert reasons(TapeBackend(site.manager())) == {"tanh": "there is no converter for aten.tanh.default"}

    site.install("more", brings("return 'there'"), version="2.5")
    backend = TapeBackend(site.manager())

    assert reasons(backend) == {}
    assert backend.operators() == {
        "aten.relu.default": "fxplug-tape 1.0",
        "aten.tanh.default": "fxplug-more 2.5",
    }
    assert backend.foreign_providers() == ["fxplug-more 2.5"]


def test_converters_of_plugins_come_before_the_backends_own_and_behind_those_given(site):
    install_owner(site)
    site.install("more", brings("return build.fail", "relu"))
    target = torch.ops.aten.relu.default

    assert TapeBackend(None).operators()[str(target)] == "fxplug-tape 1.0"
    assert TapeBackend(site.manager()).operators()[str(target)] == "fxplug-more 1.0"
    mine = ConverterRecord(target, lambda build, x: "mine")
    assert TapeBackend(site.manager(), mine).converters[target] is mine


def test_a_converter_that_fails_is_named_with_distribution_and_version(site):
    install_owner(site)
    module = site.install("more", brings("raise ValueError('not today')"), version="2.5")

    assert reasons(TapeBackend(site.manager())) == {
        "tanh": f"the converter of aten.tanh.default fails ({module}.convert of fxplug-more 2.5): ValueError: not today"
    }


@pytest.mark.parametrize(
    ("answer", "what"),
    [
        ("1 / 0", "raised ZeroDivisionError"),
        ("['tanh']", "returned 'tanh'; it may return ConverterRecords of fxplug.lower"),
        (
            "[ConverterRecord(torch.ops.aten.tanh.default, 'tanh')]",
            "it may return ConverterRecords of fxplug.lower",
        ),
        ("7", "raised TypeError"),
        ("broken()", "raised RuntimeError: half way"),
    ],
)
def test_a_plugin_that_brings_none_is_named_and_the_others_count(site, answer, what):
    install_owner(site)
    site.install(
        "bad",
        f"""
        import torch
        from fxplug.lower import ConverterRecord

        def broken():
            yield ConverterRecord(torch.ops.aten.relu.default, lambda build, x: None)
            raise RuntimeError("half way")

        @hookimpl(optionalhook=True)
        def tape_converters():
            return {answer}
        """,
    )
    site.install("good", brings("return 'there'"))
    backend = TapeBackend(site.manager())

    with pytest.warns(PluginWarning, match="Hook 'tape_converters' of plugin 'bad'") as caught:
        assert reasons(backend) == {}

    assert len(caught) == 1
    assert what in str(caught[0].message)
    assert "(fxplug-bad 1.0)" in str(caught[0].message)
    with pytest.raises(PluginError, match="fxplug-bad 1"):
        site.manager(strict=True).converters("tape_converters")


def test_plugins_may_bring_none(site):
    install_owner(site)
    site.install("silent", "@hookimpl(optionalhook=True)\ndef tape_converters():\n    return None\n")

    assert site.manager().converters("tape_converters") == []


def test_without_the_plugin_that_declares_the_hook_nobody_is_asked(site):
    site.install("more", brings("return 'there'"))

    assert site.manager().converters("tape_converters") == []


class Misspelt(TapeBackend):
    converter_hook = "tape_convertors"


def test_a_misspelt_hook_of_a_backend_is_an_error_that_names_the_nearest(site):
    install_owner(site)
    site.install("more", brings("return 'there'"))
    backend = Misspelt(site.manager())

    for ask in (reasons, Misspelt.operators, Misspelt.foreign_providers):
        with pytest.raises(PluginError) as caught:
            ask(backend)
        assert caught.value.message == (
            "Cannot ask plugins for converters of Tape (backend class Misspelt of fxplug-tape 1.0): no active plugin "
            "declares the hook 'tape_convertors'. Did you mean 'tape_converters'? Correct `converter_hook`, or declare "
            "the hook in the module that PLUGIN_HOOKSPECS of the plugin names."
        )


def test_a_hook_that_no_plugin_declares_is_an_error_where_the_engine_is_missing_too(site):
    class Missing(TapeBackend):
        def is_installed(self):
            return False

    site.install("tape", "")

    with pytest.raises(PluginError, match=r"declares the hook 'tape_converters'\. None is available\."):
        reasons(Missing(site.manager()))


def test_nothing_is_said_of_hooks_of_plugins_that_are_switched_off(site):
    class Borrowing(TapeBackend):
        distribution = "fxplug-borrowing"

    class Naming(Borrowing):
        converter_hook = "tape_converters"

    install_owner(site)
    site.install("borrowing", "")
    known = {"tanh": "there is no converter for aten.tanh.default"}

    assert reasons(Misspelt(site.manager(disable=["tape"]))) == known
    assert reasons(Borrowing(site.manager(disable=["tape"]))) == known
    assert reasons(Naming(site.manager(disable=["tape"]))) == known
    assert reasons(Borrowing(site.manager())) == known


def test_a_class_that_derives_from_a_backend_asks_by_the_hook_of_that_backend(site):
    class Derived(TapeBackend):
        distribution = "fxplug-derived"

    site.install("derived", "")
    known = {"tanh": "there is no converter for aten.tanh.default"}

    assert reasons(Derived(site.manager())) == known  # Where the plugin of that one is not installed.


def test_hosts_that_know_nothing_of_declarations_are_asked():
    class Host:
        def converters(self, hook):
            assert hook == "tape_convertors"
            return [("somebody 1", ConverterRecord(torch.ops.aten.tanh.default, lambda build, x: "there"))]

        def decompositions(self):
            return ()

    assert reasons(Misspelt(Host())) == {}
