"""The same program, pattern and replacement through torch.fx and through fxplug.

`DIFFERENCES` is the only place where another outcome is allowed, each with its reason.
"""

from __future__ import annotations

import copy
import operator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest
import torch
import torch.fx
from torch import nn
from torch.fx import subgraph_rewriter
from torch.nn import functional as F

from fxplug.capture import Tracer
from fxplug.execute import GraphModule
from fxplug.rewrite import replace_pattern, replace_pattern_with_filters

if TYPE_CHECKING:
    from collections.abc import Callable

X = torch.linspace(-2, 2, 6).reshape(2, 3)
Y = torch.linspace(1, 3, 6).reshape(2, 3)


@dataclass(frozen=True)
class Case:
    program: Any
    pattern: Any
    replacement: Any
    inputs: tuple[Any, ...] = (X,)
    options: dict[str, Any] | None = None


CASES: dict[str, Case] = {}


def case(*inputs: Any, **options: Any) -> Callable[[Callable[[], tuple[Any, Any, Any]]], Any]:
    def register(make: Callable[[], tuple[Any, Any, Any]]) -> Any:
        CASES[make.__name__] = Case(*make(), inputs or (X,), options or None)
        return make

    return register


@case()
def one_line():
    return lambda x: torch.relu(x) + 1, lambda v: torch.relu(v), lambda v: torch.neg(v)  # noqa: PLW0108


@case()
def no_match():
    return lambda x: torch.relu(x) + 1, lambda v: torch.sigmoid(v) * 2, lambda v: v * 3


@case(X, Y, Y + 1)
def several_places():
    def program(x, a, b):
        first = torch.cat([a, b]).sum()
        second = torch.cat([b, a]).sum()
        return x + torch.max(first) - torch.max(second)

    return program, lambda a, b: torch.cat([a, b]), lambda a, b: torch.stack([a, b])


@case(X, Y)
def order_of_arguments():
    return lambda x, y: torch.sub(y, x) * 2, lambda a, b: torch.sub(a, b), lambda a, b: torch.neg(b - a)  # noqa: PLW0108


@case()
def whole_program():
    return (
        lambda x: torch.relu(torch.neg(x)),
        lambda v: torch.relu(torch.neg(v)),
        lambda v: torch.clamp(-v, 0),
    )


@case()
def result_used_twice():
    def program(x):
        value = torch.relu(x)
        return value * value, torch.neg(value)

    return program, lambda v: torch.relu(v) * 1, lambda v: torch.clamp(v, 0)


@case()
def value_inside_used_outside():
    def program(x):
        value = torch.relu(x)
        return value + 1, torch.neg(value)

    return program, lambda v: torch.relu(v) + 1, lambda v: torch.sigmoid(v)  # noqa: PLW0108


@case()
def value_returned_and_used_outside():
    def program(x):
        value = torch.relu(x)
        return value + 1, torch.neg(value)

    def pattern(v):
        value = torch.relu(v)
        return value + 1, value

    def replacement(v):
        value = torch.clamp(v, min=0)
        return torch.add(value, 1), value

    return program, pattern, replacement


@case()
def overlapping():
    return (
        lambda x: torch.neg(torch.neg(torch.neg(torch.neg(torch.neg(x))))),
        lambda v: torch.neg(torch.neg(v)),
        lambda v: torch.abs(v),  # noqa: PLW0108
    )


@case()
def overlapping_by_an_argument():
    def program(x):
        value = torch.neg(x)
        return value + torch.neg(value)

    return program, lambda v: torch.neg(v), lambda v: torch.sub(0, v)  # noqa: PLW0108


@case()
def back_to_back():
    return (
        lambda x: torch.relu(torch.neg(torch.relu(torch.neg(torch.relu(torch.neg(x)))))),
        lambda v: torch.relu(torch.neg(v)),
        lambda v: torch.sigmoid(v) - 1,
    )


@case(X, Y)
def several_results():
    def program(x, y):
        total = x + y
        return torch.relu(total) - torch.neg(total)

    def pattern(a, b):
        total = a + b
        return torch.relu(total), torch.neg(total)

    def replacement(a, b):
        total = torch.add(b, a)
        return torch.clamp(total, min=0), torch.mul(total, -1)

    return program, pattern, replacement


@case(X, Y)
def separate_results():
    return (
        lambda x, y: torch.relu(x) - torch.neg(y),
        lambda a, b: (torch.relu(a), torch.neg(b)),
        lambda a, b: (torch.clamp(a, min=0), torch.mul(b, -1)),
    )


@case()
def input_among_the_results():
    def program(x):
        return torch.relu(torch.sigmoid(x)) + x

    def pattern(v):
        inner = torch.sigmoid(v)
        return inner, torch.relu(inner), v

    def replacement(v):
        return torch.exp(v), torch.abs(v), v

    return program, pattern, replacement


@case()
def input_returned():
    return lambda x: torch.relu(x + 0) + 0, lambda v: v + 0, lambda v: v


@case()
def longer_replacement():
    return lambda x: F.gelu(x) * 2, lambda v: F.gelu(v), lambda v: v * 0.5 * (1 + torch.erf(v / 2**0.5))  # noqa: PLW0108


@case()
def methods():
    return lambda x: x.relu().sum(dim=1), lambda v: v.relu(), lambda v: v.clamp(min=0)


@case()
def keywords():
    return lambda x: x.sum(dim=1) + x.sum(dim=0).sum(), lambda v: v.sum(dim=1), lambda v: v.mean(dim=1)


@case()
def plain_values_differ():
    return lambda x: (x + 1) * (x + 2), lambda v: v + 1, lambda v: v - 1


@case(ignore_literals=True)
def plain_values_ignored():
    return lambda x: (x + 1) * (x + 2.5), lambda v: v + 1, lambda v: v - 1


@case()
def plain_value_for_a_parameter():
    return lambda x: torch.add(x, 3), lambda a, b: torch.add(a, b), lambda a, b: torch.sub(a, b)  # noqa: PLW0108


@case(X, Y)
def parameter_used_twice():
    return lambda x, y: (x * y) + torch.mul(x, x), lambda v: torch.mul(v, v), lambda v: torch.pow(v, 2)


@case()
def default_of_an_operator():
    return (
        lambda x: torch.ops.aten.add.Tensor(x, 1),
        lambda v: torch.ops.aten.add.Tensor(v, 1, alpha=1),
        lambda v: torch.ops.aten.sub.Tensor(v, -1),
    )


@case()
def list_and_tuple_of_sizes():
    return lambda x: x.reshape((3, 2)) * 2, lambda v: v.reshape([3, 2]), lambda v: v.reshape(3, 2)


@case()
def slices():
    return lambda x: x[1:] + x[:1], lambda v: v[1:], lambda v: v[-1:]


@case(match_filters=[lambda match, graph, pattern: match.placeholder_nodes[0].op == "placeholder"])
def filtered():
    return lambda x: torch.relu(torch.relu(x) + 1), lambda v: torch.relu(v), lambda v: torch.clamp(v, 0)  # noqa: PLW0108


class Acts(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Sigmoid()
        self.second = nn.ReLU()

    def forward(self, x):
        return self.second(self.first(x)) + 1


class ActsAlone(Acts):
    def forward(self, x):
        return self.second(self.first(x))


class NewFirst(nn.Module):
    def __init__(self):
        super().__init__()
        self.fresh = nn.Tanh()
        self.second = nn.ReLU()

    def forward(self, x):
        return self.second(self.fresh(x))


@case()
def submodules():
    return Acts(), ActsAlone(), NewFirst()


class Scale(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(3.0))

    def forward(self, x):
        return x * self.scale


class Shift(nn.Module):
    def __init__(self):
        super().__init__()
        self.shift = nn.Parameter(torch.tensor(5.0))

    def forward(self, x):
        return x - self.shift


@case()
def parameters():
    return Scale(), Scale(), Shift()


# -- where fxplug does something else


@case()
def one_value_for_two_parameters():
    return lambda x: x + x, lambda a, b: a + b, lambda a, b: torch.add(a, b)  # noqa: PLW0108


@case()
def order_of_keywords():
    return (
        lambda x: x.sum(dim=1, keepdim=True),
        lambda v: v.sum(keepdim=True, dim=1),
        lambda v: torch.sum(v, 1, keepdim=True),
    )


@case()
def positional_for_keyword():
    class ByKeyword(ActsAlone):
        def forward(self, x):
            return self.second(input=self.first(input=x))

    return Acts(), ByKeyword(), lambda v: torch.relu(torch.sigmoid(v))


@case()
def list_as_an_index():
    return lambda x: x[0, 1], lambda v: v[[0, 1]], lambda v: v.flip(0)


@case()
def slice_with_traced_bound():
    return lambda x: x[: x.shape[0]], lambda v, n: v[:n], lambda v, n: torch.narrow(v, 0, 0, n)


@case()
def parameter_read_twice():
    class Twice(Scale):
        def forward(self, x):
            return x * self.scale + torch.neg(x) * self.scale

    return Twice(), Scale(), lambda v: v * 3.0


@case()
def own_parameter_under_a_taken_name():
    class Both(Scale):
        def forward(self, x):
            return torch.relu(x) * self.scale

    class Five(Scale):
        def __init__(self):
            super().__init__()
            self.scale = nn.Parameter(torch.tensor(5.0))

    return Both(), lambda v: torch.relu(v), Five()  # noqa: PLW0108


@case()
def constants_differ():
    return (
        lambda x: x + torch.tensor([1.0, 2.0, 3.0]),
        lambda v: v + torch.tensor([0.0, 0.0, 0.0]),
        lambda v: torch.mul(v, 1),
    )


@case()
def parameter_at_another_path():
    class Other(nn.Module):
        def __init__(self):
            super().__init__()
            self.other = nn.Parameter(torch.tensor(3.0))

        def forward(self, x):
            return x * self.other

    return Other(), Scale(), lambda v: v * 3.0


@case()
def submodule_of_another_class():
    class Other(ActsAlone):
        def __init__(self):
            super().__init__()
            self.first = nn.Tanh()

    return Other(), ActsAlone(), lambda v: torch.relu(torch.sigmoid(v))


@case()
def write_between():
    def program(x):
        shifted = x + 1
        x.mul_(100)
        return torch.relu(shifted)

    return program, lambda v: torch.relu(v + 1), lambda v: torch.clamp(v + 1, min=0)


@case()
def write_whose_value_is_used_late():
    def program(x):
        written = x.add_(1)
        read = x * 2
        return read - written

    return program, lambda v: v.add_(1), lambda v: v.sub_(-1)


@case()
def copy_that_is_written():
    def program(x):
        fresh = x + 0
        return fresh.add_(1), x

    return program, lambda v: v + 0, lambda v: v


@case(match_filters=[lambda match, graph, pattern: match.placeholder_nodes[0].op != "placeholder"])
def refused_and_overlapping():
    return (
        lambda x: torch.neg(torch.neg(torch.neg(x))),
        lambda v: torch.neg(torch.neg(v)),
        lambda v: torch.sub(v, 0),
    )


@case(X, Y)
def result_used_before_an_input_is_there():
    def program(x, y):
        first = torch.relu(x)
        early = torch.neg(first)
        late = torch.tanh(y)
        return first + late, early

    def pattern(a, b):
        first = torch.relu(a)
        return first + b, first

    def replacement(a, b):
        first = torch.clamp(a, min=0)
        return torch.add(first, b), first

    return program, pattern, replacement


DIFFERENCES = {
    "one_value_for_two_parameters": "two parameters may stand for one value; torch.fx wants two values",
    "order_of_keywords": "keywords may stand in any order; torch.fx wants that of the pattern",
    "positional_for_keyword": (
        "what is given by position in one place and by keyword in the other is the same, where the signature can be "
        "read; torch.fx reads that of operators only"
    ),
    "list_as_an_index": "`x[[0, 1]]` is another element than `x[0, 1]`; torch.fx takes one for the other",
    "slice_with_traced_bound": "bounds of slices are matched; torch.fx does not look into slices",
    "parameter_read_twice": (
        "a parameter that others read too is in nobody's way; torch.fx leaves such a place alone"
    ),
    "own_parameter_under_a_taken_name": (
        "a parameter of the replacement gets a name that is free; torch.fx uses the one that has the name already"
    ),
    "constants_differ": "constants are matched by value; torch.fx takes any for any other",
    "parameter_at_another_path": "parameters are matched by path; torch.fx takes any for any other",
    "submodule_of_another_class": "submodules are matched by path and class; torch.fx matches them by path",
    "write_between": "nothing is read later than a write that came after it; torch.fx moves the read",
    "write_whose_value_is_used_late": "a write stays where it is; torch.fx moves it to its first user",
    "copy_that_is_written": (
        "a copy that is written to is not replaced by what was copied; torch.fx lets the write reach that"
    ),
    "refused_and_overlapping": (
        "a place that a filter refuses is in no other one's way; torch.fx skips what overlaps with it"
    ),
    "result_used_before_an_input_is_there": (
        "a place is left alone when no order of the nodes would do; torch.fx uses a value before it is computed"
    ),
}
"""Name of a case -> why the outcome is another one."""


def outcome(trace, rewrite, one):
    """Return number of matches, calls, and results with the inputs that they leave behind."""
    module = trace(copy.deepcopy(one.program))
    matches = rewrite(module, copy.deepcopy(one.pattern), copy.deepcopy(one.replacement))
    calls = sorted(
        (node.op, node.target if isinstance(node.target, str) else node.target.__name__)
        for node in module.graph.nodes
        if node.op != "get_attr"  # torch.fx reads a parameter once for each place.
    )
    try:
        inputs = [value.clone() for value in one.inputs]
        module.graph.lint()
        results = module(*inputs)
    except Exception as error:
        return len(matches), calls, type(error).__name__
    return len(matches), calls, [value.tolist() for value in (*as_tuple(results), *inputs)]


def as_tuple(value):
    return value if isinstance(value, tuple) else (value,)


def with_fxplug(one):
    def trace(root):
        tracer = Tracer()
        graph = tracer.trace(root)
        return GraphModule(tracer.root, graph)

    def rewrite(module, pattern, replacement):
        if one.options is None:
            return replace_pattern(module, pattern, replacement)
        return replace_pattern_with_filters(module, pattern, replacement, **one.options)

    return outcome(trace, rewrite, one)


def with_torch(one):
    def rewrite(module, pattern, replacement):
        if one.options is None:
            return subgraph_rewriter.replace_pattern(module, pattern, replacement)
        return subgraph_rewriter.replace_pattern_with_filters(module, pattern, replacement, **one.options)

    return outcome(torch.fx.symbolic_trace, rewrite, one)


@pytest.mark.parametrize("name", CASES)
def test_the_outcome_is_that_of_torch_fx_unless_the_difference_is_meant(name):
    ours, theirs = with_fxplug(CASES[name]), with_torch(CASES[name])

    if name in DIFFERENCES:
        assert ours != theirs, "There is no difference: take the entry out of DIFFERENCES."
    else:
        assert ours == theirs


@pytest.mark.parametrize("name", sorted(set(CASES) & set(DIFFERENCES)))
def test_where_the_outcome_is_another_one_the_graph_is_sound(name):
    _, _, results = with_fxplug(CASES[name])

    assert isinstance(results, list)


@pytest.mark.parametrize(
    "name", ["write_between", "write_whose_value_is_used_late", "copy_that_is_written", "list_as_an_index"]
)
def test_where_torch_fx_changes_the_meaning_fxplug_does_not(name):
    one = CASES[name]
    inputs = [value.clone() for value in one.inputs]
    expected = [value.tolist() for value in (*as_tuple(one.program(*inputs)), *inputs)]

    assert with_fxplug(one)[2] == expected
    assert with_torch(one)[2] != expected


def test_the_list_of_differences_has_no_stale_names():
    assert set(DIFFERENCES) <= set(CASES)


def test_matches_have_the_form_that_they_have_in_torch_fx():
    def program(x):
        return torch.relu(x) + 1

    ours = replace_pattern(
        GraphModule(nn.Module(), Tracer().trace(program)), lambda v: v + 1, lambda v: v - 1
    )
    theirs = torch.fx.replace_pattern(torch.fx.symbolic_trace(program), lambda v: v + 1, lambda v: v - 1)

    for match in (*ours, *theirs):
        anchor, nodes_map = match
        assert anchor.op == "call_function"
        assert anchor.target is operator.add
        assert sorted((wanted.name, found.name) for wanted, found in nodes_map.items()) == [
            ("add", "add"),
            ("v", "relu"),
        ]
