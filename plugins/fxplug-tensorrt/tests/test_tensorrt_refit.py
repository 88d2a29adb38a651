"""New weights for engines: which weights a network names, and what a state dict becomes of. Engines need a GPU."""

from __future__ import annotations

import importlib.util

import pytest
import torch
from torch import nn

import fxplug
from fxplug.errors import BackendError, LoweringError, PassError
from fxplug.lower import lower, lowered_partitions
from fxplug_tensorrt import TensorRTBackend, TensorRTModule, engine_weights, load_module, refit

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("tensorrt_rtx") is None, reason="TensorRT for RTX is not installed"
)


def numbers(*sizes, seed=0):
    return torch.randn(*sizes, generator=torch.Generator().manual_seed(seed))


class Model(nn.Module):
    def __init__(self, seed):
        super().__init__()
        torch.manual_seed(seed)
        self.conv, self.norm = nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8)
        self.later = nn.Conv1d(8, 4, 3)
        self.head = nn.Linear(4, 5)
        self.norm.running_mean.uniform_(-0.5, 0.5)
        self.norm.running_var.uniform_(0.5, 2)

    def forward(self, x):
        x = torch.relu(self.norm(self.conv(x))).mean(3)
        return self.head(self.later(x).mean(2))


X = numbers(2, 3, 10, 10)


class Written(TensorRTBackend):
    """Writes networks for new weights, of which engines are built where there is a GPU alone: these have no bytes."""

    def compile(self, subgraph, example_inputs, options):
        from fxplug_tensorrt.saving import EngineRecord

        return TensorRTModule(
            EngineRecord.of(self.converted(subgraph, example_inputs), self.options, b"none")
        )


def lowered(module, backend=None, inputs=(X,)):
    return lower(module, backend or Written(refit=True), inputs, name="tensorrt", strict=True).module


def computed(converted, inputs=(X,)):
    """Return what the network computes, by the evaluator."""
    from fxplug_tensorrt.testing import evaluate

    (found,) = evaluate(converted, inputs)
    return found


def engines_run():
    from fxplug_tensorrt._trt import why_engines_do_not_run

    return not why_engines_do_not_run()


# -- names in the network


def test_every_weight_has_its_name_in_the_network_and_memory_of_its_own():
    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(numbers(6, 6))

        def forward(self, x):
            return (x @ self.weight) + self.weight + torch.matmul(self.weight, x)

    x = numbers(6, 6, seed=1)
    converted = Written(refit=True).converted(fxplug.symbolic_trace(Twice()), (x,))

    net, kept = converted.build.net, converted.build.kept
    assert len(kept) == 1  # One constant, which all calls read.
    module = fxplug.symbolic_trace(Model(1).eval())
    converted = Written(refit=True).converted(module, (X,))
    net, kept = converted.build.net, converted.build.kept
    assert len({value.data_ptr() for value in kept.values()}) == len(kept) > 8
    assert [name for name in kept if not net.mark_weights_refittable(name)] == []
    assert all(net.are_weights_marked_refittable(name) for name in kept)
    assert not net.mark_weights_refittable("another")


def test_weights_that_share_memory_have_a_name_each():
    class Views(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(numbers(6))
            self.register_buffer("same", self.weight.detach().reshape(1, 6))

        def forward(self, x):
            return x * self.weight + self.same

    converted = Written(refit=True).converted(fxplug.symbolic_trace(Views()), (numbers(4, 6),))

    assert len(converted.build.kept) == 2
    assert all(converted.build.net.mark_weights_refittable(name) for name in converted.build.kept)


# -- from a state dict to weights


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_a_state_dict_becomes_the_weights_of_a_network_of_the_new_model(precision):
    old, new = Model(1).eval(), Model(2).eval()
    module = lowered(fxplug.symbolic_trace(old), Written(precision, refit=True))
    before = {name: value.clone() for name, value in old.state_dict().items()}

    (found,) = engine_weights(module, new.state_dict()).values()

    expected = Written(precision, refit=True).converted(fxplug.symbolic_trace(new), (X,)).build.kept
    assert found.weights.keys() == expected.keys()
    for name, value in expected.items():
        assert torch.equal(found.weights[name], value), name
        assert found.weights[name].dtype is value.dtype
    # The numbers of the program (an eps, a size) are as they were.
    assert 8 <= len(found.changed) <= len(expected)
    assert all(torch.equal(value, before[name]) for name, value in old.state_dict().items())
    assert torch.equal(found.program(X), new(X))


def test_the_network_of_the_old_model_computes_what_the_new_one_does_with_its_weights():
    old, new = Model(1).eval(), Model(2).eval()
    program = fxplug.symbolic_trace(old)
    module = lowered(program)
    (found,) = engine_weights(module, new.state_dict()).values()
    (partition,) = lowered_partitions(module).values()
    converted = partition.origin.maker.converted(partition.__dict__["eager"], (X,))
    torch.testing.assert_close(computed(converted), old(X), rtol=1e-4, atol=1e-5)

    for name, value in found.weights.items():  # What a refitted engine has.
        converted.build.kept[name].copy_(value)

    torch.testing.assert_close(computed(converted), new(X), rtol=1e-4, atol=1e-5)


def test_what_was_folded_is_folded_again():
    old, new = Model(1).eval(), Model(2).eval()
    folded = fxplug.optimize(old, (X,), passes=["fuse-conv-bn"], measure=False).graph_module
    assert not [node for node in folded.graph.nodes if node.target == "norm"]

    (found,) = engine_weights(lowered(folded), new.state_dict()).values()

    torch.testing.assert_close(found.program(X), new(X), rtol=1e-4, atol=1e-5)


def test_what_was_folded_and_nobody_says_how_is_refused_by_name():
    class Doubled(fxplug.Pass):
        def run(self, module, context):
            with torch.no_grad():
                module.head.weight.mul_(2)
            return fxplug.PassResult(modified=True)

    from fxplug.passes import PipelineStep

    module = fxplug.symbolic_trace(Model(1).eval())
    doubled = fxplug.PassRecord("doubled", Doubled, "Doubles.")
    fxplug.Pipeline("trial", [PipelineStep("doubled", doubled, provider="demo 1.0")]).run(module)

    with pytest.raises(PassError, match=r"head\.weight' was made or changed by pass doubled of demo 1\.0"):
        engine_weights(lowered(module), Model(2).state_dict())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda state: state.pop("head.weight"), r"it lacks 'head\.weight'"),
        (lambda state: state.update(more=torch.ones(2)), "it has 'more', which the original did not have"),
        (
            lambda state: state.update({"head.bias": torch.ones(6)}),
            r"'head\.bias' has the shape \[6\], and the original had \[5\]",
        ),
    ],
    ids=["missing", "unexpected", "shape"],
)
def test_a_state_dict_that_does_not_fit_is_refused_by_name(change, message):
    state = dict(Model(2).state_dict())
    change(state)

    with pytest.raises(PassError, match=message):
        engine_weights(lowered(fxplug.symbolic_trace(Model(1).eval())), state)


def test_some_weights_may_be_given_alone():
    old = Model(1).eval()
    module = lowered(fxplug.symbolic_trace(old))

    (found,) = engine_weights(module, {"head.bias": torch.arange(5.0)}, strict=False).values()

    (name,) = found.changed
    assert found.weights[name].flatten().tolist() == [0.0, 1.0, 2.0, 3.0, 4.0]


def test_weights_that_make_another_network_are_refused():
    ops = torch.ops.fxplug

    class Rounded(nn.Module):
        def __init__(self, zero):
            super().__init__()
            self.register_buffer("scale", torch.tensor([0.1]))
            self.register_buffer("zero", torch.tensor([zero]))

        def forward(self, x):
            stored = ops.quantize_per_tensor.tensor(x, self.scale, self.zero, -128, 127, torch.int8)
            return ops.dequantize_per_tensor.tensor(stored, self.scale, self.zero, -128, 127, torch.int8)

    module = lowered(fxplug.symbolic_trace(Rounded(0)))

    with pytest.raises(BackendError, match="with the new weights it becomes another network"):
        engine_weights(module, Rounded(3).state_dict())
    assert engine_weights(module, Rounded(0).state_dict())


def test_partitions_of_other_backends_are_refused_by_name():
    module = lower(fxplug.symbolic_trace(Model(1).eval()), Written(refit=True), (X,), name="tensorrt").module
    (partition,) = lowered_partitions(module).values()
    partition.engine, partition.backend = nn.Identity(), "other"

    with pytest.raises(
        BackendError, match="partition 'submod_0' runs on 'other', which takes no new weights"
    ):
        engine_weights(module, Model(2).state_dict())


def test_a_module_without_engines_is_refused():
    with pytest.raises(
        BackendError, match="Cannot refit the GraphModule: no engine of TensorRT runs a part of it"
    ):
        refit(fxplug.symbolic_trace(Model(1).eval()), Model(2).state_dict())


# -- engines


def test_an_engine_that_was_not_built_for_new_weights_says_so():
    module = lowered(fxplug.symbolic_trace(Model(1).eval()), TensorRTBackend(targets=("SM86",)))

    with pytest.raises(BackendError, match=r"it was not built for new weights\. Build it with refit=True"):
        refit(module, Model(2).state_dict())


def test_weights_are_checked_against_what_the_engine_keeps():
    module = lowered(fxplug.symbolic_trace(Model(1).eval()))
    (found,) = engine_weights(module, Model(2).state_dict()).values()
    (partition,) = lowered_partitions(module).values()
    engine, name = partition.engine, next(iter(found.weights))

    engine.check_weights(found.weights)
    for weights, part in (
        ({**found.weights, "more": torch.ones(1)}, "'more' is none of its weights"),
        ({key: value for key, value in found.weights.items() if key != name}, f"{name!r} is missing"),
        (
            {**found.weights, name: found.weights[name].double()},
            f"{name!r} is torch.float64 with 216 elements, and the engine keeps torch.float32 with 216",
        ),
    ):
        with pytest.raises(BackendError) as caught:
            engine.check_weights(weights)
        assert part in caught.value.message


def test_names_of_weights_are_kept_in_files(tmp_path):
    module = lowered(fxplug.symbolic_trace(Model(1).eval()))
    (found,) = engine_weights(module, Model(2).state_dict()).values()
    (partition,) = lowered_partitions(module).values()

    partition.engine.save(tmp_path / "engine")
    again = load_module(tmp_path / "engine")

    assert again.record == partition.engine.record
    again.check_weights(found.weights)


def test_without_a_gpu_neither_building_nor_refitting_works_and_both_say_so():
    if engines_run():
        pytest.skip("TensorRT runs engines here")
    program = fxplug.symbolic_trace(Model(1).eval())

    with pytest.raises(LoweringError) as caught:
        lowered(program, TensorRTBackend(targets=("SM86",), refit=True))
    assert (
        "Cannot build with TensorRT and refit=True: engines that take new weights are built where a GPU"
        in str(caught.value)
    )
    with pytest.raises(BackendError, match="TensorRT finds no GPU that it runs on"):
        refit(lowered(program), Model(2).state_dict())


def test_a_module_some_of_which_cannot_be_refitted_keeps_all_its_weights(monkeypatch):
    class Two(nn.Module):
        def __init__(self, seed):
            super().__init__()
            torch.manual_seed(seed)
            self.first, self.second = nn.Linear(6, 6), nn.Linear(6, 6)

        def forward(self, x):
            return self.second(torch.erfinv(torch.tanh(self.first(x)) / 2))

    x = numbers(4, 6)
    module = lower(fxplug.symbolic_trace(Two(1)), Written(refit=True), (x,), name="tensorrt").module
    partitions = lowered_partitions(module)
    assert len(partitions) == 2
    records = {path: part.engine.record for path, part in partitions.items()}
    eager = {path: part.__dict__["eager"] for path, part in partitions.items()}
    given = []

    def take(engine, weights, changed):
        given.append(engine)
        if len(given) == 2:
            raise BackendError("Cannot refit the engine: it fails.")
        engine.take_over(engine.record.__class__(**{**vars(engine.record), "plan": b"another"}))

    monkeypatch.setattr(TensorRTModule, "refit", take)
    with pytest.raises(BackendError, match="it fails"):
        refit(module, Two(2).state_dict())

    assert {path: part.engine.record for path, part in partitions.items()} == records
    assert {path: part.__dict__["eager"] for path, part in partitions.items()} == eager
    given.clear()
    given.append(None)
    given.append(None)
    assert refit(module, Two(2).state_dict()) == tuple(partitions)
    assert all(part.engine.record.plan == b"another" for part in partitions.values())


def test_what_runs_in_pytorch_gets_the_new_weights_and_the_original_keeps_its_own(monkeypatch):
    class Mixed(nn.Module):
        def __init__(self, seed):
            super().__init__()
            torch.manual_seed(seed)
            self.first, self.scale = nn.Linear(6, 6), nn.Parameter(torch.rand(6))
            self.bag = nn.Linear(6, 6).double()

        def forward(self, x):
            return self.bag((self.first(x) * self.scale).double())

    x, old, new = numbers(4, 6), Mixed(1), Mixed(2)
    program = fxplug.symbolic_trace(old)
    module = lower(program, Written(refit=True), (x,), name="tensorrt").module
    monkeypatch.setattr(TensorRTModule, "refit", lambda engine, weights, changed: None)
    monkeypatch.setattr(TensorRTModule, "forward", lambda engine, *inputs: by_path[id(engine)](*inputs))
    kept = {name: value.clone() for name, value in old.state_dict().items()}

    (path,) = refit(module, new.state_dict())

    partition = lowered_partitions(module)[path]
    by_path = {id(partition.engine): partition.__dict__["eager"]}
    torch.testing.assert_close(module(x), new(x))
    assert all(torch.equal(value, kept[name]) for name, value in old.state_dict().items())
    torch.testing.assert_close(program(x), old(x))


def test_a_refitted_engine_computes_what_the_new_model_does(tmp_path):
    if not engines_run():
        pytest.skip("refitting an engine needs a GPU that TensorRT runs on, and there is none")
    old, new = Model(1).eval().cuda(), Model(2).eval().cuda()
    module = lowered(fxplug.symbolic_trace(old), TensorRTBackend(refit=True), (X.cuda(),))
    torch.testing.assert_close(module(X.cuda()), old(X.cuda()), rtol=1e-3, atol=1e-3)

    refit(module, new.state_dict())

    torch.testing.assert_close(module(X.cuda()), new(X.cuda()), rtol=1e-3, atol=1e-3)
    (partition,) = lowered_partitions(module).values()
    partition.engine.save(tmp_path / "engine")
    again = load_module(tmp_path / "engine")
    torch.testing.assert_close(again(X.cuda()), partition.engine(X.cuda()))
