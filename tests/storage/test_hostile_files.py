"""Files whose graph, modules or tensors are damaged or malicious are refused with a clear message."""

from __future__ import annotations

import json

import pytest
import torch

import fxplug
from fxplug.storage import load, save
from fxplug.storage.modules import MODULE_COLUMNS


def damaged(text: str, code: str = "FXP-S000") -> str:
    return f"Cannot load 'FILE': {text} The file is damaged. [{code}]"


def test_the_untouched_file_loads(stored):
    stored.write()
    assert load(stored.path)(torch.ones(1, 2)).shape == (1, 2)


# -- what a graph may name


@pytest.mark.parametrize(
    "target",
    [
        "builtins:eval",
        "builtins:exec",
        "builtins:__import__",
        "builtins:compile",
        "builtins:open",
        "builtins:setattr",
        "builtins:type",
        "os:system",
        "posix:system",
        "subprocess:Popen",
        "importlib:import_module",
        "torch:load",
        "torch:save",
        "torch:compile",
        "torch:from_file",
        "torch:manual_seed",
        "torch:set_default_device",
        "torch.hub:load",
        "torch.jit:load",
        "torch.ops:load_library",
        "torch.ops:aten.from_file",
        "torch.ops:aten.save",
        "torch.ops:other.op.default",
        "torch:Tensor.register_hook",
        "torch:Tensor.__reduce__",
        "torch.nn.functional:triplet_margin_with_distance_loss",
        "torch.nn.functional:handle_torch_function",
        "operator:attrgetter",
        "operator:itemgetter",
        "operator:methodcaller",
        "operator:call",
        "math:__loader__",
        "torch:nn.functional.relu",
        "fxplug.storage:load",
        "module_that_does_not_exist:function",
    ],
)
def test_functions_outside_the_table_are_refused_by_name(stored, target):
    stored.node("relu", target=target)

    assert stored.refusal() == (
        f"Cannot load 'FILE': node 'relu': {target!r} is not among the functions that a file may name. If "
        f"you know what it does and trust the file, allow it: load(..., allow=[{target!r}]). [FXP-S012]"
    )


@pytest.mark.parametrize(
    "target", ["relu", "", ":", "os.system", "os:system()", "torch:relu;x", "a:b\n", "torch:", "é:x"]
)
def test_text_that_is_no_name_is_refused(stored, target):
    stored.node("relu", target=target)

    assert stored.refusal() == damaged(f"node 'relu': {target!r} is not the name of a function.", "FXP-S008")


def test_a_function_among_the_arguments_must_be_in_the_table_too(stored):
    stored.node("relu", args=[{"$name": "os:system"}])

    assert "node 'relu': 'os:system' is not among the functions" in stored.refusal()


def test_an_allowed_function_is_found(stored):
    stored.node("relu", target="torch.special:expit")
    assert load(stored.path)(torch.zeros(1, 2)).shape == (1, 2)
    stored.node("relu", target="builtins:type")
    assert load(stored.path, allow=["builtins:type"]).graph.find_nodes(op="call_function", target=type)


@pytest.mark.parametrize(
    "method",
    [
        *("__class__", "__reduce__", "__subclasses__", "tofile"),
        *("apply_", "as_subclass", "map2_", "map_", "module_load", "register_hook"),
        *("register_post_accumulate_grad_hook", "reinforce", "share_memory_", "storage_type"),
    ],
)
def test_methods_outside_the_table_are_refused(stored, method):
    stored.node("relu", op="call_method", target=method)

    assert stored.refusal() == (
        f"Cannot load 'FILE': node 'relu': the method {method!r} is not among those that a file may call. "
        f"If you know what it does and trust the file, allow it: allow=['.{method}']. [FXP-S012]"
    )


@pytest.mark.parametrize("method", ["", "a b", "relu()", "a.b"])
def test_text_that_is_no_method_name_is_refused(stored, method):
    stored.node("relu", op="call_method", target=method)

    assert stored.refusal() == damaged(f"node 'relu': {method!r} is not the name of a method.", "FXP-S008")


@pytest.mark.parametrize(
    "attribute",
    ["__class__", "_base", "gi_frame", "f_globals", [0], 3, None],
    ids=str,
)
def test_attributes_are_read_only_by_literal_public_names(stored, attribute):
    stored.node("relu", target="builtins:getattr", args=[[1], attribute])

    assert "A stored graph may only read attributes whose names are literal and public" in stored.refusal()


def test_a_computed_value_is_never_called_through_key(stored):
    stored.node("relu", target="builtins:sorted", kwargs={"key": [0]})

    assert "its argument 'key' is a computed value, which would be called" in stored.refusal()


@pytest.mark.parametrize(
    "arguments", [{"args": [[0], *[None] * 9, [0]]}, {"kwargs": {"tracker": [0]}}], ids=str
)
def test_a_value_is_never_called_as_a_tracker(stored, arguments):
    stored.node("relu", target="torch:lobpcg", **arguments)

    assert "its argument 'tracker' would be called with what is computed inside" in stored.refusal()


@pytest.mark.parametrize("method", ["format", "format_map"])
@pytest.mark.parametrize(
    "text",
    [
        "{0.__class__}",
        "{0[0].__globals__[os]}",
        "{x._base!r:>3}",
        "{0.gi_frame}",
        "{0:{1.__class__}}",
        "{0:{1:{2.__class__}}}",
        "{0.shape} {",
        [0],
    ],
    ids=str,
)
def test_a_text_reads_no_private_attributes_when_it_is_formatted(stored, method, text):
    stored.node("relu", op="call_method", target=method, args=[text, [0]])

    assert "which may read attributes that are not public" in stored.refusal()
    assert load(stored.path, allow=[f".{method}"]).graph.find_nodes(op="call_method")


@pytest.mark.parametrize("text", ["", "{}", "{0.shape} {{x.__class__}}", "{x[0]:>{1}}", "{.dtype!r}"])
def test_a_text_may_read_public_attributes(stored, text):
    stored.node("relu", op="call_method", target="format", args=[text, [0]])

    assert load(stored.path).graph.find_nodes(op="call_method")


@pytest.mark.parametrize(
    ("kind", "dtype"), [("iinfo", "quint4x2"), ("iinfo", "qint8"), ("finfo", "complex64")]
)
def test_limits_of_dtypes_that_have_none_are_refused(stored, kind, dtype):
    stored.node("relu", args=[{f"${kind}": dtype}])

    assert f"the dtype {dtype!r} has no {kind}" in stored.refusal()


@pytest.mark.parametrize(
    "path",
    [
        "linear.weight.data",
        "linear.forward",
        "linear.__class__",
        "__dict__",
        "_modules",
        "linear._parameters",
        "",
        ".scale",
        "scale.",
        "linear..weight",
    ],
)
def test_paths_lead_only_to_what_is_stored(stored, path):
    stored.node("scale", target=path)

    assert stored.refusal() == (
        f"Cannot load 'FILE': node 'scale': it refers to {path!r}, but the module holds no parameter, "
        f"buffer, submodule or attribute at that path. [FXP-S009]"
    )


@pytest.mark.parametrize("path", ["scale", "linear.bias", "linear.forward", "missing"])
def test_only_submodules_are_called(stored, path):
    stored.node("linear", target=path)

    assert (
        f"node 'linear': it refers to {path!r}, but the module holds no submodule at that path."
        in stored.refusal()
    )


def test_a_region_names_only_contexts(stored):
    stored.node("relu", region=[["os:system", ["true"]]])

    assert "node 'relu': 'os:system' is not among the contexts that a file may enter" in stored.refusal()


@pytest.mark.parametrize("name", ["builtins:getattr", "torch:relu", "torch.nn.functional:softmax", 3, None])
def test_functions_of_the_table_are_no_contexts(stored, name):
    stored.node("relu", region=[[name, [{"$name": "torch.nn.functional:softmax"}, "__globals__"]]])

    assert "is not among the contexts that a file may enter" in stored.refusal()


@pytest.mark.parametrize(
    ("value", "what"),
    [
        ([3], "a node"),
        ({"$list": [[0]]}, "a node"),
        ({"$name": "torch:relu"}, "a function"),
        ({"$dict": [["key", {"$tuple": [[1]]}]]}, "a node"),
    ],
)
def test_arguments_of_a_region_are_plain(stored, value, what):
    stored.node("relu", region=[["torch:no_grad", [value]]])

    assert f"an argument of a region, is made of {what}" in stored.refusal()


# -- the structure of graphs


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        (
            {"op": "call"},
            "node 'relu': its opcode is 'call', not one of placeholder, get_attr, call_function, ",
        ),
        ({"name": "x"}, "the name 'x' is taken or not a valid name."),
        ({"name": "a b"}, "the name 'a b' is taken or not a valid name."),
        ({"name": "import os"}, "the name 'import os' is taken or not a valid name."),
        ({"args": [[5]]}, "node 2 refers to node 5, which does not come earlier."),
        ({"args": [[2]]}, "node 2 refers to node 2, which does not come earlier."),
        ({"args": [[-1]]}, "node 2 refers to node -1, which does not come earlier."),
        ({"args": [{"$tensor": 99}]}, "node 'relu': The number of a tensor is 99, which refers to nothing"),
        (
            {"args": [{"$what": 1}]},
            "node 'relu': a value is written as \"{'$what': 1}\", which no rule explains.",
        ),
        ({"args": [{"a": 1, "b": 2}]}, "which no rule explains."),
        ({"args": 3}, "node 'relu': args is a int where list was expected."),
        ({"args": [{"$slice": [1]}]}, "node 'relu': a value has 1 parts where 3 were expected."),
        (
            {"args": [{"$dict": [[{"$list": []}, 1]]}]},
            "node 'relu': a dict has a key that cannot be one: unhashable type: 'list'.",
        ),
        ({"args": [{"$torch": "torch.load"}]}, "node 'relu': the constant 'torch.load' is unknown to torch"),
        ({"args": [{"$device": "nonsense"}]}, "node 'relu': the device 'nonsense' is unknown to torch"),
        ({"args": [{"$float": "zz"}]}, "node 'relu': a float is written as 'zz'."),
        ({"args": [{"$bytes": "!"}]}, "node 'relu': a byte string is not base64"),
        ({"args": [{"$record": ["Popen", []]}]}, "node 'relu': the record 'Popen' is unknown."),
        ({"args": [[1, 2]]}, "node 'relu': a value is written as '[1, 2]', which no rule explains."),
        ({"args": [[True]]}, "node 'relu': a value is written as '[True]', which no rule explains."),
        ({"origins": [7]}, "node 'relu': The number of an origin is 7, which refers to nothing"),
        ({"type": {"$name": "os:system"}}, "node 'relu': 'os:system' is not among the functions"),
        ({"meta": {"note": {"$tensor": 0}}}, "node 'relu': a tensor stands where none may be."),
    ],
    ids=lambda value: str(value)[:40] if isinstance(value, dict) else "",
)
def test_broken_nodes_are_named(stored, fields, text):
    stored.node("relu", **fields)

    message = stored.refusal()
    assert message.startswith("Cannot load 'FILE': ")
    assert text in message


def test_arguments_that_are_nested_too_deeply(stored):
    value: object = 1
    for _ in range(150):
        value = {"$list": [value]}
    stored.node("relu", args=[value])

    assert stored.refusal() == damaged("node 'relu': containers are nested more than 100 deep.", "FXP-S004")


def test_json_that_is_nested_without_end(stored):
    stored.members["graph.json"] = b"[" * 200_000
    stored.write()

    assert stored.refusal().startswith(
        "Cannot load 'FILE': graph.json is no valid JSON: maximum recursion depth"
    )


@pytest.mark.parametrize("content", [b'{"graphs": NaN}', b'{"graphs": [], "graphs": []}', b"\xff", b"{", b""])
def test_text_that_is_no_json(stored, content):
    stored.members["graph.json"] = content
    stored.write()

    assert stored.refusal().startswith("Cannot load 'FILE': graph.json is no valid JSON: ")


def test_a_graph_with_two_outputs(stored):
    stored.node("mul", op="output", target="output", args=[[3]])

    assert "node 'output' stands behind the output" in stored.refusal()


@pytest.mark.parametrize("args", [[], [[4], [4]]], ids=["none", "two"])
def test_an_output_that_is_not_one_value(stored, args):
    stored.node("output", args=args)

    assert f"output 'output' has {len(args)} arguments; it must have one" in stored.refusal()


def test_a_node_behind_the_output(stored):
    def change(data) -> None:
        data["graphs"][0]["nodes"].append(["call_function", "late", "torch:relu", [[0]]])

    stored.edit("graph.json", change)

    assert "node 'late' stands behind the output" in stored.refusal()


def test_a_default_that_is_a_node(stored):
    stored.node("linear", op="placeholder", target="linear", args=[[0]])

    assert "the default of placeholder 'linear' is a node" in stored.refusal()


def test_a_placeholder_that_is_no_parameter_name(stored):
    stored.node("x", target="x): import os #")

    assert "placeholder 'x' has the target 'x): import os #', which is not a par" in stored.refusal()


# -- modules and tensors


def edit_linear(stored, **fields) -> None:
    """Change what the kind of the linear layer says, or a column of its row."""

    def change(content) -> None:
        ((number, kind),) = (
            (number, kind)
            for number, kind in enumerate(content["module_kinds"])
            if kind["class"].endswith(":Linear")
        )
        (row,) = (row for row in content["modules"] if row[0] == number)
        row += [[], [], {}][len(row) - 1 :]
        for place, column in enumerate(MODULE_COLUMNS):
            if column in fields:
                row[place] = fields[column]
        kind.update({name: value for name, value in fields.items() if name not in MODULE_COLUMNS})

    stored.edit("modules.json", change)


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"class": "os:Popen"}, "the class 'os:Popen' is not one that torch.nn.modules of torch"),
        ({"class": "torch.nn.modules.linear.Linear"}, "is not one that torch.nn.modules of torch"),
        ({"class": 3}, "The class of a module is a int where str was expected."),
        (
            {"attributes": {"forward": {"$name": "torch:relu"}}},
            "its attribute 'forward' replaces what the class Linear",
        ),
        ({"attributes": {"__class__": 1}}, "its attribute '__class__' replaces what the class Linear"),
        (
            {"attributes": {"_compiled_call_impl": {"$name": "torch:relu"}}},
            "'_compiled_call_impl' cannot be the name of something that a Linear holds.",
        ),
        (
            {"attributes": {"__deepcopy__": {"$name": "torch:relu"}}},
            "'__deepcopy__' cannot be the name of something that a Linear holds.",
        ),
        (
            {"attributes": {"__torch_function__": {"$name": "torch:relu"}}},
            "'__torch_function__' cannot be the name of something that a Linear holds.",
        ),
        (
            {"attributes": {"_forward_hooks": {"$dict": []}}},
            "'_forward_hooks' cannot be the name of something that a",
        ),
        (
            {"attributes": {"_modules": {"$dict": []}}},
            "'_modules' cannot be the name of something that a Linear holds.",
        ),
        ({"attributes": {"weight": 1}}, "one name stands for two things that it holds."),
        ({"parameters": ["a.b", "bias"]}, "'a.b' cannot be the name of something that a Linear holds."),
        ({"parameters": ["bias", "bias"]}, "one name stands for two things that it holds."),
        ({"parameters": ["weight"]}, "a module holds 2 tensors where its kind names 1."),
        ({"parameters": [3, "bias"]}, "A name is a int where str was expected."),
        ({"parameters": {"weight": 0}}, "The parameters of a module is a dict where list was expected."),
        ({"held": [99, 0]}, "The number of a tensor is 99, which refers to nothing"),
        ({"held": [True, 0]}, "The number of a tensor is True, which refers to nothing"),
        ({"held": [0]}, "a module holds 1 tensors where its kind names 2."),
        ({"held": 0}, "What a module holds is a int where list was expected."),
        (
            {"children": ["self"], "parts": [5]},
            "The number of a child is 5, which refers to nothing that comes earlier.",
        ),
        (
            {"children": ["self"], "parts": [0]},
            "The number of a child is 0, which refers to nothing that comes earlier.",
        ),
        ({"children": ["self"]}, "a module has 0 children where its kind names 1."),
        ({"parts": [None]}, "a module has 1 children where its kind names 0."),
        ({"training": 1}, "The training flag is a int where bool was expected."),
        ({"not_persistent": ["weight"]}, "a buffer that is not persistent does not exist."),
        ({"number": 7}, "The number of a kind of modules is 7, which refers to nothing"),
        ({"number": "0"}, "The number of a kind of modules is '0', which refers to nothing"),
        ({"graph": {"graph": 0}}, "a Linear has a graph."),
        ({"surprise": 0}, "A kind of modules has the unknown field 'surprise'."),
    ],
    ids=lambda value: str(value)[:40] if isinstance(value, dict) else "",
)
def test_broken_modules_are_refused(stored, fields, text):
    edit_linear(stored, **fields)

    message = stored.refusal()
    assert message.startswith(
        ("Cannot load 'FILE': module 0 of the table: ", "Cannot load 'FILE': kind 0 of modules: ")
    )
    assert text in message


def test_a_buffer_in_the_place_of_a_parameter(stored):
    def change(content) -> None:
        root = content["module_kinds"][-1]
        root["parameters"] = root.pop("buffers")

    stored.edit("modules.json", change)

    assert "its parameter 'scale' is a Tensor. Make it a torch.nn.Parameter." in stored.refusal()


def test_a_root_without_a_graph(stored):
    stored.edit("modules.json", lambda content: content["modules"].pop())

    assert stored.refusal() == damaged("its outermost module has no graph.")


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        (
            {"shape": [3, 2]},
            "the weight 'linear.weight' is torch.float32[2, 2], the table says torch.float32[3, 2].",
        ),
        (
            {"dtype": "torch.int32"},
            "the weight 'linear.weight' is torch.float32[2, 2], the table says torch.int32[2, 2].",
        ),
        ({"dtype": "torch.load"}, "the dtype 'torch.load' is unknown to torch"),
        ({"dtype": "torch.qint8", "stride": [2, 1], "offset": 0}, "or is none that files hold."),
        ({"dtype": "torch.quint4x2", "weight": None}, "or is none that files hold."),
        ({"shape": [-1, 2]}, "a shape is [-1, 2]."),
        ({"shape": [2**40, 2**40]}, "a shape is [1099511627776, 1099511627776]."),
        ({"shape": "2"}, "A shape is a str where list was expected."),
        ({"stride": [2, 1], "offset": 1}, "a tensor reaches beyond the weight 'linear.weight'."),
        ({"stride": [2, 1], "offset": -1}, "a tensor reaches beyond the weight 'linear.weight'."),
        ({"stride": [2**40, 1]}, "a tensor reaches beyond the weight 'linear.weight'."),
        ({"stride": [1]}, "a tensor has more strides than sizes, or fewer."),
        ({"weight": "missing"}, "the weight 'missing' is missing."),
        ({"kind": "storage"}, "a tensor is of the kind 'storage'."),
        ({"requires_grad": "yes"}, "requires_grad is a str where bool was expected."),
    ],
    ids=lambda value: str(value)[:40] if isinstance(value, dict) else "",
)
def test_broken_tensors_are_refused(stored, fields, text):
    stored.tensor("linear.weight", **fields)

    message = stored.refusal()
    assert message.startswith("Cannot load 'FILE': ")
    assert text in message


def test_a_huge_tensor_without_bytes_costs_no_memory(stored):
    def change(content) -> None:
        content["tensor_kinds"].append(["tensor", "torch.float64", [2**50], False])
        content["tensors"].append([len(content["tensor_kinds"]) - 1])

    stored.edit("modules.json", change)
    load(stored.path)


def entry(**changes) -> dict:
    return {"dtype": "F32", "shape": [2, 2], "data_offsets": [0, 16], **changes}


def header(entries, size=24) -> bytes:
    text = json.dumps(entries).encode() if not isinstance(entries, bytes) else entries
    return len(text).to_bytes(8, "little") + text + bytes(size)


ROW = {"linear.weight": entry(), "linear.bias": entry(shape=[2], data_offsets=[16, 24])}


@pytest.mark.parametrize("lazy", [False, True])
@pytest.mark.parametrize(
    ("content", "text"),
    [
        (b"", "the weights cannot be read: their header has 0 bytes."),
        (b"1234567", "the weights cannot be read: their header has"),
        ((2**60).to_bytes(8, "little") + b"{}", "their header has 1,152,921,504,606,846,976 bytes."),
        ((10**10).to_bytes(8, "little") + b"{}", "their header has 10,000,000,000 bytes."),
        (header(b"{"), "the header of the weights is no valid JSON: "),
        (header([]), "The header of the weights is a list where dict was expected."),
        (header(b'{"a": 1, "a": 1}'), "an object has the same key twice"),
        (header({"__metadata__": {"a": 1}}), "their notes are no texts."),
        (header({"a": entry(dtype="F31")}), "'a' has the dtype 'F31'."),
        (header({"a": entry(dtype=[])}), "'a' has the dtype '[]'."),
        (header({"a": entry(shape=[-1])}), "A size is -1, which"),
        (header({"a": entry(shape=[2**61, 2**61, 2**61])}), "'a' does not have as many bytes as its shape"),
        (header({"a": entry(shape=[1] * 101 + [4])}), "'a' does not have as many bytes as its shape"),
        (header({"a": entry(data_offsets=[0])}), "'a' has no place."),
        (header({"a": entry(data_offsets=[0, "16"])}), "'a' has no place."),
        (header({"a": entry(data_offsets=[16, 0])}), "'a' does not have as many bytes as its shape"),
        (header({"a": entry(), "b": entry()}), "'b' does not begin where the one before ends."),
        (header({"a": entry(data_offsets=[8, 24])}), "'a' does not begin where the one before ends."),
        (header(ROW, size=23), "they have 23 bytes and describe 24."),
        (header(ROW, size=2400), "they have 2,400 bytes and describe 24."),
        (header(ROW), "the weight 'scale' is missing."),
        (header({"a": {}}), "An entry of the weights lacks"),
    ],
)
def test_weights_that_are_no_safetensors(stored, content, text, lazy):
    stored.members["weights.safetensors"] = content
    stored.write()

    message = stored.refusal(lazy=lazy)
    assert message.startswith("Cannot load 'FILE': ")
    assert text in message


def test_a_weight_that_no_tensor_uses(stored):
    stored.tensor("scale", weight=None)

    assert stored.refusal() == damaged("the weight 'scale' belongs to no tensor.", "FXP-S007")


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (lambda rows: rows[0].__setitem__(2, ""), "parameter"),
        (lambda rows: rows.insert(0, ["get_attr", "there", "no.such.thing"]), "no.such.thing"),
    ],
)
def test_the_graph_of_guards_is_looked_at_as_others_are(tmp_path, opened, change, text):
    module = fxplug.trace(lambda x: x * 2 if x.shape[0] > 1 else x, (torch.ones(2, 2),))
    save(module, tmp_path / "module.fxplug")
    file = opened(tmp_path / "module.fxplug")
    assert file.members

    def edit(data):
        assert len(data["graphs"]) == 2
        change(data["graphs"][1]["nodes"])

    file.edit("graph.json", edit)
    assert text in file.refusal()
