"""Text with code in it, wherever a module holds text: shown, copied, stored and run as data; nothing is executed."""

from __future__ import annotations

import copy
import json
import os
import pickle
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

import fxplug
from fxplug.execute import GraphModule, Interpreter
from fxplug.ir import Graph
from fxplug.storage import load, save

SCRIPT = r'''
import ast, contextlib, copy, importlib.util, io, json, os, pickle, sys, tempfile

CANARY = "fxplug.canary"
PAYLOAD = f"__import__('sys').audit({CANARY!r})"
TEXTS = {
    "bare": PAYLOAD,
    "class body": f"X:\n    {PAYLOAD}\nclass Y",
    "arguments": f"X({PAYLOAD})",
    "double quotes": f'x"); {PAYLOAD}; ("',
    "single quotes": f"x'); {PAYLOAD}; ('",
    "triple quotes": f'x""" + {PAYLOAD} + """',
    "backslash": "x\\\"); " + PAYLOAD + "; (\"",
    "new line": f"x\n{PAYLOAD}\ny",
    "comment": f"x # \r{PAYLOAD}",
    "path": f"../{PAYLOAD}",
    "format": "{" + PAYLOAD + "}",
}
events = []
sys.addaudithook(lambda event, _: events.append("the payload ran") if event == CANARY else None)

import torch
from torch import nn
import fxplug
from fxplug.errors import FxplugError
from fxplug.execute import GraphModule, Interpreter
from fxplug.ir import Graph
from fxplug.storage import load, save


class Leaf(nn.Module):
    def forward(self, x):
        return x + 1


def without_dots(text):
    return text.replace(".", "_")


def class_name(text):
    graph = fxplug.Tracer().trace(lambda x: torch.relu(x))
    return GraphModule(nn.Module(), graph, text)


def child_name(text):
    root = nn.Module()
    root.add_module(without_dots(text), nn.Sequential(nn.ReLU()))
    root.forward = lambda x: getattr(root, without_dots(text))(x)
    return GraphModule(root, fxplug.Tracer().trace(root))


def state_names(text):
    root = nn.Module()
    root.register_parameter(without_dots(text), nn.Parameter(torch.ones(2)))
    root.register_buffer("b" + without_dots(text), torch.ones(2))
    root.forward = lambda x: x * getattr(root, without_dots(text)) + getattr(root, "b" + without_dots(text))
    return GraphModule(root, fxplug.Tracer().trace(root))


def class_of_a_child(text):
    Named = type("Named", (Leaf,), {})
    Named.__name__ = Named.__qualname__ = text
    Named.__module__ = "torch.nn." + text
    root = nn.Module()
    root.child = Named()
    root.forward = lambda x: root.child(x)
    return GraphModule(root, fxplug.Tracer().trace(root))


def class_of_an_entered_child(text):
    Named = type("Named", (Leaf,), {})
    Named.__name__ = Named.__qualname__ = Named.__module__ = text
    root = nn.Module()
    root.child = Named()
    root.forward = lambda x: root.child(x)
    return GraphModule(root, fxplug.Tracer().trace(root))


def meta(text):
    module = GraphModule(nn.Module(), fxplug.Tracer().trace(lambda x: torch.relu(x)))
    module.meta[text] = [text]
    for node in module.graph.nodes:
        node.meta[text] = {text: text}
        node.stack_trace = text
    return module


def dict_keys(text):
    return GraphModule(nn.Module(), fxplug.Tracer().trace(lambda x: {text: x, (text, 1): [{text: text}]}))


def keyword_arguments(text):
    graph = Graph()
    x = graph.placeholder("x")
    graph.output(graph.call_function(dict, (), {text: x}))
    return GraphModule(nn.Module(), graph)


def lifted_constant(text):
    graph = Graph()
    graph.output([graph.placeholder("x"), graph.get_attr(without_dots(text))])
    graph.lifted[without_dots(text)] = torch.ones(1)
    return GraphModule(nn.Module(), graph)


def file_and_function_name(text):
    code = compile("def program(x):\n    return x + 1\n", text, "exec")
    namespace = {}
    exec(code, namespace)
    program = namespace["program"]
    program.__name__ = program.__qualname__ = program.__module__ = text
    program.__code__ = program.__code__.replace(co_name=text)
    return GraphModule(nn.Module(), fxplug.Tracer().trace(program), text)


def wrapped_function(text):
    def function(x, *args):
        return x

    function.__name__ = function.__qualname__ = function.__module__ = text
    fxplug.wrap(function)
    return GraphModule(nn.Module(), fxplug.Tracer().trace(lambda x: function(x, text)), text)


def wrapped_name(text):
    """Wraps by name, at the top level of a module whose name is text too."""
    namespace = {"__name__": text, "fxplug": fxplug, "text": text, text: lambda x: x}
    source = "fxplug.wrap(text)\ndef program(x):\n    return globals()[text](x) + 1"
    exec(compile(source, "<module>", "exec"), namespace)
    return GraphModule(nn.Module(), fxplug.Tracer().trace(namespace["program"]))


def exported(package):
    """Import a package from a folder."""
    name = f"exported_{len(sys.modules)}"
    spec = importlib.util.spec_from_file_location(
        name, os.path.join(package, "__init__.py"), submodule_search_locations=[package]
    )
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def use(module, folder):
    """Show, run, copy and store a module in every way that there is."""
    x = torch.ones(2)
    module(x)
    Interpreter(module).run(x)
    shown = {"code": module.code, "print_readable": module.print_readable(False)}
    with contextlib.redirect_stdout(io.StringIO()):
        module.print_readable()
        module.graph.print_tabular()
    str(module), repr(module), str(module.graph), [node.stack_trace for node in module.graph.nodes]
    module.graph.lint()
    for twin in (copy.copy(module), copy.deepcopy(module)):
        twin.recompile()
        twin(x)
    with contextlib.suppress(pickle.PicklingError, AttributeError):  # Of a class that is at no path.
        pickle.loads(pickle.dumps(module))(x)
    module.load_state_dict(module.state_dict())
    path = os.path.join(folder, "module.fxplug")
    with contextlib.suppress(FxplugError):
        save(module, path)
        load(path)(x)
    with contextlib.suppress(FxplugError):  # What no import finds cannot be written.
        package = os.path.join(folder, "package")
        module.to_folder(package, "Exported")
        for name in os.listdir(package):
            if name.endswith(".py"):
                with open(os.path.join(package, name)) as file:
                    shown[f"to_folder {name}"] = file.read()
        exported(package).Exported()(x)
    return shown


def names_in(source):
    """Return the names that source would read, or what is wrong with it."""
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError) as error:
        return {"no source: " + str(error)}
    return {getattr(node, "id", getattr(node, "attr", None)) for node in ast.walk(tree)}


def attempt(builder, text):
    events.clear()
    shown = {}
    try:
        with tempfile.TemporaryDirectory() as folder:
            shown = use(builder(text), folder)
        outcome = "ran"
    except FxplugError:
        outcome = "refused"
    except Exception as error:
        outcome = f"{type(error).__name__}: {error!s:.200}"
    leaks = [f"the text became source of {way}" for way, source in shown.items() if "__import__" in names_in(source)]
    return outcome, [*events, *leaks]


BUILDERS = [class_name, child_name, state_names, class_of_a_child, class_of_an_entered_child, meta, dict_keys,
            keyword_arguments, lifted_constant, file_and_function_name, wrapped_function, wrapped_name]
print(json.dumps({
    f"{builder.__name__}: {label}": attempt(builder, text) for builder in BUILDERS for label, text in TEXTS.items()
}))
'''

PLACES = [
    "class_name",
    "child_name",
    "state_names",
    "class_of_a_child",
    "class_of_an_entered_child",
    "meta",
    "dict_keys",
    "keyword_arguments",
    "lifted_constant",
    "file_and_function_name",
    "wrapped_function",
    "wrapped_name",
]


def run_script(source):
    environment = {**os.environ, "PYTHONPATH": str(Path(fxplug.__file__).parents[1])}
    command = [sys.executable, "-c", source]
    result = subprocess.run(
        command, check=False, capture_output=True, text=True, env=environment, timeout=120
    )
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout)


@pytest.fixture(scope="module")
def results():
    """Where the text stood and which text -> [what came of it, what should not have happened]."""
    return run_script(SCRIPT)


@pytest.mark.parametrize("place", PLACES)
def test_text_with_code_in_it_is_refused_or_data_and_never_becomes_code(results, place):
    found = {label: result for label, result in results.items() if label.startswith(f"{place}: ")}

    assert len(found) >= 10
    assert {
        label: outcome for label, (outcome, _) in found.items() if outcome not in {"ran", "refused"}
    } == {}
    assert {label: faults for label, (_, faults) in found.items() if faults} == {}


@pytest.mark.parametrize("place", PLACES)
def test_most_texts_are_data(results, place):
    outcomes = [outcome for label, (outcome, _) in results.items() if label.startswith(f"{place}: ")]

    assert outcomes.count("ran") >= len(outcomes) / 2


def test_what_is_watched_for_would_be_seen():
    executed = "def executed(text):\n    eval(text)\n    return class_name(text)\n\n\nBUILDERS = [executed, "

    found = run_script(SCRIPT.replace("BUILDERS = [", executed))

    assert found["executed: bare"][1][0] == "the payload ran"


NAMES = [
    "class",
    "None",
    'a"b',
    "a\\b",
    "a b",
    "a'b",
    "a\nb",
    "lambda",
    "0",
    "é",
    "__class__x",
    "self",
    "forward_",
]


class Named(nn.Module):
    """Has a child, a parameter and a buffer of any name, at the top and below."""

    def __init__(self, name):
        super().__init__()
        self.name = name
        self.add_module(name, nn.Linear(2, 2))
        self.inner = nn.Module()
        self.inner.add_module(name, nn.Sequential(nn.Linear(2, 2), nn.ReLU()))
        self.inner.register_parameter("p" + name, nn.Parameter(torch.full((2,), 0.5)))
        self.inner.register_buffer("b" + name, torch.full((2,), 0.25))

    def forward(self, x):
        x = getattr(self, self.name)(x)
        x = getattr(self.inner, self.name)(x) * getattr(self.inner, "p" + self.name)
        return x + getattr(self.inner, "b" + self.name)


@pytest.mark.parametrize("name", NAMES, ids=ascii)
def test_a_module_may_have_any_name(name, tmp_path):
    root, x = Named(name), torch.linspace(-1, 1, 4).reshape(2, 2)
    expected = root(x)
    module = fxplug.symbolic_trace(root)
    save(module, tmp_path / "module.fxplug")

    assert {node.target for node in module.graph.nodes} >= {
        name,
        f"inner.{name}.0",
        f"inner.p{name}",
        f"inner.b{name}",
    }
    for twin in (
        module,
        copy.deepcopy(module),
        pickle.loads(pickle.dumps(module)),
        load(tmp_path / "module.fxplug"),
        GraphModule(dict(module.named_modules()) | dict(module.state_dict(keep_vars=True)), module.graph),
    ):
        torch.testing.assert_close(twin(x), expected, rtol=0, atol=0)
        torch.testing.assert_close(Interpreter(twin).run(x), expected, rtol=0, atol=0)
    assert module.state_dict().keys() == root.state_dict().keys()
    module.graph.lint()


@pytest.mark.parametrize("name", NAMES, ids=ascii)
def test_a_graph_module_may_have_a_class_of_any_name(name):
    graph = Graph()
    graph.output(graph.placeholder("x"))
    module = GraphModule(nn.Module(), graph, name)

    assert module(3) == 3
    assert name in repr(module)
    assert copy.deepcopy(module)._get_name() == name
