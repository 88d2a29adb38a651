"""Generated source for people: positions, sizes, notes and colors, in text that computes the same."""

from __future__ import annotations

import operator
import re
import types

import pytest

from fxplug.codegen import as_identifier, compile_code
from fxplug.ir import Graph, Origin, PythonCode, RegionEntry, SourceLine, printable, tensor_text

HERE = Origin(SourceLine("model.py", 12, "forward"))


def tensor(*shape, dtype="torch.float32", **more):
    return types.SimpleNamespace(dtype=dtype, shape=shape, **more)


@pytest.fixture
def graph():
    graph = Graph()
    x = graph.placeholder("x")
    y = graph.placeholder("y", int, 2)
    first = graph.call_function(operator.add, (x, y))
    second = graph.call_function(operator.neg, (first,))
    third = graph.call_function(operator.iadd, (second, 1))
    graph.output((third, x))
    for node in (first, second):
        node.origins = (HERE,)
    x.meta["val"] = tensor(2, 3)
    second.meta["tensor_meta"] = tensor(2, 3, dtype="torch.int64", stride=(3, 1), device="cpu")
    third.meta["example_value"] = tensor("s0", stride=lambda: (1,), device="cuda:0")
    return graph


def lines(graph, **style):
    return graph.python_code(**style).src.splitlines()


def test_positions_and_sizes_are_shown(graph):
    assert lines(graph, verbose=True) == [
        'def forward(self, x : "f32[2, 3]", y : int = 2):',
        "    # File: model.py:12 in forward",
        "    add = x + y;  y = None",
        '    neg : "i64[2, 3]" = -add;  add = None',
        '    iadd : "f32[s0]" = neg; iadd += 1;  neg = None',
        "    return (iadd, x)",
    ]


def test_without_being_asked_nothing_is_added(graph):
    assert not re.search("File|f32|i64", graph.python_code().src)


def test_strides_and_devices_are_shown_where_they_are_known(graph):
    text = graph.python_code(include_stride=True, include_device=True).src

    assert 'neg : "i64[2, 3][3, 1]cpu" = ' in text
    assert 'iadd : "f32[s0][1]cuda:0" = ' in text
    assert 'x : "f32[2, 3]"' in text
    assert 'neg : "i64[2, 3]cpu" = ' in graph.python_code(include_device=True).src


def test_each_parameter_may_have_a_line_of_its_own(graph):
    assert lines(graph, expanded_def=True)[:5] == [
        "def forward(",
        "    self,",
        "    x,",
        "    y : int = 2,",
        "):",
    ]


def test_notes_are_shown_where_there_are_any(graph):
    nodes = list(graph.nodes)
    nodes[2].meta["seq_nr"] = 7
    nodes[3].meta["a\nb"] = "text\nwith lines"
    found = lines(graph, additional_meta=["seq_nr", "a\nb"])

    assert found[2:4] == ["    # seq_nr: 7", "    add = x + y;  y = None"]
    assert found[4] == "    # a\\nb: text\\nwith lines"


def test_colors_are_for_terminals(graph):
    text = graph.python_code(colored=True).src

    assert re.sub(r"\033\[\d+m", "", text) == graph.python_code(verbose=True).src
    for part in ("# File", '"i64[2, 3]"', "add = None"):
        assert re.search(rf"\033\[\d+m{re.escape(part)}[^\n]*\033\[0m", text)


def test_what_was_added_computes_the_same_and_lines_still_name_nodes(graph):
    code = graph.python_code(verbose=True, include_stride=True, expanded_def=True)
    texts = code.src.splitlines()

    assert compile_code(code).function(None, 1, 2) == compile_code(graph.python_code()).function(None, 1, 2)
    assert set(code.lines.values()) == {"add", "neg", "iadd", "output"}
    for line, name in code.lines.items():
        assert texts[line - 1].strip().startswith("return" if name == "output" else name)


def test_comments_stand_as_deep_as_their_lines(graph):
    for node in graph.find_nodes(op="call_function"):
        node.region = (RegionEntry(open),)

    assert "        # File: model.py:12 in forward" in lines(graph, verbose=True)


def test_a_position_is_named_again_behind_another_one(graph):
    nodes = list(graph.nodes)
    nodes[4].origins = (Origin(SourceLine("other.py", 1, "f")),)
    with graph.inserting_after(nodes[4]):
        last = graph.call_function(operator.pos, (nodes[4],))
    last.origins = (HERE,)
    comments = [line.strip() for line in lines(graph, verbose=True) if "#" in line]

    assert comments == [
        f"# File: {place}"
        for place in ("model.py:12 in forward", "other.py:1 in f", "model.py:12 in forward")
    ]


def test_the_line_itself_is_shown_where_a_trace_has_it(graph):
    node = graph.find_nodes(op="call_function", target=operator.neg)[0]
    node.stack_trace = (
        '  File "a.py", line 1, in outer\n    f()\n  File "b.py", line 2, in inner\n    return -x\n'
    )

    assert "    # File: b.py:2 in inner, code: return -x" in lines(graph, verbose=True)


@pytest.mark.parametrize("text", ["no trace at all", "", 'File "x", line 1', "\n\n"])
def test_a_trace_of_another_form_is_passed_over(graph, text):
    for node in graph.nodes:
        node.stack_trace = text

    assert not any("#" in line for line in lines(graph, verbose=True))


HOSTILE = ["x\n    import os", 'x"; import os; "', "x\r", "x\u2028import os", "x\x0c", "\\"]


@pytest.mark.parametrize("text", HOSTILE, ids=ascii)
def test_text_of_the_program_stays_in_comments_and_annotations(graph, text):
    for node in graph.nodes:
        node.stack_trace = f'  File "{text}", line 1, in {text}\n    {text}\n'
        node.meta["val"] = tensor(text, dtype=text)
        node.meta["note"] = text
    code = graph.python_code(verbose=True, additional_meta=["note"])

    assert compile_code(code).function(None, 1, 2) == compile_code(graph.python_code()).function(None, 1, 2)
    assert "os" not in compile_code(code).function.__code__.co_names


def test_a_generator_without_styles_gives_what_it_has():
    class Constant:
        def generate(self, graph, root_module="self"):
            return PythonCode(f"def forward({root_module}):\n    return 1\n")

    graph = Graph()
    graph.set_codegen(Constant())

    assert graph.python_code("it", verbose=True).src == "def forward(it):\n    return 1\n"


@pytest.mark.parametrize(
    ("dtype", "text"),
    [
        ("torch.float32", "f32"),
        ("torch.bfloat16", "bf16"),
        ("torch.complex64", "c64"),
        ("torch.int8", "i8"),
        ("torch.uint8", "u8"),
        ("torch.bool", "b8"),
        ("torch.float8_e4m3fn", "f8e4m3fn"),
        ("torch.bits16", "b16"),
        ("torch.quint8", "quint8"),
        ("something", "something"),
    ],
)
def test_element_types_are_short(dtype, text):
    assert tensor_text(tensor(1, dtype=dtype)) == f"{text}[1]"


def test_several_tensors_are_shown_together():
    assert tensor_text((tensor(), [tensor(2)])) == "(f32[], (f32[2]))"
    assert tensor_text((1, "a")) == tensor_text(None) == tensor_text(3) == ""


def test_a_node_is_printed_with_what_is_known_of_its_value(graph):
    nodes = {node.name: node for node in graph.nodes}

    assert (
        nodes["neg"]
        .format_node(include_tensor_metadata=True)
        .startswith('%neg : Tensor "i64[2, 3][3, 1]cpu" [num_users=1] = call_function[')
    )
    assert nodes["add"].format_node(include_tensor_metadata=True) == nodes["add"].format_node()
    assert "Tensor" not in nodes["neg"].format_node()


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("Net", "Net"),
        ("a.b", "a_b"),
        ("1x", "_1x"),
        ("class", "_class"),
        ("", "_"),
        ("é", "_"),
        ("X:\n  y", "X____y"),
    ],
)
def test_any_text_gives_an_identifier(text, name):
    assert as_identifier(text) == name


def test_text_is_shown_in_one_line():
    assert printable("plain é") == "plain é"
    assert printable("a\nb\r\t\u2028\\") == "a\\nb\\r\\t\\u2028\\"
