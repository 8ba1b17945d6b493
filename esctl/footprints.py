"""`esctl memory` as text and JSON: methods side by side, published figures beside them, and runs beside their formula.

Leaves the formulas to `memory`, and what a run held to its `run.json`.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from esctl.cells import aligned
from esctl.engines import OWN_ROLLOUTS
from esctl.errors import RunError
from esctl.memory import (
    DTYPES,
    GIB,
    PUBLISHED_GIB,
    PUBLISHED_MODEL,
    WORK,
    Architecture,
    Footprint,
    Setting,
    architecture,
    footprint,
)
from esctl.recipe import Recipe
from esctl.records import Peak, RunRecord
from esctl.rundir import RunDir, find_runs
from esctl.session import read_recipe

MEBI = 2**20
ROWS = 128  # sequences that the reference engine generates at once
PUBLISHED = "published for an 8B model"
NOTE = (
    "published: PPO 314.44 GiB, ESSAM 18 and 10 times below PPO and GRPO on average (arXiv 2602.01003). The"
    "\nremainder is what no state explains: activations, 16-bit copies of weights under autocast, KV cache, workspace."
)


@dataclass(frozen=True)
class Measured:
    """One run: what it held at most, beside what the formula says of its method in its setting."""

    run: str
    label: str
    setting: Setting
    formula: Footprint
    peak: Peak


def analytic(model: str, methods: Sequence[str], setting: Setting) -> tuple[Architecture, list[Footprint]]:
    """The sizes of a model, and what each method holds for it."""
    arch = architecture(model)
    return arch, [footprint(method, arch, setting) for method in methods]


def measured(paths: Sequence[Path]) -> list[Measured]:
    """Runs that trained, each with the formula in its own setting."""
    return [_measured(run) for run in find_runs(paths)]


def _measured(run: RunDir) -> Measured:
    record = run.read_record()
    if record.method in ("base", "external"):
        raise RunError(f"{run.path}: {record.method} was not trained here, so no peak was measured; leave it out")
    recipe = read_recipe(run)
    if record.train.rollouts == 0:
        raise RunError(f"{run.path}: nothing was trained yet, so no peak was measured; train it, or leave it out")
    setting = run_setting(recipe, record)
    formula = footprint(record.method, architecture(recipe.model), setting)
    return Measured(str(run.path), record.label, setting, formula, record.peak_bytes)


def table(arch: Architecture, setting: Setting, prints: Sequence[Footprint]) -> str:
    """One column per method; bytes by purpose, their sum, bytes per parameter, and the KV cache apart."""
    unit, name = (GIB, "GiB") if max(p.total for p in prints) >= 4 * GIB else (MEBI, "MiB")
    rows = [[name, *(p.method for p in prints)]]
    for purpose in dict.fromkeys(key for p in prints for key in p.purposes):
        label = f"{purpose} (estimate)" if purpose in WORK else purpose
        rows.append([label, *(_cell(p.purposes.get(purpose, 0), unit) for p in prints)])
    rows.append(["sum", *(_cell(p.total, unit) for p in prints)])
    rows.append(["  of it in host memory", *(_cell(p.host, unit) for p in prints)])
    rows.append(["  of it beside the model", *(_cell(p.device, unit) for p in prints)])
    rows.append(["bytes per parameter", *(f"{p.total / arch.parameters:.1f}" for p in prints)])
    rows.append(["  states beside the model", *(f"{_device_states(p) / arch.parameters:.1f}" for p in prints)])
    rows += published(arch, prints) if unit == GIB else []
    rows.append([f"KV cache, {setting.rollouts} sequences, apart", *(_cell(p.kv, unit) for p in prints)])
    notes = [NOTE] if any(row[0] == PUBLISHED for row in rows) else []
    return "\n".join([title(arch, setting), *(line.rstrip() for line in aligned(rows, left=1)), *notes])


def title(arch: Architecture, setting: Setting) -> str:
    """What the numbers are about."""
    how = "gradient checkpointing" if setting.checkpointing else "no checkpointing"
    return (
        f"{arch.name}: {arch.parameters:,} parameters; {setting.dtype},"
        f" micro-batch {setting.batch} × {setting.seq} tokens, {how}; by formula, nothing was loaded"
    )


def published(arch: Architecture, prints: Sequence[Footprint]) -> Iterator[list[str]]:
    """For an 8B model: the published figures, and what of them no state explains."""
    if not PUBLISHED_MODEL[0] <= arch.parameters <= PUBLISHED_MODEL[1]:
        return
    known = [PUBLISHED_GIB.get(p.method) for p in prints]
    yield [PUBLISHED, *("" if k is None else f"{k:.1f}" for k in known)]
    rest = [None if k is None else k - _device_states(p) / GIB for k, p in zip(known, prints, strict=True)]
    yield ["  remainder over the states", *("" if r is None else f"{r:.1f}" for r in rest)]
    yield ["  estimated above of it", *(_cell(p.work, GIB) for p in prints)]


def runs_table(runs: Sequence[Measured]) -> str:
    """One line per run; the interpreter and its libraries are in the measured host peak and not in the formula."""
    rows = [["MiB", "method", "micro-batch", "formula", "KV", "host peak", "device peak"]]
    for r in runs:
        batch = f"{r.setting.batch} × {r.setting.seq} {r.setting.dtype}"
        numbers = (r.formula.total, r.peak.kv, r.peak.host, r.peak.device)
        rows.append([r.label, r.formula.method, batch, *(_cell(n, MEBI) for n in numbers)])
    note = "host peak counts the interpreter and its libraries and the KV cache; the formula counts neither"
    return "\n".join([*aligned(rows, left=1), note])


def json_text(arch: Architecture, setting: Setting, prints: Sequence[Footprint]) -> str:
    """The analytic table in bytes."""
    methods = {p.method: _tree(p) | {"bytes_per_parameter": p.total / arch.parameters} for p in prints}
    return json.dumps({"model": asdict(arch), "setting": asdict(setting), "methods": methods}, indent=1)


def runs_json(runs: Sequence[Measured]) -> str:
    """The measured table in bytes."""
    return json.dumps([asdict(r) | {"formula": _tree(r.formula)} for r in runs], indent=1)


def _tree(print_: Footprint) -> dict[str, object]:
    sums = {"total": print_.total, "host": print_.host, "device": print_.device, "kv": print_.kv}
    return {"method": print_.method, "purposes": dict(print_.purposes), **sums}


def _device_states(print_: Footprint) -> int:
    return print_.device - print_.work


def _cell(value: int, unit: int) -> str:
    return f"{value / unit:,.1f}" if value else "–"


def run_setting(recipe: Recipe, record: RunRecord) -> Setting:
    """The setting that a run trained in: its dtype, its mean prompt with the longest completion."""
    on_device = record.peak_bytes.device > 0
    dtype = DTYPES.get(recipe.engine.dtype, "bf16" if on_device else "fp32")
    seq = record.train.prompt_tokens // record.train.rollouts + recipe.sampling.max_tokens
    rl = recipe.baseline
    # Left to `auto`, the center of ES lies on a GPU, and that of RL's copy leaves the GPU to the trainer.
    beside = ("device", "auto") if rl is None else ("device",)
    place = "device" if on_device and recipe.engine.center in beside else "host"
    if rl is None:
        return Setting(dtype, seq, recipe.prompts, rollouts=recipe.prompts, center=place)
    rows, kept = min(rl.samples * recipe.prompts, ROWS), rl.gradient_checkpointing
    copied = not record.engine.endswith(OWN_ROLLOUTS)
    return Setting(DTYPES[rl.precision], seq, rl.microbatch, kept, rows, rl.kl > 0, copied, not on_device, place)
