"""Every public name below fxplug.fx is there, and one small use of it does what it does in torch.fx."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest
import torch
import torch.fx
import torch.fx.passes.shape_prop
import torch.fx.passes.utils.matcher_utils
from torch import nn

import fxplug
import fxplug.analyze
import fxplug.fx
import fxplug.rewrite

if TYPE_CHECKING:
    from collections.abc import Callable

X = torch.linspace(-2, 2, 6).reshape(2, 3)

MODULES = [
    "fxplug.fx",
    *(found.name for found in pkgutil.walk_packages(fxplug.fx.__path__, "fxplug.fx.")),
]
NAMES = [(module, name) for module in MODULES for name in importlib.import_module(module).__all__]

WITHOUT_USE = {"FxGraphDrawer": "raises, see test_passes.py"}

USES: dict[str, Callable[[Any, Any], Any]] = {}
"""Name -> a use: called with what has the name and with torch.fx or fxplug.fx; returns what can be compared."""


def use(function: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    USES[function.__name__] = function
    return function


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.linear = nn.Linear(3, 3)

    def forward(self, x):
        return torch.relu(self.linear(x)) + 1


def rows(graph):
    return [(node.op, node.name, str(node.target), str(node.args), dict(node.kwargs)) for node in graph.nodes]


# -- capture


@use
def symbolic_trace(obj, fx):
    return rows(obj(Model()).graph), obj(Model())(X).tolist()


@use
def Tracer(obj, fx):  # noqa: N802
    class Whole(obj):
        def is_leaf_module(self, m, module_qualified_name):
            return module_qualified_name == "0"

    return rows(Whole().trace(nn.Sequential(Model(), nn.ReLU())))


@use
def wrap(obj, fx):
    # Names are wrapped at the top level of a module only.
    source = """
wrap("double")

def double(value):
    return value * (2 if value.sum() > 0 else 3)

@wrap
def triple(value):
    return value * (3 if value.sum() > 0 else 2)

def program(x):
    return double(x) - triple(x)
"""
    namespace = {"wrap": obj, "__name__": "wrapping"}
    exec(source, namespace)
    traced = fx.symbolic_trace(namespace["program"])
    return [row[:2] for row in rows(traced.graph)], traced(X).tolist()


@use
def PH(obj, fx):  # noqa: N802
    def program(x, options):
        return x * options["scale"] + options["shift"]

    traced = fx.symbolic_trace(program, concrete_args={"options": {"scale": obj, "shift": 2}})
    return traced(X, {"scale": 3, "shift": 2}).tolist()


@use
def PHBase(obj, fx):  # noqa: N802
    return isinstance(fx.PH, obj), repr(obj())


@use
def PHWithMeta(obj, fx):  # noqa: N802
    return issubclass(obj, type(fx.PH)), obj(ph_key="key").ph_key


@use
def ProxyableClassMeta(obj, fx):  # noqa: N802
    class Pair(metaclass=obj):
        def __init__(self, left, right):
            self.left, self.right = left, right

        def total(self):
            return self.left + self.right

    def program(x, y):
        return Pair(x, Pair(y, y).total()).total()

    return fx.symbolic_trace(program)(X, X).tolist()


@use
def is_fx_tracing(obj, fx):
    asked = []

    def program(x):
        asked.append(obj())
        return x

    fx.symbolic_trace(program)
    return obj(), asked


@use
def is_fx_symbolic_tracing(obj, fx):
    return is_fx_tracing(obj, fx)


@use
def annotate(obj, fx):
    traced = fx.symbolic_trace(lambda x: obj(torch.relu(x), torch.Tensor))
    return [node.type for node in traced.graph.nodes], obj(5, int)


# -- graphs


@use
def Graph(obj, fx):  # noqa: N802
    graph = obj()
    graph.output(graph.call_function(torch.relu, (graph.placeholder("x"),)))
    graph.lint()
    return rows(graph), str(graph)


@use
def GraphModule(obj, fx):  # noqa: N802
    graph = fx.Graph()
    graph.output(graph.call_module("linear", (graph.placeholder("x"),)))
    module = obj(Model(), graph, "Name")
    return module(X).tolist(), sorted(module.state_dict()), module.code.split()


@use
def Node(obj, fx):  # noqa: N802
    graph = fx.Graph()
    x = graph.placeholder("x")
    node = graph.call_method("add", (x, 1))
    return isinstance(node, obj), str(node.all_input_nodes), str(list(x.users)), node.format_node()


@use
def Argument(obj, fx):  # noqa: N802
    return inspect.signature(lambda value: None).parameters.keys() == {"value"}  # It stands in annotations.


@use
def Target(obj, fx):  # noqa: N802
    return Argument(obj, fx)


@use
def map_arg(obj, fx):
    graph = fx.Graph()
    x = graph.placeholder("x")
    return str(obj((x, [1, {"key": x}]), lambda node: node.name))


@use
def map_aggregate(obj, fx):
    return str(obj((1, [2, {"key": 3}], slice(4, None)), lambda leaf: leaf and leaf * 10))


@use
def has_side_effect(obj, fx):
    def log(value):
        return None

    assert obj(log) is log
    graph = fx.Graph()
    x = graph.placeholder("x")
    graph.call_function(log, (x,))
    graph.call_function(torch.relu, (x,))
    graph.output(x)
    graph.eliminate_dead_code()
    return [node.op for node in graph.nodes]


@use
def immutable_list(obj, fx):
    value = obj([1, 2])
    with pytest.raises((NotImplementedError, TypeError)):
        value.append(3)
    return list(value), isinstance(value, list), hash(value) == hash(obj([1, 2]))


@use
def immutable_dict(obj, fx):
    value = obj({"key": 1})
    with pytest.raises((NotImplementedError, TypeError)):
        value["other"] = 3
    return dict(value), isinstance(value, dict)


@use
def CodeGen(obj, fx):  # noqa: N802
    class Doubled(obj):
        def process_inputs(self, *inputs):
            return tuple(value * 2 for value in inputs)

    graph = fx.Graph()
    graph.output(graph.placeholder("x"))
    graph.set_codegen(Doubled())
    return graph.process_inputs(X)[0].tolist(), obj().gen_fn_def(["x"], "").split()


@use
def PythonCode(obj, fx):  # noqa: N802
    code = fx.symbolic_trace(lambda x: torch.relu(x) + 1).graph.python_code("self")
    return isinstance(code, obj), code.src.split()[:3]


@use
def ArgsKwargsPair(obj, fx):  # noqa: N802
    return obj((1,), {"key": 2}).kwargs, obj._fields


@use
def normalize_function(obj, fx):
    by_position = obj(torch.relu, (X,))
    by_keyword = obj(torch.nn.functional.softmax, (X, 1), normalize_to_only_use_kwargs=True)
    return len(by_position.args), list(by_keyword.kwargs), by_keyword.kwargs["dim"]


@use
def normalize_module(obj, fx):
    pair = obj(Model(), "linear", (X,), normalize_to_only_use_kwargs=True)
    return pair.args, list(pair.kwargs)


# -- running


@use
def Interpreter(obj, fx):  # noqa: N802
    class Swap(obj):
        def call_function(self, target, args, kwargs):
            return super().call_function(torch.sigmoid if target is torch.relu else target, args, kwargs)

    return Swap(fx.symbolic_trace(Model())).run(X).tolist()


@use
def Transformer(obj, fx):  # noqa: N802
    class Swap(obj):
        def call_function(self, target, args, kwargs):
            return super().call_function(torch.sigmoid if target is torch.relu else target, args, kwargs)

    return rows(Swap(fx.symbolic_trace(Model())).transform().graph)


# -- proxies


def proxied(fx, kind=None):
    graph = fx.Graph()
    node = graph.placeholder("x")
    return graph, (kind or fx.Proxy)(node)


@use
def Proxy(obj, fx):  # noqa: N802
    graph, proxy = proxied(fx, obj)
    graph.output((torch.relu(proxy) + 1).node)
    return rows(graph)


@use
def Attribute(obj, fx):  # noqa: N802
    graph, proxy = proxied(fx)
    size = proxy.shape
    assert isinstance(size, obj)
    graph.output(size[0].node)
    return rows(graph)


@use
def ParameterProxy(obj, fx):  # noqa: N802
    _, proxy = proxied(fx)
    parameter = nn.Parameter(torch.zeros(2, 3))
    known = obj(proxy.tracer, proxy.node, "x", parameter)
    return known.shape, known.dim(), known.ndim, known.numel(), known.size(), repr(known)


@use
def TracerBase(obj, fx):  # noqa: N802
    return issubclass(fx.Tracer, obj), issubclass(fx.proxy.GraphAppendingTracer, obj)


@use
def GraphAppendingTracer(obj, fx):  # noqa: N802
    graph = fx.Graph()
    tracer = obj(graph)
    x = fx.Proxy(graph.placeholder("x"), tracer)
    graph.output((x * 2).node)
    return rows(graph)


@use
def Scope(obj, fx):  # noqa: N802
    scope = obj("path.to", nn.ReLU)
    return scope.module_path, scope.module_type


@use
def ScopeContextManager(obj, fx):  # noqa: N802
    scope = fx.proxy.Scope("", None)
    with obj(scope, fx.proxy.Scope("inner", nn.ReLU)) as entered:
        inside = entered.module_path, scope.module_path
    return inside, scope.module_path


@use
def TraceError(obj, fx):  # noqa: N802
    with pytest.raises(obj):
        fx.symbolic_trace(lambda x: x if x.sum() > 0 else -x)
    return issubclass(obj, ValueError)


# -- rewriting and passes


@use
def replace_pattern(obj, fx):
    module = fx.symbolic_trace(Model())
    matches = obj(module, lambda v: v + 1, lambda v: v - 1)
    return len(matches), rows(module.graph)[-2][0::2], module(X).tolist()


@use
def replace_pattern_with_filters(obj, fx):
    module = fx.symbolic_trace(Model())
    replaced = obj(module, lambda v: v + 2, lambda v: v - 1, ignore_literals=True)
    return [str(place.replacements) for place in replaced], module(X).tolist()


@use
def Match(obj, fx):  # noqa: N802
    (match,) = fx.replace_pattern(fx.symbolic_trace(Model()), lambda v: v + 1, lambda v: v - 1)
    return isinstance(match, obj), match.anchor.op, len(match.nodes_map), obj._fields


@use
def ReplacedPatterns(obj, fx):  # noqa: N802
    replaced = fx.subgraph_rewriter.replace_pattern_with_filters(
        fx.symbolic_trace(Model()), lambda v: v + 1, lambda v: v - 1
    )
    return [isinstance(place, obj) for place in replaced], replaced[0].anchor.op


@use
def SubgraphMatcher(obj, fx):  # noqa: N802
    module, pattern = fx.symbolic_trace(Model()), fx.symbolic_trace(lambda v: torch.relu(v) + 1)
    (match,) = obj(pattern.graph).match(module.graph)
    return sorted((wanted.name, found.name) for wanted, found in match.nodes_map.items())


@use
def split_module(obj, fx):
    split = obj(fx.symbolic_trace(Model()), None, lambda node: int(node.name == "add"))
    parts = [(name, rows(part.graph)) for name, part in split.named_children()]
    return rows(split.graph), parts, split(X).tolist(), list(inspect.signature(obj).parameters)


def set_tag(node, tag):
    if isinstance(node, fxplug.Node):
        node.meta["tag"] = tag
    else:
        node.tag = tag


@use
def split_by_tags(obj, fx):
    traced = fx.symbolic_trace(Model())
    for node in traced.graph.nodes:
        set_tag(node, "last" if node.name == "add" else "first")
    split, mapping = obj(traced, ["first", "last"], return_fqn_mapping=True)
    return rows(split.graph), sorted(split.state_dict()), mapping, split(X).tolist()


@use
def topo_sort(obj, fx):
    nodes = [node for node in fx.symbolic_trace(Model()).graph.nodes if node.op == "call_function"]
    return [node.name for node in obj(nodes)]


@use
def validate_partition(obj, fx):
    traced = fx.symbolic_trace(Model())
    relu, add = (node for node in traced.graph.nodes if node.op == "call_function")
    (linear,) = (node for node in traced.graph.nodes if node.op == "call_module")
    return obj([linear, relu]), obj([linear, add])


@use
def fuse_by_partitions(obj, fx):
    traced = fx.symbolic_trace(Model())
    nodes = [node for node in traced.graph.nodes if node.op.startswith("call_")][:2]
    fused = obj(traced, [dict.fromkeys(nodes)])
    # torch.fx leaves what the submodule alone uses in the outer module, too.
    held = [key for key in fused.state_dict() if key.startswith("fused_0")]
    return [row[:3] for row in rows(fused.graph)], held, fused(X).tolist()


@use
def InternalMatch(obj, fx):  # noqa: N802
    match = obj(anchors=[])
    return match.nodes_map, match.placeholder_nodes, match.returning_nodes, match.name_node_map


@use
def ShapeProp(obj, fx):  # noqa: N802
    module = fx.symbolic_trace(Model())
    result = obj(module).propagate(X)
    return result.tolist(), [tuple(node.meta["tensor_meta"]) for node in module.graph.nodes]


@use
def TensorMetadata(obj, fx):  # noqa: N802
    return obj._fields


# -- the tests


@pytest.mark.parametrize(("module", "name"), NAMES, ids=[f"{module}.{name}" for module, name in NAMES])
def test_a_small_use_does_what_it_does_in_torch_fx(module, name):
    ours = getattr(importlib.import_module(module), name)
    theirs = getattr(importlib.import_module(f"torch{module.removeprefix('fxplug')}"), name)
    if name in WITHOUT_USE:
        return

    assert USES[name](ours, fxplug.fx) == USES[name](theirs, torch.fx)


def test_every_use_is_that_of_a_name():
    assert set(USES) | set(WITHOUT_USE) == {name for _, name in NAMES}


@pytest.mark.parametrize("module", MODULES)
def test_no_path_is_invented(module):
    assert importlib.util.find_spec(f"torch{module.removeprefix('fxplug')}") is not None


@pytest.mark.parametrize("module", MODULES)
def test_the_list_of_a_module_is_sorted_and_dir_shows_it(module):
    loaded = importlib.import_module(module)

    assert set(loaded.__all__) <= set(dir(loaded))
    assert len(set(loaded.__all__)) == len(loaded.__all__)


def test_names_are_those_of_fxplug_itself():
    for name in set(fxplug.fx.__all__) & set(fxplug.__all__):
        assert getattr(fxplug.fx, name) is getattr(fxplug, name)


def test_a_submodule_is_reached_without_importing_it():
    assert fxplug.fx.proxy.Proxy is fxplug.Proxy
    assert fxplug.fx.passes.shape_prop.ShapeProp is fxplug.analyze.ShapeProp
    assert fxplug.fx.passes.utils.matcher_utils.SubgraphMatcher is fxplug.rewrite.SubgraphMatcher


def test_a_name_that_is_missing_says_where_to_look():
    with pytest.raises(AttributeError) as caught:
        _ = fxplug.fx.nothing

    assert "module 'fxplug.fx' has no attribute 'nothing'" in str(caught.value)
    assert "docs/migration/torch-fx-names.md" in str(caught.value)
    with pytest.raises(AttributeError, match=r"module 'fxplug\.fx\.passes' has no attribute 'nothing'"):
        _ = fxplug.fx.passes.nothing
    with pytest.raises(
        AttributeError, match=r"module 'fxplug\.fx\.passes\.utils' has no attribute 'nothing'"
    ):
        _ = fxplug.fx.passes.utils.nothing


def test_importing_the_package_loads_neither_torch_nor_a_layer():
    script = """
import sys, fxplug.fx
print(sorted(name for name in sys.modules if name.startswith(("torch", "fxplug."))))
"""

    completed = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)

    assert completed.stdout.strip() == "['fxplug.fx']"


def test_it_is_there_once_fxplug_is_imported():
    script = "import fxplug; print(fxplug.fx.__name__, callable(fxplug.fx.symbolic_trace))"

    completed = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)

    assert completed.stdout.strip() == "fxplug.fx True"


def test_what_programs_import_from_the_module_of_graphs():
    for package in (torch.fx, fxplug.fx):
        assert package.graph.map_arg((1, [2]), lambda node: node) == (1, [2])
    assert fxplug.fx.graph.map_arg is fxplug.map_arg
