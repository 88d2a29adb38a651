"""Every check of the conformance kit finds the mistake that it is for, and nothing wrong with a sound plugin."""

from __future__ import annotations

import copy
import functools
import itertools
import operator
import os
import subprocess
import sys
import threading
import types
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import nn

from fxplug import (
    CallCost,
    ConstantRecord,
    DecompositionRecord,
    FlopFormulaRecord,
    ReportSectionRecord,
    StorageTargetRecord,
    symbolic_trace,
    wrap,
)
from fxplug.errors import BackendError, PassError, UnknownNameError
from fxplug.ir import PURE
from fxplug.lower import Backend, Support
from fxplug.passes import BUILTIN_PASSES, Pass, PassResult
from fxplug.plugins import BackendRecord, CommandRecord, EffectRecord, PassRecord, hookimpl
from fxplug.testing import check_plugin
from fxplug.testing.models import canned_samples
from fxplug.testing.partitions import single_calls


def plugin_of(**hooks: Any) -> ModuleType:
    module = types.ModuleType("fxplug_made")
    for name, function in hooks.items():
        setattr(module, name, hookimpl(function))
    return module


def pass_plugin(factory: Any, **fields: Any) -> ModuleType:
    return plugin_of(fxplug_register_passes=lambda: [PassRecord("thing", factory, "Does it.", **fields)])


def backend_plugin(factory: Any, **fields: Any) -> ModuleType:
    return plugin_of(fxplug_register_backends=lambda: [BackendRecord("thing", factory, "Runs it.", **fields)])


def failures_of(plugin: Any, **arguments: Any) -> list[str]:
    return [finding.check for finding in check_plugin(plugin, **arguments).failures]


def finding_of(report: Any, check: str) -> Any:
    return next(finding for finding in report.findings if finding.check == check)


def relus_of(module: Any) -> list[Any]:
    """Return every relu of a relu that nobody else reads or writes, neither before nor behind it."""
    return [
        node
        for node in module.graph.find_nodes(op="call_function", target=torch.relu)
        if node.args
        and getattr(node.args[0], "target", None) is torch.relu
        and list(node.args[0].users) == [node]
        and not any(str(user.target).endswith("_") for user in node.users)
    ]


class SingleRelu(Pass):
    """A sound pass: removes every relu of a relu."""

    def run(self, module, context):
        found = relus_of(module)
        for node in found:
            node.replace_all_uses_with(node.args[0])
            module.graph.erase_node(node)
        return PassResult(bool(found))


class TakesAnyRelu(Pass):
    """Removes every relu of a relu, whatever is written between the two or behind them."""

    def run(self, module, context):
        found = 0
        for node in module.graph.find_nodes(op="call_function", target=torch.relu):
            inner = node.all_input_nodes[0]
            if inner.target is torch.relu:
                node.replace_all_uses_with(inner)
                module.graph.erase_node(node)
                found += 1
        return PassResult(found > 0)


class TakesAnyPosition(Pass):
    """Believes that every argument comes by position."""

    def run(self, module, context):
        nodes = module.graph.find_nodes(op="call_function", target=torch.relu)
        return PassResult(modified=not all(node.args[0] for node in nodes))


class Whole(Backend):
    """A sound backend."""

    def supports(self, node, context):
        return Support(ok=True)

    def compile(self, subgraph, example_inputs, options):
        return subgraph


# -- sound plugins ----------------------------------------------------------------------------------------------


def test_the_passes_of_fxplug_itself_keep_to_what_is_asked_of_others():
    report = check_plugin(plugin_of(fxplug_register_passes=lambda: BUILTIN_PASSES))

    report.raise_failures()
    runs = {finding.subject: finding.reason for finding in report.findings if finding.check == "pass-runs"}
    assert runs["pass 'made:dead-code'"] == "changes 1 of 12 models"
    assert runs["pass 'made:fuse-conv-bn'"] == "changes 1 of 12 models"


def test_a_sound_plugin_passes_every_check(site):
    installed = site.install(
        "sound",
        """
        from dataclasses import dataclass, replace
        from fxplug import Backend, BackendRecord, Pass, PassRecord, PassResult, Support, hookimpl

        @dataclass(frozen=True)
        class Options:
            level: int = 1

        class Nothing(Pass):
            def __init__(self, level=1):
                self.level = level
            def run(self, module, context):
                return PassResult(modified=False)

        class Whole(Backend):
            def supports(self, node, context):
                return Support(ok=True)
            def compile(self, subgraph, example_inputs, options):
                return subgraph

        @hookimpl
        def fxplug_is_leaf_module(module):
            return True if type(module).__name__ == "Attention" else None

        @hookimpl
        def fxplug_node_created(node):
            return {"sound.op": node.op}

        @hookimpl
        def fxplug_register_passes():
            kept = frozenset({"shapes", "effects"})
            record = PassRecord("nothing", Nothing, "Does nothing.", options=Options, preserves=kept)
            return [replace(record, idempotent=True)]

        @hookimpl
        def fxplug_register_backends():
            return [BackendRecord("whole", Whole, "Runs everything.")]
        """,
        version="1.2",
        requires=["fxplug>=0.1,<0.2"],
    )

    report = check_plugin(installed.candidate())

    report.raise_failures()
    assert report.passed
    assert report.skipped == ()
    assert (report.plugin, report.distribution, report.version) == ("sound", "fxplug-sound", "1.2")
    assert [finding.check for finding in report.findings] == [
        "loads",
        "names",
        "range",
        "import-effects",
        "import-light",
        "options-plain",
        "options-checked",
        "factory",
        "factory",
        "trace-same-values",
        "node-unchanged",
        "module-unchanged",
        "note-names",
        "trace-threads",
        "pass-runs",
        "pass-modified",
        "pass-keeps-notes",
        "pass-same-values",
        "pass-deterministic",
        "pass-effects",
        "pass-idempotent",
        "pass-threads",
        "pass-preserves",
        "pass-parameters",
        "pass-weights",
        "backend-partition",
        "backend-same-values",
    ]


def test_models_are_the_same_at_every_call_and_leave_the_random_state_alone():
    torch.manual_seed(3)
    before = torch.get_rng_state()
    first, second = canned_samples(), canned_samples()

    assert torch.equal(torch.get_rng_state(), before)
    for one, other in zip(first, second, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(one.inputs, other.inputs, strict=True))
        assert all(
            torch.equal(a, b) for a, b in zip(one.model.parameters(), other.model.parameters(), strict=True)
        )


# -- the report -------------------------------------------------------------------------------------------------


def test_a_finding_names_plugin_distribution_version_and_what_to_do(site):
    installed = site.install(
        "wrong", "import fxplug\n@fxplug.hookimpl\ndef fxplug_is_leaf(module): pass", version="3"
    )

    report = check_plugin(installed.candidate())

    assert not report.passed
    assert str(report.failures[0]) == (
        "loads of the plugin, plugin 'wrong' (fxplug-wrong 3) failed: it implements the unknown hook "
        "'fxplug_is_leaf'. Did you mean 'fxplug_is_leaf_module'? Correct the entry module: the page of each hook says "
        "what it takes and returns."
    )
    with pytest.raises(
        AssertionError, match=r"^Plugin 'wrong' \(fxplug-wrong 3\) fails 1 of 1 checks:\n  - loads of"
    ):
        report.raise_failures()


@pytest.mark.parametrize("tolerance", [-0.1, float("nan"), float("inf"), "0.1", True])
def test_a_tolerance_that_means_nothing_is_refused_with_the_plugin(tolerance):
    report = check_plugin(pass_plugin(SingleRelu, tolerance=tolerance))

    assert [finding.check for finding in report.failures] == ["loads"]
    assert (
        report.failures[0].reason
        == f"the tolerance of its PassRecord 'thing' is {tolerance!r}; it must be a number that is "
        "not negative"
    )


def test_a_report_has_plain_data():
    data = check_plugin(pass_plugin(SingleRelu)).to_data()

    assert data["passed"] is True
    assert data["findings"][0] == {
        "check": "loads",
        "subject": "the plugin",
        "outcome": "passed",
        "reason": "hooks fxplug_register_passes",
        "remedy": "",
    }


def test_a_plugin_that_is_not_installed_is_an_error_with_the_nearest_name(site):
    site.install("nearby")

    with pytest.raises(UnknownNameError, match="Did you mean 'nearby'"):
        check_plugin("nearbi")


def test_an_installed_plugin_is_found_by_the_name_of_its_distribution(site):
    site.install("nearby", requires=["fxplug>=0.1,<0.2"])

    assert check_plugin("fxplug-nearby").plugin == "nearby"


def test_checking_leaves_the_effects_of_calls_as_they_were():
    def act(x):
        return x

    from fxplug.ir import effects

    module = plugin_of(fxplug_register_effects=lambda: [EffectRecord(act, PURE)])
    check_plugin(module).raise_failures()

    assert effects.target_entry(act) is None


# -- names and metadata -----------------------------------------------------------------------------------------


def test_a_distribution_with_another_name_is_found(site):
    installed = site.install("thing", distribution="my-thing", requires=["fxplug>=0.1,<0.2"])

    assert failures_of(installed.candidate()) == ["names"]


def test_an_empty_summary_is_found():
    module = plugin_of(fxplug_register_passes=lambda: [PassRecord("thing", SingleRelu, " ")])

    assert failures_of(module) == ["names"]


@pytest.mark.parametrize("requires", [[], ["fxplug"], ["fxplug>=0.1"], ["fxplug-quant>=0.1,<0.2"]])
def test_an_open_range_of_fxplug_is_found(site, requires):
    installed = site.install("thing", requires=requires)

    assert failures_of(installed.candidate()) == ["range"]


# -- import -----------------------------------------------------------------------------------------------------


EFFECTS = {
    "sys.path.append('/nowhere')": "it changes sys.path",
    "sys.meta_path.append(sys.meta_path[0])": "it changes sys.meta_path",
    "sys.excepthook = print": "it changes sys.excepthook",
    "os.environ['THING'] = '1'": "it changes os.environ",
    "os.mkdir('folder')": "it makes the folder 'folder'",
    "os.rename('folder', 'other')": "it renames 'folder'",
    "open('file', 'w').close()": "it writes the file 'file'",
    "os.remove('file')": "it removes 'file'",
    "os.chdir('other')": "it changes the working directory",
    "warnings.simplefilter('ignore')": "it changes the filters of warnings",
    "logging.basicConfig()": "it changes the handlers or the level of the root logger",
    "threading.Thread(target=time.sleep, args=(60,), daemon=True).start()": "it changes the running threads",
    "torch.set_default_dtype(torch.float64)": "it changes the default dtype of torch",
    "torch.set_default_device('meta')": "it changes the default device of torch",
    "torch.set_num_threads(7)": "it changes the number of threads of torch",
    "torch.manual_seed(3)": "it changes the random state of torch",
    "torch.set_grad_enabled(False)": "it changes torch.is_grad_enabled()",
    "torch.use_deterministic_algorithms(True)": "it changes torch.use_deterministic_algorithms",
    "random.random()": "it changes the random state of Python",
    "subprocess.call(['true'])": "it runs 'true'",
    "socket.getaddrinfo('127.0.0.1', 9)": "it asks for the address of '127.0.0.1'",
    "socket.socket().connect_ex(('127.0.0.1', 9))": "it connects to ('127.0.0.1', 9)",
    "print('hello')": "hello",
    "os.write(2, b'world')": "world",
}


def test_what_an_import_does_besides_is_found(site):
    modules = "import logging, os, random, socket, subprocess, sys, threading, time, torch, warnings"
    installed = site.install("thing", "\n".join([modules, *EFFECTS]), requires=["fxplug>=0.1,<0.2"])
    module = types.ModuleType(installed.module)  # What the module does must not happen in this process.
    candidate = replace(installed.candidate(), load=lambda: module)

    finding = finding_of(check_plugin(candidate), "import-effects")

    assert finding.outcome == "failed"
    missed = [reason for reason in EFFECTS.values() if reason not in finding.reason]
    assert missed == [], finding.reason


@pytest.mark.parametrize(
    "source",
    [
        "import matplotlib",
        "try:\n    import onnx\nexcept ImportError:\n    pass",
        "import importlib; importlib.import_module('matplotlib')",
    ],
)
def test_a_heavy_import_is_found_whether_the_library_is_installed_or_not(site, source):
    (site.folder / "matplotlib.py").write_text("")
    installed = site.install("thing", source, requires=["fxplug>=0.1,<0.2"])

    assert failures_of(installed.candidate()) == ["import-light"]


ENGINE = """
from fxplug import Backend, BackendRecord, Support, hookimpl
{head}
class Engine(Backend):
    def __init__(self):
        {body}
    def supports(self, node, context):
        return Support(ok=True)
    def compile(self, subgraph, example_inputs, options):
        return subgraph
@hookimpl
def fxplug_register_backends():
    return [BackendRecord("engine", Engine, "Runs.", requires=("some-engine",))]
"""


def test_an_engine_that_is_imported_with_the_plugin_is_found(site):
    site.install("", distribution="some-engine")
    installed = site.install(
        "thing", ENGINE.format(head="import some_engine", body="pass"), requires=["fxplug<1"]
    )

    assert failures_of(installed.candidate()) == ["import-light"]


def test_a_backend_that_cannot_be_made_without_its_engine_is_found(site):
    site.install("", distribution="some-engine")
    installed = site.install(
        "thing", ENGINE.format(head="", body="import some_engine"), requires=["fxplug<1"]
    )

    assert failures_of(installed.candidate()) == ["engine-absent"]


def test_a_module_without_a_file_cannot_be_imported_elsewhere():
    report = check_plugin(pass_plugin(SingleRelu))

    assert [finding.check for finding in report.skipped if finding.check.startswith("import")] == [
        "import-effects",
        "import-light",
    ]


def test_an_entry_module_that_needs_what_others_imported_is_found(site, monkeypatch):
    monkeypatch.setitem(sys.modules, "imported_by_somebody", types.ModuleType("imported_by_somebody"))
    installed = site.install("thing", "import imported_by_somebody", requires=["fxplug>=0.1,<0.2"])

    assert failures_of(installed.candidate()) == ["import-effects"]


# -- options and factories --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class NotPlain:
    dtype: torch.dtype = torch.float32


@dataclass(frozen=True)
class Unchecked:
    anything: Any = 1


@dataclass(frozen=True)
class Required:
    level: int


@dataclass(frozen=True)
class Several:
    sizes: tuple[int, ...] = (1, 2)
    engine: str | None = None
    scale: float = 0.5
    table: dict[str, int] | None = None


class WithOptions(SingleRelu):
    def __init__(self, **options):
        self.options = options


def test_options_that_a_file_cannot_hold_are_found():
    assert "options-plain" in failures_of(pass_plugin(WithOptions, options=NotPlain))


def test_options_that_take_anything_are_found():
    assert failures_of(pass_plugin(WithOptions, options=Unchecked)) == ["options-checked"]


def test_options_of_plain_kinds_are_fine():
    check_plugin(pass_plugin(WithOptions, options=Several)).raise_failures()


def test_a_pass_with_a_required_option_is_checked_when_it_is_given():
    module = pass_plugin(WithOptions, options=Required)

    skipped = {finding.check: finding.reason for finding in check_plugin(module).skipped}
    given = check_plugin(module, options={"thing": {"level": 2}})

    reason = "the option 'level' has no default; give it: check_plugin(..., options=...)"
    assert skipped["factory"] == skipped["pass-runs"] == skipped["options-plain"] == reason
    given.raise_failures()
    assert finding_of(given, "pass-runs").outcome == "passed"


def test_options_for_what_is_not_offered_are_refused():
    with pytest.raises(UnknownNameError, match="Did you mean"):
        check_plugin(pass_plugin(SingleRelu), options={"made:thingg": {}})


def test_a_factory_that_does_not_take_its_options_is_found():
    assert "factory" in failures_of(pass_plugin(SingleRelu, options=Several))


def test_a_factory_that_makes_something_else_is_found():
    assert failures_of(backend_plugin(SingleRelu)) == ["factory"]
    command = plugin_of(fxplug_register_commands=lambda: [CommandRecord("draw", dict, "Draws.")])
    assert failures_of(command) == ["factory"]


# -- traces -----------------------------------------------------------------------------------------------------


def test_a_hook_that_fails_is_found():
    def fxplug_is_leaf_module(module):
        return module.missing

    assert failures_of(plugin_of(fxplug_is_leaf_module=fxplug_is_leaf_module)) == ["trace-same-values"]


def test_an_observer_that_fails_is_found():
    def fxplug_trace_finished(event):
        raise ValueError("no")

    assert failures_of(plugin_of(fxplug_trace_finished=fxplug_trace_finished)) == ["trace-same-values"]


def test_a_proxy_that_computes_something_else_is_found():
    class Wrong:
        def __mul__(self, other):
            return super().__mul__(other + 1)

    def fxplug_create_proxy():
        return Wrong

    assert failures_of(plugin_of(fxplug_create_proxy=fxplug_create_proxy)) == ["trace-same-values"]


def test_a_hook_that_changes_the_node_is_found():
    def fxplug_node_created(node):
        node.meta["made.seen"] = True

    assert failures_of(plugin_of(fxplug_node_created=fxplug_node_created)) == ["node-unchanged"]


def touches_a_note(event):
    for node in event.graph.nodes if event.graph is not None else ():
        node.meta["made.seen"] = True


def renames_a_node(event):
    if event.graph is not None:
        event.graph.output_node().name = "renamed"


@pytest.mark.parametrize("observe", [touches_a_note, renames_a_node])
def test_an_observer_that_changes_nodes_is_found(observe):
    def fxplug_trace_finished(event):
        observe(event)

    report = check_plugin(plugin_of(fxplug_trace_finished=fxplug_trace_finished))

    assert [finding.check for finding in report.failures] == ["node-unchanged"]
    assert "fxplug_trace_finished changes the node 'output'" in report.failures[0].reason


def test_a_hook_that_changes_a_module_is_found_and_blamed():
    def fxplug_is_leaf_module(module):
        module.touched = getattr(module, "touched", 0) + 1

    report = check_plugin(plugin_of(fxplug_is_leaf_module=fxplug_is_leaf_module))

    finding = finding_of(report, "module-unchanged")
    assert finding.outcome == "failed"
    assert "fxplug_is_leaf_module changes 'touched' of the module ''" in finding.reason
    assert "module-unchanged" in failures_of(plugin_of(fxplug_is_leaf_module=fxplug_is_leaf_module))


def writes_a_weight(event):
    for parameter in event.context.root.parameters():
        parameter.data = parameter.data.clone()


def adds_a_hook(event):
    event.context.root.register_forward_hook(lambda *_: None)


@pytest.mark.parametrize("observe", [writes_a_weight, adds_a_hook])
def test_an_observer_that_changes_the_model_is_found(observe):
    def fxplug_trace_started(event):
        observe(event)

    assert "module-unchanged" in failures_of(plugin_of(fxplug_trace_started=fxplug_trace_started))


def test_a_note_without_the_name_of_the_plugin_is_found():
    def fxplug_node_created(node):
        return {"op": node.op}

    assert failures_of(plugin_of(fxplug_node_created=fxplug_node_created)) == ["note-names"]


class Meeting:
    """A place at which the threads of a check wait for each other, so that they meet whatever the machine does."""

    def __init__(self) -> None:
        self._barrier = threading.Barrier(4)
        self.latest = 0

    def is_shared(self) -> bool:
        """Return whether another thread came after this one."""
        self.latest = threading.get_ident()
        if threading.current_thread() is not threading.main_thread():
            self._barrier.wait(timeout=60)
        return self.latest != threading.get_ident()


def test_hooks_that_share_state_between_threads_are_found():
    meeting = Meeting()

    def fxplug_node_created(node):
        return {"made.shared": meeting.is_shared()}

    assert failures_of(plugin_of(fxplug_node_created=fxplug_node_created)) == ["trace-threads"]


def test_hooks_that_work_in_the_main_thread_alone_are_found():
    state = threading.local()
    state.notes = {"made.note": 1}

    def fxplug_node_created(node):
        return state.notes

    assert failures_of(plugin_of(fxplug_node_created=fxplug_node_created)) == ["trace-threads"]


# -- passes -----------------------------------------------------------------------------------------------------


def test_a_pass_that_fails_on_a_model_is_found():
    class Fails(Pass):
        def run(self, module, context):
            raise ValueError("what is this")

    report = check_plugin(pass_plugin(Fails))

    assert [finding.check for finding in report.failures] == ["pass-runs"]
    assert "on the model 'perceptron' it fails: ValueError: what is this" in report.failures[0].reason


def spins(module=None):
    while True:
        pass


def spins_on(module):
    while True:
        try:
            spins()
        except BaseException:
            break
    spins()


def edits(module):
    while True:
        module.graph.erase_node(module.graph.call_function(abs, (1,)))


# Hypothesis times collections of garbage in a function of its own: an interruption that comes there is lost, and sent
# again.
@pytest.mark.filterwarnings(
    "ignore:Exception ignored in. <function gc_cumulative:pytest.PytestUnraisableExceptionWarning"
)
@pytest.mark.parametrize("loop", [spins, spins_on, edits])
def test_a_pass_that_does_not_end_is_found_and_does_not_keep_the_check(loop):
    class Loops(Pass):
        def run(self, module, context):
            loop(module)

    report = check_plugin(pass_plugin(Loops), time_limit=0.2)

    assert [finding.check for finding in report.failures] == ["pass-runs"]
    assert "on the model 'perceptron' it did not end within 0.2 s" in report.failures[0].reason


def test_a_pass_that_loops_in_threads_alone_is_found():
    class Shares(Pass):
        def run(self, module, context):
            while threading.current_thread() is not threading.main_thread():
                pass
            return PassResult(modified=False)

    report = check_plugin(pass_plugin(Shares), time_limit=1)

    assert [finding.check for finding in report.failures] == ["pass-threads"]
    assert "it did not end within 1 s" in report.failures[0].reason


@pytest.mark.parametrize(("error", "found"), [(None, ["pass-runs"]), (PassError("Give inputs."), [])])
def test_a_pass_that_falls_over_missing_inputs_is_found_and_one_that_refuses_is_fine(error, found):
    class Wants(Pass):
        def run(self, module, context):
            if context.example_inputs is None and error is not None:
                raise error
            assert len(context.example_inputs) > 0
            return PassResult(modified=False)

    assert failures_of(pass_plugin(Wants)) == found


def test_a_pass_that_returns_nothing_is_found():
    class Silent(Pass):
        def run(self, module, context):
            return None

    assert failures_of(pass_plugin(Silent)) == ["pass-runs"]


def test_a_pass_that_leaves_a_broken_graph_is_found():
    class Breaks(Pass):
        def run(self, module, context):
            module.graph.call_module("missing")
            return PassResult(modified=True)

    assert failures_of(pass_plugin(Breaks)) == ["pass-runs"]


@pytest.mark.parametrize("modified", [True, False])
def test_a_pass_that_says_the_wrong_thing_about_changes_is_found(modified):
    class Lies(SingleRelu):
        def run(self, module, context):
            super().run(module, context)
            return PassResult(modified)

    assert failures_of(pass_plugin(Lies)) == ["pass-modified"]


def test_a_pass_that_changes_weights_alone_changes_something():
    class Rounds(Pass):
        def run(self, module, context):
            for parameter in module.parameters():
                parameter.data = parameter.data.half().float()
            return PassResult(modified=False)

    assert failures_of(pass_plugin(Rounds, tolerance=0.01)) == ["pass-modified"]


def test_a_pass_that_loses_notes_is_found():
    class Forgets(Pass):
        def run(self, module, context):
            for node in module.graph.nodes:
                node.meta.clear()
            return PassResult(modified=False)

    assert failures_of(pass_plugin(Forgets)) == ["pass-keeps-notes"]


@pytest.mark.parametrize("keeps", [True, False])
def test_a_pass_whose_new_nodes_come_from_nowhere_is_found(keeps):
    class Renews(Pass):
        def run(self, module, context):
            found = relus_of(module)
            for node in found:
                with module.graph.inserting_before(node):
                    new = module.graph.call_function(torch.clamp_min, (node.args[0], 0))
                if keeps:
                    new.origins = tuple(origin.derived("thing") for origin in node.origins)
                for user in list(node.users):
                    user.replace_input_with(node, new)
                module.graph.erase_node(node)
            return PassResult(bool(found))

    assert failures_of(pass_plugin(Renews)) == ([] if keeps else ["pass-keeps-notes"])


class Rounds(Pass):
    def run(self, module, context):
        for node in module.graph.find_nodes(op="call_function", target=torch.tanh):
            node.target = torch.sin
        return PassResult(bool(module.graph.find_nodes(op="call_function", target=torch.sin)))


def test_a_pass_that_changes_values_is_found():
    report = check_plugin(pass_plugin(Rounds))

    assert [finding.check for finding in report.failures] == ["pass-same-values"]
    assert "on the model 'two-outputs' output[0] differs" in report.failures[0].reason
    assert "PassRecord(tolerance=0.01)" in report.failures[0].remedy


def test_a_pass_that_overlooks_writes_is_found():
    report = check_plugin(pass_plugin(TakesAnyRelu))

    assert [finding.check for finding in report.failures] == ["pass-same-values"]
    assert "on the model 'written-between' output[0] differs" in report.failures[0].reason
    assert "on the model 'regions' output[1] differs" in report.failures[0].reason


def test_a_pass_that_overlooks_keywords_is_found():
    report = check_plugin(pass_plugin(TakesAnyPosition))

    assert [finding.check for finding in report.failures] == ["pass-runs"]
    assert "on the model 'spellings' it fails: IndexError" in report.failures[0].reason


class Silently(Pass):
    """Says that it changed nothing."""

    def run(self, module, context):
        self.act(module, context)
        return PassResult(modified=False)

    def act(self, module, context):
        """Change something."""


def silently(act: Any) -> Any:
    return type("Acts", (Silently,), {"act": lambda self, module, context: act(module, context)})


def freezes(module, context):
    for parameter in module.parameters():
        parameter.requires_grad_(requires_grad=False)


def adds_hooks(module, context):
    for part in module.modules():
        part.register_forward_hook(lambda *_: None)


def trains(module, context):
    for part in module.modules():
        if isinstance(part, nn.Linear):
            part.train()


def sets_an_attribute(module, context):
    for part in module.modules():
        if isinstance(part, nn.BatchNorm2d):
            part.momentum = 0.5


@pytest.mark.parametrize("act", [freezes, adds_hooks, trains, sets_an_attribute])
def test_a_pass_that_changes_modules_but_no_value_changes_something(act):
    assert failures_of(pass_plugin(silently(act))) == ["pass-modified"]


def test_a_pass_that_adds_hooks_at_each_run_is_not_idempotent():
    assert "pass-idempotent" in failures_of(pass_plugin(silently(adds_hooks), idempotent=True))


def clears_inputs(module, context):
    for value in context.example_inputs or ():
        value.zero_()


def sets_a_variable(module, context):
    os.environ["FXPLUG_THING"] = "1"


def writes_a_file(module, context):
    Path("thing").write_text("thing")


def seeds(module, context):
    torch.manual_seed(3)


def draws(module, context):
    torch.rand(3)


@pytest.mark.parametrize(
    ("act", "reason"),
    [
        (clears_inputs, "it changes the example inputs"),
        (sets_a_variable, "it changes os.environ"),
        (writes_a_file, "it writes the file 'thing'"),
        (seeds, "it changes the random state of torch"),
        (draws, "it changes the random state of torch"),
    ],
)
def test_what_a_pass_does_besides_is_found_and_taken_back(act, reason, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    environ, drawn = dict(os.environ), torch.get_rng_state()

    report = check_plugin(pass_plugin(silently(act)))

    assert [finding.check for finding in report.failures] == ["pass-effects"]
    assert f"on the model 'perceptron' {reason}" in report.failures[0].reason
    assert dict(os.environ) == environ
    assert torch.equal(torch.get_rng_state(), drawn)


def test_a_pass_that_writes_only_to_memory_and_reads_files_has_no_effects(tmp_path, monkeypatch):
    (tmp_path / "thing").write_text("thing")
    monkeypatch.chdir(tmp_path)

    def reads(module, context):
        assert Path("thing").read_text() == "thing"

    check_plugin(pass_plugin(silently(reads))).raise_failures()


def test_a_pass_that_notes_the_time_is_found():
    ticks = itertools.count()

    def notes_the_time(module, context):
        for node in module.graph.nodes:
            node.meta["made.time"] = next(ticks)

    assert set(failures_of(pass_plugin(silently(notes_the_time)))) == {"pass-deterministic", "pass-threads"}


def test_a_pass_that_writes_notes_of_others_is_found():
    def overwrites(module, context):
        for node in module.graph.nodes:
            node.meta.update(dict.fromkeys(node.meta, "mine"))

    report = check_plugin(pass_plugin(silently(overwrites)))

    assert [finding.check for finding in report.failures] == ["pass-keeps-notes"]
    assert "has another value in a note that is not the plugin's own" in report.failures[0].reason


class MergesEqualCalls(Pass):
    """Lets the first of several equal calls stand for all, whether something is written between or drawn."""

    def run(self, module, context):
        first: dict[str, Any] = {}
        merged = 0
        for node in list(module.graph.nodes):
            text = f"{node.op} {node.target} {node.args} {node.kwargs}"
            if node.op == "call_function" and first.setdefault(text, node) is not node:
                node.replace_all_uses_with(first[text])
                module.graph.erase_node(node)
                merged += 1
        return PassResult(merged > 0)


def test_a_pass_that_overlooks_views_and_draws_is_found():
    report = check_plugin(pass_plugin(MergesEqualCalls))

    assert [finding.check for finding in report.failures] == ["pass-same-values"]
    for model in ("views", "draws"):
        assert f"on the model '{model}' output" in report.failures[0].reason


def test_a_pass_is_held_to_the_tolerance_that_it_declares():
    # sin(x) is at most 2 from tanh(x), whose largest magnitude here is nearly 1.
    assert failures_of(pass_plugin(Rounds, tolerance=2.5)) == []
    assert failures_of(pass_plugin(Rounds, tolerance=0.01)) == ["pass-same-values"]


def test_a_pass_that_depends_on_chance_is_found():
    calls: list[int] = []

    class Changes(Pass):
        def run(self, module, context):
            calls.append(1)
            node = module.graph.output_node()
            with module.graph.inserting_before(node):
                new = module.graph.call_function(torch.ones, (len(calls),))
            new.origins = next(iter(module.graph.nodes)).origins or node.origins
            return PassResult(modified=True)

    found = failures_of(pass_plugin(Changes))

    assert "pass-deterministic" in found
    assert set(found) <= {"pass-deterministic", "pass-threads", "pass-keeps-notes"}


def test_a_pass_that_is_not_idempotent_is_found_if_it_claims_to_be():
    class Grows(Pass):
        def run(self, module, context):
            node = next(node for node in reversed(module.graph.nodes) if node.op.startswith("call_"))
            with module.graph.inserting_after(node):
                new = module.graph.node_copy(node)
            return PassResult(modified=new is not None)

    assert failures_of(pass_plugin(Grows)) == []
    assert failures_of(pass_plugin(Grows, idempotent=True)) == ["pass-idempotent"]


def test_a_pass_that_shares_state_between_threads_is_found():
    meeting = Meeting()

    class Shares(Pass):
        def run(self, module, context):
            changed = meeting.is_shared() and module.graph.eliminate_dead_code()
            return PassResult(modified=changed)

    assert failures_of(pass_plugin(Shares)) == ["pass-threads"]


def test_a_pass_that_works_in_the_main_thread_alone_is_found():
    state = threading.local()
    state.level = 1

    class Local(Pass):
        def run(self, module, context):
            return PassResult(modified=state.level != 1)

    assert failures_of(pass_plugin(Local)) == ["pass-threads"]


def test_a_pass_that_changes_no_model_is_told_to_bring_one():
    class Model(nn.Module):
        def forward(self, x):
            return torch.relu(torch.relu(x))

    class OnlyOwn(SingleRelu):
        def run(self, module, context):
            return (
                super().run(module, context) if len(module.graph.nodes) == 4 else PassResult(modified=False)
            )

    module = pass_plugin(OnlyOwn)
    without = finding_of(check_plugin(module), "pass-runs")
    given = finding_of(check_plugin(module, models={"own": (Model(), (torch.randn(3),))}), "pass-runs")

    assert without.reason == (
        "changes 0 of 12 models; give one that it changes: check_plugin(..., models=...)"
    )
    assert given.reason == "changes 1 of 13 models"


# -- backends ---------------------------------------------------------------------------------------------------


class AnswersText(Whole):
    def supports(self, node, context):
        return "yes"


class RefusesSilently(Whole):
    def supports(self, node, context):
        return Support(ok=False)


class ChangesItsMind(Whole):
    def __init__(self):
        self.asked = 0

    def supports(self, node, context):
        self.asked += 1
        return Support(ok=False, reason=f"answer {self.asked}")


class EditsWhenAsked(Whole):
    def supports(self, node, context):
        node.graph.eliminate_dead_code()
        node.name = f"{node.name}_seen"
        return Support(ok=True)


@pytest.mark.parametrize("backend", [AnswersText, RefusesSilently, ChangesItsMind, EditsWhenAsked])
def test_a_backend_whose_answers_cannot_be_relied_on_is_found(backend):
    assert failures_of(backend_plugin(backend)) == ["backend-partition"]


class Wrong(nn.Module):
    def __init__(self, module):
        super().__init__()
        self.module = module

    def forward(self, x):
        return self.module(x * 2)


class ComputesSomethingElse(Whole):
    def compile(self, subgraph, example_inputs, options):
        return Wrong(subgraph)


class FailsToCompile(Whole):
    def compile(self, subgraph, example_inputs, options):
        raise TypeError("unexpected")


class EditsWhenCompiling(Whole):
    def compile(self, subgraph, example_inputs, options):
        subgraph.graph.output_node().name = "another"
        return subgraph


@pytest.mark.parametrize("backend", [ComputesSomethingElse, FailsToCompile, EditsWhenCompiling])
def test_a_backend_that_does_not_agree_with_eager_is_found(backend):
    assert failures_of(backend_plugin(backend)) == ["backend-same-values"]


def test_a_backend_without_its_engine_is_skipped():
    report = check_plugin(backend_plugin(Whole, requires=("no-such-engine",)))

    report.raise_failures()
    assert finding_of(report, "backend-same-values").reason == "its engine is missing: no-such-engine"


def test_a_backend_that_says_why_it_does_not_build_is_skipped():
    class Later(Whole):
        def compile(self, subgraph, example_inputs, options):
            raise BackendError("Cannot build yet.")

    finding = finding_of(check_plugin(backend_plugin(Later)), "backend-same-values")

    assert (finding.outcome, finding.reason) == ("skipped", "it ran nothing: Cannot build yet")


class OnlyTanh(Whole):
    """Supports one function, so that it runs no whole model."""

    factor = 1

    def supports(self, node, context):
        return Support(node.target is torch.tanh, "" if node.target is torch.tanh else "not tanh")

    def compile(self, subgraph, example_inputs, options):
        return Scaled(subgraph, self.factor)


class Scaled(nn.Module):
    def __init__(self, module, factor):
        super().__init__()
        self.module = module
        self.factor = factor

    def forward(self, *inputs):
        return self.module(*inputs) * self.factor


class WrongTanh(OnlyTanh):
    factor = 1.5


def test_single_calls_that_a_backend_supports_are_compared_where_it_runs_no_whole_model():
    sound, wrong = (
        finding_of(check_plugin(backend_plugin(kind)), "backend-same-values")
        for kind in (OnlyTanh, WrongTanh)
    )

    assert (sound.outcome, sound.reason) == ("passed", "ran 4 of 16 whole models and single calls")
    assert wrong.outcome == "failed"
    assert wrong.reason.startswith("for the call 'tanh' of the model 'two-outputs' output differs")


def test_calls_are_handed_over_with_the_values_from_before_they_ran():
    def program(x):
        y = x + 1
        y.add_(1)
        return y.mul_(2)

    module = symbolic_trace(program)
    parts = {
        name: (part, inputs)
        for name, part, inputs in single_calls(module, (torch.ones(2),), lambda node: True)
    }

    assert list(parts) == ["add", "add_", "mul_"]
    assert [inputs[0].tolist() for _, inputs in parts.values()] == [[1.0, 1.0], [2.0, 2.0], [3.0, 3.0]]
    assert [part(*inputs).tolist() for part, inputs in parts.values()] == [[2.0, 2.0], [3.0, 3.0], [6.0, 6.0]]


# -- records ----------------------------------------------------------------------------------------------------


def decomposition_plugin(function: Any, target: Any = torch.relu) -> ModuleType:
    return plugin_of(fxplug_register_decompositions=lambda: [DecompositionRecord(target, function)])


def adds_a_hundred(input):  # noqa: A002 - torch's name for it
    return input + 100


def fails(*args):
    raise ValueError("not today")


def leads_back(input):  # noqa: A002 - torch's name for it
    return torch.relu(torch.relu(input))


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        (adds_a_hundred, "output differs"),
        (fails, "ValueError: not today"),
        (leads_back, "after 16 rounds"),
    ],
)
def test_a_decomposition_that_does_not_compute_the_call_is_found(function, reason):
    report = check_plugin(decomposition_plugin(function))

    assert [finding.check for finding in report.failures] == ["decomposition-same-values"]
    assert reason in report.failures[0].reason


def test_decompositions_of_functions_methods_and_modules_are_tried_where_models_call_them():
    def clamp(input):  # noqa: A002 - torch's name for it
        return torch.clamp_min(input, 0)

    def negate(input):  # noqa: A002 - torch's name for it
        return input * -1

    def sigmoid(module, input):  # noqa: A002 - torch's name for it
        return 1 / (1 + torch.exp(-input))

    for function, target in ((clamp, torch.relu), (negate, "neg"), (sigmoid, nn.Sigmoid)):
        report = check_plugin(decomposition_plugin(function, target))
        report.raise_failures()
        assert finding_of(report, "decomposition-same-values").outcome == "passed"

    reason = "no model calls it; give one that does: check_plugin(..., models=...)"
    skipped = finding_of(check_plugin(decomposition_plugin(clamp, torch.rsqrt)), "decomposition-same-values")
    assert (skipped.outcome, skipped.reason) == ("skipped", reason)


def formula_plugin(target: Any, formula: Any) -> ModuleType:
    return plugin_of(fxplug_register_flop_formulas=lambda: [FlopFormulaRecord(target, formula)])


@pytest.mark.parametrize(
    "formula",
    [lambda call: -5, lambda call: "x", fails, lambda call: CallCost(1, -1), lambda call: CallCost(1.5)],
    ids=["negative", "text", "fails", "negative-bytes", "fraction"],
)
def test_a_formula_that_gives_no_number_is_found(formula):
    assert failures_of(formula_plugin(torch.relu, formula)) == ["formula-number"]


def test_a_formula_may_answer_or_not_and_one_that_no_model_needs_is_skipped():
    for target, answer, outcome in (
        (torch.relu, 7, "passed"),
        (nn.Linear, None, "passed"),
        (torch.outer, 7, "skipped"),
    ):
        report = check_plugin(formula_plugin(target, lambda call, answer=answer: answer))
        report.raise_failures()
        assert finding_of(report, "formula-number").outcome == outcome


class Window:
    def __init__(self, size=3):
        self.size = size


class NeedsSize(Window):
    def __init__(self, size):
        super().__init__(size)


def constant_plugin(kind: type, encode: Any, decode: Any) -> ModuleType:
    record = ConstantRecord("window", kind, encode=encode, decode=decode)
    return plugin_of(fxplug_register_constants=lambda: [record])


@pytest.mark.parametrize(
    ("encode", "decode", "reason"),
    [
        (lambda window: object(), Window, "encode returns a object, which no file holds"),
        (lambda window: window.size, lambda data: 3, "decode returns a int instead of a Window"),
        (lambda window: [window.size], lambda data: Window(4), "is encoded to something else"),
        (fails, Window, "it fails: ValueError: not today"),
    ],
)
def test_a_constant_that_does_not_come_back_is_found(encode, decode, reason):
    report = check_plugin(constant_plugin(Window, encode, decode))

    assert [finding.check for finding in report.failures] == ["constant-round-trip"]
    assert reason in report.failures[0].reason


def test_a_constant_is_tried_with_values_of_models_and_skipped_where_there_is_none():
    def size_of(window):
        return {"sizes": (window.size, torch.ones(2))}

    sound = constant_plugin(Window, size_of, lambda data: Window(data["sizes"][0]))
    needs = constant_plugin(NeedsSize, size_of, lambda data: NeedsSize(data["sizes"][0]))
    wrong = constant_plugin(NeedsSize, size_of, lambda data: NeedsSize(1))

    @wrap
    def cut(x, window):
        return x[: window.size]

    class Model(nn.Module):
        def forward(self, x):
            return cut(x, window)

    window = NeedsSize(2)
    models = {"windows": (Model(), (torch.ones(4),))}
    outcomes = [
        finding_of(check_plugin(plugin, models=given), "constant-round-trip").outcome
        for plugin, given in ((sound, None), (needs, None), (needs, models), (wrong, models))
    ]

    assert outcomes == ["passed", "skipped", "passed", "failed"]


@pytest.mark.parametrize(
    "target",
    [os.system, eval, subprocess.run, functools.partial(os.system), torch.load, torch.hub.load, open],
    ids=["system", "eval", "run", "partial", "torch-load", "hub-load", "open"],
)
def test_a_storage_target_that_runs_what_it_is_given_is_found(target):
    record = StorageTargetRecord("thing", target)

    assert failures_of(plugin_of(fxplug_register_storage_targets=lambda: [record])) == ["storage-target-own"]


@pytest.mark.parametrize(
    "target",
    [adds_a_hundred, Window, torch.relu, nn.ReLU, torch.Tensor.relu],
    ids=["own-function", "own-class", "function", "module", "method"],
)
def test_functions_of_the_plugin_and_of_torch_may_be_named_in_files(target):
    record = StorageTargetRecord("thing", target)

    report = check_plugin(plugin_of(fxplug_register_storage_targets=lambda: [record]))

    assert finding_of(report, "storage-target-own").outcome == "passed"


# -- what is shown and heard ------------------------------------------------------------------------------------


def section_plugin(factory: Any) -> ModuleType:
    return plugin_of(
        fxplug_register_report_sections=lambda: [ReportSectionRecord("thing", factory, "Things")]
    )


def edits(context):
    context.module.graph.output_node().meta["made.seen"] = True
    return "text"


@pytest.mark.parametrize(
    "factory",
    [fails, lambda context: 3, lambda context: [("a",), ("b", "c")], edits],
    ids=["fails", "number", "odd-rows", "edits"],
)
def test_a_section_that_does_not_work_is_found(factory):
    assert failures_of(section_plugin(factory)) == ["section-runs"]


@pytest.mark.parametrize("answer", ["text", None, [("opcode", "nodes"), ("output", 1)]])
def test_a_section_that_works_passes_and_one_that_needs_a_report_is_skipped(answer):
    sound = finding_of(check_plugin(section_plugin(lambda context: answer)), "section-runs")
    needs = finding_of(check_plugin(section_plugin(lambda context: context.data["passes"])), "section-runs")

    assert sound.outcome == "passed"
    assert needs.outcome == "skipped"
    assert needs.reason.startswith("it reads 'passes' of a report, which only 'fxplug optimize' makes")


def represents(act: Any) -> ModuleType:
    def fxplug_represent(graph_module, format):  # noqa: A002 - the hook's name for it
        return act(graph_module)

    return plugin_of(fxplug_represent=fxplug_represent)


def removes_a_node(module):
    module.graph.eliminate_dead_code()


@pytest.mark.parametrize("act", [fails, lambda module: 3, removes_a_node])
def test_a_picture_that_fails_or_changes_the_module_is_found(act):
    assert failures_of(represents(act)) == ["represent-runs"]


def lacks_a_program(module):
    raise BackendError("Cannot draw: the program 'dot' is missing.")


@pytest.mark.parametrize(
    "act",
    [lambda module: None, lambda module: "text", lacks_a_program],
    ids=["not-known", "text", "lacks-a-program"],
)
def test_a_picture_may_be_refused_in_a_sentence(act):
    check_plugin(represents(act)).raise_failures()


@pytest.mark.parametrize("hook", ["fxplug_pass_started", "fxplug_pass_finished", "fxplug_trace_finished"])
def test_an_observer_that_falls_over_an_event_is_found(hook):
    def observe(event):
        # Of a pass nobody has a graph, and of a trace that failed neither.
        return event.graph.nodes

    assert failures_of(plugin_of(**{hook: observe})) == ["observers-run"]


def test_an_observer_that_changes_the_module_is_found():
    def fxplug_pass_started(event):
        removes_a_node(event.module)

    assert failures_of(plugin_of(fxplug_pass_started=fxplug_pass_started)) == ["observers-run"]


# -- what the record of a pass declares


class _Doubled(Pass):
    """Doubles the parameters of linear layers, in new objects, and halves what comes out."""

    def run(self, module, context):
        calls = module.graph.find_nodes(op="call_module")
        paths = [str(node.target) for node in calls]
        found = 0
        for node in calls:
            linear = module.get_submodule(str(node.target))
            if type(linear) is not nn.Linear or paths.count(str(node.target)) > 1:
                continue
            if module.graph.find_nodes(op="get_attr"):
                continue
            for name, old in list(linear.named_parameters()):
                new = nn.Parameter(old.detach() * 2)
                setattr(linear, name, new)
                self.say(context, new, old)
            with module.graph.inserting_after(node):
                half = module.graph.call_function(operator.truediv, (node, 2))
            half.origins = node.origins
            node.replace_all_uses_with(half, delete_user_cb=lambda user, half=half: user is not half)
            found += 1
        return PassResult(found > 0)

    def say(self, context, new, old):
        pass


class _Honest(_Doubled):
    def say(self, context, new, old):
        context.derive(new, (old,), lambda value: value * 2)


class _Liar(_Doubled):
    def say(self, context, new, old):
        context.derive(new, (old,), lambda value: value * 3.0)


class _Wider(Pass):
    """Puts parameters of another dtype in the place of those that it finds, which compute the same."""

    def run(self, module, context):
        if module.graph.find_nodes(op="get_attr"):
            return PassResult(modified=False)
        calls = module.graph.find_nodes(op="call_module")
        paths = sorted({str(node.target) for node in calls})
        paths = [path for path in paths if isinstance(module.get_submodule(path), nn.Linear)]
        for path in paths:
            module.add_submodule(path, _InDouble(module.get_submodule(path)))
        return PassResult(len(paths) > 0)


class _InDouble(nn.Module):
    def __init__(self, linear):
        super().__init__()
        self.linear = copy.deepcopy(linear).double()

    def forward(self, x):
        return self.linear(x.double()).float()


class _Flattening(Pass):
    """Makes the input of the first relu flat, and what comes out of it what it was."""

    def run(self, module, context):
        calls = module.graph.find_nodes(op="call_module")
        relus = [
            node for node in calls if type(module.get_submodule(str(node.target))) is nn.ReLU and node.args
        ]
        for node in relus[:1]:
            (value,) = node.args
            with module.graph.inserting_before(node):
                flat = module.graph.call_function(torch.flatten, (value,))
            node.args = (flat,)
            with module.graph.inserting_after(node):
                back = module.graph.call_method("reshape_as", (node, value))
            node.replace_all_uses_with(back, delete_user_cb=lambda user, back=back: user is not back)
            flat.origins = back.origins = node.origins
        return PassResult(len(relus) > 0)


def test_a_pass_that_replaces_parameters_says_so():
    report = check_plugin(pass_plugin(_Wider))
    assert [finding.check for finding in report.failures] == ["pass-parameters"]
    finding = finding_of(report, "pass-parameters")
    assert "is gone" in finding.reason
    assert "replaces_parameters=True" in finding.remedy
    report = check_plugin(pass_plugin(_Wider, replaces_parameters=True))
    assert finding_of(report, "pass-parameters").outcome == "passed"


def test_a_pass_that_does_not_preserve_what_it_says_is_found():
    report = check_plugin(pass_plugin(_Flattening, preserves=frozenset({"effects"})))
    assert finding_of(report, "pass-preserves").outcome == "passed"
    report = check_plugin(pass_plugin(_Flattening, preserves=frozenset({"shapes"})))
    assert [finding.check for finding in report.failures] == ["pass-preserves"]
    assert "'shapes' of node" in finding_of(report, "pass-preserves").reason
    assert finding_of(check_plugin(pass_plugin(_Flattening)), "pass-preserves").outcome == "skipped"


def test_what_a_record_declares_has_the_right_form():
    for fields, found in (
        (
            {"preserves": frozenset({"shape"})},
            "preserves 'shape', which is no analysis. Did you mean 'shapes'?",
        ),
        ({"preserves": "shapes"}, "it must be a frozenset of names of analyses"),
        ({"replaces_parameters": "no"}, "it must be True or False"),
    ):
        report = check_plugin(pass_plugin(_Flattening, **fields))
        assert found in finding_of(report, "loads").reason


def test_a_pass_that_says_how_weights_are_made_is_checked():
    report = check_plugin(pass_plugin(_Honest))
    assert finding_of(report, "pass-weights").outcome == "passed"
    report = check_plugin(pass_plugin(_Liar))
    assert [finding.check for finding in report.failures] == ["pass-weights"]
    finding = finding_of(report, "pass-weights")
    assert "is wrong once other weights are loaded" in finding.reason
    finding = finding_of(check_plugin(pass_plugin(_Doubled)), "pass-weights")
    assert finding.outcome == "skipped"
    assert "does not say how" in finding.reason
