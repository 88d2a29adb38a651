"""The page that speaks of every name of torch.fx cannot leave one out, and cannot name what does not exist."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest
import torch
import torch.fx

CHECKOUT = Path(__file__).resolve().parents[2]
PAGE = CHECKOUT / "docs" / "migration" / "torch-fx-names.md"


@pytest.fixture(scope="module")
def tool():
    path = CHECKOUT / "tools" / "torch_fx_names.py"
    spec = importlib.util.spec_from_file_location("torch_fx_names", path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # Dataclasses look their module up.
    try:
        spec.loader.exec_module(module)
        yield module
    finally:
        del sys.modules[spec.name]


@pytest.fixture
def render(tool):
    """(names, lines, members) -> the page."""

    def render(names, lines, members=None):
        return tool.check_and_render(names, members or {}, lines, "2.13")

    return render


def fault_of(tool, render, *arguments):
    with pytest.raises(tool.NamesError) as caught:
        render(*arguments)
    return str(caught.value)


# -- which names there are


def test_what_a_module_lists_and_what_it_defines_are_its_names(tool):
    source = """
import math
from torch.fx.other import elsewhere
__all__ = ["listed"]
A, B = 1, 2
CONSTANT = 3
annotated: int = 4
table[0] = 5
_private = 6
if CONSTANT:
    inside = 7
try:
    import thing
    found = True
except ImportError:
    found = False
def function(): local = 1
class Kind:
    member = 1
"""

    assert tool.names_in_source(source) == [
        "CONSTANT",
        "Kind",
        "annotated",
        "found",
        "function",
        "inside",
        "listed",
    ]


def test_what_a_package_takes_from_its_own_modules_is_its_name_too(tool):
    source = "from torch.fx.graph import Graph\nfrom torch import nn\nfrom torch.fx import graph as other\n"

    assert tool.names_in_source(source, "torch.fx") == ["Graph", "other"]


def test_private_modules_are_left_out(tool, tmp_path):
    for path in ("__init__.py", "one.py", "_two.py", "_three/four.py", "five/__init__.py", "five/six.py"):
        file = tmp_path / path
        file.parent.mkdir(exist_ok=True)
        file.write_text("name = 1\n", encoding="utf-8")

    assert list(tool.public_names(tmp_path)) == [
        "torch.fx",
        "torch.fx.five",
        "torch.fx.five.six",
        "torch.fx.one",
    ]


def test_every_name_that_torch_fx_lists_is_found(tool):
    names = tool.public_names(Path(torch.fx.__file__).parent)

    assert set(torch.fx.__all__) <= set(names["torch.fx"])
    assert set(torch.fx.proxy.__all__) <= set(names["torch.fx.proxy"])
    assert "Target" in names["torch.fx.node"]


def test_members_are_those_of_the_library_itself(tool):
    members = tool.members_of(torch.fx.GraphModule)

    assert {"graph", "code", "add_submodule"} <= members
    assert "state_dict" not in members
    assert {"op", "target", "args", "users"} <= tool.members_of(torch.fx.Node)
    assert "new_graph" in tool.members_of(torch.fx.Transformer)  # Set when an instance is made.


# -- what is said of them


def test_a_name_without_a_line_is_a_fault(tool, render):
    message = fault_of(
        tool, render, {"torch.fx": ["Graph", "brand_new"]}, {"modules": {"torch.fx": {"Graph": "same"}}}
    )

    assert message == "torch.fx.brand_new has no line"


def test_a_counterpart_that_does_not_exist_is_a_fault(tool, render):
    lines = {"modules": {"torch.fx": {"one": "same", "two": "fxplug.rewrite.lost; a note"}}}

    message = fault_of(tool, render, {"torch.fx": ["one", "two"]}, lines)

    assert message.splitlines() == [
        "torch.fx.one: there is no fxplug.fx.one",
        "torch.fx.two: there is no fxplug.rewrite.lost",
    ]


def test_a_line_that_speaks_of_nothing_is_a_fault(tool, render):
    lines = {"modules": {"torch.fx": {"Graph": "same", "gone": "same"}, "torch.fx.gone": {"*": "same"}}}

    message = fault_of(tool, render, {"torch.fx": ["Graph"]}, lines)

    assert message.splitlines() == [
        "the line 'gone' of [modules.'torch.fx'] speaks of no name",
        "the line '*' of [modules.'torch.fx.gone'] speaks of no name",
    ]


def test_what_is_there_cannot_be_called_missing(tool, render):
    lines = {"modules": {"torch.fx": {"Graph": "not planned: nobody wants it"}}}

    assert (
        "there is fxplug.fx.Graph, and its line says 'not planned: nobody wants it'; say 'same'"
        in fault_of(tool, render, {"torch.fx": ["Graph"]}, lines)
    )


@pytest.mark.parametrize("line", ["later", "planned:", "not planned", "torch.fx.Graph"])
def test_a_line_of_another_form_is_a_fault(tool, render, line):
    message = fault_of(tool, render, {"torch.fx": ["lost"]}, {"modules": {"torch.fx": {"lost": line}}})

    assert "begins with none of 'same', 'fxplug.', 'planned: ', 'not planned: '" in message


def test_a_missing_member_is_a_fault(tool, render):
    lines = {"members": {"torch.fx.Graph": {"*": "same"}}}

    message = fault_of(tool, render, {}, lines, {"torch.fx.Graph": ["lint", "lost"]})

    assert message == "torch.fx.Graph.lost: there is no fxplug.fx.Graph.lost"


def test_the_narrowest_line_counts(render):
    lines = {
        "modules": {
            "torch.fx*": {"log": "not planned: a logger", "*": "planned: the rest"},
            "torch.fx.graph": {"*": "not planned: another reason", "Gr*": "same"},
        }
    }

    page = render({"torch.fx.graph": ["Graph", "log", "magic"], "torch.fx.new": ["thing"]}, lines)

    assert "| `Graph` | `fxplug.Graph`, `fxplug.fx.graph.Graph` |" in page
    assert "| `log` | not planned: a logger |" in page
    assert "| `magic` | not planned: another reason |" in page
    assert "| `thing` | planned: the rest |" in page


def test_a_note_says_what_differs(render):
    lines = {
        "modules": {"torch.fx": {"Graph": "same; keeps origins"}},
        "members": {"torch.fx.Graph": {"lint": "same; lists every fault", "nodes": "same"}},
    }

    page = render({"torch.fx": ["Graph"]}, lines, {"torch.fx.Graph": ["lint", "nodes"]})

    assert "| `Graph` | `fxplug.Graph`, `fxplug.fx.Graph`; keeps origins |" in page
    assert "| `nodes` | the same |" in page
    assert "| `lint` | the same; lists every fault |" in page


def test_the_page_counts_what_it_says(render):
    lines = {"modules": {"torch.fx": {"Graph": "same", "lost": "planned: later", "gone": "not planned: no"}}}

    page = render({"torch.fx": ["Graph", "gone", "lost"]}, lines)

    assert "| there under the same path | 1 |" in page
    assert "| planned | 1 |" in page
    assert "| not planned | 1 |" in page


# -- the page itself


def test_the_page_has_a_row_for_every_name(tool):
    page = PAGE.read_text(encoding="utf-8")

    for module, names in tool.public_names(Path(torch.fx.__file__).parent).items():
        section = page.partition(f"\n### {module}\n")[2].partition("\n### ")[0]
        assert [name for name in names if f"`{name}`" not in section] == []


def test_lines_for_another_torch_are_refused(tool, monkeypatch):
    monkeypatch.setattr(torch, "__version__", "9.9.0")

    with pytest.raises(tool.NamesError, match=r"speaks of torch 2\.13, and torch 9\.9\.0 is installed"):
        tool.page()
