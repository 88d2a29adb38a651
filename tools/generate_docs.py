"""Write the pages of the documentation that are made from the sources.

    python tools/generate_docs.py           # write them
    python tools/generate_docs.py --check   # say whether they are up to date, and change nothing

``docs/plugins/hooks.md`` is made from the declarations and docstrings in ``fxplug/plugins/hookspecs.py``, which is
read and not imported. ``docs/migration/torch-fx-names.md`` is made from the names that torch.fx has and from
``tools/torch_fx_names.toml``; for it, torch and fxplug have to be installed. ``docs/migration/graph-differences.md``
is made from the differences that the tests allow. ``docs/plugins/configuration.md`` is made from
``tools/configuration.md`` and from the settings classes with the docstrings of their attributes.
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
_CONFIGURATION_PAGE = _CHECKOUT / "docs" / "plugins" / "configuration.md"
_NAMES_PAGE = _CHECKOUT / "docs" / "migration" / "torch-fx-names.md"
_DIFFERENCES_PAGE = _CHECKOUT / "docs" / "migration" / "graph-differences.md"

_SECTION = re.compile(r"^# -- (.+?)(?: -+)?$")
_DOCSTRING_SECTION = re.compile(r"^(Args|Returns|Raises|Example):$")
_ARGUMENT = re.compile(r"^(\w+): (.*)$")

_INTRODUCTION = """\
<!-- Made by tools/generate_docs.py from fxplug/plugins/hookspecs.py. Edit that file, then run the tool. -->

# Hooks

The whole extension surface of fxplug. [Your first plugin](first-plugin.md) shows how hooks are implemented and found.

"""


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
    except torch_fx_names.NamesError as error:
        sys.stderr.write(f"Cannot write {_NAMES_PAGE.relative_to(_CHECKOUT)}:\n{error}\n")
        return 1
    outdated = [path for path, text in pages.items() if not path.exists() or path.read_text("utf-8") != text]
    if options.check:
        for path in outdated:
            name = path.relative_to(_CHECKOUT)
            sys.stderr.write(f"{name} is out of date. Run: python tools/generate_docs.py\n")
        return 1 if outdated else 0
    for path in outdated:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(pages[path], encoding="utf-8")
        print(f"wrote {path.relative_to(_CHECKOUT)}")
    return 0


def generate() -> dict[Path, str]:
    """Return every generated page with its text."""
    return {
        _HOOKS_PAGE: hooks_page(_HOOKSPECS.read_text(encoding="utf-8")),
        _CONFIGURATION_PAGE: configuration_page.page(),
        _NAMES_PAGE: torch_fx_names.page(),
        _DIFFERENCES_PAGE: graph_differences.page(),
    }


# -- the page of hooks


def hooks_page(source: str) -> str:
    """Return the page for the declarations in `source`."""
    tree = ast.parse(source)
    hooks = _hooks_of(tree, source)
    introduction = _prose(parse_docstring(ast.get_docstring(tree) or "").text)
    # The first paragraph says what the file is, which readers of the page need not know.
    _, _, contract = introduction.partition("\n\n")
    overview = [f"| [`{hook.name}`](#{hook.name}) | {_answer(hook)} | {_summary(hook)} |" for hook in hooks]
    parts = [
        _INTRODUCTION + contract,
        "| hook | answers | meaning |\n|---|---|---|\n" + "\n".join(overview),
        "The examples share this:",
        "```python\nfrom fxplug import hookimpl\n```",
    ]
    section = ""
    for hook in hooks:
        if hook.section != section:
            section = hook.section
            parts.append(f"## {section[0].upper()}{section[1:]}")
        parts.append(_hook_entry(hook))
    return "\n\n".join(parts) + "\n"


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


def _hook_entry(hook: Hook) -> str:
    docstring = hook.docstring
    parts = [f"### {hook.name}", f"```text\n{hook.signature}\n```", _prose(docstring.text)]
    if "Args" in docstring.sections:
        rows = [f"| `{name}` | {_prose(text)} |" for name, text in _arguments(docstring.sections["Args"])]
        parts.append("| argument | |\n|---|---|\n" + "\n".join(rows))
    if "Returns" in docstring.sections:
        parts.append(f"**Returns** {_lower_first(_prose(docstring.sections['Returns']))}")
    if "Example" in docstring.sections:
        code = textwrap.dedent(docstring.sections["Example"].replace("::", "", 1)).strip("\n")
        parts.append(f"```python\n{code}\n```")
    return "\n\n".join(parts)


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


def _lower_first(text: str) -> str:
    word = text.split(maxsplit=1)[0].strip(":.,") if text else ""
    # None, True and False are names, not the beginning of a sentence.
    return text if word in {"None", "True", "False"} else text[:1].lower() + text[1:]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
