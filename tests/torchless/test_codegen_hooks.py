"""What users may change about generated code: the hooks of `CodeGen`, and transformers of the body."""

from __future__ import annotations

import copy
import gc
import operator
import traceback
import typing
import weakref
from types import SimpleNamespace

import pytest

from fxplug.codegen import CodeGen, compile_code
from fxplug.errors import CodegenError
from fxplug.ir import Graph, RegionEntry


class ListCodeGen(CodeGen):
    """Takes the inputs in one list, as people wrote it for torch.fx."""

    def gen_fn_def(self, free_vars, maybe_return_annotation):
        return f"""
def forward(self, args_list: List[int]){maybe_return_annotation}:
    {", ".join(free_vars)} = args_list"""

    def additional_globals(self):
        return [("List", typing.List)]  # noqa: UP006 - as such generators are written

    def process_inputs(self, *inputs):
        assert len(inputs) == 1
        return inputs[0]


class Tupled(ListCodeGen):
    def generate_output(self, output_args):
        return f"return list({output_args!r})"

    def process_outputs(self, outputs):
        return list(outputs)


def build(codegen=None, returns=None):
    graph = Graph()
    a, b = graph.placeholder("a"), graph.placeholder("b")
    total = graph.call_function(operator.add, (a, b))
    graph.output((total, a) if returns is None else returns(total), type_expr=None)
    if codegen is not None:
        graph.set_codegen(codegen)
    return graph


def body(graph):
    return [line.strip() for line in graph.python_code().src.splitlines()[1:]]


# -- the beginning of the function


def test_a_generator_may_have_its_own_calling_convention(run):
    assert run(build(ListCodeGen()), [2, 3]) == (5, 2)


def test_the_text_of_a_hook_stands_in_the_source_as_it_is():
    assert build(ListCodeGen()).python_code().src.splitlines() == [
        "def forward(self, args_list: List[int]):",
        "    a, b = args_list",
        "    add = a + b;  b = None",
        "    return (add, a)",
    ]


def test_the_hook_receives_parameters_as_they_stand_in_a_signature():
    seen = []

    class Watching(CodeGen):
        def gen_fn_def(self, free_vars, maybe_return_annotation):
            seen.append((list(free_vars), maybe_return_annotation))
            return super().gen_fn_def(free_vars, maybe_return_annotation)

    graph = Graph()
    graph.placeholder("x", int)
    graph.placeholder("y", default_value=2)
    graph.placeholder("z", float, default_value=3.0)
    graph.placeholder("*rest")
    graph.placeholder("key")
    graph.placeholder("**more")
    graph.output(None, int)
    plain = graph.python_code().src
    graph.set_codegen(Watching())

    assert graph.python_code().src == plain
    assert seen == [(["x : int", "y = 2", "z : float = 3.0", "*rest", "key", "**more"], " -> int")]


def test_parameters_passed_by_keyword_stay_so_through_the_default(run):
    class Watching(CodeGen):
        def gen_fn_def(self, free_vars, maybe_return_annotation):
            assert free_vars == ["a", "*", "b"]
            return super().gen_fn_def(free_vars, maybe_return_annotation)

    graph = build(Watching())
    graph.keyword_only = {"b"}

    assert run(graph, 2, b=3) == (5, 2)


def test_the_default_names_the_module_first_and_does_not_change_what_it_was_given():
    names = ["a", "b"]

    assert CodeGen().gen_fn_def(names, " -> int") == "def forward(self, a, b) -> int:"
    assert CodeGen().gen_fn_def(["self", "a"], "") == "def forward(self, a):"
    assert names == ["a", "b"]


def test_each_parameter_may_have_a_line_of_its_own():
    text = CodeGen().gen_fn_def(["a", "b = 1"], "", expanded_def=True)

    assert text.splitlines() == ["def forward(", "    self,", "    a,", "    b = 1,", "):"]


@pytest.mark.parametrize("op", ["placeholder", "call_function"])
def test_a_value_named_self_is_refused_where_the_text_of_a_hook_names_the_module_so(op):
    graph = Graph()
    if op == "placeholder":
        graph.placeholder("self")
    else:
        graph.call_function(print, name="self")
    graph.output(None)
    graph.python_code()
    graph.set_codegen(ListCodeGen())

    with pytest.raises(CodegenError, match=r"a node or parameter is named 'self'.*Assign node\.name"):
        graph.python_code()


def test_the_module_goes_by_the_name_that_was_asked_for():
    class Root:
        weight = 7

    graph = Graph()
    x = graph.placeholder("x")
    graph.placeholder("y")
    graph.output(graph.call_function(operator.add, (x, graph.get_attr("weight"))))
    graph.set_codegen(ListCodeGen())

    assert compile_code(graph.python_code("it")).function(Root(), [1, 2]) == 8


def test_a_hook_set_on_one_instance_counts(run):
    codegen = CodeGen()
    codegen.gen_fn_def = lambda free_vars, annotation: "def forward(self, a, b=10):"

    assert run(build(codegen), 1) == (11, 1)


def test_a_function_of_another_name_is_refused_when_it_is_compiled():
    class Wrong(CodeGen):
        def gen_fn_def(self, free_vars, maybe_return_annotation):
            return "def backward(self, a, b):"

    with pytest.raises(CodegenError, match=r"defines no function 'forward'.*gen_fn_def"):
        compile_code(build(Wrong()).python_code())


def test_text_that_python_does_not_accept_is_refused_when_it_is_compiled():
    class Wrong(CodeGen):
        def gen_fn_def(self, free_vars, maybe_return_annotation):
            return "def forward(self, a, b)"

    with pytest.raises(CodegenError, match="Cannot compile the generated code"):
        compile_code(build(Wrong()).python_code())


@pytest.mark.parametrize("hook", ["gen_fn_def", "generate_output"])
def test_a_hook_that_does_not_return_text_is_named(hook):
    codegen = CodeGen()
    setattr(codegen, hook, lambda *args, **options: None)

    with pytest.raises(CodegenError, match=rf"{hook} of the code generator gave a NoneType where text"):
        build(codegen).python_code()


# -- the end of the function


def test_the_last_statement_may_be_another_one(run):
    assert run(build(Tupled()), [2, 3]) == [5, 2]


def test_the_output_hook_may_use_the_printer_of_arguments(run):
    value = object()

    class Wrapped(CodeGen):
        def generate_output(self, output_args, *, repr_fn=None):
            return f"result = {repr_fn(output_args)}\nreturn [result]"

    graph = build(Wrapped(), returns=lambda total: (total, value))

    assert run(graph, 2, 3) == [(5, value)]


def test_the_default_of_the_output_hook_returns_what_it_is_given():
    assert CodeGen().generate_output((1, [2])) == "return (1, [2])"
    assert CodeGen().generate_output(1, repr_fn=lambda value: f"<{value}>") == "return <1>"


def test_the_output_hook_is_not_asked_inside_a_region(run):
    graph = build(Tupled())
    seen = []

    class Context:
        def __enter__(self):
            seen.append("in")

        def __exit__(self, *_):
            seen.append("out")

    for node in graph.nodes:
        node.region = (RegionEntry(Context),)

    assert run(graph, [1, 2]) == [3, 1]
    assert seen == ["in", "out"]


# -- globals


def test_a_global_of_the_generator_that_a_value_hides_is_refused():
    graph = Graph()
    graph.call_function(print, name="List")
    graph.output(None)
    graph.set_codegen(ListCodeGen())

    with pytest.raises(CodegenError, match=r"named 'List', which the code generator uses.*Assign node\.name"):
        graph.python_code()


def test_a_global_of_the_generator_never_takes_the_place_of_another(run):
    class Odd(CodeGen):
        def additional_globals(self):
            return [("operator", "not the module"), ("print", "not the function"), ("pow", pow)]

    graph = Graph()
    a = graph.placeholder("a")
    calls = [
        graph.call_function(operator.call, (operator.neg, a))
        if hasattr(operator, "call")
        else graph.call_function(operator.abs, (a,)),
        graph.call_function(operator.index, (a,)),
        graph.call_function(pow, (a, 2)),
        graph.call_function(print, ()),
    ]
    graph.output(tuple(calls))
    plain = run(graph, 3)
    graph.set_codegen(Odd())

    assert run(graph, 3) == plain
    assert graph.python_code().globals["operator"] == "not the module"


def test_a_local_that_holds_a_module_does_not_take_the_name_of_a_global(run):
    class Noting(CodeGen):
        def additional_globals(self):
            return [("part_deep", "the global")]

        def generate_output(self, output_args):
            return f"return {output_args!r}, part_deep"

    root = SimpleNamespace(part=SimpleNamespace(deep=SimpleNamespace(one=1, two=2)))
    graph = Graph()
    graph.output((graph.get_attr("part.deep.one"), graph.get_attr("part.deep.two")))
    assert "part_deep = " in graph.python_code().src
    graph.set_codegen(Noting())

    assert run(graph, root=root) == ((1, 2), "the global")


@pytest.mark.parametrize("name", ["", "a b", "class", "x\ny"])
def test_the_name_of_a_global_must_be_an_identifier(name):
    class Odd(CodeGen):
        def additional_globals(self):
            return [(name, 1)]

    with pytest.raises(CodegenError, match="no identifier"):
        build(Odd()).python_code()


# -- inputs and outputs as values


def test_a_graph_knows_how_its_generator_relates_values():
    graph = build(Tupled())

    assert graph.process_inputs([1, 2]) == [1, 2]
    assert graph.process_outputs((1, 2)) == [1, 2]


@pytest.mark.parametrize("codegen", [None, CodeGen(), object()])
def test_without_a_calling_convention_of_its_own_values_stay(codegen):
    graph = build(codegen)

    assert graph.process_inputs(1, 2) == (1, 2)
    assert graph.process_outputs((1, 2)) == (1, 2)


def test_the_generator_of_another_graph_can_be_taken_over(run):
    graph = build()
    graph.generate_code_as(build(ListCodeGen()))

    assert run(graph, [1, 2]) == (3, 1)


# -- transformers of the body


def doubling(former):
    def transform(lines):
        lines = former(lines) if former else lines
        return [line.replace("a + b", "(a + b) * 2") for line in lines]

    return transform


def noting(log):
    return lambda former: lambda lines: [f"log.append({log!r})\n", *(former(lines) if former else lines)]


def test_a_transformer_changes_the_function_and_not_the_graph(run):
    graph = build()
    text = str(graph)
    graph.on_generate_code(doubling)

    assert run(graph, 2, 3) == (10, 2)
    assert str(graph) == text


def test_a_transformer_sees_the_lines_of_the_body():
    graph = build()
    seen = []
    graph.on_generate_code(lambda _: lambda lines: seen.extend(lines) or lines)
    source = graph.python_code().src

    assert seen == ["add = a + b;  b = None\n", "return (add, a)\n"]
    assert source == build().python_code().src


def test_lines_inside_a_region_keep_their_indentation(run):
    class Context:
        def __enter__(self):
            pass

        def __exit__(self, *_):
            pass

    graph = build()
    for node in graph.find_nodes(op="call_function"):
        node.region = (RegionEntry(Context),)
    plain = graph.python_code().src
    graph.on_generate_code(lambda _: lambda lines: ["\n", "# first\n# second\n", *lines])

    assert graph.python_code().src.splitlines() == [
        *plain.splitlines()[:1],
        "",
        "    # first",
        "    # second",
        *plain.splitlines()[1:],
    ]
    assert run(graph, 1, 2) == (3, 1)


def test_lines_need_not_end_where_elements_do(run):
    graph = build()
    graph.on_generate_code(lambda _: lambda lines: ["extra", " = 1\n", *lines, "# the end"])

    assert body(graph)[0] == "extra = 1"
    assert body(graph)[-1] == "# the end"
    assert run(graph, 1, 2) == (3, 1)


def test_as_a_context_the_change_ends_with_it():
    graph = build()
    plain = graph.python_code().src
    with graph.on_generate_code(doubling) as nothing:
        assert nothing is None
        assert "* 2" in graph.python_code().src

    assert graph.python_code().src == plain


def test_the_context_ends_with_an_error_too():
    graph = build()
    plain = graph.python_code().src
    with pytest.raises(ZeroDivisionError), graph.on_generate_code(doubling):
        raise ZeroDivisionError

    assert graph.python_code().src == plain


def test_transformers_are_stacked():
    graph = build()
    with graph.on_generate_code(noting(1)):
        with graph.on_generate_code(noting(2)):
            assert body(graph)[:2] == ["log.append(2)", "log.append(1)"]
        assert body(graph)[0] == "log.append(1)"
        assert body(graph)[1].startswith("add")
    assert body(graph)[0].startswith("add")


def test_each_takes_back_itself_alone_in_whatever_order():
    graph = build()
    first, second = (
        graph.on_generate_code(lambda _: noting(1)(None)),
        graph.on_generate_code(lambda _: noting(2)(None)),
    )
    with first:
        pass
    assert body(graph)[0] == "log.append(2)"
    with second:
        pass
    assert body(graph)[0].startswith("add")
    with second:
        pass
    assert body(graph)[0].startswith("add")


def test_the_stack_may_be_cleared_for_a_while():
    graph = build()
    graph.on_generate_code(doubling)
    with graph.on_generate_code(lambda _: None):
        assert "* 2" not in graph.python_code().src
    assert "* 2" in graph.python_code().src


def test_every_change_of_the_transformers_makes_the_version_grow():
    graph = build()
    versions = [graph.version]
    with graph.on_generate_code(doubling):
        versions.append(graph.version)
    versions.append(graph.version)

    assert versions == sorted(set(versions))


def test_transformers_and_hooks_work_together(run):
    graph = build(ListCodeGen())
    graph.on_generate_code(doubling)

    assert run(graph, [2, 3]) == (10, 2)


def test_a_copy_keeps_the_transformers_it_was_made_with():
    graph = build()
    with graph.on_generate_code(doubling):
        other = copy.deepcopy(graph)

    assert "* 2" in other.python_code().src
    assert "* 2" not in graph.python_code().src


def test_a_handle_does_not_keep_the_graph_alive():
    graph = build()
    handle = graph.on_generate_code(doubling)
    watched = weakref.ref(graph)
    del graph
    gc.collect()

    assert watched() is None
    with handle:
        pass


def test_a_transformer_that_drops_everything_leaves_an_empty_function(run):
    graph = build()
    graph.on_generate_code(lambda _: lambda lines: [])

    assert run(graph, 1, 2) is None


def test_a_transformer_must_return_text():
    graph = build()
    graph.on_generate_code(lambda _: lambda lines: [1])

    with pytest.raises(
        CodegenError, match=r"a code transformer \(graph.on_generate_code\) gave a int where text"
    ):
        graph.python_code()


# -- lines and nodes


def test_lines_are_mapped_to_nodes_behind_text_of_hooks_and_transformers():
    graph = build(ListCodeGen())
    graph.on_generate_code(lambda _: lambda lines: ["# one\n# two\n", *lines, "\n"])
    code = graph.python_code()
    texts = code.src.splitlines()

    assert {texts[line - 1].strip().partition(" ")[0]: name for line, name in code.lines.items()} == {
        "add": "add",
        "return": "output",
    }


def test_a_traceback_shows_the_line_that_runs():
    graph = Graph()
    a = graph.placeholder("a")
    graph.placeholder("b")
    graph.output(graph.call_function(operator.truediv, (a, 0)))
    graph.set_codegen(ListCodeGen())
    function = compile_code(graph.python_code()).function
    with pytest.raises(ZeroDivisionError) as caught:
        function(None, [1, 2])

    assert "truediv = a / 0" in "".join(traceback.format_exception(caught.value))


def test_a_hook_that_calls_the_default_without_a_printer_writes_constants_as_data():
    class Plain(CodeGen):
        def generate_output(self, output_args):
            return super().generate_output(output_args)

    class Liar(str):
        __slots__ = ()

        def __repr__(self):
            return "[].no_such_attribute"

    graph = Graph()
    graph.output((graph.placeholder("x"), Liar("text"), float("inf")))
    graph.set_codegen(Plain())
    result = compile_code(graph.python_code()).function(None, 1)
    assert result == (1, "text", float("inf"))
    assert type(result[1]) is Liar
    assert Plain().generate_output(1) == "return 1"
