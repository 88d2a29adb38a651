"""The sections that plugins add to a report."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from fxplug.errors import PluginError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from fxplug.api import OptimizationEvent
    from fxplug.passes import PassEvent
    from fxplug.plugins import PluginManager, ReportContext, ReportSectionOffer

__all__ = ["Section", "SectionObservers", "make_sections", "one_line", "table_cell"]


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


class SectionObservers:
    """The observers of passes that sections ask for. One that fails hears no more, and its section is left out.

    Args:
        manager: Whose sections they belong to.
    """

    def __init__(self, manager: PluginManager) -> None:
        self.observers: dict[str, Callable[[PassEvent], object]] = {}
        """Full name of the section -> its observer."""
        self.errors: dict[str, Exception] = {}
        """Full name of the section -> why its observer could not be made, or failed."""
        for name, offer in manager.report_sections().items():
            if offer.record.observer is not None:
                try:
                    self.observers[name] = offer.record.observer()
                except Exception as error:
                    self.errors[name] = error

    def observer_of(self, name: str) -> Callable[[PassEvent], object] | None:
        """Return the observer of a section, None where it asked for none; raise what made it fail."""
        if name in self.errors:
            raise self.errors[name]
        return self.observers.get(name)

    def hear(self, event: OptimizationEvent) -> None:
        """Hand on what is told of passes."""
        if event.pass_event is None:
            return
        for name, observer in list(self.observers.items()):
            try:
                observer(event.pass_event)
            except Exception as error:
                self.errors[name] = error
                del self.observers[name]


def make_sections(
    manager: PluginManager, context: ReportContext, observers: SectionObservers | None = None
) -> list[Section]:
    """Return what plugins have to add to a report, in their order; a section that fails says so instead.

    Args:
        manager: Who is asked.
        context: What is reported on.
        observers: What heard of the passes; None: nobody did.

    Raises:
        PluginError: A section fails, and the manager is strict.
    """
    offers = manager.report_sections().values()
    made = (_make(offer, context, observers, strict=manager.strict) for offer in offers)
    return [section for section in made if section is not None]


def _make(
    offer: ReportSectionOffer, context: ReportContext, heard: SectionObservers | None, *, strict: bool
) -> Section | None:
    title = offer.record.summary.rstrip(".") or offer.name
    try:
        if heard is not None:
            context = replace(context, observer=heard.observer_of(offer.name))
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
