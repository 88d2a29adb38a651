"""What goes wrong with ``fxplug optimize``: one clear message, the right exit code, nothing left behind."""

from __future__ import annotations

import os
import re
from pathlib import Path

import click
import pytest
import torch

from fxplug.cli import report

FAILED, WRONG_USAGE = 1, 2
FAST = ("--example", "1x3x8x8", "--no-measure")
OUT = ("--out", "out/net")
# In the words of the click that is installed.
NO_SUCH_OPTION = click.NoSuchOption("--frobnicate").format_message().rstrip(".")


@pytest.fixture
def refused(fxplug, folder):
    """Runs ``fxplug optimize`` and returns what it said, after having seen that it failed without a trace."""

    def run(*arguments, exit_code):
        before = contents(folder)
        result = fxplug("optimize", *arguments)
        assert result.exit_code == exit_code, result.output
        assert "Traceback" not in result.output
        assert len(re.findall(r"^Error: ", result.stderr, re.MULTILINE)) == 1
        assert contents(folder) == before
        return " ".join(result.stderr.partition("Error: ")[2].split())

    return run


def contents(folder: Path) -> list[tuple[str, bytes | None]]:
    entries = [path for path in folder.rglob("*") if "__pycache__" not in path.parts]
    return sorted((str(path), path.read_bytes() if path.is_file() else None) for path in entries)


@pytest.mark.parametrize(
    ("reference", "text"),
    [
        (
            "models.py:nett",
            "Cannot find the model 'models.py:nett': models.py has no 'nett'. Did you mean 'net'? [FXP-F002]",
        ),
        (
            "modles.py:net",
            "Cannot find the model 'modles.py:net': there is no file 'modles.py'. Did you mean 'models.py'?",
        ),
        ("missing/models.py:net", "there is no file 'missing/models.py'. The working directory is "),
        (
            "fxp_no_such.module:net",
            "there is no module 'fxp_no_such'. Install it, or run the command in the folder",
        ),
        ("models.missing:net", "there is no module 'models.missing'"),
        ("models.py:Net.missing", "models.py:Net has no 'missing'"),
        (
            "models.py",
            "Cannot read 'models.py' as a model: write package.module:callable or path.py:callable, for example",
        ),
        ("models.py:", "Cannot read 'models.py:' as a model"),
        (
            "models/net:net",
            "'models/net' is neither a Python file (its name ends in .py) nor the dotted name of a module",
        ),
        ("models.py:number", "Cannot use 'models.py:number' as a model: it is a int. Name a function"),
        ("models.py:with_argument", "it needs the arguments size. Name a function without arguments"),
        ("models.py:seven", "seven() returned a int, not a torch.nn.Module"),
    ],
)
def test_a_model_that_does_not_resolve(refused, reference, text):
    assert text in refused(reference, *FAST, *OUT, exit_code=WRONG_USAGE)


def test_a_model_whose_program_fails(refused, folder):
    (folder / "broken.py").write_text("import torch\nimport fxp_not_there\n")
    (folder / "leaving.py").write_text("raise SystemExit(0)\n")
    (folder / "typo.py").write_text("def net(:\n")

    text = refused("broken.py:net", *FAST, *OUT, exit_code=FAILED)
    assert (
        "Cannot load the model 'broken.py:net': importing broken.py raised ModuleNotFoundError: No module named"
        in text
    )
    assert "broken.py:2 ('import fxp_not_there')" in text
    assert "ModuleNotFoundError" in refused("broken:net", *FAST, exit_code=FAILED)
    assert "importing leaving.py raised SystemExit" in refused("leaving.py:net", *FAST, exit_code=FAILED)
    assert "SyntaxError: invalid syntax (typo.py, line 1)" in refused("typo.py:net", *FAST, exit_code=FAILED)
    text = refused("models.py:failing", *FAST, *OUT, exit_code=FAILED)
    assert (
        "Cannot make the model 'models.py:failing': failing() raised ValueError: no weights here, at " in text
    )


def test_an_example_of_the_wrong_shape_is_the_models_own_error(refused):
    text = refused("models.py:net", "--example", "1x4x8x8", *OUT, exit_code=FAILED)

    assert (
        "Cannot run Net on the example inputs (float32[1, 4, 8, 8]): the model raises RuntimeError: Given groups"
        in text
    )
    assert "expected input[1, 4, 8, 8] to have 3 channels, but got 4 channels instead" in text
    assert "self.norm(self.conv(x))" in text


def test_too_many_examples_are_the_models_own_error(refused):
    text = refused("models.py:net", *FAST, "--example", "2", *OUT, exit_code=FAILED)

    assert "(float32[1, 3, 8, 8], float32[2]): the model raises TypeError" in text


@pytest.mark.parametrize(
    ("example", "text"),
    [
        (
            "1x3y8",
            "Cannot read the example '1x3y8': '3y8' is not a size. Write sizes joined by 'x', and a dtype",
        ),
        ("", "a size is missing"),
        ("1xx3", "a size is missing"),
        ("1x-3", "'-3' is not a size"),
        ("1x3:", "after a colon something is missing"),
        ("1x3:int64:", "after a colon something is missing"),
        ("1x3:flaot32", "PyTorch has no dtype 'flaot32'. Did you mean 'float32'"),
        ("1x3:int64:many", "the bound 'many' is not a positive number"),
        ("1x3:int64:0", "the bound '0' is not a positive number"),
        ("1x3:float32:7", "a bound is for integers, and float32 is none"),
        ("99999999999x99999999999", "Cannot make the example '99999999999x99999999999'"),
    ],
)
def test_a_malformed_example(refused, example, text):
    assert text in refused("models.py:net", "--example", example, *OUT, exit_code=WRONG_USAGE)


@pytest.mark.parametrize(
    ("source", "text", "exit_code"),
    [
        (
            "models.py:batsh",
            "Cannot find the example 'models.py:batsh': models.py has no 'batsh'. Did you mean 'batch'",
            2,
        ),
        (
            "models.py:mapping",
            "Cannot call Net with the example inputs (0 by position, ['pixels'] by name)",
            2,
        ),
        ("models.py:failing", "Cannot make the example 'models.py:failing': failing() raised ValueError", 1),
    ],
)
def test_examples_that_cannot_be_had(refused, source, text, exit_code):
    assert text in refused("models.py:net", "--example-from", source, *OUT, exit_code=exit_code)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (
            ("--pipeline", "inferense"),
            "There is no pipeline named 'inferense'. Did you mean 'inference'? [FXP-F001]",
        ),
        (("--pass", "fuse-bn"), "There is no pass named 'fuse-bn'. Did you mean 'fuse-conv-bn'?"),
        (("--backend", "eagr"), "There is no backend named 'eagr'. Did you mean 'eager'?"),
        (("--backend", "zzz"), "There is no backend named 'zzz'. Available: 'eager', 'inductor'."),
        (("--pipeline", "inference", "--pass", "dead-code"), "--pipeline and --pass exclude each other"),
        (("--example-from", "models.py:batch"), "--example and --example-from exclude each other"),
        (("--runs", "0"), "Invalid value for '--runs': 0 is not in the range x>=1."),
        (
            ("--config", "missing.toml"),
            "Cannot read the configuration missing.toml: No such file or directory",
        ),
        (("--frobnicate",), NO_SUCH_OPTION),
    ],
)
def test_wrong_usage(refused, options, text):
    assert text in refused("models.py:net", *FAST, *OUT, *options, exit_code=WRONG_USAGE)


def test_unknown_names_are_found_before_the_model_is_loaded(refused, folder):
    (folder / "slow.py").write_text("raise AssertionError('this was imported')\n")

    refused("slow.py:net", *FAST, "--pass", "nothing-like-it", exit_code=WRONG_USAGE)


def test_without_an_example_nothing_can_be_checked(refused):
    assert "so it needs inputs: --example 1x3x224x224" in refused("models.py:net", exit_code=WRONG_USAGE)


def test_an_unknown_plugin_in_the_environment(refused, monkeypatch):
    monkeypatch.delenv("FXPLUG_LOAD_PLUGINS")
    monkeypatch.setenv("FXPLUG_DISABLE_PLUGINS", "fxp-no-such")

    text = refused("models.py:net", *FAST, exit_code=WRONG_USAGE)
    assert "There is no plugin named 'fxp-no-such'" in text
    assert "The name stands in FXPLUG_DISABLE_PLUGINS." in text


def test_a_model_that_cannot_be_captured_is_named_with_its_line(refused):
    text = refused("models.py:Branch", *FAST, *OUT, "--mode", "symbolic", exit_code=FAILED)

    assert text.startswith("Cannot trace: ")
    assert "models.py:16 in forward ('if x.sum() > 0:')" in text
    assert text.endswith("[FXP-T001]")


def test_a_result_that_is_too_far_off(refused):
    text = refused("models.py:net", *FAST, *OUT, "--rtol", "0", "--atol", "0", exit_code=FAILED)

    assert "The optimised Net does not compute what eager PyTorch computes" in text


def test_a_module_that_cannot_be_stored_leaves_nothing(refused, folder):
    (folder / "mine.toml").write_text('[trace]\nleaf_modules = ["models.Opaque"]\n')
    text = refused("models.py:Holder", "--config", "mine.toml", *FAST, *OUT, exit_code=FAILED)

    assert text.startswith("Cannot save to 'out/net/module.fxplug': submodule 'part'")
    assert text.endswith("Nothing was written. [FXP-S012]")


# -- the output folder


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_without_permission(refused, folder):
    (folder / "closed").mkdir(mode=0o555)

    text = refused("models.py:net", *FAST, "--out", "closed/out", exit_code=FAILED)
    assert (
        text
        == "Cannot write to 'closed/out': Permission denied (closed). Name a folder that you may write. [FXP-S010]"
    )


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="there is no /proc")
def test_a_folder_that_nobody_can_write(refused):
    text = refused("models.py:net", *FAST, "--out", "/proc/fxplug/out", exit_code=FAILED)

    assert "Cannot write to '/proc/fxplug/out': No such file or directory" in text
    assert "Name a folder that you may write. [FXP-S010]" in text


def test_a_path_through_a_file(refused):
    text = refused("models.py:net", *FAST, "--out", "models.py/out", exit_code=FAILED)

    assert text.startswith("Cannot write to 'models.py/out': ")


def test_a_file_in_the_place_of_the_folder(refused):
    text = refused("models.py:net", *FAST, "--out", "models.py", exit_code=FAILED)

    assert text == "Cannot write to 'models.py': it is a file. Name a folder. [FXP-S010]"


def test_the_working_directory(refused):
    text = refused("models.py:net", *FAST, "--out", ".", exit_code=FAILED)

    assert text == "Cannot write to '.': it is the working directory. Name a folder of its own. [FXP-S010]"


def test_a_folder_with_something_of_the_users_in_it(refused, folder):
    (folder / "out").mkdir()
    (folder / "out" / "thesis.tex").write_text("hello")

    text = refused("models.py:net", *FAST, "--out", "out", exit_code=FAILED)
    assert "it holds what fxplug did not write there (thesis.tex). Name a folder that is new or empty" in text


def test_an_earlier_result_to_which_the_user_added_something(refused, fxplug, folder):
    fxplug("optimize", "models.py:net", *FAST, "--out", "out")
    (folder / "out" / "notes.txt").write_text("mine")

    assert "(notes.txt)" in refused("models.py:net", *FAST, "--out", "out", exit_code=FAILED)


def test_a_folder_that_only_looks_like_ours(refused, folder):
    (folder / "out").mkdir()
    (folder / "out" / "report.json").write_text("{}")

    assert "(report.json)" in refused("models.py:net", *FAST, "--out", "out", exit_code=FAILED)


def test_the_folder_is_looked_at_before_the_work_starts(refused, folder):
    (folder / "slow.py").write_text("raise AssertionError('this was imported')\n")

    assert "it is a file" in refused("slow.py:net", *FAST, "--out", "models.py", exit_code=FAILED)


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (
            OSError(28, "No space left on device"),
            "Cannot write to 'out': No space left on device. Name a folder",
        ),
        (
            RuntimeError("boom"),
            "fxplug did not expect this error: RuntimeError: boom. Run the command again with --traceback",
        ),
    ],
    ids=["disk", "bug"],
)
def test_a_failure_while_files_are_written_leaves_the_earlier_result(
    refused, fxplug, monkeypatch, error, text
):
    fxplug("optimize", "models.py:net", *FAST, "--out", "out")

    def fail(*_):
        raise error

    monkeypatch.setattr(report, "_markdown", fail)
    assert text in refused("models.py:net", *FAST, "--out", "out", exit_code=FAILED)


def test_an_interrupt_while_files_are_written_leaves_nothing(fxplug, folder, monkeypatch):
    def interrupt(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(report, "_markdown", interrupt)
    before = contents(folder)
    result = fxplug("optimize", "models.py:net", *FAST, *OUT)

    assert result.exit_code == FAILED
    assert "Aborted!" in result.stderr
    assert contents(folder) == before


# -- tracebacks


def test_a_traceback_is_shown_on_demand(fxplug):
    result = fxplug("optimize", "models.py:Branch", *FAST, "--mode", "symbolic", "--traceback")

    assert result.exit_code == FAILED
    assert "Traceback (most recent call last)" in result.stderr
    assert result.stderr.splitlines()[-1].startswith("Error: Cannot trace")


def test_the_message_of_a_foreign_error_keeps_its_lines(fxplug, folder, monkeypatch):
    monkeypatch.setattr(torch, "randn", lambda *_, **__: (_ for _ in ()).throw(RuntimeError("first\nsecond")))

    assert (
        "Cannot make the example '2': first." in fxplug("optimize", "models.py:net", "--example", "2").stderr
    )


def write_model(folder, body):
    lines = "\n".join(f"        {line}" for line in body)
    (folder / "odd.py").write_text(
        "import torch\nfrom torch import nn\n\n\nclass Odd(nn.Module):\n    def forward(self, x):\n"
        + lines
        + "\n"
    )


def test_a_model_that_exits_has_failed(refused, folder):
    write_model(folder, ["raise SystemExit(0)"])

    message = refused("odd.py:Odd", "--example", "2x8", *OUT, exit_code=FAILED)

    assert "the model raises SystemExit: 0, at " in message


def test_a_model_that_runs_on_tensors_alone_is_refused_with_its_line(refused, folder):
    write_model(folder, ["return torch.Tensor.mul(x, 2)"])

    message = refused("odd.py:Odd", "--example", "2x8", *OUT, "--mode", "symbolic", exit_code=FAILED)

    assert message.startswith("Cannot trace: something takes no traced value at ")
    assert "odd.py:7 in forward ('return torch.Tensor.mul(x, 2)')" in message
    assert message.endswith("[FXP-T068]")


def test_a_refusal_that_the_model_catches_is_an_error(refused, folder):
    write_model(
        folder,
        ["try:", "    if x.sum() > 0:", "        return x", "except Exception:", "    pass", "return -x"],
    )

    message = refused("odd.py:Odd", "--example", "2x8", *OUT, "--mode", "symbolic", exit_code=FAILED)

    assert "a condition depends on a traced value" in message
    assert "An 'except' of the program caught this error" in message


@pytest.mark.parametrize("value", ["nan", "inf", "-1"])
def test_a_tolerance_without_a_bound_is_refused(refused, value):
    message = refused("models.py:net", *FAST, f"--atol={value}", exit_code=WRONG_USAGE)

    assert "atol" in message


@pytest.mark.parametrize(("model", "name"), [("stack", "Sequential"), ("net", "Net")])
def test_a_model_that_raises_on_its_examples_is_said_to_raise(fxplug, folder, model, name):
    (folder / "narrow.py").write_text(
        "from torch import nn\n"
        "def stack():\n    return nn.Sequential(nn.Linear(4, 2))\n"
        "class Net(nn.Module):\n"
        "    def __init__(self):\n        super().__init__()\n        self.linear = nn.Linear(4, 2)\n"
        "    def forward(self, x):\n        return self.linear(x)\n"
        "def net():\n    return Net()\n"
    )
    result = fxplug("trace", f"narrow.py:{model}", "--example", "1x5")
    message = " ".join(result.stderr.split())

    assert result.exit_code == 1
    assert (
        f"Cannot run {name} on the example inputs (float32[1, 5]): the model raises RuntimeError: mat1 and mat2 shapes"
        in message
    )
    assert "did not expect" not in message
