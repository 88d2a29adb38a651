"""The closed table of functions that a file may name, in both directions."""

from __future__ import annotations

import builtins
import math
import operator

import pytest
import torch
import torch.nn.functional as F

from fxplug.storage.faults import Refusal
from fxplug.storage.targets import TargetTable, look_up


def public_functions(holder) -> dict[str, object]:
    found = {name: value for name, value in vars(holder).items() if not name.startswith("_")}
    return {name: value for name, value in found.items() if callable(value) and not isinstance(value, type)}


@pytest.mark.parametrize(
    ("module", "holder", "missing"),
    [
        ("operator", operator, {"attrgetter", "call", "itemgetter", "methodcaller"}),
        ("math", math, set()),
        (
            "torch.nn.functional",
            F,
            {
                "Optional",
                "boolean_dispatch",
                "handle_torch_function",
                "has_torch_function",
                "has_torch_function_unary",
                "has_torch_function_variadic",
                "triplet_margin_with_distance_loss",
            },
        ),
        ("torch.linalg", torch.linalg, set()),
        ("torch.fft", torch.fft, set()),
        ("torch.special", torch.special, set()),
    ],
)
def test_every_function_of_a_library_is_in_the_table_but_those_left_out_on_purpose(module, holder, missing):
    table = TargetTable()
    for name, function in public_functions(holder).items():
        if look_up(f"{module}:{name}") is None:
            assert name in missing
        else:
            assert table.resolve(table.name_of(function)) is function


def test_the_functions_of_torch_in_the_table_are_its_operators_and_a_few_that_only_compute():
    refused = {name for name in public_functions(torch) if look_up(f"torch:{name}") is None}

    assert refused >= {
        "load",
        "save",
        "compile",
        "from_file",
        "fork",
        "vmap",
        "seed",
        "manual_seed",
        "set_num_threads",
    }
    assert not refused & {
        "add",
        "relu",
        "cat",
        "einsum",
        "zeros",
        "arange",
        "is_tensor",
        "sym_int",
        "conv2d",
        "topk",
    }
    assert not [
        name
        for name in public_functions(torch).keys() - refused
        if name.startswith(("set_", "get_num", "import"))
    ]


def test_no_builtin_that_runs_code_or_reaches_outside_is_in_the_table():
    known = {name for name in dir(builtins) if look_up(f"builtins:{name}") is not None}

    assert known >= {"getattr", "len", "int", "float", "isinstance", "slice", "max", "sum"}
    outside = """
        __build_class__ __import__ breakpoint classmethod compile delattr eval exec filter globals help input
        locals map memoryview object open print property setattr staticmethod super type vars
    """
    assert not known & set(outside.split())


@pytest.mark.parametrize(
    ("target", "name"),
    [
        (torch.relu, "torch:relu"),
        (F.relu, "torch.nn.functional:relu"),
        (F.conv2d, "torch:conv2d"),
        (F.logsigmoid, "torch.nn.functional:logsigmoid"),
        (F.max_pool2d, "torch.nn.functional:max_pool2d"),
        (torch.linalg.norm, "torch.linalg:norm"),
        (torch.ops.aten.add.Tensor, "torch.ops:aten.add.Tensor"),
        (torch.ops.aten.add, "torch.ops:aten.add"),
        (torch.Tensor.add, "torch:Tensor.add"),
        (operator.add, "operator:add"),
        (math.sqrt, "math:sqrt"),
        (len, "builtins:len"),
        (torch.Tensor, "torch:Tensor"),
        (type(None), "builtins:NoneType"),
    ],
)
def test_names_say_where_a_function_is_found(target, name):
    assert TargetTable().name_of(target) == name
    assert TargetTable().resolve(name) is target


@pytest.mark.parametrize("context", [torch.no_grad, torch.enable_grad, torch.inference_mode, torch.autocast])
def test_contexts_are_for_regions_only(context):
    name = TargetTable().context_name(context)

    assert TargetTable().resolve_context(name) is context
    with pytest.raises(Refusal, match="is not among the functions"):
        TargetTable().resolve(name)


@pytest.mark.parametrize(
    "method", ["add_", "view", "__getitem__", "__add__", "items", "append", "format", "to"]
)
def test_methods_of_tensors_and_plain_values_may_be_called(method):
    TargetTable().check_method(method)


def test_a_single_text_is_one_allowed_name():
    assert TargetTable("builtins:print").resolve("builtins:print") is print
