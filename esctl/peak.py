"""How much memory a run has held at most: host, device, and the KV cache apart.

The engines of a fleet are added up. Not counted are the processes in which vLLM holds several tensor-parallel ranks.
"""

from esctl.engines import Engine
from esctl.engines.fleet import Fleet
from esctl.engines.peaks import held_here
from esctl.records import Peak


def peak_bytes(engine: Engine, before: Peak) -> Peak:
    """The larger of now and before (a resumed run keeps the highest of all its sessions)."""
    held = held_here()
    if isinstance(engine, Fleet):  # its engines live in processes of their own
        held += engine.held()
    return Peak(
        host=max(before.host, held.host), device=max(before.device, held.device), kv=engine.tensor_bytes()["kv"]
    )
