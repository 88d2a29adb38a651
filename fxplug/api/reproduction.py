"""A folder that shows a failure alone: graphs, weights, inputs and configuration as data, and a script that runs it."""

from __future__ import annotations

import json
import math
import platform
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from fxplug.analyze.comparison import Tolerance
from fxplug.analyze.isolation import SavedState
from fxplug.analyze.runs import Run, observe
from fxplug.api.judging import judge_values, slowdown
from fxplug.api.storing import load, save
from fxplug.errors import FxplugError, StorageError, UnknownNameError
from fxplug.execute import GraphModule
from fxplug.ir import Graph, map_aggregate, printable
from fxplug.passes import Pipeline
from fxplug.passes.bisection import FoundPass, FoundRewrite, Judgement, Trials
from fxplug.passes.limits import checked_limit
from fxplug.passes.references import seeded
from fxplug.plugins import PluginManager, default_manager
from fxplug.plugins.discovery import core_version
from fxplug.rewrite.limits import Rewrite, RewriteLimit

if TYPE_CHECKING:
    import os
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from fxplug.api.bisecting import BisectResult
    from fxplug.passes import PipelineStep

__all__ = ["FILES", "FORMAT", "Failure", "reproduce", "write_reproduction"]

FILES = (
    "README.md",
    "reproduce.py",
    "report.json",
    "config.json",
    "before.fxplug",
    "before.py",
    "after.fxplug",
    "after.py",
    "inputs.fxplug",
    "expected.fxplug",
)
"""What a folder may hold; some files are left out where what they would say cannot be stored."""

FORMAT = "fxplug-bisect"
"""The value of ``"format"`` in report.json."""

_VERSION = 1

_SETTINGS = ("on_error", "time_limit", "hard_time_limit", "verify", "rtol", "atol")
"""What a pipeline demands of passes."""
_LIMITS = ("time_limit", "hard_time_limit")
"""What a step may demand instead."""

_SCRIPT = '''\
"""Shows the failure that README.md describes, and nothing else.

Exit code 1 when it shows, 0 when it does not, 2 when that could not be found out.

What differs from failure to failure is data, in the files beside this one. Arguments name functions that the graph may
call although fxplug does not know them, as package.module:function.
"""

import sys



def main():
    from pathlib import Path

    from fxplug.api import reproduce
    from fxplug.errors import FxplugError

    try:
        found = reproduce(Path(__file__).resolve().parent, allow=sys.argv[1:])
    except FxplugError as error:
        print(error, file=sys.stderr)
        return 2
    print(f"{found.kind}: {found.text}" if found.text else found.kind)
    return 0 if found.is_good else 1


if __name__ == "__main__":  # A pass with a hard limit runs in a process that imports this script.
    if not (sys.flags.isolated or getattr(sys.flags, "safe_path", False)):
        del sys.path[0]  # This folder: what lies here is data, and no module to be imported.
    sys.exit(main())
'''


@dataclass(frozen=True)
class Failure:
    """What it takes to show a failure again."""

    start: GraphModule
    """The module before any pass."""
    inputs: tuple[Any, ...]
    expected: Any
    """What the module as it was given returns."""
    tolerance: Tolerance
    slower_than: float | None
    by_function: bool = False
    """Whether a function of the user's judged, or measured."""
    pipeline: Pipeline = field(default_factory=lambda: Pipeline("", ()))
    found: FoundPass | None = None
    rewrite: FoundRewrite | None = None

    def of(self, pipeline: Pipeline, found: FoundPass, rewrite: FoundRewrite | None) -> Failure:
        """Return the same with what was found."""
        return replace(self, pipeline=pipeline, found=found, rewrite=rewrite)

    @property
    def limit(self) -> RewriteLimit:
        """Which rewrites the pass is to do: the one to blame, or with it those before it."""
        if self.rewrite is None:
            return RewriteLimit()
        if self.rewrite.is_bad_alone:
            return RewriteLimit(only=self.rewrite.rewrite)
        return RewriteLimit(first=self.rewrite.position + 1)


# -- writing ---------------------------------------------------------------------------------------------------------


def write_reproduction(
    folder: Path, result: BisectResult, failure: Failure, allow: Sequence[str], manager: PluginManager
) -> tuple[str, ...]:
    """Fill an empty folder.

    Args:
        folder: Exists, and is empty.
        result: What was found.
        failure: What it takes to show it again.
        allow: Functions that files may name besides.
        manager: The plugins that take part.

    Returns:
        What could not be written, in sentences.

    Raises:
        StorageError: The module or its inputs hold something that a file cannot.
    """
    found = failure.found
    assert found is not None
    left_out: list[str] = []
    before, steps = found.before, (found.step,)
    try:
        save(before, folder / "before.fxplug", allow=allow, manager=manager)
    except StorageError as error:
        left_out.append(f"The module before pass {found.step.name!r} is not stored: {error.message}")
        before, steps = failure.start, failure.pipeline.steps[: found.position + 1]
        save(before, folder / "before.fxplug", allow=allow, manager=manager)
    save(_stored(failure.inputs), folder / "inputs.fxplug", manager=manager)
    trial = found.trial if failure.rewrite is None else failure.rewrite.trial
    optional = {"after.fxplug": trial.module, "expected.fxplug": failure.expected}
    for name, value in optional.items():
        if name == "after.fxplug" and value is None:
            continue  # The pass failed.
        try:
            stored = value if isinstance(value, GraphModule) else _stored(value)
            save(stored, folder / name, allow=allow, manager=manager)
        except FxplugError as error:
            left_out.append(f"{name} is not there: {error.message}")
    if trial.module is None and not all(_step_data(step, manager)["can_be_made_again"] for step in steps):
        left_out.append(
            f"Pass {found.step.name!r} raises an error, and cannot be made again from what is stored: reproduce.py "
            "shows nothing until a plugin offers the pass."
        )
    if failure.by_function:
        left_out.append(
            "What judged was a function, which is no data: reproduce.py compares "
            + ("values, as if there had been none." if failure.slower_than is None else "times by itself.")
        )
    for name, module in (("before.py", before), ("after.py", trial.module)):
        if module is not None:
            (folder / name).write_text(_readable(module), encoding="utf-8")
    report = _report(result, failure, steps, allow, manager, left_out)
    config = {
        "pipeline": failure.pipeline.name or None,
        "on_error": failure.pipeline.on_error,
        "passes": [_step_data(step, manager) for step in failure.pipeline.steps],
    }
    for name, data in (("report.json", report), ("config.json", config)):
        (folder / name).write_text(
            json.dumps(data, indent=2, allow_nan=False, default=float) + "\n", encoding="utf-8"
        )
    (folder / "README.md").write_text("\n".join(_readme(result, report)) + "\n", encoding="utf-8")
    (folder / "reproduce.py").write_text(_SCRIPT, encoding="utf-8")
    return tuple(left_out)


def _stored(value: Any) -> GraphModule:
    """Return a module without inputs that returns `value`, which is how values are stored without being pickled."""
    root, graph = nn.Module(), Graph()
    nodes: dict[int, Any] = {}

    def read(leaf: Any) -> Any:
        if not isinstance(leaf, torch.Tensor):
            return leaf
        if id(leaf) not in nodes:
            name = f"value_{len(nodes)}"
            root.register_buffer(name, leaf.detach())
            nodes[id(leaf)] = graph.get_attr(name)
        return nodes[id(leaf)]

    graph.output(map_aggregate(value, read))
    return GraphModule(root, graph, "Values")


def _readable(module: GraphModule) -> str:
    head = "# To be read; the program with its weights is in the file .fxplug of the same name."
    return f"{head}\n\n{module.print_readable(print_output=False)}\n"


def _step_data(step: PipelineStep, manager: PluginManager) -> dict[str, Any]:
    offer = manager.passes().get(step.name)
    options = dict(step.options)
    try:
        plain = json.loads(json.dumps(options, allow_nan=False))
    except (TypeError, ValueError):
        plain = None
    return {
        "name": step.name,
        "provider": step.provider,
        "options": {key: repr(value) for key, value in options.items()} if plain is None else plain,
        "limits": {name: _plain_number(getattr(step, name)) for name in _LIMITS},
        "can_be_made_again": plain is not None and offer is not None and offer.record is step.record,
    }


def _plain_number(value: Any) -> Any:
    """Return a setting as JSON can hold it: no limit in the place of an infinite one."""
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _report(
    result: BisectResult,
    failure: Failure,
    steps: Sequence[PipelineStep],
    allow: Sequence[str],
    manager: PluginManager,
    left_out: Sequence[str],
) -> dict[str, Any]:
    limit = failure.limit
    return {
        "format": FORMAT,
        "version": _VERSION,
        "environment": {
            "fxplug": core_version(),
            "torch": str(torch.__version__),
            "python": platform.python_version(),
            "platform": platform.platform(),
        },
        "plugins": [
            {"name": info.name, "distribution": info.distribution, "version": info.version}
            for info in manager.plugin_infos()
            if info.status == "active"
        ],
        "judgement": asdict(result.judgement),
        "culprit": None if result.culprit is None else asdict(result.culprit),
        "rewrite": None if result.rewrite is None else asdict(result.rewrite),
        "node": None if result.node is None else asdict(result.node),
        "runs": result.runs,
        "notes": list(result.notes),
        "reproduction": {
            "steps": [_step_data(step, manager) for step in steps],
            "pipeline": {name: _plain_number(getattr(failure.pipeline, name)) for name in _SETTINGS},
            "limit": {"first": limit.first, "only": None if limit.only is None else asdict(limit.only)},
            "tolerance": asdict(failure.tolerance),
            "slower_than": failure.slower_than,
            "allow": list(allow),
        },
        "left_out": list(left_out),
    }


def _readme(result: BisectResult, report: Mapping[str, Any]) -> Iterator[str]:
    culprit = result.culprit
    assert culprit is not None
    yield f"# Pass {_code(culprit.name)} of {_code(culprit.provider)}"
    yield ""
    yield f"Result: {result.judgement.kind}. {_plain(result.judgement.text)}."
    yield ""
    yield f"- Pass: {_code(culprit.name)}, {culprit.position + 1} of {culprit.total}."
    if culprit.needs:
        yield f"- It is bad only after {', '.join(map(_code, culprit.needs))}."
    if result.rewrite is not None:
        rewrite = result.rewrite
        line = f", from {_code(rewrite.line)}" if rewrite.line else ""
        yield (
            f"- Rewrite: {_code(rewrite.what)} of node {_code(rewrite.node)}{line}, {rewrite.position + 1} of "
            f"{rewrite.total}{'' if rewrite.is_bad_alone else '; bad only after those before it'}."
        )
    if result.node is not None:
        node = result.node
        line = f", from {_code(node.line)}" if node.line else ""
        yield f"- Node: {_code(node.name)}, a {node.opcode} of {_code(node.target)}{line}. {_plain(node.reason)}."
        if node.new_inputs:
            yield f"- It is computed from new nodes: {', '.join(map(_code, node.new_inputs))}."
    for note in (*result.notes, *report["left_out"]):
        yield f"- {_plain(note)}"
    yield ""
    allow = "".join(f" {name}" for name in report["reproduction"]["allow"])
    yield "To see it again, where fxplug and the plugins that report.json names are installed:"
    yield ""
    yield f"    python reproduce.py{_plain(allow)}"
    yield ""
    yield "| file | |"
    yield "|---|---|"
    yield "| `before.fxplug`, `before.py` | the module before the pass, with its weights; the same to be read |"
    yield "| `after.fxplug`, `after.py` | after it, where it got that far |"
    yield "| `inputs.fxplug`, `expected.fxplug` | inputs and right result: `fxplug.load(...)()` returns them |"
    yield "| `config.json` | the passes with their options |"
    yield "| `report.json` | what was found, versions, and what `reproduce.py` does |"


def _plain(text: str) -> str:
    """Return text of a graph's or an error's in one line, without what Markdown would take for more."""
    return (
        printable(" ".join(text.split()))
        .replace("`", "'")
        .replace("|", "/")
        .replace("<", "(")
        .replace(">", ")")
        .rstrip(".")
    )


def _code(text: str) -> str:
    return f"`{_plain(text)}`"


# -- showing it again ------------------------------------------------------------------------------------------------


def reproduce(
    folder: str | os.PathLike[str], *, allow: Iterable[str] = (), manager: PluginManager | None = None
) -> Judgement:
    """Show a failure again from the folder that `BisectResult.write` has written.

    The pass is run on the stored module, restricted to the rewrite that was found, and the result compared with what
    is right. A pass that is not installed cannot be run: then the stored modules are compared. Nothing in the folder is
    run as Python.

    Args:
        folder: The folder.
        allow: Functions that the graphs may call besides; see `fxplug.load`.
        manager: Supplies the pass; by default the installed plugins.

    Returns:
        What is wrong; ``is_good`` when the failure does not show.

    Raises:
        StorageError: Something in the folder is missing, damaged, or not allowed.
    """
    place, allowed = Path(folder), tuple(allow)
    plugins = default_manager() if manager is None else manager
    data = _read(place)
    before = load(place / "before.fxplug", allow=allowed, manager=plugins)
    inputs = _values(place / "inputs.fxplug", (), plugins)
    if not isinstance(inputs, (tuple, list)):
        raise StorageError(
            f"Cannot reproduce the failure in {str(place)!r}: inputs.fxplug holds no sequence."
        )
    inputs = tuple(inputs)
    tolerance = Tolerance(**data["tolerance"])
    with seeded():
        right = _observed(place, before, inputs)
    if (place / "expected.fxplug").is_file():
        right = replace(right, output=_values(place / "expected.fxplug", allowed, plugins))

    def judge(module: GraphModule) -> Judgement:
        with seeded():
            return judge_here(module)

    def judge_here(module: GraphModule) -> Judgement:
        if data["slower_than"] is None:
            return judge_values(module, inputs, right, tolerance)
        ratio = slowdown(before, module, inputs)
        text = f"the module takes {ratio:.2f} times as long as before the pass"
        return Judgement("good" if ratio <= data["slower_than"] else "slow", text)

    steps, missing = _steps(data["steps"], plugins)
    if missing:
        if not (place / "after.fxplug").is_file():
            raise StorageError(
                f"Cannot reproduce the failure in {str(place)!r}: {missing}, and the module after it is not stored. "
                "Install it."
            )
        judged = judge(load(place / "after.fxplug", allow=allowed, manager=plugins))
        return replace(judged, text=f"{judged.text} ({missing}: from the stored modules)".strip())
    trials = Trials(Pipeline("reproduction", steps, **data["pipeline"]), inputs, judge)
    with seeded():
        return _run(trials, before, data["limit"])


def _values(path: Path, allow: Iterable[str], manager: PluginManager) -> Any:
    """Return what `_stored` has stored."""
    module = load(path, allow=allow, manager=manager)
    try:
        return module()
    except Exception as error:  # A program of somebody else's may raise anything.
        raise StorageError(f"Cannot read {str(path)!r}: it holds no values ({error!r}).") from error


def _observed(place: Path, module: GraphModule, inputs: tuple[Any, ...]) -> Run:
    try:
        return observe(module, inputs, SavedState(module))
    except Exception as error:
        raise StorageError(
            f"Cannot reproduce the failure in {str(place)!r}: before.fxplug fails on inputs.fxplug ({error!r})."
        ) from error


def _run(trials: Trials, before: GraphModule, limit: Mapping[str, Any]) -> Judgement:
    """Run the steps; the limit is for the last one."""
    *earlier, last = trials.pipeline.steps
    module = before
    if earlier:
        trial = trials.run(before, earlier)
        if trial.module is None:
            return trial.judgement
        module = trial.module
    only = None if limit["only"] is None else Rewrite(**limit["only"])
    return trials.run(module, [last], RewriteLimit(limit["first"], only)).judgement


def _read(place: Path) -> dict[str, Any]:
    try:
        report = json.loads((place / "report.json").read_text(encoding="utf-8"))
        _check_version(place, report)
        data: dict[str, Any] = report["reproduction"]
        _check(data)
    except OSError as error:
        raise StorageError(
            f"Cannot reproduce the failure in {str(place)!r}: {error.strerror or error}. Name a folder that "
            "fxplug bisect wrote."
        ) from error
    except StorageError:
        raise
    except (
        ValueError,
        KeyError,
        TypeError,
        AttributeError,
        IndexError,
        RecursionError,
        FxplugError,
    ) as error:
        raise StorageError(
            f"Cannot reproduce the failure in {str(place)!r}: its report.json is damaged ({error!r})."
        ) from error
    return data


def _check_version(place: Path, report: Mapping[str, Any]) -> None:
    if report["format"] != FORMAT or report["version"] != _VERSION:
        raise StorageError(
            f"Cannot reproduce the failure in {str(place)!r}: its report.json has format {report['format']!r}, "
            f"version {report['version']!r}; this fxplug reads {FORMAT!r}, version {_VERSION}."
        )


def _check(data: Mapping[str, Any]) -> None:
    """Raise an error of any kind where something is missing, or cannot be used."""
    _ = Tolerance(**data["tolerance"]).share + 0.0
    Pipeline("", (), **data["pipeline"])
    first, only, ratio = data["limit"]["first"], data["limit"]["only"], data["slower_than"]
    if only is not None:
        hash(Rewrite(**only))
    for number in (first, ratio):
        if number is not None and not isinstance(number, (int, float)):
            raise TypeError(f"{number!r} is no number")
    for step in data["steps"]:
        _ = step["name"], {**step["options"]}, step["provider"], step["can_be_made_again"]
        for name in _LIMITS:
            checked_limit(step["limits"][name], name)
    _ = data["steps"][0]


def _steps(entries: Sequence[Mapping[str, Any]], manager: PluginManager) -> tuple[list[PipelineStep], str]:
    """Return the steps, and what is missing for them."""
    steps: list[PipelineStep] = []
    for entry in entries:
        name = str(entry["name"])
        if not entry["can_be_made_again"]:
            return [], f"pass {name!r} is offered by no plugin"
        try:
            found = manager.resolve_pipeline([{**entry["options"], "name": name}]).steps
            limits = {limit: entry["limits"][limit] for limit in _LIMITS}
            steps += [replace(step, **limits) for step in found]
        except UnknownNameError:
            return [], f"pass {name!r} of {entry['provider']} is not installed"
    return steps, ""
