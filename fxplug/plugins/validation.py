"""Checking what a configuration says. Imports pydantic, so it is itself imported only when it is needed."""

from __future__ import annotations

import copy
import math
import re
import typing
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from types import UnionType
from typing import TYPE_CHECKING, Any, cast

from pydantic import TypeAdapter, ValidationError

from fxplug.errors import ConfigError, FxplugError, PluginError, did_you_mean
from fxplug.plugins.settings import ConfigFinding, Settings

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from fxplug.plugins.locations import Key
    from fxplug.plugins.settings import ConfigSource, PipelineConfig

    Locate = Callable[[Key], ConfigSource]

__all__ = ["examine_settings", "validate_options", "validate_settings"]

_settings = TypeAdapter(Settings)


@dataclass(frozen=True)
class _Problem:
    key: Key
    text: str
    """Begins with what is wrong, the key not named yet when it is a value that is wrong."""


def validate_settings(table: Any, file: Path, locate: Locate) -> Settings:
    """Return the settings that a table of a configuration file holds.

    Args:
        table: What TOML gave.
        file: Named in errors.
        locate: Tells on which line a key stands.

    Raises:
        ConfigError: The message lists every problem with its line.
    """
    settings, problems = _examine(table)
    if problems:
        raise ConfigError(_message(f"Cannot use the configuration {file}", problems, locate))
    return settings


def examine_settings(
    table: Any, locate: Locate, forget: Callable[[Key], None]
) -> tuple[Settings, list[ConfigFinding]]:
    """Return the settings that a table holds without what is wrong in it, and what is wrong.

    Args:
        table: What TOML gave.
        locate: Tells on which line a key stands.
        forget: Told of each value that is left out: elements behind it, if it was in a list, move up.
    """
    if not isinstance(table, dict):
        (problem,) = _examine(table)[1]
        return Settings(), [ConfigFinding("error", problem.text, locate(()), hides_selection=True)]
    left: dict[str, Any] = copy.deepcopy(cast("dict[str, Any]", table))
    findings: list[ConfigFinding] = []
    while True:
        settings, problems = _examine(left)
        if not problems:
            return settings, sorted(findings, key=lambda finding: finding.source.line or 0)
        findings += [
            ConfigFinding("error", problem.text, locate(problem.key), _may_select(left, problem.key))
            for problem in problems
        ]
        # Elements at the end of a list first, so that the others keep their positions until they are taken out.
        for key in sorted({problem.key for problem in problems}, key=_position_order, reverse=True):
            forget(_remove(left, key))


def _examine(table: Any) -> tuple[Settings, list[_Problem]]:
    problems = [*_unknown_keys(table, Settings, ()), *_loose_values(table, Settings, ())]
    if problems:
        return Settings(), problems
    try:
        settings = _settings.validate_python(table)
    except ValidationError as error:
        return Settings(), _from_pydantic(error)
    return settings, list(_malformed_values(settings))


def _may_select(table: dict[str, Any], key: Key) -> bool:
    """Return whether what is wrong at a key may have said which plugins take part."""
    if not key:
        return True
    known = {entry.name for entry in fields(Settings)}
    if key[:1] != ("plugins",) and key[0] in known:
        return False
    if key[:2] in {("plugins", "require"), ("plugins", "strict")} or (
        key[:2] == ("plugins", "disable") and key[2:]
    ):
        return False  # The other names of the list are understood.
    value: Any = table
    for part in key:
        value = value.get(part) if isinstance(value, dict) else None
    return bool(value) and isinstance(value, (str, list, dict))  # Nothing else holds names.


def _position_order(key: Key) -> list[tuple[int, str]]:
    return [(part, "") if isinstance(part, int) else (-1, part) for part in key]


def _remove(table: dict[str, Any], key: Key) -> Key:
    """Take out the value of a key, or if it is missing the table that should have it; return what was taken out."""
    if not key:
        table.clear()
        return key
    holder: Any = table
    try:
        for part in key[:-1]:
            holder = holder[part]
        del holder[key[-1]]
    except (KeyError, IndexError, TypeError):
        return _remove(table, key[:-1])
    return key


def validate_options(
    options: type[Any] | None, values: Mapping[str, Any], what: str, locate: Locate | None
) -> dict[str, Any]:
    """Return the keyword arguments that options give to a factory.

    Args:
        options: The dataclass that a record declares.
        values: What the configuration or an argument says.
        what: Whose options these are, for errors: ``"pass 'quant:static-int8'"``.
        locate: Tells where an option stands, or for an empty key all of them; None when they are an argument.

    Raises:
        ConfigError: An option is unknown, missing, or has a value of the wrong kind.
        PluginError: What the record declares cannot be checked against.
    """
    if options is None:
        if values:
            _refuse(
                what,
                locate,
                [
                    _Problem(
                        (next(iter(values)),),
                        f"it takes no options, but {_quoted(values)} was given. Leave it out.",
                    )
                ],
            )
        return {}
    try:
        adapter = TypeAdapter(options)
        problems = list(_unknown_keys(dict(values), options, ()))
        # Those of passes may be given as text, on the command line.
        problems = problems or list(_loose_values(dict(values), options, (), numbers=(int, float, str)))
    except Exception as error:
        raise PluginError(
            f"Cannot check the options of {what}: the annotations of {options.__qualname__} do not resolve "
            f"({type(error).__name__}: {error}). The plugin must import, at run time, the types they name."
        ) from error
    checked: Any = None
    if not problems:
        try:
            checked = adapter.validate_python(dict(values))
        except ValidationError as error:
            problems = _from_pydantic(error)
    if problems:
        _refuse(what, locate, problems)
    return {option.name: getattr(checked, option.name) for option in fields(options) if option.init}


def _refuse(what: str, locate: Locate | None, problems: list[_Problem]) -> typing.NoReturn:
    where = ""
    if locate is not None:
        source = locate(problems[0].key if len(problems) == 1 else ())
        where = f" at {source}" if source.file is not None else ""
    lines = None if len(problems) == 1 else locate
    raise ConfigError(_message(f"Cannot use the options of {what}{where}", problems, lines))


def _message(prefix: str, problems: list[_Problem], locate: Locate | None) -> str:
    lines = [_located(problem, locate) for problem in problems]
    if len(lines) == 1:
        return f"{prefix}: {lines[0]}"
    return "\n  - ".join([f"{prefix}, it has {len(lines)} problems:", *lines])


def _located(problem: _Problem, locate: Locate | None) -> str:
    line = None if locate is None or not problem.key else locate(problem.key).line
    return problem.text if line is None else f"line {line}: {problem.text}"


def _quoted(names: Iterable[str]) -> str:
    return ", ".join(repr(name) for name in names)


# -- what is wrong -------------------------------------------------------------------------------------------


def _unknown_keys(table: Any, model: type[Any], path: Key) -> Iterator[_Problem]:
    """Yield a problem for every key that `model`, or a dataclass below it, does not have."""
    if not isinstance(table, dict):
        return
    known = {entry.name for entry in fields(model)}
    hints = typing.get_type_hints(model)
    for name, value in cast("dict[str, Any]", table).items():
        if name not in known:
            yield _unknown_key(path, name, known)
            continue
        below = hints[name]
        if is_dataclass(below):
            yield from _unknown_keys(value, cast("type[Any]", below), (*path, name))
        elif isinstance(value, dict) and (element := _element_model(below)) is not None:
            for key, inner in cast("dict[str, Any]", value).items():
                yield from _unknown_keys(inner, element, (*path, name, key))


def _unknown_key(path: Key, name: str, known: set[str]) -> _Problem:
    table = ".".join(str(part) for part in path)
    text = f"there is no key {name!r}{f' in [{table}]' if table else ''}. {did_you_mean(name, known)}"
    if (*path, name) == ("tool",):
        text += " In this file the tables stand at the top: [plugins], [trace]."
    return _Problem((*path, name), text)


def _element_model(annotation: Any) -> type[Any] | None:
    if typing.get_origin(annotation) is not dict:
        return None
    element = typing.get_args(annotation)[1]
    return cast("type[Any]", element) if is_dataclass(element) else None


_WORDS: dict[Any, str] = {bool: "true or false", int: "a whole number", float: "a number", str: "a text"}
"""Types of plain values, and how messages call them. Pydantic takes some for others: the text "yes" is true to it."""


def _loose_values(
    table: Any, model: type[Any], path: Key, numbers: tuple[type, ...] = (int, float)
) -> Iterator[_Problem]:
    """Yield a problem for every plain value that would have to be read as one of another type.

    Args:
        table: The values.
        model: The dataclass that says which are wanted.
        path: Where the table stands.
        numbers: Types of values that may be numbers; which of them are, pydantic finds out.
    """
    if not isinstance(table, dict):
        return
    hints = typing.get_type_hints(model)
    for name, value in cast("dict[str, Any]", table).items():
        if name in hints:
            yield from _loose_value(value, hints[name], (*path, name), numbers)


def _loose_value(value: Any, annotation: Any, path: Key, numbers: tuple[type, ...]) -> Iterator[_Problem]:
    if is_dataclass(annotation):
        yield from _loose_values(value, cast("type[Any]", annotation), path, numbers)
        return
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if isinstance(value, dict) and origin is dict:
        for key, inner in cast("dict[str, Any]", value).items():
            yield from _loose_value(inner, arguments[1], (*path, key), numbers)
    elif isinstance(value, list) and origin in {list, tuple} and arguments[1:] in {(), (...,)}:
        for position, inner in enumerate(cast("list[Any]", value)):
            yield from _loose_value(inner, arguments[0], (*path, position), numbers)
    elif type(value) in _WORDS:
        kinds = arguments if origin in {typing.Union, UnionType} else (annotation,)
        wanted = [kind for kind in kinds if kind is not type(None)]
        if wanted and all(kind in _WORDS for kind in wanted) and not _fits(value, wanted, numbers):
            expected = " or ".join(_WORDS[kind] for kind in wanted)
            yield _Problem(path, f"{_dotted(path)} is {value!r}, but input should be {expected}.")


def _fits(value: Any, wanted: list[Any], numbers: tuple[type, ...]) -> bool:
    kind = type(value)
    return (
        kind in wanted
        or (float in wanted and kind in numbers)
        or (int in wanted and kind is str and str in numbers)
    )


def _from_pydantic(error: ValidationError) -> list[_Problem]:
    """Return one problem per key; where several kinds of value are allowed, pydantic reports each of them."""
    missing: list[_Problem] = []
    wrong: dict[Key, tuple[Any, list[str]]] = {}
    for detail in error.errors(include_url=False):
        key: Key = tuple(part for part in detail["loc"] if not _is_branch(part))
        if detail["type"] in {"missing", "missing_argument"}:
            missing.append(_Problem(key, f"{_dotted(key)} is missing. Add it."))
        elif isinstance(said := detail.get("ctx", {}).get("error"), FxplugError):
            missing.append(_Problem(key, said.message))  # The options say themselves what is wrong.
        else:
            wrong.setdefault(key, (detail["input"], []))[1].append(_expectation(detail["msg"]))
    return [
        *(
            _Problem(key, f"{_dotted(key)} is {value!r}, but {' or '.join(expected)}.")
            for key, (value, expected) in wrong.items()
        ),
        *missing,
    ]


def _dotted(key: Key) -> str:
    return repr(".".join(str(part) for part in key)) if key else "the whole"


def _expectation(text: str) -> str:
    """Put what pydantic says about a value into the words of TOML."""
    text = text[0].lower() + text[1:]
    text = re.sub(r" or an instance of \w+", "", text)
    return re.sub(
        r"\b(tuple|dictionary|dict)\b", lambda word: "list" if word[0] == "tuple" else "table", text
    )


def _is_branch(part: str | int) -> bool:
    """Tell the names by which pydantic says which member of a union it tried from those of keys."""
    return isinstance(part, str) and (
        part in {"str", "int", "float", "bool"} or part.startswith(("dict[", "tuple["))
    )


def _malformed_tolerances(name: str, pipeline: PipelineConfig) -> Iterator[_Problem]:
    for key in ("rtol", "atol"):
        value = getattr(pipeline, key)
        if value is not None and not (math.isfinite(value) and value >= 0):
            text = f"'pipelines.{name}.{key}' is {value}, but input should be finite and not negative."
            yield _Problem(("pipelines", name, key), text)


def _malformed_values(settings: Settings) -> Iterator[_Problem]:
    for name, pipeline in settings.pipelines.items():
        if not name.strip():
            yield _Problem(("pipelines", name), "a pipeline has no name. Write [pipelines.mine].")
        for position, entry in enumerate(pipeline.passes):
            if isinstance(entry, dict) and not isinstance(entry.get("name"), str):
                key = ("pipelines", name, "passes", position)
                found = f"pipelines.{name}.passes.{position}"
                yield _Problem(key, f'{found!r} does not say which pass it is. Add name = "...".')
        yield from _malformed_limits(name, pipeline)
        yield from _malformed_tolerances(name, pipeline)
    yield from _malformed_globs(settings)
    yield from _malformed_folder(settings.cache.folder)
    if settings.cache.size_limit < 0:
        yield _Problem(
            ("cache", "size_limit"),
            f"'cache.size_limit' is {settings.cache.size_limit}. Give a number of bytes that is not negative.",
        )


def _malformed_globs(settings: Settings) -> Iterator[_Problem]:
    for key, example in (
        ("leaf_modules", "torch.nn.*"),
        ("through_modules", "torch.nn.*"),
        ("leaf_functions", "mypkg.ops:*"),
    ):
        for position, pattern in enumerate(getattr(settings.trace, key)):
            fault = _fault_of_glob(pattern, is_function=key == "leaf_functions")
            if fault:
                text = f"'trace.{key}' holds {fault}. Write a glob such as {example!r}."
                yield _Problem(("trace", key, position), text)


def _fault_of_glob(pattern: str, *, is_function: bool) -> str:
    if not pattern:
        return "an empty text"
    if is_function:
        is_name = re.fullmatch(r"[^:]+:[^:]+|[^.:]+(\.[^.:]+)+", pattern)
        return "" if is_name else f"{pattern!r}, which names no function of a module"
    is_name = pattern == pattern.strip() == pattern.strip(".") and ".." not in pattern
    return "" if is_name else f"{pattern!r}, which no name can match"


def _malformed_folder(folder: str) -> Iterator[_Problem]:
    fault = "has no name" if folder and not folder.strip() else ""
    try:
        Path(folder).expanduser()
    except RuntimeError:
        fault = f"is {folder!r}, and there is no such user"
    if fault:
        yield _Problem(
            ("cache", "folder"), f"'cache.folder' {fault}. Write a path, or leave it out for no cache."
        )


def _malformed_limits(name: str, pipeline: PipelineConfig) -> Iterator[_Problem]:
    for limit in ("time_limit", "hard_time_limit"):
        seconds = getattr(pipeline, limit)
        if seconds is not None and not seconds > 0:
            text = f"'pipelines.{name}.{limit}' is {seconds!r}. Give a number of seconds above 0."
            yield _Problem(("pipelines", name, limit), text)
