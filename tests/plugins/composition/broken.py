"""What a broken plugin would do if it took part: every answer differs from those of the others."""

from __future__ import annotations

from fxplug import Pass, PassRecord, PassResult, hookimpl

PLUGIN_BEFORE = ["note-sums", "keep-gate", "single-relu", "slow-engine"]


class Intruder:
    """Nothing."""


class Spoil(Pass):
    """Does nothing."""

    def run(self, module, context):
        """Do nothing."""
        return PassResult(modified=False)


@hookimpl
def fxplug_is_leaf_module():
    """Keep everything."""
    return True


@hookimpl
def fxplug_create_proxy():
    """Be in the way."""
    return Intruder


@hookimpl
def fxplug_register_passes():
    """Offer a pass that goes first."""
    return [PassRecord("spoil", Spoil, "Spoils.", phase="prepare", pipelines=("inference",))]
