"""Every program in every mode: it does what eager does, or is refused with the code that stands beside it."""

from __future__ import annotations

import functools
import importlib.util
import warnings
from collections import Counter
from pathlib import Path

import pytest

from capture_corpus.comparison import Verdict, call, judge, seed_everything, steps_of
from capture_corpus.corpus import EQUAL, MODES, REPORTED, all_programs
from capture_corpus.engines import ENGINES
from capture_corpus.isolation import judge_elsewhere
from capture_corpus.known_wrong import KNOWN_WRONG
from capture_corpus.rows import NO_PROGRAMS, ROWS

PROGRAMS = all_programs()
AVAILABLE = [mode for mode in MODES if mode in ENGINES]
CHECKOUT = Path(__file__).resolve().parents[2]


WITHOUT_A_LINE = {"FXP-T010", "FXP-T012", "FXP-T032", "FXP-T053", "FXP-T065", "FXP-T069", "FXP-V002"}
"""Codes of refusals that concern a module, an input or the run as a whole."""

RIGHT = {"equal", "reported", "refused"}
"""Kinds of verdicts that are no other answer than eager's."""


def is_installed(package):
    return not package or importlib.util.find_spec(package) is not None


def case(program, mode):
    reason = KNOWN_WRONG[mode].get(program.name, "")
    marks = [
        pytest.mark.skipif(not is_installed(program.needs), reason=f"needs {program.needs}"),
        *([pytest.mark.xfail(strict=True, reason=reason)] if reason else []),
    ]
    return pytest.param(program, mode, id=f"{mode}-{program.name}", marks=marks)


@functools.cache
def verdicts_of_isolated(mode):
    chosen = [program for program in PROGRAMS.values() if program.isolated and is_installed(program.needs)]
    return judge_elsewhere(mode, [program.name for program in chosen])


def verdict_of(program, mode) -> Verdict:
    return verdict_by_name(program.name, mode)


@functools.cache
def verdict_by_name(name, mode) -> Verdict:
    """Return the verdict on a program. It is judged once, whatever tests ask about it."""
    program = PROGRAMS[name]
    return verdicts_of_isolated(mode)[name] if program.isolated else judge(program, ENGINES[mode])


def verdicts_of_legal(mode) -> dict[str, Verdict]:
    """Return the verdicts on all programs that eager runs, and that can run here."""
    legal = [program for program in PROGRAMS.values() if not program.illegal and is_installed(program.needs)]
    return {program.name: verdict_of(program, mode) for program in legal}


def shows_the_program(verdict, program):
    """Return whether a refusal shows the line of the program, or names the program if it is about its result."""
    own = getattr(program.fresh(), "__code__", None)  # One of torch's own functions has its line in torch.
    names = [f"{program.theme}.py", f"what {program.name!r} returns", *([own.co_filename] if own else [])]
    return any(name in verdict.message for name in names)


@pytest.mark.parametrize(
    ("program", "mode"),
    [case(program, mode) for mode in AVAILABLE for program in PROGRAMS.values()],
)
def test_captured_program_does_what_eager_does_or_is_refused_as_expected(program, mode):
    verdict, expected = verdict_of(program, mode), program.expected(mode)

    if expected in {EQUAL, REPORTED}:
        assert verdict.kind == ("reported" if expected else "equal"), verdict
    else:
        assert (verdict.kind, verdict.code) == ("refused", expected), verdict
        assert expected in WITHOUT_A_LINE or shows_the_program(verdict, program), verdict.message
    assert not verdict.residue, verdict


@pytest.mark.parametrize(
    ("program", "mode"),
    [
        case(program, mode)
        for mode in AVAILABLE
        for program in PROGRAMS.values()
        if program.without_dead_code and program.expected(mode) == EQUAL
    ],
)
def test_nothing_that_matters_is_dead_code(program, mode):
    verdict = judge(program, ENGINES[mode], after=lambda captured: captured.graph.eliminate_dead_code())

    assert verdict.kind == "equal", verdict


# -- the corpus itself


def test_the_corpus_has_at_least_180_programs():
    assert len(PROGRAMS) >= 180


def test_every_row_has_a_program_or_a_reason_why_not():
    with_programs = {row for program in PROGRAMS.values() for row in program.rows}

    assert with_programs | set(NO_PROGRAMS) == set(ROWS)
    assert not with_programs & set(NO_PROGRAMS)


def test_rows_without_programs_are_tested_elsewhere():
    for reason, place in NO_PROGRAMS.values():
        path, _, name = place.partition("::")
        assert reason
        assert f"def {name}(" in (CHECKOUT / path).read_text("utf-8")


@pytest.mark.parametrize("program", [pytest.param(value, id=name) for name, value in PROGRAMS.items()])
def test_eager_accepts_what_is_not_marked_as_illegal(program):
    if not is_installed(program.needs):
        pytest.skip(f"needs {program.needs}")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        root, inputs = program.fresh(), steps_of(program)[0].inputs()
        seed_everything(1)
        outcome = call(root, *inputs, {})

    assert (outcome.error is not None) == program.illegal, outcome.error


@pytest.mark.parametrize("mode", ["shape", "value"])
def test_with_examples_no_program_is_answered_wrongly_or_fails_when_it_is_called(mode):
    verdicts = verdicts_of_legal(mode)

    assert {name for name, verdict in verdicts.items() if verdict.kind not in RIGHT} == set()


def test_value_mode_captures_at_least_95_percent_of_what_eager_runs():
    kinds = Counter(
        verdict.kind for name, verdict in verdicts_of_legal("value").items() if not PROGRAMS[name].outside
    )

    # A reported program is equal but for an attribute of Python that the captured module does not assign, and a
    # TraceWarning names it. The documentation has both figures.
    assert kinds["equal"] + kinds["reported"] >= 0.95 * kinds.total(), kinds


@pytest.mark.parametrize("mode", AVAILABLE)
def test_state_outside_of_modules_is_never_silently_a_constant(mode):
    outside = [program for program in PROGRAMS.values() if program.outside]
    verdicts = {program.name: verdict_of(program, mode) for program in outside}

    assert len(outside) >= 30
    assert {
        name for name, verdict in verdicts.items() if verdict.kind not in RIGHT or verdict.residue
    } == set()


def test_the_documentation_counts_the_programs():
    page = (CHECKOUT / "docs" / "capture" / "corpus.md").read_text("utf-8")
    illegal = sum(program.illegal for program in PROGRAMS.values())

    assert f"\n{len(PROGRAMS)} programs; eager runs {len(PROGRAMS) - illegal} of them" in page


def test_marks_name_programs():
    assert set(KNOWN_WRONG) == set(MODES)
    assert {name for marks in KNOWN_WRONG.values() for name in marks} <= set(PROGRAMS)
