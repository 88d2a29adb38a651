"""Where nodes come from: lines, traces and module stacks, decoded when they are read."""

from __future__ import annotations

import gc
import os
import sys
import threading
from types import CodeType

import pytest

from fxplug.ir import Graph, ModuleScope, Origin, SourceLine, origins


class Layer:
    """Stands for a module class."""


def here():
    """Return the caller's code, instruction offset and line."""
    frame = sys._getframe(1)
    return frame.f_code, frame.f_lasti, frame.f_lineno


def three_places():
    places = [here()]
    places.append(
        here(),
    )
    for _ in range(1):
        places.extend([here() for _ in "x"] or [here()])
    return places


def test_an_offset_is_decoded_to_its_line():
    places = three_places()

    assert len({line for _, _, line in places}) == 3
    for code, offset, line in places:
        source = Origin(code, offset).source()
        assert (source.filename, source.line, source.function) == (__file__, line, code.co_name)
        assert "here()" in source.text
        assert str(source) == f"{__file__}:{line} in {code.co_name}"


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="there are no named pipes")
def test_a_pipe_that_is_named_as_the_source_is_not_read(tmp_path):
    pipe = tmp_path / "model.py"
    os.mkfifo(pipe)
    texts = []
    reader = threading.Thread(
        target=lambda: texts.append(SourceLine(str(pipe), 1, "forward").text), daemon=True
    )
    reader.start()
    reader.join(10)
    is_waiting = reader.is_alive()
    # Whoever waits for a writer of it is let go.
    os.close(os.open(pipe, os.O_RDWR | os.O_NONBLOCK))

    assert (is_waiting, texts) == (False, [""])


def test_an_unknown_offset_is_the_line_of_the_function():
    code = three_places.__code__

    assert Origin(code).source().line == code.co_firstlineno
    assert Origin(code, 10**6).source().line == code.co_firstlineno


def test_a_function_of_many_lines_is_decoded_right():
    lines = 300
    source = "def long(here, seen):\n" + "    seen.append(here())\n" * lines
    namespace = {}
    exec(compile(source, "<long>", "exec"), namespace)
    seen = []
    namespace["long"](here, seen)

    assert [Origin(code, offset).source().line for code, offset, _ in seen] == list(range(2, lines + 2))


def test_nothing_is_decoded_before_it_is_read():
    class Code:
        co_filename, co_name, co_firstlineno = "model.py", "forward", 1
        reads = 0

        def co_lines(self):
            self.reads += 1
            return [(0, 10, 5), (10, 20, 7), (20, 30, None)]

    code = Code()
    graph = Graph()
    node = graph.placeholder("x")
    node.origins = (Origin(code, 10, caller=Origin(code, 9)),)
    node.format_node()
    duplicate = graph.node_copy(node)
    assert code.reads == 0

    assert duplicate.stack_trace == (
        '  File "model.py", line 5, in forward\n  File "model.py", line 7, in forward'
    )
    assert code.reads > 0
    assert Origin(code, 25).source().line == 1


def test_a_stack_trace_reads_like_pythons_outermost_first():
    code, offset, line = here()
    inner = Origin(code, offset, caller=Origin(SourceLine("outer.py", 3, "main")))
    node = Graph().placeholder("x")
    assert node.stack_trace is None

    node.origins = (inner, Origin(SourceLine("other.py", 1, "other")))

    assert node.stack_trace == (
        '  File "outer.py", line 3, in main\n'
        f'  File "{__file__}", line {line}, in {code.co_name}\n'
        "    code, offset, line = here()"
    )
    assert [frame.function for frame in inner.frames()] == [code.co_name, "main"]


def test_a_stack_trace_that_is_assigned_goes_before_the_origin():
    node = Graph().placeholder("x")
    node.origins = (Origin(SourceLine("model.py", 3, "forward")),)

    node.stack_trace = "written by hand"

    assert node.stack_trace == node.meta["stack_trace"] == "written by hand"
    node.meta = {}
    assert node.stack_trace == '  File "model.py", line 3, in forward'


def test_an_origin_without_position_has_no_trace():
    origin = Origin(None, module=ModuleScope("", Layer))
    node = Graph().placeholder("x")
    node.origins = (origin,)

    assert origin.source() is None
    assert origin.stack_trace() == ""
    assert node.stack_trace is None


def test_the_module_stack_goes_from_the_root_inward():
    scope = ModuleScope("net.0", Layer, ModuleScope("net", "pkg.Net", ModuleScope("", dict)))
    node = Graph().placeholder("x")
    node.origins = (Origin(None, module=scope),)

    stack = node.meta["nn_module_stack"]

    assert list(stack.items()) == [("", ("", dict)), ("net", ("net", "pkg.Net")), ("net.0", ("net.0", Layer))]


def test_the_module_stack_in_the_notes_may_be_edited():
    node = Graph().placeholder("x")
    node.origins = (Origin(None, module=ModuleScope("", Layer)),)
    other = Graph().placeholder("x")
    other.origins = node.origins

    node.meta["nn_module_stack"]["extra"] = ("extra", int)
    del other.meta["nn_module_stack"]

    assert list(node.meta["nn_module_stack"]) == ["", "extra"]
    assert other.meta == {}
    assert other.graph.node_copy(other).meta == {}


def test_notes_without_module_stay_empty():
    node = Graph().placeholder("x")
    node.origins = (Origin(SourceLine("model.py", 3, "forward")),)

    assert node.meta == {}


@pytest.mark.parametrize("count", [0, 1, 2])
def test_any_number_of_origins_is_kept(count):
    origins = tuple(Origin(SourceLine("model.py", line, "forward")) for line in range(count))
    node = Graph().placeholder("x")
    assert node.origins == ()

    node.origins = origins

    assert node.origins == origins


def test_a_replacement_takes_the_origin_over_and_keeps_its_own():
    graph = Graph()
    x, y = graph.placeholder("x"), graph.placeholder("y")
    x.origins = (Origin(SourceLine("model.py", 3, "forward")),)

    x.replace_all_uses_with(y)
    assert y.origins == x.origins
    y.replace_all_uses_with(graph.placeholder("z"))
    own = (Origin(SourceLine("model.py", 9, "forward")),)
    x.origins = own
    y.replace_all_uses_with(x)

    assert x.origins == own


def test_a_derived_origin_names_the_pass_and_keeps_the_place():
    caller = Origin(SourceLine("outer.py", 3, "main"))
    origin = Origin(three_places.__code__, 4, caller, ModuleScope("net", Layer))

    derived = origin.derived("fuse")

    assert (derived.made_by, origin.made_by) == ("fuse", None)
    assert derived.source() == origin.source()
    assert (derived.caller, derived.module) == (caller, origin.module)


def test_origins_survive_their_data_form():
    code, offset, _line = here()
    scope = ModuleScope("net", Layer, ModuleScope("", Layer))
    origin = Origin(code, offset, Origin(SourceLine("outer.py", 3, "main")), scope, "fuse")

    restored = Origin.from_data(origin.to_data())

    assert list(restored.frames()) == list(origin.frames())
    assert restored.stack_trace() == origin.stack_trace()
    assert restored.to_data() == origin.to_data()
    assert restored.module.stack() == {path: (path, f"{__name__}.Layer") for path in ("", "net")}
    assert restored.made_by == "fuse"


def test_notes_made_early_come_behind_the_module_stack_and_are_copied():
    graph = Graph()
    outer = ModuleScope("", "Model")
    nodes = [graph.placeholder("x"), graph.placeholder("y")]
    for node in nodes:
        node.origins = (Origin(_code(), 0, None, ModuleScope("layer", "Layer", outer)),)
        node.annotate({"a.note": 1})
        node.annotate({"b.note": 2})

    copy = graph.node_copy(nodes[1])

    expected = {"nn_module_stack": {"": ("", "Model"), "layer": ("layer", "Layer")}, "a.note": 1, "b.note": 2}
    assert nodes[0].meta == expected
    assert list(nodes[0].meta) == list(expected)
    assert nodes[0].meta is nodes[0].meta
    assert copy.meta == expected
    assert nodes[0].meta["nn_module_stack"] is not nodes[1].meta["nn_module_stack"]


def _code():
    return _code.__code__


def of_several_lines(first, second):
    total = (
        first
        + second  # Instructions of one line stand between those of another one.
        + first
    )
    for value in (first, second):
        total += value
    return [total for _ in range(2)]


def test_each_instruction_belongs_to_the_line_that_python_says():
    for code in (of_several_lines.__code__, *of_several_lines.__code__.co_consts):
        if not isinstance(code, CodeType):
            continue
        for start, end, number in code.co_lines():
            for offset in range(start, end, 2):
                assert Origin(code, offset).source().line == (number or code.co_firstlineno)


def test_lines_of_a_function_go_with_it():
    namespace = {}
    exec("def made():\n    return 1\n", namespace)  # Its code is held by nothing else.
    code = namespace["made"].__code__
    start = next(start for start, _, number in code.co_lines() if number == 2)
    assert Origin(code, start).source().line == 2
    key = id(code)
    assert key in origins._lines
    del namespace["made"], code
    gc.collect()
    assert key not in origins._lines
