"""What many modules, tensors and origins have in common stands once in a file, and is each one's own when loaded."""

from __future__ import annotations

import json
import math
import zipfile

import pytest
import torch
from torch import nn

import fxplug
from fxplug.errors import StorageError
from fxplug.execute import GraphModule
from fxplug.ir import Graph, ModuleScope, Origin, SourceLine
from fxplug.storage import load, module_reader, modules, origins, save, tensors


def holding(parts) -> GraphModule:
    graph = Graph()
    x = graph.placeholder("x")
    graph.output([graph.call_module(name, (x,)) for name in parts])
    return GraphModule(dict(parts), graph)


def documents(path):
    with zipfile.ZipFile(path) as archive:
        return [json.loads(archive.read(name)) for name in ("graph.json", "modules.json")]


def test_equal_modules_are_one_kind_and_stay_several_modules(tmp_path):
    convs = {f"conv{number}": nn.Conv2d(1, 1, 3, padding=1) for number in range(4)}
    for conv in convs.values():
        conv.note = [1, (2, [3])]
    save(holding(convs), tmp_path / "m.fxplug")
    _, tree = documents(tmp_path / "m.fxplug")

    assert [kind["class"].partition(":")[2] for kind in tree["module_kinds"]] == ["Conv2d", "GraphModule"]
    assert [len(kind) for kind in tree["tensor_kinds"]] == [4, 4]
    loaded = load(tmp_path / "m.fxplug")
    assert repr(loaded) == repr(holding(convs))
    loaded.conv0.note.append(7)
    loaded.conv0.note[1][1].append(8)
    loaded.conv0.stride = (2, 2)
    loaded.conv0.register_parameter("extra", None)
    assert loaded.conv1.note == [1, (2, [3])]
    assert loaded.conv1.stride == (1, 1)
    assert "extra" not in loaded.conv1._parameters
    loaded.conv0.register_forward_hook(lambda *_: None)
    assert not loaded.conv1._forward_hooks


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (1, True),
        (0, False),
        (1, 1.0),
        (0.0, -0.0),
        ((1, 2), (True, 2)),
        ((1, 2), [1, 2]),
        ((1, (2,)), (1, [2])),
        ([0.0], [-0.0]),
        ("1", 1),
        (None, False),
        ((), []),
        (0.5, (0.5).hex()),
        (b"a", "a"),
        (torch.float32, torch.float64),
    ],
)
def test_settings_that_are_only_equal_are_not_taken_for_one_another(tmp_path, bits, one, other):
    parts = {"one": nn.ReLU(), "other": nn.ReLU()}
    parts["one"].note, parts["other"].note = one, other
    save(holding(parts), tmp_path / "m.fxplug")
    loaded = load(tmp_path / "m.fxplug")

    assert bits(loaded.one.note) == bits(one)
    assert bits(loaded.other.note) == bits(other)


def test_settings_that_are_not_equal_to_themselves_are_kept(tmp_path, bits):
    parts = {"one": nn.ReLU(), "other": nn.ReLU().eval()}
    parts["one"].note = parts["other"].note = math.nan
    endless = parts["one"].note_of_lists = [[[[[[1]]]]]]
    save(holding(parts), tmp_path / "m.fxplug")
    loaded = load(tmp_path / "m.fxplug")

    assert math.isnan(loaded.one.note)
    assert loaded.one.note_of_lists == endless
    assert (loaded.one.training, loaded.other.training) == (True, False)


def test_each_module_of_a_kind_gets_what_a_newer_torch_has_added(tmp_path, opened):
    save(holding({"one": nn.Conv2d(1, 1, 1), "other": nn.Conv2d(1, 1, 1)}), tmp_path / "m.fxplug")
    stored = opened(tmp_path / "m.fxplug")
    stored.edit("modules.json", lambda tree: tree["module_kinds"][0]["attributes"].pop("padding_mode"))
    loaded = load(stored.path)

    assert [vars(part)["padding_mode"] for part in (loaded.one, loaded.other)] == ["zeros"] * 2


class Counting(nn.ReLU):
    """Counts how many of its instances have taken in their state."""

    taken = 0

    def __setstate__(self, state):
        super().__setstate__(state)
        type(self).taken += 1


def test_a_class_that_the_caller_allows_takes_in_the_state_of_each_module(tmp_path):
    names = [f"{Counting.__module__}:Counting"]
    save(holding({"one": Counting(), "other": Counting()}), tmp_path / "m.fxplug", allow=names)
    before = Counting.taken
    load(tmp_path / "m.fxplug", allow=names)

    assert Counting.taken == before + 2


def test_a_setting_that_contains_itself_is_refused(tmp_path):
    parts = {"one": nn.ReLU()}
    parts["one"].note = []
    parts["one"].note.append(parts["one"].note)

    with pytest.raises(StorageError, match=r"attribute 'note' of submodule 'one': containers are nested"):
        save(holding(parts), tmp_path / "m.fxplug")


def test_buffers_that_are_persistent_in_one_module_only(tmp_path):
    parts = {name: nn.Identity() for name in ("one", "other")}
    for name, part in parts.items():
        part.register_buffer("held", torch.ones(2), persistent=name == "one")
    save(holding(parts), tmp_path / "m.fxplug")

    assert list(load(tmp_path / "m.fxplug").state_dict()) == ["one.held"]


@pytest.mark.parametrize("kind", ["modules", "tensors", "values in modules"])
def test_more_objects_than_a_file_may_hold_are_refused_on_both_sides(tmp_path, monkeypatch, kind):
    path = tmp_path / "m.fxplug"
    module = holding({f"part{number}": nn.Linear(1, 1) for number in range(5)})
    save(module, path)
    name = "MOST_VALUES" if kind.startswith("values") else "MOST_OBJECTS"
    for holder in (tensors,) if kind == "tensors" else (modules, module_reader):
        monkeypatch.setattr(holder, name, 5)

    for attempt in (lambda: load(path), lambda: save(module, path)):
        with pytest.raises(StorageError, match=rf"more than the 5 {kind} that are allowed") as caught:
            attempt()
        assert caught.value.code == "FXP-S004"


@pytest.mark.parametrize("what", ["caller", "module"])
def test_origins_that_lie_too_deep_are_refused_on_both_sides(tmp_path, monkeypatch, what):
    module = fxplug.symbolic_trace(lambda x: x + 1)
    around: Origin | None = None
    scope: ModuleScope | None = None
    for number in range(9):
        around = Origin(SourceLine("f.py", number, "f"), caller=around)
        scope = ModuleScope("a" * number, "b", scope)
    node = module.graph.find_nodes(op="call_function")[0]
    line = SourceLine("f.py", 99, "g")
    node.origins = (Origin(line, caller=around) if what == "caller" else Origin(line, module=scope),)
    save(module, tmp_path / "m.fxplug")
    (loaded,) = load(tmp_path / "m.fxplug").graph.find_nodes(op="call_function")
    assert [origin.to_data() for origin in loaded.origins] == [origin.to_data() for origin in node.origins]
    monkeypatch.setattr(origins, "LARGEST_DEPTH", 8)

    for attempt in (lambda: load(tmp_path / "m.fxplug"), lambda: save(module, tmp_path / "m.fxplug")):
        with pytest.raises(StorageError, match=r"more than 8 callers or modules around it") as caught:
            attempt()
        assert caught.value.code == "FXP-S004"


@pytest.mark.parametrize(
    ("table", "row", "text"),
    [
        ("lines", ["f", 1.5, "g"], "A line is made of"),
        ("callers", [0, 0], "The number of a caller is 0, which refers to nothing that comes earlier"),
        ("callers", [99, None], "The number of a line is 99"),
        ("scopes", ["a", "b", 0], "The number of a module path is 0"),
        ("scopes", ["a", "b"], "A module path is made of"),
        ("origins", [None, None, -1], "The number of a module path is -1"),
        ("origins", [True, None, None], "An origin is made of"),
        ("origins", [None, None, None, [["a", "b", 1]]], "A pass is made of"),
        ("origins", [None] * 5, "An origin is made of"),
    ],
)
def test_tables_of_origins_are_checked(stored, table, row, text):
    stored.edit("graph.json", lambda data: data["graphs"][0].__setitem__(table, [row]))

    assert text in stored.refusal()


@pytest.mark.parametrize("row", [[], ["call_function", "a"], ["output"] * 10, {}, "output", None])
def test_rows_of_nodes_have_three_to_nine_parts(stored, row):
    stored.edit("graph.json", lambda data: data["graphs"][0]["nodes"].append(row))

    assert "A node " in stored.refusal()


@pytest.mark.parametrize("row", [[], [0, 0], [0, "x", 0, 0], [None], [0, "linear.bias", 1.0], {"number": 0}])
def test_rows_of_tensors_have_parts_of_their_types(stored, row):
    stored.edit("modules.json", lambda data: data["tensors"].append(row))

    assert "ntry of the table of tensors is " in stored.refusal()


@pytest.mark.parametrize("lazy", [False, True])
def test_two_tensors_that_name_one_weight_share_its_memory(stored, lazy):
    def change(data):
        number = next(number for number, row in enumerate(data["tensors"]) if row[1] == "linear.weight")
        data["tensors"].append(data["tensors"][number])
        data["modules"][0][1].append(len(data["tensors"]) - 1)
        data["module_kinds"][0]["parameters"].append("again")

    stored.edit("modules.json", change)
    linear = load(stored.path, lazy=lazy).linear

    assert linear.again is not linear.weight
    assert linear.again.data_ptr() == linear.weight.data_ptr()
    assert not linear.again._is_view()
