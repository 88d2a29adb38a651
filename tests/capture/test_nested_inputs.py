"""Programs whose inputs are nested: one input of the graph for each leaf, the structure in the function around it."""

from __future__ import annotations

import copy
import inspect
import operator
import pickle
import warnings
from collections import OrderedDict, namedtuple

import pytest
import torch
import torch.fx
from torch import nn

import fxplug
import fxplug.fx
from fxplug.capture import PH, PHBase, PHWithMeta, Tracer, Transformer
from fxplug.codegen import CodeGen
from fxplug.errors import CodegenError, GraphError, GuardError, StorageError, TraceError
from fxplug.execute import GraphModule, Interpreter

X = torch.ones(2)

Point = namedtuple("Point", ["x", "y"])  # noqa: PYI024


def total(values):
    result = 0
    for value in values.values():
        result = result + value
    return result


def nested(x, options, scale=2):
    first, second = x["parts"]
    result = first * options["factor"] + second.x
    return {"sum": result * scale, "parts": [first, (second.y, options["name"])]}


def without_default(x, options):
    return nested(x, options)


NESTED = {"x": {"parts": [PH, Point(PH, PH)]}, "options": {"factor": 3, "name": "n"}}


def inputs(offset=0.0):
    parts = [torch.tensor([1.0 + offset, 2.0]), Point(torch.tensor([5.0]), torch.tensor([7.0]))]
    return {"parts": parts}, {"factor": 3, "name": "n"}


def assert_same(ours, theirs):
    ours, theirs = (
        (*flat,) for flat in (torch.utils._pytree.tree_flatten(value) for value in (ours, theirs))
    )
    assert ours[1] == theirs[1]
    for mine, wanted in zip(ours[0], theirs[0], strict=True):
        torch.testing.assert_close(mine, wanted) if isinstance(wanted, torch.Tensor) else None
        assert isinstance(wanted, torch.Tensor) or mine == wanted


# -- next to torch.fx


def test_program_of_the_torch_fx_documentation():
    for fx in (fxplug, torch.fx):
        module = fx.symbolic_trace(total, concrete_args={"values": {"a": fx.PH, "b": fx.PH, "c": fx.PH}})
        assert module({"a": 1, "b": 2, "c": 4}) == 7


def structure_of(module):
    """Return the nodes; torch.fx makes assertions between the inputs, and fxplug behind them."""
    rows = [(node.op, str(node.target), len(node.users)) for node in module.graph.nodes]
    return sorted(row for row in rows if row[0] == "placeholder"), [row for row in rows if row[0] == "output"]


@pytest.mark.parametrize(
    ("program", "concrete", "values"),
    [
        (total, {"values": {"a": PH, "b": PH}}, ({"a": 1, "b": 2},)),
        (total, {"values": {"a": PH, "b": 5}}, ({"a": 1, "b": 5},)),
        (without_default, NESTED, inputs()),
        (lambda x: x[0] + x[1][0], {"x": [PH, (PH, None)]}, ([1, (2, None)],)),
        (lambda x, y: [x["a"], y], {"x": OrderedDict(a=PH)}, (OrderedDict(a=1), 2)),
        (lambda x: x.x, {"x": Point(PH, 3.5)}, (Point(1, 3.5),)),
        (lambda x, flag: x[0], {"x": [PH, []]}, ([1, []], True)),
    ],
    ids=["dict", "constant", "deep", "list", "ordered", "namedtuple", "empty"],
)
def test_graph_has_the_inputs_of_torch_fx(program, concrete, values):
    theirs_concrete = torch.utils._pytree.tree_map(
        lambda leaf: torch.fx.PH if isinstance(leaf, PHBase) else leaf, concrete
    )
    ours = fxplug.symbolic_trace(program, concrete)
    theirs = torch.fx.symbolic_trace(program, theirs_concrete)

    assert structure_of(ours) == structure_of(theirs)
    expected = program(*values)
    assert_same(ours(*values), expected)
    assert_same(theirs(*values), expected)
    assert_same(Interpreter(ours).run(*values), expected)
    flat = ours.graph.process_inputs(*values)
    assert list(flat)[: len(values)] == list(theirs.graph.process_inputs(*values))[: len(values)]
    result = Interpreter(ours).run(*flat, enable_io_processing=False)
    assert_same(ours.graph.process_outputs(result), expected)


@pytest.mark.parametrize("wrong", [{"a": 1}, {"a": 1, "b": 2, "c": 3}, {"a": 1, "x": 2}, [1, 2], 5, None])
def test_another_structure_is_refused(wrong):
    """torch.fx looks at what it needs: it takes a dict with more keys, and fails with an IndexError or KeyError."""
    module = fxplug.symbolic_trace(total, {"values": {"a": PH, "b": PH}})

    for run in (module, Interpreter(module).run):
        with pytest.raises(GraphError, match=r"the value of 'values' has another structure.*\[FXP-G020\]"):
            run(wrong)


@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        ({"ids": 1, "pair": [2, 3]}, "it has no 'mask'"),
        ({"ids": 1, "pair": [2, 3], "mask": 4, "more": 5}, "it has 'more', which the traced one had not"),
        (
            {"ids": 1, "pair": [2, 3], "masks": 4},
            "it has no 'mask' and has 'masks', which the traced one had not",
        ),
        ({"ids": 1, "pair": [2], "mask": 4}, "its part ['pair'] has 1 parts, and was traced with 2"),
        ({"ids": 1, "pair": (2, 3), "mask": 4}, "its part ['pair'] is a tuple, and was traced as a list"),
        ([1, 2, 3], "it is a list, and was traced as a dict"),
    ],
)
def test_messages_say_where_a_value_has_another_structure(wrong, text):
    def program(batch):
        return batch["ids"] + batch["pair"][0] * batch["mask"] + 0 * batch["pair"][1]

    examples = ({"ids": X, "pair": [X, X], "mask": X},)
    symbolic = fxplug.symbolic_trace(program, {"batch": {"ids": PH, "pair": [PH, PH], "mask": PH}})
    guarded = fxplug.trace(lambda batch: program(batch) if len(batch["ids"]) > 1 else X, examples)

    with pytest.raises(GraphError) as refused:
        symbolic(wrong)
    with pytest.raises(GuardError) as refused_by_guards:
        guarded(wrong)
    reason = f"the value of 'batch' has another structure than the one that was traced: {text}."
    assert str(refused.value).startswith(f"Cannot run the captured program: {reason} Pass ")
    assert f"it was captured for other inputs: {reason} Capture it again" in str(refused_by_guards.value)


def test_torch_fx_cannot_have_defaults_beside_a_structure():
    with pytest.raises(SyntaxError):
        torch.fx.symbolic_trace(lambda x, flag=True: x[0], {"x": [torch.fx.PH]})
    assert fxplug.symbolic_trace(lambda x, flag=True: x[0], {"x": [PH]})([5]) == 5


def test_torch_fx_takes_more_than_was_traced():
    module = torch.fx.symbolic_trace(total, {"values": {"a": torch.fx.PH, "b": torch.fx.PH}})

    assert module({"a": 1, "b": 2, "c": 3}) != total({"a": 1, "b": 2, "c": 3})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda x, options: options.update(factor=4), r"options\['factor'\] was fixed to 3"),
        (lambda x, options: options.update(name="m"), r"options\['name'\] was fixed to 'n'"),
    ],
    ids=["number", "text"],
)
def test_constants_inside_are_checked(change, message):
    module = fxplug.symbolic_trace(nested, NESTED)
    values = inputs()
    change(*values)

    with pytest.raises(AssertionError, match=message):
        module(*values)


def test_source_and_signature():
    module = fxplug.symbolic_trace(nested, NESTED)

    assert str(inspect.signature(module.forward)) == "(x, options, scale=2)"
    lines = module.code.splitlines()
    assert lines[1] == (
        "    x_1, x_2, x_3, options_1, options_2, = _fxp_flatten_inputs((x, options,));  x = options = None"
    )
    assert lines[-1].startswith("    return _fxp_unflatten_output([")


def test_inputs_by_name_and_defaults():
    module = fxplug.symbolic_trace(nested, NESTED)
    x, options = inputs()

    assert_same(module(options=options, x=x, scale=5), nested(x, options, 5))


def test_every_kind_of_parameter():
    def program(add, torch=None, *rest, flag, extra=(1, 2), **named):
        return add["s"] + torch[0] + rest[1] * flag + extra[0] + named["k"]

    concrete = {
        "add": {"s": PH},
        "torch": [PH, None],
        "rest": (PH, PH),
        "extra": (PH, 2),
        "named": {"k": PH},
    }
    module = fxplug.symbolic_trace(program, concrete)
    module.graph.lint()

    def call(run):
        return run({"s": 1}, [2, None], 5, 6, flag=7, k=1)

    assert str(inspect.signature(module.forward)) == "(add, torch=None, *rest, flag, extra=(1, 2), **named)"
    assert call(module) == call(program) == 1 + 2 + 42 + 1 + 1
    with pytest.raises(GraphError, match="FXP-G020"):
        module({"s": 1}, [2, None], 5, flag=7, k=1)


def test_values_that_a_starred_parameter_receives_may_be_given_alone():
    module = fxplug.symbolic_trace(lambda *rest: sum(rest) + len(rest), {"*rest": [PH, PH, PH]})

    assert module(1, 2, 3) == 9
    assert Interpreter(module).run(1, 2, 3) == 9
    assert fxplug.symbolic_trace(lambda *rest: len(rest), (PH, PH))(5, 6) == 2


@pytest.mark.parametrize(
    ("program", "concrete"),
    [
        (lambda *rest: rest, {"rest": 3}),
        (lambda **named: named, {"named": [PH]}),
    ],
    ids=["*", "**"],
)
def test_starred_parameters_receive_tuples_and_dicts(program, concrete):
    with pytest.raises(TraceError, match=r"concrete_args has a \w+ for \*.* Give a (tuple|dict)"):
        Tracer().trace(program, concrete)


def test_structure_behind_a_variable_number_of_values_is_refused():
    with pytest.raises(TraceError, match=r"'last' a structure: it stands behind \*rest.*\[FXP-T031\]$"):
        Tracer().trace(lambda *rest, last: rest, {"last": [PH]})


def test_names_of_inputs_avoid_other_parameters():
    module = fxplug.symbolic_trace(lambda x, x_1, x_2: x[0] + x[1] + x_1 + x_2, {"x": [PH, PH]})

    assert [node.target for node in module.graph.find_nodes(op="placeholder")] == ["x_3", "x_4", "x_1", "x_2"]
    assert module([1, 10], 100, 1000) == 1111


def test_parameters_may_be_called_like_what_the_code_uses():
    def program(torch, operator, _fxp_flatten_inputs):
        return [torch["x"].relu(), operator[0] + 1, _fxp_flatten_inputs]

    module = fxplug.symbolic_trace(program, {"torch": {"x": PH}, "operator": [PH, 3]})
    x = torch.tensor([-1.0])

    assert_same(module({"x": x}, [1, 3], 5), [x.relu(), 2, 5])


def test_a_leaf_may_receive_a_structure():
    module = fxplug.symbolic_trace(lambda x: x["a"][0], {"x": {"a": PH}})

    assert module({"a": [7, 8]}) == 7


def test_notes_of_placeholders_are_kept():
    class Marked(PHBase):
        kind = "image"

        def __init__(self):
            self.size = 224

    graph = Tracer().trace(lambda x: x["a"] + x["b"], {"x": {"a": PHWithMeta("key"), "b": Marked()}})
    first, second = graph.find_nodes(op="placeholder")
    assert (first.meta["ph_key"], second.meta["kind"], second.meta["size"]) == ("key", "image", 224)
    assert repr(PH) == repr(Marked()) == "PH"


@pytest.mark.parametrize(
    "change",
    [
        lambda x: x.update(a=x["a"] + 1),
        lambda x: x.pop("b"),
        lambda x: x["c"].append(x["a"]),
        lambda x: operator.setitem(x, "b", x["a"]),
    ],
    ids=["update", "pop", "inner", "item"],
)
def test_program_that_changes_its_structures_is_refused(change):
    """torch.fx records nothing of it."""

    def program(x):
        change(x)
        return x["a"]

    with pytest.raises(TraceError, match=r"changes the dict that it is given as 'x'.*\[FXP-T032\]$"):
        Tracer().trace(program, {"x": {"a": PH, "b": PH, "c": [1]}})


def test_modules_and_hooks_see_the_structure():
    class Root(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(2, 2)

        def forward(self, batch):
            return {"out": self.linear(batch["x"])}

    root = Root()
    root.register_forward_pre_hook(lambda module, args: ({"x": args[0]["x"] * 2},))
    module = fxplug.symbolic_trace(root, {"batch": {"x": PH}})
    x = torch.randn(3, 2)
    torch.testing.assert_close(module({"x": x})["out"], root({"x": x})["out"])


# -- what else is done with such a module


@pytest.fixture
def module():
    return fxplug.symbolic_trace(nested, NESTED)


@pytest.mark.parametrize(
    "copied",
    [
        copy.copy,
        copy.deepcopy,
        lambda module: pickle.loads(pickle.dumps(module)),
        lambda module: GraphModule(module, copy.deepcopy(module.graph)),
        lambda module: Transformer(module).transform(),
        lambda module: fxplug.symbolic_trace(module, NESTED),
    ],
    ids=["copy", "deepcopy", "pickle", "graph", "transformed", "traced again"],
)
def test_copies_keep_the_structure(module, copied):
    other = copied(module)
    values = inputs(1.0)

    assert_same(other(*values), nested(*values))
    with pytest.raises(GraphError, match="FXP-G020"):
        other([], {})


def test_tracing_it_again_needs_the_structure_again(module):
    with pytest.raises(
        TraceError, match=r"the value of 'x' is a single traced value.*concrete_args.*FXP-T031"
    ):
        fxplug.symbolic_trace(module)


def test_pickle_warns_of_nothing(module):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        pickle.loads(pickle.dumps(module))


def test_files_hold_the_structure_where_its_classes_are_allowed(module, tmp_path):
    with pytest.raises(
        StorageError, match=r"the structure of the input 'x': .*:Point' is not among .*FXP-S012"
    ):
        fxplug.save(module, tmp_path / "module.fxp")
    allow = [f"{__name__}:Point"]
    fxplug.save(module, tmp_path / "module.fxp", allow=allow)
    loaded = fxplug.load(tmp_path / "module.fxp", allow=allow)
    assert_same(loaded(*inputs())["sum"], nested(*inputs())["sum"])


def test_files_take_the_graph_without_the_structure(module, tmp_path):
    module.graph.set_codegen(CodeGen())
    fxplug.save(module, tmp_path / "module.fxp")
    loaded = fxplug.load(tmp_path / "module.fxp")
    first, point = inputs()[0]["parts"]
    flat = loaded(first, point.x, point.y, 3, "n")
    assert_same(flat[0], nested(*inputs())["sum"])


def test_graph_may_be_edited(module):
    (mul, *_) = module.graph.find_nodes(op="call_function", target=operator.mul)
    mul.target = operator.truediv
    x, options = inputs()

    assert module(x, options)["sum"][0].item() == pytest.approx((1 / 3 + 5) * 2)


def test_an_input_too_many_is_named(module):
    with module.graph.inserting_before(next(iter(module.graph.nodes))):
        module.graph.placeholder("more")
    with pytest.raises(
        CodegenError, match=r"stand for 6 inputs.*has the 7 inputs \['more', 'x_1'.*set_codegen"
    ):
        module.recompile()


def test_a_result_too_many_is_named(module):
    output = module.graph.output_node()
    output.args = ([*output.args[0], 1],)
    with pytest.raises(GraphError, match="the graph returns 5 values, and the program returned 4"):
        module(*inputs())


def test_wrong_number_of_values_for_the_interpreter(module):
    run = Interpreter(module).run
    with pytest.raises(GraphError, match="no value was given for the parameter 'options'"):
        run(inputs()[0])
    with pytest.raises(GraphError, match=r"1 values too many were given for the parameters \['x', 'options'"):
        run(*inputs(), 2, 3)


def test_dead_code_and_checks(module):
    module.graph.eliminate_dead_code()

    assert len(module.graph.find_nodes(op="call_function", target=torch._assert)) == 2
    assert_same(module(*inputs()), nested(*inputs()))
