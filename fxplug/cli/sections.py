"""The sections that plugins add to a report."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fxplug.errors import PluginError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from fxplug.plugins import PluginManager, ReportContext, ReportSectionOffer

__all__ = ["Section", "make_sections", "one_line", "table_cell"]


@dataclass(frozen=True)
class Section:
    """A section as its plugin made it, or why there is none."""

    name: str
    """Full name."""
    provider: str
    """Distribution and version."""
    title: str
    text: str = ""
    """Markdown; empty where there are rows."""
    rows: tuple[tuple[str, ...], ...] = ()
    """A table, its head first."""
    error: str = ""
    """Why the section could not be written, in a sentence."""

    @property
    def entry(self) -> dict[str, Any]:
        """What ``report.json`` holds of it."""
        return {
            "name": self.name,
            "provider": self.provider,
            "title": self.title,
            "text": self.text or None,
            "rows": [list(row) for row in self.rows] or None,
            "error": self.error or None,
        }

    def markdown(self) -> Iterator[str]:
        """Yield the lines of ``report.md``."""
        yield ""
        yield f"## {one_line(self.title)}"
        yield ""
        if self.error:
            yield one_line(self.error)
        elif self.rows:
            head, *rows = self.rows
            for row in (head, ("---",) * len(head), *rows):
                yield f"| {' | '.join(table_cell(cell) for cell in row)} |"
        else:
            yield self.text.strip()


def make_sections(manager: PluginManager, context: ReportContext) -> list[Section]:
    """Return what plugins have to add to a report, in their order; a section that fails says so instead.

    Args:
        manager: Who is asked.
        context: What is reported on.

    Raises:
        PluginError: A section fails, and the manager is strict.
    """
    made = (_make(offer, context, strict=manager.strict) for offer in manager.report_sections().values())
    return [section for section in made if section is not None]


def _make(offer: ReportSectionOffer, context: ReportContext, *, strict: bool) -> Section | None:
    title = offer.record.summary.rstrip(".") or offer.name
    try:
        answer: Any = offer.record.factory(context)
        if answer is None:
            return None
        if isinstance(answer, str):
            return Section(offer.name, offer.provider, title, text=answer)
        rows = tuple(tuple(str(cell) for cell in row) for row in _checked_rows(answer))
        return Section(offer.name, offer.provider, title, rows=rows)
    except Exception as error:
        reason = (
            error.message if isinstance(error, PluginError) else f"raised {type(error).__name__}: {error}"
        )
        if strict:
            raise PluginError(
                f"Cannot write the report section {offer.name!r} of {offer.provider}: it {reason}. Report it to the "
                f"authors of {offer.distribution}, or switch the plugin off: FXPLUG_DISABLE_PLUGINS={offer.plugin}."
            ) from error
        return Section(
            offer.name,
            offer.provider,
            title,
            error=f"The report section {offer.name!r} of {offer.provider} was left out: it {reason}.",
        )


def _checked_rows(answer: Any) -> Sequence[Sequence[object]]:
    is_table = isinstance(answer, (list, tuple)) and all(isinstance(row, (list, tuple)) for row in answer)
    if not is_table or not answer or len({len(row) for row in answer}) > 1:
        raise PluginError(f"returned {answer!r}; it may return a text, rows of one length, or None")
    return answer


def one_line(text: str) -> str:
    """Return text with every run of white space as one space."""
    return " ".join(text.split())


def table_cell(text: str) -> str:
    """Return text as it can stand in a table of Markdown."""
    return one_line(text).replace("|", "\\|")
