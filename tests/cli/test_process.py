"""The command as a process of its own: what is imported, what the terminal gets, where Python looks for modules."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from fxplug.plugins import discover

if TYPE_CHECKING:
    from collections.abc import Callable

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


@pytest.fixture
def process(folder: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Runs ``python -m fxplug`` in `folder`."""

    def run(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "fxplug", *arguments],
            cwd=folder,
            env={**os.environ, **variables},
            capture_output=True,
            text=True,
            encoding="utf-8",
            timeout=300,
            check=False,
        )

    return run


def test_the_small_transformer_is_optimised(process, folder):
    reference = f"{EXAMPLES / 'transformer.py'}"
    done = process(
        *("optimize", f"{reference}:transformer", "--example-from", f"{reference}:example_inputs"),
        *("--runs", "2", "--out", "out"),
    )

    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    report = json.loads((folder / "out" / "report.json").read_text())
    assert report["nodes"]["traced"] > report["nodes"]["optimised"] > 100  # Dropout is gone.
    assert report["check"]["max_abs_error"] < 1e-4


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (("optimize", "models.py:net", "--example", "1x3x8x8", "--no-measure", "--quiet"), 0),
        (("optimize", "models.py:Branch", "--example", "1x3x8x8", "--mode", "symbolic"), 1),
        (("optimize", "models.py:nett", "--example", "1x3x8x8"), 2),
    ],
)
def test_the_exit_code_says_how_it_went(process, arguments, code):
    done = process(*arguments)

    assert done.returncode == code, done.stderr
    assert "Traceback" not in done.stderr
    assert bool(done.stderr) == bool(code)


def test_files_of_the_user_are_not_taken_for_libraries(process, folder):
    for name in ("rich", "click", "torch", "pluggy", "json"):
        (folder / f"{name}.py").write_text("raise AssertionError('the file of the user was imported')\n")

    assert process("--version").stdout.startswith("fxplug ")
    assert process("plugins", "list").returncode == 0


def test_a_plugin_that_only_lies_in_the_working_directory_is_not_found(process, folder, monkeypatch):
    metadata = folder / "fxplug_stray-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: fxplug-stray\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text("[fxplug]\nstray = fxp_stray\n")
    (folder / "fxp_stray.py").write_text("raise AssertionError('imported')\n")
    monkeypatch.delenv("FXPLUG_LOAD_PLUGINS")

    assert "stray" not in process("plugins", "list", "--all").stdout
    done = process("optimize", "models:net", "--example", "1x3x8x8", "--no-measure")
    assert done.returncode == 0, done.stderr
    assert "stray" not in done.stderr


def test_no_compiled_file_is_left_beside_the_model(process, folder):
    process("trace", "models.py:net")

    assert [path.name for path in folder.iterdir()] == ["models.py"]


def test_output_that_cannot_show_arrows_gets_none(process):
    done = process(
        *("optimize", "models.py:net", "--example", "1x3x8x8", "--runs", "1"), PYTHONIOENCODING="ascii"
    )

    assert done.returncode == 0, done.stderr
    assert "5 -> 4 (-1)" in done.stdout


def test_neither_version_nor_the_facade_load_what_they_do_not_need(folder):
    program = (
        "import sys, fxplug\n"
        "assert not {'click', 'rich', 'pydantic', 'pluggy'} & set(sys.modules), sorted(sys.modules)\n"
        "from fxplug.cli import main\n"
        "try:\n    main(['--version'])\nexcept SystemExit as end:\n    assert end.code == 0\n"
        "assert 'torch' not in sys.modules\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=folder, capture_output=True, text=True, timeout=120, check=False
    )

    assert done.returncode == 0, done.stderr


# What is asked for takes a tenth of the time that importing PyTorch takes.
WITHOUT_TORCH = """
import json, sys
sys.modules["torch"] = None  # Whoever imports it gets an ImportError.
from fxplug.cli import main
for line in sys.stdin:
    try:
        main(json.loads(line), prog_name="fxplug")
    except SystemExit as end:
        print("exit", end.code, *[name for name in sys.modules if name.startswith("torch.")])
"""


def test_help_and_a_list_of_no_plugins_do_without_torch(folder):
    assert discover() == []  # Those that are installed are imported, and may need PyTorch.
    commands = [
        *(
            ["--help"],
            ["--version"],
            ["plugins", "--help"],
            ["plugins", "list", "--help"],
            ["passes", "--help"],
        ),
        *(["plugins", "list"], ["plugins", "list", "--json"]),
    ]
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_TORCH],
        input="".join(f"{json.dumps(command)}\n" for command in commands),
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )

    assert done.returncode == 0, done.stderr
    assert [line for line in done.stdout.splitlines() if line.startswith("exit")] == ["exit 0"] * len(
        commands
    )
    assert "Begin with:" in done.stdout
    assert "No plugin is installed." in done.stdout


@pytest.mark.parametrize(
    ("variables", "message"),
    [
        ({"FXPLUG_DISABLE_PLUGINS": "quant"}, "There is no plugin named 'quant'."),
        ({"FXPLUG_LOAD_PLUGINS": "quant"}, "There is no plugin named 'quant'."),
        ({"FXPLUG_STRICT": "maybe"}, "Cannot read the environment variable FXPLUG_STRICT: it is 'maybe'."),
        ({"FXPLUG_TRACE_PLUGINS": "maybe"}, "variable FXPLUG_TRACE_PLUGINS: it is 'maybe'."),
    ],
)
def test_a_list_of_no_plugins_refuses_what_a_manager_refuses(fxplug, monkeypatch, variables, message):
    assert discover() == []
    for name, text in variables.items():
        monkeypatch.setenv(name, text)

    result = fxplug("plugins", "list")

    assert result.exit_code == 2
    assert message in result.stderr


def test_a_list_of_no_plugins_reads_the_configuration(fxplug, folder):
    (folder / "required.toml").write_text('[plugins]\nrequire = ["quant"]\n')
    (folder / "misspelt.toml").write_text("[plugin]\n")

    required = fxplug("plugins", "list", "--config", "required.toml")
    misspelt = fxplug("plugins", "list", "--config", "misspelt.toml")

    assert (required.exit_code, misspelt.exit_code) == (2, 2)
    assert "There is no plugin named 'quant'" in required.stderr
    assert "there is no key 'plugin'" in misspelt.stderr


@pytest.mark.skipif(os.name == "nt", reason="signals are a matter of POSIX")
def test_a_command_that_is_terminated_while_it_writes_leaves_nothing(folder):
    (folder / "slow.py").write_text(
        "import time\nfrom fxplug.cli import report\nfrom models import net\n"
        "def wait(*_):\n    print('writing', flush=True)\n    time.sleep(60)\n"
        "report._markdown = wait\n"
    )
    command = [
        sys.executable,
        "-m",
        "fxplug",
        "optimize",
        "slow.py:net",
        "--example",
        "1x3x8x8",
        "--no-measure",
    ]
    with subprocess.Popen(
        [*command, "--out", "out/net"], cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as running:
        assert running.stdout is not None
        while "writing" not in (line := running.stdout.readline()):
            assert line or running.poll() is None, running.stderr.read() if running.stderr else ""
        running.send_signal(signal.SIGTERM)
        assert running.wait(timeout=60) == 128 + signal.SIGTERM

    assert not (folder / "out").exists()
    assert not list(folder.glob(".*"))


def test_pytorch_without_numpy_is_no_matter_for_a_warning(process, folder):
    (folder / "hidden").mkdir()
    (folder / "hidden" / "numpy.py").write_text("raise ModuleNotFoundError('No module named numpy')\n")
    path = os.pathsep.join([str(folder / "hidden"), os.environ.get("PYTHONPATH", "")])
    done = process("trace", "models.py:net", PYTHONPATH=path)

    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
