"""Channels last: another format in memory, the same values and shapes."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import fxplug
from fxplug.passes import BUILTIN_PASSES, ChannelsLast, PassContext, Pipeline, PipelineStep

X = torch.linspace(-1, 1, 2 * 3 * 8 * 8).reshape(2, 3, 8, 8)
RECORD = next(record for record in BUILTIN_PASSES if record.name == "channels-last")
LAST, PLAIN = torch.channels_last, torch.contiguous_format


class Model(nn.Module):
    def __init__(self, program):
        super().__init__()
        self.program = program
        self.conv = nn.Conv2d(3, 4, 3, padding=1)
        self.second = nn.Conv2d(4, 4, 3, padding=1, bias=False)
        self.up = nn.ConvTranspose2d(4, 3, 2, stride=2)
        self.point = nn.Conv2d(4, 4, 1)
        self.deep = nn.Conv3d(3, 4, 3, padding=1)
        self.norm = nn.BatchNorm2d(4)
        self.pool = nn.MaxPool2d(2)
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x):
        return self.program(self, x)


def captured(program):
    torch.manual_seed(0)
    model = Model(program).eval()
    return model, fxplug.symbolic_trace(copy.deepcopy(model))


def converted(module, *inputs):
    result = ChannelsLast().run(module, PassContext(inputs, module=module) if inputs else PassContext())
    module.graph.lint()
    assert result.modified is (result.details["converted"] > 0)
    return result


def formats(module):
    return [
        node.kwargs["memory_format"]
        for node in module.graph.find_nodes(op="call_method", target="contiguous")
    ]


def net(m, x):
    y = m.relu(m.norm(m.conv(x)))
    y = m.pool(y + m.second(y))
    return y.view(2, -1)


def used_twice(m, x):
    y = m.conv(x)
    return y.view(-1).sum() + y.flatten()[0] + m.second(y)


CONVERTED = {
    "one": (lambda m, x: m.conv(x), 1, [LAST, PLAIN]),
    "a chain": (lambda m, x: m.second(m.conv(x)), 2, [LAST, PLAIN]),
    "a network": (net, 2, [LAST, PLAIN]),
    "a sum that is as its odd operand": (
        lambda m, x: torch.cat([x, x[:, :1]], 1).transpose(2, 3) + m.conv(x),
        1,
        [LAST, PLAIN],
    ),
    "used twice": (used_twice, 2, [LAST, PLAIN, PLAIN]),
    "a kernel of one element between": (lambda m, x: m.second(m.point(m.conv(x))), 3, [LAST, PLAIN]),
    "transposed": (lambda m, x: m.conv(m.up(m.conv(x))), 3, [LAST, PLAIN]),
    "three dimensions": (lambda m, x: m.deep(x[None].transpose(1, 2)), 1, [torch.channels_last_3d, PLAIN]),
    "another in between": (lambda m, x: m.second(torch.softmax(m.conv(x), 1)), 2, [LAST, PLAIN, LAST, PLAIN]),
}  # fmt: skip


@pytest.mark.parametrize("name", CONVERTED)
def test_values_shapes_and_strides_are_what_they_were(name):
    program, count, copies = CONVERTED[name]
    model, module = captured(program)

    result = converted(module, X)

    assert result.details == {"converted": count, "copies": len(copies)}
    assert formats(module) == copies
    assert not any(
        part.weight.is_contiguous() for part in module.modules() if getattr(part, "kernel_size", 1) == (3, 3)
    )
    value, expected = module(X), model(X)
    torch.testing.assert_close(value, expected)
    assert value.stride() == expected.stride()
    assert not converted(module, X).modified, "a second run finds nothing"


def unbatched(m, x):
    return m.conv(x[0])


def written_item(m, x):
    y = m.conv(x)
    y[0] = 1.0
    return y


def written_behind_a_view(m, x):
    y = m.conv(x)
    row = y[0]
    y.add_(1)
    return row


@fxplug.wrap
def unknown(x):
    return x


LEFT = {
    "without a batch": (unbatched, "nothing to convert"),
    "a kernel of one element": (lambda m, x: m.point(x[:, :1].expand(2, 4, 8, 8)), "nothing to convert"),
    "no convolution": (lambda m, x: x + 1, "nothing to convert"),
    "an item written": (written_item, "nothing to convert; 'setitem' may write 'conv', or hold it"),
    "a view of what is written": (
        written_behind_a_view,
        "nothing to convert; 'conv' is written, and 'getitem' may be a view of it",
    ),
    "given away": (
        lambda m, x: unknown(m.conv(x)),
        "nothing to convert; 'unknown' may write 'conv', or hold it",
    ),
}


@pytest.mark.parametrize("name", LEFT)
def test_what_could_be_told_stays(name):
    program, summary = LEFT[name]
    model, module = captured(program)
    code = module.code

    assert converted(module, X).summary == summary
    assert module.code == code
    torch.testing.assert_close(module(X), model(X))


def test_without_example_inputs_nothing_is_done():
    assert not converted(captured(net)[1]).modified


def test_what_has_the_format_already_keeps_it():
    model, module = captured(lambda m, x: m.second(m.conv(x)))
    given = X.contiguous(memory_format=LAST)

    assert not converted(module, given).modified
    assert module(given).stride() == model(given).stride()


def test_hooks_stand_against_it():
    _, module = captured(lambda m, x: m.conv(x))
    module.conv.register_forward_hook(lambda *_: None)

    assert not converted(module, X).modified


def test_weights_that_are_shared_keep_their_format():
    model, module = captured(lambda m, x: m.conv(x).sum() + m.conv.weight.view(-1).sum() + m.conv(x[0]).sum())

    assert converted(module, X).details["converted"] == 1
    assert module.conv.weight.is_contiguous()
    assert module.conv_channels_last.weight.is_contiguous(memory_format=LAST)
    torch.testing.assert_close(module(X), model(X))


def test_new_weights_are_converted_again_and_gradients_reach_them():
    _, module = captured(net)
    Pipeline("trial", [PipelineStep("channels-last", RECORD)], verify="numeric").run(module, (X,))
    torch.manual_seed(7)
    other = Model(net).eval()
    fxplug.load_original_state_dict(module, other.state_dict(), strict=False)

    torch.testing.assert_close(module(X), other(X))
    for twin in (module, other):
        twin(X).sum().backward()
    torch.testing.assert_close(module.conv.weight.grad, other.conv.weight.grad)
    assert module.conv.weight.is_contiguous(memory_format=LAST)


def test_a_rollback_leaves_no_trace():
    class Fails(fxplug.Pass):
        def run(self, module, context):
            assert ChannelsLast().run(module, context).modified
            raise ValueError("on purpose")

    _, module = captured(net)
    code, conv = module.code, module.conv
    failing = PipelineStep("fails", fxplug.PassRecord("fails", Fails, "Fails."))
    Pipeline("trial", [failing], on_error="rollback").run(module, (X,))

    assert module.code == code
    assert module.conv is conv
    assert conv.weight.is_contiguous()


def test_it_is_offered_by_name_and_keeps_origins():
    model = Model(lambda m, x: F.relu(m.conv(x))).eval()
    result = fxplug.optimize(model, X, passes=["channels-last"], measure=False)

    assert result.passes[0].result.summary == "converted 1 convolution, with 2 changes of format"
    nodes = [node for node in result.graph_module.graph.nodes if node.op.startswith("call_")]
    assert all(node.origins[0].source() is not None for node in nodes)
