"""What the backend says it can run, and the reasons that it gives for the rest."""

from __future__ import annotations

import importlib.util
import operator

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import fxplug
from fxplug.ir import RegionEntry
from fxplug.lower import LoweringContext, plan_lowering
from fxplug_tensorrt import TensorRTBackend
from fxplug_tensorrt.table import ROWS, TABLE


def reasons(module: fxplug.GraphModule) -> dict[str, str]:
    """Return node -> reason for the calls that stay behind."""
    report = plan_lowering(module, TensorRTBackend(), "tensorrt")
    assert all(
        (node.ok or node.reason) and bool(node.reason) != bool(node.partition) for node in report.nodes
    )
    return {node.name: node.reason for node in report.unsupported}


def reason_for_module(module: nn.Module) -> str | None:
    """Return the reason against a module that is called alone."""
    graph = fxplug.Graph()
    graph.output(graph.call_module("part", (graph.placeholder("x"),)))
    return reasons(fxplug.GraphModule({"part": module}, graph)).get("part")


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(4, 4, 3, padding=1)
        self.norm = nn.BatchNorm2d(4)
        self.relu = nn.ReLU(inplace=True)
        self.fc = nn.Linear(4, 2)

    def forward(self, x):
        y = self.relu(self.norm(self.conv(x)))
        y = F.relu(y + x)
        y = F.adaptive_avg_pool2d(y, 1).flatten(1)
        return F.softmax(self.fc(y), dim=-1)


def test_a_usual_network_is_supported_as_a_whole():
    module = fxplug.symbolic_trace(Residual().eval())

    report = plan_lowering(module, TensorRTBackend(), "tensorrt")

    assert report.unsupported == ()
    assert report.coverage == 1.0
    assert len(report.nodes) == 9


def test_what_is_no_call_is_never_in_the_way():
    module = fxplug.symbolic_trace(Residual().eval())
    context = LoweringContext(module)

    assert [node.op for node in module.graph.nodes if not TensorRTBackend().supports(node, context)] == []


def test_asking_changes_nothing():
    module = fxplug.symbolic_trace(Residual())
    version, text = module.graph.version, str(module.graph)

    reasons(module)

    assert (module.graph.version, str(module.graph)) == (version, text)


# -- what is not in the table -----------------------------------------------------------------------------------


def test_a_function_that_is_not_in_the_table_is_named():
    module = fxplug.symbolic_trace(lambda x: torch.kron(x, x) + 1)

    assert reasons(module) == {"kron": "the function torch.kron is not in the table of fxplug-tensorrt"}


def test_a_method_that_is_not_in_the_table_is_named():
    module = fxplug.symbolic_trace(lambda x: x.cholesky_inverse() + 1)

    assert reasons(module) == {
        "cholesky_inverse": "the tensor method 'cholesky_inverse' is not in the table of fxplug-tensorrt"
    }


def test_the_shape_is_supported_and_another_attribute_is_named():
    module = fxplug.symbolic_trace(lambda x: x.reshape(x.shape[0], -1).to(x.device))

    assert list(reasons(module).values()) == ["the attribute 'device' is not in the table of fxplug-tensorrt"]


def test_a_function_that_cannot_be_hashed_is_named():
    class Unhashable:
        __hash__ = None
        __name__ = "unhashable"

        def __call__(self, x):
            return x

    graph = fxplug.Graph()
    graph.output(graph.create_node("call_function", Unhashable(), (graph.placeholder("x"),)))

    (reason,) = reasons(fxplug.GraphModule({}, graph)).values()
    assert "unhashable is not in the table" in reason


def test_a_module_of_torch_that_is_not_in_the_table_is_named():
    assert reason_for_module(nn.EmbeddingBag(4, 4).eval()) == (
        "the module class torch.nn.modules.sparse.EmbeddingBag is not in the table of fxplug-tensorrt"
    )


class Scaled(nn.Linear):
    def forward(self, x):
        return 2 * super().forward(x)


class Attention(nn.Module):
    def forward(self, x):
        return x


def test_a_subclass_may_compute_something_else():
    reason = reason_for_module(Scaled(4, 4).eval())

    assert reason is not None
    assert reason.endswith("Scaled derives from Linear and may compute something else")


def test_for_a_module_of_the_user_the_way_out_is_shown():
    reason = reason_for_module(Attention().eval())

    assert reason is not None
    assert reason.endswith(
        "Attention is not in the table of fxplug-tensorrt; to have its forward traced, add it to through_modules in "
        "[tool.fxplug.trace]"
    )


@pytest.mark.parametrize("size", [1, (1, 1)])
def test_pooling_to_one_value_is_supported(size):
    assert reason_for_module(nn.AdaptiveAvgPool2d(size)) is None
    assert reasons(fxplug.symbolic_trace(lambda x: F.adaptive_avg_pool2d(x, output_size=size))) == {}


@pytest.mark.parametrize("size", [7, (1, 7), (None, 1)])
def test_pooling_to_more_values_has_no_layer(size):
    reason = "it pools to more than one value, for which TensorRT has no layer"

    assert reason_for_module(nn.AdaptiveAvgPool2d(size)) == reason
    assert reasons(fxplug.symbolic_trace(lambda x: F.adaptive_avg_pool2d(x, size))) == {
        "adaptive_avg_pool2d": reason
    }


# -- what a call does besides computing -------------------------------------------------------------------------


def test_training_mode_stays_in_pytorch():
    found = reasons(
        fxplug.symbolic_trace(nn.Sequential(nn.BatchNorm1d(4), nn.Dropout(0.5), nn.ReLU()).train())
    )

    assert list(found.values()) == [
        "it updates its running statistics; call eval() on the model before it is captured",
        "it draws random numbers; call eval() on the model before it is captured",
    ]


def test_dropout_and_norms_as_functions_are_told_apart_by_their_arguments():
    def program(x, mean, variance):
        y = F.batch_norm(F.dropout(x, training=False), mean, variance)
        return F.dropout(F.batch_norm(y, mean, variance, training=True), training=True)

    assert list(reasons(fxplug.symbolic_trace(program))) == ["batch_norm_1", "dropout_1"]


def test_a_module_with_hooks_stays_in_pytorch():
    linear = nn.Linear(4, 4).eval()
    linear.register_forward_hook(lambda *_: None)

    assert reason_for_module(linear) == (
        "it has hooks or a forward of its own, or does something else that TensorRT would leave out"
    )


def test_a_result_written_into_another_tensor_stays_in_pytorch():
    module = fxplug.symbolic_trace(lambda x, y: torch.add(x, 1, out=y))

    assert reasons(module) == {"add": "it writes its result into another tensor"}


def test_an_in_place_call_on_a_value_that_nobody_else_reads_is_supported():
    def program(x, y):
        z = torch.matmul(x, y)
        z += 1
        return F.relu(z.mul_(2).flatten(), inplace=True)

    assert reasons(fxplug.symbolic_trace(program)) == {}


@pytest.mark.parametrize(
    ("program", "name", "written"),
    [
        (lambda x: x.relu_(), "relu_", "x"),
        (lambda x: F.relu(x, inplace=True), "relu", "x"),
        (lambda x: operator.iadd(x, 1), "iadd", "x"),
        (lambda x: (y := x * 2, y.relu_())[0], "relu_", "mul"),
        (lambda x: (y := x + 1, y.flatten().relu_())[0], "relu_", "flatten"),
    ],
    ids=["input", "function", "operator", "shared", "view"],
)
def test_an_in_place_call_on_a_value_that_others_may_read_stays_in_pytorch(program, name, written):
    found = reasons(fxplug.symbolic_trace(program))

    assert found == {
        name: f"it changes {written} in place, which others may read; use the form that returns a new tensor"
    }


@pytest.mark.parametrize(
    ("context", "arguments", "allowed"),
    [(torch.no_grad, (), True), (torch.set_grad_enabled, (False,), True), (torch.autocast, ("cpu",), False)],
)
def test_regions_that_change_the_result_stay_in_pytorch(context, arguments, allowed):
    graph = fxplug.Graph()
    node = graph.call_function(torch.relu, (graph.placeholder("x"),))
    node.region = (RegionEntry(context, arguments),)
    graph.output(node)

    found = reasons(fxplug.GraphModule({}, graph))

    expected = "it runs inside torch.autocast, whose rules TensorRT does not follow"
    assert found == ({} if allowed else {"relu": expected})


# -- the table itself -------------------------------------------------------------------------------------------


def test_the_table_names_real_methods_and_no_call_twice():
    assert [name for name in TABLE.methods if not hasattr(torch.Tensor, name)] == []
    assert len(TABLE.modules) == sum(len(set(row.modules)) for row in ROWS)
    assert len(TABLE.methods) == sum(len(set(row.methods)) for row in ROWS)
    assert len(TABLE.functions) == sum(len(set(row.functions)) for row in ROWS)


@pytest.mark.skipif(
    importlib.util.find_spec("tensorrt_rtx") is None, reason="TensorRT for RTX is not installed"
)
def test_every_layer_in_the_table_is_one_of_tensorrts():
    import tensorrt_rtx

    named = {name for row in ROWS for name in row.operations}
    assert [
        name for name in sorted(named) if not hasattr(tensorrt_rtx.INetworkDefinition, f"add_{name}")
    ] == []
