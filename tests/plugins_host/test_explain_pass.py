"""Who offers a pass, and why it runs where it runs."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import pytest

from fxplug.errors import UnknownNameError
from fxplug.passes import order_passes, order_reasons
from fxplug.plugins import PassRecord, explain_pass, hookimpl


@dataclass
class Options:
    bits: int = 8
    """How many."""


@hookimpl
def fxplug_register_passes():
    return [
        PassRecord(
            "joins",
            object,
            "Comes early.",
            before=("fuse-conv-bn",),
            after=("dead-code",),
            options=Options,
            preserves=frozenset({"shapes"}),
            pipelines=("inference",),
        ),
        PassRecord("late", object, "Comes late.", phase="finish"),
    ]


@pytest.fixture
def manager(manager_of):
    return lambda config=None: manager_of(
        {"quant": {"fxplug_register_passes": fxplug_register_passes}}, config=config
    )


def test_a_pass_is_described_by_its_record(manager):
    found = explain_pass("joins", manager())

    assert (found.name, found.short_name, found.summary) == ("quant:joins", "joins", "Comes early.")
    assert (found.plugin, found.distribution, found.version) == ("quant", "fxplug-quant", "1.0")
    assert (found.phase, found.before, found.after) == ("optimize", ("fuse-conv-bn",), ("dead-code",))
    assert found.preserves == ("shapes",)
    assert [(option.name, option.type, option.default) for option in found.options] == [("bits", "int", 8)]


def test_its_place_is_explained_by_what_puts_it_between_its_neighbours(manager):
    (place,) = explain_pass("joins", manager()).places

    assert (place.pipeline, place.position, place.total) == ("inference", 3, 6)
    assert place.listed_by == "joins by itself: its record in fxplug-quant 1.0 names the pipeline"
    assert (place.previous, place.after_previous) == (
        "remove-identities",
        ("'remove-identities' is listed earlier, and both are of phase 'optimize'",),
    )
    assert (place.following, place.before_following) == (
        "fuse-conv-bn",
        ("'quant:joins' declares before 'fuse-conv-bn'",),
    )


def test_phases_and_the_listed_order_are_reasons_too(manager, config_file, tmp_path):
    config = config_file(
        '[tool.fxplug.pipelines.fast]\npasses = [\n"late",\n"fuse-conv-bn",\n"dead-code",\n"dead-code"]\n'
    )
    places = explain_pass("dead-code", manager(config), "fast").places

    assert [(place.position, place.listed_by) for place in places] == [
        (2, f"listed at {tmp_path / 'pyproject.toml'}:5"),
        (3, f"listed at {tmp_path / 'pyproject.toml'}:6"),
    ]
    assert places[0].after_previous == ("'fuse-conv-bn' is listed earlier, and both are of phase 'optimize'",)
    assert places[1].before_following == ("phase 'optimize' comes before phase 'finish'",)
    assert explain_pass("late", manager(config), "inference").places == ()


def test_every_neighbour_in_an_order_has_a_reason_that_holds():
    entries = [
        ("a", PassRecord("a", object, "", phase="finish", before=("d",))),
        ("b", PassRecord("b", object, "", phase="lower")),
        ("c", PassRecord("c", object, "", after=("b",))),
        ("d", PassRecord("d", object, "", phase="prepare")),
        ("e", PassRecord("e", object, "")),
    ]
    ordered = [entries[position] for position in order_passes(entries)]

    assert [name for name, _ in ordered] == ["e", "b", "c", "a", "d"]
    assert [order_reasons(first, second) for first, second in itertools.pairwise(ordered)] == [
        ("phase 'optimize' comes before phase 'lower'",),
        ("'c' declares after 'b'",),
        ("phase 'optimize' comes before phase 'finish'",),
        ("'a' declares before 'd'",),
    ]


@pytest.mark.parametrize(
    ("name", "pipeline", "message"),
    [
        ("join", None, "no pass named 'join'. Did you mean 'joins'"),
        ("joins", "infrence", "no pipeline named"),
    ],
)
def test_unknown_names_are_errors(manager, name, pipeline, message):
    with pytest.raises(UnknownNameError, match=message):
        explain_pass(name, manager(), pipeline)
