"""A program, run by `fxplug.testing.importing`: imports an entry module and writes down what that does.

Its argument is a JSON file with ``path`` (for `sys.path`), ``target`` (the module), ``engines`` (what backends
require -> names of its modules) and ``result`` (the file to be written).
"""

from __future__ import annotations

import json
import logging
import os
import random
import sys
import tempfile
import threading
import warnings
from contextlib import contextmanager
from dataclasses import MISSING, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
_EVENTS = {
    "os.chmod": "changes the mode of {0!r}",
    "os.mkdir": "makes the folder {0!r}",
    "os.remove": "removes {0!r}",
    "os.rename": "renames {0!r}",
    "os.rmdir": "removes the folder {0!r}",
    "os.symlink": "makes the link {1!r}",
    "os.link": "makes the link {1!r}",
    "os.truncate": "truncates {0!r}",
    "os.system": "runs the command {0!r}",
    "os.exec": "runs {0!r}",
    "os.posix_spawn": "runs {0!r}",
    "subprocess.Popen": "runs {0!r}",
    "socket.connect": "connects to {1!r}",
    "socket.bind": "opens the port {1!r}",
    "socket.getaddrinfo": "asks for the address of {0!r}",
    "urllib.Request": "asks for {0!r}",
    "os.fork": "forks",
}


class Watch:
    """Writes down events of the interpreter while it is switched on."""

    def __init__(self) -> None:
        self.is_on = False
        self.effects: list[str] = []
        self.imports: list[str] = []

    def __call__(self, event: str, arguments: tuple[Any, ...]) -> None:
        """Hear of an event, as `sys.addaudithook` has it."""
        if not self.is_on:
            return
        if event == "import":
            self.imports.append(str(arguments[0]))
        elif event == "open":
            path, mode, flags = arguments
            if path != os.devnull and not isinstance(path, int) and _opens_for_writing(mode, flags):
                self.effects.append(f"writes the file {path!r}")
        elif event in _EVENTS:
            self.effects.append(_EVENTS[event].format(*arguments))


def _opens_for_writing(mode: Any, flags: Any) -> bool:
    if isinstance(mode, str):
        return any(letter in mode for letter in "wxa+")
    return bool(flags & _WRITES)


@contextmanager
def caught_output() -> Generator[list[str]]:
    """Catch what is written to standard output and standard error, by whatever language.

    Yields:
        A list that holds the text afterwards.
    """
    caught: list[str] = []
    _flush()
    former = [os.dup(1), os.dup(2)]
    with tempfile.TemporaryFile() as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
        try:
            yield caught
        finally:
            _flush()
            for number, descriptor in enumerate(former, 1):
                os.dup2(descriptor, number)
                os.close(descriptor)
            file.seek(0)
            caught.append(file.read().decode(errors="replace"))


def _flush() -> None:
    sys.stdout.flush()
    sys.stderr.flush()


def state() -> dict[str, Any]:
    """Return what an import has to leave as it is: name of the thing -> its value as text."""
    import torch  # noqa: PLC0415 - only the program needs it, not its tests

    root = logging.getLogger()
    return {
        "sys.path": repr(sys.path),
        "sys.meta_path": repr(
            [getattr(finder, "__name__", type(finder).__name__) for finder in sys.meta_path]
        ),
        "os.environ": repr(sorted(os.environ.items())),
        "the working directory": str(Path.cwd()),
        "the filters of warnings": repr(warnings.filters),
        "the handlers or the level of the root logger": repr((root.level, root.handlers)),
        "the random state of Python": repr(hash(random.getstate())),
        "the running threads": repr(sorted(thread.name for thread in threading.enumerate())),
        "sys.excepthook": repr(sys.excepthook),
        "the default dtype of torch": repr(torch.get_default_dtype()),
        "the default device of torch": repr(torch.get_default_device()),
        "the number of threads of torch": repr((torch.get_num_threads(), torch.get_num_interop_threads())),
        "torch.is_grad_enabled()": repr(torch.is_grad_enabled()),
        "the random state of torch": repr(torch.get_rng_state().tolist()),
        "torch.use_deterministic_algorithms": repr(torch.are_deterministic_algorithms_enabled()),
    }


def _prepare() -> None:
    """Import what a host has imported before it imports a plugin."""
    import importlib  # noqa: PLC0415 - see state()

    for name in (
        "",
        ".analyze",
        ".api",
        ".lower",
        ".passes",
        ".plugins",
        ".rewrite",
        ".storage",
        ".testing.behaviour",
    ):
        module = importlib.import_module(f"fxplug{name}")
        # The facade loads what is asked for, and so do some layers; a host has asked for all that these have.
        for entry in module.__all__ if name else ():
            getattr(module, entry)


def watch_import(target: str) -> dict[str, Any]:
    """Import a module and return what that did besides."""
    import importlib  # noqa: PLC0415 - see state()

    _prepare()
    watch, before, modules = Watch(), state(), set(sys.modules)
    sys.addaudithook(watch)
    error = ""
    with caught_output() as output:
        watch.is_on = True
        try:
            importlib.import_module(target)
        except (Exception, SystemExit) as raised:  # Written down.
            error = f"{type(raised).__name__}: {raised}"
        watch.is_on = False
    after = state()
    return {
        "error": error,
        "changed": [name for name, value in after.items() if value != before[name]],
        "output": "".join(output),
        "effects": watch.effects,
        "imported": sorted({*(set(sys.modules) - modules), *watch.imports}),
    }


def make_without_engine(target: str, engines: dict[str, list[str]]) -> list[dict[str, Any]]:
    """Make every backend of a module while what it requires cannot be imported."""
    module, modules = sys.modules[target], cast("dict[str, Any]", sys.modules)
    hook: Callable[[], Any] | None = getattr(module, "fxplug_register_backends", None)
    found: list[dict[str, Any]] = []
    for record in (hook() or ()) if hook is not None else ():
        if not record.requires or (record.options is not None and _needs_options(record.options)):
            continue
        blocked = [name for requirement in record.requires for name in engines[requirement]]
        for name in [name for name in sys.modules if name.partition(".")[0] in blocked]:
            del sys.modules[name]
        modules.update(dict.fromkeys(blocked))  # None stands for a module that cannot be imported.
        error = ""
        try:
            made = record.options() if record.options is not None else None
            names = () if made is None else [option.name for option in fields(made) if option.init]
            record.factory(**{name: getattr(made, name) for name in names})
        except (Exception, SystemExit) as raised:  # Written down.
            error = f"{type(raised).__name__}: {raised}"
        for name in blocked:
            sys.modules.pop(name, None)
        found.append({"name": record.name, "requires": list(record.requires), "error": error})
    return found


def _needs_options(options: Any) -> bool:
    return any(
        option.init and option.default is MISSING and option.default_factory is MISSING
        for option in fields(options)
    )


def main(arguments: list[str]) -> None:
    """Do what the file that the argument names asks for."""
    wanted = json.loads(Path(arguments[0]).read_text(encoding="utf-8"))
    sys.path[:] = wanted["path"]
    seen = watch_import(wanted["target"])
    seen["backends"] = [] if seen["error"] else make_without_engine(wanted["target"], wanted["engines"])
    Path(wanted["result"]).write_text(json.dumps(seen), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
