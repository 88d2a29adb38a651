"""A bar on the terminal while a command measures. Imported by the command line alone, since it needs rich."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

__all__ = ["progress_bar"]


@contextmanager
def progress_bar(title: str) -> Generator[Callable[[int, int | None], None]]:
    """Show on standard error how far something is; nothing where that is no terminal.

    Args:
        title: What is done.

    Yields:
        What is called with how much is done and how much there is to do, None where nobody knows.
    """
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task(title, total=None)

        def tell(done: int, total: int | None) -> None:
            bar.update(task, completed=done, total=total)

        yield tell
