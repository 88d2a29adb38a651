"""How the parts of this package say no: a `Refusal`, which `save` and `load` make a full message of."""

from __future__ import annotations

from typing import Any, cast

__all__ = ["Codes", "Refusal", "checked", "entry_fields", "have_forms", "places"]


class Codes:
    """The codes of refusals, one for each thing that there is to do; ``docs/errors.md`` explains them."""

    DAMAGED = "FXP-S000"
    UNREACHABLE = "FXP-S001"
    NO_ARCHIVE = "FXP-S002"
    CHANGED = "FXP-S003"
    TOO_LARGE = "FXP-S004"
    NEWER = "FXP-S005"
    PLUGIN = "FXP-S006"
    WEIGHT = "FXP-S007"
    NAME = "FXP-S008"
    REFERENCE = "FXP-S009"
    OPCODE = "FXP-S011"
    NOT_ALLOWED = "FXP-S012"
    PICKLE = "FXP-S013"
    UNSTORABLE = "FXP-S014"


class Refusal(Exception):  # noqa: N818 - not an error of its own: it always becomes a StorageError
    """Why something cannot be stored or restored, and what to do.

    Raised by code that does not know which file, node or submodule it works on. Each layer on the way up puts
    in front what it knows (`within`), and `save` and `load` turn the whole into a
    `fxplug.errors.StorageError`.

    Args:
        message: What was found, and what to do.
        code: One of `Codes`; by default the general one of whoever makes the full message.
    """

    def __init__(self, message: str, code: str | None = None) -> None:
        super().__init__(message)
        self.code = code

    def within(self, place: str) -> Refusal:
        """Return the same refusal with `place` in front, e.g. ``"node 'add'"``."""
        return Refusal(f"{place}: {self}", self.code)


def checked(value: Any, kind: type | tuple[type, ...], what: str) -> Any:
    """Return `value` if its exact type is `kind` or one of them.

    Args:
        value: Something read from a file.
        kind: The expected type; a bool is no int here.
        what: Names the value in the message.

    Raises:
        Refusal: It is of another type.
    """
    if type(value) is kind:  # Almost always.
        return value
    kinds = kind if isinstance(kind, tuple) else (kind,)
    if type(value) not in kinds:
        expected = " or ".join(one.__name__ for one in kinds)
        raise Refusal(
            f"{what} is a {type(value).__name__} where {expected} was expected. The file is damaged."
        )
    return value


def entry_fields(entry: Any, what: str, required: frozenset[str], optional: frozenset[str]) -> dict[str, Any]:
    """Return a JSON object after checking which fields it has.

    Raises:
        Refusal: It is no object, lacks a field, or has one that this version does not know.
    """
    fields = cast("dict[str, Any]", checked(entry, dict, what))
    known = 0
    for name in fields:  # No sets of names, which would be made for every entry of a file.
        if name in required:
            known += 1
        elif name not in optional:
            known = -len(fields)
    if known != len(required):
        missing = required - fields.keys()
        unknown = fields.keys() - required - optional
        fault = f"lacks {sorted(missing)}" if missing else f"has the unknown field {min(unknown)!r}"
        raise Refusal(f"{what} {fault}. The file is damaged.")
    return fields


def places(value: Any, limit: int, what: str) -> int:
    """Return `value` if it is a whole number from 0 up to but not including `limit`.

    Raises:
        Refusal: It is not, so that what it refers to does not exist, or does not come earlier.
    """
    if type(value) is not int or not 0 <= value < limit:
        raise Refusal(
            f"{what} is {value!r}, which refers to nothing that comes earlier. The file is damaged.",
            Codes.REFERENCE,
        )
    return value


def have_forms(rows: list[Any], forms: frozenset[tuple[Any, ...]]) -> bool:
    """Return whether all rows of a table are lists, and the types of the parts of each are one of `forms`.

    Args:
        rows: Something read from a file.
        forms: Tuples of exact types; none has more than four.
    """
    return (
        _LIST.issuperset(map(type, rows))
        and max(map(len, rows), default=0) <= _MOST_PARTS
        and forms.issuperset(tuple(map(type, row)) for row in rows)
    )


_LIST = frozenset({list})
_MOST_PARTS = 4
