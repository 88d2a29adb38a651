"""A graph module whose generated function has another calling convention, or a changed body."""

from __future__ import annotations

import copy
import inspect
import pickle
import typing

import pytest
import torch

from fxplug.capture import Transformer
from fxplug.codegen import CodeGen
from fxplug.execute import GraphModule, Interpreter


class ListCodeGen(CodeGen):
    """Takes the inputs in one list, written as for torch.fx."""

    def gen_fn_def(self, free_vars, maybe_return_annotation):
        return f"""
def forward(self, args_list: List[torch.Tensor]){maybe_return_annotation}:
    {", ".join(free_vars)} = args_list"""

    def additional_globals(self):
        return [("List", typing.List), ("torch", torch)]  # noqa: UP006 - as such generators are written

    def process_inputs(self, *inputs):
        assert len(inputs) == 1
        return inputs[0]


class ListOutput(ListCodeGen):
    def generate_output(self, output_args):
        return f"return list({output_args!r})"

    def process_outputs(self, outputs):
        return list(outputs)


def both(a, b):
    a = a + b
    b = torch.relu(a + b)
    return a, b


VALUES = [torch.linspace(-1, 1, 3), torch.ones(3)]


@pytest.fixture
def listed(capture):
    module = capture(both)
    module.graph.set_codegen(ListOutput())
    return module


def check(result):
    assert isinstance(result, list)
    torch.testing.assert_close(result, list(both(*VALUES)))


def test_setting_a_generator_needs_no_recompilation(capture):
    module = capture(lambda a, b: a + b)
    assert torch.equal(module(*VALUES), VALUES[0] + VALUES[1])
    module.graph.set_codegen(ListCodeGen())

    assert torch.equal(module(VALUES), VALUES[0] + VALUES[1])
    assert list(inspect.signature(module.forward).parameters) == ["args_list"]


def test_the_graph_runs_bare_with_processed_inputs_and_outputs(listed):
    bare = GraphModule({}, copy.deepcopy(listed.graph))
    bare.graph.set_codegen(CodeGen())

    check(listed(VALUES))
    check(listed.graph.process_outputs(bare(*listed.graph.process_inputs(VALUES))))


def test_the_interpreter_takes_and_gives_what_the_module_does(listed):
    check(Interpreter(listed).run(VALUES))


def test_the_interpreter_may_speak_the_language_of_the_graph(listed):
    result = Interpreter(listed).run(*VALUES, enable_io_processing=False)

    assert isinstance(result, tuple)
    torch.testing.assert_close(result, both(*VALUES))


def test_a_boxed_run_gives_what_the_module_does(listed):
    inputs = list(VALUES)

    check(Interpreter(listed).boxed_run(inputs))
    assert inputs == []


def test_a_transformed_module_keeps_its_calling_convention(listed):
    check(Transformer(listed).transform()(VALUES))


@pytest.mark.parametrize(
    "make", [copy.copy, copy.deepcopy, lambda module: pickle.loads(pickle.dumps(module))]
)
def test_a_copy_keeps_its_calling_convention(listed, make):
    check(make(listed)(VALUES))


@pytest.mark.filterwarnings("ignore:.*torch.jit.script.*is deprecated:DeprecationWarning")
def test_another_calling_convention_can_be_scripted(capture):
    module = capture(lambda a, b: a + b)
    module.graph.set_codegen(ListCodeGen())

    assert torch.equal(torch.jit.script(module)(VALUES), module(VALUES))


def test_a_changed_body_runs_at_once_and_only_in_its_context(capture):
    module = capture(lambda a, b: a + b)
    before = module(*VALUES)
    with module.graph.on_generate_code(lambda _: lambda lines: ["a = a * 2\n", *lines]):
        assert torch.equal(module(*VALUES), VALUES[0] * 2 + VALUES[1])
    assert torch.equal(module(*VALUES), before)
