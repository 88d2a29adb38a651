"""A replacement stands where the order of effects, the region and the aliases stay what they were."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from fxplug.capture import Tracer
from fxplug.execute import GraphModule, Interpreter
from fxplug.ir import RegionEntry, effects
from fxplug.rewrite import replace_pattern, replace_pattern_with_filters

X = torch.linspace(-2, 2, 6).reshape(2, 3)


def relu(x):
    return torch.relu(x)


def assert_unchanged_meaning(module, program, *inputs):
    ours = [value.clone() for value in inputs]
    theirs = [value.clone() for value in inputs]
    torch.manual_seed(0)
    result = module(*ours)
    torch.manual_seed(0)
    expected = program(*theirs)
    torch.testing.assert_close(result, expected)
    torch.testing.assert_close(ours, theirs)


def add_then_relu(x):
    return torch.relu(x + 1)


def add_then_clamp(x):
    return torch.clamp(x + 1, min=0)


def test_a_read_is_not_moved_behind_a_write(capture):
    def program(x):
        shifted = x + 1
        x.mul_(100)
        return torch.relu(shifted)

    module = capture(program)

    assert replace_pattern(module, add_then_relu, add_then_clamp) == []
    assert_unchanged_meaning(module, program, X)


def test_a_write_between_that_touches_nothing_does_not_matter(capture):
    """A write before or behind the match is in no way."""

    def program(x):
        x.mul_(2)
        result = torch.relu(x + 1)
        x.mul_(3)
        return result

    module = capture(program)

    assert len(replace_pattern(module, add_then_relu, add_then_clamp)) == 1
    assert_unchanged_meaning(module, program, X)


def test_a_single_write_stays_where_it_is(capture):
    """The value of the write is used late; what reads the written tensor comes before that."""

    def program(x):
        written = x.add_(1)
        read = x * 2
        return read + written

    module = capture(program)

    assert len(replace_pattern(module, lambda v: v.add_(1), lambda v: v.sub_(-1))) == 1
    assert_unchanged_meaning(module, program, X)


def test_a_write_is_not_moved_past_a_read(capture):
    def program(x):
        written = x.add_(1)
        read = x * 2
        return torch.relu(written), read

    module = capture(program)

    def pattern(x):
        return torch.relu(x.add_(1))

    # All of it can run where the write was, before the read.
    assert len(replace_pattern(module, pattern, lambda x: F.relu(x.add_(1)))) == 1
    assert_unchanged_meaning(module, program, X)


def test_nothing_is_replaced_where_neither_end_will_do(capture):
    def program(x, y):
        first = x.add_(1)
        y.mul_(2)
        return first + torch.relu(y)

    module = capture(program)

    replaced = replace_pattern(
        module, lambda x, y: x.add_(1) + torch.relu(y), lambda x, y: x.add_(1) + torch.clamp(y, min=0)
    )

    assert replaced == []
    assert_unchanged_meaning(module, program, X, X + 1)


def test_a_call_that_may_do_anything_is_not_passed(capture):
    seen = []

    def program(x):
        shifted = x + 1
        torch.ops.aten.add_(shifted, 1)
        return torch.relu(shifted)

    module = capture(program)
    for node in module.graph.nodes:
        if node.target is torch.ops.aten.add_:
            node.target = lambda value, _: seen.append(value.sum())

    assert replace_pattern(module, add_then_relu, add_then_clamp) == []


def test_printing_between_is_passed(capture):
    module = capture(lambda x: torch.relu(x + 1))
    relu = module.graph.find_nodes(op="call_function", target=torch.relu)[0]
    with module.graph.inserting_before(relu):
        module.graph.call_function(print, ("between",))

    assert len(replace_pattern(module, add_then_relu, add_then_clamp)) == 1


def test_random_numbers_are_drawn_in_the_same_order(capture):
    def program(x):
        first = F.dropout(x, 0.5, training=True)
        second = F.dropout(x, 0.1, training=True)
        return first + torch.relu(x), second

    module = capture(program)

    def pattern(x):
        return F.dropout(x, 0.5, training=True) + torch.relu(x)

    # The draw cannot be moved behind the other one; all of it can run at the place of the first.
    assert (
        len(replace_pattern(module, pattern, lambda x: torch.relu(x) + F.dropout(x, 0.5, training=True))) == 1
    )
    assert_unchanged_meaning(module, program, X)

    def late_input(x):
        first = F.dropout(x, 0.5, training=True)
        second = F.dropout(x, 0.1, training=True)
        return first + second

    module = capture(late_input)
    assert (
        replace_pattern(
            module,
            lambda x, y: F.dropout(x, 0.5, training=True) + y,
            lambda x, y: y + F.dropout(x, 0.5, training=True),
        )
        == []
    )


class Norms(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.BatchNorm1d(3)
        self.second = nn.BatchNorm1d(3)

    def forward(self, x):
        one = self.first(x)
        other = self.second(x)
        return torch.relu(one), other


class NormThenRelu(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.BatchNorm1d(3)

    def forward(self, x):
        return torch.relu(self.first(x))


class NormThenClamp(NormThenRelu):
    def forward(self, x):
        return torch.clamp(self.first(x), min=0)


def test_modules_that_update_their_own_state_pass_each_other(capture):
    module = capture(Norms())

    assert len(replace_pattern(module, NormThenRelu(), NormThenClamp())) == 1


def test_a_module_does_not_pass_another_use_of_its_state(capture):
    class Shared(Norms):
        def forward(self, x):
            one = self.first(x)
            other = self.first(x * 2)
            return torch.relu(one) + other

    class Behind(NormThenRelu):
        def forward(self, x, y):
            return torch.relu(self.first(x)) + y

    torch.manual_seed(0)
    module = capture(Shared())

    assert replace_pattern(module, Behind(), lambda x, y: x + y) == []


def test_a_state_that_is_read_directly_is_not_passed(capture):
    class Reading(Norms):
        def forward(self, x):
            shifted = x + self.first.running_mean
            normal = self.first(x)
            return torch.relu(shifted), normal

    module = capture(Reading())

    assert (
        replace_pattern(module, lambda x, y: torch.relu(x + y), lambda x, y: torch.clamp(x + y, min=0)) == []
    )


def test_matches_inside_each_other_keep_the_order_of_their_writes(capture):
    """Each of the two could move alone."""

    def program(x, y):
        a = x.add_(1)
        b = y.add_(2)
        c = a * 2
        d = b * 2
        return c + d

    module = capture(program)

    replace_pattern_with_filters(
        module, lambda v, n: v.add_(n) * 2, lambda v, n: v.add_(n) + v, match_filters=[]
    )

    module.graph.lint()
    assert_unchanged_meaning(module, program, X, X + 1)


# -- aliases


def test_a_copy_that_is_written_is_not_replaced_by_the_input(capture):
    def program(x):
        fresh = x + 0
        fresh.add_(1)
        return fresh, x

    module = capture(program)

    assert replace_pattern(module, lambda v: v + 0, lambda v: v) == []
    assert_unchanged_meaning(module, program, X)


def test_an_input_that_is_written_later_is_not_returned_for_a_copy(capture):
    def program(x):
        fresh = x + 0
        x.add_(1)
        return fresh, x

    module = capture(program)

    assert replace_pattern(module, lambda v: v + 0, lambda v: v) == []
    assert_unchanged_meaning(module, program, X)


def test_a_view_of_a_copy_that_is_written_counts_too(capture):
    def program(x):
        fresh = x + 0
        fresh.view(-1).add_(1)
        return fresh, x

    module = capture(program)

    assert replace_pattern(module, lambda v: v + 0, lambda v: v) == []


def test_what_the_input_is_a_view_of_counts_too(capture):
    def program(x):
        fresh = x.view(-1) + 0
        x.add_(1)
        return fresh

    module = capture(program)

    assert replace_pattern(module, lambda v: v + 0, lambda v: v) == []
    assert_unchanged_meaning(module, program, X)


def test_a_buffer_that_a_module_updates_is_not_returned_for_a_copy(capture):
    class Before(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm = nn.BatchNorm1d(3)

        def forward(self, x):
            before = self.norm.running_mean + 0
            return self.norm(x), before

    module = capture(Before())
    in_evaluation = capture(Before().eval())

    assert replace_pattern(module, lambda v: v + 0, lambda v: v) == []
    assert len(replace_pattern(in_evaluation, lambda v: v + 0, lambda v: v)) == 1


def test_writes_to_what_is_computed_from_a_copy_do_not_matter(capture):
    def program(x):
        fresh = x + 0
        return torch.neg(fresh).add_(1)

    module = capture(program)

    assert len(replace_pattern(module, lambda v: v + 0, lambda v: v)) == 1
    assert_unchanged_meaning(module, program, X)


def test_a_linear_layer_makes_new_memory(capture):
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(3, 3)

        def forward(self, x):
            return self.linear(x + 0).relu_()

    assert len(replace_pattern(capture(Model()), lambda v: v + 0, lambda v: v)) == 1


# -- regions


def test_new_nodes_lie_in_the_region_of_the_old_ones(capture):
    module = capture(lambda x: torch.relu(x + 1) * 2)
    region = (RegionEntry(torch.autocast, ("cpu", torch.bfloat16)),)
    for node in module.graph.find_nodes(op="call_function"):
        if node.target is not torch.mul:
            node.region = region

    (place,) = replace_pattern_with_filters(module, add_then_relu, add_then_clamp)

    assert {node.region for node in place.replacements} == {region}


def test_a_region_of_the_replacement_lies_inside(capture):
    module = capture(relu)
    module.graph.find_nodes(op="call_function")[0].region = (RegionEntry(torch.enable_grad),)
    replacement = capture(lambda x: torch.clamp(x, min=0))
    replacement.graph.find_nodes(op="call_function")[0].region = (RegionEntry(torch.no_grad),)

    (place,) = replace_pattern_with_filters(module, relu, replacement)

    assert place.replacements[0].region == (RegionEntry(torch.enable_grad), RegionEntry(torch.no_grad))
    assert not module(X.clone().requires_grad_()).requires_grad


@pytest.mark.parametrize("count", [1, 40])
def test_an_effect_that_a_plugin_registers_counts(capture, count):
    def log(value):
        return value

    effects.register_target(log, effects.effect_of(_print_node()))
    try:
        module = capture(lambda x: torch.relu(x + 1))
        relu = module.graph.find_nodes(op="call_function", target=torch.relu)[0]
        with module.graph.inserting_before(relu):
            for _ in range(count):
                module.graph.call_function(log, (1,))
        assert replace_pattern(module, add_then_relu, add_then_clamp) == []
    finally:
        effects.unregister_target(log)


def _print_node():
    graph = Tracer().trace(lambda x: x)
    return graph.call_function(print, ())


def test_code_and_interpreter_agree_after_a_rewrite(capture):
    module = capture(lambda x: torch.relu(x + 1) * torch.relu(x + 1))

    replace_pattern(module, add_then_relu, add_then_clamp)

    assert isinstance(module, GraphModule)
    torch.testing.assert_close(module(X), Interpreter(module).run(X))


def write_to_a_copy(x):
    copied = x.clone()
    copied.add_(1)
    return x


def write_to_a_view(x):
    view = x.view(-1)
    view.add_(1)
    return x


@pytest.mark.parametrize(
    ("program", "pattern", "replacement"),
    [
        (write_to_a_copy, lambda a: a.clone(), lambda a: a),
        (write_to_a_copy, lambda a: a.clone(), lambda a: F.dropout(a, 0.1, False)),
        (write_to_a_copy, lambda a: a.clone(), nn.Sequential(nn.Identity())),
        (write_to_a_copy, lambda a: a.clone(), lambda a: a[:]),
        (write_to_a_view, lambda a: a.view(-1), lambda a: a.reshape(-1).clone()),
    ],
    ids=["itself", "dropout", "identity module", "slice", "copy of a view"],
)
def test_a_value_that_is_written_shares_memory_with_what_it_did(capture, program, pattern, replacement):
    """A replacement that may return its input, where the pattern made something new, or the other way round."""
    module = capture(program)

    assert replace_pattern(module, pattern, replacement) == []
    assert_unchanged_meaning(module, program, X)


def test_sharing_does_not_matter_where_nothing_is_written(capture):
    module = capture(lambda x: x.clone() + x)

    assert len(replace_pattern(module, lambda a: a.clone(), lambda a: F.dropout(a, 0.1, False))) == 1
    assert_unchanged_meaning(module, lambda x: x.clone() + x, X)
