"""Write the pages of the documentation that are made from the sources.

    python tools/generate_docs.py           # write them
    python tools/generate_docs.py --check   # say whether they are up to date, and change nothing

``docs/plugins/hooks.md`` and the pages in ``docs/plugins/hooks`` are made from the declarations and docstrings in
``fxplug/plugins/hookspecs.py``, which is read and not imported. ``docs/migration/torch-fx-names.md`` is made from the
names that torch.fx has and from ``tools/torch_fx_names.toml``; for it, torch and fxplug have to be installed.
``docs/migration/graph-differences.md`` is made from the differences that the tests allow.
``docs/plugins/configuration.md`` is made from ``tools/configuration.md`` and from the settings classes with the
docstrings of their attributes.
"""

from __future__ import annotations

import argparse
import ast
import re
import sys
import textwrap
from dataclasses import dataclass, field
from pathlib import Path

import configuration_page
import graph_differences
import torch_fx_names

_CHECKOUT = Path(__file__).resolve().parents[1]
_HOOKSPECS = _CHECKOUT / "fxplug" / "plugins" / "hookspecs.py"
_HOOKS_PAGE = _CHECKOUT / "docs" / "plugins" / "hooks.md"
_HOOK_PAGES = _CHECKOUT / "docs" / "plugins" / "hooks"
_CONFIGURATION_PAGE = _CHECKOUT / "docs" / "plugins" / "configuration.md"
_NAMES_PAGE = _CHECKOUT / "docs" / "migration" / "torch-fx-names.md"
_DIFFERENCES_PAGE = _CHECKOUT / "docs" / "migration" / "graph-differences.md"

_SECTION = re.compile(r"^# -- (.+?)(?: -+)?$")
_DOCSTRING_SECTION = re.compile(r"^(When|Args|Returns|Raises|Order|Errors|Example):$")
_ARGUMENT = re.compile(r"^(\w+): (.*)$")

_MADE = "<!-- Made by tools/generate_docs.py from fxplug/plugins/hookspecs.py. Edit that file, then run the tool. -->"

_INTRODUCTION = f"""\
{_MADE}

# Hooks

The whole extension surface of fxplug. [Your first plugin](first-plugin.md) shows how hooks are implemented and found.

"""

_LIFE_CYCLE = """\
## When they are called

```text
a plugin is loaded, once
    fxplug_register_passes, fxplug_register_backends, fxplug_register_commands
    fxplug_register_devices, fxplug_register_report_sections
    fxplug_register_effects, fxplug_register_decompositions, fxplug_register_flop_formulas
    fxplug_register_storage_targets, fxplug_register_constants
a program is traced
    fxplug_unwrap_module                    the root, until nobody answers
    fxplug_trace_started
    fxplug_leaf_functions
    each call of a module
        fxplug_unwrap_module
        fxplug_is_leaf_module
    each recorded call
        fxplug_create_argument              each argument of a foreign type
        fxplug_node_created
        fxplug_create_proxy
    fxplug_trace_finished
a pipeline runs
    each pass
        fxplug_pass_started
        fxplug_pass_finished
a module is shown
    fxplug_represent
```"""


@dataclass
class Docstring:
    """A docstring in Google's style, taken apart."""

    text: str
    """Summary and contract."""
    sections: dict[str, str] = field(default_factory=dict)
    """``"Args"``, ``"Returns"``, ``"Example"``, ... -> its lines, not indented."""


@dataclass(frozen=True)
class Hook:
    """One declaration."""

    name: str
    signature: str
    is_first_result: bool
    section: str
    docstring: Docstring


def main(arguments: list[str]) -> int:
    """Write or check the pages and return the exit status."""
    parser = argparse.ArgumentParser(description="Write the pages that are made from the sources.")
    parser.add_argument("--check", action="store_true", help="change nothing; fail if a page is out of date")
    options = parser.parse_args(arguments)
    try:
        pages = generate()
        superfluous = sorted(set(_HOOK_PAGES.glob("*.md")) - set(pages))
    except torch_fx_names.NamesError as error:
        sys.stderr.write(f"Cannot write {_NAMES_PAGE.relative_to(_CHECKOUT)}:\n{error}\n")
        return 1
    outdated = [path for path, text in pages.items() if not path.exists() or path.read_text("utf-8") != text]
    if options.check:
        for path in [*outdated, *superfluous]:
            name = path.relative_to(_CHECKOUT)
            sys.stderr.write(f"{name} is out of date. Run: python tools/generate_docs.py\n")
        return 1 if outdated or superfluous else 0
    for path in superfluous:
        path.unlink()
        print(f"removed {path.relative_to(_CHECKOUT)}")
    for path in outdated:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(pages[path], encoding="utf-8")
        print(f"wrote {path.relative_to(_CHECKOUT)}")
    return 0


def generate() -> dict[Path, str]:
    """Return every generated page with its text."""
    source = _HOOKSPECS.read_text(encoding="utf-8")
    return {
        _HOOKS_PAGE: hooks_page(source),
        **{_HOOK_PAGES / f"{name}.md": text for name, text in hook_pages(source).items()},
        _CONFIGURATION_PAGE: configuration_page.page(),
        _NAMES_PAGE: torch_fx_names.page(),
        _DIFFERENCES_PAGE: graph_differences.page(),
    }


# -- the pages of hooks


def hooks_page(source: str) -> str:
    """Return the index of the declarations in `source`."""
    tree = ast.parse(source)
    introduction = _prose(parse_docstring(ast.get_docstring(tree) or "").text)
    # The first paragraph says what the file is, which readers of the page need not know.
    _, _, contract = introduction.partition("\n\n")
    parts = [_INTRODUCTION + contract, _LIFE_CYCLE]
    section = ""
    for hook in _hooks_of(tree, source):
        row = f"| [`{hook.name}`](hooks/{hook.name}.md) | {_answer(hook)} | {_summary(hook)} |"
        if hook.section == section:
            parts[-1] += f"\n{row}"
            continue
        section = hook.section
        parts.append(f"## {section[0].upper()}{section[1:]}")
        parts.append(f"| hook | answers | meaning |\n|---|---|---|\n{row}")
    return "\n\n".join(parts) + "\n"


def hook_pages(source: str) -> dict[str, str]:
    """Return the page of each hook that `source` declares, by its name."""
    return {hook.name: _hook_page(hook) for hook in _hooks_of(ast.parse(source), source)}


def _hooks_of(tree: ast.Module, source: str) -> list[Hook]:
    headings = {
        number: match[1]
        for number, line in enumerate(source.splitlines(), 1)
        if (match := _SECTION.match(line)) is not None
    }
    found: list[Hook] = []
    for statement in tree.body:
        if not isinstance(statement, ast.FunctionDef) or not statement.decorator_list:
            continue
        section = [heading for number, heading in headings.items() if number < statement.lineno]
        decorator = ast.unparse(statement.decorator_list[0])
        returns = f" -> {ast.unparse(statement.returns)}" if statement.returns is not None else ""
        found.append(
            Hook(
                statement.name,
                f"{statement.name}({ast.unparse(statement.args)}){returns}",
                "firstresult=True" in decorator,
                section[-1] if section else "hooks",
                parse_docstring(ast.get_docstring(statement) or ""),
            )
        )
    return found


def _hook_page(hook: Hook) -> str:
    sections = hook.docstring.sections
    parts = [
        _MADE,
        f"# {hook.name}",
        _prose(hook.docstring.text),
        f"```text\n{hook.signature}\n```",
        f"Answers: {_answer(hook)}. All hooks: [Hooks](../hooks.md).",
        f"## When it is called\n\n{_prose(sections['When'])}",
    ]
    if "Args" in sections:
        rows = [f"| `{name}` | {_prose(text)} |" for name, text in _arguments(sections["Args"])]
        parts.append("## Arguments\n\n| argument | |\n|---|---|\n" + "\n".join(rows))
    parts += [f"## {name}\n\n{_prose(sections[name])}" for name in ("Returns", "Order", "Errors")]
    code = textwrap.dedent(sections["Example"].replace("::", "", 1)).strip("\n")
    parts.append(f"## The smallest plugin\n\n```python\n{code}\n```")
    return "\n\n".join(parts) + "\n"


def _answer(hook: Hook) -> str:
    if hook.is_first_result:
        return "the first one counts"
    return "none is expected" if hook.signature.endswith("-> None") else "all are collected"


def _summary(hook: Hook) -> str:
    return _prose(hook.docstring.text.partition("\n\n")[0])


def _arguments(section: str) -> list[tuple[str, str]]:
    """Return name and text of each argument in an ``Args`` section."""
    found: list[tuple[str, str]] = []
    for line in section.splitlines():
        match = _ARGUMENT.match(line)
        if match is not None:
            found.append((match[1], match[2]))
        elif found and line.strip():
            name, text = found[-1]
            found[-1] = (name, f"{text} {line.strip()}")
    return found


# -- docstrings


def parse_docstring(text: str) -> Docstring:
    """Take a docstring in Google's style apart."""
    name = ""
    lines: dict[str, list[str]] = {name: []}
    for line in text.splitlines():
        match = _DOCSTRING_SECTION.match(line)
        if match is not None:
            name = match[1]
            lines[name] = []
        else:
            lines[name].append(line)
    sections = {key: textwrap.dedent("\n".join(value)).strip("\n") for key, value in lines.items()}
    return Docstring(sections.pop(""), sections)


def _prose(text: str) -> str:
    """Return prose as Markdown: one line for each paragraph, single backquotes for code."""
    paragraphs = [" ".join(part.split()) for part in text.split("\n\n")]
    return "\n\n".join(part.replace("``", "`") for part in paragraphs if part)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
