"""Each hook does what its page says: the page's own example is loaded as a plugin, and what users see has changed.

For every hook of ``hookspecs`` there is a test called ``test_`` and the hook's name, without ``fxplug_``.
"""

from __future__ import annotations

import dataclasses
import importlib.util
import inspect
import json
import re
import sys
import warnings
from pathlib import Path
from types import ModuleType

import pytest
import torch
from torch import nn

import fxplug
from fxplug.capture import tracer
from fxplug.errors import (
    DecompositionError,
    InvalidArgumentError,
    PluginError,
    StorageError,
    TraceError,
    UnknownNameError,
)
from fxplug.passes import PassContext
from fxplug.plugins import PluginCandidate, PluginManager, PluginWarning, builtin, hookspecs

HOOKS = hookspecs.__all__
CHECKOUT = Path(__file__).resolve().parents[2]
PAGES = CHECKOUT / "docs" / "plugins" / "hooks"
NONE = PluginManager(candidates=[], environ={})
"""A manager without plugins."""


def example_of(hook: str) -> str:
    """Return the source of the plugin that the docstring of a hook shows."""
    text = inspect.getdoc(getattr(hookspecs, hook))
    lines = text.partition("Example:\n    ::\n\n")[2].splitlines()
    return "\n".join(line[8:] for line in lines) + "\n"


def manager_with(*modules: ModuleType, strict: bool = True) -> PluginManager:
    candidates = [
        PluginCandidate.of_module(module, module.__name__.removeprefix("example_"), version="1.0")
        for module in modules
    ]
    return PluginManager(candidates=candidates, environ={}, version="0.1.0", strict=strict)


@pytest.fixture
def load_example(tmp_path, monkeypatch):
    """Loads the example of a hook as the plugin ``sample``, from a file, as an installed one would be."""

    def load(hook: str) -> tuple[ModuleType, PluginManager]:
        path = tmp_path / "example_sample.py"
        path.write_text(example_of(hook), encoding="utf-8")
        spec = importlib.util.spec_from_file_location("example_sample", path)
        module = importlib.util.module_from_spec(spec)
        monkeypatch.setitem(sys.modules, "example_sample", module)
        spec.loader.exec_module(module)
        manager = manager_with(module)
        assert hook in manager.plugin_info("sample").hooks
        return module, manager

    return load


def calls_of(module) -> list[tuple[str, str]]:
    return [
        (node.op, node.target if isinstance(node.target, str) else node.target.__name__)
        for node in module.graph.nodes
        if node.op not in {"placeholder", "output"}
    ]


# -- about the tests and the pages ---------------------------------------------------------------------------


@pytest.mark.parametrize("hook", HOOKS)
def test_every_hook_has_a_test_of_what_it_does(hook):
    test = globals().get(f"test_{hook.removeprefix('fxplug_')}")

    assert loads_example_and_asserts(test, hook)


def loads_example_and_asserts(test, hook):
    """Return whether a test loads the example of a hook as a plugin, and goes on to assert something."""
    source = inspect.getsource(test) if callable(test) else ""
    return re.search(rf'load_example\("{hook}"\).*\bassert\b', source, re.DOTALL) is not None


def test_a_test_that_only_has_the_name_of_a_hook_is_none():
    def idle(load_example):
        assert True

    def of_another(load_example):
        load_example("fxplug_node_created")
        assert True

    assert not loads_example_and_asserts(None, "fxplug_represent")
    assert not loads_example_and_asserts(idle, "fxplug_represent")
    assert not loads_example_and_asserts(of_another, "fxplug_represent")
    assert loads_example_and_asserts(of_another, "fxplug_node_created")


@pytest.mark.parametrize("hook", HOOKS)
def test_every_hook_has_a_page_with_its_exact_signature_and_example(hook):
    page = (PAGES / f"{hook}.md").read_text(encoding="utf-8")
    function = getattr(hookspecs, hook)
    parameters = ", ".join(
        f"{name}: {function.__annotations__[name]}" for name in inspect.signature(function).parameters
    )

    assert f"\n{hook}({parameters}) -> {function.__annotations__['return']}\n" in page
    assert example_of(hook) in page
    for heading in ("When it is called", "Returns", "Order", "Errors", "The smallest plugin"):
        assert f"\n## {heading}\n" in page


def test_the_life_cycle_shows_every_hook_and_the_index_leads_to_each_page():
    index = (CHECKOUT / "docs" / "plugins" / "hooks.md").read_text(encoding="utf-8")
    diagram = index.partition("```text\n")[2].partition("```")[0]

    assert [hook for hook in HOOKS if hook not in diagram] == []
    assert [hook for hook in HOOKS if f"(hooks/{hook}.md)" not in index] == []
    assert sorted(path.stem for path in PAGES.glob("*.md")) == sorted(HOOKS)


# -- questions of a trace ------------------------------------------------------------------------------------


class Attention(nn.Module):
    def forward(self, x):
        return x.softmax(-1) @ x


class WithAttention(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention = Attention()
        self.linear = nn.Linear(2, 2)

    def forward(self, x):
        return self.linear(self.attention(x))


def test_is_leaf_module(load_example):
    _, manager = load_example("fxplug_is_leaf_module")

    assert calls_of(fxplug.symbolic_trace(WithAttention(), manager=manager)) == [
        ("call_module", "attention"),
        ("call_module", "linear"),
    ]
    assert ("call_module", "attention") not in calls_of(fxplug.symbolic_trace(WithAttention(), manager=NONE))


def test_the_leaf_rule_of_fxplug_answers_through_the_same_hook_and_costs_nothing():
    (entry,) = NONE._implementations("fxplug_is_leaf_module")

    assert entry.plugin == "core"
    assert entry.function(nn.Linear(1, 1), "", None) is True
    assert entry.function(nn.Sequential(), "", None) is False
    assert entry.function(Attention(), "", None) is False
    # The tracer has the same rule at hand: nobody has to be asked.
    assert NONE.trace_policy().is_leaf_module is None


def test_the_leaf_rule_of_the_hook_and_that_of_every_tracer_are_one_function(monkeypatch):
    (entry,) = NONE._implementations("fxplug_is_leaf_module")
    kinds = [
        kind
        for kind in vars(nn).values()
        if isinstance(kind, type) and issubclass(kind, nn.Module) and kind is not nn.Container
    ]
    with warnings.catch_warnings():
        # Some classes are deprecated; their modules are leaves or not all the same.
        warnings.simplefilter("ignore", FutureWarning)
        modules = [kind.__new__(kind) for kind in [*kinds, Attention, WithAttention]]
    answers = [entry.function(module, "", None) for module in modules]

    assert builtin.fxplug_is_leaf_module is tracer.is_leaf_by_class
    assert answers == [tracer.Tracer().is_leaf_module(module, "") for module in modules]
    assert len(kinds) > 100
    assert {True, False} == set(answers)

    asked = []
    monkeypatch.setattr(tracer, "is_leaf_by_class", lambda module: asked.append(module) or True)
    assert calls_of(fxplug.symbolic_trace(nn.Sequential(Attention()), manager=NONE)) == [("call_module", "0")]
    assert asked != []


def test_a_hook_that_no_plugin_implements_is_no_question():
    policy = NONE.trace_policy()

    assert [
        field.name for field in dataclasses.fields(policy) if getattr(policy, field.name) is not None
    ] == []


def test_create_proxy(load_example):
    module, manager = load_example("fxplug_create_proxy")

    fxplug.symbolic_trace(lambda x: (x + 1) * 2, manager=manager)

    assert module.MULTIPLIED == ["add"]


def test_node_created(load_example):
    _, manager = load_example("fxplug_node_created")

    traced = fxplug.symbolic_trace(lambda x: x + 1, manager=manager)

    assert [node.meta.get("sample.opcode") for node in traced.graph.nodes] == [
        "placeholder",
        "call_function",
        "output",
    ]


def test_create_argument(load_example):
    module, manager = load_example("fxplug_create_argument")
    window = module.Window(2, 3)

    def program(x):
        return x.reshape(window)

    assert fxplug.symbolic_trace(program, manager=manager)(torch.ones(6)).shape == (2, 3)
    with pytest.raises(TraceError, match=r"Cannot record a value of type example_sample\.Window"):
        fxplug.symbolic_trace(program, manager=NONE)


def test_unwrap_module(load_example):
    module, manager = load_example("fxplug_unwrap_module")

    traced = fxplug.symbolic_trace(module.Sharded(nn.Sequential(nn.ReLU())), manager=manager)

    assert calls_of(traced) == [("call_module", "0")]


def test_leaf_functions(load_example):
    import statistics

    _, manager = load_example("fxplug_leaf_functions")

    def program(x):
        return statistics.mean(x)

    traced = fxplug.symbolic_trace(program, manager=manager)

    assert calls_of(traced) == [("call_function", "mean")]


# -- offers --------------------------------------------------------------------------------------------------


def test_register_passes(load_example):
    _, manager = load_example("fxplug_register_passes")
    module = fxplug.symbolic_trace(lambda x: x + 1, manager=manager)

    assert manager.find_pass("count-nodes").create().run(module, PassContext()).summary == "3 nodes"
    assert [step.name for step in manager.resolve_pipeline(["count-nodes"]).steps] == ["sample:count-nodes"]


def test_register_backends(load_example):
    _, manager = load_example("fxplug_register_backends")

    class Model(nn.Module):
        def forward(self, x):
            return x * 2

    result = fxplug.optimize(
        Model().eval(), (torch.ones(2),), passes=[], backend="additions", manager=manager, measure=False
    )

    assert "this engine only adds" in result.fallback


def test_register_commands(load_example, capsys):
    _, manager = load_example("fxplug_register_commands")

    manager.find_command("hello").create().main([], standalone_mode=False)

    assert capsys.readouterr().out == "Hello.\n"


def test_register_devices(load_example):
    _, manager = load_example("fxplug_register_devices")
    inputs = (torch.ones(1, 1000),)

    estimated = fxplug.estimate(nn.Linear(1000, 10, bias=False), inputs, "npu", manager=manager)

    (node,) = estimated.nodes
    assert node.compute_seconds == 10_000 / 1e12
    assert node.memory_seconds == (1000 + 10_000 + 10) * 4 / 1e11
    assert (node.bound, estimated.seconds) == ("memory", node.memory_seconds)
    assert str(estimated).endswith("ms on npu, estimated from data-sheet figures, not measured")
    with pytest.raises(UnknownNameError, match="'npu'"):
        fxplug.estimate(nn.Linear(1000, 10), inputs, "npu", manager=NONE)


def test_a_report_section_may_leave_a_file_that_a_later_run_replaces(tmp_path):
    from fxplug.cli.output import OutputError, OutputFolder
    from fxplug.cli.report import Job, write_files

    def leave(context):
        (context.folder / "own.txt").write_text("mine")
        return "see own.txt"

    leaving = ModuleType("example_leaving")
    leaving.fxplug_register_report_sections = fxplug.hookimpl(specname="fxplug_register_report_sections")(
        lambda: [fxplug.ReportSectionRecord("leaves", leave, "It leaves a file")]
    )
    manager = manager_with(leaving)
    model, inputs = nn.Sequential(nn.Linear(2, 2)).eval(), (torch.ones(1, 2),)
    result = fxplug.optimize(model, inputs, manager=manager, measure=False)
    job = Job("model", "Sequential", 6, inputs, ("float32[1, 2]",), None)
    folder = OutputFolder(tmp_path / "out")

    for _ in range(2):
        with folder.writing() as place:
            write_files(place, job, result, (), manager)
    report = json.loads((tmp_path / "out" / "report.json").read_text(encoding="utf-8"))
    assert report["files"] == ["module.fxplug", "module.py", "report.json", "report.md", "own.txt"]
    assert "- `own.txt`: from a section above" in (tmp_path / "out" / "report.md").read_text(encoding="utf-8")
    (tmp_path / "out" / "foreign.txt").write_text("of the user")
    with pytest.raises(OutputError, match=r"foreign\.txt"):
        folder.check()


def test_a_report_section_may_hear_of_the_passes(tmp_path):
    from fxplug.cli.report import Job, write_files
    from fxplug.cli.sections import SectionObservers

    def fail(event):
        raise ValueError("no ears")

    hearing = ModuleType("example_hearing")
    heard = []
    hearing.fxplug_register_report_sections = fxplug.hookimpl(specname="fxplug_register_report_sections")(
        lambda: [
            fxplug.ReportSectionRecord(
                "hears",
                lambda context: str(context.observer == heard.append),
                "It hears",
                lambda: heard.append,
            ),
            fxplug.ReportSectionRecord("fails", lambda context: "never", "It fails", lambda: fail),
            fxplug.ReportSectionRecord("made", lambda context: "never", "It cannot be made", lambda: 1 / 0),
            fxplug.ReportSectionRecord("deaf", lambda context: str(context.observer), "It hears nothing"),
        ]
    )
    manager = manager_with(hearing, strict=False)
    model, inputs = nn.Sequential(nn.Conv2d(1, 1, 1), nn.BatchNorm2d(1)).eval(), (torch.ones(1, 1, 2, 2),)
    observers = SectionObservers(manager)
    result = fxplug.optimize(
        model, inputs, passes=["fuse-conv-bn"], manager=manager, measure=False, observer=observers.hear
    )
    job = Job("model", "Sequential", 6, inputs, ("float32[1, 1, 2, 2]",), None)

    warned = write_files(tmp_path, job, result, (), manager, observers)

    assert [(event.name, event.result is None) for event in heard] == [
        ("fuse-conv-bn", True),
        ("fuse-conv-bn", False),
    ]
    assert all(event.module is result.graph_module for event in heard)
    report = (tmp_path / "report.md").read_text(encoding="utf-8")
    assert "## It hears\n\nTrue\n" in report
    assert "## It hears nothing\n\nNone\n" in report
    assert "never" not in report
    assert [text.partition("' of ")[0] for text in warned] == [
        "The report section 'hearing:fails",
        "The report section 'hearing:made",
    ]
    assert "it raised ValueError: no ears." in warned[0]


def test_register_report_sections(load_example, tmp_path):
    from fxplug.cli.report import Job, write_files

    load_example("fxplug_register_report_sections")
    broken = ModuleType("example_broken")

    def fail(context):
        raise ValueError("no figures")

    broken.fxplug_register_report_sections = fxplug.hookimpl(specname="fxplug_register_report_sections")(
        lambda: [
            fxplug.ReportSectionRecord("fails", fail, "It fails"),
            fxplug.ReportSectionRecord("left-out", lambda context: None, "Nothing to say"),
            fxplug.ReportSectionRecord("odd", lambda context: [("a",), ("b", "c")], "Odd rows"),
        ]
    )
    both = manager_with(sys.modules["example_sample"], broken, strict=False)
    model, inputs = nn.Sequential(nn.Linear(2, 2)).eval(), (torch.ones(1, 2),)
    result = fxplug.optimize(model, inputs, manager=both, measure=False)
    job = Job("model", "Sequential", 6, inputs, ("float32[1, 2]",), None)

    warned = write_files(tmp_path, job, result, (), both)

    report = (tmp_path / "report.md").read_text(encoding="utf-8")
    assert "## Nodes by opcode\n\n| opcode | nodes |\n| --- | --- |\n| call_module | 1 |\n" in report
    assert "Nothing to say" not in report
    failure = "The report section 'broken:fails' of fxplug-broken 1.0 was left out: it raised ValueError: no figures."
    assert f"## It fails\n\n{failure}\n" in report
    assert warned[0] == failure
    assert "'broken:odd'" in warned[1]
    assert "rows of one length" in warned[1]
    sections = json.loads((tmp_path / "report.json").read_text(encoding="utf-8"))["sections"]
    assert [section["name"] for section in sections] == ["broken:fails", "broken:odd", "sample:opcodes"]
    assert sections[0]["error"] == failure
    assert sections[-1]["rows"][0] == ["opcode", "nodes"]

    strict = manager_with(sys.modules["example_sample"], broken)
    with pytest.raises(
        PluginError,
        match=r"Cannot write the report section 'broken:fails' of fxplug-broken 1\.0: it raised ValueError",
    ):
        write_files(tmp_path, job, result, (), strict)


# -- what is known of calls and values -----------------------------------------------------------------------


def test_register_effects(load_example):
    module, manager = load_example("fxplug_register_effects")
    (record,) = manager.effect_records()

    assert record.target is module.log_value
    assert record.effect.must_be_kept


def test_register_decompositions(load_example):
    _, manager = load_example("fxplug_register_decompositions")
    x = torch.rand(3) + 1

    def program(x):
        return torch.rsqrt(x)

    traced = fxplug.symbolic_trace(program, manager=manager)

    simpler = fxplug.decompose(traced, manager=manager)

    assert calls_of(simpler) == [("call_function", "sqrt"), ("call_function", "truediv")]
    torch.testing.assert_close(simpler(x), torch.rsqrt(x))
    assert calls_of(fxplug.decompose(traced, manager=NONE)) == [("call_function", "rsqrt")]


def test_a_decomposition_of_a_plugin_comes_before_that_of_fxplug_and_is_blamed_when_it_fails(plugin_module):
    def silu(*args, **kwargs):
        raise ValueError("not today")

    register = fxplug.hookimpl(specname="fxplug_register_decompositions")(
        lambda: [fxplug.DecompositionRecord(nn.functional.silu, silu)]
    )
    manager = manager_with(plugin_module("x", __name__="example_x", fxplug_register_decompositions=register))

    def program(x):
        return nn.functional.silu(x)

    traced = fxplug.symbolic_trace(program, manager=NONE)

    assert ("call_function", "sigmoid") in calls_of(fxplug.decompose(traced, manager=NONE))
    with pytest.raises(
        DecompositionError, match=r"node 'silu'.*\(fxplug-.* 1\.0\) raised ValueError: not today"
    ):
        fxplug.decompose(traced, manager=manager)
    (info,) = manager.plugin_infos()
    assert info.failures[0].hook == "fxplug_register_decompositions"


def test_a_decomposition_that_returns_none_for_a_value_that_is_used_is_blamed(plugin_module):
    record = fxplug.DecompositionRecord(torch.sin, lambda x: None)
    register = fxplug.hookimpl(specname="fxplug_register_decompositions")(lambda: [record])
    manager = manager_with(plugin_module("x", __name__="example_x", fxplug_register_decompositions=register))

    with pytest.raises(
        DecompositionError,
        match=r"'fxplug_register_decompositions' of plugin 'x' \(fxplug-x 1\.0\) returned None; it may return what",
    ):
        fxplug.decompose(fxplug.symbolic_trace(lambda x: torch.sin(x) + 1, manager=NONE), manager=manager)

    unused = fxplug.symbolic_trace(lambda x: (torch.sin(x), x)[1], manager=NONE)
    assert calls_of(fxplug.decompose(unused, manager=manager)) == []


@pytest.mark.parametrize("wrong", [["a"], "a", 3, [torch.sin]])
def test_decompositions_that_are_none_are_refused(wrong):
    traced = fxplug.symbolic_trace(lambda x: torch.sin(x) + 1, manager=NONE)

    with pytest.raises(
        InvalidArgumentError, match=r"Cannot decompose by .*: decompositions holds records only"
    ):
        fxplug.decompose(traced, decompositions=wrong)


@pytest.mark.parametrize("answer", [-5, "x", True, 1.5, fxplug.CallCost(-1), fxplug.CallCost("x")])
def test_a_formula_that_returns_no_cost_is_blamed(plugin_module, answer):
    record = fxplug.FlopFormulaRecord(torch.sin, lambda call: answer)
    register = fxplug.hookimpl(specname="fxplug_register_flop_formulas")(lambda: [record])
    manager = manager_with(plugin_module("x", __name__="example_x", fxplug_register_flop_formulas=register))

    with pytest.raises(
        PluginError,
        match=r"'fxplug_register_flop_formulas' of plugin 'x' \(fxplug-x 1\.0\) returned .*; it may return a whole",
    ):
        fxplug.cost(lambda x: torch.sin(x) + 1, (torch.ones(2),), manager=manager)

    assert manager.plugin_info("x").failures[0].hook == "fxplug_register_flop_formulas"


def test_register_flop_formulas(load_example):
    _, manager = load_example("fxplug_register_flop_formulas")
    inputs = (torch.ones(3), torch.ones(4))

    def program(a, b):
        return torch.outer(a, b)

    assert fxplug.cost(program, inputs, manager=manager).multiply_adds == 12
    without = fxplug.cost(program, inputs, manager=NONE)
    assert [node.name for node in without.unknown] == ["outer"]
    assert str(without).endswith("; unknown: outer")


def test_a_formula_of_a_plugin_comes_before_that_of_fxplug_and_is_blamed_when_it_fails(plugin_module):
    def manager_that_says(formula):
        register = fxplug.hookimpl(specname="fxplug_register_flop_formulas")(
            lambda: [fxplug.FlopFormulaRecord(torch.add, formula)]
        )
        return manager_with(plugin_module("x", __name__="example_x", fxplug_register_flop_formulas=register))

    def program(x):
        return torch.add(x, x)

    x = torch.ones(3)
    assert fxplug.cost(program, x, manager=manager_that_says(lambda call: 7)).multiply_adds == 7
    assert fxplug.cost(program, x, manager=manager_that_says(lambda call: None)).multiply_adds == 3
    with pytest.raises(
        PluginError, match=r"'fxplug_register_flop_formulas' of plugin 'x' \(fxplug-x 1\.0\) raised Zero"
    ):
        fxplug.cost(program, x, manager=manager_that_says(lambda call: 1 // 0))


def test_register_storage_targets(load_example, tmp_path):
    module, manager = load_example("fxplug_register_storage_targets")
    path = tmp_path / "module.fxplug"
    clip = module.clip
    traced = fxplug.symbolic_trace(lambda x: clip(x, 1), manager=manager)

    fxplug.save(traced, path, manager=manager)

    assert fxplug.load(path, manager=manager)(torch.tensor(3.0)) == 1
    with pytest.raises(StorageError) as refused:
        fxplug.load(path, manager=NONE)
    assert (
        "the function '@sample:clip' was brought by the plugin 'sample' of fxplug-sample 1.0, which takes no part "
        "here. Install it (pip install fxplug-sample==1.0), or switch it on" in str(refused.value)
    )
    with pytest.raises(StorageError, match="not among the functions that a file may name"):
        fxplug.save(traced, path, manager=NONE)


def test_register_constants(load_example, tmp_path):
    module, manager = load_example("fxplug_register_constants")
    window = module.Window(2)

    @fxplug.wrap
    def cut(x, window):
        return x[: window.size]

    def program(x):
        return cut(x, window) + cut(x, window)

    traced = fxplug.symbolic_trace(program, manager=manager)

    reads = [node.target for node in traced.graph.nodes if node.op == "get_attr"]
    assert reads == ["_window_constant0", "_window_constant0"]
    assert getattr(traced, reads[0]) is window
    assert traced(torch.ones(4)).tolist() == [2, 2]
    with pytest.raises(TraceError, match=r"Cannot record a value of type example_sample\.Window"):
        fxplug.symbolic_trace(program, manager=NONE)

    path = tmp_path / "module.fxplug"
    module.cut = cut
    cut.__module__, cut.__qualname__ = "example_sample", "cut"
    allow = ["example_sample:cut"]
    fxplug.save(traced, path, manager=manager, allow=allow)
    loaded = fxplug.load(path, manager=manager, allow=allow)

    assert loaded(torch.ones(4)).tolist() == [2, 2]
    assert loaded.graph.lifted["_window_constant0"] is loaded._window_constant0
    assert type(loaded._window_constant0) is module.Window
    with pytest.raises(
        StorageError, match="the constant '@sample:window' was brought by the plugin 'sample'"
    ):
        fxplug.load(path, manager=NONE, allow=allow)
    with pytest.raises(StorageError, match=r"a value of type example_sample\.Window cannot be stored"):
        fxplug.save(traced, path, manager=NONE, allow=allow)


@pytest.mark.parametrize("mode", ["symbolic", "shape", "value"])
def test_constants_are_lifted_in_every_mode_unless_a_traced_value_is_a_part_of_them(load_example, mode):
    module, manager = load_example("fxplug_register_constants")
    window = module.Window(2)

    @fxplug.wrap
    def cut(x, window):
        return x[: int(window.size)]

    traced = fxplug.trace(lambda x: cut(x, window), torch.ones(4), mode=mode, manager=manager)
    assert traced._window_constant0 is window
    assert traced(torch.ones(3)).tolist() == [1, 1]
    with pytest.raises(TraceError, match=r"Cannot record a value of type example_sample\.Window"):
        fxplug.symbolic_trace(lambda x: cut(x, module.Window(x)), manager=manager)


# -- pictures and observers ----------------------------------------------------------------------------------


def test_only_graph_modules_are_represented():
    with pytest.raises(
        InvalidArgumentError, match=r"Cannot represent a torch\.nn\.modules\.linear\.Linear: pass a"
    ):
        fxplug.represent(nn.Linear(2, 2), "text", manager=NONE)


def test_nobody_is_told_to_switch_fxplug_off():
    (ours,) = NONE._implementations("fxplug_represent")

    message = ours.failed(ValueError("x")).message

    assert f"of fxplug {fxplug.__version__} itself raised ValueError: x. Report it to the authors" in message
    assert "FXPLUG_DISABLE_PLUGINS" not in message


def test_represent(load_example):
    _, manager = load_example("fxplug_represent")
    traced = fxplug.symbolic_trace(lambda x: x + 1, manager=NONE)

    assert fxplug.represent(traced, "names", manager=manager) == "x add output"
    assert fxplug.represent(traced, manager=manager) == traced.print_readable(print_output=False)
    assert fxplug.represent(traced, "html", manager=NONE).startswith("<pre>class ")
    with pytest.raises(
        PluginError, match="Cannot represent the module as 'names': no active plugin"
    ) as refused:
        fxplug.represent(traced, "names", manager=NONE)
    assert refused.value.code == "FXP-H005"


def test_a_picture_that_is_none_is_refused(plugin_module):
    draw = fxplug.hookimpl(specname="fxplug_represent")(lambda graph_module: 3)
    manager = manager_with(plugin_module("x", __name__="example_x", fxplug_represent=draw))

    with pytest.raises(PluginError, match="returned 3; it may return text, bytes or None"):
        fxplug.represent(fxplug.symbolic_trace(lambda x: x, manager=NONE), "svg", manager=manager)


def test_a_notebook_shows_what_plugins_make(plugin_module, monkeypatch):
    @fxplug.hookimpl(specname="fxplug_represent")
    def draw(format):  # noqa: A002 - the hook's name for it
        return "<svg/>" if format == "svg" else None

    traced = fxplug.symbolic_trace(lambda x: x, manager=NONE)

    def use(manager):
        monkeypatch.setattr("fxplug.api.representation.default_manager", lambda: manager)

    use(manager_with(plugin_module("x", __name__="example_x", fxplug_represent=draw)))
    assert traced._repr_mimebundle_()["image/svg+xml"] == "<svg/>"
    assert traced._repr_svg_() == traced.graph._repr_svg_() == fxplug.Graph()._repr_svg_() == "<svg/>"
    use(NONE)
    assert traced._repr_mimebundle_() is None
    assert traced._repr_svg_() is traced.graph._repr_html_() is None


def test_a_plugin_that_cannot_draw_leaves_a_notebook_the_text(plugin_module, monkeypatch):
    @fxplug.hookimpl(specname="fxplug_represent")
    def draw(format):  # noqa: A002 - the hook's name for it
        raise OSError("no pencil")

    manager = manager_with(plugin_module("x", __name__="example_x", fxplug_represent=draw))
    monkeypatch.setattr("fxplug.api.representation.default_manager", lambda: manager)

    with pytest.warns(UserWarning, match="Shown as text: .*no pencil"):
        assert fxplug.symbolic_trace(lambda x: x, manager=NONE)._repr_mimebundle_() is None


def test_trace_started(load_example):
    module, manager = load_example("fxplug_trace_started")

    fxplug.symbolic_trace(nn.Linear(1, 1), manager=manager)

    assert module.STARTED == ["Linear"]


def test_trace_finished(load_example):
    module, manager = load_example("fxplug_trace_finished")

    fxplug.symbolic_trace(nn.Linear(1, 1), manager=manager)

    (seconds,) = module.SECONDS
    assert seconds > 0


def run_pipeline(manager):
    module = fxplug.symbolic_trace(nn.Sequential(nn.ReLU()), manager=manager)
    manager.resolve_pipeline(["dead-code"]).run(module, (), observers=manager.pass_observers())


def test_pass_started(load_example):
    module, manager = load_example("fxplug_pass_started")

    run_pipeline(manager)

    assert module.STARTED == ["1/1 dead-code"]


def test_pass_finished(load_example):
    module, manager = load_example("fxplug_pass_finished")

    run_pipeline(manager)

    assert module.FINISHED["dead-code"].modified is False


# -- records that are not sound ------------------------------------------------------------------------------


STANDS_FOR_NOTHING = "stands for no call; a target is a callable, a method name or a module class"


class Foreign:
    pass


def device(**figures):
    given = {
        "multiply_adds_per_second": {"float32": 1.0},
        "bytes_per_second": 1.0,
        "memory_bytes": 1,
        **figures,
    }
    return fxplug.DeviceRecord("npu", **given, summary="")


@pytest.mark.parametrize(
    ("hook", "record", "reason"),
    [
        (
            "fxplug_register_devices",
            device(bytes_per_second=0),
            "'bytes_per_second' of its DeviceRecord 'npu' is 0; it must be a number above zero",
        ),
        (
            "fxplug_register_devices",
            device(multiply_adds_per_second={"float23": 1.0}),
            "'multiply_adds_per_second' of its DeviceRecord 'npu' has 'float23', which is no dtype of torch",
        ),
        (
            "fxplug_register_devices",
            device(multiply_adds_per_second={}),
            "'multiply_adds_per_second' of its DeviceRecord 'npu' is {}; it must map names of dtypes to numbers",
        ),
        (
            "fxplug_register_decompositions",
            fxplug.DecompositionRecord("no name", print),
            f"its DecompositionRecord for 'no name' {STANDS_FOR_NOTHING}",
        ),
        (
            "fxplug_register_decompositions",
            fxplug.DecompositionRecord("silu", None),
            "the function of its DecompositionRecord for 'silu' is None, which cannot be called",
        ),
        (
            "fxplug_register_flop_formulas",
            fxplug.FlopFormulaRecord("silu", 3),
            "the formula of its FlopFormulaRecord for 'silu' is 3, which cannot be called",
        ),
        (
            "fxplug_register_storage_targets",
            fxplug.StorageTargetRecord("Clip", print),
            "its StorageTargetRecord is named 'Clip'; names are lower-case words joined by hyphens",
        ),
        (
            "fxplug_register_storage_targets",
            fxplug.StorageTargetRecord("clip", 3),
            "the target of its StorageTargetRecord 'clip' is 3, which cannot be called",
        ),
        (
            "fxplug_register_constants",
            fxplug.ConstantRecord("sizes", list),
            "the type of its ConstantRecord 'sizes' is 'list', whose values graphs hold already",
        ),
        (
            "fxplug_register_constants",
            fxplug.ConstantRecord("foreign", Foreign, encode=str),
            "its ConstantRecord 'foreign' has only one of 'encode' and 'decode'; a file needs both, or neither",
        ),
        (
            "fxplug_register_report_sections",
            fxplug.ReportSectionRecord("words", "text", ""),
            "the factory of its ReportSectionRecord 'words' is 'text', which cannot be called",
        ),
        (
            "fxplug_register_report_sections",
            fxplug.ReportSectionRecord("words", print, "", "text"),
            "the observer of its ReportSectionRecord 'words' is 'text', which cannot be called",
        ),
    ],
)
def test_a_record_that_is_not_sound_is_refused(plugin_module, hook, record, reason):
    module = plugin_module("odd", **{hook: fxplug.hookimpl(specname=hook)(lambda: [record])})

    with pytest.warns(PluginWarning):
        manager = PluginManager(
            candidates=[PluginCandidate.of_module(module, "odd")], environ={}, strict=False
        )

    info = manager.plugin_info("odd")
    assert (info.status, info.reason) == ("failed", reason)
