"""What plugins bring to files, and what becomes of it without them or in hostile files."""

from __future__ import annotations

import json
import zipfile

import pytest
import torch

from fxplug.capture import ConstantRecord, TracePolicy, Tracer, lifting
from fxplug.errors import StorageError
from fxplug.execute import GraphModule
from fxplug.storage import ProvidedConstant, ProvidedTarget, Provisions, StorageTargetRecord, load, save


class Window:
    def __init__(self, size):
        self.size = size


def cut(x, window):
    return x[: window.size]


def provisions(version="1.0", **changes):
    record = ConstantRecord(
        "window", Window, **{"encode": lambda w: (w.size,), "decode": lambda d: Window(*d), **changes}
    )
    return lambda: Provisions(
        (ProvidedTarget(StorageTargetRecord("cut", cut), "mine", "fxplug-mine", version),),
        (ProvidedConstant(record, "mine", "fxplug-mine", version),),
        {"mine": f"fxplug-mine {version}"},
    )


def traced():
    window = Window(2)
    policy = TracePolicy(
        lift_constant=lifting([ConstantRecord("window", Window)]), leaf_functions=lambda: [cut]
    )
    tracer = Tracer(policy=policy)
    graph = tracer.trace(lambda x: cut(x, window))
    return GraphModule(tracer.root, graph)


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "module.fxplug"
    save(traced(), path, provisions=provisions())
    return path


def stored_in(path, name="graph.json"):
    with zipfile.ZipFile(path) as archive:
        return json.loads(archive.read(name))


def test_the_file_says_who_brought_what(path):
    data = stored_in(path)

    assert stored_in(path, "manifest.json")["plugins"] == {"mine": ["fxplug-mine", "1.0"]}
    assert data["graphs"][0]["nodes"][2][:3] == ["call_function", "cut", "@mine:cut"]
    assert data["graphs"][0]["lifted"] == {
        "_window_constant0": {"$constant": ["@mine:window", 0, {"$tuple": [2]}]}
    }
    assert load(path, provisions=provisions())(torch.ones(4)).tolist() == [1, 1]


def test_a_file_without_anything_of_plugins_does_not_ask_them(tmp_path):
    def ask():
        raise AssertionError("nobody is to be asked")

    tracer = Tracer()
    module = GraphModule(tracer.root, tracer.trace(torch.nn.Identity()))
    save(module, tmp_path / "m.fxplug", provisions=ask)

    assert stored_in(tmp_path / "m.fxplug", "manifest.json")["plugins"] == {}
    load(tmp_path / "m.fxplug", provisions=ask)


def test_another_version_that_lacks_the_name_is_named(path):
    def newer():
        return Provisions((), (), {"mine": "fxplug-mine 2.0"})

    with pytest.raises(StorageError) as refused:
        load(path, provisions=newer)

    assert (
        "is not among those that plugin 'mine' (fxplug-mine 2.0) brings. The file was written with fxplug-mine 1.0"
        in str(refused.value)
    )


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"encode": None, "decode": None}, "says that it is a constant, but not how a file keeps it"),
        ({"encode": lambda w: w}, "containers are nested more than 100 deep"),
        ({"encode": lambda w: 1 / 0}, "encode of the constant '@mine:window' raised ZeroDivisionError"),
    ],
)
def test_what_an_encoder_does_wrong(tmp_path, changes, text):
    with pytest.raises(StorageError, match=text):
        save(traced(), tmp_path / "m.fxplug", provisions=provisions(**changes))


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"decode": lambda d: 1 / 0}, "decode of the constant '@mine:window' raised ZeroDivisionError"),
        ({"decode": lambda d: 3}, "the constant '@mine:window' became a int instead of a Window"),
    ],
)
def test_what_a_decoder_does_wrong(path, changes, text):
    with pytest.raises(StorageError, match=f"{text}.*fxplug-mine 1.0"):
        load(path, provisions=provisions(**changes))


@pytest.mark.parametrize(
    "providers",
    [
        {"mine": ["fxplug-mine; rm -rf", "1.0"]},
        {"mine": ["fxplug-mine"]},
        {"mine": ["fxplug-mine", "1.0 && x"]},
        {"mine": "fxplug-mine"},
        [],
    ],
)
def test_a_hostile_table_of_providers_is_refused(path, providers, tampered):
    tampered(path, lambda data: data.update(plugins=providers), "manifest.json")

    with pytest.raises(StorageError, match="The file is damaged"):
        load(path)


@pytest.mark.parametrize(
    "constant",
    [
        ["@mine:window", 0],
        ["@mine:window", "0", 1],
        [3, 0, 1],
        "x",
        ["@mine:other", 0, 1],
        ["@mine:window", 0, {"$name": "@mine:cut"}],
        ["@mine:window", 0, {"$tuple": [{"$name": "builtins:getattr"}]}],
        ["@mine:window", 0, {"$tuple": [{"$node": 0}]}],
        ["os:system", 0, 1],
    ],
)
def test_a_hostile_constant_is_refused(path, constant, tampered):
    tampered(path, lambda data: data["graphs"][0]["lifted"].update(_window_constant0={"$constant": constant}))

    with pytest.raises(StorageError):
        load(path, provisions=provisions(decode=_no_decoder))


def _no_decoder(_):
    pytest.fail("a plugin was asked to decode what is no constant")


def test_a_constant_where_no_file_has_one_is_refused(path, opened):
    opened(path).node("cut", meta={"x": {"$constant": ["@mine:window", 0, 1]}})

    with pytest.raises(StorageError, match="not where one can be"):
        load(path, provisions=provisions())


@pytest.mark.parametrize("name", ["@mine:eval", "@:cut", "@mine:cut:x", "@Mine:cut", "@mine:cut "])
def test_a_name_that_nobody_brought_is_refused(path, name, opened):
    opened(path).node("cut", target=name)

    with pytest.raises(StorageError):
        load(path, provisions=provisions())


class Scaled(torch.nn.Module):
    def __init__(self, factor):
        super().__init__()
        self.factor = factor
        self.weight = torch.nn.Parameter(torch.tensor([2.0]))

    def forward(self, x):
        return x * self.weight * self.factor


def offering(target):
    offer = ProvidedTarget(StorageTargetRecord("scaled", target), "mine", "fxplug-mine", "1.0")
    return lambda: Provisions((offer,), (), {"mine": "fxplug-mine 1.0"})


def test_a_class_of_modules_that_a_plugin_names_is_kept(tmp_path):
    root = torch.nn.Sequential(Scaled(3))
    policy = TracePolicy(is_leaf_module=lambda module, path, context: isinstance(module, Scaled))
    tracer = Tracer(policy=policy)
    graph = tracer.trace(root)
    module, path = GraphModule(tracer.root, graph), tmp_path / "m.fxplug"

    with pytest.raises(StorageError, match=r"is not one that torch\.nn\.modules ships"):
        save(module, path)
    save(module, path, provisions=offering(Scaled))
    loaded = load(path, provisions=offering(Scaled))

    assert type(loaded.get_submodule("0")) is Scaled
    assert loaded(torch.ones(2)).tolist() == [6, 6]
    with pytest.raises(
        StorageError, match=r"'@mine:scaled' was brought by the plugin 'mine' of fxplug-mine 1\.0"
    ):
        load(path)
    with pytest.raises(StorageError, match="'@mine:scaled' is no class of modules"):
        load(path, provisions=offering(cut))


class Sentinel(torch.nn.Module):
    def __init__(self, text):
        raise AssertionError(f"the constructor was called with {text}")


def offering_both():
    both = [StorageTargetRecord("scaled", Sentinel), StorageTargetRecord("cut", cut)]
    return Provisions(
        tuple(ProvidedTarget(record, "mine", "fxplug-mine", "1.0") for record in both),
        provisions()().constants,
        {"mine": "fxplug-mine 1.0"},
    )


@pytest.mark.parametrize(
    "change",
    [
        {"target": "@mine:scaled", "args": ["EVIL"]},
        {
            "target": "builtins:sorted",
            "args": [{"$list": ["EVIL"]}],
            "kwargs": {"key": {"$name": "@mine:scaled"}},
        },
        {"region": [["@mine:scaled", ["EVIL"]]]},
    ],
)
def test_a_file_never_calls_the_constructor_of_a_class_that_a_plugin_names(path, change, opened):
    opened(path).node("cut", **change)

    with pytest.raises(
        StorageError, match=r"'@mine:scaled' is a class of modules\. A file may hold its instances"
    ):
        load(path, provisions=offering_both)


def test_a_graph_that_calls_a_class_that_a_plugin_names_is_not_saved(tmp_path):
    module = traced()
    next(node for node in module.graph.nodes if node.op == "call_function").target = Sentinel

    with pytest.raises(StorageError, match="'@mine:scaled' is a class of modules"):
        save(module, tmp_path / "m.fxplug", provisions=offering_both)


def test_an_annotation_may_name_a_class_of_modules(tmp_path):
    module = traced()
    next(iter(module.graph.nodes)).type = Sentinel
    save(module, tmp_path / "m.fxplug", provisions=offering_both)

    loaded = load(tmp_path / "m.fxplug", provisions=offering_both)

    assert next(iter(loaded.graph.nodes)).type is Sentinel


@pytest.mark.parametrize("content", [object(), cut, [len]])
def test_what_an_encoder_returns_and_no_file_can_keep_is_laid_at_its_plugin(tmp_path, content):
    with pytest.raises(
        StorageError,
        match=r"encode of the constant '@mine:window' returned what a file cannot keep: .* fxplug-mine 1\.0",
    ):
        save(traced(), tmp_path / "m.fxplug", provisions=provisions(encode=lambda _: content))


@pytest.fixture
def tampered(opened):
    """Changes a member of a file and makes its checksums right again."""

    def change(path, edit, name="graph.json"):
        opened(path).edit(name, edit)

    return change
