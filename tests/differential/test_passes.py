"""What the passes do to each program of the folder `programs`, beside what those of torch.fx do to it.

`DIFFERENCES` is the only place where a difference is allowed, each with its reason; an entry that describes none fails.
"""

from __future__ import annotations

import operator
import sys
import warnings

import pytest
import torch
import torch.fx
from torch import Tensor, nn
from torch.fx.experimental.const_fold import split_const_subgraphs
from torch.fx.experimental.normalize import NormalizeArgs, NormalizeOperators
from torch.fx.passes.dialect.common.cse_pass import CSEPass
from torch.nn import functional as F

import fxplug
from fxplug.passes import CommonSubexpressions, FoldConstants, Normalize, PassContext

HEAVY = frozenset({"resnet50", "resnet50_evaluated", "transformer"})
"""Too large to be run as often as it takes here; smaller programs have all their calls."""

HASHED_SLICES = frozenset(
    {
        "arithmetic",
        "slices",
        "slice_with_traced_bound",
        "chained_getitem",
        "interpolation",
        "FeaturePyramid",
        "StaticMixture",
        "HandWrittenLSTM",
        "slices_with_steps",
        "indices_with_none_and_ellipsis",
        "advanced_indices",
        "indices_of_computed_bounds",
        "nested_indices",
    }
)
"""Programs in which every slice has a hash from Python 3.12 on, so that torch.fx merges their calls there, too."""

SLICES = "a slice may be an argument; torch.fx's pass asks for its hash, which Python before 3.12 refuses"
RETURNED = "what may be part of two returned values stays two objects; torch.fx returns one object twice"
ARGUMENT_TYPES = (
    "an operator takes its arguments by the names of its schema; torch.fx drops the first, or fails"
)
FACTOR = "the factor alpha of a sum is kept; torch.fx writes a sum without it"
OUT = "out= is an argument as any other; torch.fx loses it"
EMPTY = "a program without a single value has a valid source; torch.fx writes none behind this pass"
KEYWORDS = "a folded module takes inputs by keyword as before; that of torch.fx drops all of them"
TRAINED = "a parameter that trains is not folded, and gradients reach it; torch.fx makes a new parameter of the result"

DIFFERENCES: dict[tuple[str, str], str] = {
    **({("merge", name): SLICES for name in HASHED_SLICES} if sys.version_info < (3, 12) else {}),
    ("merge", "parts_of_sizes"): SLICES,
    ("merge", "combinations_of_many_kinds"): RETURNED,
    ("merge", "shape_reads"): RETURNED,
    ("normalize", "no_result"): EMPTY,
    ("normalize", "torch_functions"): FACTOR,
    ("normalize", "starred_arguments"): FACTOR,
    ("normalize", "partial_inside"): FACTOR,
    ("normalize", "out_argument"): OUT,
    ("normalize", "aten_operator"): ARGUMENT_TYPES,
    ("fold", "double_starred_parameter"): KEYWORDS,
    ("fold", "LatentAttention"): TRAINED,
    ("fold", "RelativePositionBias"): TRAINED,
    ("fold", "CosineClassifier"): TRAINED,
    ("fold", "ParameterMaths"): TRAINED,
    ("fold", "PropertyRead"): TRAINED,
    ("fold", "WeightReadInChild"): TRAINED,
    ("fold", "children_called_through_a_plain_list"): TRAINED,
}
"""(What is done, name of the program) -> the difference that is meant."""


def merge(program):
    """Return both modules after equal calls were merged."""
    module = program.with_fxplug()
    CommonSubexpressions().run(module, PassContext())
    return module, lambda: CSEPass()(program.with_torch()).graph_module


def fold(program):
    """Return both modules after constants were folded."""
    module = program.with_fxplug()
    FoldConstants().run(module, PassContext())
    return module, lambda: folded_by_torch(program.with_torch())


def normalize(program):
    """Return both modules after calls were normalised."""
    module = program.with_fxplug()
    args, kwargs = program.inputs()
    Normalize().run(module, PassContext() if kwargs else PassContext(args, module=module))
    return module, lambda: NormalizeOperators(NormalizeArgs(program.with_torch()).transform()).transform()


def folded_by_torch(module):
    split = split_const_subgraphs(module)
    if split.const_subgraph_module is not None:
        split.run_folding()
    return split


STEPS = {"merge": merge, "fold": fold, "normalize": normalize}


def calls(module):
    return sum(node.op.startswith("call_") for node in module.graph.nodes)


def calls_but_parts(module):
    """Return how many calls there are, without those by which torch.fx takes folded values out of a list."""
    return calls(module) - len(module.graph.find_nodes(op="call_function", target=operator.getitem))


def close(ours, theirs):
    """Return whether two outcomes are equal, up to the order in which gradients are added up."""
    try:
        _check(ours, theirs)
    except AssertionError:
        return False
    return True


def _check(ours, theirs):
    assert ours.structure == theirs.structure
    pairs = [*zip(ours.results, theirs.results, strict=True), *zip(ours.inputs, theirs.inputs, strict=True)]
    pairs += [(ours.state[name], theirs.state[name]) for name in ours.state.keys() & theirs.state.keys()]
    pairs += [(ours.gradients.get(name), value) for name, value in theirs.gradients.items()]
    for one, other in pairs:
        if isinstance(other, Tensor):
            assert isinstance(one, Tensor)
            assert one.requires_grad == other.requires_grad
            torch.testing.assert_close(one, other, equal_nan=True)
        else:
            assert type(one) is type(other)
            assert one == other


def is_heavy(program):
    return program.name in HEAVY


@pytest.mark.parametrize("step", STEPS)
def test_passes_agree_with_those_of_torch_fx(comparison, step):
    if is_heavy(comparison) or comparison.allowed is not None:
        pytest.skip("The captured programs differ already, or are large.")
    expected = comparison.eager()

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch.fx warns of what its own splitting adds.
        ours, make_theirs = STEPS[step](comparison)
        ours.graph.lint()
        _check(comparison.outcome(ours), expected)
        try:
            theirs = make_theirs()
            # Normal forms differ by design; how many calls are left after the others must not.
            agrees = step == "normalize" or calls(ours) == calls(theirs)
            agrees = agrees and close(comparison.outcome(theirs), expected)
        except (TypeError, RuntimeError, SyntaxError, KeyError):
            agrees = False

    assert agrees == ((step, comparison.name) not in DIFFERENCES)


def test_the_list_of_differences_names_programs_and_reasons(comparisons):
    compared = {program.name for program in comparisons if not is_heavy(program) and program.allowed is None}

    assert len(compared) >= 150
    assert {name for _, name in DIFFERENCES} <= compared
    assert {step for step, _ in DIFFERENCES} <= STEPS.keys()
    assert all(len(reason.split()) >= 8 for reason in DIFFERENCES.values())


# -- programs with constants: the others have few ------------------------------------------------------------------


class Constants(nn.Module):
    """One of the programs below, with buffers and parameters that do not train."""

    def __init__(self, program):
        super().__init__()
        self.program = program
        self.scale = nn.Parameter(torch.linspace(1, 2, 4), requires_grad=False)
        self.shift = nn.Parameter(torch.linspace(-1, 1, 4), requires_grad=False)
        self.table = nn.Parameter(torch.linspace(-1, 1, 16).reshape(4, 4), requires_grad=False)
        self.words = nn.Embedding(4, 4).requires_grad_(False)
        self.linear = nn.Linear(4, 4).requires_grad_(False)
        self.places = nn.Parameter(torch.tensor([3, 1, 2]), requires_grad=False)

    def forward(self, x):
        return self.program(self, x)


def used_twice(x, value):
    return x * value - torch.relu(x * value * 2)


CONSTANT_PROGRAMS = {
    "one_operator": lambda m, x: x * (m.scale + m.shift),
    "a_chain": lambda m, x: x * torch.exp(m.scale * 2 + 1).sqrt(),
    "two_values": lambda m, x: x * (m.scale * 2) + (m.shift - 1),
    "a_product": lambda m, x: x @ (m.table @ m.table),
    "a_transposed_product": lambda m, x: x @ (m.table.t() @ m.table),
    "a_reduction": lambda m, x: x / m.table.abs().amax(0),
    "an_embedding": lambda m, x: x + m.words(m.places),
    "a_layer": lambda m, x: x * m.linear(m.scale),
    "a_softmax": lambda m, x: x @ F.softmax(m.table, 1),
    "one_used_twice": lambda m, x: used_twice(x, m.scale - 1.5),
    "a_layer_on_an_input": lambda m, x: m.linear(x) * (m.scale * 2),
    "concatenation": lambda m, x: x @ torch.cat([m.scale[None] * 2, m.table[1:] * 3]),
    "stacked": lambda m, x: x @ torch.stack([m.scale, m.shift, m.scale, m.shift]),
    "nothing_constant": lambda m, x: x * m.scale + m.shift,
    "a_view": lambda m, x: x @ m.table.t(),
    "returned": lambda m, x: (m.scale * 2, x),
}
FOLDED_OTHERWISE = {
    "a_view": "a view stays a view of the parameter; torch.fx copies it",
    "returned": "each call returns a tensor of its own; torch.fx returns one that the module holds",
}


@pytest.mark.parametrize("name", CONSTANT_PROGRAMS)
def test_constants_are_folded_as_torch_fx_folds_them(name):
    torch.manual_seed(0)
    model = Constants(CONSTANT_PROGRAMS[name]).eval()
    x = torch.linspace(-1, 1, 12).reshape(3, 4)
    ours, expected = fxplug.symbolic_trace(model), model(x)
    FoldConstants().run(ours, PassContext())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        theirs = folded_by_torch(torch.fx.symbolic_trace(model))

    torch.testing.assert_close(ours(x), expected, rtol=0, atol=0)
    torch.testing.assert_close(theirs(x), expected, rtol=0, atol=0)
    assert (calls_but_parts(ours) == calls_but_parts(theirs)) == (name not in FOLDED_OTHERWISE)
    assert calls_but_parts(ours) >= calls_but_parts(theirs)


# -- arguments in full ---------------------------------------------------------------------------------------------


def test_what_torch_fx_writes_in_full_is_the_same_in_full(equal_graphs):
    """Where torch.fx finds the parameters of a callee, so do we, and give them the same arguments."""
    checked, other = 0, set()
    for ours, theirs in equal_graphs:
        for node, twin in zip(ours.nodes, theirs.nodes, strict=True):
            if node.op != "call_function" or isinstance(node.target, type(torch.ops.aten.add.Tensor)):
                continue
            try:
                full = twin.normalized_arguments(
                    torch.nn.Module(), None, None, normalize_to_only_use_kwargs=True
                )
            except RuntimeError:  # It cannot choose between overloads.
                continue
            if full is None:
                continue
            mine = node.normalized_arguments(None, normalize_to_only_use_kwargs=True)
            if mine is None or _plain(mine.kwargs) != _plain(full.kwargs):
                other.add(node.target)
            checked += 1

    assert checked > 100
    assert other == set(map(operator.itemgetter(0), IN_FULL_OTHERWISE))


IN_FULL_OTHERWISE: tuple[tuple[object, str], ...] = ()
"""Function -> why its arguments are others than those that torch.fx finds."""


def _plain(value):
    """Return arguments as text, nodes as their names."""
    return str(dict(value))
