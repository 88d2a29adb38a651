"""Five wheels of strangers at once: the good ones compose in every order, the broken one is named and undone."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable

PROGRAM = Path(__file__).with_name("compose.py")
SOURCES = Path(__file__).resolve().parents[1] / "plugins" / "composition"
GOOD = ("keep-gate", "note-sums", "single-relu", "slow-engine")
RANGE = "fxplug>=0.1,<0.2"

# What is wrong -> (entry point, distribution, requirement, lines added to the plugin, reason, remedy).
BROKEN = {
    "import": (
        "broken",
        "acme-broken",
        RANGE,
        "import compose_broken.helper\nimport acme_engine",
        r"importing compose_broken raised ModuleNotFoundError: No module named 'acme_engine'",
        "Update or uninstall acme-broken (pip uninstall acme-broken)",
    ),
    "misspelt": (
        "broken",
        "acme-broken",
        RANGE,
        "@hookimpl\ndef fxplug_node_craeted(node):\n    return {'shared.first': 'broken'}",
        r"it implements the unknown hook 'fxplug_node_craeted'\. Did you mean 'fxplug_node_created'\?",
        "Update or uninstall acme-broken (pip uninstall acme-broken)",
    ),
    "signature": (
        "broken",
        "acme-broken",
        RANGE,
        "@hookimpl\ndef fxplug_node_created(node, ctx):\n    return {'shared.first': 'broken'}",
        r"its 'fxplug_node_created' takes the unknown parameter 'ctx'; the hook offers \(node, context\)",
        "Update or uninstall acme-broken (pip uninstall acme-broken)",
    ),
    "range": (
        "broken",
        "acme-broken",
        "fxplug<0.1",
        "raise AssertionError('imported')",
        r"it requires fxplug <0\.1, but fxplug 0\.1\.0 is running; it was not imported",
        "Install a release of acme-broken made for fxplug 0.1.0",
    ),
    "clash": (
        "single-relu",
        "acme-broken",
        RANGE,
        "",
        r"the plugin name 'single-relu' is claimed by acme-broken 6\.6 and fxplug-single-relu 1\.0; it belongs to .*",
        'disable = ["acme-broken"] in the table [tool.fxplug.plugins].',
    ),
    "record": (
        "broken",
        "acme-broken",
        RANGE,
        "@hookimpl\ndef fxplug_register_backends():\n    raise OSError('no licence')",
        r"its 'fxplug_register_backends' raised OSError: no licence",
        "Update or uninstall acme-broken (pip uninstall acme-broken)",
    ),
}


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory, write_wheel: Callable[..., Path]) -> dict[str, Path]:
    """Name of a plugin, or what is wrong with it -> its wheel."""
    folder = tmp_path_factory.mktemp("wheels")
    found: dict[str, Path] = {}
    for name in GOOD:
        module = f"compose_{name.replace('-', '_')}"
        source = (SOURCES / f"{name.replace('-', '_')}.py").read_text()
        found[name] = write_wheel(
            folder, f"fxplug-{name}", "1.0", {f"{module}.py": source}, {name: module}, RANGE
        )
    for fault, (name, distribution, requirement, lines, _, _) in BROKEN.items():
        files = {
            "compose_broken/__init__.py": (SOURCES / "broken.py").read_text() + f"\n\n{lines}\n",
            "compose_broken/helper.py": "",
        }
        found[fault] = write_wheel(
            folder / fault, distribution, "6.6", files, {name: "compose_broken"}, requirement
        )
    return found


@pytest.fixture(scope="module")
def folders(core_environment, wheels, tmp_path_factory) -> dict[str, str]:
    """The same -> a folder into which pip installed that wheel alone."""
    found: dict[str, str] = {}
    for name, wheel in wheels.items():
        found[name] = str(tmp_path_factory.mktemp(name))
        core_environment.install("--no-index", "--no-deps", "--target", found[name], str(wheel))
    return found


@pytest.fixture
def observe(core_environment, monkeypatch):
    """Runs the program with the plugins of this module alone; returns what it saw."""
    monkeypatch.setenv("FXPLUG_CONFIG", "")

    def run(*arguments: str, load=GOOD):
        monkeypatch.setenv("FXPLUG_LOAD_PLUGINS", ",".join(load))
        return json.loads(core_environment.python("-W", "ignore", str(PROGRAM), *arguments).splitlines()[-1])

    return run


def said(seen):
    """Return what plugins do, without what is said about them."""
    return {key: value for key, value in seen.items() if key not in {"plugins", "warnings"}}


@pytest.fixture(scope="module")
def alone() -> dict[str, object]:
    """What the good plugins do by themselves; filled by the first test that sees it."""
    return {}


@pytest.fixture
def expected(alone, observe, folders):
    if not alone:
        alone.update(observe(*(folders[name] for name in GOOD)))
    return alone


def test_four_plugins_customise_one_trace_alike_in_every_order(expected):
    assert expected["warnings"] == []
    assert {entry[1] for key, entry in expected["plugins"].items() if entry[0] in GOOD} == {"active"}
    # The leaf rule; mixins in the order of the plugins' names; the pass where its record wants it; the backend.
    assert "gate" in expected["notes"]
    assert expected["pipeline"] == [
        "dead-code",
        "remove-identities",
        "single-relu:single-relu",
        "fuse-conv-bn",
        "onednn-fuse",
        "propagate-shapes",
    ]
    # A backend knows the original calls, so they are not fused for another engine.
    assert expected["passes"] == [name for name in expected["pipeline"] if name != "onednn-fuse"]
    assert expected["backends"] == ["eager", "inductor", "slow-engine:slow"]
    # Both plugins see the sum, and the one that declares to come first has the say about the common key.
    assert expected["notes"]["add"] == {
        "shared.first": "note-sums",
        "note-sums.name": "add",
        "keep-gate.op": "call_function",
        "note-sums.classes": ["NotesSums", "CountsSums"],
        "slow-engine.sums": 1,
    }
    assert expected["graph"].count("relu") > expected["optimised"].count("relu")
    assert "norm" in expected["graph"]
    assert "norm" not in expected["optimised"]
    assert expected["is_close"]


@pytest.mark.parametrize("fault", BROKEN)
def test_a_broken_fifth_is_named_and_changes_nothing_in_any_order(fault, expected, observe, folders):
    name, distribution, _, _, reason, remedy = BROKEN[fault]
    seen = observe(*(folders[entry] for entry in (*GOOD, fault)), load={*GOOD, name})

    (warning,) = seen["warnings"]
    assert warning.startswith(f"Plugin {name!r} ({distribution} 6.6) is skipped: ")
    assert re.search(reason, warning), warning
    assert remedy in warning
    found, status, hooks, _, _ = seen["plugins"][f"{distribution} 6.6"]
    assert (found, status, hooks) == (name, "incompatible" if fault == "range" else "failed", [])
    if fault in {"import", "range"}:
        assert [module for module in seen["modules"] if "broken" in module] == []
    seen["modules"] = [module for module in seen["modules"] if "broken" not in module]
    assert said(seen) == said(expected)
    others = {key: entry for key, entry in seen["plugins"].items() if not key.startswith(distribution)}
    assert others == expected["plugins"]


@pytest.mark.parametrize(
    "order",
    [(0, 1, 2, 3, 4), (4, 3, 2, 1, 0), (2, 4, 0, 3, 1)],
    ids=["forwards", "backwards", "mixed"],
)
def test_pip_installs_them_in_any_order(order, expected, observe, wheels, core_environment):
    names = (*GOOD, "misspelt")
    distributions = [*(f"fxplug-{name}" for name in GOOD), "acme-broken"]
    try:
        for place in order:
            core_environment.install("--no-index", str(wheels[names[place]]))
        seen = observe(load=(*GOOD, "broken"))
        listing = core_environment.python("-W", "ignore", "-m", "fxplug", "plugins", "list", "--json")
    finally:
        core_environment.python("-m", "pip", "uninstall", "--yes", *distributions)

    seen["modules"] = expected["modules"]
    assert said(seen) == said(expected)
    assert [text for text in seen["warnings"] if "acme-broken 6.6" in text] == seen["warnings"]
    entries = {entry["name"]: entry["status"] for entry in json.loads(listing[listing.index("[") :])}
    assert {name: entries[name] for name in (*GOOD, "broken")} == {
        **dict.fromkeys(GOOD, "active"),
        "broken": "failed",
    }
