"""Put PyTorch, and what it needs, into this Python's environment: unpacked once for all environments of the checkout.

    python tools/share_torch.py FOLDER

pip takes long to unpack PyTorch, and Python takes long to compile it when it is first imported; an environment for each
question would pay for both again and again. Here pip installs it once, into an environment of its own below FOLDER, and
every other environment gets hard links to its files, each where pip would have put it, with the metadata by which pip
knows it. Where there can be no links, the files are copied. A distribution that is there already is left alone, in
whatever version: pip decides about it.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import sysconfig
import venv
from contextlib import contextmanager
from importlib import metadata, util
from pathlib import Path, PurePath
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Generator

try:
    import fcntl
except ImportError:  # Windows has none: there, two environments that begin at once must not share.
    fcntl = None

_CONSTRAINTS = Path(__file__).resolve().parents[1] / "constraints.txt"
_LIBRARY = "torch"
# What tests import of it, so that it is compiled before it is shared: captures, dynamo, export, TorchScript.
_WARM_UP = f"import {_LIBRARY}, {_LIBRARY}.fx, {_LIBRARY}.export, {_LIBRARY}.jit, {_LIBRARY}.utils.data"


def main(arguments: list[str]) -> int:
    """Make the shared environment if there is none, link what it holds into this one, and return the exit status."""
    if len(arguments) != 1:
        print(f"Cannot share {_LIBRARY}: name one folder, not {arguments}.", file=sys.stderr)
        return 2
    if fcntl is None or _is_here(_LIBRARY):
        return 0  # pip installs it, or has done so.
    folder = Path(arguments[0]).resolve()
    folder.mkdir(parents=True, exist_ok=True)
    with _alone(folder / "lock"):
        link(_site(shared_environment(folder)), _site(Path(sys.prefix)))
    return 0


def shared_environment(folder: Path) -> Path:
    """Return the environment for this Python and these constraints, made if it is not there: whole or not at all."""
    versions = hashlib.sha256(_CONSTRAINTS.read_bytes()).hexdigest()[:12]
    made = folder / f"{sys.implementation.cache_tag}-{versions}"
    if not made.exists():
        begun = folder / f"{made.name}.begun"
        shutil.rmtree(begun, ignore_errors=True)
        venv.create(begun)
        python = str(begun / "bin" / "python")
        pip = [sys.executable, "-m", "pip", "--python", python, "install", "-qq", "--no-compile"]
        subprocess.run([*pip, "--constraint", str(_CONSTRAINTS), _LIBRARY], check=True)
        subprocess.run([python, "-W", "ignore", "-c", _WARM_UP], check=True)
        begun.rename(made)
    return made


def link(source: Path, target: Path) -> list[str]:
    """Link every distribution of one folder of packages into another that has none of that name.

    Args:
        source: A folder ``site-packages``.
        target: Another one, on the same file system for links.

    Returns:
        The names of the distributions that were linked.
    """
    there = {_name(found) for found in _distributions(target)}
    linked = [found for found in _distributions(source) if _name(found) not in there]
    for distribution in linked:
        # What it is known by comes last: where this is interrupted, the distribution is not taken for a whole one.
        for path in sorted(distribution.files or (), key=lambda path: path.match("*.dist-info/METADATA")):
            if ".." in path.parts:
                continue  # A command, which would start the Python of the other environment.
            for relative in (path, _compiled(path)):
                if (source / relative).is_file():
                    _link_file(source / relative, target / relative)
    return [_name(distribution) for distribution in linked]


def _link_file(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    # What an interrupted run or another distribution has left is replaced, as pip does, and never written into.
    target.unlink(missing_ok=True)
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)  # With its time, or its byte code would be taken for old.


def _compiled(path: PurePath) -> PurePath:
    """Return where the byte code of a source lies; of other files, the file itself."""
    return PurePath(util.cache_from_source(str(path))) if path.suffix == ".py" else path


def _distributions(site: Path) -> list[metadata.Distribution]:
    """Return the distributions in a folder, without those whose metadata an interrupted run has not reached."""
    found = metadata.distributions(path=[str(site)])
    return [distribution for distribution in found if distribution.read_text("METADATA")]


def _name(distribution: metadata.Distribution) -> str:
    return distribution.metadata["Name"].lower().replace("_", "-").replace(".", "-")


def _is_here(name: str) -> bool:
    return name in {_name(found) for found in _distributions(Path(sysconfig.get_path("purelib")))}


def _site(environment: Path) -> Path:
    return environment / Path(sysconfig.get_path("purelib")).relative_to(sys.prefix)


@contextmanager
def _alone(lock: Path) -> Generator[None]:
    """Keep other environments, which tox sets up at the same time, from doing the same work."""
    assert fcntl is not None
    with lock.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)  # The system lets go of it when the process ends, however it ends.
        yield


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
