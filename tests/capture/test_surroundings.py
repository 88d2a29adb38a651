"""What a program asks besides its inputs is guarded: flags of modules, kinds of weights, modes of torch."""

import contextlib
import copy
import importlib
import pickle
import sys

import pytest
import torch
import torch.nn.functional as F
from torch import is_grad_enabled as are_gradients_computed
from torch import nn
from torch._subclasses import FakeTensorMode
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

import fxplug
from fxplug import GuardError
from fxplug.errors import GuardWarning, TraceWarning
from fxplug.ir.guards import StateGuard
from fxplug.semantics.surroundings import MODES as MODES_OF_TORCH
from fxplug.semantics.surroundings import is_known
from fxplug.storage.inspection import summarize

X = torch.arange(6.0).reshape(2, 3) + 0.5
MODES = ("symbolic", "shape", "value")


@pytest.fixture(params=MODES)
def mode(request):
    return request.param


def capture(root, mode, **options):
    if mode == "symbolic":
        return fxplug.trace(root, **options)
    return fxplug.trace(root, (X,), mode=mode, **options)


def texts(module):
    return [guard.text for guard in module.guards]


# -- flags of modules


class Scales(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(3))

    def forward(self, x):
        return x * self.weight * (2 if self.training else 3)


class Plain(nn.Module):
    def forward(self, x):
        return x * (2 if self.training else 3)


class Outer(nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, x):
        return self.inner(x) + 1


class ReadsFlagOfPart(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(3, 3)

    def forward(self, x):
        return self.inner(x) * (2 if self.inner.training else 3)


def drops(module, x):
    return F.dropout(x, 0.5, module.training)


class HandsItselfOver(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(3, 3)

    def forward(self, x):
        return drops(self.inner, self.inner(x))


@pytest.mark.parametrize("make", [lambda: Outer(Scales()), ReadsFlagOfPart, HandsItselfOver])
@pytest.mark.parametrize("training", [True, False])
def test_part_that_is_switched_on_its_own_is_another_program(mode, make, training):
    module = capture(make().train(training), mode)

    module(X)
    module.inner.train(not training)
    with pytest.raises(GuardError, match=rf"captured for self\.inner\.training is {training}"):
        module(X)
    module.inner.train(training)
    module(X)


def test_part_further_out_switches_what_is_in_it(mode):
    module = capture(nn.Sequential(Outer(Scales()), Outer(Plain())), mode)
    module.get_submodule("0").eval()

    with pytest.raises(GuardError, match=r"self\.0\.inner\.training is True"):
        module(X)


@pytest.mark.parametrize("inner", [Scales, Plain])
def test_part_in_a_mode_of_its_own_is_switched_with_the_whole(mode, inner):
    root = Outer(inner())
    root.inner.eval()
    module = capture(root, mode)

    assert torch.equal(module(X), root(X))
    with pytest.raises(GuardError, match=r"self\.inner\.training is False"):
        module.train()(X)


def test_parts_have_the_modes_that_they_had(mode):
    module = capture(Outer(Scales()).eval(), mode)

    assert not module.inner.training


def test_layers_that_stay_calls_are_switched_at_will(mode):
    root = nn.Sequential(nn.BatchNorm1d(3), Outer(Scales()))
    module = capture(root, mode)
    module.get_submodule("0").eval()

    assert torch.equal(module(X), root(X))
    assert texts(module) == ["self.training is True", "self.1.inner.training is True"]


def test_attribute_of_another_object_is_no_flag(mode):
    class Settings:
        training = True

    class Root(nn.Module):
        def __init__(self):
            super().__init__()
            self.settings = Settings()

        def forward(self, x):
            return x * (2 if self.settings.training else 3)

    module = capture(Root(), mode)
    assert texts(module) == []
    assert torch.equal(module.eval()(X), X * 2)


@pytest.mark.parametrize("mode", ["shape", "value"])
def test_part_that_the_program_switches_itself_is_in_the_mode_that_it_says(mode):
    class Root(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = Scales()

        def forward(self, x):
            self.inner.eval()
            x = self.inner(x)
            self.inner.train()
            return x

    module = capture(Root(), mode)

    for _ in range(2):
        assert torch.equal(module(X), X * 3)


@pytest.mark.parametrize("policy", ["eager", "recapture"])
def test_what_runs_instead_has_its_parts_in_the_same_modes(mode, policy):
    root = Outer(Scales())
    module = capture(root, mode, on_guard_failure=policy)

    for training in (False, True, False):
        module.inner.train(training)
        assert torch.equal(module(X), X * (2 if training else 3) + 1)
    assert root.inner.training
    module.inner.train()
    module.eval()
    assert torch.equal(module(X), X * 3 + 1)


def test_guard_may_warn_or_be_ignored(mode):
    module = capture(Outer(Scales()), mode, on_guard_failure="warn")
    module.inner.eval()
    with pytest.warns(GuardWarning, match=r"self\.inner\.training is True"):
        module(X)

    module = capture(Outer(Scales()), mode, on_guard_failure="ignore")
    module.inner.eval()
    assert torch.equal(module(X), X * 2 + 1)


REMAKES = {
    "copy": copy.copy,
    "deepcopy": copy.deepcopy,
    "pickle": lambda module: pickle.loads(pickle.dumps(module)),
    "transformed": lambda module: fxplug.Transformer(module).transform(),
    "traced again": fxplug.symbolic_trace,
    "another graph module": lambda module: fxplug.GraphModule(module, copy.deepcopy(module.graph)),
}


@pytest.mark.parametrize("remake", REMAKES)
def test_flags_of_parts_survive(mode, remake):
    module = REMAKES[remake](capture(Outer(Scales()), mode))

    assert "self.inner.training is True" in texts(module)
    module(X)
    module.inner.eval()
    with pytest.raises(GuardError, match=r"self\.inner\.training"):
        module(X)


def test_flags_of_parts_survive_in_another_program(mode):
    module = fxplug.symbolic_trace(nn.Sequential(capture(Outer(Scales()), mode)))

    module(X)
    module.get_submodule("0.inner").eval()
    with pytest.raises(GuardError, match=r"self\.0\.inner\.training"):
        module(X)


def test_flags_of_parts_survive_a_file(mode, tmp_path):
    root = Outer(Plain())
    root.inner.eval()
    fxplug.save(capture(root, mode), tmp_path / "module.fxp")
    module = fxplug.load(tmp_path / "module.fxp")

    assert torch.equal(module(X), root(X))
    assert texts(module)[-2:] == ["self.training is True", "self.inner.training is False"]
    assert summarize(tmp_path / "module.fxp").guards[-1] == "self.inner.training is False"
    with pytest.raises(GuardError, match=r"self\.inner\.training"):
        module.train()(X)


def test_flags_of_parts_survive_an_export(mode, tmp_path, monkeypatch):
    fxplug.export_python(capture(nn.Sequential(Outer(Scales())), mode), tmp_path / "exported_flags")
    monkeypatch.syspath_prepend(str(tmp_path))
    module = importlib.import_module("exported_flags").load()

    module(X)
    dict(module.named_modules())["0.inner"].eval()
    with pytest.raises(ValueError, match=r"captured for self\.0\.inner\.training is True"):
        module(X)
    sys.modules.pop("exported_flags")


def test_flags_of_an_inlined_part_are_guarded():
    class Holds(nn.Module):
        def __init__(self):
            super().__init__()
            outer = Outer(Scales())
            self.part = fxplug.GraphModule(outer, fxplug.Tracer().trace(outer))

        def forward(self, x):
            return self.part(x) * 2

    class KeepsParts(fxplug.Tracer):
        def is_leaf_module(self, m, module_qualified_name):
            return module_qualified_name == "part"

    root = Holds()
    module = fxplug.GraphModule(root, KeepsParts().trace(root))
    fxplug.passes.inline_submodule(module, "part")

    assert texts(module) == [
        "self.training is True",
        "self.part.training is True",
        "self.part.inner.training is True",
    ]
    module(X)
    module.part.inner.eval()
    with pytest.raises(GuardError, match=r"self\.part\.inner\.training"):
        module(X)


# -- modes of torch


@contextlib.contextmanager
def setting(change, back):
    change()
    try:
        yield
    finally:
        back()


def doubles_with_gradients(x):
    return x * 2 if torch.is_grad_enabled() else x * 3


def doubles_by_another_name(x):
    return x * 2 if are_gradients_computed() else x * 3


def triples_for_inference(x):
    return x * 3 if torch.is_inference_mode_enabled() else x * 2


def triples_under_autocast(x):
    return x * 3 if torch.is_autocast_enabled("cpu") else x * 2


def doubles_for_bfloat16(x):
    return x * 2 if torch.get_autocast_dtype("cpu") is torch.bfloat16 else x * 3


def doubles_for_float32(x):
    return x * 2 if torch.get_default_dtype() is torch.float32 else x * 3


def doubles_on_the_cpu(x):
    return x * 2 if torch.get_default_device().type == "cpu" else x * 3


def triples_if_deterministic(x):
    return x * 3 if torch.are_deterministic_algorithms_enabled() else x * 2


def triples_if_it_only_warns(x):
    return x * 3 if torch.is_deterministic_algorithms_warn_only_enabled() else x * 2


def doubles_if_nothing_is_said(x):
    return x * 2 if torch.get_deterministic_debug_mode() == 0 else x * 3


def doubles_with_kept_weights(x):
    return x * 2 if torch.is_autocast_cache_enabled() else x * 3


def triples_if_warned_each_time(x):
    return x * 3 if torch.is_warn_always_enabled() else x * 2


def deterministic_or_warned_of():
    return setting(
        lambda: torch.use_deterministic_algorithms(True, warn_only=True),
        lambda: torch.use_deterministic_algorithms(False),
    )


def float64_by_default():
    return setting(
        lambda: torch.set_default_dtype(torch.float64), lambda: torch.set_default_dtype(torch.float32)
    )


ASKED = [
    (doubles_with_gradients, torch.no_grad, "is_grad_enabled"),
    (doubles_by_another_name, torch.no_grad, "is_grad_enabled"),
    (triples_for_inference, torch.inference_mode, "is_inference_mode_enabled"),
    (triples_under_autocast, lambda: torch.autocast("cpu"), "is_autocast_enabled"),
    (doubles_for_bfloat16, lambda: torch.autocast("cpu", torch.float16), "get_autocast_dtype"),
    (doubles_for_float32, float64_by_default, "get_default_dtype"),
    (doubles_on_the_cpu, lambda: torch.device("meta"), "get_default_device"),
    (
        triples_if_deterministic,
        lambda: setting(
            lambda: torch.use_deterministic_algorithms(True),
            lambda: torch.use_deterministic_algorithms(False),
        ),
        "are_deterministic_algorithms_enabled",
    ),
    (
        triples_if_it_only_warns,
        deterministic_or_warned_of,
        "is_deterministic_algorithms_warn_only_enabled",
    ),
    (doubles_if_nothing_is_said, deterministic_or_warned_of, "get_deterministic_debug_mode"),
    (
        doubles_with_kept_weights,
        lambda: torch.autocast("cpu", cache_enabled=False),
        "is_autocast_cache_enabled",
    ),
    (
        triples_if_warned_each_time,
        lambda: setting(lambda: torch.set_warn_always(True), lambda: torch.set_warn_always(False)),
        "is_warn_always_enabled",
    ),
]


class Asks(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, x):
        return self.function(x) + 1


@pytest.mark.parametrize(("function", "context", "asked"), ASKED)
def test_mode_of_torch_is_guarded_where_the_program_asks(mode, function, context, asked):
    for root in (function, nn.Sequential(Asks(function))):
        module = capture(root, mode)

        assert torch.equal(module(X), root(X))
        with context(), pytest.raises(GuardError, match=asked):
            module(X)
        assert torch.equal(module(X), root(X))


@pytest.mark.parametrize("policy", ["eager", "recapture"])
@pytest.mark.parametrize(("function", "context", "asked"), ASKED)
def test_program_runs_in_another_mode_if_that_is_wanted(mode, function, context, asked, policy):
    module = capture(function, mode, on_guard_failure=policy)

    with context():
        assert module(X).tolist() == function(X).tolist()
    assert module(X).tolist() == function(X).tolist()


@pytest.mark.parametrize(("function", "context", "asked"), ASKED)
def test_guards_of_modes_survive_a_copy_and_a_file(mode, function, context, asked, tmp_path):
    module = capture(function, mode)
    allow = [f"torch:{name}" for name in MODES_OF_TORCH]
    fxplug.save(module, tmp_path / "module.fxp", allow=allow)
    for again in (pickle.loads(pickle.dumps(module)), copy.deepcopy(module)):
        with context(), pytest.raises(GuardError, match=asked):
            again(X)
    loaded = fxplug.load(tmp_path / "module.fxp", allow=allow)
    assert torch.equal(loaded(X), function(X))
    with context(), pytest.raises(GuardError, match=asked):
        loaded(X)


def test_guard_of_a_mode_names_the_line():
    (guard,) = fxplug.trace(doubles_with_gradients).guards

    assert guard.text == "torch.is_grad_enabled() is True"
    assert guard.source == "return x * 2 if torch.is_grad_enabled() else x * 3"


def test_mode_that_the_program_sets_itself_is_no_guard():
    def program(x):
        with torch.no_grad():
            x = x * 2 if torch.is_grad_enabled() else x * 3
        with torch.autocast("cpu", enabled=False):
            x = x * 2 if torch.is_autocast_enabled("cpu") else x * 3
        with torch.device("meta"):
            x = x * 2 if torch.get_default_device().type == "cpu" else x * 3
        with float64_by_default():
            return x * 2 if torch.get_default_dtype() is torch.float32 else x * 3

    module = fxplug.trace(program)

    assert module.guards == ()
    with torch.no_grad(), torch.autocast("cpu"):
        assert torch.equal(module(X), X * 81)


def test_mode_that_torch_asks_for_is_no_guard():
    def program(x):
        with torch.no_grad(), torch.set_grad_enabled(False):
            x = x * 2
        return x * 3 if torch.is_autocast_enabled("cpu") and torch.is_grad_enabled() else x

    assert texts(fxplug.trace(program)) == ["torch.is_autocast_enabled('cpu') is False"]


def test_guards_of_modes_go_with_what_captures_the_module_again():
    inner = fxplug.trace(doubles_with_gradients)

    class NoGradients(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = inner

        def forward(self, x):
            return self.inner(x)

    assert texts(fxplug.trace(NoGradients())) == ["torch.is_grad_enabled() is True"]


def test_file_asks_only_what_programs_can_ask():
    assert is_known(StateGuard("torch.is_grad_enabled", (), True))
    assert is_known(StateGuard("self.training", (), True))
    for asked in ("torch.save", "torch.cuda.is_available", "os.system", "self.forward", "training", ""):
        assert not is_known(StateGuard(asked, (), True))
    assert not is_known(StateGuard("self.weight.dtype", (1,), True))


# -- what weights are like


class Weighs(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function
        self.weight = nn.Parameter(torch.ones(3))
        self.layer = nn.Linear(3, 3)
        self.register_buffer("table", torch.ones(3))

    def forward(self, x):
        return self.function(self, x) * self.weight


def first(module):
    return next(module.parameters())


def doubles_if_trained(module, x):
    return x * 2 if any(weight.requires_grad for weight in module.parameters()) else x * 3


def doubles_in_float32(module, x):
    return x * 2 if first(module).dtype is torch.float32 else x * 3


def doubles_if_floating(module, x):
    return x * 2 if first(module).element_size() == 4 else x * 3


def adds_its_size(module, x):
    return x + first(module).shape[0]


def adds_all_sizes(module, x):
    return x + sum(weight.numel() for weight in module.parameters())


def adds_the_length_of_a_buffer(module, x):
    return x + len(next(module.buffers()))


def asks_for_a_weight_of_a_layer(module, x):
    return x + module.layer._parameters["weight"].size(0)


def asks_for_strides(module, x):
    return x * 2 if module.state_dict(keep_vars=True)["layer.weight"].is_contiguous() else x * 3


def stops_training(module):
    module.requires_grad_(False)


def converts(module):
    module.double()


def shrinks(module):
    module.weight = nn.Parameter(torch.ones(1))


def shrinks_the_buffer(module):
    module.table = torch.ones(1)


def grows_the_layer(module):
    module.layer.weight = nn.Parameter(torch.ones(5, 3))


def turns_the_layer(module):
    module.layer.weight = nn.Parameter(torch.ones(3, 3).t()[:, ::2].new_zeros(3, 3).t())


OF_WEIGHTS = [
    (doubles_if_trained, stops_training, r"weight\.requires_grad"),
    (doubles_in_float32, converts, r"weight\.dtype == torch\.float32"),
    (doubles_if_floating, converts, r"weight\.(dtype == torch\.float32|element_size)"),
    (adds_its_size, shrinks, r"self\.weight\.shape == \(3,\)"),
    (adds_all_sizes, grows_the_layer, r"self\.layer\.weight\.shape == \(3, 3\)"),
    (adds_the_length_of_a_buffer, shrinks_the_buffer, r"table"),
    (asks_for_a_weight_of_a_layer, grows_the_layer, r"self\.layer\.weight\.shape == \(3, 3\)"),
    (asks_for_strides, turns_the_layer, r"layer\.weight\.(stride|is_contiguous)"),
]


@pytest.mark.parametrize(("function", "change", "said"), OF_WEIGHTS)
def test_what_a_weight_is_like_is_guarded_or_computed(mode, function, change, said):
    module, root = capture(Weighs(function), mode), Weighs(function)
    assert torch.equal(module(X), root(X))
    change(module)
    change(root)

    if texts(module)[-1:] == ["x.dim() == 2"] or not texts(module):
        assert mode != "symbolic"  # What is computed needs no guard.
        assert torch.equal(module(X), root(X))
    else:
        with pytest.raises(GuardError, match=said):
            module(X)


@pytest.mark.parametrize(("function", "change", "said"), OF_WEIGHTS)
def test_guards_of_weights_survive(function, change, said, tmp_path):
    root = Weighs(function)
    module = fxplug.trace(root)
    fxplug.save(module, tmp_path / "module.fxp")
    for again in (
        copy.deepcopy(module),
        pickle.loads(pickle.dumps(module)),
        fxplug.load(tmp_path / "module.fxp"),
        fxplug.symbolic_trace(module),
    ):
        assert torch.equal(again(X), root(X))
        change(again)
        with pytest.raises(GuardError, match=said):
            again(X)


@pytest.mark.parametrize("policy", ["eager", "recapture"])
def test_program_runs_with_other_kinds_of_weights_if_that_is_wanted(mode, policy):
    root = Weighs(doubles_if_trained)
    module = capture(root, mode, on_guard_failure=policy)
    root.requires_grad_(False)  # They share their weights.

    assert torch.equal(module(X), X * 3)
    root.requires_grad_(True)
    assert torch.equal(module(X), X * 2)


def test_weight_that_is_only_asked_about_is_held():
    class Root(nn.Module):
        def __init__(self):
            super().__init__()
            self.unused = nn.Parameter(torch.ones(2))

        def forward(self, x):
            return x * 2 if next(self.parameters()).requires_grad else x * 3

    module = fxplug.trace(Root())

    assert list(module.state_dict()) == ["unused"]
    module.requires_grad_(False)
    with pytest.raises(GuardError, match=r"self\.unused\.requires_grad is True \(asked at"):
        module(X)


def test_shape_that_is_computed_is_no_guard():
    class Root(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.ones(3))

        def forward(self, x):
            return x * self.weight + self.weight.shape[0]

    module = fxplug.trace(Root())

    assert module.guards == ()
    module.weight = nn.Parameter(torch.ones(1))
    assert torch.equal(module(X), X + 1)


def test_shape_of_a_parameter_that_is_a_constant_is_guarded():
    root = Weighs(lambda module, x: x * 2 if module.weight.shape[0] > 2 else x * 3)
    module = fxplug.GraphModule(root, fxplug.Tracer(param_shapes_constant=True).trace(root))

    assert torch.equal(module(X), root(X))
    shrinks(module)
    with pytest.raises(GuardError, match=r"self\.weight\.shape == \(3,\)"):
        module(X)


def test_captures_for_other_modes_are_told_apart(mode):
    module = capture(nn.Sequential(Scales(), Scales()), mode, on_guard_failure="recapture")
    first, second = module.get_submodule("0"), module.get_submodule("1")

    first.eval()
    assert torch.equal(module(X), X * 6)
    second.eval()
    assert torch.equal(module(X), X * 9)
    second.train()
    assert torch.equal(module(X), X * 6)


def test_file_that_asks_for_something_else_is_refused(tmp_path):
    module = fxplug.trace(doubles_with_gradients)
    module.graph.state_guards = (StateGuard("torch.seed", (), 0),)
    fxplug.save(module, tmp_path / "module.fxp")

    with pytest.raises(
        fxplug.errors.StorageError, match=r"ask for 'torch\.seed', which programs cannot ask for"
    ):
        fxplug.load(tmp_path / "module.fxp")


# -- settings that the program changes


def leaves_a_dtype(x):
    torch.set_default_dtype(torch.float64)
    return x + torch.ones(3)


def leaves_a_device(x):
    torch.set_default_device("meta")
    return x * 2


def leaves_determinism(x):
    torch.use_deterministic_algorithms(True, warn_only=True)
    return x * 2


def leaves_a_precision(x):
    torch.set_float32_matmul_precision("high")
    return x * 2


def leaves_autocast(x):
    torch.set_autocast_enabled("cpu", True)
    return x * 2


def leaves_a_hook(x):
    torch.nn.modules.module.register_module_forward_hook(lambda module, args, result: result * 2)
    return x * 2


def leaves_gradients_off(x):
    torch.set_grad_enabled(False)
    return x * 2


def fails_with_a_dtype(x):
    torch.set_default_dtype(torch.float64)
    raise KeyError(x)


def around():
    return (
        torch.get_default_dtype(),
        torch.get_default_device(),
        torch.are_deterministic_algorithms_enabled(),
        torch.get_float32_matmul_precision(),
        torch.is_autocast_enabled("cpu"),
        torch.get_num_threads(),
        torch.is_anomaly_enabled(),
        torch.is_grad_enabled(),
        len(torch.nn.modules.module._global_forward_hooks),
    )


@pytest.mark.parametrize(
    "program",
    [
        leaves_a_dtype,
        leaves_a_device,
        leaves_determinism,
        leaves_a_precision,
        leaves_autocast,
        leaves_a_hook,
        leaves_gradients_off,
    ],
)
def test_program_that_leaves_a_setting_changed_is_refused_and_it_is_put_back(mode, program):
    before = around()
    with pytest.raises(fxplug.TraceError, match=rf"at .* in {program.__name__} .*\[FXP-T050\]$"):
        capture(program, mode)
    assert around() == before


def test_settings_are_put_back_if_the_program_fails(mode):
    before = around()
    with pytest.raises(KeyError):
        capture(fails_with_a_dtype, mode)
    assert around() == before


@pytest.mark.parametrize("name", ["set_num_threads", "set_detect_anomaly"])
def test_setting_by_which_nothing_is_computed_otherwise_is_told_of(mode, name):
    def program(x):
        if name == "set_num_threads":
            torch.set_num_threads(before[5] + 1)
        else:
            torch.autograd.set_detect_anomaly(True)
        return x * 2

    before = around()
    with pytest.warns(TraceWarning, match=rf"changed .* in program .*{name}.* does not do so"):
        module = capture(program, mode)
    assert around() == before
    assert torch.equal(module(X), X * 2)
    assert around() == before
    with pytest.raises(fxplug.TraceError, match=r"FXP-T067"):
        capture(program, mode, on_mutation="error")
    assert around() == before


def test_setting_that_is_put_back_by_the_program_is_captured(mode):
    def program(x):
        torch.set_default_dtype(torch.float64)
        made = torch.ones(3)
        torch.set_default_dtype(torch.float32)
        return x + made

    assert capture(program, mode)(X).dtype is torch.float64


def test_hook_of_all_modules_around_a_layer_is_refused(mode):
    class Root(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(3, 3)

        def forward(self, x):
            handle = torch.nn.modules.module.register_module_forward_hook(
                lambda module, args, result: result * 2
            )
            try:
                return self.layer(x)
            finally:
                handle.remove()

    before = around()
    with pytest.raises(fxplug.TraceError, match=r"or of all modules, are not those .*\[FXP-T010\]"):
        capture(Root(), mode)
    assert around() == before


# -- modes of the program's own


class Doubles(TorchFunctionMode):
    def __torch_function__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        return result * 2 if func in {torch.Tensor.add, torch.relu, torch.nn.functional.relu} else result


class DoublesOperators(TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        return result * 2 if func is torch.ops.aten.relu.default else result


class EntersAMode(nn.Module):
    def __init__(self, kind):
        super().__init__()
        self.kind = kind
        self.layer = nn.ReLU()

    def forward(self, x):
        with self.kind():
            return self.layer(x) + x.add(1)


@pytest.mark.parametrize("mode", ["shape", "value"])
def test_mode_of_calls_is_heard_inside_of_layers(mode):
    root = EntersAMode(Doubles)

    assert torch.equal(capture(root, mode)(X), root(X))
    assert torch.equal(capture(root, mode, check=False)(X + 1), root(X + 1))


@pytest.mark.parametrize(
    ("mode", "kind"), [("symbolic", Doubles), *((mode, DoublesOperators) for mode in MODES)]
)
def test_mode_of_the_program_that_does_not_hear_of_calls_is_refused(mode, kind):
    with pytest.raises(fxplug.TraceError, match=rf"enters {kind.__name__}, .* in forward .*\[FXP-T050\]$"):
        capture(EntersAMode(kind), mode, check=False)


@pytest.mark.parametrize("kind", [Doubles, DoublesOperators])
def test_mode_of_the_program_in_which_nothing_is_recorded_is_captured(kind):
    def program(x):
        with kind():
            number = 2
        return x * number

    assert torch.equal(fxplug.trace(program)(X), X * 2)


def test_mode_that_counts_operators_is_refused(mode):
    def program(x):
        with FlopCounterMode(display=False) as counter:
            result = x @ x.T
        return result, counter.get_total_flops()

    before = around()
    with pytest.raises(fxplug.TraceError, match=r"enters _FlopCounterMode, .* in program .*\[FXP-T050\]$"):
        capture(program, mode)
    assert around() == before


def test_error_that_a_wrong_count_leads_to_is_the_refusal():
    def program(x):
        with FlopCounterMode(display=False) as counter:
            result = x @ x.T
        return result / (1 // counter.get_total_flops())

    with pytest.raises(
        fxplug.TraceError, match=r"enters _FlopCounterMode, .* ZeroDivisionError.*\[FXP-T050\]$"
    ):
        fxplug.symbolic_trace(program)


def test_mode_of_torch_that_hears_operators_is_refused_where_none_runs():
    def program(x):
        with FakeTensorMode(allow_non_fake_inputs=True):
            return x @ x.T

    with pytest.raises(fxplug.TraceError, match=r"enters FakeTensorMode, .* in program .*\[FXP-T050\]$"):
        fxplug.symbolic_trace(program)


def test_modes_of_torch_and_modes_around_a_trace_are_nothing_of_the_program(mode):
    class Counts(TorchFunctionMode):
        def __torch_function__(self, func, types, args=(), kwargs=None):
            return func(*args, **(kwargs or {}))

    def program(x):
        with torch.device("cpu"):
            return x + torch.ones(3)

    with Counts():
        module = capture(program, mode)
    with Counts():
        assert torch.equal(module(X), X + 1)
