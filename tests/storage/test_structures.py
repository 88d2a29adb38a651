"""Programs with nested inputs and results come back from files as they were, and damaged descriptions are refused."""

from __future__ import annotations

import copy
import inspect
import json
import pickle
import zipfile
from collections import OrderedDict
from dataclasses import dataclass, fields
from typing import Any, cast

import pytest
import torch
from torch import nn
from torch.utils import _pytree

import fxplug
from fxplug.capture.pytrees import LEAF, InputTrees
from fxplug.codegen import PyTreeCodeGen, TreeParameter
from fxplug.errors import StorageError
from fxplug.storage import load, save
from fxplug.storage.faults import Refusal
from fxplug.storage.values import Decoder


def program(batch, *rest, scale=2.0, **options):
    x = batch["x"] * scale
    for first, second in batch["pairs"]:
        x = x + first * second
    return {
        "sum": x + sum(rest),
        "parts": [x, (x.sum(), None)],
        "options": {k: v + 1 for k, v in options.items()},
    }


def inputs(seed: int) -> tuple[tuple[Any, ...], dict[str, Any]]:
    generator = torch.Generator().manual_seed(seed)

    def value():
        return torch.randn(3, generator=generator)

    return ({"x": value(), "pairs": [(value(), value())]}, value(), value()), {"bias": value()}


def captured() -> fxplug.GraphModule:
    args, kwargs = inputs(0)
    return fxplug.trace(program, args, example_kwargs=kwargs)


def stored(module, tmp_path, **options):
    save(module, tmp_path / "module.fxplug", **options)
    return load(tmp_path / "module.fxplug", **options)


def equal(one, other) -> bool:
    leaves, spec = _pytree.tree_flatten(one)
    others, other_spec = _pytree.tree_flatten(other)
    return spec == other_spec and all(
        torch.equal(a, b) if torch.is_tensor(a) else a == b for a, b in zip(leaves, others, strict=True)
    )


WAYS = {
    "file": stored,
    "pickle": lambda module, _: pickle.loads(pickle.dumps(module)),
    "copy": lambda module, _: copy.deepcopy(module),
}


@pytest.mark.parametrize("way", WAYS)
def test_nested_inputs_and_results_come_back(way, tmp_path):
    module = captured()
    loaded = WAYS[way](module, tmp_path)

    args, kwargs = inputs(1)
    assert loaded.code == module.code
    assert equal(loaded(*args, **kwargs), program(*args, **kwargs))
    assert equal(loaded(*args, scale=3.0, **kwargs), program(*args, scale=3.0, **kwargs))
    with pytest.raises(fxplug.GraphError, match="another structure"):
        loaded({"x": args[0]["x"]}, *args[1:], **kwargs)


def test_files_of_loaded_programs_are_the_same(tmp_path):
    loaded = stored(captured(), tmp_path)
    save(loaded, tmp_path / "again.fxplug")

    first, second = (
        zipfile.ZipFile(tmp_path / name).read("graph.json") for name in ("module.fxplug", "again.fxplug")
    )
    assert first == second


def test_defaults_and_names_of_nested_parameters_come_back(tmp_path):
    def with_defaults(x, *, pair=(1.0, 2.0)):
        return x * pair[0] + pair[1]

    module = fxplug.symbolic_trace(with_defaults, {"pair": (fxplug.PH, fxplug.PH)})
    loaded = stored(module, tmp_path)

    signature = inspect.signature(loaded.forward)
    assert signature == inspect.signature(module.forward)
    assert signature.parameters["pair"].kind is inspect.Parameter.KEYWORD_ONLY
    assert loaded(torch.ones(2)).tolist() == [3, 3]
    assert loaded(torch.ones(2), pair=(2, 5)).tolist() == [7, 7]


def test_functions_of_ones_own_around_a_graph_are_refused(tmp_path):
    module = captured()
    own = module.graph._codegen
    module.graph.set_codegen(PyTreeCodeGen(own.parameters, own.flatten, lambda leaves: leaves))

    with pytest.raises(StorageError, match=r"a code generator of its own \(PyTreeCodeGen\)"):
        save(module, tmp_path / "module.fxplug")


@dataclass
class Output(OrderedDict):
    """As those of the library transformers: a dict of those of its fields that are there."""

    first: Any = None
    second: Any = None

    def __post_init__(self):
        for field in fields(self):
            value = getattr(self, field.name)
            if value is not None:
                self[field.name] = value


_pytree.register_pytree_node(
    Output,
    lambda output: (list(output.values()), list(output)),
    lambda values, keys: Output(**dict(zip(keys, values, strict=True))),
    serialized_type_name=f"{__name__}.Output",
)


def gives_an_output(*values):
    return Output(second=values[0] + 1)


@pytest.mark.parametrize("way", WAYS)
def test_dataclasses_that_are_dicts_come_back(way, tmp_path):
    module = fxplug.trace(gives_an_output, (torch.ones(2),))
    options = {"allow": [f"{__name__}:Output"]} if way == "file" else {}
    loaded = stored(module, tmp_path, **options) if way == "file" else WAYS[way](module, tmp_path)

    result = loaded(torch.zeros(2))
    assert type(result) is Output
    assert (list(result), result.first, result.second.tolist()) == (["second"], None, [1, 1])


@dataclass
class Odd(Output):
    """Holds something else under its key than in its field."""


@dataclass
class Loud(Output):
    """Does something when a key is set."""

    def __setitem__(self, key, value):
        SET.append(key)
        super().__setitem__(key, value)


SET: list[str] = []


def _odd(values, keys):
    made = Odd(**dict(zip(keys, values, strict=True)))
    dict.__setitem__(made, "second", [*values])
    return made


for _kind, _make in ((Odd, _odd), (Loud, lambda values, keys: Loud(**dict(zip(keys, values, strict=True))))):
    _pytree.register_pytree_node(
        _kind,
        lambda output: (list(output.values()), list(output)),
        _make,
        serialized_type_name=f"{__name__}.{_kind.__name__}",
    )


def test_dicts_whose_fields_are_others_are_refused(tmp_path):
    module = fxplug.trace(lambda *values: Odd(second=values[0] + 1), (torch.ones(2),), check=False)

    with pytest.raises(StorageError, match="other values under its keys than in its fields"):
        save(module, tmp_path / "module.fxplug", allow=[f"{__name__}:Odd"])


@pytest.mark.filterwarnings("ignore:While it was traced:fxplug.errors.TraceWarning")
def test_nothing_of_a_class_runs_when_its_keys_are_restored(tmp_path):
    module = fxplug.trace(lambda *values: Loud(second=values[0] + 1), (torch.ones(2),))
    save(module, tmp_path / "module.fxplug", allow=[f"{__name__}:Loud"])
    SET.clear()

    loaded = load(tmp_path / "module.fxplug", allow=[f"{__name__}:Loud"])

    assert SET == []
    assert loaded(torch.zeros(2)).second.tolist() == [1, 1]


def test_classes_of_structures_have_to_be_allowed(tmp_path):
    module = fxplug.trace(gives_an_output, (torch.ones(2),))

    with pytest.raises(
        StorageError, match=r"the structure of the result: .*Output' is not among.*\[FXP-S012\]$"
    ):
        save(module, tmp_path / "module.fxplug")


def set_parameter(place, part, value):
    def change(structures):
        structures["parameters"][place][part] = value

    return change


def set_field(name, value):
    return lambda structures: structures.update({name: value})


def set_input(name, value):
    return lambda structures: structures["inputs"].update({name: value})


DAMAGES = {
    "code for a name": (set_parameter(0, 0, "batch): import os #"), "no name that a parameter can have"),
    "a keyword": (set_parameter(0, 0, "class"), "no name that a parameter can have"),
    "self": (set_parameter(2, 0, "self"), "no name that a parameter can have"),
    "no text": (set_parameter(2, 0, 3), "The name of a parameter"),
    "one name twice": (set_parameter(2, 0, "rest"), "Two parameters have the same name"),
    "stars": (set_parameter(1, 1, "***"), "takes no such values"),
    "unhashable stars": (set_parameter(1, 1, ["*"]), "The stars of a parameter"),
    "negative": (set_parameter(1, 2, -1), "takes no such values"),
    "no number": (set_parameter(1, 2, "2"), "A number of leaves"),
    "other count": (set_parameter(1, 2, 3), "nested in another way"),
    "not nested": (set_parameter(1, 2, None), "nested in another way"),
    "code as a default": (set_parameter(2, 3, [{"$name": "os:system"}]), "'os:system' is not among"),
    "named": (set_parameter(2, 4, 1), "Whether a parameter has to be named"),
    "short row": (lambda structures: structures["parameters"][0].pop(), "has 4 parts, not 5"),
    "no list": (set_field("parameters", {}), "The list of parameters"),
    "fewer": (lambda structures: structures["parameters"].pop(2), "as many inputs as the graph has"),
    "a value": (set_input("rest", {"$tuple": [0, 1]}), "holds values"),
    "true": (set_input("rest", {"$tuple": [0, False]}), "holds values"),
    "a node": (set_input("rest", {"$tuple": [0, [0]]}), "holds values"),
    "a tensor": (set_input("rest", {"$tuple": [0, {"$tensor": 0}]}), "The number of a tensor is 0"),
    "another input": (set_input("other", 0), "nested in another way"),
    "a result of values": (set_field("output", {"$list": ["text"]}), "holds values"),
    "a class": (set_field("output", {"$fields": ["os:stat_result", []]}), "'os:stat_result' is not among"),
    "deep": (set_field("output", json.loads('{"$list":[' * 200 + "0" + "]}" * 200)), "nested more than"),
    "another field": (set_field("more", 1), "'more'"),
    "no answer": (set_field("tells_sizes", "yes"), "Whether sizes are told from tuples"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_damaged_descriptions_are_refused(damage, tmp_path, opened):
    change, text = DAMAGES[damage]
    save(captured(), tmp_path / "module.fxplug")
    file = opened(tmp_path / "module.fxplug")

    def edit(graphs):
        for graph in graphs["graphs"]:
            change(graph["structures"])

    file.edit("graph.json", edit)

    assert text in file.refusal()


@pytest.mark.parametrize(
    ("keys", "text"),
    [
        (["third"], "has no field 'third' for a key"),
        ([3], "A key"),
        ("second", "The keys of a value"),
        (None, "another kind of class"),
    ],
    ids=["unknown", "number", "text", "none"],
)
def test_damaged_keys_of_a_class_are_refused(keys, text, tmp_path, opened):
    allow = [f"{__name__}:Output"]
    save(fxplug.trace(gives_an_output, (torch.ones(2),)), tmp_path / "module.fxplug", allow=allow)
    file = opened(tmp_path / "module.fxplug")

    def edit(graphs):
        for graph in graphs["graphs"]:
            if "output" in graph["structures"]:
                graph["structures"]["output"]["$fields"][2:] = [keys]

    file.edit("graph.json", edit)

    assert text in file.refusal(allow=allow)


def test_guards_for_the_modes_around_a_program_are_kept(tmp_path):
    def asks(x):
        if torch.is_autocast_enabled() or torch.is_inference_mode_enabled() or torch.is_anomaly_enabled():
            return x
        return x + 1

    loaded = stored(fxplug.trace(asks, (torch.ones(2),)), tmp_path)

    assert loaded(torch.zeros(2)).tolist() == [1, 1]
    with torch.inference_mode(), pytest.raises(fxplug.GuardError, match="is_inference_mode_enabled"):
        loaded(torch.zeros(2))


def test_a_tensor_as_a_default_comes_back(tmp_path):
    graph = fxplug.Graph()
    first = graph.placeholder("x_0")
    graph.placeholder("x_1")
    graph.output(first)
    default = (torch.arange(3.0), 2)
    parameters = [TreeParameter("x", leaves=2, default=default)]
    graph.set_codegen(PyTreeCodeGen(parameters, InputTrees.of({"x": (LEAF, LEAF)})))
    loaded = stored(fxplug.GraphModule(nn.Module(), graph), tmp_path)

    assert torch.equal(loaded(), default[0])


def _ordered(batch):
    x = batch["x"]
    return OrderedDict(out=x * 2, parts=[x.sort(0), OrderedDict(b=x, a=x + 1)]), x.max(0)


@pytest.mark.parametrize("way", WAYS)
def test_ordered_dicts_and_named_results_of_operators_come_back(way, tmp_path):
    x = torch.tensor([3.0, 1.0, 2.0])
    module = fxplug.trace(_ordered, ({"x": x},))

    loaded = WAYS[way](module, tmp_path)

    expected, found = _ordered({"x": x + 1}), loaded({"x": x + 1})
    assert equal(found, expected)
    assert (type(found[0]), type(found[0]["parts"][1])) == (OrderedDict, OrderedDict)
    assert list(found[0]["parts"][1]) == ["b", "a"]
    assert type(found[0]["parts"][0]) is torch.return_types.sort
    assert (type(found[1]), found[1].indices.item()) == (torch.return_types.max, 0)


@pytest.mark.parametrize(
    ("written", "text"),
    [
        ({"$returns": ["sort", [1]]}, "a value has 1 parts where 2 were expected"),
        ({"$returns": ["sorted", [1, 2]]}, "has no torch.return_types.sorted"),
        ({"$returns": [["sort"], [1, 2]]}, r"has no torch.return_types.\['sort'\]"),
        ({"$returns": []}, "has no torch.return_types.None"),
        ({"$returns": ["__name__", []]}, "has no torch.return_types.__name__"),
        ({"$returns": {}}, "What an operator returns"),
        ({"$ordered": [["a", 1], ["a", 2]]}, "the same key twice"),
        ({"$ordered": [["a"]]}, "a value has 1 parts where 2 were expected"),
        ({"$ordered": {}}, "The content of a dict"),
    ],
)
def test_damaged_ordered_dicts_and_results_are_refused(written, text):
    decoder = Decoder(cast("Any", None))

    with pytest.raises(Refusal, match=text):
        decoder.decode(written)


class _Packing(nn.Module):
    def __init__(self):
        super().__init__()
        self.recurrent = nn.LSTM(2, 3, batch_first=True)

    def forward(self, x, lengths):
        packed = nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
        noise = torch.randn(3, generator=torch.Generator().manual_seed(1))
        padded, _ = nn.utils.rnn.pad_packed_sequence(self.recurrent(packed)[0], batch_first=True)
        return padded + noise


@pytest.mark.parametrize("way", WAYS)
def test_packed_sequences_and_generators_of_a_program_come_back(way, tmp_path):
    model = _Packing()
    module = fxplug.trace(model, (torch.randn(3, 4, 2), torch.tensor([4, 2, 3])))

    loaded = WAYS[way](module, tmp_path)

    for lengths in (torch.tensor([2, 4, 3]), torch.tensor([5, 1])):
        x = torch.randn(len(lengths), int(lengths.max()), 2)
        torch.testing.assert_close(loaded(x, lengths), model(x, lengths))
