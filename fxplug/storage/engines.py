"""What backends compiled, in files: opaque bytes beside the program that they were compiled from."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from fxplug.storage.faults import Refusal, checked, entry_fields
from fxplug.storage.weights import memory_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from fxplug.execute import GraphModule

__all__ = ["StoredEngine", "engines_in"]

_FIELDS = frozenset(
    {"partition", "backend", "plugin", "distribution", "version", "options", "environment", "sha256"}
    | {"inputs", "profile", "on_mismatch"}
)
_WORDS = ("partition", "backend", "plugin", "distribution", "version", "sha256", "on_mismatch")
_MARK = "about"


class StoredEngine(nn.Module):
    """Stands in a file, and for a moment while one is loaded, for a partition that an engine runs.

    Args:
        program: What the engine was compiled from.
        artefact: The engine; None where it cannot be kept, and is compiled anew.
        about: Who made it and for what, in values that files hold.
    """

    artefact: torch.Tensor | None

    def __init__(self, program: GraphModule, artefact: bytes | None, about: Mapping[str, Any]) -> None:
        super().__init__()
        self.program = program
        self.about = {
            **about,
            "sha256": "" if artefact is None else hashlib.sha256(artefact).hexdigest(),
        }
        kept = None if artefact is None else torch.frombuffer(bytearray(artefact), dtype=torch.uint8)
        self.register_buffer("artefact", kept)

    def forward(self, *inputs: Any) -> Any:
        """Run the program in PyTorch."""
        return self.program(*inputs)

    def facts(self) -> dict[str, Any]:
        """Return who made it and for what.

        Raises:
            Refusal: They are not what they have to be.
        """
        facts = entry_fields(getattr(self, _MARK, None), "An engine", _FIELDS, frozenset())
        for name in _WORDS:
            checked(facts[name], str, f"The {name} of an engine")
        for version in checked(facts["environment"], dict, "The environment of an engine").values():
            if not isinstance(version, (str, int, float, type(None))):
                raise Refusal("a version in the environment of an engine is no text. The file is damaged.")
        return facts

    def content(self) -> bytes | None:
        """Return the engine, None where it was not kept.

        Raises:
            Refusal: The bytes are not those that were written.
        """
        facts, kept = self.facts(), self.artefact
        if kept is None:
            return None
        # All of its memory, once: a file may say that one byte stands for as many as it likes, or none.
        is_row = kept.dtype is torch.uint8 and kept.dim() == 1 and kept.device.type == "cpu"
        if not is_row or not kept.is_contiguous() or kept.untyped_storage().nbytes() < kept.numel():
            raise Refusal("an engine is no row of bytes. The file is damaged.")
        data = bytes(memory_of(kept)) if kept.numel() else b""
        if hashlib.sha256(data).hexdigest() != facts["sha256"]:
            raise Refusal(
                f"the checksum of the engine of partition {facts['partition']!r} is wrong: its bytes were changed or "
                "damaged. Write the file again, or compile it anew: load(..., engines='rebuild')."
            )
        return data


def engines_in(modules: Mapping[str, Any], providers: Mapping[str, list[str]]) -> dict[str, Any]:
    """Return what the manifest of a file says about engines and about plugins.

    Args:
        modules: What ``modules.json`` will say.
        providers: Plugin -> distribution and version, of those that brought names.
    """
    name = f"{StoredEngine.__module__}:{StoredEngine.__qualname__}"
    kinds = checked(modules.get("module_kinds"), list, "The table of kinds of modules")
    found = [
        dict(kinds[row[0]]["attributes"][_MARK]["$dict"])
        for row in checked(modules.get("modules"), list, "The table of modules")
        if kinds[row[0]]["class"] == name
    ]
    makers = {about["plugin"]: [about["distribution"], about["version"]] for about in found}
    makers.pop("core", None)
    listed = ("partition", "backend", "distribution", "version", "sha256")
    engines = [
        {**{field: about[field] for field in listed}, "environment": dict(about["environment"]["$dict"])}
        for about in found
    ]
    return {"plugins": {**providers, **makers}} | ({"engines": engines} if engines else {})
