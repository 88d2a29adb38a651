"""Finding the pass, the rewrite and the node that make a result wrong."""

from __future__ import annotations

import copy
import json
import os
import subprocess
import sys

import pytest
import torch
from torch import nn

import fxplug
from fxplug.api import reproduce
from fxplug.errors import ConfigError, StorageError, TraceError, UnknownNameError
from fxplug.passes import Pass, PassRecord, PassResult, Pipeline, PipelineStep
from fxplug.rewrite import replace_pattern

X = torch.linspace(-1, 1, 8).reshape(2, 4)


class Chain(nn.Module):
    """A linear layer and then as many pairs of calls as are asked for."""

    def __init__(self, length=6):
        super().__init__()
        self.length = length
        self.linear = nn.Linear(4, 4)

    def forward(self, x):
        x = self.linear(x)
        for _ in range(self.length):
            x = torch.relu(x) + 0.01
        return x


class Running(Pass):
    def __init__(self, function):
        self.function = function

    def run(self, module, context):
        return self.function(module, context) or PassResult(modified=True)


def record(function, name=None):
    return PassRecord(name or function.__name__.replace("_", "-"), lambda: Running(function), "Test.")


def nothing(module, context):
    return PassResult(modified=False)


def asking(*bad, what="swap", value=0.5, raises=False):
    """A pass that replaces every relu, and those at the positions `bad` wrongly."""

    def swap(module, context):
        done = 0
        for position, node in enumerate(module.graph.find_nodes(op="call_function", target=torch.relu)):
            if not context.allows(node, what):
                continue
            if position in bad and raises:
                raise ValueError(f"no {node.name}")
            with module.graph.inserting_before(node):
                least = value if position in bad else 0.0
                new = module.graph.call_function(torch.clamp, node.args, {"min": least})
            node.replace_all_uses_with(new)
            module.graph.erase_node(node)
            done += 1
        return PassResult(done > 0)

    return swap


def silent(module, context):
    """Change one call, asking nobody."""
    module.graph.find_nodes(op="call_function", target=torch.relu)[2].target = torch.tanh


@pytest.fixture
def module():
    torch.manual_seed(0)
    return Chain().eval()


def among(culprit, total=20, position=13):
    records = [record(nothing, f"nothing-{number}") for number in range(total)]
    records[position] = culprit
    return records


def test_a_bad_pass_among_twenty_is_found_in_few_runs(module):
    heard = []

    found = fxplug.bisect(module, X, passes=among(record(silent)), observer=heard.append)

    assert found.found
    assert (found.culprit.name, found.culprit.position, found.culprit.total) == ("silent", 13, 20)
    assert (found.culprit.is_bad_alone, found.culprit.needs, found.culprit.is_good_without) == (
        True,
        (),
        True,
    )
    assert found.judgement.kind == "differs"
    assert found.judgement.text.startswith("output (float32[2, 4]): ")
    # One for all, five for a binary search among twenty, one more each to see it again, alone, and all but it.
    assert found.runs == len(heard) <= 9
    assert heard[0] == "nothing-0 to nothing-19, 20 passes"


def test_of_a_pass_that_does_not_ask_the_node_is_named_all_the_same(module):
    found = fxplug.bisect(module, X, passes=among(record(silent)))

    assert found.rewrite is None
    assert (found.node.name, found.node.target) == ("relu_2", "torch.tanh")
    assert found.node.line.endswith("in forward")
    assert found.node.history == ("silent of this program",)
    assert "does not ask before its rewrites" in found.notes[0]


def test_a_bad_rewrite_among_five_hundred_is_found_in_few_runs():
    torch.manual_seed(0)
    model = Chain(500).eval()

    found = fxplug.bisect(model, X, passes=[record(asking(317, value=9.0))])

    assert (found.rewrite.what, found.rewrite.node) == ("swap", "relu_317")
    assert (found.rewrite.position, found.rewrite.total, found.rewrite.is_bad_alone) == (317, 500, True)
    assert found.rewrite.line.endswith("in forward")
    assert (found.node.target, found.node.opcode) == ("torch.clamp", "call_function")
    assert found.node.reason.endswith("(allowed error: 0.0001 + 0.0001 * abs(expected))")
    # Two for the only pass, nine for a binary search among five hundred, one without any rewrite and one for it alone.
    assert found.runs <= 14


def test_of_two_bad_rewrites_one_is_found_that_is_bad_alone(module):
    found = fxplug.bisect(module, X, passes=[record(asking(1, 4))])

    assert found.rewrite.position in {1, 4}
    assert found.rewrite.node == f"relu_{found.rewrite.position}"
    assert found.rewrite.is_bad_alone


def test_a_rewrite_that_is_bad_only_after_another_one_is_said_to_be(module):
    def both(module, context):
        nodes = module.graph.find_nodes(op="call_function", target=torch.relu)
        done = [node for node in nodes if context.allows(node, "swap")]
        if nodes[1] in done and nodes[3] in done:
            nodes[3].target = torch.tanh
        return PassResult(bool(done))

    found = fxplug.bisect(module, X, passes=[record(both)])

    assert (found.rewrite.position, found.rewrite.is_bad_alone) == (3, False)
    assert found.node.name == "relu_3"


def test_a_pass_that_is_bad_only_after_another_one_is_found_with_it(module):
    def mark(module, context):
        module.meta["marked"] = True
        return nothing(module, context)

    def use(module, context):
        if "marked" in module.meta:
            silent(module, context)
            return None
        return nothing(module, context)

    passes = among(record(use))
    passes[4] = record(mark)
    found = fxplug.bisect(module, X, passes=passes)

    assert found.culprit.name == "use"
    assert (found.culprit.is_bad_alone, found.culprit.needs) == (False, ("mark",))


def test_a_second_culprit_is_pointed_out(module):
    passes = among(record(silent))
    passes[17] = record(asking(5))
    found = fxplug.bisect(module, X, passes=passes)

    assert not found.culprit.is_good_without
    assert "there is another culprit" in found.notes[0]


def test_patterns_ask_by_themselves(module):
    def rewrite(module, context):
        replace_pattern(module, lambda x: torch.relu(x), lambda x: torch.clamp(x, min=0.2))  # noqa: PLW0108 - traced

    found = fxplug.bisect(module, X, passes=[record(rewrite)])

    assert (found.rewrite.what, found.rewrite.total) == ("replace_pattern", 6)
    assert found.rewrite.is_bad_alone
    assert found.node.history == ("replace_pattern", "rewrite of this program")


def test_decompositions_ask_by_themselves(module):
    wrong = fxplug.DecompositionRecord(torch.relu, lambda x: x * 0.5)

    def simplify(module, context):
        module.graph = fxplug.decompose(module, decompositions=[wrong]).graph

    found = fxplug.bisect(module, X, passes=[record(simplify)])

    assert (found.rewrite.what, found.rewrite.total) == ("decompose", 6)
    assert found.node.target == "operator.mul"


def test_a_pass_that_raises_is_found_with_its_rewrite(module):
    found = fxplug.bisect(module, X, passes=among(record(asking(3, raises=True))))

    assert found.judgement.kind == "fails"
    assert "Pass 'swap' of this program failed: ValueError: no relu_3" in found.judgement.text
    assert (found.culprit.name, found.rewrite.node, found.node.name) == ("swap", "relu_3", "relu_3")


def test_a_module_that_fails_is_found_with_its_node(module):
    def narrow(module, context):
        node = module.graph.find_nodes(op="call_function", target=torch.relu)[2]
        with module.graph.inserting_after(node):
            short = module.graph.call_function(torch.matmul, (node, node))
        node.replace_all_uses_with(short, lambda user: user is not short)

    found = fxplug.bisect(module, X, passes=among(record(narrow)))

    assert (found.judgement.kind, found.culprit.name) == ("fails", "narrow")
    assert (found.node.name, found.node.target) == ("matmul", "torch.matmul")
    assert "The module fails at node 'matmul'" in found.node.reason


def test_what_makes_a_module_slow_is_found(module):
    def grow(module, context):
        for node in module.graph.find_nodes(op="call_function", target=torch.relu):
            if context.allows(node, "repeat"):
                with module.graph.inserting_after(node):
                    for _ in range(100 if node.name == "relu_2" else 1):
                        module.graph.call_function(torch.relu, (node,))

    measured = []

    def measure(start, module, inputs):
        measured.append(len(module.graph.nodes))
        return len(module.graph.nodes) / len(start.graph.nodes)

    found = fxplug.bisect(module, X, passes=among(record(grow)), slower_than=3.0, measure=measure)

    assert found.judgement.kind == "slow"
    assert found.judgement.text.endswith("times as long as before the passes")
    assert (found.culprit.name, found.rewrite.node) == ("grow", "relu_2")
    assert len(measured) == found.runs + 1


def test_a_function_may_judge(module):
    found = fxplug.bisect(
        module,
        X,
        passes=among(record(asking(2, value=0.0))),
        check=lambda module: not any(node.target is torch.clamp for node in module.graph.nodes),
    )

    assert (found.culprit.name, found.judgement.text) == ("swap", "the check says no")
    assert found.rewrite.position == 0


def test_where_nothing_is_wrong_nothing_is_found(module):
    found = fxplug.bisect(module, X, passes=among(record(asking())))

    assert not found.found
    assert found.judgement.is_good
    assert (found.culprit, found.rewrite, found.node, found.runs) == (None, None, None, 1)
    with pytest.raises(ConfigError, match="nothing is wrong"):
        found.write("nowhere")


def test_module_inputs_and_random_state_stay_as_they_are():
    model = nn.Sequential(nn.BatchNorm1d(4), nn.Dropout(0.5), nn.ReLU())
    state = copy.deepcopy(model.state_dict())
    inputs, random = X.clone(), torch.get_rng_state()

    def draw(module, context):
        torch.rand(3)
        module.graph.find_nodes(op="call_module")[2].target = "1"

    found = fxplug.bisect(model, inputs, passes=[record(nothing), record(draw)])

    assert found.culprit.name == "draw"
    assert torch.equal(inputs, X)
    assert torch.equal(torch.get_rng_state(), random)
    assert {name: value.tolist() for name, value in model.state_dict().items()} == {
        name: value.tolist() for name, value in state.items()
    }


class Counting(nn.Module):
    """Writes to a parameter, and to a list."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(4))

    def forward(self, x):
        with torch.no_grad():
            self.scale.add_(1)
        return torch.relu(x) * self.scale


def test_a_module_that_writes_to_its_parameters_starts_anew_each_time():
    model = Counting().eval()

    assert not fxplug.bisect(model, X, passes=among(record(nothing, "nothing-more"))).found
    found = fxplug.bisect(model, X, passes=among(record(asking(0))))

    assert (found.culprit.name, found.node.target) == ("swap", "torch.clamp")
    assert torch.equal(model.scale, torch.ones(4))


def test_passes_that_the_pipeline_skips_are_not_to_blame(module):
    def fails(module, context):
        raise ValueError("no")

    steps = [
        PipelineStep(entry.name, entry)
        for entry in (record(nothing), record(fails), record(asking(2)), record(nothing, "last"))
    ]

    assert not fxplug.bisect(module, X, pipeline=Pipeline("", steps, on_error="stop")).found
    assert fxplug.bisect(module, X, pipeline=Pipeline("", steps, on_error="rollback")).culprit.name == "swap"


def test_a_pass_that_is_undone_by_the_pipeline_is_not_to_blame(module):
    steps = [PipelineStep("fails", record(asking(0, raises=True))), PipelineStep("silent", record(silent))]

    found = fxplug.bisect(module, X, pipeline=Pipeline("test", steps, on_error="rollback"))

    assert found.culprit.name == "silent"


# -- the folder ------------------------------------------------------------------------------------------------------


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3)
        self.norm = nn.BatchNorm2d(4)
        self.norm.running_mean += torch.tensor([0.3, 1.7, -2.1, 0.9])
        self.norm.running_var *= 1.37

    def forward(self, x):
        return self.norm(self.conv(x)).relu()


IMAGE = torch.linspace(-3, 2, 3 * 8 * 8).reshape(1, 3, 8, 8)


def script(folder):
    environment = {
        **os.environ,
        "FXPLUG_LOAD_PLUGINS": "",
        "FXPLUG_CONFIG": "",
        "PYTHONWARNINGS": "ignore:Failed to initialize NumPy:UserWarning",  # What torch says where there is none.
    }
    return subprocess.run(
        [sys.executable, str(folder / "reproduce.py")],
        cwd=folder.parent,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )


def test_the_folder_shows_the_failure_in_a_fresh_process(manager, tmp_path):
    torch.manual_seed(0)
    found = fxplug.bisect(Net().eval(), (IMAGE,), rtol=0, atol=0, manager=manager)

    assert found.write(tmp_path / "failure", manager=manager) == ()

    report = json.loads((tmp_path / "failure" / "report.json").read_text())
    assert report["culprit"]["name"] == "fuse-conv-bn"
    assert report["rewrite"] | {"line": ""} == {
        "what": "fold", "node": "norm", "line": "", "position": 0, "total": 1, "is_bad_alone": True
    }  # fmt: skip
    assert report["environment"]["torch"] == torch.__version__
    config = json.loads((tmp_path / "failure" / "config.json").read_text())
    assert [entry["name"] for entry in config["passes"]] == [
        "dead-code",
        "remove-identities",
        "fuse-conv-bn",
        "onednn-fuse",
        "propagate-shapes",
    ]
    completed = script(tmp_path / "failure")
    assert (completed.returncode, completed.stderr) == (1, "")
    assert completed.stdout.startswith("differs: output (float32[1, 4, 6, 6]): ")
    assert "installed" not in completed.stdout

    before = fxplug.load(tmp_path / "failure" / "before.fxplug")
    after = fxplug.load(tmp_path / "failure" / "after.fxplug")
    (inputs,) = fxplug.load(tmp_path / "failure" / "inputs.fxplug")()
    assert torch.equal(inputs, IMAGE)
    assert hasattr(before, "norm")
    assert not hasattr(after, "norm")
    assert "fuse-conv-bn" in (tmp_path / "failure" / "after.py").read_text()
    assert "fuse-conv-bn" in (tmp_path / "failure" / "README.md").read_text()


class Drops(Net):
    def forward(self, x):
        return nn.functional.dropout(self.norm(self.conv(x)), 0.5, True)


def test_random_numbers_are_the_same_in_a_fresh_process(manager, tmp_path):
    torch.manual_seed(1)
    found = fxplug.bisect(Drops().eval(), (IMAGE,), rtol=0, atol=0, manager=manager)
    found.write(tmp_path / "failure", manager=manager)
    path = tmp_path / "failure" / "report.json"
    report = json.loads(path.read_text())
    assert found.culprit.name == "fuse-conv-bn"
    report["reproduction"]["tolerance"] = {"rtol": 1e-3, "atol": 1e-3}
    path.write_text(json.dumps(report))

    completed = script(tmp_path / "failure")

    assert (completed.returncode, completed.stdout, completed.stderr) == (0, "good\n", "")


def test_what_the_pipeline_demands_is_demanded_again(module, manager_with, tmp_path):
    def cut(module, context):
        """Keep the values, and lose the gradient."""
        (node,) = module.graph.find_nodes(op="call_module", target="linear")
        with module.graph.inserting_after(node):
            new = module.graph.call_method("detach", (node,))
        node.replace_all_uses_with(new, delete_user_cb=lambda user: user is not new)

    offered = record(cut)
    manager = manager_with(fxplug_register_passes=lambda: [offered])
    pipeline = manager.resolve_pipeline(["sample:cut"]).verified("gradient")
    found = fxplug.bisect(module, X, pipeline=pipeline, manager=manager)
    found.write(tmp_path / "failure", manager=manager)

    assert found.judgement.kind == "fails"
    assert reproduce(tmp_path / "failure", manager=manager).kind == "fails"


def test_where_a_function_judges_the_folder_says_that_it_does_not(module, manager, tmp_path):
    found = fxplug.bisect(
        module, X, passes=[record(asking(2))], check=lambda it: it(X).min() < 0.3, manager=manager
    )

    text = "What judged was a function, which is no data: reproduce.py compares values, as if there had been none."
    assert text in found.write(tmp_path / "failure", manager=manager)
    assert text.rstrip(".") in (tmp_path / "failure" / "README.md").read_text()


def test_nothing_in_the_folder_is_imported(manager, tmp_path):
    found = fxplug.bisect(Net().eval(), (IMAGE,), rtol=0, atol=0, manager=manager)
    found.write(tmp_path / "failure", manager=manager)
    for name in ("pathlib", "json", "torch", "fxplug"):
        (tmp_path / "failure" / f"{name}.py").write_text("raise SystemExit(7)")

    completed = script(tmp_path / "failure")

    assert (completed.returncode, completed.stderr) == (1, "")
    assert completed.stdout.startswith("differs: ")


def test_where_the_script_has_nothing_to_run_it_says_so(module, manager, tmp_path):
    found = fxplug.bisect(module, X, passes=[record(asking(2, raises=True))], manager=manager)

    (text,) = found.write(tmp_path / "failure", manager=manager)

    assert text.startswith("Pass 'swap' raises an error, and cannot be made again from what is stored")
    completed = script(tmp_path / "failure")
    assert (completed.returncode, completed.stdout) == (2, "")
    assert completed.stderr.startswith("Cannot reproduce the failure in ")


def test_reports_hold_what_is_no_plain_data(module, manager, tmp_path):
    found = fxplug.bisect(
        module, X, passes=[record(asking(2, what=("swap", 3)))], atol=torch.tensor(1e-3), manager=manager
    )
    found.write(tmp_path / "failure", manager=manager)

    report = json.loads((tmp_path / "failure" / "report.json").read_text())
    assert report["rewrite"]["what"] == "('swap', 3)"
    assert report["reproduction"]["tolerance"]["atol"] == pytest.approx(1e-3)
    assert reproduce(tmp_path / "failure", manager=manager).kind == "differs"


def test_a_pass_with_a_hard_limit_is_shown_in_a_fresh_process(manager, tmp_path):
    pipeline = manager.resolve_pipeline(["fuse-conv-bn"])
    limited = Pipeline("limited", pipeline.steps, hard_time_limit=120)
    found = fxplug.bisect(Net().eval(), (IMAGE,), pipeline=limited, rtol=0, atol=0, manager=manager)
    found.write(tmp_path / "failure", manager=manager)

    completed = script(tmp_path / "failure")

    assert (completed.returncode, completed.stderr) == (1, "")
    assert completed.stdout.startswith("differs: ")
    assert completed.stdout.count("\n") == 1


@pytest.mark.parametrize(
    ("name", "program", "message"),
    [
        ("inputs", lambda: 5, "inputs.fxplug holds no sequence"),
        ("inputs", lambda x: x, "it holds no values"),
        ("inputs", lambda: (1, 2), "before.fxplug fails on inputs.fxplug"),
        ("expected", lambda x: x, "it holds no values"),
    ],
    ids=["no sequence", "no values", "other inputs", "no result"],
)
def test_files_that_were_exchanged_are_refused(manager, tmp_path, name, program, message):
    found = fxplug.bisect(Net().eval(), (IMAGE,), rtol=0, atol=0, manager=manager)
    found.write(tmp_path / "failure", manager=manager)
    fxplug.save(fxplug.symbolic_trace(program), tmp_path / "failure" / f"{name}.fxplug")

    with pytest.raises(StorageError, match=message):
        reproduce(tmp_path / "failure", manager=manager)


def test_where_the_failure_is_mended_the_folder_says_so(manager, tmp_path):
    found = fxplug.bisect(Net().eval(), (IMAGE,), rtol=0, atol=0, manager=manager)
    found.write(tmp_path / "failure", manager=manager)
    path = tmp_path / "failure" / "report.json"
    report = json.loads(path.read_text())
    report["reproduction"]["tolerance"] = {"rtol": None, "atol": None}
    path.write_text(json.dumps(report))

    completed = script(tmp_path / "failure")

    assert (completed.returncode, completed.stdout, completed.stderr) == (0, "good\n", "")


def test_a_pass_that_is_not_installed_is_shown_by_the_stored_modules(module, manager, tmp_path):
    found = fxplug.bisect(module, X, passes=[record(asking(2))], manager=manager)
    found.write(tmp_path / "failure", manager=manager)

    judgement = reproduce(tmp_path / "failure", manager=manager)

    assert judgement.kind == "differs"
    assert judgement.text.endswith("(pass 'swap' is offered by no plugin: from the stored modules)")
    assert script(tmp_path / "failure").returncode == 1


def test_the_rewrite_alone_is_run_again(module, manager_with, tmp_path):
    swap = record(asking(2))
    manager = manager_with(fxplug_register_passes=lambda: [swap])
    found = fxplug.bisect(module, X, passes=["sample:swap"], manager=manager)
    found.write(tmp_path / "failure", manager=manager)

    judgement = reproduce(tmp_path / "failure", manager=manager)

    after = fxplug.load(tmp_path / "failure" / "after.fxplug")
    assert (judgement.kind, found.rewrite.is_bad_alone) == ("differs", True)
    assert "stored modules" not in judgement.text
    assert len(after.graph.find_nodes(op="call_function", target=torch.clamp)) == 1
    mended = manager_with(fxplug_register_passes=lambda: [record(asking(), "swap")])
    assert reproduce(tmp_path / "failure", manager=mended).is_good


def test_names_never_become_code(tmp_path, manager):
    evil = '"""; import os; os.abort() #`|<b>'

    def program(x):
        return torch.relu(x) + 1

    module = fxplug.symbolic_trace(program)
    found = fxplug.bisect(module, X, passes=[record(_tanh, evil)], manager=manager)
    found.write(tmp_path / "failure", manager=manager)

    other = fxplug.bisect(module, X, passes=[record(_tanh, "plain")], manager=manager)
    other.write(tmp_path / "other", manager=manager)
    assert (tmp_path / "failure/reproduce.py").read_text() == (tmp_path / "other/reproduce.py").read_text()
    assert "<b>" not in (tmp_path / "failure/README.md").read_text()
    assert reproduce(tmp_path / "failure", manager=manager).kind == "differs"


def _tanh(module, context):
    module.graph.find_nodes(op="call_function", target=torch.relu)[0].target = torch.tanh


def test_inputs_of_any_structure_come_back(manager, tmp_path):
    def program(pair, options):
        return torch.relu(pair[0] + pair[1]) * options["scale"]

    module = fxplug.symbolic_trace(program)
    found = fxplug.bisect(
        module, ((X, X), {"scale": 2.0, "n": None}), passes=[record(_tanh)], manager=manager
    )
    found.write(tmp_path / "failure", manager=manager)

    pair, options = fxplug.load(tmp_path / "failure" / "inputs.fxplug")()
    assert options == {"scale": 2.0, "n": None}
    assert pair[0] is pair[1]
    assert torch.equal(pair[0], X)
    assert reproduce(tmp_path / "failure", manager=manager).kind == "differs"


def test_what_a_file_cannot_hold_leaves_no_folder(module, manager, tmp_path):
    class Own(nn.Module):
        def forward(self, x):
            return x + 1

    class Holder(Chain):
        def __init__(self):
            super().__init__()
            self.own = Own()

        def forward(self, x):
            return super().forward(x)

    traced = fxplug.symbolic_trace(Holder())
    traced.add_submodule("own", Own())
    (value,) = traced.graph.output_node().all_input_nodes
    with traced.graph.inserting_before(traced.graph.output_node()):
        traced.graph.output_node().args = (traced.graph.call_module("own", (value,)),)
    found = fxplug.bisect(traced, X, passes=[record(silent)], manager=manager)

    with pytest.raises(StorageError, match="Own"):
        found.write(tmp_path / "failure", manager=manager)
    assert list(tmp_path.iterdir()) == []


def test_where_an_earlier_pass_made_what_a_file_cannot_hold_the_start_is_stored(
    module, manager_with, tmp_path
):
    class Own(nn.Module):
        def forward(self, x):
            return x

    def add_own(module, context):
        module.add_submodule("own", Own())
        with module.graph.inserting_before(module.graph.output_node()):
            value = module.graph.call_module("own", tuple(module.graph.output_node().args))
        module.graph.output_node().args = (value,)

    passes = [record(add_own), record(silent)]
    manager = manager_with(fxplug_register_passes=lambda: passes)
    found = fxplug.bisect(module, X, passes=["add-own", "silent"], manager=manager)

    left_out = found.write(tmp_path / "failure", manager=manager)

    assert found.culprit.name == "sample:silent"
    assert left_out[0].startswith("The module before pass 'sample:silent' is not stored: ")
    assert left_out[1].startswith("after.fxplug is not there: ")
    assert not hasattr(fxplug.load(tmp_path / "failure" / "before.fxplug"), "own")
    assert reproduce(tmp_path / "failure", manager=manager).kind == "differs"
    with pytest.raises(
        StorageError, match="'sample:add-own' of fxplug-sample 0 is not installed, and the module after"
    ):
        reproduce(tmp_path / "failure", manager=manager_with())


def test_a_difference_that_grows_on_the_way_is_found_where_it_arises():
    def program(x):
        x = torch.relu(x)
        x = x * 1000
        return x - 3

    def shift(module, context):
        node = module.graph.find_nodes(op="call_function", target=torch.relu)[0]
        if context.allows(node, "shift"):
            with module.graph.inserting_before(node):
                new = module.graph.call_function(torch.clamp, node.args, {"min": 1e-5})
            node.replace_all_uses_with(new)
            module.graph.erase_node(node)

    found = fxplug.bisect(fxplug.symbolic_trace(program), X, passes=[record(shift)])

    assert (found.rewrite.node, found.node.name) == ("relu", "clamp")
    assert "grows on the way: it is too large from node 'mul' on" in found.notes[0]


def test_a_check_that_runs_the_module_leaves_no_mark(manager):
    model = nn.Sequential(nn.BatchNorm1d(4), nn.ReLU())
    counts = []

    def check(module):
        counts.append(int(module.get_submodule("0").num_batches_tracked))
        module(X)
        return module.get_submodule("0").training

    def evaluate(module, context):
        module.eval()

    found = fxplug.bisect(model, X, passes=[record(nothing), record(evaluate)], check=check)

    assert found.culprit.name == "evaluate"
    assert set(counts) == {0}


def test_a_folder_of_somebody_else_is_not_replaced(module, manager, tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    found = fxplug.bisect(module, X, passes=[record(silent)], manager=manager)

    with pytest.raises(StorageError, match=r"holds what fxplug did not write there \(notes.txt\)"):
        found.write(tmp_path, manager=manager)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        '{"format": "fxplug-bisect", "version": 1, "reproduction": {}}',
        '{"format": "fxplug-bisect", "version": 1, "reproduction": {"tolerance": {"rtol": -1}}}',
        '{"format": "fxplug-bisect", "version": 1, "reproduction": {"tolerance": {"share": null}}}',
        "[" * 200_000,
    ],
    ids=["empty", "list", "dict", "nothing to do", "tolerance", "share", "nested"],
)
def test_a_damaged_folder_is_refused(tmp_path, manager, text):
    (tmp_path / "report.json").write_text(text)

    with pytest.raises(StorageError, match=r"its report.json is damaged"):
        reproduce(tmp_path, manager=manager)


def test_a_folder_that_is_not_there_is_refused(tmp_path, manager):
    with pytest.raises(StorageError, match="No such file or directory"):
        reproduce(tmp_path / "nothing", manager=manager)


# -- what cannot be bisected -----------------------------------------------------------------------------------------


def test_an_unknown_pass_is_named(module, manager):
    with pytest.raises(
        UnknownNameError, match=r"There is no pass named 'dead-cod'. Did you mean 'dead-code'\?"
    ):
        fxplug.bisect(module, X, passes=["dead-cod"], manager=manager)


def test_an_unknown_pipeline_is_named(module, manager):
    with pytest.raises(UnknownNameError, match="There is no pipeline named 'inferense'"):
        fxplug.bisect(module, X, pipeline="inferense", manager=manager)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"pipeline": "inference", "passes": []}, "Cannot choose between a pipeline and passes"),
        ({"passes": "dead-code"}, "Cannot use a single pass as passes: give a list"),
        ({"slower_than": 2.0, "check": bool}, "give one of the two"),
        ({"slower_than": 0.0}, "give a positive ratio"),
        ({"check": lambda module: False}, "before any pass has run, the check says no"),
        ({"slower_than": 2.0, "measure": lambda *_: 9.0}, "takes 9.00 times as long"),
    ],
)
def test_arguments_that_make_no_sense_are_refused(module, arguments, message):
    with pytest.raises(ConfigError, match=message):
        fxplug.bisect(module, X, **arguments)


def test_missing_inputs_are_refused(module):
    with pytest.raises(ConfigError, match="Cannot use a NoneType as example inputs"):
        fxplug.bisect(module, None)


def test_something_else_than_a_module_is_refused():
    with pytest.raises(ConfigError, match=r"give a torch\.nn\.Module, not a function"):
        fxplug.bisect(torch_function, X)


def torch_function(x):
    return x


def test_a_module_that_fails_by_itself_is_no_matter_of_passes(module):
    with pytest.raises(ValueError, match="Cannot run Chain on the example inputs"):
        fxplug.bisect(module, torch.ones(2, 3))


def test_a_capture_that_is_wrong_is_no_matter_of_passes(count_calls):
    class Lying(nn.Module):
        def forward(self, x):
            return x + count_calls()

    with pytest.raises(TraceError, match="what was captured is wrong before any pass has run: output"):
        fxplug.bisect(Lying(), X)


def test_without_passes_nothing_is_found(module):
    assert not fxplug.bisect(module, X, passes=[]).found
