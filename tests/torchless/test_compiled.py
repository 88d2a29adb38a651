"""Compiling generated source: what tracebacks and debuggers see, and when it is freed."""

from __future__ import annotations

import contextlib
import gc
import inspect
import linecache
import operator
import traceback
import weakref

import pytest

from fxplug.codegen import compile_code
from fxplug.errors import CodegenError
from fxplug.ir import Graph, PythonCode, RegionEntry


def division():
    graph = Graph()
    x = graph.placeholder("x")
    total = graph.call_function(operator.add, (x, 1))
    failing = graph.call_function(operator.truediv, (total, 0))
    failing.region = (RegionEntry(contextlib.nullcontext),)
    graph.output(failing)
    return graph


def test_a_compiled_function_knows_its_source_and_version():
    code = division().python_code()

    compiled = compile_code(code, name="Net", version=7)

    assert compiled.code is code
    assert compiled.version == 7
    assert compiled.filename.startswith("<Net-generated-")
    assert compiled.function.__code__.co_filename == compiled.filename
    assert inspect.getsource(compiled.function) == code.src
    assert list(inspect.signature(compiled.function).parameters) == ["self", "x"]


def test_a_traceback_shows_the_generated_line():
    function = compile_code(division().python_code()).function

    with pytest.raises(ZeroDivisionError) as caught:
        function(None, 1)

    frame = traceback.extract_tb(caught.value.__traceback__)[-1]
    assert (frame.lineno, frame.name) == (4, "forward")
    assert frame.line == "truediv = add / 0;  add = None"


def test_the_source_is_registered_while_the_function_lives_and_no_longer():
    compiled = compile_code(division().python_code())
    filename, function = compiled.filename, compiled.function
    assert linecache.getlines(filename) == compiled.code.src.splitlines(keepends=True)
    linecache.checkcache(filename)
    assert linecache.getline(filename, 1) == "def forward(self, x):\n"

    gone = weakref.ref(compiled)
    del compiled
    assert gone() is None
    assert filename in linecache.cache
    del function

    assert filename not in linecache.cache
    assert linecache.getlines(filename) == []


def test_a_function_is_freed_by_reference_count_alone():
    class Constant:
        pass

    value = Constant()
    graph = Graph()
    graph.output([value])
    compiled = compile_code(graph.python_code())
    kept = weakref.ref(value)
    function = weakref.ref(compiled.function)
    gc.disable()
    try:
        del compiled, graph, value
        gone = kept() is None
        freed = function() is None
    finally:
        gc.enable()

    assert freed
    # The graph itself is a cycle of nodes; what counts is that the function adds none.
    gc.collect()
    assert gone or kept() is None


def test_every_function_has_a_file_of_its_own():
    code = division().python_code()

    assert compile_code(code).filename != compile_code(code).filename


@pytest.mark.parametrize("name", ["a b", "a\nb", "<x>", 'a"b', "", "é", "\ud800"], ids=ascii)
def test_any_name_may_be_shown(name):
    filename = compile_code(division().python_code(), name=name).filename

    assert filename.startswith("<")
    assert "-generated-" in filename
    assert not set(filename) & set(' \n"')


@pytest.mark.parametrize(
    "source",
    ["def forward(self:\n", "x\0y", "def forward(self):\n  return " + "(" * 500],
    ids=["syntax", "null", "depth"],
)
def test_source_that_does_not_compile_is_an_error_that_says_where_to_look(source):
    before = set(linecache.cache)

    with pytest.raises(CodegenError) as caught:
        compile_code(PythonCode(source))

    assert str(caught.value).startswith("Cannot compile the generated code: ")
    assert "graph.python_code().src shows the source" in str(caught.value)
    assert set(linecache.cache) == before


def test_generated_code_has_its_own_globals():
    graph = Graph()
    graph.output(graph.call_function(operator.add, ([1], [2])))
    code = graph.python_code()
    before = dict(code.globals)

    function = compile_code(code).function

    assert code.globals == before
    assert function.__module__ == "fxplug.generated"
    assert "__name__" not in function.__globals__  # Dynamo would import what it names.
    assert "forward" not in function.__globals__
