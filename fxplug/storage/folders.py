"""A folder of results: complete or not there."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fxplug.errors import StorageError

if TYPE_CHECKING:
    from collections.abc import Generator, Sequence

__all__ = ["OutputError", "OutputFolder"]


class OutputError(StorageError):
    """The output folder cannot be used."""

    code = "FXP-S010"


class OutputFolder:
    """A folder that appears, or takes the place of an earlier one, all at once.

    The files are written into a temporary folder beside it, which is then renamed. A folder that already has
    something in it is replaced only if it holds nothing but what fxplug wrote there.

    Args:
        path: The folder; missing parents are made.
        files: Names of what a complete folder may hold.
        report_format: The value of ``"format"`` in its report.json, by which a folder is recognised as ours.
    """

    def __init__(self, path: Path, files: Sequence[str], report_format: str) -> None:
        self.path = path
        self._files, self._format = tuple(files), report_format
        self._target = path.resolve()

    def check(self) -> None:
        """Find out now whether the folder could be written, leaving nothing behind.

        Raises:
            OutputError: It could not, or must not be replaced.
        """
        self._refuse_foreign()
        with self._temporary():
            pass

    @contextmanager
    def writing(self) -> Generator[Path]:
        """Yield a folder to be filled; it becomes the output folder unless an error is raised.

        Raises:
            OutputError: It cannot be written, or must not be replaced.
        """
        self._refuse_foreign()
        with self._temporary() as temporary:
            try:
                yield temporary
            except OSError as error:
                raise self._refused(error) from error
            except StorageError as error:
                message = error.message.replace(str(temporary), str(self.path))
                raise OutputError(f"{message} Nothing was written.", code=error.code) from error
            self._commit(temporary)

    def _commit(self, temporary: Path) -> None:
        try:
            if not self._target.exists():
                temporary.rename(self._target)
                return
            with tempfile.TemporaryDirectory(
                prefix=f".{self._target.name}.old-", dir=temporary.parent, ignore_cleanup_errors=True
            ) as old:
                former = Path(old) / "former"
                self._target.rename(former)
                try:
                    temporary.rename(self._target)
                except OSError:
                    former.rename(self._target)
                    raise
        except OSError as error:
            raise self._refused(error) from error

    @contextmanager
    def _temporary(self) -> Generator[Path]:
        made: list[Path] = []
        try:
            try:
                self._make_parents(made)
                temporary = Path(
                    tempfile.mkdtemp(prefix=f".{self._target.name}.new-", dir=self._target.parent)
                )
                made.append(temporary)
                temporary.chmod(0o777 & ~_umask())
            except OSError as error:
                raise self._refused(error) from error
            yield temporary
        finally:
            self._clean_up(made)

    def _make_parents(self, made: list[Path]) -> None:
        missing = [folder for folder in self._target.parents if not folder.exists()]
        for folder in reversed(missing):
            folder.mkdir()
            made.append(folder)

    def _clean_up(self, made: list[Path]) -> None:
        """Remove the temporary folder, if it was not renamed, and the parents that are empty again."""
        for folder in reversed(made):
            if folder.name.startswith(f".{self._target.name}.new-"):
                shutil.rmtree(folder, ignore_errors=True)
            else:
                with suppress(OSError):  # It holds the output.
                    folder.rmdir()

    def _refuse_foreign(self) -> None:
        if self._target == Path.cwd():
            raise OutputError(
                f"Cannot write to {str(self.path)!r}: it is the working directory. Name a folder of its own."
            )
        if not self._target.exists():
            return
        if not self._target.is_dir():
            raise OutputError(f"Cannot write to {str(self.path)!r}: it is a file. Name a folder.")
        try:
            names = sorted(entry.name for entry in self._target.iterdir())
        except OSError as error:
            raise self._refused(error) from error
        report = self._own_report()
        listed = [] if report is None else report.get("files")
        ours = {*self._files, *(map(str, listed) if isinstance(listed, list) else ())}
        foreign = [name for name in names if name not in ours]
        if names and (foreign or report is None):
            shown = ", ".join(foreign[:3] or names[:3]) + (", …" if len(foreign) > 3 else "")
            raise OutputError(
                f"Cannot write to {str(self.path)!r}: it holds what fxplug did not write there ({shown}). "
                f"Name a folder that is new or empty, or one that an earlier run wrote."
            )

    def _own_report(self) -> dict[str, Any] | None:
        """Return the report of an earlier run, which may list files of plugins; None where there is none of ours."""
        try:
            report: Any = json.loads((self._target / "report.json").read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return None
        return report if isinstance(report, dict) and report.get("format") == self._format else None

    def _refused(self, error: OSError) -> OutputError:
        reason = error.strerror or str(error)
        place = Path(error.filename) if isinstance(error.filename, str) else self._target
        if place.name.startswith(f".{self._target.name}."):
            place = place.parent  # The name of a temporary folder says nothing.
        where = f" ({place})" if place != self._target else ""
        return OutputError(
            f"Cannot write to {str(self.path)!r}: {reason}{where}. Name a folder that you may write."
        )


def _umask() -> int:
    current = os.umask(0o022)
    os.umask(current)
    return current
