"""Where a captured or rewritten graph is another one than torch.fx makes, read from the lists that the tests allow.

The tests run many programs through both libraries. What may differ stands in ``tests/differential/conftest.py`` and in
``tests/rewrite/test_against_torch_fx.py``, each entry with its reason, and an entry without a difference fails there.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass
from pathlib import Path

__all__ = ["page"]

_TESTS = Path(__file__).resolve().parents[1] / "tests"
_LIST = _TESTS / "differential" / "conftest.py"
_PATTERNS = _TESTS / "rewrite" / "test_against_torch_fx.py"

_INTRODUCTION = """\
<!-- Made by tools/generate_docs.py from tests/differential/conftest.py and tests/rewrite/test_against_torch_fx.py. Edit
those files, then run the tool. -->

# Where graphs and rewrites differ from torch.fx

The tests of fxplug trace many programs with torch.fx too, and compare nodes, text, values, gradients and what becomes
of inputs and buffers. These are the only differences that they allow. Where nothing is said of torch.fx's module, both
modules compute the same.
"""


@dataclass(frozen=True)
class _Difference:
    """One entry of the list."""

    reason: str
    flags: frozenset[str]


def page() -> str:
    """Return the page."""
    tree = ast.parse(_LIST.read_text(encoding="utf-8"))
    differences = sorted(_differences(tree), key=lambda difference: difference.reason)
    spellings = _spellings(tree)
    rows = [f"| {_columns(difference.reason)} | {_consequence(difference)} |" for difference in differences]
    return "\n".join(
        [
            _INTRODUCTION,
            "## Graphs\n",
            "| fxplug | torch.fx | so that its module |",
            "|---|---|---|",
            *rows,
            "\n## Text\n",
            "`str(graph)` and the generated source are for people. They differ in this:\n",
            *(f"- {reason}" for reason in spellings),
            "\n## replace_pattern\n",
            "| fxplug | torch.fx |",
            "|---|---|",
            *(f"| {_columns(reason)} |" for reason in _patterns()),
            "",
        ]
    )


def _differences(tree: ast.Module) -> set[_Difference]:
    """Return what `DIFFERENCES` refers to."""
    entries: dict[str, _Difference] = {}
    used: set[str] = set()
    for statement in tree.body:
        if isinstance(statement, ast.Assign) and isinstance(statement.value, ast.Call):
            call = statement.value
            if ast.unparse(call.func) == "Allowed" and isinstance(statement.targets[0], ast.Name):
                flags = frozenset(str(keyword.arg) for keyword in call.keywords)
                entries[statement.targets[0].id] = _Difference(ast.literal_eval(call.args[0]), flags)
        if isinstance(statement, ast.AnnAssign) and isinstance(statement.value, ast.Dict):
            used.update(value.id for value in statement.value.values if isinstance(value, ast.Name))
    return {entry for name, entry in entries.items() if name in used}


def _spellings(tree: ast.Module) -> list[str]:
    """Return the reasons in the tables of spellings, each once, in order."""
    found: dict[str, None] = {}
    for statement in tree.body:
        if not (isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name)):
            continue
        if "SPELLINGS" in statement.target.id and isinstance(statement.value, ast.Tuple):
            for row in statement.value.elts:
                if isinstance(row, ast.Tuple):
                    found[ast.literal_eval(row.elts[-1])] = None
    return list(found)


def _patterns() -> list[str]:
    """Return the reasons why a rewrite has another outcome, in order."""
    for statement in ast.parse(_PATTERNS.read_text(encoding="utf-8")).body:
        if isinstance(statement, ast.Assign) and ast.unparse(statement.targets[0]) == "DIFFERENCES":
            return list(ast.literal_eval(statement.value).values())
    return []


def _columns(reason: str) -> str:
    ours, _, theirs = reason.partition("; torch.fx ")
    return f"{ours} | {theirs}"


def _consequence(difference: _Difference) -> str:
    if "refused" in difference.flags:
        return "is not made, or cannot be run"
    return "computes something else than eager" if "wrong" in difference.flags else ""
