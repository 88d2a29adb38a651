"""Linear layers with nothing between them become one, where that is no more work."""

from __future__ import annotations

import copy
import itertools
import random

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import fxplug
from fxplug.passes import BUILTIN_PASSES, MergeLinear, PassContext, Pipeline, PipelineStep

RECORD = next(record for record in BUILTIN_PASSES if record.name == "merge-linear")


def merged(model, *inputs, verify="numeric", **options):
    """Merge in a capture of `model`, in a pipeline, and check all that always holds."""
    state = {name: value.clone() for name, value in model.state_dict().items()}
    module = fxplug.symbolic_trace(model)
    step = PipelineStep("merge-linear", RECORD, options)
    (report,) = Pipeline("test", [step], verify=verify).run(module, inputs)
    module.graph.lint()
    for name, value in model.state_dict().items():
        assert torch.equal(value, state[name]), name
    text = str(module.graph)
    again = MergeLinear(**options).run(module, PassContext())
    assert (again.modified, str(module.graph)) == (False, text)
    assert report.result.modified is (report.result.details["merged"] > 0)
    return module, report.result


def layers(module):
    functions = module.graph.find_nodes(op="call_function", target=F.linear)
    return len(functions) + sum(
        isinstance(module.get_submodule(node.target), nn.Linear)
        for node in module.graph.find_nodes(op="call_module")
    )


class Pair(nn.Module):
    """Two layers, each called as a module or as a function."""

    def __init__(self, widths=(4, 6, 3), biases=(True, True), forms=("module", "module")):
        super().__init__()
        self.first = nn.Linear(widths[0], widths[1], bias=biases[0])
        self.second = nn.Linear(widths[1], widths[2], bias=biases[1])
        self.forms = forms

    def forward(self, x):
        for layer, form in zip((self.first, self.second), self.forms, strict=True):
            x = layer(x) if form == "module" else F.linear(x, layer.weight, layer.bias)
        return x


BIASES = [(True, True), (True, False), (False, True), (False, False)]
FORMS = [("module", "module"), ("function", "function"), ("module", "function"), ("function", "module")]


@pytest.mark.parametrize("biases", BIASES)
@pytest.mark.parametrize("forms", FORMS)
def test_a_pair_becomes_one_layer(forms, biases):
    model = Pair(biases=biases, forms=forms).eval().double()
    x = torch.randn(2, 4, dtype=torch.float64)
    module, result = merged(model, x, verify="paranoid")

    assert result.details == {"merged": 1, "in_training": 0, "more_work": 0}
    assert result.summary == "merged 1 pair of linear layers"
    assert layers(module) == 1
    names = ["weight", "bias"] if any(biases) else ["weight"]
    path = "second" if forms[1] == "module" else "second_merged"
    assert list(module.state_dict()) == [f"{path}.{name}" for name in names]
    torch.testing.assert_close(module(x), model(x), rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("shape", [(4,), (0, 4), (5, 4), (2, 3, 4), (2, 0, 3, 4)])
def test_inputs_of_every_shape(shape):
    model, x = Pair().eval(), torch.randn(shape)
    module, result = merged(model, x)
    assert result.modified
    torch.testing.assert_close(module(x), model(x), rtol=1e-5, atol=1e-5)
    assert (module.second.in_features, module.second.out_features) == (4, 3)


@pytest.mark.parametrize("seed", range(20))
def test_random_chains_compute_the_same(seed):
    rng = random.Random(seed)
    torch.manual_seed(seed)
    widths = [rng.choice([1, 2, 3, 5, 8, 13]) for _ in range(rng.randint(3, 8))]
    parts = []
    for wide, narrow in itertools.pairwise(widths):
        parts.append(nn.Linear(wide, narrow, bias=rng.random() < 0.5))
        if rng.random() < 0.2:
            parts.append(nn.Tanh())
    model, x = nn.Sequential(*parts).eval().double(), torch.randn(3, widths[0], dtype=torch.float64)
    work = sum(part.weight.numel() for part in parts if isinstance(part, nn.Linear))

    module, _ = merged(model, x)

    torch.testing.assert_close(module(x), model(x), rtol=1e-10, atol=1e-10)
    left = sum(part.weight.numel() for part in module.modules() if isinstance(part, nn.Linear))
    assert left <= work
    free, _ = merged(model, x, allow_more_work=True)
    torch.testing.assert_close(free(x), model(x), rtol=1e-10, atol=1e-10)
    runs = "".join("l" if isinstance(part, nn.Linear) else "t" for part in parts).split("t")
    assert layers(free) == sum(run != "" for run in runs)
    assert layers(free) <= layers(module)


def test_a_narrow_layer_before_a_wide_one_stays_unless_it_may_cost_more():
    model, x = Pair((8, 2, 8)).eval(), torch.randn(2, 8)
    module, result = merged(model, x)
    assert result.details == {"merged": 0, "in_training": 0, "more_work": 1}
    assert (
        result.summary
        == "no pair to merge; 1 left alone that would take more multiply-adds (allow_more_work)"
    )
    assert layers(module) == 2
    module, result = merged(model, x, allow_more_work=True)
    assert result.details == {"merged": 1, "in_training": 0, "more_work": 0}


def test_as_much_work_as_before_is_no_more():
    assert merged(Pair((2, 1, 2)).eval(), torch.ones(1, 2))[1].details["merged"] == 1  # 4 instead of 4
    assert merged(Pair((3, 1, 2)).eval(), torch.ones(1, 3))[1].details["merged"] == 0  # 6 instead of 5


def test_what_was_merged_is_merged_with_what_comes_before_it():
    # The first pair would take more work by itself.
    model = nn.Sequential(nn.Linear(10, 2), nn.Linear(2, 100), nn.Linear(100, 2)).eval()
    module, result = merged(model, torch.randn(1, 10))
    assert result.details == {"merged": 2, "in_training": 0, "more_work": 0}
    assert layers(module) == 1


# -- what is left alone


class Calls(nn.Module):
    def __init__(self, program):
        super().__init__()
        self.program = program
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)
        self.register_buffer("kernel", torch.randn(4, 4))

    def forward(self, x):
        return self.program(self, x)


def used_twice(m, x):
    y = m.first(x)
    return m.second(y) + y


def returned(m, x):
    y = m.first(x)
    return m.second(y), y


def between(m, x):
    return m.second(torch.relu(m.first(x)))


def written_between(m, x):
    y = m.first(x)
    y.add_(1)
    return m.second(y)


def in_other_regions(m, x):
    with torch.no_grad():
        y = m.first(x)
    return m.second(y)


def written_weight(m, x):
    y = F.linear(m.first(x), m.kernel)
    m.kernel.add_(1)
    return y


def computed_weight(m, x):
    return F.linear(m.first(x), m.second.weight * 2)


def vector(m, x):
    return F.linear(m.first(x), m.kernel[0])


LEFT = [
    used_twice,
    returned,
    between,
    written_between,
    in_other_regions,
    written_weight,
    computed_weight,
    vector,
]


@pytest.mark.parametrize("program", LEFT, ids=lambda program: program.__name__)
def test_what_cannot_be_merged_is_left_alone(program):
    model = Calls(program).eval()
    expected = copy.deepcopy(model)
    module = fxplug.symbolic_trace(model)
    text = str(module.graph)
    result = MergeLinear(allow_more_work=True).run(module, PassContext())

    assert (result.modified, str(module.graph)) == (False, text)
    x = torch.randn(2, 4)
    for _ in range(2):
        torch.testing.assert_close(module(x), expected(x), rtol=0, atol=0)


class Louder(nn.Linear):
    def forward(self, x):
        return super().forward(x) * 2


def hooked():
    layer = nn.Linear(4, 4)
    layer.register_forward_hook(lambda module, given, value: value * 5)
    return layer


def parametrised():
    return nn.utils.parametrizations.weight_norm(nn.Linear(4, 4))


@pytest.mark.parametrize("make", [lambda: Louder(4, 4), hooked, parametrised])
@pytest.mark.parametrize("place", ["first", "second"])
def test_layers_that_do_more_are_left_alone(make, place):
    model = Pair((4, 4, 4))
    setattr(model, place, make())
    model.eval()
    leaves = fxplug.Tracer()
    leaves.is_leaf_module = lambda module, name: True
    module = fxplug.GraphModule(model, leaves.trace(model))
    assert not MergeLinear().run(module, PassContext()).modified


@pytest.mark.parametrize("forms", FORMS)
def test_training_mode_is_refused(forms):
    result = MergeLinear().run(fxplug.symbolic_trace(Pair(forms=forms)), PassContext())
    assert not result.modified
    assert result.summary == "no pair to merge; 1 left alone in training mode (call eval() first)"
    assert result.details["in_training"] == 1


def test_an_input_that_is_written_between_the_calls_is_read_before():
    def program(m, x):
        z = x * 2
        y = m.first(z)
        z.zero_()
        return m.second(y) + z

    model, x = Calls(program).eval(), torch.randn(2, 4)
    module, result = merged(model, x)
    assert result.details["merged"] == 1
    torch.testing.assert_close(module(x), model(x), rtol=1e-5, atol=1e-5)


# -- sharing, dtypes, parameters


def test_weights_that_are_used_elsewhere_stay():
    def program(m, x):
        return m.second(m.first(m.second(m.first(x)))) + m.first.weight.sum()

    model, x = Calls(program).eval(), torch.randn(2, 4)
    module, result = merged(model, x)
    assert result.details["merged"] == 3
    assert layers(module) == 1
    assert torch.equal(module.first.weight, model.first.weight)
    torch.testing.assert_close(module(x), model(x), rtol=1e-5, atol=1e-5)


def test_a_layer_that_follows_itself():
    model, x = Calls(lambda m, x: m.first(m.first(x))).eval(), torch.randn(2, 4)
    module, result = merged(model, x)
    assert result.details["merged"] == 1
    torch.testing.assert_close(module(x), model(x), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_narrow_dtypes_are_kept(dtype):
    model, x = Pair().eval().to(dtype), torch.randn(2, 4).to(dtype)
    module, result = merged(model, x)
    assert result.modified
    assert module.second.weight.dtype == module.second.bias.dtype == dtype
    torch.testing.assert_close(module(x), model(x), rtol=0.05, atol=0.05)


def test_products_that_would_not_fit_into_half_precision_are_left_alone():
    model = Pair().eval().half()
    model.first.weight.data.fill_(600.0)
    model.second.weight.data.fill_(600.0)
    assert not MergeLinear().run(fxplug.symbolic_trace(model), PassContext()).modified


@pytest.mark.parametrize("dtype", [torch.complex64, torch.float64])
def test_other_dtypes_and_mixtures_are_left_alone(dtype):
    model = Pair().eval()
    for layer in (model.first, model.second) if dtype.is_complex else (model.second,):
        layer.weight = nn.Parameter(layer.weight.detach().to(dtype))
        layer.bias = nn.Parameter(layer.bias.detach().to(dtype))
    assert not MergeLinear().run(fxplug.symbolic_trace(model), PassContext()).modified


@pytest.mark.parametrize("frozen", [(), ("first",), ("first", "second")])
@pytest.mark.parametrize("forms", FORMS)
def test_it_trains_if_one_of_both_did(forms, frozen):
    model = Pair(forms=forms).eval()
    for name in frozen:
        getattr(model, name).requires_grad_(False)
    module, _ = merged(model, torch.ones(1, 4))
    assert [parameter.requires_grad for parameter in module.parameters()] == [len(frozen) < 2] * 2


@pytest.mark.parametrize("biases", BIASES)
@pytest.mark.parametrize("forms", FORMS)
def test_new_weights_can_be_loaded(forms, biases):
    trained = Pair(biases=biases, forms=forms).eval()
    x = torch.randn(2, 4)
    module, _ = merged(Pair(biases=biases, forms=forms).eval(), x)
    fxplug.load_original_state_dict(module, trained.state_dict())
    torch.testing.assert_close(module(x), trained(x), rtol=1e-5, atol=1e-5)


def test_origins_of_both_are_kept():
    module = fxplug.symbolic_trace(Pair().eval())
    first, second = module.graph.find_nodes(op="call_module")
    expected = (*first.origins, *second.origins)
    MergeLinear().run(module, PassContext())
    (left,) = module.graph.find_nodes(op="call_module")
    assert left.origins == expected
    assert len(expected) == 2


def test_a_rewrite_that_is_not_allowed_is_left_out():
    class Forbidding(PassContext):
        def allows(self, node, what):
            return what != "merge"

    module = fxplug.symbolic_trace(Pair().eval())
    assert not MergeLinear().run(module, Forbidding()).modified


@pytest.mark.parametrize("forms", FORMS)
def test_a_pass_that_fails_leaves_the_module_as_it_was(forms):
    class Failing(fxplug.Pass):
        def run(self, module, context):
            assert MergeLinear().run(module, context).modified
            raise ValueError("on purpose")

    module = fxplug.symbolic_trace(Pair(forms=forms).eval())
    before = module.code, {name: id(value) for name, value in module.state_dict(keep_vars=True).items()}
    step = PipelineStep("failing", fxplug.PassRecord("failing", Failing, "Fails.", replaces_parameters=True))
    Pipeline("test", [step], on_error="rollback").run(module)
    after = module.code, {name: id(value) for name, value in module.state_dict(keep_vars=True).items()}
    assert after == before


def test_it_is_offered_by_name_with_its_option():
    model, x = Pair((8, 2, 8)).eval(), torch.randn(2, 8)
    entry = {"name": "merge-linear", "allow_more_work": True}
    result = fxplug.optimize(model, x, passes=[entry], measure=False)
    assert result.passes[0].result.summary == "merged 1 pair of linear layers"


def test_an_option_of_another_kind_is_refused():
    with pytest.raises(fxplug.FxplugError, match="allow_more_work"):
        fxplug.optimize(
            Pair().eval(),
            torch.ones(1, 4),
            passes=[{"name": "merge-linear", "allow_more_work": "often"}],
            measure=False,
        )
