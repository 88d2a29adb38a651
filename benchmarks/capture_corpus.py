"""How many small programs each way of capturing gets right: ``python -m benchmarks.capture_corpus``.

The programs are those of ``tests/capture_corpus``; they run in processes of their own, which some of them end. With
``--write`` the tables are kept in ``benchmarks/results`` and in the page of the documentation that quotes them. With
``--device cuda`` the tensors of the programs are on a GPU; programs that eager cannot run there are left out.
"""

from __future__ import annotations

import argparse
import importlib.util
import re
import sys
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.report import describe_surroundings

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

__all__ = ["main"]

_CHECKOUT = Path(__file__).resolve().parents[1]
_CORPUS = _CHECKOUT / "tests" / "capture_corpus"
_RESULTS = Path(__file__).resolve().parent / "results" / "capture-corpus.md"
_PAGE = _CHECKOUT / "docs" / "capture" / "corpus.md"
_MARKED = re.compile(r"(?<=<!-- corpus: begin -->\n).*(?=<!-- corpus: end -->)", re.DOTALL)

_ENGINES = {
    "torch.fx": "`torch.fx.symbolic_trace(program)`",
    "symbolic": "`fxplug.symbolic_trace(program)`",
    "shape": '`fxplug.trace(program, inputs, mode="shape")`',
    "value": "`fxplug.trace(program, inputs)`",
}
_KINDS = {
    "equal": "equal",
    "reported": "equal with a reported attribute",
    "refused": "refused",
    "failed": "fails when called",
    "different": "silently different",
    "killed": "ends the process",
}

Verdicts = dict[str, dict[str, Any]]
"""Name of an engine -> name of a program -> verdict."""


def _import_corpus() -> tuple[Any, Any]:
    """Return the modules that hold the programs and that judge them; neither is part of a distribution."""
    spec = importlib.util.spec_from_file_location(
        "capture_corpus", _CORPUS / "__init__.py", submodule_search_locations=[str(_CORPUS)]
    )
    if spec is None:
        raise FileNotFoundError(_CORPUS)
    sys.modules["capture_corpus"] = importlib.util.module_from_spec(spec)
    corpus = importlib.import_module("capture_corpus.corpus")
    return corpus, importlib.import_module("capture_corpus.isolation")


def measure(device: str = "cpu") -> tuple[dict[str, Any], Verdicts]:
    """Return the programs, and how each engine did with each of them.

    Args:
        device: Where the tensors of the programs are.
    """
    corpus, isolation = _import_corpus()
    installed = {package for package in ("", "numpy") if not package or importlib.util.find_spec(package)}
    programs = {name: entry for name, entry in corpus.all_programs().items() if entry.needs in installed}
    verdicts = {engine: isolation.judge_elsewhere(engine, programs, device) for engine in _ENGINES}
    absent = {name for name, verdict in verdicts["value"].items() if verdict.kind == "absent"}
    return {name: entry for name, entry in programs.items() if name not in absent}, verdicts


def tables(programs: Mapping[str, Any], verdicts: Verdicts) -> str:
    """Return the tables as Markdown."""
    illegal = [name for name, program in programs.items() if program.illegal]
    outside = [name for name, program in programs.items() if program.outside]
    legal = [name for name in programs if name not in {*illegal, *outside}]
    parts = [
        f"{len(programs)} programs; eager runs {len(programs) - len(illegal)} of them and refuses {len(illegal)}.",
        _apart(len(outside), len(legal)),
        _table(
            ("of the others", *_KINDS.values()),
            [_shares(verdicts, legal, key) for key in _ENGINES],
        ),
        _captured(verdicts["value"], legal),
        "Those that keep something outside of their modules; equal are the ones whose results do not hang on it:",
        _table(
            ("of these", *_KINDS.values()),
            [_shares(verdicts, outside, key) for key in _ENGINES],
        ),
        "Equal, by theme:",
        _table(("theme", "programs", *_ENGINES), _by_theme(programs, verdicts, legal)),
        "Not captured with inputs (`value`), and why:",
        _table(("program", "answer"), _not_captured(verdicts["value"], legal)),
    ]
    return "\n\n".join(parts) + "\n"


def _apart(outside: int, others: int) -> str:
    return (
        f"{outside} of those that eager runs keep something outside of their modules, in globals, classes, functions, "
        "objects or iterators. A graph has no place for it, and what hangs on it must be refused: they are counted "
        f"apart, below the {others} others."
    )


def _shares(verdicts: Verdicts, names: Sequence[str], engine: str) -> tuple[str, ...]:
    counts = Counter(verdicts[engine][name].kind for name in names)
    shares = [f"{counts[kind]} ({counts[kind] / len(names):.1%})" if counts[kind] else "0" for kind in _KINDS]
    return _ENGINES[engine], *shares


def _captured(verdicts: Mapping[str, Any], names: Sequence[str]) -> str:
    counts = Counter(verdicts[name].kind for name in names)
    both = counts["equal"] + counts["reported"]
    return (
        f"With inputs (`value`), {counts['equal']} are equal, and {counts['reported']} are equal but for an "
        "attribute that the captured module does not assign, which a `TraceWarning` says: "
        f"together {both} of {len(names)} ({both / len(names):.1%})."
    )


def _by_theme(programs: Mapping[str, Any], verdicts: Verdicts, names: Sequence[str]) -> list[tuple[str, ...]]:
    total = Counter(programs[name].theme for name in names)
    equal = {
        engine: Counter(programs[name].theme for name in names if verdicts[engine][name].kind == "equal")
        for engine in _ENGINES
    }
    return [
        (theme, str(count), *(str(equal[engine][theme]) for engine in _ENGINES))
        for theme, count in total.items()
    ]


def _not_captured(verdicts: Mapping[str, Any], names: Iterable[str]) -> list[tuple[str, str]]:
    rest = [(name, verdicts[name]) for name in names if verdicts[name].kind != "equal"]
    return [(f"`{name}`", f"{_KINDS[verdict.kind]} {verdict.code}".strip()) for name, verdict in rest]


def _table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _unlike_the_cpu(programs: Mapping[str, Any], verdicts: Verdicts) -> Iterable[str]:
    """Yield a line for each verdict of fxplug that is not the one that the corpus expects."""
    yield "\nNot as expected:\n"
    for engine in list(_ENGINES)[1:]:
        for name, program in programs.items():
            verdict, expected = verdicts[engine][name], program.expected(engine)
            found = verdict.kind if verdict.kind == "equal" else verdict.code
            if found != (expected or "equal") and verdict.kind != "reported":
                yield f"- {engine}, `{name}`: {verdict.kind} {verdict.code} {verdict.detail}\n"


def main(arguments: Sequence[str] | None = None) -> None:
    """Judge every program and print; keep the tables too when ``--write`` is among the arguments."""
    parser = argparse.ArgumentParser(description="Compare ways of capturing programs. Nothing is asserted.")
    parser.add_argument("--write", action="store_true", help="keep the tables in results and documentation")
    parser.add_argument("--device", default="cpu", help="where the tensors of the programs are, e.g. cuda")
    options = parser.parse_args(arguments)
    programs, verdicts = measure(options.device)
    found = tables(programs, verdicts)
    sys.stdout.write(found)
    if options.device != "cpu":
        sys.stdout.writelines(_unlike_the_cpu(programs, verdicts))
    elif options.write:
        facts = ", ".join(
            f"{name} {value}" for name, value in describe_surroundings().items() if name != "cpu_count"
        )
        _RESULTS.write_text(f"# Capture corpus\n\n{facts}\n\n{found}", encoding="utf-8")
        page = _PAGE.read_text(encoding="utf-8")
        _PAGE.write_text(_MARKED.sub(lambda _: f"\n{found}\n", page), encoding="utf-8")


if __name__ == "__main__":
    main()
