"""Text with code in it, wherever a graph holds text: refused, or carried as data; nothing of it is executed."""

from __future__ import annotations

import json

import pytest

from fxplug.ir import Graph, Origin, SourceLine

SCRIPT = r'''
import ast, contextlib, copy, io, json, sys, traceback

CANARY = "fxplug.canary"
PAYLOAD = f"__import__('sys').audit({CANARY!r})"
TEXTS = {
    "bare": PAYLOAD,
    "parameter": f"x=({PAYLOAD})",
    "break out of a call": f"x); {PAYLOAD}; (0",
    "break out of double quotes": f'x"); {PAYLOAD}; ("',
    "break out of single quotes": f"x'); {PAYLOAD}; ('",
    "break out of triple quotes": f'x""" + {PAYLOAD} + """',
    "backslash before the quote": "x\\\"); " + PAYLOAD + "; (\"",
    "backslash at the end": "x\\",
    "new line": f"x\n    {PAYLOAD}\n    y",
    "other new lines": f"x\r{PAYLOAD}\f{PAYLOAD}\x85{PAYLOAD}\u2028{PAYLOAD}",
    "comment": f"x # \n{PAYLOAD}",
    "dedent": f"x\n{PAYLOAD}",
    "format": "{" + PAYLOAD + "}",
    "walrus": f"(x := {PAYLOAD})",
    "lambda": f"lambda x={PAYLOAD}: x",
    "semicolon": f"x; {PAYLOAD}",
    "surrogate": "\ud800\"); " + PAYLOAD,
    "dunder": "__class__",
}

armed = False
events = []

def watch(event, arguments):
    """Note the payload, and whatever is compiled, run or imported but the generated function."""
    if not armed:
        return
    if event == CANARY:
        events.append("the payload ran")
    elif event in {"exec", "compile", "import", "os.system", "subprocess.Popen"}:
        filename = str(getattr(arguments[0], "co_filename", None) or arguments[1])
        if "-generated-" not in filename:
            events.append(f"{event} of {filename}")

sys.addaudithook(watch)

import fxplug.ir
from fxplug.codegen import compile_code
from fxplug.errors import FxplugError
from fxplug.ir import (
    Graph, ModuleScope, Origin, RegionEntry, SourceLine, find_structure_faults, graph_from_data, graph_to_data
)


class Str(str):
    """Text that shows itself as code, and says yes to every question."""

    def _payload(self, *_):
        return PAYLOAD

    __repr__ = __str__ = __format__ = _payload

    def isidentifier(self):
        return True

    def isprintable(self):
        return True

    def isascii(self):
        return True

    def split(self, *_):
        return [self]

    def partition(self, _):
        return self, "", ""

    def rpartition(self, _):
        return "", "", self

    def strip(self, *_):
        return self

    lstrip = rstrip = strip

    def replace(self, *_):
        return self

    def lower(self):
        return self

    def startswith(self, *_):
        return False

    endswith = startswith


class ShownAsCode(str):
    def __repr__(self):
        return PAYLOAD


class Formatted(str):
    def __format__(self, _):
        return PAYLOAD


class Int(int):
    __repr__ = __str__ = __format__ = Str._payload


class Anything:
    """Has every attribute, can be called with anything, and answers with what it was given."""

    def __init__(self):
        self.__dict__["seen"] = []

    def __getattribute__(self, name):
        if name in {"seen", "__dict__"}:
            return object.__getattribute__(self, name)
        self.seen.append(name)
        return self

    def __call__(self, *args, **kwargs):
        self.seen.append((args, kwargs))
        return self


def take(*args, **kwargs):
    return args, kwargs


def placeholder(text):
    graph = Graph()
    graph.output(graph.placeholder(text, default_value=1))
    return graph


def starred(text):
    graph = Graph()
    graph.output(graph.placeholder("*" + text))
    return graph


def default(text):
    graph = Graph()
    graph.output(graph.placeholder("x", default_value=[text]))
    return graph


def node_name(text):
    graph = Graph()
    graph.output(graph.call_function(take, (1,), name=text))
    return graph


def assigned_name(text):
    graph = Graph()
    node = graph.call_function(take, (1,))
    graph.output(node)
    node.name = text
    return graph


def placeholder_name(text):
    graph = Graph()
    graph.output(graph.create_node("placeholder", "x", (1,), name=text))
    return graph


def keyword(text):
    graph = Graph()
    graph.output(graph.call_function(take, (), {text: 1}))
    return graph


def get_attr(text):
    graph = Graph()
    graph.output(graph.get_attr(text))
    return graph


def call_module(text):
    graph = Graph()
    graph.output(graph.call_module(text, (1,)))
    return graph


def deep_path(text):
    graph = Graph()
    graph.output(graph.call_module("layer." + text + ".inner", (1,)))
    return graph


def call_method(text):
    graph = Graph()
    graph.output(graph.call_method(text, (graph.get_attr("x"), 1)))
    return graph


def getattr_call(text):
    graph = Graph()
    graph.output(graph.call_function(getattr, (graph.get_attr("x"), text)))
    return graph


def annotation(text):
    graph = Graph()
    x = graph.placeholder("x", type_expr=text, default_value=1)
    graph.output(graph.call_function(take, (x,), type_expr=text), type_expr=text)
    return graph


def constant(text):
    graph = Graph()
    graph.output([text, {text: (text,)}, slice(text)])
    return graph


def function_name(text):
    def function(*args):
        return args
    function.__name__ = function.__qualname__ = text
    graph = Graph()
    graph.output([function, graph.call_function(function, (1,))])
    return graph


def function_module(text):
    def function(*args):
        return args
    function.__module__ = text
    graph = Graph()
    graph.output([function, graph.call_function(function, (1,))])
    return graph


def class_name(text):
    made = type("Made", (tuple,), {})
    made.__name__ = str.__str__(text).replace("\0", "").encode("ascii", "replace").decode()
    graph = Graph()
    graph.output([made((1,)), made])
    return graph


def instance_of_a_named_class(text):
    made = type("Made", (), {})
    made.__name__ = str.__str__(text).encode("ascii", "replace").decode()
    graph = Graph()
    graph.output([made()])
    return graph


def region_argument(text):
    graph = Graph()
    node = graph.call_function(take, (1,))
    node.region = (RegionEntry(contextlib.nullcontext, (text,)),)
    graph.output(node)
    return graph


def region_context(text):
    def context(*_):
        return contextlib.nullcontext()
    context.__name__ = context.__module__ = text
    graph = Graph()
    node = graph.call_function(take, (1,))
    node.region = (RegionEntry(context),)
    graph.output(node)
    return graph


def meta(text):
    graph = Graph()
    node = graph.call_function(take, (1,))
    node.meta[text] = [text, {text: (text,)}]
    node.meta["stack_trace"] = text
    node.meta["nn_module_stack"] = {text: (text, text)}
    graph.output(node)
    return graph


def origin(text):
    graph = Graph()
    node = graph.call_function(take, (1,))
    text = text.replace("\ud800", "?")
    named = type("Named", (), {})
    named.__qualname__ = text
    scope = ModuleScope(text, text, ModuleScope("outer", named))
    node.origins = (Origin(SourceLine(text, 1, text), module=scope, made_by=text),)
    graph.output(node)
    return graph


def dict_keys(text):
    graph = Graph()
    inner = graph.call_function(take, ({text: 1, (text, 2): {text: 3}},), {"k": {text: {text: 4}}})
    graph.output({text: inner, "plain": {text: inner}})
    return graph


def type_of_a_node(text):
    class Named:
        pass
    Named.__name__ = Named.__qualname__ = str.__str__(text).replace("\0", "").encode("ascii", "replace").decode()
    Named.__module__ = text
    graph = Graph()
    x = graph.placeholder("x", type_expr=Named, default_value=1)
    graph.output(graph.call_function(take, (x,), type_expr=list[Named]), type_expr=Named)
    return graph


def lifted(text):
    graph = Graph()
    graph.lifted[text] = [text]
    graph.output(graph.get_attr(text))
    return graph


def owner(text):
    """Has targets that its owner lacks, so that messages speak of both."""
    kind = type("Owner", (), {})
    kind.__name__ = kind.__qualname__ = str.__str__(text).replace("\0", "").encode("ascii", "replace").decode()
    graph = Graph()
    graph.output(graph.call_module(text, (graph.get_attr("missing." + text),)))
    owners.append(kind())
    graph.owning_module = owners[-1]
    return graph


owners = []


def restored(text):
    graph = Graph()
    graph.output(graph.call_function(take, (1,), name="total"))
    data = graph_to_data(graph)
    data["nodes"][0]["name"] = text
    return graph_from_data(data)


def file_name(text):
    return Graph(), {"name": text}


def root_name(text):
    return Graph(), {"root": text}


BUILDERS = [
    placeholder, starred, default, node_name, assigned_name, placeholder_name, keyword, get_attr, call_module,
    deep_path, call_method, getattr_call, annotation, constant, function_name, function_module, class_name,
    instance_of_a_named_class, region_argument, region_context, restored, file_name, root_name,
    meta, origin, dict_keys, type_of_a_node, lifted, owner,
]


def leaks(source):
    """Whether source holds more than a harmless function: it does not parse, or reads the name that payloads read."""
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError):
        return True
    names = {getattr(node, "id", getattr(node, "attr", None)) for node in ast.walk(tree)}
    return "__import__" in names or any(not isinstance(statement, ast.FunctionDef) for statement in tree.body)


def look_at(graph):
    """Show and copy a graph in every way that there is."""
    str(graph), repr(graph)
    with contextlib.redirect_stdout(io.StringIO()):
        graph.print_tabular()
    list(find_structure_faults(graph))
    for node in graph.nodes:
        repr(node), node.format_node(), node.stack_trace, list(node.meta), node.is_impure(), node.origins
        graph.find_nodes(op=node.op, target=node.target)
    restored = graph_from_data(graph_to_data(copy.deepcopy(graph)))
    str(restored), restored.python_code()
    try:
        graph.lint()
    except FxplugError as error:
        "".join(traceback.format_exception_only(error))


def attempt(builder, text):
    """Return what came of it, and what should not have happened."""
    global armed
    events.clear()
    source = ""
    armed = True
    try:
        built = builder(text)
        graph, options = built if isinstance(built, tuple) else (built, {})
        look_at(graph)
        code = graph.python_code(*([options["root"]] if "root" in options else []))
        source = code.src
        compiled = compile_code(code, name=options.get("name", "hostile"))
        compiled.function(Anything())
        outcome = "ran"
    except FxplugError:
        outcome = "refused"
    except Exception as error:
        outcome = f"{type(error).__name__}: {error!s:.200}"
    finally:
        armed = False
    return outcome, [*events, *(["the text became source"] if leaks(source) else [])]


attempt(constant, "warm up")
attempt(placeholder, "a b")
SUBCLASSES = {
    f"{kind.__name__} of {label}": kind(text)
    for kind in (Str, ShownAsCode, Formatted)
    for label, text in [("a name", "harmless"), ("an odd name", "a b"), ("a line", "a\nb")]
}
results = {
    f"{builder.__name__}: {label}": attempt(builder, text)
    for builder in BUILDERS
    for label, text in {**TEXTS, **SUBCLASSES}.items()
}


def integers(text):
    graph = Graph()
    call = graph.call_function(take, (Int(6),), {"k": Int(7)})
    graph.output([Int(3), {Int(4): Int(5)}, slice(Int(1)), call])
    return graph


results["integers: Int"] = attempt(integers, "")
print(json.dumps(results))
'''


@pytest.fixture(scope="module")
def results(run_script):
    """Where the text stood and which text -> [what came of it, what should not have happened]."""
    return json.loads(run_script(SCRIPT))


PLACES = [
    "placeholder",
    "starred",
    "default",
    "node_name",
    "assigned_name",
    "placeholder_name",
    "keyword",
    "get_attr",
    "call_module",
    "deep_path",
    "call_method",
    "getattr_call",
    "annotation",
    "constant",
    "function_name",
    "function_module",
    "class_name",
    "instance_of_a_named_class",
    "region_argument",
    "region_context",
    "restored",
    "file_name",
    "root_name",
    "meta",
    "origin",
    "dict_keys",
    "type_of_a_node",
    "lifted",
    "owner",
]
SUBCLASSES = ("Str", "ShownAsCode", "Formatted")
MAY_BE_REFUSED = {"placeholder", "starred", "restored", "root_name"}


def at(results, place, kind=""):
    """Return the results at a place, for texts of a subclass of str or for plain ones."""
    found = {
        label.partition(": ")[2]: value for label, value in results.items() if label.startswith(f"{place}: ")
    }
    return {
        label: value
        for label, value in found.items()
        if (label.startswith(f"{kind} of ") if kind else not label.startswith(SUBCLASSES))
    }


def check(found):
    assert found
    assert {label: faults for label, (_, faults) in found.items() if faults} == {}


@pytest.mark.parametrize("place", PLACES)
def test_code_in_text_is_neither_executed_nor_copied_into_source(results, place):
    check(at(results, place))


@pytest.mark.parametrize("place", PLACES)
def test_text_with_code_in_it_is_refused_or_runs_as_data(results, place):
    outcomes = {label: outcome for label, (outcome, _) in at(results, place).items()}

    allowed = {"ran", "refused"} if place in MAY_BE_REFUSED else {"ran"}
    assert {label: outcome for label, outcome in outcomes.items() if outcome not in allowed} == {}


@pytest.mark.parametrize(("kind", "place"), [(kind, place) for kind in SUBCLASSES for place in PLACES])
def test_text_of_a_subclass_is_neither_executed_nor_copied_into_source(results, kind, place):
    check(at(results, place, kind))


def test_integers_of_a_subclass_are_bound_and_not_printed(results):
    assert results["integers: Int"] == ["ran", []]


def test_a_file_name_that_no_system_can_encode_is_shown():
    node = Graph().call_function(print, ())
    node.origins = (Origin(SourceLine("\ud800.py", 1, "forward")),)

    assert "forward" in node.stack_trace


def test_what_is_watched_for_would_be_seen(run_script):
    executed = "def executed(text):\n    eval(text)\n    return Graph()\n\n\nBUILDERS = [executed, "

    results = json.loads(run_script(SCRIPT.replace("BUILDERS = [", executed)))

    assert results["executed: bare"] == [
        "ran",
        ["compile of <string>", "exec of <string>", "the payload ran"],
    ]
