"""Functions that TorchScript has compiled: they run no Python, and stay calls."""

from __future__ import annotations

import copy
import gc
import threading
import weakref

import pytest
import torch
from torch import nn

import fxplug
from fxplug.errors import FxplugError, StorageError, TraceError

pytestmark = [
    pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated:DeprecationWarning"),
    pytest.mark.usefixtures("pristine_module_class"),
]
X = torch.tensor([1.0, 2.0, 3.0])


def _makes_a_tensor(x: torch.Tensor) -> torch.Tensor:
    return torch.sqrt(torch.tensor(x.size(-1), dtype=torch.float)) + x.sum()


def _decides(x: torch.Tensor, limit: float) -> torch.Tensor:
    if bool(x.sum() > limit):
        return x * 2
    return x - 1


def _makes_by_size(x: torch.Tensor, count: int) -> torch.Tensor:
    return torch.arange(count) * x


def _pair(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return x + 1, x * 2


@pytest.fixture(scope="module")
def scripted():
    """Name -> what was compiled."""
    return {
        function.__name__.lstrip("_"): torch.jit.script(function)
        for function in (_makes_a_tensor, _decides, _makes_by_size, _pair)
    }


PROGRAMS = {
    "makes_a_tensor": lambda compiled: lambda x: compiled(x) + 1,
    "decides": lambda compiled: lambda x: compiled(x, limit=10.0) + 1,
    "makes_by_size": lambda compiled: lambda x: compiled(x, x.shape[0]),
    "pair": lambda compiled: lambda x: compiled(x)[0] + compiled(x)[1],
}


@pytest.mark.parametrize("mode", ["symbolic", "shape", "value"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_it_is_one_call(scripted, mode, name):
    program = PROGRAMS[name](scripted[name])
    if (name, mode) == ("decides", "shape"):
        with pytest.raises(TraceError, match=r"needs the values of tensors.*FXP-T066"):
            fxplug.trace(program, (X,), mode=mode)
        return
    captured = fxplug.trace(program, None if mode == "symbolic" else (X,), mode=mode)

    assert scripted[name] in [node.target for node in captured.graph.find_nodes(op="call_function")]
    for x in (X, X * 10, torch.arange(5.0)):
        assert torch.equal(captured(x), program(x))
        assert torch.equal(fxplug.Interpreter(captured).run(x), program(x))


def test_modules_that_call_one_are_captured_optimised_and_captured_again(scripted):
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.ones(3))

        def forward(self, x):
            return scripted["makes_a_tensor"](x * self.weight)

    model = Model().eval()
    captured = fxplug.symbolic_trace(model)

    for module in (
        captured,
        copy.deepcopy(captured),
        fxplug.symbolic_trace(captured),
        fxplug.optimize(model, (X,), measure=False).module,
    ):
        assert torch.equal(module(X + 1), model(X + 1))


def test_wrapping_one_in_another_module_changes_nothing(scripted):
    compiled = scripted["makes_a_tensor"]
    assert fxplug.wrap(compiled) is compiled
    try:
        captured = fxplug.symbolic_trace(lambda x: compiled(x) + 1)
    finally:
        fxplug.capture.wrapping._objects.pop(id(compiled))

    assert next(iter(captured.graph.find_nodes(op="call_function"))).target is compiled


def test_calls_without_traced_values_are_made(scripted):
    captured = fxplug.symbolic_trace(lambda x: x + scripted["makes_a_tensor"](torch.ones(2)))

    assert scripted["makes_a_tensor"] not in [node.target for node in captured.graph.nodes]
    assert torch.equal(captured(X), X + _makes_a_tensor(torch.ones(2)))


def test_gradients_flow_through_it(scripted):
    captured = fxplug.trace(PROGRAMS["decides"](scripted["decides"]), (X.clone().requires_grad_(),))
    x = X.clone().requires_grad_()
    captured(x).sum().backward()

    assert torch.equal(x.grad, torch.ones(3))


def test_other_threads_call_it_as_always(scripted):
    results = []

    def program(x):
        thread = threading.Thread(target=lambda: results.append(scripted["makes_a_tensor"](X)))
        thread.start()
        thread.join()
        return scripted["makes_a_tensor"](x)

    fxplug.symbolic_trace(program)
    assert torch.equal(results[0], _makes_a_tensor(X))


def test_nothing_is_left_behind(scripted):
    before = vars(torch.jit.ScriptFunction)["__call__"]
    held = [torch.jit.script(_pair)]
    reference = weakref.ref(held[0])
    captured = fxplug.symbolic_trace(lambda x: held[0](x)[0])
    assert vars(torch.jit.ScriptFunction)["__call__"] is before

    with pytest.raises(TraceError):
        fxplug.symbolic_trace(lambda x: held[0](x) if x.sum() > 0 else x)
    assert vars(torch.jit.ScriptFunction)["__call__"] is before
    held.clear()
    del captured
    gc.collect()
    assert reference() is None


def test_an_error_of_the_program_in_it_is_that_of_eager(scripted):
    def program(x):
        return scripted["makes_a_tensor"](x, x)

    with pytest.raises(Exception, match="expected at most 1 argument") as caught:
        fxplug.trace(program, (X,))
    assert not isinstance(caught.value, FxplugError)


def test_a_file_cannot_name_it(scripted, tmp_path):
    with pytest.raises(StorageError, match="has no name under which a file could refer to it"):
        fxplug.save(fxplug.symbolic_trace(lambda x: scripted["pair"](x)[0]), tmp_path / "module.fxplug")


class HoldsCompiledLayers(nn.Module):
    def __init__(self):
        super().__init__()
        self.scripted = torch.jit.script(nn.Sequential(nn.Linear(3, 3), nn.Dropout(0.5)))
        self.traced = torch.jit.trace(nn.Linear(3, 2), torch.rand(2, 3))
        self.scale = nn.Parameter(torch.tensor(2.0))

    def forward(self, x):
        return self.traced(self.scripted(x) * self.scale)


@pytest.mark.filterwarnings("ignore:.torch.jit.trace. is deprecated:DeprecationWarning")
@pytest.mark.filterwarnings("ignore:.torch.jit.trace_method. is deprecated:DeprecationWarning")
@pytest.mark.parametrize("mode", ["symbolic", "shape", "value"])
def test_modules_that_are_compiled_stay_modules_with_their_weights(mode):
    root = HoldsCompiledLayers().eval()
    module = fxplug.trace(root, None if mode == "symbolic" else (torch.rand(2, 3),), mode=mode)

    assert [node.target for node in module.graph.find_nodes(op="call_module")] == ["scripted", "traced"]
    assert {name for name, _ in module.named_parameters()} == {name for name, _ in root.named_parameters()}
    copied, expected = copy.deepcopy(module), copy.deepcopy(root)
    with torch.no_grad():
        for weight in (*copied.parameters(), *expected.parameters()):
            weight.mul_(2)
    for one, other in ((module, root), (copied, expected), (copied.train(), expected.train())):
        results = []
        for either in (one, other):
            torch.manual_seed(0)
            results.append(either(torch.ones(2, 3)))
        assert torch.equal(*results)
