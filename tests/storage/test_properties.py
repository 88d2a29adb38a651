"""For every module that a file can hold: what is loaded is what was saved."""

from __future__ import annotations

import dataclasses
import enum
import importlib.util
import math
import operator
import struct
import sys
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import nn

import fxplug
from fxplug.execute import GraphModule, GuardSet
from fxplug.ir import Graph, Origin, RegionEntry, SourceLine, effects
from fxplug.ir.guards import Guard
from fxplug.lower import EagerBackend, lower
from fxplug.passes.state_origins import NOTE
from fxplug.plugins import Config, PluginManager, TraceConfig
from fxplug.storage import load, save, summarize

CHECKOUT = Path(__file__).resolve().parents[2]


class Kind(enum.Enum):
    ONE = 1
    TWO = "two"


class Pair(NamedTuple):
    left: Any
    right: Any


@dataclasses.dataclass(frozen=True)
class Setting:
    kind: Kind
    sizes: Any


def gather(*args, **kwargs):
    """Take anything, so that graphs with any arguments can be run."""
    return [args, kwargs]


ALLOW = [f"{__name__}:{name}" for name in ("Kind", "Pair", "Setting", "gather")]
NAN = [struct.unpack(">d", bytes.fromhex(text))[0] for text in ("7ff8000000000001", "fff0000000000001")]
FLOATS = st.floats() | st.sampled_from([*NAN, -0.0, math.inf, -math.inf, 5e-324])
CONSTANTS = [
    *(
        None,
        True,
        False,
        ...,
        torch.float32,
        torch.float8_e5m2,
        torch.strided,
        torch.channels_last,
        torch.relu,
    ),
    *(
        operator.add,
        math.sqrt,
        torch.Tensor,
        len,
        torch.ops.aten.add.Tensor,
        torch.per_tensor_affine,
        Kind.ONE,
    ),
    *(
        Kind.TWO,
        torch.device("cuda", 1),
        torch.device("meta"),
        2**53 + 1,
        -(2**200),
        "\x00é\U0001f600",
        "$node",
    ),
]
HASHABLE = st.sampled_from(CONSTANTS[:9]) | st.integers() | st.text(max_size=5) | st.binary(max_size=5)
LEAVES = (
    st.sampled_from(CONSTANTS)
    | st.integers()
    | FLOATS
    | st.complex_numbers()
    | st.text(max_size=8)
    | st.binary(max_size=8)
    | st.builds(range, st.integers(-5, 5), st.integers(-5, 5), st.integers(1, 3))
    | st.lists(st.integers(0, 9), max_size=3).map(torch.Size)
)


def of_notes(children):
    return (
        st.lists(children, max_size=3)
        | st.lists(children, max_size=3).map(tuple)
        | st.dictionaries(HASHABLE, children, max_size=3)
        | st.builds(Pair, children, children)
        | st.builds(Setting, st.sampled_from(Kind), st.lists(st.integers(), max_size=2).map(tuple))
    )


def containers(children):
    return of_notes(children) | st.builds(slice, children, children, children)


NAMES = st.from_regex(r"[a-z_][a-z0-9_]{0,5}", fullmatch=True)
TYPES = st.sampled_from(
    [None, torch.Tensor, int, "Later", list[int], dict[str, torch.Tensor], tuple[int, ...]]
)
LINES = st.builds(SourceLine, st.text(max_size=6), st.integers(1, 99), NAMES)
ORIGINS = st.builds(
    lambda line, caller, pass_name: Origin(
        line, caller=None if caller is None else Origin(caller), made_by=pass_name
    ),
    LINES,
    st.none() | LINES,
    st.none() | st.text(min_size=1, max_size=5),
)
REGIONS = st.sampled_from(
    [
        (),
        (RegionEntry(torch.no_grad),),
        (RegionEntry(torch.no_grad), RegionEntry(torch.set_grad_enabled, (True,))),
    ]
)


@st.composite
def modules(draw):
    """Return a graph module with any arguments, notes, origins, regions, tensors and guards, which can be run."""
    base = torch.arange(draw(st.integers(1, 6)), dtype=draw(st.sampled_from([torch.float32, torch.bfloat16])))
    tied = nn.Parameter(base.clone(), requires_grad=draw(st.booleans()))
    holds = {
        "tied": tied,
        "again": tied,
        "view": tied.detach()[:1],
        "part.mask": torch.ones(2, dtype=torch.bool),
        "linear": nn.Linear(2, 2).train(draw(st.booleans())),
    }
    graph = Graph()
    nodes = [
        graph.placeholder("x", draw(TYPES)),
        graph.placeholder("y", draw(TYPES), default_value=draw(st.none() | FLOATS | st.text(max_size=3))),
    ]
    if draw(st.booleans()):
        graph.keyword_only = frozenset({"y"})
    for _ in range(draw(st.integers(1, 6))):
        values = st.recursive(LEAVES | st.sampled_from(nodes), containers, max_leaves=6)
        kind = draw(st.sampled_from(["call_function", "get_attr", "call_module", "call_method"]))
        if kind == "get_attr":
            node = graph.get_attr(draw(st.sampled_from(["tied", "again", "view", "part.mask"])))
        elif kind == "call_module":
            node = graph.call_module("linear", (graph.call_method("float", (graph.get_attr("part.mask"),)),))
        elif kind == "call_method":
            node = graph.call_method("clone", (graph.get_attr("tied"),))
        else:
            args = tuple(draw(st.lists(values, max_size=3)))
            node = graph.create_node(
                "call_function", gather, args, draw(st.dictionaries(NAMES, values, max_size=2))
            )
        node.origins = tuple(draw(st.lists(ORIGINS, max_size=2)))
        node.region = draw(REGIONS)
        node.type = draw(TYPES)
        if draw(st.booleans()):
            # A node inside of a slice is not found in notes, which are then left out.
            node.meta["note"] = draw(st.recursive(LEAVES | st.sampled_from(nodes), of_notes, max_leaves=6))
        nodes.append(node)
    graph.output(draw(st.recursive(LEAVES | st.sampled_from(nodes), containers, max_leaves=6)))
    module = GraphModule(holds, graph, draw(NAMES))
    module.train(draw(st.booleans()))
    module.meta["note"] = draw(LEAVES)
    if draw(st.booleans()):
        guards = Graph()
        guards.placeholder("x")
        guards.placeholder("y", default_value=None)
        guards.output((guards.call_function(operator.not_, (False,)),))
        module.set_guards(GuardSet(guards, (Guard(draw(st.text(max_size=5)), "file:1", "if not x"),), "warn"))
    return module


def described(module, bits):
    """Return everything about a module that a file keeps, comparable to the bit."""
    graph = module.graph
    return {
        "text": str(graph),
        "code": module.code,
        "repr": repr(module),
        "nodes": [
            (
                *(node.op, node.name, str(node.target), bits(names_in((node.args, dict(node.kwargs))))),
                *(repr(node.type), bits(names_in(plain(node.meta))), node.region),
                effects.effect_of(node, module),
                *([origin.to_data() for origin in node.origins], list(map(str, node.users))),
            )
            for node in graph.nodes
        ],
        "keyword_only": graph.keyword_only,
        "guards": [(guard.text, guard.line, guard.source) for guard in module.guards],
        "notes": bits({name: note for name, note in module.meta.items() if name != NOTE}),
        "weights": told(module.meta.get(NOTE)),
        "state": bits(dict(module.state_dict())),
        "modules": [(name, type(part), part.training) for name, part in module.named_modules()],
        "grad": [(name, one.requires_grad) for name, one in module.named_parameters(remove_duplicate=False)],
        "objects": [name for name, _ in module.named_parameters()],
    }


def plain(notes):
    """Return notes with the names of classes in module stacks, as files keep them."""
    notes = dict(notes)
    if isinstance(notes.get("nn_module_stack"), dict):
        notes["nn_module_stack"] = [
            (path, kind if isinstance(kind, str) else f"{kind.__module__}.{kind.__qualname__}")
            for path, kind in notes["nn_module_stack"].values()
        ]
    return notes


def told(origins):
    """Return a map to the weights of the original, comparable."""
    if origins is None:
        return None
    parts = {
        path: [
            (
                part.key,
                part.pass_name,
                None if part.recipe is None else (part.recipe.name, str(part.recipe.graph)),
            )
            for part in origin.parts()
        ]
        for path, origin in origins.items()
    }
    return parts, dict(origins.original)


def names_in(value):
    """Return `value` with the names of nodes in their places."""
    if isinstance(value, fxplug.Node):
        return f"%{value.name}"
    if isinstance(value, slice):
        return "slice", *map(names_in, (value.start, value.stop, value.step))
    if isinstance(value, dict):
        return {key: names_in(one) for key, one in value.items()}
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value).__name__, *map(names_in, value)
    if isinstance(value, (tuple, list)) and not isinstance(value, torch.Size):
        return type(value)(map(names_in, value))
    return value


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=True)
@given(module=modules(), lazy=st.booleans())
def test_a_random_module_comes_back_in_text_notes_guards_origins_and_outputs(
    tmp_path_factory, bits, module, lazy
):
    path = tmp_path_factory.mktemp("properties") / "m.fxplug"
    save(module, path, allow=ALLOW)
    loaded = load(path, allow=ALLOW, lazy=lazy)

    ours, theirs = described(loaded, bits), described(module, bits)
    for one, other in zip(ours.pop("nodes"), theirs.pop("nodes"), strict=True):
        assert one == other
    assert ours == theirs
    loaded.graph.lint()
    x = torch.ones(1)
    assert bits(loaded(x, y=2)) == bits(module(x, y=2))
    again = path.with_name("again.fxplug")
    save(loaded, again, allow=ALLOW)
    assert again.read_bytes() == path.read_bytes()


def example(path):
    name = f"stored_{Path(path).stem}"
    spec = importlib.util.spec_from_file_location(name, CHECKOUT / path)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


EXAMPLES = {
    "examples/resnet50.py": ("resnet50", (1, 3, 64, 64)),
    "examples/deep_recommender.py": ("deep_recommender", (2, 17768)),
    "examples/learning_to_paint.py": ("actor", (1, 9, 128, 128)),
    "examples/transformer.py": ("transformer", (2, 16)),
}
OWN = {model.name: model for model in example("benchmarks/own_models.py").OWN_MODELS}


def check(module, inputs, tmp_path, bits, *, allow=()):
    save(module, tmp_path / "m.fxplug", allow=allow)
    assert summarize(tmp_path / "m.fxplug").left_out == ()
    for lazy in (False, True):
        loaded = load(tmp_path / "m.fxplug", lazy=lazy, allow=allow)
        ours, theirs = described(loaded, bits), described(module, bits)
        for one, other in zip(ours.pop("nodes"), theirs.pop("nodes"), strict=True):
            assert one == other
        assert ours == theirs
        outputs = []
        for program in (module, loaded):
            torch.manual_seed(0)
            with torch.no_grad():
                outputs.append(program(*inputs))
        assert bits(outputs[0]) == bits(outputs[1])


@pytest.mark.parametrize("level", ["modules", "functions"])
@pytest.mark.parametrize("path", EXAMPLES)
def test_an_example_comes_back_whole_and_lowered(path, level, tmp_path, bits):
    factory, shape = EXAMPLES[path]
    torch.manual_seed(0)
    inputs = (torch.randint(0, 10, shape),) if factory == "transformer" else (torch.rand(shape),)
    through = ("*",) if level == "functions" else ()
    manager = PluginManager(config=Config(trace=TraceConfig(through_modules=through)), candidates=())
    module = fxplug.trace(getattr(example(path), factory)(), inputs, manager=manager)
    lowered = lower(module, EagerBackend(), inputs, name="eager").module

    assert isinstance(lowered, GraphModule)
    check(lowered, inputs, tmp_path, bits)


@pytest.mark.parametrize("name", OWN)
def test_a_model_of_our_own_comes_back(name, tmp_path, bits):
    torch.manual_seed(0)
    model, inputs = OWN[name].build().eval(), OWN[name].inputs(2)
    module = fxplug.trace(model, inputs, manager=PluginManager(candidates=()))
    allow = ["stored_own_models:Round.apply"] if name == "straight-through estimator" else []

    check(module, inputs, tmp_path, bits, allow=allow)
