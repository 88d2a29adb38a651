"""The order of passes."""

from __future__ import annotations

import itertools

import pytest

from fxplug.errors import PassOrderError
from fxplug.passes import BUILTIN_PASSES, BUILTIN_PIPELINES, PHASES, PassRecord, order_passes


def entry(name, phase="optimize", *, before=(), after=()):
    record = PassRecord(
        name.rpartition(":")[2], lambda: None, "Does nothing.", phase=phase, before=before, after=after
    )
    return name, record


def ordered(*entries):
    return [entries[position][0] for position in order_passes(entries)]


def test_nothing_is_nothing():
    assert order_passes([]) == []


def test_listed_order_is_kept():
    for names in itertools.permutations("abcd"):
        assert ordered(*map(entry, names)) == list(names)


def test_phases_come_first():
    entries = [entry(phase, phase) for phase in PHASES]

    for shuffled in itertools.permutations(entries):
        assert ordered(*shuffled) == list(PHASES)


def test_listed_order_is_kept_within_a_phase():
    assert ordered(
        entry("a", "lower"), entry("b", "prepare"), entry("c", "lower"), entry("d", "prepare")
    ) == list("bdac")


def test_before():
    assert ordered(entry("a"), entry("b", before=("a",)), entry("c")) == ["b", "a", "c"]


def test_after():
    assert ordered(entry("a", after=("c",)), entry("b"), entry("c")) == ["b", "c", "a"]


def test_before_and_after_are_followed_through():
    entries = [entry("a", after=("b",)), entry("b", after=("c",)), entry("c", after=("d",)), entry("d")]

    for shuffled in itertools.permutations(entries):
        assert ordered(*shuffled) == ["d", "c", "b", "a"]


def test_declaration_is_stronger_than_the_phase():
    assert ordered(entry("early", "prepare", after=("late",)), entry("late", "finish")) == ["late", "early"]


def test_declaration_pulls_only_what_it_names():
    assert ordered(entry("x"), entry("early", "prepare", after=("late",)), entry("late", "finish")) == [
        "x",
        "late",
        "early",
    ]


def test_names_that_take_no_part_are_ignored():
    assert ordered(entry("a", before=("missing",), after=("other:missing",)), entry("b")) == ["a", "b"]


@pytest.mark.parametrize(
    ("wanted", "name"),
    [
        ("quant:int8", "quant:int8"),
        ("int8", "quant:int8"),
        ("int8", "int8"),
        ("core:int8", "int8"),
    ],
)
def test_full_and_short_names_are_understood(wanted, name):
    assert ordered(entry(name), entry("viz:draw", before=(wanted,))) == ["viz:draw", name]


@pytest.mark.parametrize(
    ("wanted", "name"), [("viz:int8", "quant:int8"), ("core:int8", "quant:int8"), ("int", "int8")]
)
def test_other_names_are_not_meant(wanted, name):
    assert ordered(entry(name), entry("draw", before=(wanted,))) == [name, "draw"]


def test_full_name_chooses_between_two_distributions():
    assert ordered(entry("quant:draw"), entry("viz:draw"), entry("b", before=("quant:draw",))) == [
        "viz:draw",
        "b",
        "quant:draw",
    ]


def test_pass_that_names_itself_is_no_cycle():
    assert ordered(entry("a", before=("a",), after=("a",))) == ["a"]


def test_same_pass_twice():
    assert order_passes([entry("a"), entry("b"), entry("a")]) == [0, 1, 2]
    assert ordered(entry("a", after=("b",)), entry("b"), entry("a", after=("b",))) == ["b", "a", "a"]


def test_clean_up_before_and_behind_is_possible():
    assert ordered(entry("clean"), entry("fuse", after=("clean",)), entry("clean")) == [
        "clean",
        "fuse",
        "clean",
    ]


@pytest.mark.parametrize(
    ("entries", "cycle"),
    [
        ([entry("a", before=("b",)), entry("b", before=("a",))], "a -> b -> a"),
        ([entry("a", after=("b",)), entry("b", after=("a",))], "a -> b -> a"),
        (
            [entry("x"), entry("c", before=("a",)), entry("a", before=("b",)), entry("b", before=("c",))],
            "c -> a -> b -> c",
        ),
        (
            [entry("quant:a", before=("b",)), entry("b", before=("quant:a",)), entry("z")],
            "quant:a -> b -> quant:a",
        ),
        (
            [entry("behind", after=("a",)), entry("a", before=("b",)), entry("b", before=("a",))],
            "a -> b -> a",
        ),
    ],
)
def test_cycle_is_printed(entries, cycle):
    with pytest.raises(PassOrderError) as caught:
        order_passes(entries)
    text = str(caught.value)
    assert text == (
        f"Cannot order the passes: their 'before' and 'after' form a cycle: {cycle}. Leave one of them out, or change "
        "the records that name each other. [FXP-P001]"
    )


def test_unknown_phase_is_named():
    with pytest.raises(PassOrderError, match=r"'a' has the phase 'sometime'. Use one of prepare"):
        order_passes([entry("a", "sometime")])


def test_result_does_not_depend_on_names():
    for first, second in itertools.permutations(["a", "quant:b", "z"], 2):
        assert ordered(entry(first), entry(second)) == [first, second]


def test_built_in_pipelines_are_in_order():
    records = {record.name: record for record in BUILTIN_PASSES}

    for names in BUILTIN_PIPELINES.values():
        assert ordered(*[(name, records[name]) for name in names]) == list(names)
