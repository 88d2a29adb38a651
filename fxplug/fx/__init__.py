"""torch.fx's public module paths, for migration: ``fxplug.fx`` in place of ``torch.fx``."""
