"""The suite is as large as it says, and its lists of differences hold nothing that is not one."""

from __future__ import annotations

import collections


def test_the_suite_has_at_least_200_programs_and_modules(comparisons):
    assert len(comparisons) >= 200


def test_every_program_has_a_name_of_its_own(comparisons):
    names = collections.Counter(program.name for program in comparisons)

    assert [name for name, count in names.items() if count > 1] == []


def test_every_allowed_difference_names_a_program_and_a_reason(comparisons, differences):
    assert set(differences) <= {program.name for program in comparisons}
    assert all(len(allowed.reason.split()) >= 8 for allowed in differences.values())


def test_few_programs_differ(comparisons, differences):
    assert len(differences) < len(comparisons) / 5


def test_no_spelling_of_texts_is_superfluous(equal_graphs, text_without_a_spelling):
    assert any(
        text_without_a_spelling(ours) != text_without_a_spelling(theirs) for ours, theirs in equal_graphs
    )


def test_no_spelling_of_sources_is_superfluous(equal_graphs, source_without_a_spelling):
    assert any(
        source_without_a_spelling(ours) != source_without_a_spelling(theirs) for ours, theirs in equal_graphs
    )
