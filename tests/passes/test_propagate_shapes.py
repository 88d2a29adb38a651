"""Shapes and dtypes of every value, and that finding them changes nothing."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from fxplug.analyze import ShapeProp, TensorMetadata, propagate_shapes, shape_text
from fxplug.passes import PassContext, PropagateShapes

X = torch.linspace(-1, 1, 6).reshape(2, 3)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(3, 4)
        self.norm = nn.BatchNorm1d(4)
        self.drop = nn.Dropout(0.5)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x):
        self.calls.add_(1)
        return self.drop(self.norm(self.linear(x))).sum(1)


def shapes(module):
    return {node.name: shape_text(node) for node in module.graph.nodes}


def note(module, *inputs):
    return PropagateShapes().run(module, PassContext(example_inputs=inputs))


def test_every_value_is_described(capture):
    module = capture(Net())
    result = note(module, X)

    assert shapes(module) == {
        "x": "float32[2, 3]",
        "calls": "float32[]",
        "add_": "float32[]",
        "linear": "float32[2, 4]",
        "norm": "float32[2, 4]",
        "drop": "float32[2, 4]",
        "sum_1": "float32[2]",
        "output": "float32[2]",
    }
    assert (result.modified, result.summary, result.details) == (False, "noted 8 shapes", {"shapes": 8})


def test_without_inputs_nothing_is_done(capture):
    module = capture(Net())
    result = PropagateShapes().run(module, PassContext())

    assert (result.modified, result.summary) == (False, "skipped: there are no example inputs")
    assert not any("tensor_meta" in node.meta for node in module.graph.nodes)


def test_buffers_are_as_before(capture):
    module = capture(Net())
    before = {name: value.clone() for name, value in module.state_dict().items()}
    identities = {name: id(value) for name, value in module.named_buffers()}
    note(module, X)

    assert all(torch.equal(value, before[name]) for name, value in module.state_dict().items())
    assert {name: id(value) for name, value in module.named_buffers()} == identities


def test_random_numbers_are_as_before(capture):
    module = capture(Net())
    before = torch.get_rng_state()
    note(module, X)

    assert torch.equal(torch.get_rng_state(), before)


def test_inputs_are_as_before(capture):
    def program(x, parts):
        x.add_(1)
        parts["a"].mul_(2)
        return x

    x, parts = torch.ones(2), {"a": torch.ones(2)}
    note(capture(program), x, parts)

    assert x.tolist() == parts["a"].tolist() == [1, 1]
    assert x._version == 0


class Batch:
    """An input of a class of its own."""

    def __init__(self):
        self.values = torch.zeros(2)


def test_inputs_of_other_classes_are_as_before(capture):
    def program(batch):
        batch.values.add_(1)
        return batch.values

    batch = Batch()
    note(capture(program), batch)
    assert batch.values.tolist() == [0, 0]


def test_training_flags_and_graph_are_as_before(capture):
    module = capture(Net())
    version, text = module.graph.version, str(module.graph)
    note(module, X)

    assert all(part.training for part in module.modules())
    assert (module.graph.version, str(module.graph)) == (version, text)


def test_everything_is_as_before_after_a_failure(capture):
    module = capture(Net())
    before = torch.get_rng_state()
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        note(module, torch.ones(2, 7))

    assert module.calls.item() == 0
    assert torch.equal(torch.get_rng_state(), before)


def test_parameters_are_as_before(capture):
    torch.manual_seed(0)
    module = capture(nn.Sequential(nn.Embedding(4, 3, max_norm=0.1)))
    before = module.get_parameter("0.weight").clone()
    note(module, torch.tensor([0, 1, 2]))

    assert torch.equal(module.get_parameter("0.weight"), before)


def test_inputs_that_were_computed_with_gradients(capture):
    note(capture(Net()), (X.clone().requires_grad_() * 2))


def test_model_without_weights(capture):
    module = capture(Net().to("meta"))
    note(module, torch.empty(2, 3, device="meta"))

    assert shapes(module)["linear"] == "float32[2, 4]"


def test_buffers_with_nan(capture):
    module = capture(Net())
    module.norm.running_mean.fill_(float("nan"))
    note(module, X)

    assert module.norm.running_mean.isnan().all()
    assert module.norm.num_batches_tracked.item() == 0


def test_structured_values(capture):
    module = capture(lambda x: (x.chunk(2), {"a": x.long(), "n": x.shape}))
    propagate_shapes(module, torch.ones(4, 2))
    found = {node.name: node.meta.get("tensor_meta") for node in module.graph.nodes}

    assert [part.shape for part in found["chunk"]] == [torch.Size([2, 2])] * 2
    assert found["output"][1]["a"].dtype == torch.int64
    assert shape_text(module.graph.output_node()) == "float32[2, 2], float32[2, 2], int64[4, 2]"


def test_values_without_tensors_have_a_type_only(capture):
    module = capture(lambda x: x.shape[0] + 1)
    propagate_shapes(module, X)
    add = module.graph.find_nodes(op="call_function")[-1]

    assert "tensor_meta" not in add.meta
    assert add.meta["type"] is int
    assert shape_text(add) == ""


def test_metadata_in_full(capture):
    module = capture(lambda x: x.to(memory_format=torch.channels_last))
    propagate_shapes(module, torch.ones(1, 2, 3, 4))
    described = module.graph.find_nodes(op="call_method")[0].meta["tensor_meta"]

    assert described == TensorMetadata(
        shape=torch.Size([1, 2, 3, 4]),
        dtype=torch.float32,
        requires_grad=False,
        stride=(24, 1, 8, 2),
        memory_format=torch.channels_last,
        is_quantized=False,
        qparams={},
    )


def test_second_run_replaces_what_was_noted(capture):
    module = capture(lambda x: x.sum().item() if False else x * 2)
    propagate_shapes(module, torch.ones(2))
    propagate_shapes(module, torch.ones(5, dtype=torch.float64))

    assert set(shapes(module).values()) == {"float64[5]"}


def test_old_notes_go_when_a_value_is_no_tensor_any_more(capture):
    module = capture(lambda x: x * 2)
    propagate_shapes(module, torch.ones(2))
    propagate_shapes(module, 3)

    assert set(shapes(module).values()) == {""}


def test_result_of_the_run_is_returned(capture):
    module = capture(lambda x: x * 2)

    assert torch.equal(propagate_shapes(module, X), X * 2)
    assert torch.equal(ShapeProp(module).propagate(X), X * 2)


def test_need_for_gradients_is_noted(capture):
    module = capture(Net())
    propagate_shapes(module, X)

    assert module.graph.find_nodes(op="call_module")[0].meta["tensor_meta"].requires_grad
