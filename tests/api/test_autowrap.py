"""Functions that cannot be captured stay calls, where that is wanted."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import fxplug
from fxplug.errors import ConfigError, TraceError
from fxplug.plugins import Config, PluginManager, load_config
from fxplug.plugins.settings import TraceConfig

ROWS = torch.arange(8.0).reshape(2, 4)

pytest.importorskip("numpy")  # It is in the environment named capture.


def by_numpy(x: torch.Tensor) -> torch.Tensor:
    return torch.from_numpy(x.detach().numpy() * 2)


def branching(x: torch.Tensor) -> torch.Tensor:
    return x * 2 if x.sum() > 0 else x


def around(x: torch.Tensor) -> torch.Tensor:
    return by_numpy(branching(x) + 1) - 1


class Block(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inside(x).relu()

    @staticmethod
    def inside(x: torch.Tensor) -> torch.Tensor:
        return by_numpy(x)


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.block = Block()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.block(x) + 1


def called(captured: fxplug.GraphModule) -> set[Any]:
    return {node.target for node in captured.graph.nodes if node.op == "call_function"}


def test_function_around_the_line_stays_a_call() -> None:
    captured = fxplug.trace(around, (ROWS,), autowrap=True)

    assert by_numpy in called(captured)
    assert branching not in called(captured)
    assert torch.equal(captured(ROWS + 1), around(ROWS + 1))


def test_assumptions_say_so() -> None:
    captured = fxplug.trace(around, (ROWS,), autowrap=True)

    (said,) = [text for text in captured.assumptions if "stay calls" in text]
    assert f"{__name__}.by_numpy" in said
    assert "FXP-T063" in said


def test_without_inputs_too() -> None:
    captured = fxplug.trace(around, autowrap=True)

    assert {by_numpy, branching} <= called(captured)
    assert torch.equal(captured(-ROWS), around(-ROWS))


def test_functions_that_methods_call() -> None:
    model = Model()
    captured = fxplug.trace(model, (ROWS,), autowrap=True)

    assert by_numpy in called(captured)
    assert torch.equal(captured(ROWS), model(ROWS))


def test_without_it_the_line_is_an_error() -> None:
    with pytest.raises(TraceError, match="by_numpy"):
        fxplug.trace(around, (ROWS,))


def test_what_the_root_itself_does_cannot_be_kept() -> None:
    with pytest.raises(TraceError, match="numpy"):
        fxplug.trace(by_numpy, (ROWS,), autowrap=True)


def test_function_made_in_the_program_is_not_kept_but_the_one_around_it() -> None:
    captured = fxplug.trace(lambda x: with_closure(x) + 1, (ROWS,), autowrap=True)

    assert with_closure in called(captured)
    assert torch.equal(captured(ROWS), with_closure(ROWS) + 1)


def with_closure(x: torch.Tensor) -> torch.Tensor:
    def inner() -> torch.Tensor:
        return torch.from_numpy(x.numpy() + 1)

    return inner()


# -- the configuration


def manager(**trace: Any) -> PluginManager:
    return PluginManager(
        config=Config(trace=TraceConfig(**trace)), candidates=[], environ={}, version="0.1.0"
    )


def test_configuration_switches_it_on() -> None:
    captured = fxplug.trace(around, (ROWS,), manager=manager(autowrap=True))

    assert by_numpy in called(captured)


@pytest.mark.parametrize("pattern", [f"{__name__}:by_numpy", f"{__name__}.by_numpy", f"{__name__}:by_*"])
def test_functions_named_by_the_configuration_stay_calls(pattern: str) -> None:
    captured = fxplug.trace(around, (ROWS,), manager=manager(leaf_functions=(pattern,)))

    assert by_numpy in called(captured)
    assert captured.meta.get("assumptions") is None


def test_also_in_a_symbolic_trace() -> None:
    captured = fxplug.symbolic_trace(around, manager=manager(leaf_functions=(f"{__name__}:b*",)))

    assert {by_numpy, branching} <= called(captured)


def test_module_that_is_not_loaded_is_no_matter() -> None:
    captured = fxplug.trace(branching, (ROWS,), manager=manager(leaf_functions=("not_loaded.ops:*",)))

    assert torch.equal(captured(ROWS), branching(ROWS))


def test_function_that_a_loaded_module_does_not_have_is_an_error() -> None:
    with pytest.raises(ConfigError, match=r"no function 'by_numpi'. Did you mean 'by_numpy'"):
        fxplug.trace(branching, (ROWS,), manager=manager(leaf_functions=(f"{__name__}:by_numpi",)))


def test_configured_mode() -> None:
    symbolic = manager(mode="symbolic")

    assert fxplug.trace(lambda x: x + 1, (ROWS,), manager=symbolic).guards == ()
    with pytest.raises(TraceError, match="FXP-T001"):
        fxplug.trace(branching, (ROWS,), manager=symbolic)
    assert fxplug.trace(branching, (ROWS,), mode="value", manager=symbolic).guards


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ('leaf_functions = [""]', "empty text"),
        ('leaf_functions = ["relu"]', "names no function of a module"),
        ('mode = "values"', "trace.mode"),
        ("autowrap = 3", "trace.autowrap"),
    ],
)
def test_wrong_configuration_is_refused(line: str, said: str, tmp_path: Any) -> None:
    file = tmp_path / "fxplug.toml"
    file.write_text(f"[trace]\n{line}\n")

    with pytest.raises(ConfigError, match=said):
        load_config(file)
