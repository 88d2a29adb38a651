"""New weights of the original are loaded into a transformed module: what was folded is folded again."""

from __future__ import annotations

import copy
import operator
import pickle

import pytest
import torch
from torch import nn

import fxplug
from fxplug.errors import PassError
from fxplug.passes import BUILTIN_PASSES, Pass, PassContext, PassRecord, PassResult, Pipeline, PipelineStep

RECORDS = {record.name: record for record in BUILTIN_PASSES}
X = torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(0))


class Block(nn.Module):
    def __init__(self, channels, *, bias=False, affine=True):
        super().__init__()
        self.conv = nn.Conv2d(channels, channels, 3, padding=1, bias=bias)
        self.bn = nn.BatchNorm2d(channels, affine=affine)

    def forward(self, x):
        return torch.relu(x + self.bn(self.conv(x)))


class Net(nn.Module):
    """A small residual network with all that convolutions and batch norms may have or lack."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 4, 3, bias=False), nn.BatchNorm2d(4))
        self.blocks = nn.Sequential(Block(4), Block(4, bias=True), Block(4, affine=False))
        self.head = nn.Linear(4, 5)

    def forward(self, x):
        return self.head(self.blocks(self.stem(x)).mean((2, 3)))


def model(seed, kind=Net):
    """Return a model with random weights and statistics."""
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.default_generator.manual_seed(seed)
        net = kind()
        for part in net.modules():
            if isinstance(part, nn.BatchNorm2d):
                part.running_mean.normal_()
                part.running_var.uniform_(0.5, 2)
                if part.affine:
                    part.weight.uniform_(0.5, 2)
                    part.bias.normal_()
    return net.eval()


def step(function, name="step", **declared):
    class Step(Pass):
        def run(self, module, context):
            result = function(module, context)
            return result if isinstance(result, PassResult) else PassResult(modified=True)

    record = PassRecord(name, Step, "Test.", **declared)
    return PipelineStep(name, record, provider="demo 1.2")


def builtin(name):
    return PipelineStep(name, RECORDS[name])


FUSE = builtin("fuse-conv-bn")


def transformed(net, *steps):
    module = fxplug.symbolic_trace(net)
    Pipeline("test", steps or (FUSE,)).run(module, (X,))
    return module


def scale_head(module, context):
    """Write a parameter in place, and say how."""

    def double(weight):
        return weight * 2

    with torch.no_grad():
        module.head.weight.copy_(double(module.head.weight))
    context.derive(module.head.weight, (module.head.weight,), double)


def output(module):
    with torch.no_grad():
        return module(X)


def values_of(module):
    return {name: value.clone() for name, value in module.state_dict().items()}


class TestLoading:
    def test_weights_that_were_trained_elsewhere(self):
        module, trained = transformed(model(1)), model(2)
        assert not torch.allclose(output(module), output(trained))

        found = fxplug.load_original_state_dict(module, trained.state_dict())

        assert found == ([], [])
        assert torch.equal(output(module), output(transformed(trained)))
        assert torch.allclose(output(module), output(trained), atol=1e-5)
        assert not module.graph.find_nodes(op="call_module", target="stem.1")

    def test_two_passes_one_behind_the_other(self):
        def negate_stem(module, context):
            conv = module.get_submodule("stem.0")
            for tensor in (conv.weight, conv.bias):
                with torch.no_grad():
                    tensor.neg_()
                context.derive(tensor, (tensor,), torch.neg)

        steps = (FUSE, step(negate_stem, "negate"), step(scale_head, "scale"))
        module, trained = transformed(model(1), *steps), model(2)
        fxplug.load_original_state_dict(module, trained.state_dict())
        assert torch.equal(output(module), output(transformed(trained, *steps)))
        sources = "stem.0.weight, stem.1.running_var, stem.1.weight"
        passes = "fuse-conv-bn of fxplug, then negate of demo 1.2"
        assert str(fxplug.state_origins(module)["stem.0.weight"]) == f"neg({sources}) by {passes}"

    def test_two_batch_norms_behind_one_convolution(self):
        class Twice(nn.Sequential):
            def __init__(self):
                super().__init__(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.BatchNorm2d(4))

        module, trained = transformed(model(1, Twice)), model(2, Twice)
        assert len(module.graph.find_nodes(op="call_module")) == 1
        fxplug.load_original_state_dict(module, trained.state_dict())
        assert torch.equal(output(module), output(transformed(trained)))

    def test_a_tensor_that_has_another_path(self):
        def move(module, _):
            module.add_submodule("deep.end", module.head)
            module.graph.find_nodes(op="call_module", target="head")[0].target = "deep.end"
            module.delete_submodule("head")

        module, trained = transformed(model(1), FUSE, step(move)), model(2)
        assert fxplug.state_origins(module)["deep.end.weight"].keys == ("head.weight",)
        fxplug.load_original_state_dict(module, trained.state_dict())
        assert torch.equal(output(module), output(transformed(trained)))

    def test_tied_weights(self):
        class Tied(Net):
            def __init__(self):
                super().__init__()
                self.blocks[1].conv.weight = self.blocks[0].conv.weight

        module, trained = transformed(model(1, Tied), builtin("dead-code")), model(2, Tied)
        state = trained.state_dict()
        fxplug.load_original_state_dict(module, state)
        assert torch.equal(output(module), output(trained))
        first, second = (module.get_submodule(f"blocks.{number}.conv") for number in (0, 1))
        assert first.weight is second.weight
        state["blocks.1.conv.weight"] = state["blocks.1.conv.weight"] + 1
        with pytest.raises(PassError, match="are one tensor, and would get different values"):
            fxplug.load_original_state_dict(module, state)
        assert torch.equal(output(module), output(trained))

    def test_tied_weights_of_which_passes_have_made_several(self):
        class Tied(Net):
            def __init__(self):
                super().__init__()
                self.blocks[1].conv.weight = self.blocks[0].conv.weight

        module, trained = transformed(model(1, Tied)), model(2, Tied)
        first, second = (module.get_submodule(f"blocks.{number}.conv") for number in (0, 1))
        assert first.weight is not second.weight
        before, state = output(module), trained.state_dict()
        other = {**state, "blocks.1.conv.weight": state["blocks.1.conv.weight"] + 1}
        for strict in (True, False):
            with pytest.raises(
                PassError, match=r"'blocks\.0\.conv\.weight' and 'blocks.1.conv.weight' are one tensor"
            ):
                fxplug.load_original_state_dict(module, other, strict)
        assert torch.equal(output(module), before)

        del state["blocks.0.conv.weight"]
        for loaded in (module, pickle.loads(pickle.dumps(module))):
            found = fxplug.load_original_state_dict(loaded, state, strict=False)
            assert found.missing_keys == ["blocks.0.conv.weight"]
            assert torch.equal(output(loaded), output(transformed(trained)))

    @pytest.mark.parametrize(
        ("change", "text"),
        [
            (lambda state: None, "it is a NoneType"),
            (
                lambda state: {**state, "head.weight": state["head.weight"].to("meta")},
                "'head.weight' has no data",
            ),
            (lambda state: {**state, "head.weight": state["head.weight"] * 1j}, "'head.weight' is complex"),
        ],
    )
    def test_what_is_no_value_is_refused_by_name(self, change, text):
        module = transformed(model(1))
        before = output(module)
        with pytest.raises(PassError, match=text):
            fxplug.load_original_state_dict(module, change(model(2).state_dict()))
        assert torch.equal(output(module), before)

    def test_values_are_written_into_the_tensors_that_are_there(self):
        module, trained = transformed(model(1)), model(2)
        optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
        before = [id(value) for value in module.parameters()]
        fxplug.load_original_state_dict(module, trained.state_dict())
        assert [id(value) for value in module.parameters()] == before
        module(X).sum().backward()
        optimizer.step()
        assert not torch.allclose(output(module), output(trained))

    def test_a_checkpoint_of_another_dtype_is_folded_in_the_original_one(self):
        module, trained = transformed(model(1)), model(2)
        fxplug.load_original_state_dict(module, {k: v.double() for k, v in trained.state_dict().items()})
        assert torch.equal(output(module), output(transformed(trained)))

    def test_a_module_that_was_converted_meanwhile(self):
        module, trained = transformed(model(1)).double(), model(2)
        fxplug.load_original_state_dict(module, trained.state_dict())
        assert module.head.weight.dtype == torch.float64
        expected = transformed(trained).double()
        assert torch.equal(module(X.double()), expected(X.double()))

    @pytest.mark.parametrize(
        "twin", [copy.deepcopy, copy.copy, lambda module: pickle.loads(pickle.dumps(module))]
    )
    def test_copies_know_it_too(self, twin):
        module, trained = twin(transformed(model(1), FUSE, step(scale_head))), model(2)
        fxplug.load_original_state_dict(module, trained.state_dict())
        assert torch.equal(output(module), output(transformed(trained, FUSE, step(scale_head))))

    def test_the_result_of_optimize(self):
        result, trained = fxplug.optimize(model(1), (X,), measure=False), model(2)
        fxplug.load_original_state_dict(result.graph_module, trained.state_dict())
        assert torch.allclose(output(result.module), output(trained), atol=1e-5)

    def test_a_pipeline_that_changed_nothing(self):
        module, trained = transformed(model(1), builtin("dead-code")), model(2)
        fxplug.load_original_state_dict(module, trained.state_dict())
        assert torch.equal(output(module), output(trained))

    def test_constants_of_the_program_stay(self):
        class Shifted(Net):
            def __init__(self):
                super().__init__()
                self.register_buffer("shift", torch.full((5,), 7.0), persistent=False)

            def forward(self, x):
                return super().forward(x) + self.shift

        module, trained = transformed(model(1, Shifted)), model(2, Shifted)
        fxplug.load_original_state_dict(module, trained.state_dict())
        assert torch.allclose(output(module), output(trained), atol=1e-5)


class TestPieces:
    def test_without_strict_what_is_not_given_stays(self):
        module, trained = transformed(model(1)), model(2)
        before = values_of(module)
        state = {name: trained.state_dict()[name] for name in ("head.weight",)} | {"other": torch.ones(1)}
        found = fxplug.load_original_state_dict(module, state, strict=False)
        assert found.unexpected_keys == ["other"]
        assert "stem.1.running_var" in found.missing_keys
        assert "head.weight" not in found.missing_keys
        after = values_of(module)
        assert [name for name in after if not torch.equal(after[name], before[name])] == ["head.weight"]

    def test_what_is_made_of_several_needs_all_of_them(self):
        module, state = transformed(model(1)), model(2).state_dict()
        del state["stem.1.running_var"]
        before = values_of(module)
        with pytest.raises(PassError, match=r"'stem\.0\.weight' is made of .*lacks 'stem\.1\.running_var'"):
            fxplug.load_original_state_dict(module, state, strict=False)
        assert all(torch.equal(value, before[name]) for name, value in values_of(module).items())


class TestRefusals:
    def refused(self, module, state, pattern, code="FXP-P030", **options):
        before = values_of(module)
        with pytest.raises(PassError, match=pattern) as caught:
            fxplug.load_original_state_dict(module, state, **options)
        assert caught.value.code == code
        assert all(torch.equal(value, before[name]) for name, value in values_of(module).items())
        return str(caught.value)

    def test_keys_that_are_missing_and_others(self):
        state = model(2).state_dict()
        del state["head.bias"]
        state["tail.bias"] = torch.ones(3)
        text = self.refused(transformed(model(1)), state, "it lacks 'head.bias'; it has 'tail.bias', which")
        assert "Nothing was loaded" in text

    def test_keys_of_the_transformed_module_are_not_those_of_the_original(self):
        module = transformed(model(1))
        self.refused(module, module.state_dict(), r"it lacks 'stem\.1\.weight'.*it has 'stem\.0\.bias'")

    def test_shapes(self):
        state = model(2).state_dict()
        state["head.bias"] = torch.ones(6)
        self.refused(
            transformed(model(1)), state, r"'head\.bias' has the shape \[6\], and the original had \[5\]"
        )
        # Also where nothing of the module depends on it any more.
        state = model(2).state_dict() | {"stem.1.num_batches_tracked": torch.ones(2)}
        self.refused(transformed(model(1)), state, r"'stem\.1\.num_batches_tracked' has the shape \[2\]")

    def test_what_is_no_tensor(self):
        state = model(2).state_dict() | {"head.bias": 3}
        self.refused(transformed(model(1)), state, r"'head\.bias' is a int, not a tensor")

    def test_a_module_on_which_no_pipeline_has_run(self):
        module = fxplug.symbolic_trace(model(1))
        self.refused(module, model(2).state_dict(), "no pipeline has run on this module")
        RECORDS["fuse-conv-bn"].factory().run(module, PassContext())
        self.refused(module, model(2).state_dict(), "no pipeline has run on this module")

    def test_what_is_no_graph_module(self):
        self.refused(
            model(1), model(2).state_dict(), "Cannot load original weights into a Net: it is no graph"
        )

    @pytest.mark.parametrize(
        "change",
        [
            lambda module: module.head.weight.data.mul_(2),
            lambda module: module.head.weight.data.mul_(
                1
            ),  # Of other weights it might have changed something.
            lambda module: setattr(module.head, "weight", nn.Parameter(module.head.weight.detach())),
            lambda module: setattr(module.head.weight, "data", module.head.weight.detach().clone()),
            lambda module: module.add_submodule("head", copy.deepcopy(module.head)),
        ],
        ids=["values", "same-values", "view", "data", "copied"],
    )
    def test_a_tensor_of_which_the_pass_does_not_say_how_it_was_made(self, change):
        module = transformed(model(1), FUSE, step(lambda module, _: change(module), "secret"))
        text = self.refused(
            module,
            model(2).state_dict(),
            r"'head\.weight' was made or changed by pass secret of demo 1\.2, which does not say how",
            "FXP-P031",
        )
        assert "context.derive" in text
        # In pieces, too.
        self.refused(module, {}, r"head\.weight", "FXP-P031", strict=False)

    def test_what_is_derived_from_it_is_as_unknown(self):
        def secret(module, _):
            module.head.weight.data.mul_(2)

        module = transformed(model(1), step(secret, "secret"), step(scale_head, "scale"))
        self.refused(module, model(2).state_dict(), "changed by pass secret of demo", "FXP-P031")

    @pytest.mark.parametrize("is_parameter", [True, False])
    def test_new_tensors_outside_of_the_state_dict(self, is_parameter):
        def bake(module, _):
            total = module.head.weight.detach().sum()
            if is_parameter:
                module.register_buffer("baked", total, persistent=False)
            else:
                module.head.baked = total

        module = transformed(model(1), step(bake, "bake"))
        self.refused(module, model(2).state_dict(), r"baked' was made or changed by pass bake", "FXP-P031")

    def test_what_is_made_from_a_constant(self):
        class Constant(Net):
            def __init__(self):
                super().__init__()
                self.register_buffer("factor", torch.full((5, 1), 2.0), persistent=False)

        def fold(module, context):
            module.register_buffer("factor", module.factor)
            weight = nn.Parameter(module.head.weight.detach() * module.factor)
            context.derive(weight, (module.head.weight, module.factor), torch.mul)
            module.head.weight = weight

        module = fxplug.symbolic_trace(model(1, Constant))
        module.register_buffer("factor", torch.full((5, 1), 2.0), persistent=False)
        Pipeline("test", [step(fold, "fold", replaces_parameters=True)]).run(module)
        state = fxplug.symbolic_trace(model(2, Constant)).state_dict()
        self.refused(module, state, "from a tensor that no state dict holds", "FXP-P031")

    def test_what_was_added_outside_of_a_pipeline(self):
        module = transformed(model(1))
        module.register_parameter("extra", nn.Parameter(torch.ones(1)))
        self.refused(module, model(2).state_dict(), "'extra' was added outside of a pipeline", "FXP-P031")
        Pipeline("test", [builtin("dead-code"), step(scale_head)]).run(module)
        self.refused(
            module, model(2).state_dict(), "'extra' was made .* by pass somebody outside", "FXP-P031"
        )

    def test_a_recipe_that_fails_on_the_new_weights(self):
        def cut(module, context):
            weight = nn.Parameter(module.head.weight.detach()[:, :2])
            module.head.weight = weight
            context.derive(weight, (module.head.bias,), lambda bias: bias.reshape(7, 7))

        module = transformed(model(1), step(cut, "cut", replaces_parameters=True))
        self.refused(
            module, model(2).state_dict(), r"'head\.weight' could not be made from 'head\.bias' by '<lambda>'"
        )

    def test_a_recipe_that_gives_another_shape(self):
        def lie(module, context):
            context.derive(module.head.weight, (module.head.bias,), lambda bias: bias * 2)

        module = transformed(model(1), step(lie))
        self.refused(
            module, model(2).state_dict(), r"'head\.weight' has the shape \[5, 4\], and its new value \[5\]"
        )

    def test_nothing_is_half_loaded_when_writing_fails(self, monkeypatch):
        module = transformed(model(1))
        written = []
        copy_into = torch.Tensor.copy_

        def fail_later(tensor, value):
            written.append(tensor)
            if len(written) == 3:
                raise RuntimeError("no memory")
            return copy_into(tensor, value)

        before = values_of(module)
        monkeypatch.setattr(torch.Tensor, "copy_", fail_later)
        with pytest.raises(RuntimeError, match="no memory"):
            fxplug.load_original_state_dict(module, model(2).state_dict())
        monkeypatch.undo()
        assert all(torch.equal(value, before[name]) for name, value in values_of(module).items())


class TestDerive:
    def derive(self, function, sources=lambda module: (module.head.weight,)):
        def work(module, context):
            context.derive(module.head.weight, sources(module), function)

        return transformed(model(1), step(work, "work"))

    @pytest.mark.parametrize(
        ("function", "found"),
        [
            (lambda weight: weight if weight.sum() > 0 else -weight, "condition|value"),
            (
                lambda weight: weight + torch.ones(5, 4),
                "it uses a tensor or module that is none of its arguments",
            ),
            (lambda weight: 3, "it returns a int that does not depend on its arguments"),
            (lambda weight: 1 / 0, "ZeroDivisionError"),
            (lambda: 1, "TypeError"),
        ],
        ids=["condition", "tensor", "number", "error", "arity"],
    )
    def test_a_function_that_cannot_be_a_recipe(self, function, found):
        with pytest.raises(PassError, match=found) as caught:
            self.derive(function)
        assert caught.value.code == "FXP-P024"

    def test_a_source_that_the_module_did_not_hold(self):
        with pytest.raises(PassError, match="is none that the module held when the pass began") as caught:
            self.derive(torch.neg, lambda module: (module.head.weight.detach(),))
        assert caught.value.code == "FXP-P024"

    def test_a_function_is_captured_when_it_is_named(self):
        def work(module, context):
            def scale(value):
                return value * factor

            for factor, tensor in ((2.0, module.head.weight), (5.0, module.head.bias)):
                with torch.no_grad():
                    tensor.mul_(factor)
                context.derive(tensor, (tensor,), scale)

        module, trained = transformed(model(1), step(work)), model(2)
        fxplug.load_original_state_dict(module, trained.state_dict())
        assert torch.equal(module.head.weight, trained.head.weight * 2)
        assert torch.equal(module.head.bias, trained.head.bias * 5)

    def test_what_a_pipeline_inside_of_a_pass_did_is_not_mistaken(self):
        def work(module, context):
            module.add_submodule("moved", module.head)
            module.graph.find_nodes(op="call_module", target="head")[0].target = "moved"
            module.add_submodule("head", nn.Linear(4, 5))
            Pipeline("inner", [step(scale_head, "inner")]).run(module)

        module = transformed(model(1), step(work, "work"))
        with pytest.raises(PassError, match=r"'head\.weight' was made or changed by pass work"):
            fxplug.load_original_state_dict(module, model(2).state_dict())
        assert fxplug.state_origins(module)["moved.weight"].key == "head.weight"

    def test_equal_folds_share_their_recipe(self):
        module = transformed(model(1))
        origins = fxplug.state_origins(module)
        recipes = {id(origins[path].recipe) for path in ("stem.0.weight", "blocks.0.conv.weight")}
        assert len(recipes) == 1

    def test_outside_of_a_pipeline_it_is_harmless(self):
        module = fxplug.symbolic_trace(model(1))
        RECORDS["fuse-conv-bn"].factory().run(module, PassContext())
        assert torch.allclose(output(module), output(model(1)), atol=1e-5)


class TestMap:
    def test_it_says_what_comes_from_what_through_which_pass(self):
        origins = fxplug.state_origins(transformed(model(1)))
        origin = origins["blocks.1.conv.bias"]
        assert origin.keys == (
            "blocks.1.bn.running_mean",
            "blocks.1.bn.running_var",
            "blocks.1.bn.weight",
            "blocks.1.bn.bias",
            "blocks.1.conv.bias",
        )
        assert origin.passes == ("fuse-conv-bn of fxplug",)
        assert origins["head.weight"].passes == ()
        lines = str(origins).splitlines()
        assert len(lines) == len(origins) == 10
        assert lines[-1].split() == ["head.bias", "head.bias"]
        assert lines[0].startswith("stem.0.weight")

    def test_a_module_that_nobody_transformed(self):
        module = fxplug.symbolic_trace(model(1))
        origins = fxplug.state_origins(module)
        assert {path: origin.key for path, origin in origins.items()} == {
            path: path for path in module.state_dict()
        }
        assert "fxplug.state_origins" not in module.meta

    def test_a_pass_that_is_undone_leaves_it_as_it_was(self):
        def fail(module, context):
            scale_head(module, context)
            raise ValueError("on purpose")

        module, trained = transformed(model(1)), model(2)
        before = fxplug.state_origins(module)
        Pipeline("test", [step(fail)], on_error="rollback").run(module)
        assert fxplug.state_origins(module) is before
        fxplug.load_original_state_dict(module, trained.state_dict())
        assert torch.equal(output(module), output(transformed(trained)))

    def test_what_a_failed_pass_derived_is_forgotten(self):
        def fail(module, context):
            context.derive(module.head.weight, (module.head.weight,), torch.neg)
            raise ValueError("on purpose")

        def edit(module, _):
            module.graph.output_node().args = (module.graph.output_node().args[0],)

        module = fxplug.symbolic_trace(model(1))
        Pipeline("test", [step(fail), step(edit)], on_error="rollback").run(module)
        assert fxplug.state_origins(module)["head.weight"].key == "head.weight"

    def test_running_the_model_in_a_pass_is_no_change(self):
        def calibrate(module, _):
            module(X)
            output = module.graph.output_node()
            with module.graph.inserting_before(output):
                output.args = (module.graph.call_function(operator.neg, (output.args[0],)),)

        module, trained = transformed(model(1), step(calibrate)), model(2)
        fxplug.load_original_state_dict(module, trained.state_dict())
        assert torch.equal(output(module), -output(trained))


class TestFiles:
    def test_the_map_is_stored_as_data(self, tmp_path):
        steps = (FUSE, step(scale_head, "scale"))
        module, trained = transformed(model(1), *steps), model(2)
        fxplug.save(module, tmp_path / "model.fxplug")
        loaded = fxplug.load(tmp_path / "model.fxplug")
        assert str(fxplug.state_origins(loaded)) == str(fxplug.state_origins(module))
        fxplug.load_original_state_dict(loaded, trained.state_dict())
        assert torch.equal(output(loaded), output(transformed(trained, *steps)))
        fxplug.save(loaded, tmp_path / "again.fxplug")
        assert str(fxplug.state_origins(fxplug.load(tmp_path / "again.fxplug"))) == str(
            fxplug.state_origins(module)
        )
