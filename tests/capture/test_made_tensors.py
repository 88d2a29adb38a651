"""Tensors that a program makes without its inputs, and random numbers."""

from __future__ import annotations

import random

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import fxplug
from fxplug.errors import TraceError


def results(program, calls=3):
    torch.manual_seed(3)
    return [program(torch.arange(1.0, 4.0)) for _ in range(calls)]


def check_equal(module, program):
    for ours, theirs in zip(results(module), results(program), strict=True):
        assert parts(ours) == parts(theirs)


def parts(result):
    return [(one.tolist(), one.requires_grad) for one in (result if isinstance(result, tuple) else (result,))]


def augmented(x):
    total = torch.zeros(3)
    total += x
    return total


def by_item(x):
    total = torch.zeros(3)
    total[0] = total[1] + x[0]
    total[1] = x[1]
    return total


def by_method(x):
    total = torch.full((3,), 2.0)
    total.mul_(x)
    return total


def by_out(x):
    total = torch.empty(3)
    torch.add(x, 1, out=total)
    return total


def under_another_name(x):
    total = torch.zeros(3)
    same = total
    same += x
    same.mul_(2)
    total[2] = -1
    return total + same


def read_before_it_is_written(x):
    total = torch.zeros(3)
    before = x + total
    total[0] = 5
    return before, x * total


def view_taken_before(x):
    total = torch.zeros(3)
    view = total[0:2]
    shown = view.expand_as(x[:2])
    total.add_(x)
    return shown + 0, view * 1


def write_to_a_view(x):
    total = torch.zeros(3)
    row = total[:2]
    row += x[:2]
    return total


def several_views(x):
    first, second = torch.zeros(4).chunk(2)
    first += x[:2]
    return first, second


def written_without_inputs(x):
    total = torch.zeros(3)
    total[0] = 1.0
    total = total * 2
    return x + total


def of_other_tensors(x):
    total = torch.zeros_like(torch.ones(3, 2))
    total[:, 0] = x
    total[:, 1] = torch.tensor([1.0, 2.0, 3.0])
    return total.sum(0)


def made_new(x):
    total = torch.ones(1).new_zeros(3)
    total += x
    return total


def masked(x):
    mask = torch.ones(3, 3).tril().bool()
    return x.masked_fill(~mask, -1.0)


@pytest.mark.parametrize(
    "program",
    [
        augmented,
        by_item,
        by_method,
        by_out,
        under_another_name,
        read_before_it_is_written,
        view_taken_before,
        write_to_a_view,
        several_views,
        written_without_inputs,
        of_other_tensors,
        made_new,
        masked,
    ],
)
def test_tensor_that_is_made_is_fresh_in_every_call(capture, program):
    check_equal(capture(program), program)


def test_tensor_that_is_only_read_is_a_constant(capture):
    module = capture(written_without_inputs)
    assert [node.op for node in module.graph.nodes] == ["placeholder", "get_attr", "call_function", "output"]


def test_caller_may_write_to_a_tensor_that_is_returned(capture):
    module = capture(lambda x: torch.ones(2) * 3)
    module(torch.zeros(1)).zero_()
    assert module(torch.zeros(1)).tolist() == [3, 3]


def test_two_results_that_are_one_tensor_stay_one(capture):
    def program(x):
        total = torch.zeros(3)
        return total, total

    first, second = capture(program)(torch.ones(3))
    assert first is second


def test_write_to_a_tensor_of_unknown_origin_is_refused(capture):
    def program(x):
        total = torch.Tensor([1.0, 2.0, 3.0])  # Torch does not tell of this way.
        total += x
        return total

    with pytest.raises(TraceError, match=r"shape \(3,\) is written to at .*torch\.zeros.*\[FXP-T051\]$"):
        capture(program)


# -- what the root holds


class Held(nn.Module):
    def __init__(self):
        super().__init__()
        self.plain = torch.zeros(3)
        self.listed = [torch.zeros(3)]
        self.named = {"sum": torch.zeros(3)}
        self.weight = nn.Parameter(torch.ones(3))


class AddsToPlain(Held):
    def forward(self, x):
        self.plain.add_(1)
        return x + self.plain


class AugmentsPlain(Held):
    def forward(self, x):
        self.plain += x
        return x + self.plain


class WritesThroughAView(Held):
    def forward(self, x):
        self.plain[0].add_(x[0])
        return x + self.plain


class WritesToWhatListsHold(Held):
    def forward(self, x):
        self.listed[0].add_(x)
        self.named["sum"][0] = x[0]
        return x + self.listed[0] * 2 + self.named["sum"]


class IteratesPlain(Held):
    def forward(self, x):
        for row in self.plain:
            x = x + row
        return x * len(self.plain) * self.plain.dim()


class SumsParameters(Held):
    def forward(self, x):
        return x + sum(parameter.sum() for parameter in self.parameters()) * next(self.parameters()).shape[0]


@pytest.mark.parametrize(
    "kind",
    [AddsToPlain, AugmentsPlain, WritesThroughAView, WritesToWhatListsHold, IteratesPlain, SumsParameters],
)
def test_tensors_that_the_root_holds_are_read_by_the_graph(capture, kind):
    root = kind()
    module = capture(root)
    assert root.plain.tolist() == root.listed[0].tolist() == root.named["sum"].tolist() == [0, 0, 0]
    for tensors in (root, reference := kind()):
        with torch.no_grad():
            tensors.weight.fill_(2)
            tensors.plain.fill_(3)
    check_equal(module, reference)


def test_question_to_a_plain_tensor_is_refused(capture):
    class Root(Held):
        def forward(self, x):
            return x if self.plain.sum() > 0 else -x

    with pytest.raises(TraceError, match=r"condition.*\[FXP-T001\]$"):
        capture(Root())


def test_number_of_a_plain_tensor_is_that_of_each_call(capture):
    class Root(Held):
        def forward(self, x):
            return x * float(self.plain[0])

    root = Root()
    module = capture(root)
    for number in (2.0, 3.0):
        module.plain[0] = root.plain[0] = number
        check_equal(module, root)


def test_attribute_of_a_plain_tensor_cannot_be_assigned(capture):
    class Root(Held):
        def forward(self, x):
            self.plain.requires_grad = True
            return x

    root = Root()
    with pytest.raises(TraceError, match=r"'requires_grad'.*'plain'.*\[FXP-T015\]$"):
        capture(root)
    assert not root.plain.requires_grad


def test_parameter_of_a_closure_is_followed(capture):
    weight = nn.Parameter(torch.ones(3))
    module = capture(lambda x: x * (weight * 2))
    with torch.no_grad():
        weight.fill_(5)
    assert module(torch.ones(3)).tolist() == [10, 10, 10]


# -- random numbers


def drawn(x):
    return x + torch.rand(3) + torch.randn(3) * torch.randint(3, (3,)) + torch.normal(0.0, 1.0, (3,))


def drawn_in_place(x):
    return x + torch.empty(3).uniform_() + torch.zeros(3).normal_()


def drawn_like(x):
    return x + torch.rand_like(torch.ones(3)) + torch.bernoulli(torch.full((3,), 0.5))


def drawn_by_init(x):
    noise = torch.empty(3)
    nn.init.normal_(noise)
    return x + noise


def dropped(x):
    return x * F.dropout(torch.ones(3))


def permuted(x):
    return x[torch.randperm(3)]


@pytest.mark.parametrize("program", [drawn, drawn_in_place, drawn_like, drawn_by_init, dropped, permuted])
def test_random_numbers_are_drawn_by_every_call(capture, program):
    before = torch.get_rng_state()
    module = capture(program)
    assert torch.equal(torch.get_rng_state(), before)
    first, second, _ = results(module)
    assert first.tolist() != second.tolist()
    check_equal(module, program)


def by_python(x):
    return x * random.random()


def seeded_python(x):
    random.seed(0)
    return x


def by_numpy(x):
    return x * pytest.importorskip("numpy").random.rand()


def by_python_normally(x):
    return x * random.gauss(0, 1)


@pytest.mark.parametrize("program", [by_python, seeded_python, by_numpy, by_python_normally])
def test_random_numbers_of_others_are_refused_and_put_back(capture, program):
    by_numpy(0)
    by_python_normally(0)  # Python keeps the second number of a pair, and hands it out next.
    states = random.getstate()
    with pytest.raises(TraceError, match=r"random numbers from .*\[FXP-T053\]$"):
        capture(program)
    assert random.getstate() == states


def test_state_of_numpy_is_put_back(capture):
    numpy = pytest.importorskip("numpy")
    numpy.random.seed(0)
    before = numpy.random.get_state()
    with pytest.raises(TraceError, match="numpy"):
        capture(lambda x: x * numpy.random.rand())
    after = numpy.random.get_state()
    assert (before[1] == after[1]).all()
    assert before[2] == after[2]


@pytest.mark.parametrize("seed", [lambda: torch.manual_seed(3), torch.seed], ids=["manual_seed", "seed"])
def test_seeding_inside_the_program_is_refused(capture, seed):
    def program(x):
        seed()
        return x * torch.rand(3)

    before = torch.get_rng_state()
    with pytest.raises(TraceError, match=r"torch\.(manual_)?seed is called at .*\[FXP-T053\]$"):
        capture(program)
    assert torch.equal(torch.get_rng_state(), before)


def test_condition_on_a_random_number_is_refused(capture):
    with pytest.raises(TraceError, match="condition"):
        capture(lambda x: x if torch.rand(()) < 0.5 else -x)


def test_random_numbers_stay_in_the_graph_without_dead_code(capture):
    module = capture(drawn_in_place)
    module.graph.eliminate_dead_code()
    check_equal(module, drawn_in_place)


def test_program_with_made_tensors_survives_a_file(capture, tmp_path):
    module = capture(by_item)
    fxplug.save(module, tmp_path / "module.fxplug", allow=[".__setitem__"])
    check_equal(fxplug.load(tmp_path / "module.fxplug", allow=[".__setitem__"]), by_item)


@pytest.mark.parametrize("mode", ["value", "shape"])
@pytest.mark.parametrize(
    "make",
    [
        lambda: torch.meshgrid(torch.arange(3.0), torch.arange(3.0), indexing="ij"),
        lambda: torch.arange(6.0).split(3),
        lambda: torch.arange(9.0).reshape(3, 3).unbind(),
        lambda: torch.atleast_2d(torch.arange(3.0), torch.ones(3)),
    ],
    ids=["meshgrid", "split", "unbind", "atleast"],
)
def test_several_tensors_that_a_call_makes_of_no_input(make, mode):
    def program(x):
        first, second, *_ = make()
        return x + first, second * x

    x = torch.randn(3, 3) if make()[0].dim() == 2 else torch.randn(3)
    captured = fxplug.trace(program, (x,), mode=mode)
    for value in (x, x * 2):
        torch.testing.assert_close(captured(value), program(value), rtol=0, atol=0)


def by_gradient_of_made(x):
    weight = torch.ones(3, requires_grad=True)
    (x * weight).sum().backward()
    return x * 2 if weight.grad is None else x * 3


def by_gradient_through_made(x):
    weight = torch.ones(3, requires_grad=True)
    (x * (weight * 2)).sum().backward()
    return x * 2 if weight.grad is None else x * 3


def by_gradient_of_a_weight_made_in_forward(x):
    weight = nn.Parameter(torch.ones(3))
    (x * weight).sum().backward()
    return x * 2 if weight._grad is None else x * 3  # pyright: ignore[reportPrivateUsage]


@pytest.mark.parametrize(
    "program", [by_gradient_of_made, by_gradient_through_made, by_gradient_of_a_weight_made_in_forward]
)
def test_gradient_of_a_made_tensor_is_unknown_until_the_program_runs(program):
    x = torch.arange(3.0)
    with pytest.raises(TraceError, match=r"a gradient is computed only when .*example_inputs") as caught:
        fxplug.trace(program)
    assert caught.value.code == "FXP-T045"
    for mode in ("value", "shape"):
        assert torch.equal(fxplug.trace(program, (x,), mode=mode)(x + 1), program(x + 1))


def test_gradient_of_a_made_tensor_that_no_call_reads_is_none():
    def program(x):
        weight = torch.ones(3, requires_grad=True)
        if weight.grad is not None:
            weight.grad.zero_()
        other = torch.ones(3)
        y = x * weight
        return y if other.grad is None else x

    assert torch.equal(fxplug.trace(program)(torch.arange(3.0)), torch.arange(3.0))


def test_gradient_of_a_made_tensor_that_no_call_reads_yet_is_none():
    def program(x):
        weight = torch.ones(3, requires_grad=True)
        y = x * weight
        other = torch.zeros(3, requires_grad=True)
        return y * other if other.grad is None else y

    assert torch.equal(fxplug.trace(program)(torch.arange(3.0)), torch.zeros(3))


_HEARD: list[float] = []


def with_hook(x):
    weight = torch.ones(3, requires_grad=True)
    weight.register_hook(lambda gradient: _HEARD.append(1.0))
    (x * weight).sum().backward()
    return x + len(_HEARD)


def with_hook_that_is_taken_away(x):
    weight = torch.ones(3, requires_grad=True)
    handle = weight.register_post_accumulate_grad_hook(lambda gradient: _HEARD.append(1.0))
    (x * (weight * 2)).sum().backward()
    handle.remove()
    return x + len(_HEARD)


def with_hook_and_gradients_as_values(x):
    weight = torch.ones(3, requires_grad=True)
    weight.register_hook(lambda gradient: _HEARD.append(1.0))
    torch.autograd.grad((x * weight).sum(), weight)
    return x + len(_HEARD)


@pytest.mark.parametrize(
    "program", [with_hook, with_hook_that_is_taken_away, with_hook_and_gradients_as_values]
)
def test_hook_of_a_made_tensor_is_refused_where_the_program_computes_gradients(program):
    _HEARD.clear()
    with pytest.raises(
        TraceError, match=rf"a hook on a tensor that the program has made at .* in {program.__name__}"
    ) as caught:
        fxplug.trace(program)
    assert caught.value.code == "FXP-T010"
    assert _HEARD == []


def test_hook_of_a_made_tensor_stays_where_others_compute_gradients():
    """Torch calls it for the captured program as it does for the program."""

    def program(x):
        weight = torch.ones(3, requires_grad=True)
        weight.register_hook(lambda gradient: gradient * 5)
        return x * (weight * x)

    module = fxplug.trace(program)
    gradients = []
    for run in (program, module):
        x = torch.arange(3.0, requires_grad=True)
        run(x).sum().backward()
        gradients.append(x.grad)
    assert torch.equal(*gradients)
