"""Lists and dicts that are handed to functions which stay calls: what the program reads from them afterwards."""

from __future__ import annotations

import importlib
from collections import OrderedDict
from heapq import heapify
from pathlib import Path

import pytest
import torch
from torch import nn

import fxplug
from fxplug.errors import GuardError, GuardWarning, TraceError
from fxplug.semantics.checks import check_unchanged, the_same

X = torch.tensor([1.0, 2.0])


@fxplug.wrap
def put_first(parts, x):
    parts[0] = x * 3
    return x + 1


@fxplug.wrap
def add_last(parts, x):
    parts.append(x * 3)
    return x + 1


@fxplug.wrap
def note(table, x, *, key="new"):
    table.update({key: x})
    return x * 2


@fxplug.wrap
def take_out(table, x):
    del table["old"]
    return x * 2


def helper(parts, x):
    parts.insert(0, x)


@fxplug.wrap
def put_by_another(parts, x):
    helper(parts, x)
    return x + 1


def other_helper(table, x):
    table["new"] = x


@fxplug.wrap
def change_by_another(table, x):
    other_helper(table, x)
    return x + 1


@fxplug.wrap
def add_to_set(names, x):
    names.add("new")
    return x + 1


@fxplug.wrap
def total(parts):
    return sum(parts)


@fxplug.wrap
def total_of_pairs(pairs):
    return sum(one + other for one, other in pairs.values())


def reads_what_was_put(x):
    parts = [x, x + 1]
    y = put_first(parts, x)
    return y + parts[0]


def counts_what_was_added(x):
    parts = [x]
    y = add_last(parts, x)
    return y * len(parts)


def returns_a_table(x):
    table = {"old": x}
    return note(table, x, key="k"), table


def names_the_table(x):
    table = {"old": x}
    y = take_out(x=x, table=table)
    return y, table


def reads_a_part(x):
    parts = [x, x + 1]
    table = {"parts": parts}
    y = add_last(table["parts"], x)
    return y + len(table["parts"])


def stands_on_the_stack(x):
    parts = [x, x + 1]
    return parts, put_first(parts, x)


def keeps_an_ordered_table(x):
    table = OrderedDict(old=x)
    y = change_by_another(table, x)
    return y, table


class OfTheModule(nn.Module):
    def __init__(self):
        super().__init__()
        self.seen = {}

    def forward(self, x):
        return note(self.seen, x)


CHANGING = [
    reads_what_was_put,
    counts_what_was_added,
    returns_a_table,
    names_the_table,
    reads_a_part,
    stands_on_the_stack,
    OfTheModule(),
]


@pytest.mark.parametrize("mode", ["symbolic", "shape", "value"])
@pytest.mark.parametrize("program", CHANGING, ids=lambda program: getattr(program, "__name__", "module"))
def test_a_kept_function_that_changes_what_the_program_reads_is_refused(program, mode):
    with pytest.raises(TraceError, match="and the program may read it again") as caught:
        fxplug.trace(program, None if mode == "symbolic" else (X,), mode=mode, check=False)

    assert caught.value.code == "FXP-T056"
    assert "test_handed_containers.py" in caught.value.message


def test_the_message_names_the_function_and_what_to_do():
    with pytest.raises(TraceError) as caught:
        fxplug.symbolic_trace(reads_what_was_put)

    line = reads_what_was_put.__code__.co_firstlineno + 2
    assert caught.value.message == (
        f"Cannot record the call of put_first at {__file__}:{line} in reads_what_was_put "
        "('y = put_first(parts, x)'): it changes the list that it is given, and the program may read it again. In the "
        "graph the call is one node, and what it does to a list or dict of the program is lost. Let it return what is "
        "new, hand it a copy, or let the trace look into it."
    )


def test_a_program_that_catches_the_refusal_is_refused():
    def program(x):
        parts = [x]
        try:
            y = add_last(parts, x)
        except ValueError:
            y = x
        return y + len(parts)

    for given in (None, (X,)):
        with pytest.raises(TraceError) as caught:
            fxplug.trace(program, given)
        assert caught.value.code == "FXP-T056"


def test_what_cannot_be_read_off_the_code_is_checked_when_the_program_runs():
    def program(x):
        parts = [x, x + 1]
        y = put_by_another(parts, x)
        return y + parts[0]

    captured = fxplug.symbolic_trace(program)
    with pytest.raises(
        GuardError, match=r"put_by_another leaving what it is given as it is at .*and now it holds"
    ):
        captured(X)
    with pytest.raises(GuardError):
        fxplug.Interpreter(captured).run(X)
    with pytest.raises(TraceError) as caught:
        fxplug.trace(program, (X,))
    assert caught.value.code == "FXP-T056"


def targets_with_function_in(folder):
    namespace = {"put_by_another": put_by_another}
    source = "def passes_on(parts, x):\n    return put_by_another(parts, x)\n"
    exec(compile(source, str(folder / "some_library.py"), "exec"), namespace)
    function = fxplug.wrap(namespace["passes_on"])

    def program(x):
        parts = [x, x + 1]
        return function(parts, x) + parts[0]

    graph = fxplug.symbolic_trace(program).graph
    return {getattr(node.target, "__name__", "") for node in graph.nodes}


def test_functions_of_installed_libraries_are_not_checked_by_the_graph():
    own = targets_with_function_in(Path.cwd())
    installed = targets_with_function_in(Path(torch.__file__).parents[1])

    assert {"passes_on", "the_same", "check_unchanged"} <= own
    assert "passes_on" in installed
    assert not {"the_same", "check_unchanged"} & installed


def test_dicts_of_other_classes_are_checked():
    captured = fxplug.symbolic_trace(keeps_an_ordered_table)

    with pytest.raises(GuardError, match="change_by_another leaving what it is given"):
        captured(X)


def test_a_set_that_is_changed_is_refused_on_examples():
    def program(x):
        names = {"old"}
        y = add_to_set(names, x)
        return y * len(names)

    with pytest.raises(TraceError) as caught:
        fxplug.trace(program, (X,))
    assert caught.value.code == "FXP-T056"


def test_what_hangs_on_values_is_checked_when_the_program_runs():
    @fxplug.wrap
    def put_if_large(parts, x):
        if x.sum() > 10:
            helper(parts, x)
        return x + 1

    def program(x):
        parts = [x, x + 1]
        y = put_if_large(parts, x)
        return y + parts[0]

    captured = fxplug.trace(program, (X,), on_guard_failure="warn")
    assert torch.equal(captured(X), program(X))
    with pytest.warns(GuardWarning, match="put_if_large leaving what it is given"):
        captured(X * 10)


def test_functions_that_are_not_written_in_python_are_checked():
    tracer = fxplug.Tracer(autowrap_functions=(heapify,))

    def program(x):
        parts = [2, 1, x]
        heapify(parts)
        return parts[0] * x

    graph = tracer.trace(program)

    assert [node.target for node in graph.find_nodes(op="call_function")][:3] == [
        the_same,
        heapify,
        check_unchanged,
    ]


def reads_again(x):
    parts = [x, x + 1]
    pairs = {"one": (x, parts[1])}
    return total(parts) + parts[0] + total_of_pairs(pairs) * pairs["one"][0]


@pytest.mark.parametrize("given", [None, (X,)], ids=["symbolic", "value"])
def test_a_function_that_changes_nothing_is_captured(given):
    captured = fxplug.trace(reads_again, given)

    assert torch.equal(captured(X + 1), reads_again(X + 1))
    assert torch.equal(fxplug.Interpreter(captured).run(X + 1), reads_again(X + 1))
    assert [guard.text.partition(" at ")[0] for guard in captured.guards] == [
        "total leaving what it is given as it is",
        "total_of_pairs leaving what it is given as it is",
    ]


def test_it_stays_so_when_it_is_captured_again_optimised_and_stored(tmp_path):
    captured = fxplug.symbolic_trace(reads_again)
    again = fxplug.symbolic_trace(captured)
    result = fxplug.optimize(captured, (X,), measure=False)
    names = [f"{__name__}:{function.__name__}" for function in (total, total_of_pairs)]
    fxplug.save(again, tmp_path / "again.fxplug", allow=names)

    for module in (again, result.module, fxplug.load(tmp_path / "again.fxplug", allow=names)):
        assert torch.equal(module(X), reads_again(X))
        assert len(module.guards) == 2


def test_exported_code_checks_it_too(tmp_path, monkeypatch):
    def program(x):
        parts = [x, x + 1]
        return put_by_another(parts, x) + parts[0]

    monkeypatch.syspath_prepend(tmp_path)
    for name, root in (("right_package", reads_again), ("wrong_package", program)):
        fxplug.export_python(fxplug.symbolic_trace(root), tmp_path / name)
    right, wrong = (importlib.import_module(name).load() for name in ("right_package", "wrong_package"))

    assert torch.equal(right(X), reads_again(X))
    with pytest.raises(ValueError, match="put_by_another leaving what it is given as it is"):
        wrong(X)


def assigned_anew(x):
    for _ in range(2):
        parts = [x, x + 1]
        x = add_last(parts, x)
    return x


def not_read_again(x):
    parts = [x, x + 1]
    return put_first(parts, x)


def inline(x):
    return add_last([x], x) + note({}, x)


def given_on(x):
    def inner(parts):
        return add_last(parts, x)

    return inner([x, x])


@pytest.mark.parametrize("program", [assigned_anew, not_read_again, inline, given_on])
@pytest.mark.parametrize("given", [None, (X,)], ids=["symbolic", "value"])
def test_what_nobody_reads_again_may_be_changed(program, given):
    captured = fxplug.trace(program, given)

    assert not captured.guards
    assert torch.equal(captured(X + 1), program(X + 1))


def test_functions_that_change_nothing_by_nature_are_not_checked():
    def program(x, y):
        sizes = [x.shape[0], y.shape[0]]
        return x * max(sizes) * len(sizes) + sizes[0]

    tracer = fxplug.Tracer(autowrap_functions=(max, len))
    graph = tracer.trace(program)

    assert not graph.find_nodes(op="call_function", target=check_unchanged)
