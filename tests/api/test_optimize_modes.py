"""In which mode `optimize` captures, what became of guards, and that what shares its capture does the same."""

from __future__ import annotations

import copy
import importlib.util
import random
import subprocess
import sys
import warnings
from pathlib import Path

import pytest
import torch
from torch import nn

import fxplug
from fxplug.errors import ConfigError, GuardError, TraceError, TraceWarning
from fxplug.lower import BackendRecord, EagerBackend, Support
from fxplug.passes import Pass, PassRecord, PassResult
from fxplug.plugins import Config, PluginManager, TraceConfig

CHECKOUT = Path(__file__).resolve().parents[2]


def configured(**trace):
    return PluginManager(config=Config(trace=TraceConfig(**trace)), candidates=[], environ={})


def run(model, inputs, **options):
    return fxplug.optimize(model, inputs, **{"measure": False, "manager": configured(), **options})


class Recognizer(nn.Module):
    """Columns of a picture through an LSTM; it checks its input, and returns a dict."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3, padding=1)
        self.norm = nn.BatchNorm2d(4)
        self.cells = nn.LSTM(4 * 8, 6, batch_first=True)
        nn.init.uniform_(self.norm.running_mean)
        nn.init.uniform_(self.norm.running_var, 0.5, 1.5)

    def forward(self, x):
        assert x.shape[1] == 3, "pictures have three channels"
        features = self.norm(self.conv(x)).relu()
        columns = features.permute(0, 3, 1, 2).flatten(2)
        outputs, (last, _) = self.cells(columns)
        return {"outputs": outputs, "last": last[-1]}


class Checked(nn.Module):
    """Folds, and takes pictures of three channels only."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3)
        self.norm = nn.BatchNorm2d(4)
        nn.init.uniform_(self.norm.running_mean)

    def forward(self, x):
        y = self.norm(self.conv(x))
        return y * 2 if x.shape[0] > 1 else y * 3


class Plain(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3)
        self.norm = nn.BatchNorm2d(4)

    def forward(self, x):
        return self.norm(self.conv(x)).relu().flatten(1)


class AsksValues(nn.Module):
    def forward(self, x):
        return x + 1 if x.sum() > 0 else x - 1


PICTURES = (torch.randn(2, 3, 8, 10, generator=torch.Generator().manual_seed(1)),)
ONE = (PICTURES[0][:1],)


@pytest.fixture(autouse=True)
def seeded():
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(2)
        yield


# -- the default


def test_what_a_symbolic_capture_refuses_is_captured_on_the_inputs_with_guards_and_a_warning():
    model = Recognizer().eval()

    result = run(model, PICTURES)

    assert result.mode == "value"
    assert "x.shape[1] == 3" in [guard.text for guard in result.guards]
    assert result.guards == result.module.guards
    (warning,) = result.warnings
    assert warning.startswith(
        "Recognizer was captured on the example inputs, and is right for inputs that give its"
    )
    assert f"({len(result.guards)} guards, checked at each call)" in warning
    assert "FXP-T001" not in warning
    assert "test_optimize_modes.py" in warning
    assert "fuse-conv-bn" in [report.name for report in result.passes if report.result.modified]
    other = torch.randn(5, 3, 8, 4)
    torch.testing.assert_close(result.module(other), model(other))
    with pytest.raises(GuardError, match=r"x\.shape\[1\] == 3"):
        result.module(torch.randn(2, 4, 8, 10))


def test_what_can_be_captured_symbolically_is_and_takes_other_sizes():
    model = Plain().eval()

    result = run(model, PICTURES)

    assert (result.mode, result.guards, result.warnings) == ("symbolic", (), ())
    other = torch.randn(7, 3, 4, 4)
    torch.testing.assert_close(result.module(other), model(other))


def test_the_same_call_gives_the_same_graph_again():
    for model in (Recognizer().eval(), Plain().eval()):
        first, second = (run(model, PICTURES) for _ in range(2))

        assert first.graph_module.code == second.graph_module.code
        assert first.module.assumptions == second.module.assumptions


class AsksForTraces(nn.Module):
    """A symbolic capture takes the branch for traces, and is compared outside of one."""

    def __init__(self):
        super().__init__()
        self.factor = nn.Parameter(torch.ones(()))

    def forward(self, x):
        return x * self.factor * (2 if torch.fx._symbolic_trace.is_fx_tracing() else 3)


class AsksForGradients(nn.Module):
    """What is captured with gradients is compared without."""

    def __init__(self):
        super().__init__()
        self.factor = nn.Parameter(torch.ones(()))

    def forward(self, x):
        return x * self.factor * (2 if torch.is_grad_enabled() else 3)


def test_a_symbolic_capture_that_computes_something_else_is_given_up():
    result = run(AsksForTraces().eval(), PICTURES, passes=[])

    assert result.mode == "value"
    assert "What a symbolic capture computes is something else: output" in result.warnings[0]
    with torch.no_grad():
        assert result.module(*PICTURES).equal(PICTURES[0] * 3)
    with pytest.raises(fxplug.api.MismatchError):
        run(AsksForTraces().eval(), PICTURES, passes=[], manager=configured(check=False))


def test_models_that_raise_on_stand_ins_are_captured_on_the_inputs():
    class Through(nn.Module):
        def forward(self, x):
            return torch.Tensor.add_(x * 1, 1) * float(x.shape[0])

    result = run(Through(), PICTURES, passes=[])

    assert result.mode == "value"
    assert result.module(*PICTURES).equal((PICTURES[0] + 1) * 2)


def test_a_program_that_asks_for_gradients_is_captured_without_as_it_is_compared():
    for options in ({}, {"mode": "value"}, {"mode": "shape"}):
        result = run(AsksForGradients().eval(), PICTURES, passes=[], **options)

        assert "call the module inside of torch.no_grad()" in " ".join(result.warnings)
        with torch.no_grad():
            assert result.module(*PICTURES).equal(PICTURES[0] * 3)
        with pytest.raises(GuardError, match="is_grad_enabled"):
            result.module(*PICTURES)


def test_questions_about_values_are_guards_that_stop_other_values():
    result = run(AsksValues(), (torch.ones(3),), passes=["dead-code"])

    assert result.mode == "value"
    assert result.module(torch.full((5,), 2.0)).equal(torch.full((5,), 3.0))
    with pytest.raises(GuardError, match=r"x\.sum\(\) > 0"):
        result.module(-torch.ones(3))


def load(path, name):
    spec = importlib.util.spec_from_file_location(name, CHECKOUT / path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # Dataclasses look for the module that they are made in.
    spec.loader.exec_module(module)
    return module


OWN = load("benchmarks/own_models.py", "optimized_own_models").OWN_MODELS


@pytest.mark.parametrize("entry", OWN, ids=lambda entry: entry.name)
def test_models_of_many_kinds_are_optimised_without_choosing_a_mode(entry):
    model, inputs = entry.build().eval(), entry.inputs(2)

    result = run(model, inputs)

    assert result.check.passed
    assert result.mode in {"symbolic", "value"}
    assert (result.mode == "value") == any("example inputs" in text for text in result.warnings)


def test_what_may_be_left_out_is_guarded_to_be_there():
    class Masked(nn.Module):
        def forward(self, x, mask=None):
            if mask is not None:
                x = x * 2
            return nn.functional.scaled_dot_product_attention(x, x, x, attn_mask=mask)

    x, mask = torch.rand(1, 2, 4, 4), torch.zeros(4, 4)
    result = run(Masked().eval(), (x, mask))

    torch.testing.assert_close(result.module(x, mask), Masked()(x, mask))
    with pytest.raises(GuardError, match="mask is not None"):
        result.module(x)


# -- a mode that is asked for


@pytest.mark.parametrize("mode", ["symbolic", "shape", "value"])
def test_an_argument_chooses_the_mode_and_prevails(mode):
    other = "shape" if mode == "value" else "value"

    assert run(Plain().eval(), PICTURES, mode=mode).mode == mode
    assert run(Plain().eval(), PICTURES, mode=mode, manager=configured(mode=other)).mode == mode


@pytest.mark.parametrize("mode", ["symbolic", "shape", "value"])
def test_the_configuration_chooses_the_mode(mode):
    assert run(Plain().eval(), PICTURES, manager=configured(mode=mode)).mode == mode


def test_a_mode_that_is_asked_for_is_not_left():
    model = AsksValues()
    for options in ({"mode": "symbolic"}, {"manager": configured(mode="symbolic")}):
        with pytest.raises(TraceError) as caught:
            run(model, (torch.ones(3),), **options)
        assert caught.value.code == "FXP-T001"
    with pytest.raises(TraceError) as caught:
        run(model, (torch.ones(3),), mode="shape")
    assert caught.value.code == "FXP-T066"


@pytest.mark.parametrize(
    "call",
    [
        lambda model, mode: run(model, PICTURES, mode=mode),
        lambda model, mode: fxplug.plan(model, PICTURES, backend="eager", mode=mode, manager=configured()),
        lambda model, mode: fxplug.bisect(model, PICTURES, mode=mode, manager=configured()),
        lambda model, mode: fxplug.compare(model, model, PICTURES, mode=mode, manager=configured()),
        lambda model, mode: fxplug.cost(model, PICTURES, mode=mode, manager=configured()),
        lambda model, mode: fxplug.profile(model, PICTURES, mode=mode, manager=configured()),
    ],
    ids=["optimize", "plan", "bisect", "compare", "cost", "profile"],
)
def test_a_mode_that_does_not_exist_is_refused_with_the_nearest_name(call):
    with pytest.raises(TraceError, match=r"mode='valeu'\. Did you mean 'value'\?") as caught:
        call(Plain().eval(), "valeu")

    assert caught.value.code == "FXP-T064"


def test_other_settings_of_the_configuration_count():
    class Marks(nn.Module):
        def forward(self, x):
            self.last = 1
            return x + 1

    with pytest.raises(TraceError, match="last"):
        run(Marks(), PICTURES, manager=configured(on_mutation="error"))
    assert any("'last'" in text for text in run(Marks(), PICTURES, passes=[]).warnings)
    warns = run(Checked().eval(), PICTURES, manager=configured(on_guard_failure="warn"))
    with pytest.warns(fxplug.errors.GuardWarning, match=r"x\.shape\[0\] > 1"):
        warns.module(*ONE)


def counted(x):
    return torch.from_numpy(x.detach().numpy() * 2)


def test_functions_that_cannot_be_captured_stay_calls_where_the_configuration_says_so():
    pytest.importorskip("numpy")  # It is in the environment named capture.

    class Leaves(nn.Module):
        def forward(self, x):
            return counted(x) if x.shape[0] > 1 else x

    with pytest.raises(TraceError):
        run(Leaves(), PICTURES, passes=[])
    result = run(Leaves(), PICTURES, passes=[], manager=configured(autowrap=True))

    class Whole(nn.Module):
        def forward(self, x):
            return counted(x)

    assert run(Whole(), PICTURES, passes=[], manager=configured(autowrap=True)).mode == "value"
    assert any("counted stay calls" in text for text in result.module.assumptions)
    assert result.module(*PICTURES).equal(PICTURES[0] * 2)


# -- what runs instead


def test_the_original_runs_where_a_guard_does_not_hold_with_weights_that_no_pass_has_changed():
    for policy in ("eager", "recapture"):
        model = Checked().eval()
        expected = model(*ONE)
        result = run(model, PICTURES, manager=configured(on_guard_failure=policy))

        assert any(report.name == "fuse-conv-bn" and report.result.modified for report in result.passes)
        torch.testing.assert_close(result.module(*ONE), expected)
        with torch.no_grad():
            model.conv.weight.zero_()
        torch.testing.assert_close(result.module(*ONE), expected)
        torch.testing.assert_close(copy.deepcopy(result.module)(*ONE), expected)


def test_weights_that_a_pass_writes_in_place_are_not_those_of_what_runs_instead(manager_with):
    class Double(Pass):
        """Writes twice the weights, and halves the result."""

        def run(self, module, context):
            with torch.no_grad():
                for parameter in module.conv.parameters():
                    parameter.mul_(2)
            (node,) = module.graph.find_nodes(op="call_module", target="conv")
            with module.graph.inserting_after(node):
                half = module.graph.call_function(torch.mul, (node, 0.5))
            node.replace_all_uses_with(half, delete_user_cb=lambda user: user is not half)
            return PassResult(modified=True)

    manager = manager_with(
        Config(trace=TraceConfig(on_guard_failure="eager")),
        fxplug_register_passes=lambda: [PassRecord("double", Double, "Doubles.")],
    )
    model = Checked().eval()
    expected = model(*ONE)
    result = run(model, PICTURES, passes=["double"], manager=manager)

    torch.testing.assert_close(result.module(*PICTURES), model(*PICTURES))
    torch.testing.assert_close(result.module(*ONE), expected)


# -- graph modules


class Some(EagerBackend):
    """Takes convolutions alone."""

    def supports(self, node, context):
        return Support("conv" in node.name, "no convolution")


def test_a_graph_module_keeps_its_guards_and_is_not_captured_again():
    class Ranked(Plain):
        def forward(self, x):
            assert x.dim() == 4
            with torch.autocast("cpu", enabled=False):
                return super().forward(x)

    model = Ranked().eval()
    captured = fxplug.trace(model, PICTURES, manager=configured())
    regions = [node.region for node in captured.graph.nodes]

    result = run(captured, PICTURES)

    assert (result.mode, result.warnings) == ("", ())
    assert [guard.text for guard in result.guards] == [guard.text for guard in captured.guards]
    assert any(node.region for node in result.graph_module.graph.nodes)
    assert [node.region for node in captured.graph.nodes] == regions
    with pytest.raises(GuardError, match=r"x\.dim\(\) == 4"):
        result.module(torch.randn(3, 8, 10))


def test_a_graph_module_with_hooks_is_captured_with_them(manager_with):
    manager = manager_with(fxplug_register_backends=lambda: [BackendRecord("some", Some, "Convolutions.")])
    captured = fxplug.symbolic_trace(Plain().eval())
    captured.register_forward_hook(lambda module, args, output: output * 2)

    result = run(captured, PICTURES, backend="some", manager=manager)

    assert 0 < len(result.lowering.partitions) < len(result.lowering.nodes)
    torch.testing.assert_close(result.module(*PICTURES), captured(*PICTURES))


def test_a_graph_module_with_guards_and_hooks_is_captured_on_the_inputs_with_both():
    captured = fxplug.trace(Checked().eval(), PICTURES)
    captured.register_forward_hook(lambda module, args, output: output * 2)

    result = run(captured, PICTURES, passes=[])

    assert result.mode == "value"
    torch.testing.assert_close(result.module(*PICTURES), captured(*PICTURES))
    with pytest.raises(GuardError, match=r"x\.shape\[0\] > 1"):
        result.module(torch.randn(1, 3, 8, 8))


def test_an_optimised_module_can_be_optimised_again():
    once = run(Checked().eval(), PICTURES)
    twice = run(once.module, PICTURES)

    assert [guard.text for guard in twice.guards] == [guard.text for guard in once.guards]
    with pytest.raises(GuardError):
        twice.module(*ONE)


# -- guards go along


@pytest.mark.parametrize("backend", ["eager", "some"])
def test_guards_stay_when_a_backend_runs_the_module(manager_with, backend):
    manager = manager_with(fxplug_register_backends=lambda: [BackendRecord("some", Some, "Convolutions.")])
    model = Checked().eval()

    result = run(model, PICTURES, backend=backend, manager=manager)

    torch.testing.assert_close(result.module(*PICTURES), model(*PICTURES))
    assert [guard.text for guard in result.module.guards] == [guard.text for guard in result.guards]
    with pytest.raises(GuardError, match=r"x\.shape\[0\] > 1"):
        result.module(*ONE)


def test_guards_stay_in_copies_and_files_also_in_a_fresh_process(tmp_path):
    model = Checked().eval()
    result = run(model, PICTURES)
    for module in (copy.copy(result.module), copy.deepcopy(result.module)):
        with pytest.raises(GuardError, match=r"x\.shape\[0\] > 1"):
            module(*ONE)
    fxplug.save(result.module, tmp_path / "module.fxplug")
    torch.save((PICTURES[0], model(*PICTURES)), tmp_path / "values.pt")
    script = f"""
import torch
import fxplug

module = fxplug.load({str(tmp_path / "module.fxplug")!r})
given, expected = torch.load({str(tmp_path / "values.pt")!r})
torch.testing.assert_close(module(given), expected)
try:
    module(given[:1])
except fxplug.GuardError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stderr
    assert "it was captured for x.shape[0] > 1" in done.stdout


def test_guards_stay_in_exported_python(tmp_path, monkeypatch):
    model = Checked().eval()
    result = run(model, PICTURES, passes=["fuse-conv-bn"])
    fxplug.export_python(result.module, tmp_path / "exported_checked")
    monkeypatch.syspath_prepend(str(tmp_path))
    import exported_checked

    module = exported_checked.load()

    torch.testing.assert_close(module(*PICTURES), model(*PICTURES))
    with pytest.raises(ValueError, match=r"x\.shape\[0\] > 1"):
        module(*ONE)


# -- what shares the capture


def test_a_plan_is_one_of_the_graph_that_is_lowered():
    for model in (Recognizer().eval(), Plain().eval()):
        result = run(model, PICTURES, backend="eager")
        planned = fxplug.plan(model, PICTURES, backend="eager", manager=configured())

        assert [node.name for node in planned.nodes] == [node.name for node in result.lowering.nodes]
    with pytest.raises(TraceError):
        fxplug.plan(Recognizer().eval(), PICTURES, backend="eager", mode="symbolic", manager=configured())


def test_a_plan_needs_no_data():
    with torch.device("meta"):
        model = Plain().eval()
        planned = fxplug.plan(
            model, (torch.empty(2, 3, 8, 8),), backend="eager", passes=[], manager=configured()
        )

    assert planned.coverage == 1


def test_a_plan_names_inputs_that_the_model_does_not_take():
    with pytest.raises(fxplug.api.ExampleError, match="Cannot run Plain on the example inputs"):
        fxplug.plan(Plain().eval(), (torch.randn(2, 4, 8, 8),), backend="eager", manager=configured())


def test_a_model_that_asks_is_bisected_and_compared():
    model = Checked().eval()

    found = fxplug.bisect(model, PICTURES, manager=configured())
    same = fxplug.compare(model, run(model, PICTURES).module, PICTURES, manager=configured())

    assert not found.found
    assert "captured on the example inputs" in found.notes[0]
    assert same.passed
    for call in (
        lambda: fxplug.bisect(model, PICTURES, mode="symbolic", manager=configured()),
        lambda: fxplug.compare(model, model, PICTURES, manager=configured(mode="symbolic")),
    ):
        with pytest.raises(TraceError) as caught:
            call()
        assert caught.value.code == "FXP-T001"


def test_costs_and_profiles_follow_the_mode():
    for call in (fxplug.cost, fxplug.profile):
        assert call(AsksValues(), (torch.ones(3),), manager=configured()).nodes
        with pytest.raises(TraceError) as caught:
            call(AsksValues(), (torch.ones(3),), mode="symbolic", manager=configured())
        assert caught.value.code == "FXP-T001"


def test_a_failed_symbolic_attempt_leaves_no_mark_and_tells_once():
    class Busy(nn.Module):
        def __init__(self):
            super().__init__()
            self.seen = []

        def forward(self, x):
            self.seen.append(x.shape[0])
            self.last = 1
            return x + 1 if x.shape[0] > 1 else x

    model = Busy()
    with warnings.catch_warnings():
        warnings.simplefilter("error", TraceWarning)
        result = run(model, PICTURES, passes=[])

    assert (model.seen, hasattr(model, "last")) == ([], False)
    assert result.mode == "value"
    assert len([text for text in result.warnings if "'last'" in text]) == 1


def test_what_a_model_keeps_in_containers_is_left_and_tensors_there_are_updated_by_the_result():
    class Keeps(nn.Module):
        def __init__(self):
            super().__init__()
            self.seen = {"calls": []}
            self.cache = [torch.zeros(1)]

        def forward(self, x):
            self.seen["calls"].append(1)
            self.cache[0].add_(1)
            return x * self.cache[0] if x.shape[0] > 1 else x

    model, x = Keeps(), torch.ones(2, 1)
    result = run(model, (x,), passes=[])

    assert (model.seen, model.cache) == ({"calls": []}, [torch.zeros(1)])
    assert [float(result.module(x)[0]) for _ in range(2)] == [1.0, 2.0]


def test_a_mask_in_a_batch_is_guarded_where_the_program_asks_for_it():
    class Batch(nn.Module):
        def forward(self, x, batch):
            if batch["mask"] is None:
                return -x
            return nn.functional.scaled_dot_product_attention(x, x, x, batch["mask"])

    x = torch.rand(2, 4)
    result = run(Batch(), (x, {"mask": torch.rand(2, 2)}))

    assert result.mode == "value"
    with pytest.raises(GuardError, match="batch_mask is not None"):
        result.module(x, {"mask": None})


def test_something_else_than_a_module_is_still_refused():
    with pytest.raises(ConfigError):
        run(torch.relu, PICTURES)


def test_what_a_program_keeps_for_others_to_look_at_is_no_state():
    class Keeps(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(4, 4)
            self.seen = None

        def forward(self, x):
            self.seen = self.linear(x)
            return self.seen.relu()

    model, x = Keeps().eval(), (torch.randn(2, 4),)
    result = run(model, x)

    assert any("'seen'" in text and "put back" in text for text in result.warnings)
    assert model.seen is None
    assert result.module(*x).equal(model(*x))

    class Counts(Keeps):
        def __init__(self):
            super().__init__()
            self.seen = torch.zeros(())

        def forward(self, x):
            self.seen = self.seen + 1
            return self.linear(x)

    with pytest.raises(fxplug.FxplugError, match="seen"):
        run(Counts().eval(), x)


def test_a_model_that_no_mode_captures_is_run_no_more_than_is_needed(count_calls):
    class Drawing(nn.Module):
        def forward(self, x):
            count_calls()
            return x * random.random()

    with pytest.raises(TraceError) as refused:
        fxplug.optimize(Drawing(), (torch.ones(2),), measure=False)

    assert refused.value.code == "FXP-T053"
    assert count_calls.calls == 2  # As it is, and for the symbolic capture.
