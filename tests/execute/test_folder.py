"""A module written as a package of source and weights, which needs nothing but torch."""

from __future__ import annotations

import contextlib
import enum
import functools
import importlib
import inspect
import math
import operator
import os
import struct
import subprocess
import sys
import typing
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import fxplug
from fxplug.capture import Tracer
from fxplug.codegen import CodeGen
from fxplug.errors import GraphError, InvalidArgumentError
from fxplug.execute import GraphModule
from fxplug.ir import Graph, RegionEntry

X = torch.linspace(-1, 1, 12).reshape(4, 3)


class Color(enum.Enum):
    RED = 1


class Access(enum.Flag):
    READ = 1
    WRITE = 2


class Level(enum.IntFlag):
    LOW = 1
    HIGH = 4


class Titled(enum.Enum):
    FIRST = 1

    @property
    def name(self):
        return "not the name"


class torch_(enum.Enum):  # noqa: N801 - its members get names like those of the written source
    ONE = 1


torch_.__name__ = "torch"


class Tripling(GraphModule):
    def forward(self, x):
        return super().forward(x) * 3


class Calling(Tripling):
    pass


class Quiet(GraphModule):
    def helper(self):
        return 1


class WithGraph(nn.Module):
    def __init__(self):
        super().__init__()
        self.graph = Graph()

    def forward(self, x):
        return x + 7


class Holder:
    @staticmethod
    def halve(x):
        return x / 2


class Point(typing.NamedTuple):
    x: torch.Tensor
    y: int


def scaled(x, factor, *_):
    return x * factor


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.stack = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3))
        self.scale = nn.Parameter(torch.full((3,), 0.5))
        self.register_buffer("offset", torch.ones(3))
        self.register_buffer("temporary", torch.full((3,), 0.25), persistent=False)
        self.plain = torch.full((3,), 2.0)

    def forward(self, x: torch.Tensor, factor: float = 2.0):
        y = self.stack(x) * self.scale + self.offset + self.temporary + self.plain
        return torch.relu(y) * factor + torch.ones(3)


@pytest.fixture
def written(tmp_path, monkeypatch):
    """(module) -> an instance of the class that its folder defines, and the folder."""
    monkeypatch.syspath_prepend(tmp_path)
    names = []

    def write(module, name="exported"):
        module.to_folder(tmp_path / name)
        names.append(name)
        importlib.invalidate_caches()
        sys.modules.pop(name, None)
        return importlib.import_module(name).FxModule(), tmp_path / name

    yield write
    for loaded in [known for known in sys.modules if known.partition(".")[0] in names]:
        del sys.modules[loaded]


def one_call(target, *args, op="call_function", root=None, **kwargs):
    graph = Graph()
    x = graph.placeholder("x")
    graph.output(graph.create_node(op, target, (x, *args), kwargs, "call"))
    return GraphModule(root if root is not None else nn.Module(), graph)


# -- what comes back


@pytest.mark.parametrize("training", [True, False])
def test_the_written_module_computes_the_same(capture, written, training):
    torch.manual_seed(0)
    module = capture(Net()).train(training)
    other, _ = written(module)

    assert other.training is training
    torch.testing.assert_close(other(X), module(X), rtol=0, atol=0)
    torch.testing.assert_close(other(X, 3.0), module(X, 3.0), rtol=0, atol=0)
    assert list(other.state_dict()) == list(module.state_dict())
    assert {name: type(part) for name, part in other.named_modules() if name} == {
        name: type(part) for name, part in module.named_modules() if name
    }


def test_it_trains_and_has_weights_of_its_own(capture, written):
    module = capture(Net())
    other, _ = written(module)
    other(X).sum().backward()

    assert all(parameter.grad is not None for parameter in other.parameters())
    assert all(parameter.grad is None for parameter in module.parameters())


def test_the_edited_graph_is_written(capture, written):
    module = capture(Net()).eval()
    module.graph.find_nodes(op="call_function", target=torch.relu)[0].target = torch.sigmoid
    other, folder = written(module)

    assert "sigmoid" in (folder / "graph_0.py").read_text()
    assert torch.equal(other(X), module(X))


def test_a_process_with_torch_alone_can_load_it(capture, tmp_path):
    module = capture(Net()).eval()
    module.to_folder(tmp_path / "exported", "Model")
    torch.save((X, module(X)), tmp_path / "expected.pt")
    source = """
import sys
sys.modules["fxplug"] = None
import torch
from exported import Model
x, expected = torch.load("expected.pt")
assert torch.equal(Model()(x), expected)
assert torch.equal(Model(map_location="cpu")(x), expected)
assert all(weight.device.type == "meta" for weight in Model(map_location="meta").parameters())
"""
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    result = subprocess.run(
        [sys.executable, "-c", source],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stderr


def test_shared_weights_and_modules_stay_shared(capture, written):
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.first = nn.Linear(3, 3)
            self.second = nn.Linear(3, 3)
            self.second.weight = self.first.weight
            self.third = self.first

        def forward(self, x):
            return self.third(self.second(self.first(x))) @ self.first.weight

    module = capture(Tied())
    other, _ = written(module)

    assert other.first.weight is other.second.weight
    assert torch.equal(other(X), module(X))


@pytest.mark.parametrize(
    "leaf",
    [
        lambda: nn.LSTM(3, 5, bidirectional=True),
        lambda: nn.TransformerEncoderLayer(3, 1, 4, batch_first=True),
        lambda: nn.MultiheadAttention(3, 1),
        lambda: nn.Conv1d(3, 2, 1, padding="same", padding_mode="reflect"),
        lambda: nn.Embedding(5, 3, padding_idx=1),
        lambda: nn.ModuleDict({"a.b"[0]: nn.Sequential()}),
        lambda: nn.ParameterList([nn.Parameter(torch.ones(2))]),
    ],
    ids=["lstm", "transformer", "attention", "conv", "embedding", "dict", "parameters"],
)
def test_leaves_of_torch_come_back_without_their_constructors(written, leaf):
    torch.manual_seed(0)
    module = one_call("part", op="call_module", root={"part": leaf()})
    other, _ = written(module)

    assert type(other.part) is type(module.part)
    assert repr(other.part) == repr(module.part)
    for name, value in module.part.state_dict().items():
        assert torch.equal(other.part.state_dict()[name], value)


def test_a_transformer_layer_runs(written):
    layer = nn.TransformerEncoderLayer(4, 2, 8, batch_first=True, activation=F.gelu).eval()
    module = one_call("layer", op="call_module", root={"layer": layer})
    other, _ = written(module)
    x = torch.randn(2, 3, 4)

    torch.testing.assert_close(other(x), layer(x))


def test_graph_modules_inside_are_written_as_source_too(capture, written):
    inner = capture(Net()).eval()
    deeper = one_call("inner", op="call_module", root={"inner": inner})
    module = one_call("part.deep", op="call_module", root={"part.deep": deeper}).eval()
    other, folder = written(module)

    assert torch.equal(other(X), inner(X))
    assert sorted(path.name for path in folder.glob("graph_*.py")) == [
        "graph_0.py",
        "graph_1.py",
        "graph_2.py",
    ]


def test_children_that_are_none_and_odd_names(written):
    class Named(nn.Module):
        def __init__(self):
            super().__init__()
            self.add_module("a b'\"\n", nn.Linear(3, 3))
            self.add_module("nothing", None)

        def forward(self, x):
            return getattr(self, "a b'\"\n")(x)

    root = Named()
    leaf = one_call("part", op="call_module", root={"part": nn.Sequential()})
    leaf.part.add_module("nothing", None)
    tracer = Tracer()
    module = GraphModule(root, tracer.trace(root))
    other, _ = written(module, "odd")
    again, _ = written(leaf, "leaf")

    assert torch.equal(other(X), root(X))
    assert again.part._modules == {"nothing": None}


@pytest.mark.parametrize(
    "value",
    [
        *(math.inf, -math.inf, 10**400, -(10**400), 1 + 2j, complex(0, math.inf), "text'\n\"", b"\x00", slice(1, None)),
        *(torch.float16, torch.device("cpu"), torch.strided, torch.channels_last, torch.preserve_format),
        *(Access.READ, Access.READ | Access.WRITE, Access(0), Level.LOW | Level.HIGH, Level(0), Level(11)),
        *(Titled.FIRST, torch_.ONE),
        *(Color.RED, Point, Holder.halve, scaled, len, math.sqrt, torch.relu, F.linear, ..., {"k": (1, [2])}),
    ],
    ids=repr,
)  # fmt: skip
def test_values_that_programs_hold(written, value):
    module = one_call(tuple_of, value)
    other, _ = written(module)

    assert other(X)[1:] == module(X)[1:] == (value,)


def tuple_of(*values):
    return values


def test_nan_comes_back(written):
    assert math.isnan(written(one_call(tuple_of, math.nan))[0](X)[1])


@pytest.mark.parametrize(
    "bits", ["7ff8000000000000", "fff8000000000000", "7ff8000000000123", "fff80000deadbeef"]
)
def test_sign_and_payload_of_nan_come_back(written, bits):
    (value,) = struct.unpack(">d", bytes.fromhex(bits))
    other, _ = written(one_call(tuple_of, value, complex(value, 2.0), complex(-0.0, value)))
    _, real, first, second = other(X)

    assert struct.pack(">d", real).hex() == bits
    assert struct.pack(">2d", first.real, first.imag) == struct.pack(">2d", value, 2.0)
    assert struct.pack(">2d", second.real, second.imag) == struct.pack(">2d", -0.0, value)


def test_values_called_like_the_libraries_of_the_source_stay_what_they_are(written):
    module = one_call(tuple_of, torch_.ONE, torch.device("cpu"), math.nan)
    code = module.graph.python_code()
    other, _ = written(module)

    assert "_fxp_torch" in code.globals  # What the source would call torch is taken.
    assert other(X)[1:3] == (torch_.ONE, torch.device("cpu"))


def test_names_with_two_underscores_stay_what_they_are(written):
    graph = Graph()
    x = graph.placeholder("__x")
    linear = graph.call_module("__lin", (x,))
    graph.output(graph.call_function(operator.add, (linear, graph.get_attr("__w")), name="__sum"))
    module = GraphModule({"__lin": nn.Linear(3, 3), "__w": torch.ones(3)}, graph)
    other, _ = written(module)

    assert torch.equal(other(X), module(X))
    assert torch.equal(other(__x=X), module(X))


def test_a_subclass_that_computes_what_its_graph_does_is_written(written):
    captured = one_call(operator.mul, 2)
    inner = Quiet(nn.Module(), captured.graph)
    other, _ = written(one_call("inner", op="call_module", root={"inner": inner}))

    assert torch.equal(other(X), X * 2)


def test_a_module_that_holds_a_graph_for_other_reasons_is_no_graph_module(tmp_path):
    module = one_call("part", op="call_module", root={"part": WithGraph()})
    with pytest.raises(GraphError, match=r"submodule 'part' has the attribute 'graph'"):
        module.to_folder(tmp_path / "exported")


def test_tuples_with_names_come_back(written):
    graph = Graph()
    graph.output(Point(graph.placeholder("x"), 1))
    other, _ = written(GraphModule(nn.Module(), graph))

    assert other(7) == Point(7, 1)


def test_regions_are_written(written):
    module = one_call(operator.mul, 2)
    for node in module.graph.nodes:
        node.region = (RegionEntry(torch.no_grad), RegionEntry(contextlib.nullcontext, (1,)))
    other, _ = written(module)

    assert not other(X.clone().requires_grad_()).requires_grad


class Switched(nn.Module):
    def forward(self, x):
        return x * 2 if self.training else x


class Asking(nn.Module):
    """What it computes hangs on modes, settings and weights, and not only on its input."""

    def __init__(self):
        super().__init__()
        self.stack = nn.Sequential(nn.Linear(3, 3), Switched())

    def forward(self, x, factor=2.0):
        if self.training:
            x = x * factor
        if torch.is_grad_enabled():
            x = x + 1
        if torch.get_default_dtype() is torch.float32:
            x = x - 2
        return self.stack(x)


def captured_asking(**options):
    return fxplug.trace(Asking().eval(), (X,), mode="value", **options)


def root_alone_in_training(module):
    module.training = True
    module(X)


def without_gradients(module):
    with torch.no_grad():
        module(X)


def with_doubles(module):
    torch.set_default_dtype(torch.float64)
    try:
        module(X)
    finally:
        torch.set_default_dtype(torch.float32)


WRONG_USES = [
    (root_alone_in_training, r"self\.training is False"),
    (lambda module: module.stack.train() and module(X), r"self\.stack\.1\.training is False"),
    (without_gradients, r"torch\.is_grad_enabled\(\) is True"),
    (with_doubles, r"torch\.get_default_dtype\(\) == torch\.float32"),
]


@pytest.mark.parametrize(("use", "message"), WRONG_USES)
def test_what_a_program_relies_on_is_checked(written, use, message):
    module = captured_asking()
    other, _ = written(module)
    assert torch.equal(other(X), module(X))
    assert inspect.signature(other.forward) == inspect.signature(module.forward)
    with pytest.raises(ValueError, match=f"The program was captured for {message}"):
        use(other)


@pytest.mark.parametrize(("use", "message"), WRONG_USES)
def test_it_is_warned_of_or_not_checked_as_the_capture_says(written, use, message):
    warning, _ = written(captured_asking(on_guard_failure="warn"))
    with pytest.warns(UserWarning, match=f"The program was captured for {message}"):
        use(warning)
    ignoring, _ = written(captured_asking(on_guard_failure="ignore"), "ignoring")
    use(ignoring)


class CalledLikeTheCheck(Switched):
    def __init__(self):
        super().__init__()
        self._fxp_check = nn.Linear(3, 3)

    def forward(self, x):
        return self._fxp_check(super().forward(x))


def test_the_check_takes_nobodys_name(written):
    module = fxplug.trace(CalledLikeTheCheck().eval(), (X,), mode="value")
    other, _ = written(module)
    assert torch.equal(other(X), module(X))
    with pytest.raises(ValueError, match=r"The program was captured for self\.training is False"):
        other.train()(X)


@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")
def test_what_is_compiled_of_it_is_checked_or_refused(written):
    other, _ = written(captured_asking())
    try:
        compiled = torch.jit.script(other.train())
    except Exception:  # What TorchScript makes of a check is its affair, as long as it does not leave it out.
        return
    with pytest.raises(torch.jit.Error, match="The program was captured for"):
        compiled(X)


def with_a_hook_on_a_weight(kind):
    module = fxplug.symbolic_trace(nn.Sequential(nn.Linear(3, 3)))
    getattr(module.get_parameter("0.weight"), kind)(lambda *given: None)
    return module


@pytest.mark.parametrize("kind", ["register_hook", "register_post_accumulate_grad_hook"])
def test_hooks_of_weights_are_refused(tmp_path, kind):
    with pytest.raises(GraphError, match=r"'weight', which has hooks.*\[FXP-G011\]$"):
        with_a_hook_on_a_weight(kind).to_folder(tmp_path / "folder")


def test_a_program_that_relies_on_its_inputs_is_refused(tmp_path):
    def program(x):
        return x * 2 if x.shape[0] > 1 else x

    module = fxplug.trace(program, (X,), mode="value")
    with pytest.raises(
        GraphError, match=r"relies on \d+ guards? on its inputs.*export_python.*\[FXP-G011\]$"
    ):
        module.to_folder(tmp_path / "folder")
    assert not (tmp_path / "folder").exists()


def test_annotations_that_no_import_finds_are_left_out(written):
    module = one_call(operator.mul, 2)
    nodes = list(module.graph.nodes)
    nodes[0].type = typing.Optional[torch.Tensor]  # noqa: UP045
    nodes[1].type = Point
    nodes[2].type = "text that; is no annotation"
    other, folder = written(module)

    assert torch.equal(other(X), X * 2)
    assert "call : " in (folder / "graph_0.py").read_text()
    assert nodes[0].type is not None


def test_attributes_that_are_functions_are_imported(written):
    part = nn.Sequential()
    part.function, part.numbers = torch.relu, {"a": (1, [2.0, {3}])}
    module = one_call("part", op="call_module", root={"part": part})
    module.helper = scaled
    other, _ = written(module)

    assert other.part.function is torch.relu
    assert other.part.numbers == part.numbers
    assert other.helper is scaled


def test_another_calling_convention_is_written(written):
    module = one_call(operator.mul, 2)
    module.graph.set_codegen(Listed())
    other, _ = written(module)

    assert torch.equal(other([X]), X * 2)


class Listed(CodeGen):
    def gen_fn_def(self, free_vars, maybe_return_annotation):
        return f"def forward(self, inputs: Color):\n    {', '.join(free_vars)}, = inputs"

    def additional_globals(self):
        return [("Color", Color)]


def test_source_never_takes_the_place_of_what_the_program_calls(written):
    def make(name):
        def function(x):
            return x + 1

        function.__name__ = function.__qualname__ = name
        globals()[name] = function
        return function

    graph = Graph()
    value = graph.placeholder("x")
    for name in ("Forward", "FxModule", "load", "_fxp_load"):
        value = graph.call_function(make(name), (value,))
    graph.output(value)
    other, _ = written(GraphModule(nn.Module(), graph))

    assert other(1) == 5


def test_writing_again_replaces_what_was_there(capture, written):
    written(capture(Net()), "again")
    for name in [known for known in sys.modules if known.startswith("again")]:
        del sys.modules[name]
    other, _ = written(capture(lambda x: x + 5), "again")

    assert other(1) == 6


# -- what is refused


class Sub(torch.Tensor):
    pass


def hooked():
    part = nn.Linear(3, 3)
    part.register_forward_hook(lambda *_: None)
    return one_call("part", op="call_module", root={"part": part})


def with_attribute(value):
    part = nn.Sequential()
    part.value = value
    return one_call("part", op="call_module", root={"part": part})


def local_class():
    class Local(nn.Module):
        pass

    return one_call("a.part", op="call_module", root={"a.part": Local()})


def subclass(kind, path=None):
    inner = kind(nn.Module(), one_call(operator.mul, 2).graph)
    return inner if path is None else one_call(path, op="call_module", root={path: inner})


class OwnCall(GraphModule):
    def __call__(self, x):
        return super().__call__(x) + 1


OWN = r"is of the class .*\.{}, whose own forward or __call__ is no part of the graph"
IN_CALL = r"the module itself uses a value \(in node 'call'\) that is "
REFUSED = {
    "a lambda": (lambda: one_call(lambda x: x), IN_CALL + "not what an import of .*<lambda> finds"),
    "a partial": (lambda: one_call(functools.partial(scaled, factor=2)), IN_CALL + r"a functools\.partial"),
    "an object": (lambda: one_call(scaled, object()), IN_CALL + r"a builtins\.object"),
    "a tensor": (lambda: one_call(scaled, torch.ones(1)), IN_CALL + r"a torch\.Tensor"),
    "a class inside a function": (local_class, r"the class of submodule 'a\.part' is not what .*<locals>"),
    "a subclass with a forward": (lambda: subclass(Tripling), "the module itself " + OWN.format("Tripling")),
    "a nested one": (lambda: subclass(Tripling, "a.b"), r"submodule 'a\.b' " + OWN.format("Tripling")),
    "one that inherits it": (lambda: subclass(Calling), "the module itself " + OWN.format("Tripling")),
    "a subclass with a __call__": (lambda: subclass(OwnCall), "the module itself " + OWN.format("OwnCall")),
    "hooks": (hooked, r"submodule 'part' has hooks \(_forward_hooks\)"),
    "an attribute": (
        lambda: with_attribute(object()),
        r"submodule 'part' has the attribute 'value', which is a builtins\.object",
    ),
    "a list of objects": (lambda: with_attribute([object()]), r"attribute 'value', which is a builtins\.list"),
    "a special tensor": (
        lambda: one_call("w", op="get_attr", root={"w": torch.ones(2).as_subclass(Sub)}),
        r"the module itself has 'w', which is a Sub",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("make", "message"), REFUSED.values(), ids=list(REFUSED))
def test_what_cannot_be_written_is_named_and_nothing_is_written(tmp_path, make, message):
    with pytest.raises(GraphError, match=message) as caught:
        make().to_folder(tmp_path / "exported")

    assert caught.value.code == "FXP-G011"
    assert "fxplug.save" in str(caught.value)
    assert list(tmp_path.iterdir()) == []


def test_a_function_of_the_script_that_runs_is_refused(tmp_path):
    source = f"""
import torch, fxplug
def own(x): return x
graph = fxplug.Graph()
graph.output(graph.call_function(own, (graph.placeholder("x"),)))
try:
    fxplug.GraphModule(torch.nn.Module(), graph).to_folder({str(tmp_path / "exported")!r})
except fxplug.GraphError as error:
    print(error)
"""
    root = Path(__file__).parents[2]
    result = subprocess.run(
        [sys.executable, "-c", source],
        env={**os.environ, "PYTHONPATH": str(root)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert "is 'own' of the script that runs; move it to a module that can be imported" in result.stdout


@pytest.mark.parametrize(
    "name", ["", "a b", "class", "X:\n    import os\nclass Y", "é", "_hidden", "os.path"]
)
def test_the_class_must_have_a_plain_name(tmp_path, name):
    with pytest.raises(InvalidArgumentError, match="its class cannot be called"):
        one_call(operator.neg).to_folder(tmp_path / "exported", name)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["super", "object", "type", "match", "ValueError"])
def test_the_class_cannot_have_a_name_of_python(tmp_path, name):
    with pytest.raises(InvalidArgumentError, match=f"cannot be called '{name}', which Python has as a name"):
        one_call(operator.neg).to_folder(tmp_path / "exported", name)
    assert list(tmp_path.iterdir()) == []


def test_no_file_needs_to_be_trusted(capture, tmp_path):
    capture(Net()).to_folder(tmp_path / "exported")

    assert sorted(path.name for path in (tmp_path / "exported").iterdir()) == [
        "__init__.py", "graph_0.py", "module.py", "submodules.py", "weights.pt",
    ]  # fmt: skip
    assert "weights_only=True" in (tmp_path / "exported" / "submodules.py").read_text()
    torch.load(tmp_path / "exported" / "weights.pt", weights_only=True)
