"""Every public name of torch.fx, and what takes its place in fxplug.

The names are read from the sources of the installed torch: what a module's ``__all__`` lists, and what it defines
without a leading underscore. What takes their place is written by hand in ``torch_fx_names.toml``; a name without a
line, a line without a name, and a counterpart that does not exist are errors.
"""

from __future__ import annotations

import ast
import dataclasses
import fnmatch
import importlib
import importlib.util
import inspect
import textwrap
from pathlib import Path
from typing import Any

import tomllib

__all__ = ["Answer", "NamesError", "check_and_render", "members_of", "names_in_source", "public_names"]

_LINES = Path(__file__).with_suffix(".toml")

_INTRODUCTION = """\
<!-- Made by tools/generate_docs.py from tools/torch_fx_names.toml. Edit that file, then run the tool. -->

# torch.fx, name by name

Every public name of torch.fx {version}, and what takes its place. A name that is there under `fxplug.fx` has the path
that it has in torch.fx, so that `fxplug.fx` in place of `torch.fx` is enough. "Planned" is what the design of fxplug
provides for and nobody has built yet. What behaves differently is told in
[Migrating from torch.fx](../migrating-from-torch-fx.md).

| | names |
|---|---|
{summary}
"""


class NamesError(Exception):
    """The lines do not fit the names."""


@dataclasses.dataclass(frozen=True)
class Answer:
    """What is said of a name."""

    kind: str
    """``"there"``, ``"elsewhere"``, ``"planned"`` or ``"not planned"``."""
    text: str
    """As it stands on the page; for ``"there"``, the path."""
    note: str
    """What differs, where anything does."""


_KINDS = {
    "there": "there under the same path",
    "elsewhere": "there under another name or in another form",
    "planned": "planned",
    "not planned": "not planned",
}


# -- what torch.fx has


def public_names(package: Path, name: str = "torch.fx") -> dict[str, list[str]]:
    """Return module -> its public names, for every public module below a package, in order."""
    found: dict[str, list[str]] = {}
    for path in sorted(package.rglob("*.py")):
        parts = path.relative_to(package).with_suffix("").parts
        if parts[-1] == "__init__":
            parts = parts[:-1]
        if any(part.startswith("_") for part in parts):
            continue
        module = ".".join((name, *parts))
        names = names_in_source(
            path.read_text(encoding="utf-8"), name if path.name == "__init__.py" else None
        )
        if names:
            found[module] = names
    return found


def names_in_source(source: str, package: str | None = None) -> list[str]:
    """Return what ``__all__`` lists and what a module defines in public, sorted.

    Args:
        source: Of the module.
        package: For a package, its name: what it imports from inside of it counts as its own.
    """
    names: set[str] = set()
    waiting: list[ast.stmt] = list(ast.parse(source).body)
    while waiting:
        statement = waiting.pop()
        if isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            names.add(statement.name)
        elif isinstance(statement, (ast.Assign, ast.AnnAssign)):
            targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
            assigned = [target.id for target in targets if isinstance(target, ast.Name)]
            names.update(assigned)
            if "__all__" in assigned and statement.value is not None:
                names.update(ast.literal_eval(statement.value))
        elif (
            isinstance(statement, ast.ImportFrom) and package and (statement.module or "").startswith(package)
        ):
            names.update(alias.asname or alias.name for alias in statement.names)
        for block in ("body", "orelse", "finalbody"):
            if not isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
                waiting.extend(getattr(statement, block, []))
    return sorted(name for name in names if not name.startswith("_"))


def members_of(kind: type) -> set[str]:
    """Return the public members of a class: methods, properties, and what its instances are given when they are made.

    What comes from classes outside of its library, such as ``torch.nn.Module``, does not count.
    """
    library = ".".join(kind.__module__.split(".")[: 2 if kind.__module__.startswith("torch.") else 1])
    foreign: set[str] = set()
    own: set[str] = set()
    for base in kind.__mro__:
        if not (base.__module__.startswith(library) or base.__module__ == "torch._C"):
            foreign.update(dir(base))
            continue
        own.update(vars(base), getattr(base, "__annotations__", {}))
        if "__init__" in vars(base):
            own.update(_set_on_self(base))
    return {name for name in own - foreign if not name.startswith("_")}


def _set_on_self(kind: type) -> set[str]:
    try:
        source = textwrap.dedent(inspect.getsource(vars(kind)["__init__"]))
    except (OSError, TypeError):
        return set()
    return {
        target.attr
        for target in ast.walk(ast.parse(source))
        if isinstance(target, ast.Attribute)
        and isinstance(target.ctx, ast.Store)
        and isinstance(target.value, ast.Name)
        and target.value.id == "self"
    }


# -- what is said of it


class _Lines:
    """The lines of the file, found by module and name; notes which of them were of use."""

    def __init__(self, sections: dict[str, dict[str, str]], what: str) -> None:
        self._sections = sections
        self._what = what
        self._used: set[tuple[str, str]] = set()

    def find(self, holder: str, name: str) -> str | None:
        """Return the line for a name: one for the name itself before one for a pattern, the narrowest section first."""
        matching = [
            (key != name, section != holder, -len(section), -len(key), section, key)
            for section, lines in self._sections.items()
            if fnmatch.fnmatchcase(holder, section)
            for key in lines
            if fnmatch.fnmatchcase(name, key)
        ]
        if not matching:
            return None
        *_, section, key = min(matching)
        self._used.add((section, key))
        return self._sections[section][key]

    def unused(self) -> list[str]:
        """Return the lines that speak of nothing."""
        return [
            f"the line {key!r} of [{self._what}.{section!r}] speaks of no name"
            for section, lines in self._sections.items()
            for key in lines
            if (section, key) not in self._used
        ]


def _resolve(path: str) -> Any:
    """Return the object at a dotted path, importing as much of it as is a module."""
    parts = path.split(".")
    found: Any = importlib.import_module(parts[0])
    for number, part in enumerate(parts[1:], 2):
        if hasattr(found, part):
            found = getattr(found, part)
            continue
        module = ".".join(parts[:number])
        try:
            found = importlib.import_module(module)
        except ModuleNotFoundError as error:
            if error.name not in {module, None} and not module.startswith(f"{error.name}."):
                raise  # It is there, and what it imports is not.
            raise AttributeError(path) from None
    return found


def _answer(line: str, same: str, exists: Any) -> Answer:
    """Return what a line says.

    Args:
        line: ``"same"``, ``"fxplug..."``, either with ``"; note"``, ``"planned: ..."`` or ``"not planned: ..."``.
        same: What ``"same"`` means.
        exists: Asked whether there is something at a path.

    Raises:
        NamesError: It speaks of something that does not exist, or has another form.
    """
    path, _, note = line.partition("; ")
    if path == "same":
        if not exists(same):
            raise NamesError(f"there is no {same}")
        return Answer("there", same, note)
    if exists(same):
        raise NamesError(
            f"there is {same}, and its line says {line!r}; say 'same', with a note where it differs"
        )
    kind, _, reason = line.partition(": ")
    if kind in {"planned", "not planned"} and reason:
        return Answer(kind, line, "")
    if not path.startswith("fxplug."):
        raise NamesError(f"{line!r} begins with none of 'same', 'fxplug.', 'planned: ', 'not planned: '")
    if not exists(path):
        raise NamesError(f"there is no {path}")
    return Answer("elsewhere", f"`{path}`", note)


def _path_exists(path: str) -> bool:
    try:
        _resolve(path)
    except AttributeError:
        return False
    return True


def _member_exists(path: str) -> bool:
    holder, _, name = path.rpartition(".")
    if _path_exists(path):
        return True
    return (
        _path_exists(holder) and isinstance(_resolve(holder), type) and name in members_of(_resolve(holder))
    )


def _with_home(path: str) -> str:
    """Return a path below ``fxplug.fx`` behind the one under which fxplug itself offers the object."""
    name = path.rpartition(".")[2]
    found = _resolve(path)
    homes = ["fxplug", ".".join(str(getattr(found, "__module__", "")).split(".")[:2])]
    for home in homes:
        shorter = f"{home}.{name}"
        if (
            home.startswith("fxplug")
            and home != "fxplug.fx"
            and _path_exists(shorter)
            and _resolve(shorter) is found
        ):
            return f"`{shorter}`, `{path}`"
    return f"`{path}`"


# -- the page


def check_and_render(
    names: dict[str, list[str]], members: dict[str, list[str]], lines: dict[str, Any], version: str
) -> str:
    """Return the page.

    Args:
        names: Module of torch.fx -> its public names.
        members: Class of torch.fx -> its public members.
        lines: What ``torch_fx_names.toml`` holds.
        version: Of torch.

    Raises:
        NamesError: Lines and names do not fit; the message lists everything that is wrong.
    """
    faults: list[str] = []
    of_modules = _Lines(lines.get("modules", {}), "modules")
    of_classes = _Lines(lines.get("members", {}), "members")
    answers: dict[str, dict[str, Answer]] = {}
    for holders, found, exists in ((names, of_modules, _path_exists), (members, of_classes, _member_exists)):
        for holder, entries in holders.items():
            for name in entries:
                line = found.find(holder, name)
                if line is None:
                    faults.append(f"{holder}.{name} has no line")
                    continue
                try:
                    answer = _answer(line, f"fxplug{holder.removeprefix('torch')}.{name}", exists)
                except NamesError as error:
                    faults.append(f"{holder}.{name}: {error}")
                    continue
                answers.setdefault(holder, {})[name] = answer
    faults += of_modules.unused() + of_classes.unused()
    if faults:
        raise NamesError("\n".join(faults))
    return _render(names, members, answers, version)


def _render(
    names: dict[str, list[str]],
    members: dict[str, list[str]],
    answers: dict[str, dict[str, Answer]],
    version: str,
) -> str:
    everything = [answer for entries in answers.values() for answer in entries.values()]
    summary = "\n".join(
        f"| {text} | {sum(answer.kind == kind for answer in everything)} |" for kind, text in _KINDS.items()
    )
    parts = [_INTRODUCTION.format(version=version, summary=summary).rstrip(), "## Modules"]
    parts += [_section(module, answers[module], of_class=False) for module in names]
    parts.append("## Members of classes")
    parts += [_section(kind, answers[kind], of_class=True) for kind in members]
    return "\n\n".join(parts) + "\n"


def _section(holder: str, answers: dict[str, Answer], *, of_class: bool) -> str:
    rows: list[str] = []
    if of_class:
        same = [f"`{name}`" for name, answer in answers.items() if answer.kind == "there" and not answer.note]
        if same:
            rows.append(f"| {', '.join(same)} | the same |")
    grouped: dict[str, list[str]] = {}
    for name, answer in answers.items():
        if answer.kind == "there" and of_class and not answer.note:
            continue
        text = answer.text
        if answer.kind == "there":
            text = "the same" if of_class else _with_home(answer.text)
        grouped.setdefault(f"{text}; {answer.note}" if answer.note else text, []).append(f"`{name}`")
    rows += [f"| {', '.join(group)} | {text} |" for text, group in grouped.items()]
    return "\n".join([f"### {holder}\n", "| torch.fx | fxplug |", "|---|---|", *rows])


def page() -> str:
    """Return the page for the torch that is installed.

    Raises:
        NamesError: Lines and names do not fit, or the lines were written for another torch.
    """
    lines = tomllib.loads(_LINES.read_text(encoding="utf-8"))
    torch = importlib.import_module("torch")
    if not torch.__version__.startswith(f"{lines['torch']}."):
        raise NamesError(
            f"{_LINES.name} speaks of torch {lines['torch']}, and torch {torch.__version__} is installed"
        )
    names = public_names(Path(torch.__file__).parent / "fx")
    members = {path: sorted(members_of(_resolve(path))) for path in lines["classes"]}
    return check_and_render(names, members, lines, lines["torch"])
