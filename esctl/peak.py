"""How much memory a run has held at most, in all its processes: host, device, and the KV cache apart."""

from esctl.engines import Engine
from esctl.records import Peak


def peak_bytes(engine: Engine, before: Peak) -> Peak:
    """The larger of now and before (a resumed run keeps the highest of all its sessions)."""
    held = engine.held()
    return Peak(
        host=max(before.host, held.host), device=max(before.device, held.device), kv=engine.tensor_bytes()["kv"]
    )
