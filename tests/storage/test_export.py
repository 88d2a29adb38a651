"""Graph modules written as Python that people read."""

from __future__ import annotations

import contextlib
import enum
import importlib
import math
import operator
import sys
import typing

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import fxplug
from fxplug.errors import InvalidArgumentError
from fxplug.execute import GraphModule
from fxplug.ir import Graph, RegionEntry
from fxplug.storage.export import ExportError
from fxplug.storage.folders import OutputError

X = torch.linspace(-1, 1, 12).reshape(4, 3)


class Color(enum.Enum):
    RED = 1


class Point(typing.NamedTuple):
    x: typing.Any
    y: int


class Scaling(nn.Module):
    """A module whose constructor nobody can guess."""

    def __init__(self, *, secret):
        super().__init__()
        self.factor = secret * 2
        self.function = torch.relu
        self.weight = nn.Parameter(torch.full((3,), 0.5))
        self.inner = nn.Linear(3, 3)

    def forward(self, x):
        return self.function(self.inner(x) * self.weight) * self.factor


class Unreachable(enum.Enum):
    HERE = 1


def scaled(x, factor, *_):
    return x * factor


def tuple_of(*values):
    return values


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.stack = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3))
        self.scale = nn.Parameter(torch.full((3,), 0.5))
        self.fixed = nn.Parameter(torch.ones(3), requires_grad=False)
        self.register_buffer("offset", torch.ones(3))
        self.register_buffer("temporary", torch.full((3,), 0.25), persistent=False)
        self.plain = torch.full((3,), 0.1)

    def forward(self, x: torch.Tensor, factor: float = 2.0):
        y = self.stack(x) * self.scale + self.offset + self.temporary + self.plain
        return torch.relu(y * self.fixed) * factor + torch.ones(3)


@pytest.fixture
def exported(tmp_path, monkeypatch):
    """(module, options) -> the package that was written for it, and the text of its model.py."""
    monkeypatch.syspath_prepend(tmp_path)
    names = []

    def write(module, **options):
        name = f"exported_{len(names)}"
        names.append(name)
        fxplug.export_python(module, tmp_path / name, **options)
        importlib.invalidate_caches()
        return importlib.import_module(name), (tmp_path / name / "model.py").read_text(encoding="utf-8")

    yield write
    for loaded in [known for known in sys.modules if known.partition(".")[0] in names]:
        del sys.modules[loaded]


@pytest.fixture(autouse=True)
def _alone(monkeypatch):
    monkeypatch.setenv("FXPLUG_CONFIG", "")
    monkeypatch.setenv("FXPLUG_LOAD_PLUGINS", "")


def one_call(target, *args, op="call_function", root=None, **kwargs):
    graph = Graph()
    x = graph.placeholder("x")
    graph.output(graph.create_node(op, target, (x, *args), kwargs, "call"))
    return GraphModule(root if root is not None else nn.Module(), graph)


def leaf(module):
    return one_call("part", op="call_module", root={"part": module})


def body_of(text):
    return text.partition("    def forward(")[2]


# -- what the text looks like


def test_the_text_is_what_a_person_would_write(exported):
    _, text = exported(fxplug.symbolic_trace(Net().eval()))

    assert (
        text
        == '''\
"""The module Net."""

import torch
from torch import nn


class Net(nn.Module):
    """A captured program of 19 nodes."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.empty(3))
        self.fixed = nn.Parameter(torch.empty(3), requires_grad=False)
        self.register_buffer(
            "_tensor_constant0", torch.tensor([1.0, 1.0, 1.0]), persistent=False
        )
        self.register_buffer("offset", torch.tensor([1.0, 1.0, 1.0]))
        self.register_buffer(
            "temporary", torch.tensor([0.25, 0.25, 0.25]), persistent=False
        )
        self.register_buffer("plain", torch.tensor([0.1, 0.1, 0.1]), persistent=False)
        self.stack = nn.ModuleList([nn.Linear(3, 3), nn.BatchNorm1d(3)])
        self.eval()

    def forward(self, x, factor=2.0):
        # stack
        x = self.stack[0](x)
        x = self.stack[1](x)

        x = x * self.scale
        x = x + self.offset
        x = x + self.temporary
        x = x + self.plain
        x = x * self.fixed
        x = torch.relu(x)
        x = x * factor
        x = x + self._tensor_constant0
        return x
'''
    )


@pytest.mark.parametrize(
    ("module", "text"),
    [
        (
            nn.Conv2d(3, 8, 3, padding="same", bias=False),
            'nn.Conv2d(3, 8, kernel_size=3, padding="same", bias=False)',
        ),
        (nn.Conv2d(4, 8, (3, 1), groups=2), "nn.Conv2d(4, 8, kernel_size=(3, 1), groups=2)"),
        (nn.ConvTranspose1d(2, 4, 2, output_padding=0), "nn.ConvTranspose1d(2, 4, kernel_size=2)"),
        (nn.Linear(3, 4, bias=False), "nn.Linear(3, 4, bias=False)"),
        (nn.Linear(3, 4, dtype=torch.float64), "nn.Linear(3, 4, dtype=torch.float64)"),
        (nn.BatchNorm2d(4, affine=False, momentum=None), "nn.BatchNorm2d(4, momentum=None, affine=False)"),
        (nn.LayerNorm(6, bias=False), "nn.LayerNorm(6, bias=False)"),
        (nn.GroupNorm(2, 4, eps=1e-3), "nn.GroupNorm(2, 4, eps=0.001)"),
        (nn.Embedding(5, 3, padding_idx=1), "nn.Embedding(5, 3, padding_idx=1)"),
        (nn.MaxPool2d(3, 2, 1), "nn.MaxPool2d(3, stride=2, padding=1)"),
        (nn.AdaptiveAvgPool2d((1, None)), "nn.AdaptiveAvgPool2d((1, None))"),
        (nn.Upsample(scale_factor=2.0), "nn.Upsample(scale_factor=2.0)"),
        (nn.LSTM(3, 5, 2, bidirectional=True), "nn.LSTM(3, 5, num_layers=2, bidirectional=True)"),
        (nn.RNN(3, 5, nonlinearity="relu"), 'nn.RNN(3, 5, nonlinearity="relu")'),
        (nn.GRUCell(3, 5), "nn.GRUCell(3, 5)"),
        (nn.MultiheadAttention(4, 2, bias=False), "nn.MultiheadAttention(4, 2, bias=False)"),
        (
            nn.TransformerEncoderLayer(4, 2, 8, activation="gelu", batch_first=True),
            "nn.TransformerEncoderLayer(4, 2, dim_feedforward=8, activation=...)",
        ),
        (nn.PReLU(3), "nn.PReLU(num_parameters=3)"),
        (nn.Identity(), "nn.Identity()"),
        (nn.Sequential(nn.Linear(3, 3), nn.ReLU()), "nn.Sequential(nn.Linear(3, 3), nn.ReLU())"),
    ],
    ids=lambda value: "" if isinstance(value, nn.Module) else value,
)
def test_modules_of_torch_are_made_by_their_constructors(exported, module, text):
    package, source = exported(leaf(module))
    part = package.load().part

    if "..." in text:
        assert text.partition("activation=")[0] in " ".join(source.split()).replace("( ", "(")
    else:
        assert f"        self.part = {text}\n" in source
    assert repr(part) == repr(module)
    assert list(part.state_dict()) == list(module.state_dict())
    for name, value in module.state_dict().items():
        assert torch.equal(part.state_dict()[name], value)
        assert part.state_dict()[name].dtype is value.dtype


def test_what_was_set_on_a_module_is_set_again(exported):
    part = nn.Linear(3, 3)
    part.note, part.numbers = "a\"b'", (1, [2.0])
    package, text = exported(leaf(part))

    assert "self.part.note = " in text
    assert (package.load().part.note, package.load().part.numbers) == (part.note, part.numbers)


def test_a_module_whose_constructor_is_unknown_gets_its_attributes(exported):
    module = leaf(Scaling(secret=3))
    package, text = exported(module)

    assert "def restore(kind, attributes):" in text
    assert '{"factor": 6, "function": torch.relu}' in text
    assert "self.part.inner = nn.Linear(3, 3)" in text
    assert f"Besides torch, it imports {__name__.partition('.')[0]}" in package.__doc__
    assert torch.equal(package.load()(X), module(X))


# -- what comes back


@pytest.mark.parametrize("training", [True, False])
def test_the_package_computes_the_same(exported, training):
    torch.manual_seed(0)
    module = fxplug.symbolic_trace(Net().train(training))
    loaded = exported(module)[0].load()
    results = [program(X, 3.0) for program in (loaded, module)]
    for result in results:
        result.sum().backward()

    assert torch.equal(*results)
    assert loaded.training is training
    assert list(loaded.state_dict()) == list(module.state_dict())
    assert [name for name, _ in loaded.named_buffers()] == [name for name, _ in module.named_buffers()]
    for (name, ours), (other, theirs) in zip(
        loaded.named_parameters(), module.named_parameters(), strict=True
    ):
        assert name == other
        assert ours.requires_grad is theirs.requires_grad
        assert (ours.grad is None) is (theirs.grad is None)
        assert ours.grad is None or torch.equal(ours.grad, theirs.grad)


def test_a_new_instance_has_the_structure(exported):
    package, _ = exported(fxplug.symbolic_trace(Net()))

    assert list(package.Net().state_dict()) == list(package.load().state_dict())
    assert package.load("meta").scale.is_meta


def test_training_flags_of_parts(exported):
    module = fxplug.symbolic_trace(Net().eval())
    module.stack.get_submodule("1").train()
    package, text = exported(module)

    assert "self.stack[1].train()" in text
    flags = {
        name: part.training
        for name, part in package.load().named_modules()
        if type(part) is not nn.ModuleList
    }
    assert flags == {"": False, "stack.0": False, "stack.1": True}


def test_shared_modules_and_tied_weights_stay_so(exported):
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.first = nn.Linear(3, 3)
            self.second = nn.Linear(3, 3)
            self.second.weight = self.first.weight
            self.third = self.first

        def forward(self, x):
            return self.third(self.second(self.first(x))) @ self.first.weight

    module = one_call("part", op="call_module", root={"part": Tied()})
    module = fxplug.symbolic_trace(Tied())
    module.add_submodule("again", module.first)
    package, text = exported(module)

    assert "self.second.weight = self.first.weight" in text
    assert "self.again = self.first" in text
    for other in (package.load(), package.Tied()):
        assert other.first.weight is other.second.weight
        assert other.again is other.first
    assert torch.equal(package.load()(X), module(X))


def test_graph_modules_inside_have_classes_of_their_own(exported):
    inner = fxplug.symbolic_trace(Net().eval())
    module = leaf(inner)
    package, text = exported(module, class_name="Outer")

    assert text.index("class Net(") < text.index("class Outer(")
    assert "self.part = Net()" in text
    assert torch.equal(package.load()(X), inner(X))


@pytest.mark.parametrize(
    "value",
    [
        *(math.inf, -math.inf, 10**400, -(10**400), 1 + 2j, complex(0, math.inf), "text'\n\"", b"\x00", slice(1, None)),
        *(torch.float16, torch.device("cpu"), torch.strided, torch.channels_last, -0.0, -3, True, None),
        *(Color.RED, Point, scaled, len, math.sqrt, torch.relu, F.gelu, F.linear, ..., {"k": (1, [2])}),
        *(Point(1, 2), torch.Size([1, 2]), "; import os", 'a"b', torch.ops.aten.relu.default, nn.Linear),
    ],
    ids=repr,
)  # fmt: skip
def test_values_that_programs_hold(exported, value):
    module = one_call(tuple_of, value)
    found = exported(module)[0].load()(X)[1]

    assert found == value
    assert type(found) is type(value)
    assert str(found) == str(value)


def test_nan_comes_back(exported):
    assert math.isnan(exported(one_call(tuple_of, math.nan))[0].load()(X)[1])


def test_names_that_are_no_identifiers(exported):
    class Named(nn.Module):
        def __init__(self):
            super().__init__()
            self.add_module("a b'\"\n", nn.Linear(3, 3))
            self.add_module("class", nn.Linear(3, 3))
            self.add_module("__lin", nn.Linear(3, 3))
            self.register_buffer("lambda", torch.ones(3))

        def forward(self, x):
            x = getattr(self, "a b'\"\n")(x)
            return getattr(self, "__lin")(getattr(self, "class")(x)) + getattr(self, "lambda")

    module = fxplug.symbolic_trace(Named())
    package, _ = exported(module)

    assert torch.equal(package.load()(X), module(X))
    assert list(package.load().state_dict()) == list(module.state_dict())


@pytest.mark.parametrize("name", ["torch", "nn", "F", "l", "self_", "len", "Net"])
def test_values_may_have_any_name(exported, name):
    graph = Graph()
    x = graph.placeholder("x")
    first = graph.call_function(torch.relu, (x,))
    first.name = name
    second = graph.call_function(F.gelu, (first,))
    size = graph.call_function(len, (first,))
    graph.output((graph.call_function(operator.add, (second, first)), size, torch.float32))
    module = GraphModule(nn.Module(), graph, "Net")
    package, _ = exported(module)

    assert torch.equal(package.load()(X)[0], module(X)[0])
    assert package.load()(X)[1:] == (4, torch.float32)


def test_a_parameter_that_has_the_name_of_a_library_keeps_it(exported):
    graph = Graph()
    nn_, functional = graph.placeholder("nn"), graph.placeholder("F")
    graph.output(graph.call_function(F.gelu, (graph.call_function(operator.add, (nn_, functional)),)))
    module = GraphModule(nn.Module(), graph)
    package, text = exported(module)

    assert "torch.nn.functional.gelu" in text
    assert torch.equal(package.load()(nn=X, F=X), module(X, X))


@pytest.mark.parametrize("name", ["float", "complex", "slice", "set", "getattr", "len", "type", "ValueError"])
def test_a_parameter_that_has_the_name_of_a_builtin_hides_nothing(exported, name):
    graph = Graph()
    x, other = graph.placeholder("x"), graph.placeholder(name)
    scaled_ = graph.call_function(operator.mul, (x, float("inf")))
    number = graph.call_function(operator.add, (complex(1, math.inf), other))
    part = graph.call_method("__getitem__", (scaled_, slice(0, 2)))
    values = graph.call_function(tuple_of, ({1, 2}, frozenset({3}), range(2), len, type))
    count = graph.call_function(len, (graph.get_attr("odd-name"),))
    graph.output((part, number, values, count))
    root = nn.Module()
    root.register_buffer("odd-name", torch.ones(4))
    module = GraphModule(root, graph)
    package, _ = exported(module)

    assert repr(package.load()(X, 1.0)) == repr(module(X, 1.0))


def test_a_guarded_parameter_may_have_the_name_of_an_error(exported):
    def narrow(x, ValueError):  # noqa: A002, N803 - the point of it
        return x * 2 if x.shape[0] == 4 else ValueError

    module = fxplug.trace(narrow, (X, X))
    package, _ = exported(module)

    with pytest.raises(ValueError, match="was captured for"):
        package.load()(X[:2], X)


@pytest.mark.parametrize("name", ["nn", "F", "torch", "math", "check_true"])
def test_classes_of_parts_do_not_have_the_names_of_imports(exported, name):
    inner = Graph()
    x = inner.placeholder("x")
    inner.output(inner.call_function(F.relu, (inner.call_function(scaled, (x, 2.0)),)))
    graph = Graph()
    x = graph.placeholder("x")
    part = graph.call_module("part", (x,))
    asked = graph.call_function(math.floor, (2.5,))
    graph.output((graph.call_function(F.gelu, (graph.call_function(torch.neg, (part,)),)), asked))
    module = GraphModule({"part": GraphModule(nn.Module(), inner, name)}, graph)
    package, _ = exported(module)

    assert torch.equal(package.load()(X)[0], module(X)[0])


def test_a_class_that_has_the_name_of_an_import_is_refused(tmp_path):
    graph = Graph()
    graph.output(graph.call_function(math.floor, (2.5,)))
    with pytest.raises(
        ExportError, match=r"a class is called 'math', as something that the program imports is"
    ):
        fxplug.export_python(GraphModule(nn.Module(), graph, "math"), tmp_path / "out")
    fxplug.export_python(GraphModule(nn.Module(), graph, "math"), tmp_path / "out", class_name="Model")


def test_signatures_are_kept(exported):
    class Called(nn.Module):
        def forward(self, x, /, y=None, *, scale=2.0):
            return x * scale

    module = fxplug.symbolic_trace(Called())
    x, y, scale, _, output = module.graph.nodes
    x.type, y.type, scale.type = list[torch.Tensor], typing.Optional[torch.Tensor], float  # noqa: UP045
    output.type = dict[str, torch.Tensor]
    package, text = exported(module)

    assert (
        "    def forward(\n        self,\n        x: list[torch.Tensor],\n        y: torch.Tensor | None = None,\n"
        "        *,\n        scale: float = 2.0,\n    ) -> dict[str, torch.Tensor]:\n"
    ) in text
    assert torch.equal(package.load()(X, scale=3.0), X * 3)


def test_nothing_is_imported_for_an_annotation(exported):
    module = one_call(operator.neg)
    next(iter(module.graph.nodes)).type = Point

    assert "def forward(self, x):" in exported(module)[1]


def test_variable_parameters(exported):
    class Called(nn.Module):
        def forward(self, x, *rest, **named):
            return x + rest[0] + named["a"]

    package, text = exported(fxplug.symbolic_trace(Called()))

    assert "def forward(self, x, *rest, **named):" in text
    assert torch.equal(package.load()(X, X, a=X), X * 3)


def test_nested_inputs_and_results(exported):
    class Nested(nn.Module):
        def forward(self, pair, scale):
            return {"sum": pair["a"] + pair["b"][0], "more": [pair["a"] * scale, (scale,)]}

    module = fxplug.symbolic_trace(Nested(), concrete_args={"pair": {"a": fxplug.PH, "b": (fxplug.PH,)}})
    package, text = exported(module)
    given = {"a": X, "b": (X,)}
    found = package.load()(given, 2)

    assert '"sum": ' in text
    assert torch.equal(found["sum"], X * 2)
    assert found["more"][1] == (2,)
    # The order of the keys counts, as it does for what runs over them.
    for other in ({"a": X}, {"b": (X,), "a": X}, {"a": X, "b": [X]}, [X, (X,)], X):
        with pytest.raises(
            ValueError, match=r"captured for nested inputs that are made like \{'a': None, 'b': \(None,\)\}"
        ):
            package.load()(other, 2)


def test_regions_are_blocks(exported):
    class Region(nn.Module):
        def forward(self, x):
            with torch.no_grad():
                y = x * 2
                with torch.autocast("cpu", torch.bfloat16):
                    z = y @ y.T
            return z + x.sum()

    module = fxplug.symbolic_trace(Region())
    package, text = exported(module)

    assert "        with torch.no_grad():\n" in text
    assert "            with torch.autocast(" in text
    assert torch.equal(package.load()(X), module(X))


def test_contexts_that_are_imported(exported):
    module = one_call(operator.mul, 2)
    for node in module.graph.nodes:
        node.region = (RegionEntry(torch.no_grad), RegionEntry(contextlib.nullcontext, (1,)))
    package, _ = exported(module)

    assert not package.load()(X.clone().requires_grad_()).requires_grad


def test_in_place_operators_stay_so(exported):
    class InPlace(nn.Module):
        def forward(self, x):
            y = x * 2
            z = y
            y += 1
            y.mul_(3)
            y[0] = 5
            return y, z

    module = fxplug.symbolic_trace(InPlace())
    package, text = exported(module)

    assert " += 1\n" in body_of(text)
    assert all(map(torch.equal, package.load()(X), module(X)))


def test_assigned_attributes_and_unused_parts(exported):
    graph = Graph()
    x = graph.placeholder("x")
    y = graph.call_method("clone", (x,))
    graph.call_function(setattr, (y, "requires_grad", True))
    graph.output(y)
    package, text = exported(GraphModule(nn.Module(), graph))

    assert ".requires_grad = True\n" in text
    assert package.load()(X).requires_grad


def test_a_parameter_called_self_is_refused(tmp_path):
    graph = Graph()
    graph.output(graph.placeholder("self"))

    assert "a parameter is called 'self'" in refused(GraphModule(nn.Module(), graph), tmp_path / "out")


# -- guards


class Guarded(nn.Module):
    def forward(self, x):
        if x.shape[0] > 1:
            x = x * 2
        return x + 1 if x.dim() == 2 else x


def test_guards_are_checks_that_can_be_read(exported):
    module = fxplug.trace(Guarded(), (X,))
    package, text = exported(module)

    assert "if not x.shape[0] > 1:" in text
    assert "self._check_inputs(x)" in text
    assert torch.equal(package.load()(X), module(X))
    with pytest.raises(ValueError, match=r"captured for .*x.shape\[0\] > 1"):
        package.load()(X[:1])


class Asking(nn.Module):
    def forward(self, x):
        sizes = x.tolist()
        if sizes[0] > 0 or x.shape[0] // 2 // 2 > 1 or not type(x) is torch.Tensor:  # noqa: E714
            return x
        return x * (2 if x.is_floating_point() and not x.is_complex() else 3) + len(sizes)


def test_every_guard_asks_what_was_asked(exported):
    module = fxplug.trace(Asking(), (torch.tensor([-1.0, 2.0]),))
    package, text = exported(module)

    assert "if type(x) is not torch.Tensor:" in text
    for given in (
        torch.tensor([-3.0, 1.0]),
        torch.tensor([1.0, 2.0]),
        torch.ones(9),
        -torch.ones(2).double(),
    ):
        try:
            expected = module(given)
        except fxplug.GuardError:
            with pytest.raises(ValueError, match="captured for"):
                package.load()(given)
        else:
            assert torch.equal(package.load()(given), expected)


def test_guards_that_warn_warn(exported):
    package, _ = exported(fxplug.trace(Guarded(), (X,), on_guard_failure="warn"))

    with pytest.warns(UserWarning, match="captured for"):
        package.load()(X[:1])


def test_guards_that_are_ignored_are_named(exported):
    package, _ = exported(fxplug.trace(Guarded(), (X,), on_guard_failure="ignore"))

    package.load()(X[:1])
    assert "- x.shape[0] > 1" in package.Guarded.__doc__


def test_guards_inside_the_program(exported):
    class Inside(nn.Module):
        def forward(self, x):
            return x * 2 if x.sum() > 0 else x

    module = fxplug.trace(Inside(), (X.abs(),))
    package, _ = exported(module)

    assert torch.equal(package.load()(X.abs()), X.abs() * 2)
    with pytest.raises(ValueError, match="captured for"):
        package.load()(-X.abs())


def test_the_mode_that_was_asked_for_is_checked(exported):
    class Asking(nn.Module):
        def forward(self, x):
            return F.dropout(x, 0.5, self.training) if self.training else x

    package, text = exported(fxplug.trace(Asking().eval(), (X,)))

    assert "if self.training:" in text
    with pytest.raises(ValueError, match=r"self\.training is False"):
        package.load().train()(X)


# -- what cannot be written


def refused(module, folder, **options):
    with pytest.raises(ExportError) as caught:
        fxplug.export_python(module, folder, **options)
    assert not folder.exists()
    assert list(folder.parent.iterdir()) == []
    return str(caught.value)


def test_a_function_that_no_import_finds_is_named(tmp_path):
    def local(x):
        return x

    assert refused(one_call(local), tmp_path / "out") == (
        "Cannot export the module as Python: node 'call' uses a value that is not what an import of "
        f"{__name__}.test_a_function_that_no_import_finds_is_named.<locals>.local finds. Use what a module that can be "
        "imported holds under a name of its own. [FXP-S020]"
    )


def test_a_class_that_no_import_finds_is_named(tmp_path):
    class Local(nn.Module):
        pass

    assert "the class of submodule 'part' is not what an import of" in refused(
        leaf(Local()), tmp_path / "out"
    )


def test_hooks_are_refused(tmp_path):
    module = leaf(nn.Linear(3, 3))
    module.part.register_forward_hook(print)

    assert "submodule 'part' has hooks (_forward_hooks)" in refused(module, tmp_path / "out")


def test_an_attribute_without_source_is_named(tmp_path):
    part = nn.Identity()
    part.thing = object()

    assert "submodule 'part' has the attribute 'thing', which is a builtins.object" in refused(
        leaf(part), tmp_path / "out"
    )


def test_a_subclass_that_does_more_is_refused(tmp_path):
    class Tripling(GraphModule):
        def forward(self, x):
            return super().forward(x) * 3

    module = Tripling(nn.Module(), one_call(operator.neg).graph)
    assert "whose own forward or __call__ is no part of the graph" in refused(module, tmp_path / "out")


def test_only_graph_modules_are_written(tmp_path):
    assert "Cannot export a torch.nn.modules.linear.Linear" in refused(nn.Linear(1, 1), tmp_path / "out")


@pytest.mark.parametrize("name", ["class", "a b", "x\nimport os", "print", "nn", "load", "", "__x"])
def test_a_name_that_is_none_is_refused(tmp_path, name):
    with pytest.raises(InvalidArgumentError, match="its class cannot be called"):
        fxplug.export_python(one_call(operator.neg), tmp_path / "out", class_name=name)


# -- the folder


def test_a_folder_is_replaced_only_on_demand(tmp_path):
    folder = tmp_path / "out"
    fxplug.export_python(one_call(operator.neg), folder, class_name="First")
    with pytest.raises(ExportError, match="it exists"):
        fxplug.export_python(one_call(operator.neg), folder)
    fxplug.export_python(one_call(operator.neg), folder, class_name="Second", overwrite=True)

    assert "class Second(" in (folder / "model.py").read_text()
    assert [entry.name for entry in tmp_path.iterdir()] == ["out"]


def test_what_somebody_else_wrote_is_never_replaced(tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine.txt").write_text("mine")
    with pytest.raises(OutputError, match=r"mine\.txt"):
        fxplug.export_python(one_call(operator.neg), tmp_path / "out", overwrite=True)

    assert (tmp_path / "out" / "mine.txt").read_text() == "mine"


def test_a_failure_leaves_the_older_package(tmp_path):
    folder = tmp_path / "out"
    fxplug.export_python(one_call(operator.neg), folder)
    before = {entry.name: entry.read_bytes() for entry in folder.iterdir()}
    with pytest.raises(ExportError):
        fxplug.export_python(one_call(lambda x: x), folder, overwrite=True)

    assert {entry.name: entry.read_bytes() for entry in folder.iterdir()} == before


def test_exporting_changes_nothing_in_the_module(tmp_path):
    module = fxplug.symbolic_trace(Net())
    before = (module.code, module.graph.version, [node.type for node in module.graph.nodes])
    fxplug.export_python(module, tmp_path / "out")

    assert (module.code, module.graph.version, [node.type for node in module.graph.nodes]) == before


def test_attributes_of_weights_are_no_part_of_a_package(exported):
    module = fxplug.symbolic_trace(nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3)))
    first, second = module.get_submodule("0"), module.get_submodule("1")
    second.weight = first.weight
    first.weight.loader = lambda: None
    first.bias.requires_grad_(False).note = "a text"
    package, _ = exported(module)
    loaded = package.load()

    assert torch.equal(loaded(X), module(X))
    weights = dict(loaded.named_parameters(remove_duplicate=False))
    assert [vars(weight) for weight in weights.values()] == [{}] * 4
    assert [weight.requires_grad for weight in weights.values()] == [True, False, True, True]
    assert weights["0.weight"] is weights["1.weight"]
    assert type(weights["0.weight"]) is nn.Parameter
    assert first.weight.loader() is None


@pytest.mark.parametrize("register", ["register_hook", "register_post_accumulate_grad_hook"])
def test_hooks_of_weights_are_refused(tmp_path, register):
    module = fxplug.symbolic_trace(nn.Sequential(nn.Linear(3, 3)))
    getattr(module.get_submodule("0").weight, register)(lambda _: None)

    assert "'0.weight' has hooks" in refused(module, tmp_path / "out")


def test_attributes_of_weights_made_in_inference_mode(exported):
    with torch.inference_mode():
        linear = nn.Linear(3, 3)
    linear.weight.note = 1
    module = fxplug.symbolic_trace(nn.Sequential(linear))
    package, _ = exported(module)

    assert torch.equal(package.load()(X), module(X))
