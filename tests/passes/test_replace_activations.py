"""Activation functions are replaced in every form, and work in place has the effect that it had."""

from __future__ import annotations

import typing

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import fxplug
from fxplug.errors import ConfigError
from fxplug.passes import (
    PassContext,
    Pipeline,
    PipelineStep,
    ReplaceActivations,
    ReplaceActivationsOptions,
    replace_activations,
)
from fxplug.passes.replace_activations import Activation
from fxplug.semantics.canonical import ACTIVATIONS

X = torch.linspace(-4, 4, 24).reshape(2, 12)
EXPECTED = {name: kind() for name, (kind, _) in ACTIVATIONS.items()}
NAMES = sorted(ACTIVATIONS)
TARGETS = ["gelu", "silu", "sigmoid", "leaky_relu"]


class Model(nn.Module):
    """One of the programs below, with things that it may use."""

    def __init__(self, program, act=None):
        super().__init__()
        self.program = program
        self.act = act if act is not None else nn.ReLU()
        self.inplace = nn.ReLU(inplace=True)
        self.linear = nn.Linear(12, 12)
        self.register_buffer("state", torch.linspace(-1, 1, 12))

    def forward(self, x):
        return self.program(self, x)


class Swapped(fxplug.Interpreter):
    """Runs a graph with another activation in the place of relu: in what memory it had, if it worked in place."""

    def __init__(self, module, function):
        super().__init__(module)
        self.function = function

    def _apply(self, x, *, writes):
        value = self.function(x.clone())
        return x.copy_(value) if writes else value

    def call_function(self, target, args, kwargs):
        if target in {torch.relu, F.relu, torch.relu_, F.relu_}:
            writes = target in {torch.relu_, F.relu_} or kwargs.get("inplace", False)
            return self._apply(args[0] if args else kwargs["input"], writes=writes)
        return super().call_function(target, args, kwargs)

    def call_method(self, target, args, kwargs):
        if target in {"relu", "relu_"}:
            return self._apply(args[0], writes=target == "relu_")
        return super().call_method(target, args, kwargs)

    def call_module(self, target, args, kwargs):
        module = self.fetch_attr(target)
        if type(module) is nn.ReLU:
            return self._apply(args[0], writes=module.inplace)
        return super().call_module(target, args, kwargs)


def outcome(run, module, x):
    """Return what a run gives, and what it leaves in its input and its buffer."""
    given, state = x.clone(), module.state.clone()
    with torch.no_grad():
        value = run(given)
    left = module.state.clone()
    module.state.copy_(state)
    return value, given, left


def check(program, name, count, act=None):
    """Replace relu in a program and compare with an interpreter that replaces it."""
    torch.manual_seed(0)
    model = Model(program, act).eval()
    module = fxplug.symbolic_trace(model)
    module.register_buffer("state", model.state)
    twin = fxplug.GraphModule(model, fxplug.Tracer().trace(model))
    twin.register_buffer("state", model.state)
    expected = outcome(Swapped(twin, EXPECTED[name]).run, twin, X)
    result = replace_activations(module, {"relu": name})
    module.graph.lint()

    assert result.details["replaced"] == count
    torch.testing.assert_close(outcome(module, module, X), expected, rtol=1e-6, atol=1e-6)
    text = str(module.graph)
    assert not replace_activations(module, {"relu": name}).modified
    assert str(module.graph) == text
    return module


def view_is_read_later(m, x):
    y = m.linear(x)
    z = y.view(-1)
    return F.relu(y, inplace=True) + 1, z.sum()


def read_later(m, x):
    y = m.linear(x)
    return torch.relu_(y) * 2 + y


def residual(m, x):
    y = m.linear(x)
    y += x
    return m.linear(m.inplace(y))


def buffer(m, x):
    m.state.relu_()
    return x + m.state


def list_of_parts(m, x):
    first, second = m.linear(x).chunk(2, 1)
    parts = [first, second]
    m.inplace(first)
    return torch.cat(parts, 1)


def in_region(m, x):
    with torch.no_grad():
        y = m.linear(x).relu()
    return m.linear(y)


PROGRAMS = {
    "module": (lambda m, x: m.act(m.linear(x)), 1),
    "module in place": (lambda m, x: m.inplace(m.linear(x)) * 2, 1),
    "module in place on an input": (lambda m, x: m.inplace(x) * 2, 1),
    "module called twice": (lambda m, x: m.act(m.linear(m.act(x))), 2),
    "module in place called twice": (lambda m, x: m.inplace(m.linear(m.inplace(x))), 2),
    "F.relu": (lambda m, x: F.relu(m.linear(x)), 1),
    "F.relu by keyword": (lambda m, x: F.relu(input=m.linear(x), inplace=True), 1),
    "torch.relu": (lambda m, x: torch.relu(x), 1),
    "torch.relu_": (lambda m, x: torch.relu_(m.linear(x)), 1),
    "method": (lambda m, x: m.linear(x).relu().sum(), 1),
    "method in place": (lambda m, x: m.linear(x).relu_(), 1),
    "method in place on an input": (lambda m, x: x.relu_(), 1),
    "a view of the input": (lambda m, x: (x.view(-1).relu_(), x + 1), 1),
    "a view that is read later": (view_is_read_later, 1),
    "read later": (read_later, 1),
    "residual": (residual, 1),
    "buffer": (buffer, 1),
    "list of parts": (list_of_parts, 1),
    "several": (lambda m, x: m.act(F.relu(x)) + torch.relu(m.linear(x)).relu_(), 4),
    "in a region": (in_region, 1),
    "nothing": (lambda m, x: m.linear(x).exp(), 0),
}


@pytest.mark.parametrize("name", TARGETS)
@pytest.mark.parametrize("form", PROGRAMS)
def test_calls_of_every_form_are_replaced(form, name):
    module = check(*PROGRAMS[form][:1], name, PROGRAMS[form][1])
    assert not any(isinstance(part, nn.ReLU) for part in module.modules())
    assert not [node for node in module.graph.nodes if "relu" in str(node.target) and name != "leaky_relu"]


@pytest.mark.parametrize("source", NAMES)
@pytest.mark.parametrize("form", ["module", "function"])
def test_every_activation_can_be_replaced_and_put_in_place(source, form):
    for target in NAMES:
        if target == source:
            continue
        act = EXPECTED[source]
        function = getattr(F, source)
        model = Model((lambda m, x: m.act(x)) if form == "module" else (lambda m, x, f=function: f(x)), act)
        module = fxplug.symbolic_trace(model)
        assert torch.equal(module(X), act(X))
        result = replace_activations(module, {source: target})
        assert result.details == {"replaced": 1, source: 1}
        assert torch.equal(module(X), EXPECTED[target](X)), target


def test_the_names_of_the_option_are_those_that_are_known():
    assert sorted(typing.get_args(Activation)) == NAMES


def test_a_value_that_nobody_else_sees_is_not_copied():
    """A network of the usual kind: normalised, added up, activated in place."""

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv1, self.conv2 = nn.Conv2d(3, 3, 1), nn.Conv2d(3, 3, 1)
            self.norm1, self.norm2 = nn.BatchNorm2d(3), nn.BatchNorm2d(3)
            self.relu = nn.ReLU(inplace=True)

        def forward(self, x):
            y = self.norm2(self.conv2(self.relu(self.norm1(self.conv1(x)))))
            y += x
            return self.relu(y)

    model = nn.Sequential(nn.Conv2d(3, 3, 1), Block(), nn.MaxPool2d(2), Block()).eval()
    module = fxplug.symbolic_trace(model)
    result = replace_activations(module, {"relu": "gelu"})

    assert result.summary == "replaced 4 relu"
    assert not module.graph.find_nodes(op="call_method", target="clone")
    assert not any(getattr(part, "inplace", False) for part in module.modules())


def test_what_takes_the_place_of_work_in_place_works_in_place():
    module = fxplug.symbolic_trace(Model(lambda m, x: F.relu(m.inplace(x).relu_(), inplace=True)))
    replace_activations(module, {"relu": "silu"})
    assert module.inplace.inplace
    functions = module.graph.find_nodes(op="call_function", target=F.silu)
    assert [node.kwargs for node in functions] == [{"inplace": True}, {"inplace": True}]
    module = fxplug.symbolic_trace(Model(lambda m, x: x.relu_()))
    replace_activations(module, {"relu": "tanh"})
    assert module.graph.find_nodes(op="call_function", target=torch.tanh_)


@pytest.mark.parametrize("name", ["gelu", "sigmoid", "silu"])
def test_gradients_go_through_what_is_written_back(name):
    def program(m, x):
        y = m.linear(x)
        return m.inplace(y) * 2 + y

    model = Model(program)
    module = fxplug.symbolic_trace(model)
    replace_activations(module, {"relu": name})
    module(X).sum().backward()
    found = model.linear.weight.grad.clone()
    model.zero_grad()
    value = EXPECTED[name](model.linear(X))
    (value * 3).sum().backward()
    torch.testing.assert_close(found, model.linear.weight.grad)


# -- parameters


def test_parameters_of_what_is_put_there():
    model = Model(lambda m, x: m.act(x) + F.relu(m.linear(x)))
    module = fxplug.symbolic_trace(model)
    replace_activations(module, {nn.ReLU: nn.LeakyReLU(0.25)})
    expected = F.leaky_relu(X, 0.25) + F.leaky_relu(model.linear(X), 0.25)
    torch.testing.assert_close(module(X), expected)
    module = fxplug.symbolic_trace(model)
    replace_activations(module, {"relu": nn.GELU("tanh")})
    expected = F.gelu(X, approximate="tanh") + F.gelu(model.linear(X), approximate="tanh")
    torch.testing.assert_close(module(X), expected)


def test_what_is_replaced_may_have_any_parameters():
    model = Model(lambda m, x: m.act(F.leaky_relu(x, 0.3)), nn.LeakyReLU(0.7))
    module = fxplug.symbolic_trace(model)
    assert replace_activations(module, {nn.LeakyReLU: "relu"}).details["replaced"] == 2
    assert torch.equal(module(X), X.relu())


def test_a_given_module_is_copied():
    given = nn.LeakyReLU(0.25)
    module = fxplug.symbolic_trace(Model(lambda m, x: m.inplace(m.act(x))).eval())
    replace_activations(module, {"relu": given})
    assert len({id(part) for part in (given, module.act, module.inplace)}) == 3
    assert (given.inplace, module.act.inplace, module.inplace.inplace) == (False, False, True)
    assert (given.training, module.act.training) == (True, False)


def test_several_at_once():
    module = fxplug.symbolic_trace(Model(lambda m, x: torch.tanh(m.act(x)).sigmoid()))
    result = replace_activations(module, {"relu": "gelu", "tanh": "silu"})
    assert result.summary == "replaced 1 relu, 1 tanh"
    torch.testing.assert_close(module(X), F.silu(F.gelu(X)).sigmoid())


# -- what is left alone


class Louder(nn.ReLU):
    def forward(self, x):
        return super().forward(x) * 2


def hooked():
    act = nn.ReLU()
    act.register_forward_hook(lambda module, given, value: value * 5)
    return act


def own_forward():
    act = nn.ReLU()
    act.forward = lambda x: x * 7
    return act


@pytest.mark.parametrize("make", [Louder, hooked, own_forward])
def test_modules_that_do_more_stay(make):
    model = Model(lambda m, x: m.act(x), make())
    leaves = fxplug.Tracer()
    leaves.is_leaf_module = lambda module, name: True
    module = fxplug.GraphModule(model, leaves.trace(model))
    assert not replace_activations(module, {"relu": "gelu"}).modified
    torch.testing.assert_close(module(X), model(X))


def test_other_activations_stay():
    module = fxplug.symbolic_trace(Model(lambda m, x: F.softplus(m.act(x)).tanh(), nn.PReLU()))
    text = str(module.graph)
    assert not replace_activations(module, {"relu": "gelu"}).modified
    assert str(module.graph) == text


def test_a_module_inside_of_one_that_is_called_as_a_whole_stays():
    class Leaf(nn.Module):
        def __init__(self):
            super().__init__()
            self.act = nn.ReLU()

        def forward(self, x):
            return self.act(x)

    class Shallow(fxplug.Tracer):
        def is_leaf_module(self, m, module_qualified_name):
            return isinstance(m, Leaf) or super().is_leaf_module(m, module_qualified_name)

    class Root(nn.Module):
        def __init__(self):
            super().__init__()
            self.leaf = Leaf()

        def forward(self, x):
            return self.leaf(x) + self.leaf.act(x)

    model = Root()
    module = fxplug.GraphModule(model, Shallow().trace(model))
    assert replace_activations(module, {"relu": "gelu"}).details["replaced"] == 1
    torch.testing.assert_close(module(X), X.relu() + F.gelu(X))
    torch.testing.assert_close(model(X), X.relu() * 2)


def test_a_rewrite_that_is_not_allowed_is_left_out():
    class Once(PassContext):
        def allows(self, node, what):
            return (node.name, what) == ("act", "replace")

    model = Model(lambda m, x: m.act(m.linear(m.act(x))))
    module = fxplug.symbolic_trace(model)
    result = ReplaceActivations({"relu": "gelu"}).run(module, Once())
    assert result.details["replaced"] == 1
    torch.testing.assert_close(module(X), model.linear(F.gelu(X)).relu())


# -- errors


def test_an_unknown_name_is_refused():
    with pytest.raises(ConfigError, match=r"there is none called 'rleu'\. Did you mean 'relu'"):
        ReplaceActivations({"rleu": "gelu"})
    with pytest.raises(ConfigError, match="there is none called 'swish'"):
        ReplaceActivations({"relu": "swish"})


@pytest.mark.parametrize("given", [Louder, nn.Linear, nn.PReLU])
def test_other_classes_are_refused(given):
    text = f"{given.__qualname__} is none of those that this pass knows"
    with pytest.raises(ConfigError, match=text) as caught:
        ReplaceActivations({given: "gelu"})
    assert "fxplug.replace_pattern" in str(caught.value)
    with pytest.raises(ConfigError, match=text):
        ReplaceActivations({"relu": given})


@pytest.mark.parametrize("given", [3, None, torch.relu])
def test_what_is_no_activation_at_all_is_refused(given):
    with pytest.raises(ConfigError, match="is none of those that this pass knows"):
        ReplaceActivations({"relu": given})


@pytest.mark.parametrize("make", [hooked, own_forward])
def test_modules_that_do_more_are_not_put_anywhere(make):
    with pytest.raises(ConfigError, match="by this ReLU: it has hooks, or a forward of its own"):
        ReplaceActivations({"gelu": make()})


@pytest.mark.parametrize("given", [{"relu": "relu"}, {"relu": "gelu", "gelu": "silu"}])
def test_chains_are_refused(given):
    with pytest.raises(ConfigError, match="is replaced and also put in the place of another"):
        ReplaceActivations(given)


def test_without_replacements_nothing_is_done():
    result = ReplaceActivations().run(fxplug.symbolic_trace(Model(lambda m, x: m.act(x))), PassContext())
    assert (result.modified, result.summary) == (False, "nothing to replace: no replacements are given")
    assert ReplaceActivationsOptions().replacements == {}


# -- as a pass


def step(**options):
    from fxplug.passes import BUILTIN_PASSES

    record = next(record for record in BUILTIN_PASSES if record.name == "replace-activations")
    return PipelineStep("replace-activations", record, options)


def test_it_runs_in_pipelines():
    model = Model(lambda m, x: m.inplace(x) + F.relu(m.linear(x)))
    module = fxplug.symbolic_trace(model)
    (report,) = Pipeline("test", [step(replacements={"relu": "gelu"})], verify="shape").run(module, (X,))
    assert report.result.details == {"replaced": 2, "relu": 2}
    with pytest.raises(fxplug.PassError, match="changed what the module computes"):
        Pipeline("test", [step(replacements={"gelu": "tanh"})], verify="numeric").run(module, (X,))
    assert module.graph.find_nodes(op="call_function", target=F.gelu)


def test_what_comes_of_it_can_be_optimised():
    module = fxplug.symbolic_trace(Model(lambda m, x: m.act(m.linear(x))).eval())
    replace_activations(module, {"relu": "gelu"})
    result = fxplug.optimize(module, X, measure=False)
    torch.testing.assert_close(result.module(X), module(X))


def test_origins_are_kept():
    module = fxplug.symbolic_trace(Model(lambda m, x: m.inplace(x) + F.relu(m.linear(x)) + x.relu_()))
    origins = [node.origins for node in module.graph.nodes if "relu" in node.name or node.name == "inplace"]
    replace_activations(module, {"relu": "gelu"})
    names = {origin for node in module.graph.nodes for origin in node.origins}
    assert origins
    assert all(origin in names for entry in origins for origin in entry)
    assert all(node.origins for node in module.graph.nodes if node.op.startswith("call_"))


def test_a_failing_pass_leaves_everything_as_it_was():
    class Failing(fxplug.Pass):
        def run(self, module, context):
            assert replace_activations(module, {"relu": "gelu"}).modified
            raise ValueError("on purpose")

    module = fxplug.symbolic_trace(Model(lambda m, x: m.inplace(x) + F.relu(m.act(x)) + x.relu_()))
    before = module.code, [(name, id(part)) for name, part in module.named_modules()]
    record = fxplug.PassRecord("failing", Failing, "Fails.")
    Pipeline("test", [PipelineStep("failing", record)], on_error="rollback").run(module)
    assert (module.code, [(name, id(part)) for name, part in module.named_modules()]) == before


@pytest.mark.parametrize("options", [{"replacements": {"rleu": "gelu"}}, {"replacements": {"relu": 3}}])
def test_options_are_checked_before_anything_runs(options):
    with pytest.raises(ConfigError, match="replacements"):
        fxplug.optimize(
            Model(lambda m, x: m.act(x)),
            X,
            passes=[{"name": "replace-activations", **options}],
            measure=False,
        )
