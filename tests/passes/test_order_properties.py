"""The order of passes for arbitrary declarations, against the definition written out."""

from __future__ import annotations

import itertools

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fxplug.errors import PassOrderError
from fxplug.passes import PHASES, PassRecord, order_passes

NAMES = ("a", "b", "quant:c", "viz:c", "d")
WISHES = (*NAMES, "c", "core:a", "missing", "viz:missing")
OTHERS = st.lists(st.sampled_from(WISHES), max_size=2, unique=True).map(tuple)
LIMITS = settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])


@st.composite
def listings(draw, max_size=6):
    """Entries of a pipeline: a pass that is listed twice has one record."""
    records = {
        name: PassRecord(
            name.rpartition(":")[2],
            object,
            "",
            phase=draw(st.sampled_from(PHASES)),
            before=draw(OTHERS),
            after=draw(OTHERS),
        )
        for name in NAMES
    }
    listed = draw(st.lists(st.sampled_from(NAMES), max_size=max_size))
    return [(name, records[name]) for name in listed]


def means(wanted, name):
    return name in {wanted, wanted.removeprefix("core:")} or (
        ":" not in wanted and name.endswith(f":{wanted}")
    )


def wishes(entries, name, declared):
    """Return the passes that take part which a declaration means."""
    listed = {other for other, _ in entries if other != name}
    return {other for other in listed for wanted in declared if means(wanted, other)}


def is_allowed(entries, order):
    """Return whether an order gives each listing what its record declares."""
    names = [entries[position][0] for position in order]
    for place, position in enumerate(order):
        name, record = entries[position]
        earlier, later = set(names[:place]), set(names[place + 1 :])
        if not wishes(entries, name, record.after) <= earlier:
            return False
        if not wishes(entries, name, record.before) <= later:
            return False
    return True


def rank(entries, order):
    return [(PHASES.index(entries[position][1].phase), position) for position in order]


@LIMITS
@given(listings(max_size=5))
def test_of_the_allowed_orders_it_is_the_one_nearest_to_phases_and_list(entries):
    allowed = [order for order in itertools.permutations(range(len(entries))) if is_allowed(entries, order)]
    try:
        found = order_passes(entries)
    except PassOrderError:
        assert not allowed
        return

    assert is_allowed(entries, found)
    assert rank(entries, found) == min(rank(entries, order) for order in allowed)


@LIMITS
@given(listings())
def test_a_cycle_that_is_reported_is_one(entries):
    records = dict(entries)
    try:
        assert sorted(order_passes(entries)) == list(range(len(entries)))
    except PassOrderError as error:
        cycle = error.message.partition("form a cycle: ")[2].partition(". Leave")[0].split(" -> ")

        assert cycle[0] == cycle[-1]
        assert len(set(cycle)) > 1
        for earlier, later in itertools.pairwise(cycle):
            assert later in wishes(entries, earlier, records[earlier].before) or earlier in wishes(
                entries, later, records[later].after
            )


@LIMITS
@given(listings())
def test_names_that_take_no_part_have_no_influence(entries):
    listed = {name for name, _ in entries}

    def without(declared):
        return tuple(wanted for wanted in declared if any(means(wanted, name) for name in listed))

    def outcome(those):
        try:
            return order_passes(those)
        except PassOrderError as error:
            return str(error)

    bare = [
        (
            name,
            PassRecord(
                record.name,
                object,
                "",
                phase=record.phase,
                before=without(record.before),
                after=without(record.after),
            ),
        )
        for name, record in entries
    ]

    assert outcome(entries) == outcome(bare)
