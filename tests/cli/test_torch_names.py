"""Private names of torch stand in one module, and the doctor looks for every one of them."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
import torch
from torch import nn

import fxplug
from fxplug.cli.torch_names import PROBES, UNPROBED, TorchName, missing_names

PACKAGE = Path(fxplug.__file__).parent
INTERNALS = PACKAGE / "semantics" / "internals.py"
OTHERS = [
    path for path in sorted(PACKAGE.rglob("*.py")) if path != INTERNALS and path.name != "torch_names.py"
]
# What instances of torch have that is private, whatever the variable is called.
OF_INSTANCES = {
    name
    for value in (nn.Module(), torch.ones(1), torch.ops.aten.add.Tensor, torch.autocast("cpu"))
    for name in (*dir(value), *vars(value))
    if name.startswith("_") and not name.startswith("__")
}


def is_private(name):
    return name.startswith("_") and not name.startswith("__")


def dotted(node):
    parts = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    return [*parts, node.id][::-1] if isinstance(node, ast.Name) else []


def torch_names(tree):
    """Return the variables of a module that hold something of torch."""
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.asname or "torch" for alias in node.names if alias.name.split(".")[0] == "torch"}
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "torch":
            names |= {alias.asname or alias.name for alias in node.names}
    return names


def own_names(tree):
    """Return the methods and attributes that the classes of a module define."""
    defined = {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
    for node in ast.walk(tree):
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        defined |= {
            target.attr
            for target in targets
            if dotted(target)[:1] == ["self"] and isinstance(target, ast.Attribute)
        }
    return defined


OWN = {name for path in OTHERS for name in own_names(ast.parse(path.read_text(encoding="utf-8")))}


def private_uses(path):
    """Yield the private names of torch that a module imports or reads."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    ours = torch_names(tree)
    defined = own_names(tree) | (OWN - vars(nn.Module()).keys())
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            paths = [alias.name for alias in node.names if alias.name.split(".")[0] == "torch"]
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "torch":
            paths = [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Attribute) and is_private(node.attr):
            of_torch = dotted(node)[:1] and dotted(node)[0] in ours
            paths = (
                [node.attr] if of_torch or (node.attr in OF_INSTANCES and node.attr not in defined) else []
            )
        elif (
            isinstance(node, ast.Constant)
            and isinstance(node.value, str)
            and node.value.startswith("torch._")
        ):
            paths = [node.value]
        else:
            paths = []
        for found in paths:
            for part in found.split("."):
                if is_private(part):
                    yield part, node.lineno


# Names under which files and error messages know things, which are no uses of them; and the name by which a module
# names itself, which `GraphModule` overrides; and a table of a class of fxplug.
ALLOWED = {
    "storage/targets.py": {"_C", "_nn"},
    "execute/folder.py": {"_get_name"},
    "storage/graphs.py": {"_modules"},
}


@pytest.mark.parametrize("path", OTHERS, ids=lambda path: path.relative_to(PACKAGE).as_posix())
def test_no_other_module_uses_a_private_name_of_torch(path):
    allowed = ALLOWED.get(path.relative_to(PACKAGE).as_posix(), set())

    assert [(name, line) for name, line in private_uses(path) if name not in allowed] == []


def test_the_doctor_looks_for_every_private_name_that_is_used():
    used = {name for name, _ in private_uses(INTERNALS)}
    probed = {part for probe in PROBES for part in probe.name.split(".") if is_private(part)}

    assert used - probed - UNPROBED == set()
    assert len(used) > 40


def test_what_the_internals_import_is_looked_for_under_its_path():
    tree = ast.parse(INTERNALS.read_text(encoding="utf-8"))
    imported = {
        f"{node.module}.{alias.name}"
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "torch"
        for alias in node.names
    }
    probed = {probe.name for probe in PROBES}
    private = {path for path in imported if any(is_private(part) for part in path.split("."))}

    assert [path for path in sorted(private) if not any(name.startswith(path) for name in probed)] == []


def test_this_torch_has_every_name():
    assert missing_names() == []


def test_a_name_that_is_missing_is_a_finding(fxplug, monkeypatch):
    lost = TorchName("torch._C._lost", "everything")
    monkeypatch.setattr("fxplug.cli.torch_names.PROBES", (*PROBES, lost))
    monkeypatch.setattr("fxplug.cli.doctor.PROBES", (*PROBES, lost))

    result = fxplug("doctor")

    assert result.exit_code == 1
    assert f"{len(PROBES)} of {len(PROBES) + 1} private names found" in result.stdout
    assert (
        f"PyTorch {torch.__version__} has no torch._C._lost, and fxplug needs it for: everything."
        in result.stdout
    )


def test_the_doctor_speaks_also_where_the_host_cannot_be_imported(fxplug, monkeypatch):
    import sys

    monkeypatch.setitem(sys.modules, "fxplug.cli.host_findings", None)

    result = fxplug("doctor")

    assert result.exit_code == 1
    assert "The plugin host cannot be imported" in result.stdout


def test_operators_of_onednn_that_cannot_be_used_are_a_note_and_nothing_broken(fxplug, monkeypatch):
    monkeypatch.setattr("fxplug.execute.fused.onednn_fault", lambda: "this build of PyTorch has no oneDNN")

    result = fxplug("doctor")

    assert result.exit_code == 0
    assert (
        "Note: The pass onednn-fuse does nothing here: oneDNN cannot be used, this build of PyTorch has no oneDNN."
        in result.stdout
    )
