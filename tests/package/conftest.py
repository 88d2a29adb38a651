"""Every distribution is built once and installed into one fresh environment."""

from __future__ import annotations

import os
import shutil
import subprocess
import venv
import zipfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import tomllib

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

CHECKOUT = Path(__file__).resolve().parents[2]
SOURCES = {
    "fxplug": CHECKOUT,
    **{path.name: path for path in sorted((CHECKOUT / "plugins").glob("fxplug-*"))},
}
SAMPLE = CHECKOUT / "tests" / "plugins" / "fxplug-sample"
CONSTRAINTS = CHECKOUT / "constraints.txt"


class Distribution:
    """A distribution of this project with the wheel and the sdist built from it."""

    def __init__(self, name: str, files: Path) -> None:
        self.name = name
        self.package = name.replace("-", "_")
        self.source = SOURCES[name]
        self.version = tomllib.loads((self.source / "pyproject.toml").read_text())["project"]["version"]
        self.info = f"{self.package}-{self.version}.dist-info"
        self.package_folder = self.source / ("fxplug" if name == "fxplug" else f"src/{self.package}")
        (self.wheel,) = files.glob(f"{self.package}-{self.version}-*.whl")
        (self.sdist,) = files.glob(f"{self.package}-{self.version}.tar.gz")


class FreshEnvironment:
    """A virtual environment that holds what pip put there from the wheels, and nothing else."""

    def __init__(self, folder: Path) -> None:
        venv.create(folder, with_pip=True)
        self.folder = folder
        self._scripts = folder / ("Scripts" if os.name == "nt" else "bin")

    def python(self, *arguments: str) -> str:
        """Run Python away from the checkout and return what it printed."""
        return run(str(self.script("python")), *arguments, cwd=self.folder)

    def script(self, name: str) -> Path:
        """The path of an installed command."""
        return self._scripts / name

    def install(self, *arguments: str) -> None:
        """Install with the versions of constraints.txt."""
        self.python("-m", "pip", "install", "--no-compile", "--constraint", str(CONSTRAINTS), *arguments)

    @contextmanager
    def installed(self, wheel: Path, name: str) -> Iterator[None]:
        """Have one more wheel installed for a while; what it needs must be there already."""
        self.install("--no-index", str(wheel))
        try:
            yield
        finally:
            self.python("-m", "pip", "uninstall", "--yes", name)


def run(*command: str, cwd: Path) -> str:
    """Run a command, fail with its whole output if it fails, and return what it printed."""
    completed = subprocess.run(
        command,
        cwd=cwd,
        # Wide, so that a table is not folded in the middle of a name.
        env={**os.environ, "COLUMNS": "200"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    assert completed.returncode == 0, (
        f"{' '.join(command)} exited with {completed.returncode}\n{completed.stdout}"
    )
    return completed.stdout


@pytest.fixture(scope="session")
def run_command() -> Callable[..., str]:
    """The function run(), for tests."""
    return run


@pytest.fixture(scope="session")
def builder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FreshEnvironment]:
    """An environment with what every distribution says that it is built with, and the tool that builds: no more."""
    wanted = {
        path: tuple(tomllib.loads((path / "pyproject.toml").read_text())["build-system"]["requires"])
        for path in (*SOURCES.values(), SAMPLE)
    }
    # Or what one of them has forgotten to name would be there for the sake of another one.
    assert len(set(wanted.values())) == 1, wanted
    environment = FreshEnvironment(tmp_path_factory.mktemp("builder"))
    environment.install("build", *wanted[CHECKOUT])
    yield environment
    shutil.rmtree(environment.folder)


@pytest.fixture(scope="session")
def files(builder: FreshEnvironment, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the sdist of every distribution and the wheel built from it."""
    folder = tmp_path_factory.mktemp("dist")
    for source in SOURCES.values():
        builder.python("-m", "build", "--no-isolation", "--outdir", str(folder), str(source))
    return folder


@pytest.fixture(scope="session", params=list(SOURCES))
def distribution(request: pytest.FixtureRequest, files: Path) -> Distribution:
    return Distribution(request.param, files)


@pytest.fixture(scope="session")
def core_environment(files: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[FreshEnvironment]:
    """A fresh environment with the wheel of the core and what its metadata asks for."""
    environment = FreshEnvironment(tmp_path_factory.mktemp("fresh"))
    environment.install(str(Distribution("fxplug", files).wheel))
    yield environment
    shutil.rmtree(environment.folder)


@pytest.fixture(scope="session")
def full_environment(core_environment: FreshEnvironment, files: Path) -> FreshEnvironment:
    """The same environment with the wheels of all plugins, and graphviz: all that they need beyond the core."""
    core_environment.install("graphviz")
    plugins = [str(Distribution(name, files).wheel) for name in SOURCES if name != "fxplug"]
    core_environment.install("--no-index", *plugins)
    return core_environment


@pytest.fixture(scope="session")
def sample_wheel(builder: FreshEnvironment, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of a plugin that stands for somebody else's."""
    folder = tmp_path_factory.mktemp("sample")
    builder.python("-m", "build", "--no-isolation", "--wheel", "--outdir", str(folder), str(SAMPLE))
    (wheel,) = folder.glob("*.whl")
    return wheel


@pytest.fixture(scope="session")
def write_wheel() -> Callable[..., Path]:
    """Writes the wheel of a plugin; pip takes it as it takes any other."""

    def write(
        folder: Path,
        name: str,
        version: str,
        files: Mapping[str, str],
        plugins: Mapping[str, str],
        *requirements: str,
    ) -> Path:
        package = name.replace("-", "_")
        info = f"{package}-{version}.dist-info"
        required = "".join(f"Requires-Dist: {requirement}\n" for requirement in requirements)
        entries = "".join(f"{plugin} = {target}\n" for plugin, target in plugins.items())
        contents = {
            **files,
            f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{required}",
            f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: hand\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
            f"{info}/entry_points.txt": f"[fxplug]\n{entries}",
        }
        record = "".join(f"{path},,\n" for path in (*contents, f"{info}/RECORD"))
        folder.mkdir(exist_ok=True)
        wheel = folder / f"{package}-{version}-py3-none-any.whl"
        with zipfile.ZipFile(wheel, "w") as archive:
            for path, text in {**contents, f"{info}/RECORD": record}.items():
                archive.writestr(path, text)
        return wheel

    return write
