"""Verified passes: what each level refuses, what it accepts, and that it leaves no trace."""

from __future__ import annotations

import operator
import pickle
import random
import threading
import time

import pytest
import torch
from torch import nn

import fxplug
from fxplug.errors import ConfigError, PassError, VerificationError
from fxplug.passes import (
    LEVELS,
    Pass,
    PassRecord,
    PassResult,
    PassVerificationError,
    Pipeline,
    PipelineStep,
    UnverifiableError,
)

X = torch.linspace(-1, 1, 6).reshape(2, 3)
CHANGED = PassResult(modified=True)
UNCHANGED = PassResult(modified=False)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(3, 3)
        self.norm = nn.BatchNorm1d(3)
        self.scale = nn.Parameter(torch.full((3,), 2.0))

    def forward(self, x):
        return torch.relu(self.norm(self.first(x))) * self.scale


def running(function):
    class Running(Pass):
        def run(self, module, context):
            return function(module)

    return Running


def step(function, **record):
    name = function.__name__.strip("<>")
    return PipelineStep(
        name,
        PassRecord(name, running(function), "Test.", replaces_parameters=True, **record),
        provider="mine 1.0",
    )


def pipeline(*steps, verify, **options):
    entries = [entry if isinstance(entry, PipelineStep) else step(entry) for entry in steps]
    return Pipeline("test", entries, verify=verify, **options)


@pytest.fixture
def module():
    torch.manual_seed(0)
    return fxplug.symbolic_trace(Net())


def output_becomes(module, function, *args):
    """Put a call behind the result of a module."""
    output = module.graph.output_node()
    with module.graph.inserting_before(output):
        new = module.graph.call_function(function, (output.args[0], *args))
    output.args = (new,)
    return CHANGED


# -- passes, by the first level that refuses them


def nothing(module):
    return UNCHANGED


def adds_zero(module):
    return output_becomes(module, operator.add, 0.0)


def changes_shape(module):
    return output_becomes(module, torch.flatten)


def changes_dtype(module):
    return output_becomes(module, torch.Tensor.double)


def returns_a_tuple(module):
    output = module.graph.output_node()
    output.args = ((output.args[0],),)
    return CHANGED


def writes_to_the_input(module):
    (x,) = module.graph.find_nodes(op="placeholder")
    with module.graph.inserting_before(module.graph.output_node()):
        module.graph.call_method("zero_", (x,))
    return CHANGED


def updates_no_statistics(module):
    module.norm.track_running_stats = False
    module.norm.momentum = 0.5
    return CHANGED


def negates(module):
    return output_becomes(module, operator.neg)


def detaches(module):
    return output_becomes(module, torch.detach)


def scales_the_gradient(module):
    class Doubled(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.clone()

        @staticmethod
        def backward(ctx, gradient):
            return gradient * 2

    return output_becomes(module, Doubled.apply)


def fails_backward(module):
    class Failing(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.clone()

        @staticmethod
        def backward(ctx, gradient):
            raise ValueError("no way back")

    return output_becomes(module, Failing.apply)


def freezes_a_parameter(module):
    module.first.weight.requires_grad_(False)
    return CHANGED


def makes_a_buffer_of_a_parameter(module):
    scale = module.scale.detach()
    del module.scale
    module.register_buffer("scale", scale)
    return CHANGED


def makes_a_constant_of_a_parameter(module):
    node = next(node for node in module.graph.nodes if node.target == "scale")
    module.register_buffer("fixed", module.scale.detach().clone())
    node.target = "fixed"
    del module.scale
    return CHANGED


def remembers_the_result(module):
    """Replace the result by what it is for the example."""
    module.register_buffer("result", module(X).detach())
    output = module.graph.output_node()
    with module.graph.inserting_before(output):
        known = module.graph.get_attr("result")
        x = module.graph.find_nodes(op="placeholder")[0]
        zero = module.graph.call_function(operator.mul, (x.graph.call_method("sum", (output.args[0],)), 0))
        output.args = (module.graph.call_function(operator.add, (known, zero)),)
    return CHANGED


WRONG = [
    ("shape", changes_shape, r"its shape is \[6\] and should be \[2, 3\]"),
    ("shape", changes_dtype, "its dtype is torch.float64 and should be torch.float32"),
    ("shape", returns_a_tuple, "it is a tuple and should be a float32"),
    ("numeric", writes_to_the_input, r"in (reference inputs 1: )?input\[0\]"),
    ("numeric", updates_no_statistics, r"in (reference inputs 1: )?buffer norm.num_batches_tracked"),
    ("numeric", negates, "most of all at"),
    ("gradient", detaches, "its requires_grad is False and should be True"),
    ("gradient", scales_the_gradient, r"in (reference inputs 1: )?gradient of input 0"),
    ("gradient", fails_backward, "fails with gradients on the reference inputs: ValueError: no way back"),
    ("gradient", freezes_a_parameter, r"in parameter first.weight .*, it requires no gradient any more"),
    ("gradient", makes_a_buffer_of_a_parameter, "it is no parameter any more, but a buffer"),
    ("gradient", makes_a_constant_of_a_parameter, "it is gone, and no parameter that is new"),
]


def photograph(module):
    return {
        "graph": str(module.graph),
        "code": module.code,
        "state": {name: value.tolist() for name, value in module.state_dict().items()},
        "ids": [id(value) for value in (*module.parameters(), *module.buffers())],
        "trains": [value.requires_grad for value in module.parameters()],
        "gradients": [None if value.grad is None else value.grad.tolist() for value in module.parameters()],
        "attributes": [dict(vars(part)) for part in module.norm.modules()],
    }


class TestLevels:
    @pytest.mark.parametrize(
        ("level", "function", "text"), WRONG, ids=lambda value: getattr(value, "__name__", "")
    )
    def test_a_wrong_pass_is_refused_from_its_level_on(self, module, level, function, text):
        before = photograph(module)
        position = LEVELS.index(level)
        for refusing in LEVELS[position:]:
            with pytest.raises(PassVerificationError, match=text) as found:
                pipeline(function, verify=refusing).run(module, (X,))
            assert photograph(module) == before
            assert not found.value.check.passed
            assert f"Pass '{function.__name__}' of mine 1.0 changed what the module computes" in str(
                found.value
            )

    @pytest.mark.parametrize(
        ("level", "function", "text"), WRONG, ids=lambda value: getattr(value, "__name__", "")
    )
    def test_the_level_below_lets_it_pass(self, module, level, function, text):
        below = LEVELS[LEVELS.index(level) - 1]
        (report,) = pipeline(function, verify=below).run(module, (X,))
        assert report.result is CHANGED

    @pytest.mark.parametrize("level", LEVELS)
    @pytest.mark.parametrize("function", [nothing, adds_zero])
    def test_a_right_pass_is_accepted(self, module, level, function):
        (report,) = pipeline(function, verify=level).run(module, (X,))
        assert report.error == ""
        assert bool(report.verified) == (function is adds_zero and level != "structure")

    def test_the_report_says_what_was_compared(self, module):
        (report,) = pipeline(adds_zero, verify="numeric").run(module, (X,))
        assert report.verified == "numeric: 4 values compared, largest error 0"

    def test_remembering_the_result_is_found_by_other_inputs(self, module):
        module.eval()
        remembering = pipeline(remembers_the_result, verify="numeric")
        fresh = torch.randn(2, 3)
        with pytest.raises(PassVerificationError, match=r"reference inputs 2: output"):
            remembering.run(module, (X,), reference_inputs=[(fresh,)])
        with pytest.raises(PassVerificationError):
            pipeline(remembers_the_result, verify="paranoid").run(module, (X,))
        remembering.run(module, (X,))

    def test_reference_inputs_alone_are_enough(self, module):
        with pytest.raises(PassVerificationError):
            pipeline(negates, verify="numeric").run(module, reference_inputs=[(X,)])

    def test_the_first_node_that_differs_is_named_with_its_line(self, module):
        def wrong(module):
            (relu,) = [node for node in module.graph.nodes if node.target is torch.relu]
            relu.target = torch.sigmoid
            return CHANGED

        with pytest.raises(PassVerificationError) as found:
            pipeline(wrong, verify="numeric").run(module, (X,))
        assert "The first node whose value differs is 'relu' at " in str(found.value)
        assert "return torch.relu(self.norm(self.first(x))) * self.scale" in str(found.value)

    def test_a_module_that_fails_behind_a_pass(self, module):
        def breaks(module):
            return output_becomes(module, torch.reshape, (7,))

        with pytest.raises(
            PassVerificationError, match="the module fails on the reference inputs: RuntimeError"
        ):
            pipeline(breaks, verify="shape").run(module, (X,))

    def test_the_error_is_one_of_verification_and_of_passes(self, module):
        with pytest.raises(PassVerificationError) as found:
            pipeline(negates, verify="numeric").run(module, (X,))
        assert isinstance(found.value, PassError)
        assert isinstance(found.value, VerificationError)
        again = pickle.loads(pickle.dumps(found.value))
        assert str(again) == str(found.value)
        assert again.check.failures[0].path == "output"


class TestTolerance:
    @staticmethod
    def moving(amount):
        def moves(module):
            return output_becomes(module, operator.mul, 1 + amount)

        return moves

    @pytest.mark.parametrize(
        ("amount", "declared", "options", "passes"),
        [
            (1e-5, 0.0, {}, True),
            (1e-2, 0.0, {}, False),
            (1e-2, 0.02, {}, True),
            (1e-2, 0.005, {}, False),
            (1e-2, 0.0, {"rtol": 0.02, "atol": 0.0}, True),
            (1e-5, 0.0, {"rtol": 0.0, "atol": 1e-7}, False),
        ],
    )
    def test_what_is_allowed(self, module, amount, declared, options, passes):
        entry = step(self.moving(amount), tolerance=declared)
        run = pipeline(entry, verify="numeric", **options)
        if passes:
            run.run(module, (X,))
        else:
            with pytest.raises(PassVerificationError, match=r"allowed error"):
                run.run(module, (X,))

    def test_errors_that_add_up_are_refused(self, module):
        small = [step(self.moving(8e-3)) for _ in range(3)]
        with pytest.raises(PassVerificationError, match=r"when all passes that ran are taken together"):
            pipeline(*small, verify="numeric", rtol=1e-2, atol=0.0).run(module, (X,))

    def test_what_passes_declare_adds_up_too(self, module):
        declared = [step(self.moving(8e-3), tolerance=1e-2) for _ in range(3)]
        pipeline(*declared, verify="numeric").run(module, (X,))

    def test_a_pass_that_was_undone_does_not_count(self, module):
        steps = [
            step(self.moving(5e-2), tolerance=1e-2),
            step(self.moving(5e-3), tolerance=1e-2),
            step(self.moving(5e-3), tolerance=1e-2),
        ]
        reports = pipeline(*steps, verify="numeric", on_error="rollback").run(module, (X,))
        assert [bool(report.error) for report in reports] == [True, False, False]


class TestGradients:
    def test_folding_leaves_out_what_it_replaced(self):
        root = nn.Sequential(nn.Conv2d(1, 2, 1), nn.BatchNorm2d(2), nn.Conv2d(2, 2, 1)).eval()
        module = fxplug.symbolic_trace(root)
        record = next(entry for entry in fxplug.passes.BUILTIN_PASSES if entry.name == "fuse-conv-bn")
        fold = Pipeline("test", [PipelineStep("fuse-conv-bn", record)], verify="gradient")
        (report,) = fold.run(module, (torch.randn(2, 1, 4, 4),))
        assert report.result.modified
        assert report.verified.endswith("as the pass replaced them: 0.weight, 0.bias, 1.weight, 1.bias")

    def test_a_parameter_under_another_name_is_compared(self, module):
        def renames(module):
            weight = module.scale
            del module.scale
            module.other = weight
            for node in module.graph.nodes:
                if node.target == "scale":
                    node.target = "other"
            return CHANGED

        def renames_and_scales(module):
            renames(module)
            return scales_the_gradient(module)

        (report,) = pipeline(renames, verify="gradient").run(module, (X,))
        assert "left out" not in report.verified
        with pytest.raises(PassVerificationError, match=r"gradient"):
            pipeline(scales_the_gradient, verify="gradient").run(module, (X,))

    def test_inputs_that_are_written_to(self):
        def program(x):
            return x.mul_(2) + 1

        module = fxplug.symbolic_trace(program)
        pipeline(adds_zero, verify="gradient").run(module, (X.clone(),))
        with pytest.raises(PassVerificationError, match=r"gradient of input 0"):
            pipeline(scales_the_gradient, verify="gradient").run(module, (X.clone(),))


class TestUnverifiable:
    @pytest.mark.parametrize("level", LEVELS[1:])
    def test_without_inputs_nothing_runs(self, module, level):
        def never(module):
            raise AssertionError

        with pytest.raises(UnverifiableError, match=r"there are no inputs. Give example_inputs") as found:
            pipeline(never, verify=level, on_error="rollback").run(module)
        assert found.value.code == "FXP-V003"

    @pytest.mark.parametrize("level", LEVELS[1:])
    def test_a_module_that_fails_by_itself(self, module, level):
        with pytest.raises(
            UnverifiableError, match="fails on the reference inputs before the first pass: RuntimeError"
        ):
            pipeline(nothing, verify=level).run(module, (torch.ones(2, 5),))

    @pytest.mark.parametrize("level", LEVELS[2:])
    def test_a_module_that_does_not_repeat_itself(self, level):
        state = []

        def counting(x):
            state.append(1)
            return x + len(state)

        graph = fxplug.Graph()
        graph.output(graph.call_function(counting, (graph.placeholder("x"),)))
        module = fxplug.GraphModule(nn.Module(), graph)
        with pytest.raises(UnverifiableError, match=r"two runs of the module on the same inputs"):
            pipeline(nothing, verify=level).run(module, (X,))
        pipeline(adds_zero, verify="shape").run(module, (X,))

    @pytest.mark.parametrize("level", LEVELS)
    def test_random_numbers_alone_are_no_obstacle(self, level):
        module = fxplug.symbolic_trace(nn.Sequential(nn.Dropout(0.5), nn.Linear(3, 3)).train())
        pipeline(adds_zero, verify=level).run(module, (X,))

    def test_a_level_that_does_not_exist(self):
        with pytest.raises(ConfigError, match=r"at the level 'numbers'. Did you mean"):
            pipeline(nothing, verify="numbers")

    def test_a_tolerance_that_is_none(self):
        with pytest.raises(ConfigError, match=r"rtol = -1"):
            pipeline(nothing, verify="numeric", rtol=-1)


class TestKindsOfTensors:
    @pytest.mark.parametrize("level", LEVELS)
    def test_a_sparse_buffer_is_no_obstacle(self, level):
        class Sparse(nn.Module):
            def __init__(self):
                super().__init__()
                self.register_buffer("eye", torch.eye(2).to_sparse())
                self.linear = nn.Linear(3, 3)

            def forward(self, x):
                return torch.sparse.mm(self.eye, self.linear(x))

        def writes(module):
            module.eye.mul_(2)
            return CHANGED

        module = fxplug.symbolic_trace(Sparse())
        (report,) = pipeline(adds_zero, verify=level).run(module, (X,))
        assert report.result is CHANGED
        if level in LEVELS[2:]:
            with pytest.raises(PassVerificationError):
                pipeline(writes, verify=level).run(module, (X,))
            assert torch.equal(module.eye.to_dense(), torch.eye(2))

    @pytest.mark.parametrize("level", LEVELS)
    def test_operators_that_compile_functions_are_no_obstacle(self, level):
        class Branches(nn.Module):
            def forward(self, x):
                return torch.cond(x.sum() > 0, lambda x: x + 1, lambda x: x - 1, (x,))

        module = fxplug.symbolic_trace(Branches())
        pipeline(adds_zero, verify=level).run(module, (X,))

    @pytest.mark.parametrize("level", LEVELS)
    def test_integers_are_no_obstacle(self, level):
        module = fxplug.symbolic_trace(nn.Sequential(nn.Embedding(10, 4), nn.Linear(4, 2)))
        (report,) = pipeline(adds_zero, verify=level).run(module, (torch.tensor([[1, 2], [3, 9]]),))
        assert report.result is CHANGED


class TestTraces:
    @pytest.mark.parametrize("level", LEVELS)
    @pytest.mark.parametrize("function", [adds_zero, negates])
    def test_no_trace_is_left(self, module, level, function):
        module(X).sum().backward()
        module.norm.count = [1, {"a": 2}]
        before = photograph(module)
        modes = [part.training for part in module.modules()]
        states = torch.get_rng_state(), random.getstate()
        x = X.clone()
        pipeline(function, nothing, verify=level, on_error="rollback").run(module, (x,))

        after = photograph(module)
        for key in ("state", "ids", "trains", "gradients", "attributes"):
            assert after[key] == before[key]
        assert [part.training for part in module.modules()] == modes
        assert torch.equal(torch.get_rng_state(), states[0])
        assert random.getstate() == states[1]
        assert torch.equal(x, X)
        assert not x.requires_grad

    def test_generators_of_the_module_are_as_before(self):
        generator = torch.Generator().manual_seed(3)

        class Drawing(nn.Module):
            def __init__(self):
                super().__init__()
                self.generator = generator

            def forward(self, x):
                return x + torch.rand(3, generator=self.generator)

        graph = fxplug.Graph()
        graph.output(graph.call_module("drawing", (graph.placeholder("x"),)))
        module = fxplug.GraphModule({"drawing": Drawing()}, graph)
        before = generator.get_state()
        pipeline(adds_zero, verify="numeric").run(module, (X,))
        assert torch.equal(generator.get_state(), before)

    def test_an_interrupt_goes_through_with_the_module_restored(self, module):
        class Interrupting:
            armed = False

            def __call__(self, x):
                if self.armed:
                    raise KeyboardInterrupt
                return x.clone()

        call = Interrupting()

        def arms(module):
            module.scale.data.zero_()
            call.armed = True
            return output_becomes(module, call)

        before = photograph(module)
        with pytest.raises(KeyboardInterrupt):
            pipeline(arms, verify="numeric", on_error="rollback").run(module, (X,))
        assert photograph(module) == before


class TestParanoid:
    @staticmethod
    def through_numpy(module):
        module.scale.detach().numpy()[:] = 7

    @staticmethod
    def in_another_thread(module):
        def write():
            with torch.no_grad():
                module.scale.fill_(7)

        thread = threading.Thread(target=write)
        thread.start()
        thread.join()

    @staticmethod
    def through_a_pointer(module):
        import ctypes

        ctypes.memset(module.scale.data_ptr(), 1, 12)

    WRITES = ("through_numpy", "in_another_thread", "through_a_pointer")

    @pytest.mark.parametrize("write", WRITES)
    def test_a_write_past_the_operators_is_noticed_and_undone(self, module, write):
        def writes(module):
            getattr(self, write)(module)
            return UNCHANGED

        before = photograph(module)
        with pytest.raises(PassError, match=r"says that it changed nothing, but scale changed"):
            pipeline(writes, verify="paranoid").run(module, (X,))
        assert photograph(module) == before

    @pytest.mark.parametrize("write", WRITES)
    def test_it_is_undone_when_the_pass_fails(self, module, write):
        def writes(module):
            getattr(self, write)(module)
            raise ValueError("on purpose")

        before = photograph(module)
        with pytest.raises(PassError, match=r"on purpose"):
            pipeline(writes, verify="paranoid").run(module, (X,))
        assert photograph(module) == before

    def test_a_claim_of_idempotence_is_checked(self, module):
        entry = step(adds_zero, idempotent=True)
        before = photograph(module)
        with pytest.raises(
            PassError, match=r"of mine 1.0 claims to be idempotent, but a second run .* the graph again"
        ):
            pipeline(entry, verify="paranoid").run(module, (X,))
        assert photograph(module) == before
        pipeline(entry, verify="gradient").run(module, (X,))

    def test_a_claim_of_idempotence_that_holds(self, module):
        def once(module):
            return (
                UNCHANGED
                if module.graph.find_nodes(op="call_function", target=operator.add)
                else adds_zero(module)
            )

        (report,) = pipeline(step(once, idempotent=True), verify="paranoid").run(module, (X,))
        assert report.result.modified

    def test_the_second_run_has_the_limit_of_the_first(self, module):
        runs = []

        def restless(module):
            runs.append(1)
            deadline = time.monotonic() + 60  # So that the test ends without a limit, too.
            while len(runs) > 1 and time.monotonic() < deadline:
                torch.ones(1)
            return adds_zero(module) if len(runs) == 1 else UNCHANGED

        before = photograph(module)
        with pytest.raises(
            PassError, match=r"a second run on its own result fails: PassTimeoutError: .* stopped"
        ):
            pipeline(step(restless, idempotent=True), verify="paranoid", time_limit=2).run(module, (X,))
        assert photograph(module) == before

    def test_what_a_pass_preserves_is_checked(self, module):
        shapes = next(entry for entry in fxplug.passes.BUILTIN_PASSES if entry.name == "propagate-shapes")
        noted = PipelineStep("propagate-shapes", shapes)

        def moves(module):
            """Flatten and give the shape back, behind a node that is noted."""
            (mul,) = module.graph.find_nodes(op="call_function", target=operator.mul)
            with module.graph.inserting_after(mul):
                flat = module.graph.call_method("flatten", (mul,))
            with module.graph.inserting_after(flat):
                back = module.graph.call_method("reshape", (flat, (2, 3)))
            flat.meta.update(mul.meta)
            module.graph.output_node().args = (back,)
            return CHANGED

        run = pipeline(noted, step(moves, preserves=frozenset({"shapes"})), verify="paranoid")
        with pytest.raises(PassError, match=r"claims to preserve 'shapes', .* for 'flatten'"):
            run.run(module, (X,))
        pipeline(noted, step(moves), verify="paranoid").run(module, (X,))


class Holder(nn.Module):
    """Computes with tensors and numbers that nobody but it knows of."""

    def __init__(self):
        super().__init__()
        self.tensor = torch.ones(3)
        self.table = {"factor": 1.0, "tensors": [torch.ones(3)]}
        self.calls = []

    def forward(self, x):
        self.calls.append(len(self.calls))
        return x * self.tensor * self.table["factor"] * self.table["tensors"][0]


class TestChangesThatAreNotSaid:
    """What a pass that says modified=False did to attributes of modules that are no part of the graph."""

    @staticmethod
    def replaces(holder):
        holder.tensor = torch.zeros(3)

    @staticmethod
    def changes_a_number(holder):
        holder.table["factor"] = 2.0

    @staticmethod
    def replaces_in_a_list(holder):
        holder.table["tensors"][0] = torch.zeros(3)

    @staticmethod
    def writes_in_a_list(holder):
        holder.table["tensors"][0].zero_()

    @pytest.mark.parametrize(
        "change", ["replaces", "changes_a_number", "replaces_in_a_list", "writes_in_a_list"]
    )
    def test_those_that_matter_are_refused(self, change):
        module = self.captured()
        before = module(X)
        with pytest.raises(PassVerificationError, match=r"changed what the module computes"):
            pipeline(self.pass_that(change), verify="numeric").run(module, (X,))
        assert torch.equal(module(X), before)

    def test_those_that_do_not_matter_are_the_business_of_the_module(self):
        module = self.captured()

        def runs(module):
            module(X)
            return UNCHANGED

        (report,) = pipeline(runs, verify="numeric").run(module, (X,))
        assert report.verified.startswith("numeric: ")

    def test_a_module_that_is_as_it_was_does_not_run_again(self, module):
        (report,) = pipeline(nothing, verify="paranoid").run(module, (X,))
        assert report.verified == ""

    def test_another_order_of_modules(self):
        layers = nn.Sequential(nn.ReLU(), nn.Linear(3, 3))
        module = self.captured(layers)

        def turns(module):
            layers._modules["0"] = layers._modules.pop("0")
            return UNCHANGED

        with pytest.raises(PassError, match=r"changed nothing, but part\.1, part\.0 changed"):
            pipeline(turns, verify="structure").run(module)
        assert list(layers._modules) == ["0", "1"]

    @staticmethod
    def captured(part=None):
        graph = fxplug.Graph()
        graph.output(graph.call_module("part", (graph.placeholder("x"),)))
        return fxplug.GraphModule(nn.ModuleDict({"part": Holder() if part is None else part}), graph)

    def pass_that(self, change):
        def silent(module):
            getattr(self, change)(module.part)
            return UNCHANGED

        return silent


class TestThreads:
    def test_modules_that_draw_random_numbers_are_verified_in_several(self):
        def seconded(module):
            return adds_zero(module)

        modules = [fxplug.symbolic_trace(nn.Sequential(nn.Linear(3, 64), nn.Dropout())) for _ in range(60)]
        failures = []

        def work():
            while modules:
                try:
                    pipeline(seconded, verify="numeric").run(modules.pop(), (X,))
                except Exception as error:
                    failures.append(str(error))

        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not failures


class TestStopping:
    @staticmethod
    def fails(module):
        module.scale.data.zero_()
        raise ValueError("on purpose")

    def test_the_others_do_not_run(self, module):
        ran = []

        def later(module):
            ran.append(1)
            return UNCHANGED

        before = photograph(module)
        reports = pipeline(adds_zero, self.fails, later, later, verify="structure", on_error="stop").run(
            module
        )
        assert not ran
        assert [report.error for report in reports] == ["", "ValueError: on purpose", "", ""]
        assert [report.skipped for report in reports] == [
            "",
            "",
            "pass 'fails' failed",
            "pass 'fails' failed",
        ]
        assert [report.result is None for report in reports] == [False, True, True, True]
        assert reports[2].nodes_before == reports[2].nodes_after == len(module.graph.nodes)
        assert photograph(module)["state"] == before["state"]

    def test_failed_verification_stops_too(self, module):
        reports = pipeline(negates, nothing, verify="numeric", on_error="stop").run(module, (X,))
        assert reports[0].error.startswith("PassVerificationError: Pass 'negates' of mine 1.0 changed")
        assert reports[1].skipped == "pass 'negates' failed"

    @pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit])
    def test_an_interrupt_goes_through(self, module, kind):
        def interrupts(module):
            module.scale.data.zero_()
            raise kind

        before = photograph(module)
        with pytest.raises(kind):
            pipeline(interrupts, verify="structure", on_error="stop").run(module)
        assert photograph(module) == before

    def test_a_policy_that_does_not_exist(self):
        with pytest.raises(
            ConfigError, match=r"on_error='halt' for pipeline 'test'. Available: 'raise', 'rollback', 'stop'"
        ):
            pipeline(nothing, verify="structure", on_error="halt")
