"""Every path of a TOML file has its line, whatever the file looks like."""

from __future__ import annotations

import sys

import pytest

from fxplug.plugins.locations import line_of, lines_of, lines_without

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

HARD = '''\
a."b c".d = """x
[not] = 3
\\"""" # [neither]
"q\\u00e9" = 'l]' # comment
lines = \'\'\'
k = 1
\'\'\'
[[p.q]]
n = 1979-05-27 07:32:00
[p.q.sub]
k = [ # ], }
  1, "]", {a = 1, b = [2,
 3]},
]
[ p . "r" ]
[[p.q]]
n = { x.y = true, z = [] }
'''


def paths_of(value, prefix=()):
    if prefix:
        yield prefix
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        yield from paths_of(inner, (*prefix, key))


def test_the_paths_are_those_that_a_parser_finds():
    assert set(lines_of(HARD)) == set(paths_of(tomllib.loads(HARD)))


@pytest.mark.parametrize(
    ("key", "line"),
    [
        (("a", "b c", "d"), 1),
        (("qé",), 4),
        (("p", "q", 0), 8),
        (("p", "q", 0, "sub", "k"), 11),
        (("p", "q", 0, "sub", "k", 2, "b", 1), 13),
        (("p", "r"), 15),
        (("p", "q", 1, "n", "z"), 17),
    ],
)
def test_each_path_has_its_line(key, line):
    assert lines_of(HARD)[key] == line


def test_a_key_that_is_missing_has_the_line_of_what_it_would_belong_to():
    lines = lines_of(HARD)

    assert line_of(lines, ("p", "q", 1, "m")) == 16
    assert line_of(lines, ("z",)) is None


def test_what_lies_behind_an_element_that_is_taken_out_moves_up():
    lines = lines_of("k = [\n1,\n{a = 1},\n{b = 2},\n]\nm = 1\n")

    assert lines_without(lines, ("k", 1)) == {
        ("k",): 1,
        ("k", 0): 2,
        ("k", 1): 4,
        ("k", 1, "b"): 4,
        ("m",): 6,
    }
    assert lines_without(lines, ("m",)) == lines


def test_what_is_no_toml_ends():
    assert lines_of("][") == {}
    assert lines_of("a = [[[") == {("a",): 1, ("a", 0): 1, ("a", 0, 0): 1}
