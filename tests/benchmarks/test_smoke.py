"""The harness of the benchmarks, and that each of them runs. What they measure is never asserted."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

CHECKOUT = Path(__file__).resolve().parents[2]


@pytest.fixture(autouse=True, scope="module")
def benchmarks_can_be_imported() -> Iterator[None]:
    # At the end of the path: where fxplug is installed, the installed one is used.
    sys.path.append(str(CHECKOUT))
    yield
    sys.path.remove(str(CHECKOUT))


class Clock:
    """Goes forward only when a contender says so."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def test_contenders_take_turns_and_every_other_round_runs_backwards():
    from benchmarks.timing import interleave

    calls: list[str] = []
    interleave({"a": lambda: calls.append("a"), "b": lambda: calls.append("b")}, rounds=3)

    assert "".join(calls) == "abbaabba"


def test_the_first_round_does_not_count():
    from benchmarks.timing import interleave

    clock = Clock()
    costs = iter([100.0, 2.0, 3.0])

    def work() -> None:
        clock.now += next(costs)

    assert interleave({"work": work}, rounds=2, clock=clock) == {"work": [2.0, 3.0]}


def test_freeing_a_result_is_not_part_of_the_sample():
    from benchmarks.timing import interleave

    clock = Clock()

    class SlowToFree:
        def __del__(self) -> None:
            clock.now += 50.0

    assert interleave({"work": SlowToFree}, rounds=2, clock=clock) == {"work": [0.0, 0.0]}


def test_ratios_are_formed_inside_each_round():
    from benchmarks.timing import Ratio, paired_ratio

    # The machine was ten times slower in the last round, for both.
    assert paired_ratio([2.0, 4.0, 40.0], [1.0, 1.0, 10.0]) == Ratio(median=4.0, low=3.0, high=4.0)


def test_one_round_has_a_ratio_without_scatter():
    from benchmarks.timing import Ratio, paired_ratio

    assert paired_ratio([6.0], [2.0]) == Ratio(3.0, 3.0, 3.0)


def make_report():
    from benchmarks.report import Bound, Figure, Report, compare_samples

    comparisons = [
        compare_samples("trace", "ms", [0.004, 0.008], [0.002, 0.002], 1e3, Bound("at least 3", least=3)),
        compare_samples("copy", "ms", [0.004, 0.004], [0.002, 0.002], 1e3, Bound("at least 3", least=3)),
    ]
    figures = [Figure("floor", "ms", 1234.5), Figure("host", "%", 2.5, Bound("at most 3", most=3))]
    return Report("smoke", {"torch": "2.13", "cpu_count": 2}, comparisons, figures)


def test_the_report_is_a_table_whose_columns_line_up():
    assert make_report().as_markdown() == (
        "# Benchmarks, smoke\n"
        "\n"
        "torch 2.13, cpu count 2\n"
        "\n"
        "| work  | unit | torch.fx | fxplug | torch.fx / fxplug |    quartiles |      bound | holds |\n"
        "| ----- | ---- | -------: | -----: | ----------------: | -----------: | ---------: | ----: |\n"
        "| trace | ms   |     6.00 |   2.00 |              3.00 | 2.50 to 3.50 | at least 3 |   yes |\n"
        "| copy  | ms   |     4.00 |   2.00 |              2.00 | 2.00 to 2.00 | at least 3 |    NO |\n"
        "\n"
        "| floors and costs of its own | unit | value |     bound | holds |\n"
        "| --------------------------- | ---- | ----: | --------: | ----: |\n"
        "| floor                       | ms   |  1234 |           |       |\n"
        "| host                        | %    |  2.50 | at most 3 |   yes |\n"
    )


def test_a_bound_says_whether_a_value_keeps_it():
    from benchmarks.report import Bound

    assert [Bound("at least 3", least=3).holds(value) for value in (2.9, 3, 3.1)] == [False, True, True]
    assert [Bound("at most 3", most=3).holds(value) for value in (2.9, 3, 3.1)] == [True, True, False]


def test_results_are_written_in_both_forms_and_name_no_machine(tmp_path):
    from benchmarks.report import describe_surroundings

    report = make_report()
    report.surroundings = describe_surroundings()
    written = report.write(tmp_path / "results")

    assert [path.name for path in written] == ["smoke.json", "smoke.md"]
    content = json.loads(written[0].read_text(encoding="utf-8"))
    assert content["ratios"] == {"trace": 3.0, "copy": 2.0}
    assert [row["holds"] for row in content["comparisons"]] == [True, False]
    assert [row["holds"] for row in content["figures"]] == [None, True]
    assert set(content) == {
        *("mode", "date", "fxplug", "torch", "python", "cpu_count"),
        *("ratios", "comparisons", "figures"),
    }
    assert written[1].read_text(encoding="utf-8") == report.as_markdown()


def test_what_a_contender_needs_is_made_anew_and_not_timed():
    from benchmarks.timing import Fresh, interleave

    now, seen = [0.0], []

    def prepare() -> list[int]:
        now[0] += 100
        return []

    def work(given: list[int]) -> None:
        seen.append(len(given))
        given.append(1)
        now[0] += 2

    assert interleave({"work": Fresh(prepare, work)}, rounds=2, clock=lambda: now[0]) == {"work": [2.0, 2.0]}
    assert seen == [0, 0, 0]


def test_what_a_graph_weighs_is_what_it_keeps_alive():
    from benchmarks.memory import retained_bytes

    def build() -> bytes:
        _ = bytes(1_000_000)
        return bytes(10_000)

    assert 10_000 <= retained_bytes(build) < 20_000


def test_long_functions_make_as_many_calls_as_they_say():
    import fxplug
    from benchmarks.programs import long_function

    graph = fxplug.Tracer().trace(long_function(40))

    assert len([node for node in graph.nodes if node.op.startswith("call_")]) == 40


def test_longer_functions_get_fewer_rounds_but_at_least_three():
    from benchmarks.modes import FULL

    rounds = [FULL.rounds_for(count) for count in FULL.lengths]

    assert rounds == sorted(rounds, reverse=True)
    assert rounds[0] == FULL.rounds
    assert rounds[-1] >= 3


def test_every_comparison_runs(monkeypatch):
    from benchmarks.codegen import compare_codegen, compare_compile_floor
    from benchmarks.copying import compare_deepcopy
    from benchmarks.hooks import measure_hooks
    from benchmarks.interpretation import measure_interpreters
    from benchmarks.memory import compare_memory
    from benchmarks.modes import Mode
    from benchmarks.rewriting import compare_rewriting, measure_rewriting
    from benchmarks.scaling import measure_scaling
    from benchmarks.splitting import compare_splitting, measure_splitting
    from benchmarks.trace import compare_long_functions, compare_resnet50, measure_plugin_host

    monkeypatch.setenv("FXPLUG_LOAD_PLUGINS", "")
    tiny = Mode(
        "tiny",
        rounds=1,
        lengths=(40,),
        memory_length=40,
        import_rounds=1,
        huge_length=2_000,
        huge_rounds=1,
        rewritten_matches=8,
        judged=True,
    )
    interpreters, eager = measure_interpreters(tiny)
    comparisons = [
        *compare_resnet50(tiny),
        *compare_compile_floor(tiny),
        *compare_long_functions(tiny),
        *compare_codegen(tiny),
        *compare_deepcopy(tiny),
        *compare_rewriting(tiny),
        *compare_splitting(tiny),
        *compare_memory(tiny),
        *interpreters,
    ]

    assert len({comparison.name for comparison in comparisons}) == len(comparisons)
    figures = [
        *eager,
        *measure_scaling(tiny),
        *measure_rewriting(tiny),
        *measure_splitting(tiny),
        *measure_plugin_host(tiny),
        *measure_hooks(tiny),
    ]
    assert all(figure.unit for figure in figures)
    assert sorted(row.bound.text for row in (*comparisons, *figures) if row.bound is not None) == [
        "at least 100",
        "at least 3",
        "at least 3",
        "at least 3",
        "at least 4",
        "at least 5",
        "at least 5",
        "at most 1.03",
        "at most 1.03",
        "at most 1.3",
        "at most 1.3",
        "at most 1.3",
        "at most 1.3",
        "at most 1500",
        "at most 3",
        "at most 60 % of torch.fx",
    ]
    values = {figure.name: figure.value for figure in figures}
    before = values["peak memory of that process before, with PyTorch imported"]
    peak = values["trace alone, function of 2k nodes: peak memory of the process, PyTorch included"]
    assert 50 < before <= peak < before + 100


def test_only_the_full_run_is_judged():
    from benchmarks.modes import FULL, SMOKE
    from benchmarks.report import promised

    assert promised(SMOKE, "at least 2", least=2) is None
    assert promised(FULL, "at least 2", least=2).holds(2)


def test_the_ways_to_run_a_network_are_timed_and_compared(monkeypatch):
    from torch import nn

    from benchmarks import inference

    def network() -> nn.Module:
        return nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU())

    def missing(*_: object) -> None:
        raise inference.NotAvailableError("it is not installed")

    monkeypatch.setattr(inference, "MODELS", {"resnet50": (network, (3, 8, 8))})
    monkeypatch.setitem(inference.WAYS, "ONNX Runtime", ("onnx", missing))
    rows = inference.measure("resnet50", 1, 2, rounds=2, left_out=["compile"])
    text = inference.as_markdown(rows, rounds=2)

    assert [row.way for row in rows] == list(inference.WAYS)
    assert [row.milliseconds is not None for row in rows] == [True] * 4 + [False] * 3
    assert [row.bound for row in rows[:4]] == [
        "",
        "at least 1",
        "at least 1.3",
        "no faster than the pipeline",
    ]
    assert all(row.error is not None and row.error < 1e-5 for row in rows[:4])
    assert {row.holds for row in rows[1:4]} <= {True, False}
    assert text.endswith(
        "\n\ntorch.compile: left out\ntorch.compile, frozen: left out\n"
        "ONNX Runtime: not available: it is not installed\n"
    )
