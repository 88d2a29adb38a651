"""What a program may do with a traced value, and what is refused."""

from __future__ import annotations

import copy
import operator

import pytest
import torch
from torch import nn

from fxplug.capture import Proxy, Tracer
from fxplug.errors import TraceError

BINARY = [
    operator.add,
    operator.sub,
    operator.mul,
    operator.truediv,
    operator.floordiv,
    operator.mod,
    operator.pow,
    operator.matmul,
    operator.lshift,
    operator.rshift,
    operator.and_,
    operator.or_,
    operator.xor,
    operator.eq,
    operator.ne,
    operator.lt,
    operator.le,
    operator.gt,
    operator.ge,
]
IN_PLACE = [
    operator.iadd,
    operator.isub,
    operator.imul,
    operator.itruediv,
    operator.ifloordiv,
    operator.imod,
    operator.ipow,
    operator.imatmul,
    operator.ilshift,
    operator.irshift,
    operator.iand,
    operator.ior,
    operator.ixor,
]
COMPARED_BACKWARDS = {
    operator.lt: operator.gt,
    operator.gt: operator.lt,
    operator.le: operator.ge,
    operator.ge: operator.le,
}


def only_call(module):
    (node,) = module.graph.find_nodes(op="call_function")
    return node


@pytest.mark.parametrize("function", BINARY, ids=lambda function: function.__name__)
def test_binary_operator_is_one_node(capture, function):
    node = only_call(capture(lambda x, y: (function(x, y),)[0]))

    assert node.target is function
    assert [used.name for used in node.args] == ["x", "y"]


@pytest.mark.parametrize("function", BINARY, ids=lambda function: function.__name__)
def test_reflected_operator_keeps_the_order_of_its_operands(capture, function):
    node = only_call(capture(lambda x: function(2, x)))

    if function in COMPARED_BACKWARDS:
        assert node.target is COMPARED_BACKWARDS[function]
        assert node.args[1] == 2
    elif function not in {operator.eq, operator.ne}:
        assert node.target is function
        assert node.args[0] == 2


@pytest.mark.parametrize("function", [operator.neg, operator.pos, operator.invert, operator.abs])
def test_unary_operator_is_one_node(capture, function):
    assert only_call(capture(lambda x: (function(x),)[0])).target is function


@pytest.mark.parametrize("function", IN_PLACE, ids=lambda function: function.__name__)
def test_in_place_operator_is_one_node(capture, function):
    node = only_call(capture(lambda x, y: (function(x, y),)[0]))

    assert node.target is function
    assert [used.name for used in node.args] == ["x", "y"]


def test_in_place_operator_changes_every_alias(capture):
    def program(x):
        y = x * 1
        z = y
        y += 1
        return z, y

    z, y = capture(program)(torch.zeros(2))
    assert z.tolist() == y.tolist() == [1, 1]


def test_in_place_operator_changes_the_input(capture):
    def program(x):
        x -= 1
        return x

    given = torch.zeros(2)
    capture(program)(given)
    assert given.tolist() == [-1, -1]


def test_in_place_operator_on_a_view_changes_its_base(capture):
    def program(x):
        y = x.clone()
        row = y[0]
        row *= 5
        return y

    assert capture(program)(torch.ones(2, 2)).tolist() == [[5, 5], [1, 1]]


def test_in_place_operator_on_a_number_makes_a_new_one(capture):
    def program(x):
        size = x.shape[0]
        before = size
        size += 1
        return before, size

    assert capture(program)(torch.ones(4)) == (4, 5)


def test_augmented_item_assignment(capture):
    def program(x):
        y = x.clone()
        y[0] += 10
        y[:, 1] *= 2
        return y

    x = torch.arange(4.0).reshape(2, 2)
    assert torch.equal(capture(program)(x), program(x))


def test_item_assignment_and_deletion_are_nodes(capture):
    def program(x, values):
        x[0, 1:] = 3
        del values["old"]
        return x, values

    module = capture(program)
    assert [node.target for node in module.graph.find_nodes(op="call_function")] == [
        operator.setitem,
        operator.delitem,
    ]
    x, values = module(torch.zeros(2, 2), {"old": 1, "new": 2})
    assert x.tolist() == [[0, 3], [0, 0]]
    assert values == {"new": 2}


def test_unpacking_into_names(capture):
    def program(x):
        (first, second), third = x.split([2, 1])
        return first, second, third

    module = capture(program)
    x = torch.arange(6.0).reshape(3, 2)
    for ours, theirs in zip(module(x), program(x), strict=True):
        assert torch.equal(ours, theirs)


@pytest.mark.parametrize("count", [1, 255, 256, 1000])
def test_unpacking_of_any_number_of_names(capture, count):
    names = [f"name{index}" for index in range(count)]
    namespace: dict = {}
    exec(f"def program(x):\n    {', '.join(names)}, = x\n    return name0 + {names[-1]}", namespace)

    assert capture(namespace["program"])(torch.arange(float(count))).item() == count - 1


def test_swapping_and_starred_calls_of_known_tuples(capture):
    def program(x, y):
        x, y = y, x
        return torch.add(*(x, y))

    assert len(capture(program).graph.nodes) == 4


def test_calling_a_value_is_recorded(capture):
    module = capture(lambda x, function: function(x))

    assert module(torch.ones(1), torch.neg).item() == -1


def test_proxies_are_shown_by_the_name_of_their_node(capture, capsys):
    def program(x):
        print(repr(x + 1))  # noqa: T201
        print([x.shape])  # noqa: T201
        return x

    module = capture(program)
    assert capsys.readouterr().out.split("\n")[-3:-1] == ["Proxy(add)", "[Attribute(Proxy(x).shape)]"]
    assert len(module.graph.nodes) == 3


def test_proxies_of_tensors_can_be_hashed_by_identity():
    def program(x: torch.Tensor):
        assert len({x, x + 1}) == 2
        return x

    Tracer().trace(program)


@pytest.mark.parametrize(
    "function", [torch.add, torch.Tensor.add, torch.cat], ids=["function", "method", "list"]
)
def test_tensors_next_to_proxies_are_lifted(capture, function):
    constant = torch.ones(2)
    module = capture(lambda x: function([constant, x]) if function is torch.cat else function(constant, x))

    assert module.graph.lifted == {"_tensor_constant0": constant}


# -- refused


def condition(x):
    if x.sum() > 0:
        return x
    return -x


def integer(x):
    return list(range(x.shape[0]))


def length(x):
    return len(x)


def membership(x):
    return 3 in x


def iteration(x):
    return [row for row in x]  # noqa: C416


def star_call(x):
    return x.view(*x.shape)


def star_names(x):
    first, *_ = x.shape
    return first


def keywords(x, options):
    return torch.sum(x, **options)


def floating(x):
    return float(x)


def negation(x):
    return not x


def shape_comparison(x):
    return x if x.shape[0] == 1 else -x


def list_index(x):
    return [1, 2, 3][x.shape[0]]


REFUSED = [
    (condition, "FXP-T001", "if x.sum() > 0:"),
    (negation, "FXP-T001", "return not x"),
    (shape_comparison, "FXP-T001", "return x if x.shape[0] == 1 else -x"),
    (integer, "FXP-T002", "return list(range(x.shape[0]))"),
    (floating, "FXP-T002", "return float(x)"),
    (list_index, "FXP-T002", "return [1, 2, 3][x.shape[0]]"),
    (length, "FXP-T003", "return len(x)"),
    (membership, "FXP-T004", "return 3 in x"),
    (iteration, "FXP-T005", "return [row for row in x]"),
    (star_call, "FXP-T005", "return x.view(*x.shape)"),
    (star_names, "FXP-T005", "first, *_ = x.shape"),
    (keywords, "FXP-T005", "return torch.sum(x, **options)"),
]


@pytest.mark.parametrize(
    ("program", "code", "line"), REFUSED, ids=[program.__name__ for program, _, _ in REFUSED]
)
def test_question_that_needs_a_value_is_refused_with_the_users_line(capture, program, code, line):
    with pytest.raises(TraceError) as caught:
        capture(program)

    assert caught.value.code == code
    assert line in str(caught.value)
    number = program.__code__.co_firstlineno
    assert any(f"{__file__}:{number + offset} in " in str(caught.value) for offset in range(1, 4))
    assert str(caught.value).endswith(f"[{code}]")


def test_refused_value_is_named(capture):
    with pytest.raises(TraceError, match=r"a condition depends on a traced value; 'gt' is unknown"):
        capture(condition)


def test_refusal_says_what_to_do(capture):
    with pytest.raises(TraceError, match=r"concrete_args.*torch\.where.*leaf"):
        capture(condition)


def test_refusal_in_a_helper_shows_the_helper(capture):
    with pytest.raises(TraceError, match=r"in length \('return len\(x\)'\)"):
        capture(lambda x: length(x) + 1)


def test_refusal_inside_torch_nn_shows_the_users_line(capture):
    class Norm(nn.BatchNorm2d):
        def forward(self, x):
            return super().forward(x)  # the user's line

    with pytest.raises(
        TraceError,
        match=r"# the user's line\"\), inside torch at .*batchnorm\.py:\d+ in _check_input_dim \('if ",
    ):
        capture(Norm(3))


def test_refusal_in_a_root_of_torch_nn_shows_the_line_in_torch(capture):
    with pytest.raises(TraceError, match=r"is (unknown|asked) at .*activation\.py:\d+ in ") as caught:
        capture(nn.MultiheadAttention(4, 2))
    assert __file__ not in str(caught.value)


def test_value_of_a_foreign_type_is_refused_with_the_users_line(capture):
    class Foreign:
        pass

    def program(x):
        return x * Foreign()

    with pytest.raises(
        TraceError, match=rf"Foreign as an argument at {__file__}:\d+ in program\. .*\[FXP-T006\]$"
    ):
        capture(program)


def test_result_of_a_foreign_type_is_refused_as_a_result(capture):
    class Foreign:
        pass

    def program(x):
        return Foreign()

    with pytest.raises(TraceError) as caught:
        capture(program)
    assert "conftest.py" not in str(caught.value)
    assert "program" in str(caught.value)


def test_traced_value_as_a_key_is_refused(capture):
    def program(x: torch.Tensor):
        return {x: 1}

    with pytest.raises(TraceError, match=r"Cannot record a dict: its key Proxy\(x\) is a traced value"):
        capture(program)


def test_pythons_own_errors_reach_the_user_unchanged(capture):
    class MineError(Exception):
        pass

    def program(x):
        raise MineError("as it is")

    with pytest.raises(MineError) as caught:
        capture(program)
    assert str(caught.value) == "as it is"
    assert caught.value.args == ("as it is",)


@pytest.mark.parametrize("function", [copy.copy, copy.deepcopy])
def test_copying_a_value_is_recorded(capture, function):
    def program(x):
        y = function(x)
        y += 1
        return x, y

    before, after = capture(program)(torch.ones(1))
    assert (before.item(), after.item()) == (1 if function is copy.deepcopy else before.item(), 2)


def test_proxy_is_no_tensor_for_isinstance():
    assert not issubclass(Proxy, torch.Tensor)


def test_refusal_that_the_program_catches_is_still_one(capture):
    def program(x):
        try:
            count = len(x)
        except Exception:
            count = 100
        return x * count

    with pytest.raises(TraceError, match=r"length of 'x' is unknown .*'except' of the program.*FXP-T003"):
        capture(program)
