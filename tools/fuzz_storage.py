"""Load files that were damaged in random ways, and see that nothing but a refusal comes of it.

    python tools/fuzz_storage.py --count 100000 --seed 1 --keep tests/storage/corpus
    python tools/fuzz_storage.py --count 3000 --seed 5 --kinds tests/storage/corpus  # one file for each kind of refusal
    python tools/fuzz_storage.py --count 100000 --progress fuzz.json  # the same call goes on where this one was stopped

Every file is one of those of tools/fuzz_seeds.py (golden files, and modules that are guarded, nested, fused,
lowered and, where fxplug-quant is installed, quantized) with a few mutations: of its bytes, of the archive, or,
mostly, of what its JSON members say, with checksums made right again, as somebody who means harm would. Loading it,
as a whole, lazily or without its engines, or summarizing it, must end well or in a ``StorageError``. Python's audit
events are watched meanwhile: no import, no process, no socket, no code, and no file but the one that is loaded.
Memory and time are bounded. A file on which any of this fails is kept, and makes the script end with 1.
"""

from __future__ import annotations

import argparse
import faulthandler
import io
import json
import os
import random
import re
import resource
import shutil
import subprocess
import sys
import tempfile
import time
import warnings
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import fuzz_seeds
import torch

import fxplug
from fxplug.errors import StorageError
from fxplug.storage import FORMAT_VERSION, summarize
from fxplug.storage.checksums import checksum_of_version, new_checksum

if TYPE_CHECKING:
    from collections.abc import Callable

    from fxplug.plugins import PluginManager

MEMBERS = ("manifest.json", "graph.json", "modules.json", "weights.safetensors")
PER_PROCESS = 5_000
KINDS_OF_CHECKSUMS = {checksum_of_version(version) for version in range(1, FORMAT_VERSION + 1)}
LONGEST = 60
"""Seconds for so many files as follow:"""
PER_ALARM = 100
MOST_MEMORY = 400  # MiB beyond what was in use before the first file.

# Memory of tensors is looked at through the last, and options of backends are checked by the one before it.
HARMLESS = frozenset({"mmap.__new__", "builtins.id", "sys._getframe", "ctypes.cdata"})

NASTY: list[Any] = [
    *(
        None,
        True,
        False,
        0,
        1,
        -1,
        2,
        7,
        2**31,
        2**53,
        2**63,
        -(2**63),
        10**30,
        0.5,
        -0.0,
        1e308,
        "",
        "x",
        "a b",
    ),
    *("os:system", "builtins:eval", "torch:load", "torch:relu", "@golden:cut", "@golden:eval", "__class__"),
    *(
        "../../escaped",
        "CON",
        "\x00",
        "\ud800",
        "é",
        "import os",
        "x): import os #",
        "a.b",
        "forward",
        "__dict__",
    ),
    *(
        "lambda: 0",
        "__import__('os').system('touch escaped')",
        "output",
        "call_function",
        "get_attr",
        "float",
    ),
    *(
        "torch.float32",
        "torch.qint8",
        "torch.complex128",
        "torch.uint4",
        "meta",
        "cuda:99",
        "F64",
        "U8",
        "fxplug",
    ),
    *([], {}, [[]], [None], {"$node": 0}, {"$node": -1}, {"$node": 10**9}, {"$tensor": 0}, {"$tensor": 99}),
    *({"$name": "os:system"}, {"$name": "builtins:getattr"}, {"$name": "this:d"}, {"$name": "typing:Any"}),
    *(
        {"$tuple": []},
        {"$dict": [[1, 2], [1, 3]]},
        {"$slice": [0, 1, 2]},
        {"$range": [0, 10**18, 1]},
        {"$size": [-1]},
    ),
    *(
        {"$size": [2**62]},
        {"$range": [0, 1, 0]},
        {"$int": "f" * 5000},
        {"$int": "zz"},
        {"$float": "7ff0000000000001"},
    ),
    *({"$complex": [0.0, -0.0]}, {"$bytes": "AAAA"}, {"$torch": "torch.load"}, {"$torch": "torch.strided"}),
    *({"$device": "mps:1"}, {"$finfo": "float32"}, {"$iinfo": "bool"}, {"$record": ["TensorMetadata", [1]]}),
    *(
        {"$constant": ["@golden:window", 0, {"$tuple": [3]}]},
        {"$enum": ["enum:Enum", "x"]},
        {"$ellipsis": None},
    ),
    *({"$fields": ["os:stat_result", []]}, {"$generic": ["list", []]}, {"$generic": ["Optional", [None]]}),
]


# -- making files


def _containers(value: Any) -> list[Any]:
    """Return all lists and objects in a JSON value."""
    found: list[Any] = []
    stack = [value]
    while stack:
        here = stack.pop()
        if isinstance(here, (dict, list)) and len(found) < 100_000:
            found.append(here)
            stack.extend(here.values() if isinstance(here, dict) else here)
    return found


def _nested(chance: random.Random) -> Any:
    value: Any = chance.choice(NASTY)
    for _ in range(chance.choice((5, 30, 99, 101, 400))):
        value = chance.choice(
            ([value], {"$tuple": [value]}, {"$dict": [[1, value]]}, {"$slice": [value, 0, 0]})
        )
    return value


def _replacement(chance: random.Random, everything: list[Any]) -> Any:
    kind = chance.random()
    if kind < 0.6:
        return chance.choice(NASTY)
    if kind < 0.9:
        return chance.choice(everything)
    return _nested(chance) if kind < 0.95 else [chance.choice(NASTY)] * chance.choice((3, 200, 5000))


def _mutate_json(chance: random.Random, value: Any) -> None:
    """Change one place of a JSON value."""
    everything = _containers(value)
    holder = chance.choice(everything)
    keys = list(holder) if isinstance(holder, dict) else list(range(len(holder)))
    kind = chance.random()
    if not keys or kind < 0.1:
        if isinstance(holder, dict):
            holder[str(chance.choice(NASTY))] = _replacement(chance, everything)
        else:
            holder.insert(chance.randint(0, len(holder)), _replacement(chance, everything))
        return
    key = chance.choice(keys)
    if kind < 0.2:
        del holder[key]
    elif kind < 0.3 and isinstance(holder, dict):
        holder[str(chance.choice(NASTY))] = holder.pop(key)
    elif kind < 0.5 and type(holder[key]) is int:
        holder[key] += chance.choice((-1, 1, 1000, -(2**31)))
    elif kind < 0.6 and isinstance(holder[key], str):
        text = holder[key]
        place = chance.randint(0, len(text))
        holder[key] = (
            text[:place] + chance.choice((".", ":", "$", "@", "\n", "", "_", "(", " ")) + text[place + 1 :]
        )
    else:
        holder[key] = _replacement(chance, everything)


def _header_changed(chance: random.Random, content: bytes) -> bytes:
    length = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + length])
    _mutate_json(chance, header)
    text = json.dumps(header).encode()
    size = (
        len(text) if chance.random() < 0.9 else chance.choice((0, 10**10, 2**63, len(text) - 1, len(content)))
    )
    return size.to_bytes(8, "little") + text + content[8 + length :]


def _bytes_changed(chance: random.Random, content: bytes) -> bytes:
    changed = bytearray(content)
    for _ in range(chance.choice((1, 1, 2, 8))):
        if not changed:
            break
        place = chance.randrange(len(changed))
        end = place + chance.choice((1, 2, 4, 8, 64))
        kind = chance.random()
        if kind < 0.5:
            changed[place] ^= 1 << chance.randrange(8)
        elif kind < 0.6:
            del changed[place:]
        elif kind < 0.7:
            changed[place:end] = b""
        elif kind < 0.85:
            changed[place:end] = chance.choice((b"\x00", b"\xff", b"PK\x01\x02")) * (end - place)
        else:
            changed[place:place] = changed[place:end]
    return bytes(changed)


def _archived(chance: random.Random, members: list[tuple[str, bytes]]) -> bytes:
    stream = io.BytesIO()
    with warnings.catch_warnings(), zipfile.ZipFile(stream, "w") as archive:
        warnings.simplefilter("ignore")  # Two members of one name are what is wanted.
        for name, content in members:
            method = zipfile.ZIP_DEFLATED if name.endswith(".json") else zipfile.ZIP_STORED
            if chance.random() < 0.01:
                method = chance.choice((zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2))
            archive.writestr(zipfile.ZipInfo(name), content, method)
    return stream.getvalue()


def mutated(chance: random.Random, seeds: list[dict[str, bytes]]) -> bytes:
    """Return the content of a damaged file."""
    members = dict(chance.choice(seeds))
    kind = chance.random()
    for _ in range(chance.choice((1, 1, 1, 2, 3))):
        name = chance.choice(
            ("graph.json",) * 5 + ("modules.json",) * 3 + ("weights.safetensors", "manifest.json")
        )
        try:
            if kind < 0.08:
                members[name] = _bytes_changed(chance, members[name])
            elif name == "weights.safetensors":
                members[name] = _header_changed(chance, members[name])
            else:
                value = json.loads(members[name])
                _mutate_json(chance, value)
                members[name] = json.dumps(value).encode("utf-8", "surrogatepass")
        except (ValueError, TypeError, AttributeError, RecursionError):
            members[name] = _bytes_changed(chance, members[name])
    if chance.random() < 0.95:
        members["manifest.json"] = _signed(members)
    rows = list(members.items())
    if chance.random() < 0.03:
        rows.append((chance.choice((*MEMBERS, "../escaped", "x", "")), b"{}"))
    content = _archived(chance, rows)
    return _bytes_changed(chance, content) if chance.random() < 0.12 else content


def _signed(members: dict[str, bytes]) -> bytes:
    """Return the manifest with sizes and checksums that are right."""
    try:
        manifest = json.loads(members["manifest.json"])
        for name in MEMBERS[1:]:
            content = members[name]
            manifest["members"][name] = {
                **{kind: new_checksum(kind, content).hexdigest() for kind in KINDS_OF_CHECKSUMS},
                "size": len(content),
            }
        return json.dumps(manifest).encode("utf-8", "surrogatepass")
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return members["manifest.json"]


def _members(path: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(path) as archive:
        return {name: archive.read(name) for name in MEMBERS}


# -- loading them


class _Watch:
    """Notes what Python's audit events tell while a file is loaded.

    Args:
        path: The only file that may be opened.
    """

    def __init__(self, path: Path) -> None:
        self.events: list[str] = []
        self.is_on = False
        self._path = str(path)
        self._modules: set[str] = set()
        self._memory = _peak()
        sys.addaudithook(self._hear)

    def _hear(self, event: str, arguments: tuple[Any, ...]) -> None:
        if not self.is_on or event in HARMLESS:
            return
        if event != "open" or arguments[0] != self._path or arguments[1] != "r":
            self.events.append(f"{event} {str(arguments)[:200]}")

    def start(self) -> None:
        """Begin to listen."""
        self._modules = set(sys.modules)
        self.is_on = True

    def grown(self) -> int:
        """Return by how many MiB the memory has grown."""
        return _peak() - self._memory

    def check(self, number: int) -> None:
        """Stop, and end the process if the file with this number caused what none may cause."""
        self.is_on = False
        imported = set(sys.modules) - self._modules
        if self.events or imported:
            raise SystemExit(f"file {number} caused {self.events} and imported {imported}")
        if self.grown() > MOST_MEMORY:
            raise SystemExit(f"file {number} took {self.grown()} MiB of memory")


def _work(numbers: range, seed: int, folder: Path, kinds: Path | None) -> None:
    """Load the files with these numbers in this process; the one at hand is always ``current.fxplug``."""
    plugins = fuzz_seeds.manager()
    with tempfile.TemporaryDirectory() as name:
        paths = fuzz_seeds.write_seeds(Path(name), plugins)
        seeds = [_members(path) for path in paths]
        for path in paths:  # What is made once is made before anything is watched.
            for way in range(len(_WAYS)):
                _WAYS[way](path, plugins)
    repr(torch.ones(1))  # The first text of a tensor makes torch import a module of its own.
    path = folder / "current.fxplug"
    watch = _Watch(path)
    refused, longest = 0, (0.0, 0)
    with (folder / "number").open("wb", buffering=0) as marker:
        for number in numbers:
            if number % PER_ALARM == 0 or number == numbers.start:
                faulthandler.dump_traceback_later(LONGEST, exit=True)
            path.write_bytes(mutated(random.Random(f"{seed}:{number}"), seeds))
            os.pwrite(marker.fileno(), b"%12d" % number, 0)
            started = time.process_time()
            watch.start()
            message = _outcome(path, number, plugins)
            watch.check(number)
            longest = max(longest, (time.process_time() - started, number))
            refused += bool(message)
            if kinds is not None and message:
                shutil.copy(path, kinds / f"{_kind(message)}.fxplug")
    faulthandler.cancel_dump_traceback_later()
    others = {entry.name for entry in folder.iterdir()} - {"current.fxplug", "number"}
    if others:
        raise SystemExit(f"files were made: {others}")
    result = {
        "loaded": len(numbers) - refused,
        "refused": refused,
        "longest": (round(longest[0], 3), longest[1]),
        "memory": watch.grown(),
        "seeds": [entry.stem for entry in paths],
    }
    sys.stdout.write(json.dumps(result) + "\n")


_WAYS: tuple[Callable[[Path, PluginManager], object], ...] = (
    lambda path, plugins: fxplug.load(path, manager=plugins, lazy=True),
    lambda path, plugins: fxplug.load(path, manager=plugins),
    lambda path, plugins: fxplug.load(path, manager=plugins, engines="eager"),
    lambda path, plugins: (summarize(path), fxplug.load(path, manager=plugins)),
)


def _outcome(path: Path, number: int, plugins: PluginManager) -> str:
    """Return the message with which a file is refused, empty when it is loaded."""
    try:
        _WAYS[number % len(_WAYS)](path, plugins)
    except StorageError as error:
        return error.message
    return ""


def _kind(message: str) -> str:
    """Return a name for a message that does not depend on what it names."""
    words = re.findall(
        r"[a-z]+", re.sub(r"'[^']*'|\"[^\"]*\"|\[.*?\]|\{.*?\}", "", message.partition(": ")[2].lower())
    )
    return "-".join(words[:9])[:60]


def _peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024


def _scratch() -> str | None:
    """Return where files cost the least: memory, where the system has a folder for it."""
    memory = Path("/dev/shm")
    return str(memory) if memory.is_dir() and os.access(memory, os.W_OK) else None


def _total(progress: Path | None, seed: int) -> dict[str, Any]:
    """Return what an earlier run has found, or nothing."""
    total: dict[str, Any] = {
        "seed": seed,
        "number": 0,
        "loaded": 0,
        "refused": 0,
        "failures": [],
        "seconds": 0.0,
    }
    total |= {"longest": [0.0, 0], "memory": 0, "seeds": []}
    if progress is None or not progress.exists():
        return total
    known = json.loads(progress.read_text(encoding="utf-8"))
    if known["seed"] != seed:
        raise SystemExit(f"{progress} is of seed {known['seed']}, not {seed}: name another file.")
    return known


def run(count: int, seed: int, keep: Path | None, kinds: Path | None, progress: Path | None) -> int:
    """Load so many damaged files, in processes of their own; return on how many something went wrong."""
    total = _total(progress, seed)
    with tempfile.TemporaryDirectory(dir=_scratch()) as name:
        while total["number"] < count:
            started = time.monotonic()
            _run_some(total, count, Path(name), keep, kinds)
            total["seconds"] = round(total["seconds"] + time.monotonic() - started, 1)
            if progress is not None:
                progress.write_text(json.dumps(total), encoding="utf-8")
    for failure in total["failures"]:
        sys.stdout.write(f"{failure}\n")
    sys.stdout.write(
        f"{total['number']} files: {total['loaded']} loaded, {total['refused']} refused, {len(total['failures'])} went "
        f"wrong; the longest took {total['longest'][0]} s (file {total['longest'][1]}), memory grew by "
        f"{total['memory']} MiB; {total['number'] / max(total['seconds'], 0.1):.0f} files a second, made of "
        f"{', '.join(total['seeds'])}\n"
    )
    return len(total["failures"])


def _run_some(total: dict[str, Any], count: int, folder: Path, keep: Path | None, kinds: Path | None) -> None:
    """Load as many files as one process does, and add what was found."""
    number, seed = total["number"], total["seed"]
    end = min(number + PER_PROCESS, count)
    command = [
        sys.executable,
        __file__,
        "--work",
        f"{number}:{end}",
        "--seed",
        str(seed),
        "--folder",
        str(folder),
    ]
    if kinds is not None:
        kinds.mkdir(parents=True, exist_ok=True)
        command += ["--kinds", str(kinds.resolve())]
    result = subprocess.run(command, check=False, capture_output=True, text=True, cwd=folder)
    if result.returncode == 0:
        found = json.loads(result.stdout)
        for key in ("loaded", "refused"):
            total[key] += found[key]
        for key in ("longest", "memory"):
            total[key] = max(total[key], found[key])
        total["number"], total["seeds"] = end, found["seeds"]
        return
    marker = folder / "number"
    if not marker.exists():
        raise SystemExit(f"No file was loaded: {result.stderr[-3000:]}")
    number = int(marker.read_text())
    total["failures"].append(
        f"file {number} of seed {seed}, exit {result.returncode}: {result.stderr[-1500:]}"
    )
    if keep is not None:
        keep.mkdir(parents=True, exist_ok=True)
        shutil.copy(folder / "current.fxplug", keep / f"seed{seed}-{number}.fxplug")
    # Those before it went well; how many of them were loaded was not told.
    total["number"] = number + 1
    marker.unlink()


def main() -> None:
    """Read the arguments and run."""
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("--count", type=int, default=2_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--keep", type=Path, help="where files on which something goes wrong are kept")
    parser.add_argument("--kinds", type=Path, help="where one file of each kind of refusal is kept")
    parser.add_argument(
        "--progress", type=Path, help="where it is noted how far it came; it goes on from there"
    )
    parser.add_argument("--work", help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.work:
        first, _, end = options.work.partition(":")
        _work(range(int(first), int(end)), options.seed, options.folder, options.kinds)
    elif run(options.count, options.seed, options.keep, options.kinds, options.progress):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
