"""Comparisons of two values by identity, and tensors as keys, are answered rightly, checked or refused."""

from __future__ import annotations

import copy
import dataclasses
import enum
import operator

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

import fxplug
from fxplug.errors import GuardError, TraceError
from fxplug.plugins import Config, PluginManager, TraceConfig

ONE, TWO = torch.ones(2, 3), torch.full((2, 3), 2.0)


class Kind(enum.Enum):
    MEAN = 1
    SUM = 2


def compared(x, y):
    return x * 5 if x is y else x + y


def as_keys(x: torch.Tensor, y: torch.Tensor):
    return x * len({x, y})


def by_id(x, y):
    return x * 5 if id(x) == id(y) else x + y


@pytest.mark.parametrize("program", [compared, as_keys])
def test_two_inputs_are_checked_to_be_two(program):
    captured = fxplug.symbolic_trace(program)

    assert torch.equal(captured(ONE, TWO), program(ONE, TWO))
    with pytest.raises(GuardError, match="is not"):
        captured(ONE, ONE)


@pytest.mark.parametrize("program", [compared, as_keys, by_id])
def test_on_examples_it_is_guarded_which_inputs_are_one(program):
    one = fxplug.trace(program, (ONE, ONE))
    two = fxplug.trace(program, (ONE, TWO))

    assert torch.equal(one(TWO, TWO), program(TWO, TWO))
    assert torch.equal(two(TWO, ONE), program(TWO, ONE))
    with pytest.raises(GuardError):
        one(ONE, TWO)
    with pytest.raises(GuardError):
        two(ONE, ONE)


def test_a_tensor_that_is_given_twice_is_two_where_nobody_asks():
    captured = fxplug.trace(lambda x, y: x + y, (ONE, ONE))

    assert not captured.guards
    assert torch.equal(captured(ONE, TWO), ONE + TWO)


def test_many_inputs_are_guarded_by_one_guard():
    def program(*parts):
        return parts[0] * 5 if parts[0] is parts[8] else parts[0] + parts[8]

    inputs = [ONE + number for number in range(9)]
    captured = fxplug.trace(program, tuple(inputs))

    assert torch.equal(captured(*inputs), program(*inputs))
    with pytest.raises(GuardError):
        captured(*inputs[:8], inputs[0])


def with_a_global(x, kind):
    return x.mean() if kind is Kind.MEAN else x.sum()


def of_parts(batch):
    return batch["x"] if batch["x"] is batch["y"] else batch["y"]


def of_a_result(x):
    y = torch.nn.functional.dropout(x, training=False)
    return x * 2 if x is y else x


def none_on_the_left(batch):
    return batch["x"] if None is batch["mask"] else batch["y"]


def none_deep_inside(batch):
    return batch["x"] if batch["masks"]["x"] is None else batch["y"]


def in_a_function_inside(x, y):
    def same(a, b):
        return a is b

    return x * 5 if same(x, y) else x


@pytest.mark.parametrize(
    "program",
    [with_a_global, of_parts, of_a_result, none_on_the_left, none_deep_inside, in_a_function_inside],
)
def test_what_cannot_be_known_is_refused(program):
    with pytest.raises(TraceError) as refused:
        fxplug.symbolic_trace(program)

    assert refused.value.code == "FXP-T041"


def _same(a, b):
    return a is b


def _itself(x):
    return x


@pytest.mark.parametrize("make", [torch.neg, torch.relu, _itself])
def test_what_is_certain_is_answered_without_a_check(make):
    def program(x):
        return x * 5 if _same(x, make(x)) else x

    captured = fxplug.symbolic_trace(program)

    assert not captured.guards
    assert torch.equal(captured(ONE), program(ONE))


def _in_a_checkpoint(x):
    return checkpoint(_itself, x, use_reentrant=False)


PASSING_CALLS = {
    "pos": operator.pos,
    "sum_to_size": lambda x: x.sum_to_size(2, 3),
    "broadcast_tensors": lambda x: torch.broadcast_tensors(x)[0],
    "conj_physical": torch.conj_physical,
    "an operator": lambda x: torch.ops.aten.to.dtype(x, torch.float32),
    "a checkpoint": _in_a_checkpoint,
    "dropout": lambda x: torch.nn.functional.dropout(x, training=False),
    "out": lambda x: torch.abs(x, out=x),
    "inplace": lambda x: torch.nn.functional.relu(x, inplace=True),
    "an augmented operator": lambda x: operator.imul(x, 1),
    "an underscore": lambda x: x.abs_(),
    "a method that no tensor has": lambda x: x.itself(),
}


class Named(torch.Tensor):
    def itself(self):
        return self


@pytest.mark.parametrize("name", PASSING_CALLS)
def test_calls_that_may_return_what_they_are_given_are_checked(name):
    def program(x):
        return x * 5 if _same(x, PASSING_CALLS[name](x)) else x

    captured = fxplug.symbolic_trace(program)

    with pytest.raises(GuardError, match="is not"):
        captured(ONE.clone().as_subclass(Named) if name == "a method that no tensor has" else ONE.clone())


def _with_a_hook():
    layer = torch.nn.ReLU()
    layer.register_forward_hook(lambda module, args, output: args[0])
    return layer


def _with_a_forward():
    layer = torch.nn.ReLU()
    layer.forward = _itself
    return layer


PASSING_LAYERS = {
    "an identity": torch.nn.Identity,
    "a flattening": lambda: torch.nn.Flatten(1),
    "a dropout": lambda: torch.nn.Dropout().eval(),
    "in place": lambda: torch.nn.ReLU(inplace=True),
    "compiled by TorchScript": lambda: torch.jit.script(torch.nn.Identity()),
    "a container": lambda: torch.nn.Sequential(torch.nn.Identity()),
    "a hook": _with_a_hook,
    "a forward of its own": _with_a_forward,
}


@pytest.mark.filterwarnings("ignore:`torch.jit")
@pytest.mark.parametrize("name", PASSING_LAYERS)
def test_layers_that_may_return_what_they_are_given_are_checked(name):
    class Program(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = PASSING_LAYERS[name]()

        def forward(self, x):
            return x * 5 if _same(x, self.layer(x)) else x

    class AllLeaves(fxplug.Tracer):
        def is_leaf_module(self, m, module_qualified_name):
            return True

    captured = fxplug.GraphModule(root := Program().eval(), AllLeaves().trace(root))

    with pytest.raises(GuardError, match="is not"):
        captured(ONE.clone())


def test_two_inputs_that_are_compared_twice_are_checked_once():
    def program(x, y):
        return x * 5 if _same(x, y) or _same(y, x) else x + y

    graph = fxplug.symbolic_trace(program).graph

    assert len(graph.find_nodes(op="call_function", target=operator.is_not)) == 1


@pytest.mark.parametrize("writes", [True, False])
def test_a_program_is_not_run_again_when_a_check_stands_behind_a_write(writes):
    def program(x, y):
        z = x.add_(1) if writes else x + 1
        return x * 5 if _same(x, y) else z

    captured = fxplug.symbolic_trace(program)

    with pytest.raises(GuardError) as refused:
        captured(given := ONE.clone(), given)
    assert refused.value.can_run_again is not writes


def test_a_plain_layer_is_not_checked():
    captured = fxplug.symbolic_trace(torch.nn.Sequential(Plain()))

    assert torch.equal(captured(ONE), ONE)
    assert all(node.target is not operator.is_not for node in captured.graph.nodes)


class Plain(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.ReLU()

    def forward(self, x):
        return x * 5 if _same(x, self.layer(x)) else x


class Tied(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = torch.nn.Linear(3, 3), torch.nn.Linear(3, 3)
        self.b.weight = self.a.weight

    def forward(self, x):
        return x * 5 if _same(self.a.weight, self.b.weight) else x


class TiedInAnExpression(Tied):
    def forward(self, x):
        return x * 5 if self.a.weight is self.b.weight else x


@pytest.mark.parametrize("root", [Tied(), TiedInAnExpression()])
def test_weights_that_are_one_are_one_and_are_checked_to_be(root):
    captured = fxplug.symbolic_trace(root)

    assert torch.equal(captured(ONE), root(ONE))
    again = copy.deepcopy(captured)
    assert torch.equal(again(TWO), root(TWO))
    again.b.weight = torch.nn.Parameter(torch.ones(3, 3))
    with pytest.raises(GuardError, match=r"a\.weight is b\.weight|b\.weight is a\.weight"):
        again(ONE)


class FindsWeights(Tied):
    def forward(self, x):
        return x * 5 if any(one is self.b.weight for one in self.a.parameters()) else x


WEIGHT = nn.Parameter(torch.ones(3))


class Holds(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = WEIGHT
        self.kept, self.holder = [WEIGHT], dataclasses.make_dataclass("Holder", ["weight"])(WEIGHT)
        self.other = nn.Parameter(torch.zeros(3))

    def scaled(self, x):
        return x * self.weight


class InAList(Holds):
    def forward(self, x):
        return x * 5 if self.weight is self.kept[0] else x


class InAnObject(Holds):
    def forward(self, x):
        x = self.scaled(x)  # By then it is known what stands for it.
        return x * 5 if self.holder.weight is self.weight else x


class InAGlobal(Holds):
    def forward(self, x):
        weight = self.weight
        return x * 5 if weight is WEIGHT else x


class IsAnotherOne(Holds):
    def forward(self, x):
        return x * 5 if self.other is WEIGHT else self.scaled(x)


def test_a_weight_is_not_the_other_one_that_is_found_otherwise():
    root = IsAnotherOne()
    assert torch.equal(fxplug.symbolic_trace(root)(TWO), root(TWO))


@pytest.mark.parametrize("root", [InAList(), InAnObject(), InAGlobal()])
def test_weights_that_the_program_holds_elsewhere_are_not_said_to_be_two(root):
    with pytest.raises(TraceError, match=r"whether two values are the same object.*\[FXP-T041\]$"):
        fxplug.symbolic_trace(root)


def test_weights_that_are_found_otherwise_are_not_said_to_be_two():
    with pytest.raises(TraceError, match=r"whether two values are the same object.*\[FXP-T041\]$"):
        fxplug.symbolic_trace(FindsWeights())


@pytest.mark.parametrize("policy", ["eager", "recapture"])
def test_nested_inputs_of_another_structure_run_as_told(policy):
    def program(parts):
        return sum(parts)

    captured = fxplug.trace(program, ([ONE, TWO],), on_guard_failure=policy)

    for count in (3, 2, 3, 1):
        assert torch.equal(captured([ONE] * count), ONE * count)


def test_a_class_of_no_module_of_its_own_is_looked_at():
    """Text that is run in a dict without ``__name__`` makes classes of the module ``builtins``."""
    names = {"nn": torch.nn}
    exec(
        "class Asks(nn.Module):\n    def forward(self, x, y):\n        return x * 2 if x is y else x\n", names
    )
    assert names["Asks"].__module__ == "builtins"
    values = torch.ones(2)

    captured = fxplug.trace(names["Asks"](), (torch.ones(2), torch.ones(2)))

    with pytest.raises(fxplug.GuardError, match="y is not x"):
        captured(values, values)


# -- what a call has returned


@fxplug.wrap
def gives_none(x):
    return None


@fxplug.wrap
def gives_pair(x):
    return None, x


@fxplug.wrap
def gives_tensor(x) -> torch.Tensor:
    return x * 2


class Attends(torch.nn.Module):
    def __init__(self, **options):
        super().__init__()
        self.attention = torch.nn.MultiheadAttention(3, 1)
        self.options = options

    def forward(self, x):
        result, weights = self.attention(x, x, x, **self.options)
        return result if weights is None else result * 2


class GivesNone(torch.nn.Module):
    def forward(self, x):
        return None


class Calls(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = GivesNone()

    def forward(self, x):
        y = self.inner(x)
        return x if y is None else y


def of_a_kept_function(x):
    y = gives_none(x)
    return x if y is None else y


def of_a_function_that_hands_it_on(x):
    def inner(x):
        return gives_none(x)

    y = inner(x)
    return x if y is None else y


def part_of_it(x):
    first, other = gives_pair(x)
    return other if first is None else first


def gradients(x):
    x = x.detach().requires_grad_()
    other = x.detach().requires_grad_()
    found = torch.autograd.grad((x * 2).sum(), [x, other], allow_unused=True)
    return found[0] if found[1] is None else found[1]


def chosen(gradient, other):
    return other if gradient is None else gradient


def gradients_given_to_another(x):
    x = x.detach().requires_grad_()
    other = x.detach().requires_grad_()
    found = torch.autograd.grad((x * 2).sum(), [x, other], allow_unused=True)
    return chosen(found[1], found[0])


@pytest.mark.parametrize(
    "root",
    [
        *(of_a_kept_function, of_a_function_that_hands_it_on, part_of_it),
        *(gradients, gradients_given_to_another, Attends(need_weights=False)),
    ],
)
def test_result_that_may_be_none_and_is_asked_is_refused(root):
    with pytest.raises(TraceError, match=r"is None is asked at .*\[FXP-T041\]$"):
        fxplug.symbolic_trace(root)

    assert torch.equal(fxplug.trace(root, (ONE,), check=False)(ONE), root(ONE))


class KeepsCalls(fxplug.Tracer):
    """A tracer that leaves modules of the program whole."""

    def is_leaf_module(self, m, module_qualified_name):
        return isinstance(m, GivesNone)


class KeepsCallsItself(KeepsCalls):
    """One that hears of calls itself, too."""

    def call_module(self, m, forward, args, kwargs):
        return super().call_module(m, forward, args, kwargs)


@pytest.mark.parametrize("tracer", [KeepsCalls, KeepsCallsItself])
def test_result_of_a_module_of_the_program_that_is_asked_is_refused(tracer):
    with pytest.raises(TraceError, match=r"is None is asked at .*\[FXP-T041\]$"):
        tracer().trace(Calls())


def test_result_that_is_no_none_may_be_asked():
    def program(x):
        y = gives_tensor(x)
        z = torch.autograd.grad((y * y).sum(), x, allow_unused=True, materialize_grads=True)[0]
        return y if y is None or z is None else y + z

    given = ONE.clone().requires_grad_()
    assert torch.equal(fxplug.symbolic_trace(program)(given), program(given))
    attends = Attends()
    assert torch.equal(fxplug.symbolic_trace(attends)(ONE), attends(ONE))


def test_gradients_that_are_not_asked_are_captured():
    def program(x):
        other = x.detach().requires_grad_()
        return torch.autograd.grad((x * 2).sum(), [x, other], allow_unused=True)[0]

    given = ONE.clone().requires_grad_()
    assert torch.equal(fxplug.symbolic_trace(program)(given), program(given))


def compared_with_a_local(x):
    y = x.contiguous()
    return x * 2 if y is x else x * 3


def of_what_was_computed(x):
    y = x * 1
    return y * 2 if y.float() is y else y * 3


def by_identifier(x):
    y = x * 1
    return y * 2 if id(y.float()) == id(y) else y * 3


def with_what_a_list_holds(x):
    y = x * 1
    held = [y]
    z = y.to(torch.float32)
    return x * 2 if z is held[0] else z * 3


def with_any(x):
    z = x.contiguous()
    return x * 2 if any(part is x for part in [z]) else x * 3


def in_what_held_something_else(x):
    y = []
    y = x.contiguous()
    return x * 2 if y is x else x * 3


def with_what_is_another_one_later(x):
    former = torch.zeros(1)
    y = x.contiguous()
    former = x
    return x * 2 if y is former else x * 3


def assigned_in_a_loop(x):
    y = None
    for number in range(2):
        y = x.contiguous() if number else 0
    return x * 2 if y is x else x * 3


def _count(values):
    found = []
    for value in values:
        if not any(value is one for one in found):
            found.append(value)
    return len(found)


def _are_one(pair):
    first, second = pair
    return first is second


def _are_pairwise_one(one, other):
    return all(a is b for a, b in zip(one, other, strict=True))


class _Register:
    def __init__(self):
        self.values = []

    def add(self, value):
        for number, one in enumerate(self.values):
            if one is value:
                return number
        self.values.append(value)
        return -1


def in_a_register(x):
    register = _Register()
    register.add(x)
    return x * (register.add(x.contiguous()) + 3)


@dataclasses.dataclass
class _Two:
    a: torch.Tensor
    b: torch.Tensor

    @property
    def are_one(self):
        return self.a is self.b


def _key(value):
    return id(value)


def _are_one_of_a_kind(a, b, kind=Kind.MEAN):
    return a is b and kind is Kind.MEAN


def as_an_element_of_a_set(x):
    y = x.contiguous()
    return x * 2 if x in {y} else x * 3


def by_an_operator(x):
    return x * 2 if operator.is_(x.contiguous(), x) else x * 3


def _dense(x):
    return x.contiguous()


WIDE, TRANSPOSED, DOUBLE = torch.ones(2, 3), torch.ones(3, 2).t(), torch.ones(2, 3, dtype=torch.float64)
RETURNED_AS_GIVEN = {
    "contiguous": (lambda x: x * 2 if x.contiguous() is x else x * 3, TRANSPOSED),
    "float": (lambda x: x * 2 if x.float() is x else x * 3, DOUBLE),
    "to": (
        lambda x: x * 2 if x.to(torch.float32) is not x else x * 3,
        torch.ones(2, 3, dtype=torch.int64),
    ),
    "a local": (compared_with_a_local, TRANSPOSED),
    "no parameter": (of_what_was_computed, DOUBLE),
    "an identifier": (by_identifier, DOUBLE),
    "an element": (with_what_a_list_holds, DOUBLE),
    "a loop": (with_any, TRANSPOSED),
    "a function that compares": (lambda x: x * 2 if _same(x.contiguous(), x) else x * 3, TRANSPOSED),
    "a function that calls": (lambda x: x * 2 if _dense(x) is x else x * 3, TRANSPOSED),
    "an operator": (lambda x: x * 2 if torch.broadcast_tensors(x)[0] is x else x * 3, None),
    "something else before": (in_what_held_something_else, TRANSPOSED),
    "another one later": (with_what_is_another_one_later, TRANSPOSED),
    "assigned in a loop": (assigned_in_a_loop, TRANSPOSED),
    "a loop elsewhere": (lambda x: x * _count([x, x.contiguous()]), TRANSPOSED),
    "taken apart": (lambda x: x * 2 if _are_one((x, x.contiguous())) else x * 3, TRANSPOSED),
    "pairs": (lambda x: x * 2 if _are_pairwise_one([x], [x.contiguous()]) else x * 3, TRANSPOSED),
    "a register": (in_a_register, TRANSPOSED),
    "a property": (lambda x: x * 2 if _Two(x, x.contiguous()).are_one else x * 3, TRANSPOSED),
    "an identifier elsewhere": (
        lambda x: x * 2 if _key(x.contiguous()) == _key(x) else x * 3,
        TRANSPOSED,
    ),
    "operator.is_": (by_an_operator, TRANSPOSED),
    "beside another comparison": (
        lambda x: x * 2 if _are_one_of_a_kind(x.contiguous(), x) else x * 3,
        TRANSPOSED,
    ),
}


@pytest.mark.parametrize("mode", ["shape", "value"])
@pytest.mark.parametrize("checked", [True, False])
@pytest.mark.parametrize("name", RETURNED_AS_GIVEN)
def test_whether_a_call_returns_its_argument_is_answered_and_guarded(name, checked, mode):
    program, other = RETURNED_AS_GIVEN[name]
    captured = fxplug.trace(program, (WIDE,), mode=mode, check=checked)
    assert torch.equal(captured(torch.ones(2, 3)), program(torch.ones(2, 3)))
    if other is not None:
        with pytest.raises(fxplug.GuardError, match=r" is \S"):
            captured(other)


@pytest.mark.parametrize("mode", ["shape", "value"])
@pytest.mark.parametrize("checked", [True, False])
@pytest.mark.parametrize(
    "name", [name for name, (_, other) in RETURNED_AS_GIVEN.items() if other is not None]
)
def test_that_it_returns_another_value_is_guarded_as_well(name, checked, mode):
    program, other = RETURNED_AS_GIVEN[name]
    captured = fxplug.trace(program, (other,), mode=mode, check=checked)
    assert torch.equal(captured(other), program(other))
    with pytest.raises(fxplug.GuardError, match=r"not .* is \S"):
        captured(WIDE)


@pytest.mark.parametrize("mode", ["shape", "value"])
def test_a_key_that_a_call_may_have_returned_as_it_was_given_is_guarded_or_refused(mode):
    captured = fxplug.trace(as_an_element_of_a_set, (TRANSPOSED,), mode=mode)
    assert torch.equal(captured(TRANSPOSED), as_an_element_of_a_set(TRANSPOSED))
    with pytest.raises(fxplug.GuardError, match=r"not .* is \S"):
        captured(WIDE)
    with pytest.raises(TraceError, match=r"returned as it was given is a key.*\[FXP-T043\]$"):
        fxplug.trace(as_an_element_of_a_set, (WIDE,), mode=mode)


@pytest.mark.parametrize("mode", ["shape", "value"])
@pytest.mark.parametrize("first", [WIDE, TRANSPOSED])
def test_a_captured_program_keeps_these_guards_when_it_is_captured_again(first, mode):
    def program(x):
        return x * 2 if x.contiguous() is x else x * 3

    again = fxplug.trace(fxplug.trace(program, (first,)), (first,), mode=mode)
    assert torch.equal(again(first), program(first))
    with pytest.raises(fxplug.GuardError):
        again(TRANSPOSED if first is WIDE else WIDE)


@pytest.mark.parametrize(
    "program",
    [by_an_operator, fxplug.trace(lambda x: x * 2 if x.contiguous() is x else x * 3, (WIDE,))],
    ids=["a program", "a captured one"],
)
def test_functions_that_compare_are_refused_without_examples(program):
    with pytest.raises(TraceError, match=r"names operator\.is_ or is_not.*\[FXP-T041\]$"):
        fxplug.symbolic_trace(program)


def test_a_program_is_not_run_again_when_it_has_written_before_a_guard_in_shape_mode():
    class Writes(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("count", torch.zeros(()))

        def forward(self, x):
            self.count += 1
            return x * 2 if x.contiguous() is x else x * 3

    root = Writes()
    captured = fxplug.trace(root, (WIDE,), mode="shape", on_guard_failure="eager")
    with pytest.raises(fxplug.GuardError):
        captured(TRANSPOSED)
    assert root.count == 1


class ComparesItsOwn(torch.nn.Module):
    """Compares a weight with what a call returned of it, and layers with one another."""

    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(3))
        self.first = torch.nn.Identity()
        self.layers = torch.nn.ModuleList([self.first, torch.nn.ReLU()])

    def forward(self, x):
        for layer in self.layers:
            x = layer(x) + 1 if layer is self.first else layer(x.float())
        return x * 2 if self.weight.contiguous() is self.weight else x * 3


@pytest.mark.parametrize("mode", ["shape", "value"])
def test_weights_and_layers_that_are_compared_are_what_they_are(mode):
    root = ComparesItsOwn()
    captured = fxplug.trace(root, (WIDE,), mode=mode)
    assert torch.equal(captured(TRANSPOSED), root(TRANSPOSED))
    assert torch.equal(captured(DOUBLE), root(DOUBLE))


@pytest.mark.parametrize(
    "program", [of_what_was_computed, with_what_a_list_holds, ComparesItsOwn(), with_any]
)
def test_what_may_have_been_returned_as_it_was_given_is_refused_without_examples(program):
    with pytest.raises(TraceError, match=r"whether two values are the same object.*\[FXP-T041\]$"):
        fxplug.symbolic_trace(program)


class ComparesLayers(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.ModuleList([torch.nn.ReLU(), torch.nn.Tanh()])
        self.first, self.last = torch.nn.Identity(), torch.nn.ReLU()
        self.chosen = self.first

    def forward(self, x, kind=Kind.SUM):
        x = self.chosen(x.float() * 2).contiguous()
        for layer in self.layers:
            x = layer(x)
            if layer is not self.layers[-1]:
                x = x + 1
        x = x + 2 if type(self.first) is type(self.last) else x
        return self.last(x) if self.chosen is self.first else x


@pytest.mark.parametrize("mode", ["symbolic", "shape", "value"])
def test_what_is_no_value_of_the_program_may_be_compared(mode):
    root = ComparesLayers()
    captured = fxplug.trace(root, (WIDE,), mode=mode)
    assert torch.equal(captured(TRANSPOSED), root(TRANSPOSED))


def _of_kind(value, kind=Kind.MEAN):
    return value.mean() if kind is Kind.MEAN else value.sum()


def _number_of(kind):
    kind = Kind(kind)
    return 1 if kind is Kind.SUM else 2


def with_an_identity(x):
    x = IDENTITY(x.contiguous().float() * 1)
    return _of_kind(x, Kind.SUM) + _number_of(Kind.SUM)


IDENTITY = torch.nn.Identity()


class ReturnsItsArgument(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.same = torch.nn.Identity()

    def forward(self, x):
        return x * 2 if self.same(x) is x else x * 3


def test_what_can_have_no_other_answer_is_not_guarded():
    captured = fxplug.trace(with_an_identity, (WIDE,), mode="value")
    assert torch.equal(captured(DOUBLE), with_an_identity(DOUBLE))
    captured = fxplug.trace(ReturnsItsArgument(), (WIDE,), mode="value")
    assert torch.equal(captured(TRANSPOSED), TRANSPOSED * 2)
    assert not captured.graph.find_nodes(op="call_function", target=operator.is_)


class ComparesWithWhatItHolds(torch.nn.Module):
    def is_last(self, value):
        return value is self.last

    def forward(self, x):
        self.last = x
        answer = self.is_last(x.contiguous())
        del self.last
        return x * 2 if answer else x * 3


def test_what_a_module_holds_may_be_a_value_of_the_program():
    with pytest.raises(TraceError, match=r"\[FXP-T041\]$"):
        fxplug.symbolic_trace(ComparesWithWhatItHolds())


def _of_any(*values):
    return values[0] is values[1]


def test_what_a_function_is_given_behind_a_star_is_compared_too():
    with pytest.raises(TraceError, match=r"\[FXP-T041\]$"):
        fxplug.symbolic_trace(lambda x: x * 2 if _of_any(x, x.contiguous()) else x * 3)


@pytest.mark.parametrize("mode", ["shape", "value"])
def test_a_call_that_returns_its_argument_is_another_value_where_nobody_asks(mode):
    captured = fxplug.trace(
        lambda x: F.dropout(x, training=False).contiguous() * 2, (torch.ones(2, 3),), mode=mode
    )
    assert captured.guards == ()
    assert torch.equal(captured(torch.ones(3, 2).t()), torch.full((2, 3), 2.0))


# -- what cannot be otherwise is not asked


class ComparesItsInputs(nn.Module):
    """Compares tensors, so that what calls return may matter."""

    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, x):
        y = self.function(x * 2)
        return y + 1 if y is x else y + 2


@pytest.mark.parametrize("mode", ["value", "shape"])
@pytest.mark.parametrize(
    "function",
    [
        lambda x: F.relu(x, inplace=False),
        lambda x: F.dropout(x, 0.5, training=False),
        lambda x: F.dropout2d(x, 0.5, training=False),
        lambda x: F.alpha_dropout(x, 0.5, training=False),
    ],
    ids=["relu", "dropout", "dropout2d", "alpha_dropout"],
)
def test_calls_that_return_always_or_never_what_they_are_given_are_not_guarded(function, mode):
    root = ComparesItsInputs(function)
    x = torch.rand(2, 3, 4, 4)
    module = fxplug.trace(root, (x,), mode=mode)

    assert torch.equal(module(x + 1), root(x + 1))
    assert not [guard for guard in module.guards if " is " in guard.text and "type(x)" not in guard.text]


@pytest.mark.parametrize("mode", ["value", "shape"])
def test_an_encoder_layer_is_not_checked_all_over(mode):
    everything = PluginManager(config=Config(trace=TraceConfig(through_modules=("*",))))
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).eval()
    module = fxplug.trace(layer, (torch.rand(2, 3, 8),), mode=mode, manager=everything)

    assert not module.graph.find_nodes(op="call_function", target=operator.is_)
    x = torch.rand(4, 5, 8)
    torch.testing.assert_close(module(x), layer(x))


class Compared(nn.Module):
    def forward(self, y, x):
        return y * 2 if y is x else y * 3


class ComparesInALayer(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = Compared()

    def forward(self, x):
        return self.layer(x.contiguous(), x)


def catches_everything(x):
    y = x.contiguous()
    try:
        return y * 2 if _is_the_same(y, x) else y * 3
    except Exception:
        return y * 5


def _is_the_same(one, other):
    return one is other


@pytest.mark.parametrize("mode", ["shape", "value"])
@pytest.mark.parametrize("make", [ComparesInALayer, lambda: catches_everything])
@pytest.mark.parametrize("is_same", [True, False])
def test_what_is_compared_by_a_function_that_is_reached_late_is_guarded(make, mode, is_same):
    examples = torch.arange(6.0).reshape(2, 3), torch.arange(6.0).reshape(3, 2).t()
    program = make()
    captured = fxplug.trace(program, (examples[not is_same],), mode=mode, check=False)

    assert torch.equal(captured(examples[not is_same]), program(examples[not is_same]))
    with pytest.raises(fxplug.GuardError, match=r" is \S"):
        captured(examples[is_same])


class NeverCompares(nn.Module):
    def __init__(self):
        super().__init__()
        self.helper = HasComparisons()

    def forward(self, x):
        return self.helper.run(x.contiguous())


class HasComparisons:
    def run(self, x):
        return self.run_both(x) if isinstance(x, list) else x * 2

    def run_both(self, pair):
        return self.compare(*pair)

    def compare(self, one, other):
        return one is other


@pytest.mark.parametrize("mode", ["shape", "value"])
def test_functions_that_compare_and_are_not_called_need_no_guards(mode):
    captured = fxplug.trace(NeverCompares(), (torch.arange(6.0).reshape(2, 3),), mode=mode)

    other = torch.arange(6.0).reshape(3, 2).t()
    assert torch.equal(captured(other), other * 2)
    assert not [guard for guard in captured.guards if " is " in str(guard) and "contiguous" in str(guard)]


def _make_comparison():
    return lambda one, other: one is other


def compares_by_a_function_made_when_it_runs(x):
    return x * 2 if _make_comparison()(x, x.contiguous()) else x * 3


def compares_by_a_class_made_when_it_runs(x):
    y = x.contiguous()

    class Comparison:
        def is_same(self, one, other):
            return one is other

    return x * 2 if Comparison().is_same(x, y) else x * 3


@pytest.mark.parametrize("mode", ["shape", "value"])
@pytest.mark.parametrize("is_same", [True, False])
@pytest.mark.parametrize(
    "program", [compares_by_a_function_made_when_it_runs, compares_by_a_class_made_when_it_runs]
)
def test_what_functions_that_are_made_when_the_program_runs_compare_is_guarded(program, is_same, mode):
    examples = torch.arange(6.0).reshape(2, 3), torch.arange(6.0).reshape(3, 2).t()
    captured = fxplug.trace(program, (examples[not is_same],), mode=mode, check=False)

    assert torch.equal(captured(examples[not is_same]), program(examples[not is_same]))
    with pytest.raises(GuardError, match=r" is \S"):
        captured(examples[is_same])


def _written_without_gradients(x):
    with torch.no_grad():
        y = x.contiguous()
        y.mul_(2)
    return y + 1


def _converted_and_written_without_gradients(x):
    with torch.no_grad():
        y = x.to(torch.float32)
        y.mul_(2)
    return x + 1


@pytest.mark.parametrize("program", [_written_without_gradients, _converted_and_written_without_gradients])
def test_what_a_call_returns_as_it_was_given_may_be_written_to_without_gradients(program):
    def given():
        return torch.ones(3, requires_grad=True)

    captured = fxplug.trace(program, (given(),), mode="value")

    ours, eager = given(), given()
    found, expected = captured(ours), program(eager)
    assert torch.equal(found, expected)
    assert torch.equal(ours, eager)
    assert found.requires_grad is expected.requires_grad
