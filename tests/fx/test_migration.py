"""Programs written for torch.fx run when ``torch.fx`` is replaced by ``fxplug.fx`` in their text, and give the same."""

from __future__ import annotations

import pytest

PROGRAMS = {
    "inspect_a_model": """
import torch
import torch.fx
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
        self.scale = nn.Parameter(torch.full((2,), 0.5))

    def forward(self, x):
        return self.layers(x).clamp(min=0.0) * self.scale


traced: torch.fx.GraphModule = torch.fx.symbolic_trace(Net())
kinds = {}
for node in traced.graph.nodes:
    assert isinstance(node, torch.fx.Node)
    kinds[node.op] = kinds.get(node.op, 0) + 1
x = torch.linspace(-1, 1, 8).reshape(2, 4)
result = (kinds, traced(x).tolist(), sorted(traced.state_dict()))
""",
    "swap_an_activation": """
import torch
from torch import nn
from torch.fx import GraphModule, Node, symbolic_trace


def swap_relu(root: nn.Module) -> GraphModule:
    traced = symbolic_trace(root)
    modules = dict(traced.named_modules())
    for node in list(traced.graph.nodes):
        if node.op == "call_module" and isinstance(modules[node.target], nn.ReLU):
            with traced.graph.inserting_after(node):
                new: Node = traced.graph.call_function(torch.tanh, node.args)
            node.replace_all_uses_with(new)
            traced.graph.erase_node(node)
    traced.delete_all_unused_submodules()
    traced.graph.lint()
    traced.recompile()
    return traced


torch.manual_seed(1)
swapped = swap_relu(nn.Sequential(nn.Linear(3, 3), nn.ReLU(), nn.Linear(3, 1)))
x = torch.linspace(0, 1, 6).reshape(2, 3)
result = (swapped(x).tolist(), [name for name, _ in swapped.named_children()])
""",
    "measure_with_an_interpreter": """
import torch
import torch.fx as fx
from torch import nn


class Recorder(fx.Interpreter):
    def __init__(self, module):
        super().__init__(module)
        self.seen = []

    def run_node(self, n):
        value = super().run_node(n)
        if isinstance(value, torch.Tensor):
            self.seen.append((n.op, tuple(value.shape)))
        return value


torch.manual_seed(2)
recorder = Recorder(fx.symbolic_trace(nn.Sequential(nn.Linear(3, 5), nn.Sigmoid())))
output = recorder.run(torch.ones(2, 3))
result = (recorder.seen, output.tolist())
""",
    "rewrite_with_proxies": """
import operator

import torch
import torch.fx
from torch.fx.proxy import GraphAppendingTracer, Proxy


def program(x, y):
    return torch.relu(x + y) * 2


RULES = {torch.relu: lambda v: (v > 0) * v, operator.mul: lambda a, b: a + a if b == 2 else a * b}


def decompose(traced):
    graph = torch.fx.Graph()
    tracer = GraphAppendingTracer(graph)
    values = {}
    for node in traced.graph.nodes:
        if node.op == "call_function" and node.target in RULES:
            args = [Proxy(values[a], tracer) if isinstance(a, torch.fx.Node) else a for a in node.args]
            values[node] = RULES[node.target](*args).node
        else:
            values[node] = graph.node_copy(node, lambda used: values[used])
    return torch.fx.GraphModule(torch.nn.Module(), graph)


module = decompose(torch.fx.symbolic_trace(program))
x = torch.linspace(-1, 1, 4)
result = ([str(node.target) for node in module.graph.nodes], module(x, x + 0.5).tolist())
""",
    "replace_a_pattern": """
import torch
from torch.fx import subgraph_rewriter, symbolic_trace


class Block(torch.nn.Module):
    def forward(self, x, w):
        first = torch.cat([x, w]).sum()
        second = torch.cat([w, x]).mean()
        return torch.max(first, second) + x


def pattern(a, b):
    return torch.cat([a, b])


def replacement(a, b):
    return torch.stack([a, b])


traced = symbolic_trace(Block())
matches = subgraph_rewriter.replace_pattern(traced, pattern, replacement)
for match in matches:
    assert match.nodes_map[match.anchor].target is torch.cat
x = torch.arange(3.0)
result = (len(matches), traced(x, x * 2).tolist(), [str(node) for node in traced.graph.nodes])
""",
    "customise_the_tracer": """
import torch
import torch.fx
from torch import nn


class Attention(nn.Module):
    def forward(self, x):
        return torch.softmax(x, -1) @ x


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention = Attention()
        self.norm = nn.LayerNorm(3)

    def forward(self, x):
        return self.norm(self.attention(x))


class KeepAttention(torch.fx.Tracer):
    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return isinstance(m, Attention) or super().is_leaf_module(m, module_qualified_name)

    def create_proxy(self, kind, target, args, kwargs, name=None, type_expr=None, proxy_factory_fn=None):
        proxy = super().create_proxy(kind, target, args, kwargs, name, type_expr, proxy_factory_fn)
        proxy.node.meta["kind"] = kind
        return proxy


tracer = KeepAttention()
model = Model()
graph = tracer.trace(model)
module = torch.fx.GraphModule(tracer.root, graph, "Kept")
x = torch.linspace(0, 1, 9).reshape(3, 3)
result = (
    [(node.op, node.target, node.meta.get("kind")) for node in graph.nodes if node.op == "call_module"],
    module(x).tolist(),
    repr(module).partition("(")[0],
)
""",
    "keep_calls_whole": """
import torch
import torch.fx

torch.fx.wrap("len")


@torch.fx.wrap
def round_up(value):
    return value.ceil() if value.sum() > 0 else value


def program(x):
    return round_up(x) + len(x)


traced = torch.fx.symbolic_trace(program)
x = torch.linspace(0, 1, 3)
result = ([node.name for node in traced.graph.nodes], traced(x).tolist())
""",
    "note_shapes": """
import torch
from torch.fx import symbolic_trace
from torch.fx.passes.shape_prop import ShapeProp, TensorMetadata

torch.manual_seed(0)
traced = symbolic_trace(torch.nn.Sequential(torch.nn.Conv2d(1, 2, 3), torch.nn.Flatten()))
ShapeProp(traced).propagate(torch.ones(1, 1, 5, 5))
result = []
for node in traced.graph.nodes:
    meta = node.meta["tensor_meta"]
    assert isinstance(meta, TensorMetadata)
    result.append((node.name, tuple(meta.shape), str(meta.dtype)))
""",
    "transform_and_clean": """
import torch
import torch.fx
from torch.fx.node import map_arg


class ToFunctions(torch.fx.Transformer):
    def call_method(self, target, args, kwargs):
        if target == "neg":
            return torch.neg(*args, **kwargs)
        return super().call_method(target, args, kwargs)


def program(x):
    x.sigmoid()
    return x.neg().add(1)


transformed = ToFunctions(torch.fx.symbolic_trace(program)).transform()
transformed.graph.eliminate_dead_code()
users = [map_arg(node.args, lambda used: used.name) for node in transformed.graph.nodes]
result = (str(users), transformed(torch.ones(2)).tolist())
""",
    "ask_whether_it_is_traced": """
import torch
from torch.fx import symbolic_trace
from torch.fx._symbolic_trace import is_fx_tracing


def program(x):
    if not is_fx_tracing() and x.sum() > 100:
        raise ValueError("too large")
    return x + 1


result = (symbolic_trace(program)(torch.ones(2)).tolist(), is_fx_tracing())
""",
}


def run(source, name):
    namespace = {"__name__": name}
    exec(compile(source, f"{name}.py", "exec", dont_inherit=True), namespace)
    return namespace["result"]


@pytest.mark.parametrize("name", PROGRAMS)
def test_replacing_the_name_of_the_package_is_enough(name):
    ours = PROGRAMS[name].replace("torch.fx", "fxplug.fx")

    assert ours != PROGRAMS[name]
    assert run(ours, name) == run(PROGRAMS[name], name)
