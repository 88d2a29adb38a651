"""Inputs: defaults, annotations, keyword-only parameters, concrete_args."""

# Annotations are what is tested, so they are no text here: no `from __future__ import annotations`.
import copy
import functools
import inspect
import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import fxplug
from fxplug.capture import PH, PHWithMeta, Tracer
from fxplug.errors import FxplugError, TraceError


def inputs(module):
    return [(node.target, node.args, node.type) for node in module.graph.find_nodes(op="placeholder")]


def test_defaults_are_kept(capture):
    def program(
        x, mode='a"b\\', scale=-0.0, limit=math.inf, kind=torch.float32, nothing=None, shape=(1, [2])
    ):
        return x

    found = {target: args for target, args, _ in inputs(capture(program))}
    assert found["x"] == ()
    assert found["mode"] == ('a"b\\',)
    assert math.copysign(1, found["scale"][0]) == -1
    assert found["limit"] == (math.inf,)
    assert found["kind"] == (torch.float32,)
    assert found["nothing"] == (None,)
    assert found["shape"] == ((1, [2]),)


def test_defaults_reach_the_generated_signature_unchanged(capture):
    def program(x, a=float("nan"), b=1 + 2j, c=..., d=slice(1, 2), e=torch.relu, f=b"z"):
        return x

    parameters = inspect.signature(capture(program).forward).parameters
    expected = inspect.signature(program).parameters
    assert list(parameters) == list(expected)
    for name in "bcdef":
        assert parameters[name].default == expected[name].default
    assert math.isnan(parameters["a"].default)


def test_module_is_called_with_its_defaults(capture):
    module = capture(lambda x, factor=3: x * factor)

    assert module(torch.ones(1)).item() == 3
    assert module(torch.ones(1), 5).item() == 5
    assert module(torch.ones(1), factor=7).item() == 7


def test_annotations_are_kept_as_objects(capture):
    def program(x: Tensor, pair: tuple[int, float], anything: Any = None) -> Tensor:
        return x

    module = capture(program)
    assert [annotation for _, _, annotation in inputs(module)] == [Tensor, tuple[int, float], Any]
    assert module.graph.output_node().type is Tensor
    assert module(torch.ones(1), (1, 2.0)).item() == 1


def test_annotations_that_are_text_are_dropped(capture):
    def program(x: "__import__('os').abort()", y: "int" = 3) -> "Tensor":
        return x

    module = capture(program)
    assert [annotation for _, _, annotation in inputs(module)] == [None, None]
    assert module.graph.output_node().type is None


def test_annotations_of_methods_are_kept(capture):
    class Root(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x

    assert inputs(capture(Root()))[0][2] is Tensor


def test_keyword_only_parameters_are_inputs(capture):
    module = capture(lambda x, *, scale, shift=1: x * scale + shift)

    assert module(torch.ones(1), scale=2).item() == 3
    assert [target for target, _, _ in inputs(module)] == ["x", "scale", "shift"]


def test_keyword_only_parameter_without_default_may_follow_a_default(capture):
    module = capture(lambda x, factor=2, *, shift: x * factor + shift)

    assert module(torch.ones(1), shift=1).item() == 3


@pytest.mark.parametrize("mode", ["symbolic", "shape", "value"])
def test_keyword_only_parameter_that_is_given_by_position_is_an_error_as_in_eager(mode):
    def program(x, *, scale):
        return x * scale

    x = torch.ones(1)
    module = fxplug.trace(program, (x,), example_kwargs={"scale": x}, mode=mode)

    for call in (program, module):
        with pytest.raises(TypeError, match=r"takes .* positional argument"):
            call(x, x)


@pytest.mark.parametrize("mode", ["shape", "value"])
def test_examples_by_position_are_none_of_keyword_only_parameters(mode):
    with pytest.raises(TraceError, match="too many positional arguments") as caught:
        fxplug.trace(lambda x, *, scale: x * scale, (torch.ones(1), torch.ones(1)), mode=mode)

    assert caught.value.code == "FXP-T064"


def test_positional_only_parameters_are_inputs(capture):
    def program(x, /, y):
        return x - y

    assert capture(program)(torch.ones(1), 3).item() == -2


def test_parameter_called_self_is_no_problem(capture):
    module = capture(lambda self, torch, nan: self + torch + nan)

    assert module(torch.ones(1), 2, 3).item() == 6


def test_wrapped_function_shows_its_own_signature(capture):
    def twice(function):
        @functools.wraps(function)
        def wrapper(*args, **kwargs):
            return function(*args, **kwargs) * 2

        return wrapper

    @twice
    def program(x, y=3):
        return x + y

    assert [target for target, _, _ in inputs(capture(program))] == ["x", "y"]
    assert capture(program)(torch.ones(1)).item() == 8


def test_partial_function_is_traced_with_what_it_binds(capture):
    module = capture(functools.partial(lambda x, y, z: x + y * z, 1, z=3))

    assert module(torch.ones(1)).item() == 4


def test_bound_method_is_traced(capture):
    class Helper:
        factor = 3

        def scale(self, x):
            return x * self.factor

    assert capture(Helper().scale)(torch.ones(1)).item() == 3


def test_function_without_known_signature_is_refused(capture):
    with pytest.raises(TraceError, match=r"Cannot trace .*max.*: Python does not know its signature"):
        capture(max)


def test_what_cannot_be_called_is_refused(capture):
    with pytest.raises(TraceError, match="Cannot trace 5: pass a module or a function"):
        capture(5)


def test_tensor_as_default_is_kept_or_refused_in_plain_words(capture):
    def program(x, weight=torch.ones(3)):  # noqa: B008
        return x * weight

    text = ""
    try:
        assert capture(program)(torch.ones(3)).tolist() == [1, 1, 1]
    except TraceError as error:
        text = str(error)
    assert not text or ("weight" in text and "Node" not in text)


# -- concrete_args


def branches(x, flag, offset=1):
    return x + offset if flag else x - offset


@pytest.mark.parametrize(("flag", "expected"), [(True, 2), (False, 0)])
def test_concrete_argument_takes_the_place_of_a_proxy(capture, flag, expected):
    module = capture(branches, {"flag": flag})

    assert module(torch.ones(1), flag).item() == expected
    assert [target for target, _, _ in inputs(module)] == ["x", "flag", "offset"]


def test_concrete_argument_may_be_nested(capture):
    module = capture(lambda x, options: x * options["factor"][0], {"options": {"factor": [4]}})

    assert module(torch.ones(1), {"factor": [4]}).item() == 4


@pytest.mark.parametrize("value", [torch.ones(1), nn.ReLU(), torch.nn.Parameter(torch.ones(1))])
def test_concrete_argument_that_a_module_should_hold_is_refused(capture, value):
    with pytest.raises(
        TraceError, match=rf"Cannot fix the parameter 'flag' to a {type(value).__name__}: .*\[FXP-T031\]$"
    ):
        capture(branches, {"flag": value})


class Flag:
    """A value without an equality of its own."""

    def __bool__(self):
        return True


def test_concrete_argument_of_a_foreign_type_has_to_be_the_very_object(capture):
    flag = Flag()
    module = capture(branches, {"flag": flag})

    for same in (module, copy.copy(module), copy.deepcopy(module)):
        assert same(torch.ones(1), flag).item() == 2
        with pytest.raises(AssertionError, match="flag was fixed to one particular Flag when"):
            same(torch.ones(1), Flag())


@pytest.mark.parametrize(
    ("fixed", "same", "other"),
    [
        (torch.float32, torch.float, torch.float64),
        (torch.device("cpu"), torch.device("cpu"), torch.device("meta")),
        (torch.Size([2, 3]), torch.Size([2, 3]), torch.Size([2, 4])),
        (range(3), range(3), range(4)),
        (slice(1, 2), slice(1, 2), slice(1, 3)),
        (2 + 1j, 2 + 1j, 2j),
        (torch.relu, torch.relu, torch.sigmoid),
        (nn.Linear, nn.Linear, nn.Conv1d),
        (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL),
        (..., ..., None),
    ],
    ids=lambda value: getattr(value, "__name__", str(value)),
)
def test_concrete_argument_is_compared_by_value_or_identity(capture, fixed, same, other):
    module = capture(lambda x, flag: x, {"flag": fixed})

    assert module(torch.ones(1), same).item() == 1
    with pytest.raises(AssertionError, match="flag was fixed to "):
        module(torch.ones(1), other)


def test_concrete_arguments_by_position(capture):
    module = capture(branches, (PH, False, 3))

    assert module(torch.ones(1), False, 3).item() == -2
    with pytest.raises(AssertionError, match="offset was fixed to 3"):
        module(torch.ones(1), False)


@pytest.mark.parametrize("given", [(PH,), (PH, True, 1, 2)], ids=["too few", "too many"])
def test_wrong_number_of_concrete_arguments_is_refused(capture, given):
    with pytest.raises(TraceError, match=rf"has {len(given)} values for its 3 parameters \['x', 'flag'"):
        capture(branches, given)


def test_checks_stand_behind_all_inputs(capture):
    module = capture(lambda x, flag, offset: x, {"x": 1, "flag": True})

    assert [node.op for node in module.graph.nodes][:4] == ["placeholder"] * 3 + ["call_function"]


def test_a_placeholder_that_is_given_is_an_input_like_any_other(capture):
    module = capture(branches, {"x": PH, "flag": True, "offset": PHWithMeta("the offset")})

    assert module(torch.ones(1), True, 5).item() == 6
    nodes = {node.target: node for node in module.graph.find_nodes(op="placeholder")}
    assert nodes["offset"].meta["ph_key"] == "the offset"
    assert "ph_key" not in nodes["x"].meta


def test_concrete_keyword_only_argument(capture):
    module = capture(lambda x, *, flag=False: x if flag else -x, {"flag": True})

    assert module(torch.ones(1), flag=True).item() == 1


def test_concrete_none_takes_the_branch_without_it(capture):
    module = capture(lambda x, mask=None: x if mask is None else x * mask, {"mask": None})

    assert module(torch.ones(1)).item() == 1


def test_concrete_argument_that_is_no_parameter_is_refused(capture):
    with pytest.raises(
        TraceError, match=r"concrete_args names \['flg'\], but its parameters are \['x', 'flag'"
    ):
        capture(branches, {"flg": True})


@pytest.mark.parametrize(("fixed", "other"), [(True, False), (3, 4), ("a", "b"), (None, 1), (1.5, None)])
def test_calling_with_another_value_than_the_concrete_one_is_refused(capture, fixed, other):
    module = capture(lambda x, flag: x, {"flag": fixed})

    assert module(torch.ones(1), fixed).item() == 1
    with pytest.raises(
        (FxplugError, AssertionError), match=f"flag was fixed to {fixed!r} when the program was traced"
    ):
        module(torch.ones(1), other)


def test_check_of_a_concrete_argument_is_no_dead_code(capture):
    module = capture(branches, {"flag": True})
    module.graph.eliminate_dead_code()

    with pytest.raises((FxplugError, AssertionError), match="flag"):
        module(torch.ones(1), False)


def test_concrete_argument_may_be_nan(capture):
    module = capture(lambda x, limit: x, {"limit": math.nan})

    assert module(torch.ones(1), math.nan).item() == 1
    with pytest.raises(AssertionError, match="limit was fixed to nan when the program was traced"):
        module(torch.ones(1), 1.0)


def test_concrete_args_are_not_changed(capture):
    given = {"flag": True}
    capture(branches, given)

    assert given == {"flag": True}


def test_inputs_have_no_origin():
    graph = Tracer().trace(lambda x: x + 1)

    assert [node.name for node in graph.nodes if not node.origins] == ["x", "output"]


# -- a variable number of inputs


def test_stars_are_inputs(capture):
    def program(x, *rest, scale=2, **options):
        return x * scale + rest[0] - options["shift"]

    module = capture(program)
    assert str(inspect.signature(module.forward)) == "(x, *rest, scale=2, **options)"
    assert module(torch.ones(1), 10, 20, shift=1).item() == 11
    assert module(torch.ones(1), 10, shift=1, scale=3).item() == 12


def test_stars_of_a_method_with_super_and_closure(capture):
    class Base(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(3, 3)

        def forward(self, x):
            return self.linear(x)

    class Root(Base):
        def forward(self, *args, **options):
            def last():
                return args[1] * options["factor"]

            return super().forward(args[0]) + last()

    root = Root()
    x = torch.randn(2, 3)
    assert torch.equal(capture(root)(x, 2.0, factor=3.0), root(x, 2.0, factor=3.0))


@pytest.mark.parametrize(
    "program",
    [lambda *args: len(args), lambda *args: [part for part in args]],  # noqa: C416
    ids=["length", "loop"],
)
def test_number_of_starred_inputs_is_unknown(capture, program):
    with pytest.raises(TraceError, match=r"'_?args' is unknown"):
        capture(program)


def test_stars_behind_a_decorator_or_partial_are_refused_by_name(capture):
    def inner(x, *rest):
        return x

    @functools.wraps(inner)
    def wrapped(*args):
        return inner(*args)

    for program in (wrapped, functools.partial(inner, 1)):
        with pytest.raises(
            TraceError, match=r"inner.*how many values \*rest receives is unknown.*\[FXP-T008\]$"
        ):
            capture(program)


def keeps_names(function):
    """Say what is given by name, as decorators do that look for an option."""

    @functools.wraps(function)
    def wrapper(*args, **named):
        if len(args) < 4:
            named.setdefault("scale", 3)
        return function(*args, **named) + len(named)

    return wrapper


class Decorated(nn.Module):
    @keeps_names
    def forward(self, x, mask=None, scale=None, *rest, shift=None, **options):
        if mask is not None:
            x = x * mask
        return x * (scale or 1) + (shift or 0) + sum(rest) + sum(options.values())


@pytest.mark.parametrize(
    ("args", "kwargs"),
    [
        ((), {"x": torch.ones(3)}),
        ((torch.ones(3),), {"mask": torch.arange(3.0), "shift": 5}),
        ((torch.ones(3),), {"scale": 4, "bias": torch.arange(3.0), "other": 2}),
        ((torch.ones(3), torch.arange(3.0), 4, torch.ones(3), 2), {"bias": torch.ones(3)}),
    ],
    ids=["by name", "option", "other options", "by position"],
)
def test_examples_say_how_many_values_starred_parameters_receive(args, kwargs):
    root = Decorated()
    module = fxplug.trace(root, args, example_kwargs=kwargs)

    for factor in (1, 2):
        given = tuple(value * factor if torch.is_tensor(value) else value for value in args)
        named = {key: value * factor if torch.is_tensor(value) else value for key, value in kwargs.items()}
        assert torch.equal(module(*given, **named), root(*given, **named))


def test_other_options_than_those_of_the_examples_are_refused():
    module = fxplug.trace(Decorated(), (torch.ones(3),), example_kwargs={"bias": torch.ones(3)})

    with pytest.raises(fxplug.GuardError, match=r"the value of 'options' has another structure"):
        module(torch.ones(3), other=torch.ones(3))


def test_a_decorator_sees_what_the_examples_give_by_name():
    seen = []

    def tells(function):
        @functools.wraps(function)
        def wrapper(*args, **named):
            seen.append((len(args), sorted(named)))
            return function(*args, **named)

        return wrapper

    @tells
    def program(x, y=2, /, z=3, *, last=4):
        return x * y + z + last

    fxplug.trace(program, (torch.ones(2),), example_kwargs={"last": 1}, check=False)

    assert seen == [(2, ["last", "z"])]  # Numbers stand for others, so that they are given even so.


def test_hooks_hear_of_starred_parameters_where_examples_say_how_many_there_are():
    root = Decorated()
    root.register_forward_pre_hook(lambda _, args: tuple(value * 2 for value in args))
    x, y = torch.randn(3), torch.randn(3)

    module = fxplug.trace(root, (x, y), example_kwargs={"bias": y})

    assert torch.equal(module(y, x, bias=x), root(y, x, bias=x))


def test_hooks_of_a_root_with_stars_are_refused(capture):
    class Root(nn.Module):
        def forward(self, *args):
            return args[0]

    root = Root()
    root.register_forward_hook(lambda *_: None)
    with pytest.raises(TraceError, match=r"variable number of arguments.*\[FXP-T010\]$"):
        capture(root)


def test_backward_hooks_of_the_root_are_refused(capture):
    root = nn.Sequential(nn.Linear(3, 3))
    root.register_full_backward_hook(lambda *_: None)

    with pytest.raises(TraceError, match=r"the root \(Sequential\): it has backward hooks.*\[FXP-T010\]$"):
        capture(root)


def test_messages_do_not_ask_modules_for_their_text(capture):
    class Root(nn.Module):
        @keeps_names
        def forward(self, x, **options):
            return x

        def extra_repr(self):
            raise AssertionError("the text of a module may be long, or ask for values")

    with pytest.raises(TraceError, match=r"'.*Root\.forward'.*FXP-T008"):
        capture(Root())
