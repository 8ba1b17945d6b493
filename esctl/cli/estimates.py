"""The texts of what is estimated before anything is trained: `esctl precision`, `esctl memory` and `--dry-run`.

The numbers come from `experiment.estimates`, and what a run held from its `run.json`.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict

from esctl.cli.progress import duration
from esctl.comparison.tables import aligned
from esctl.engines import GIB
from esctl.experiment.estimates.memory import (
    WORK,
    Architecture,
    Footprint,
    Measured,
    Setting,
)
from esctl.experiment.estimates.plan import (
    center_bytes,
    copies_policy,
    estimate,
    planned_footprint,
    planned_replay,
    served_bytes,
)
from esctl.experiment.estimates.precision import CLASSES, Realised, Sums
from esctl.experiment.experiment import Experiment
from esctl.experiment.loading import dump_recipe
from esctl.experiment.recipe import Recipe

ENOUGH = 0.9  # cosine below which a class is warned of


def precision_text(found: Realised) -> str:
    """The table, then one warning per class and kind of move."""
    title = (
        f"{found.model}: {found.method}, σ = {found.sigma:g}, served in {found.dtype}; of a first generation whose"
        " scores are drawn at random"
    )
    lines = [
        title,
        *_precision_table(found),
        "cosine of what is served with what was asked, norm as a share, weights that move",
    ]
    return "\n".join([*lines, *precision_warnings(found)])


def precision_warnings(found: Realised) -> list[str]:
    """One line for each class of which less than nine tenths of a direction is served."""
    ways_out = "raise method.sigma, or serve it with engine.dtype float32"
    probed = "the step is estimated beside the θ' that was asked for; engine.dtype float32 serves it"
    advice = {"candidate": f"scores say little of it; {ways_out}", "probe": probed}
    kept = "the fp32 center keeps what one step does not show"
    return [
        f"warning: {name}: a {kind} realises {sums.cosine:.2f} of its direction; {advice.get(kind, kept)}"
        for kind, by_class in found.sums.items()
        for name, sums in _ordered(by_class)
        if sums.asked and sums.cosine < ENOUGH
    ]


def precision_json(found: Realised) -> str:
    """The same numbers and warnings."""
    classes = {
        kind: {name: _sums_tree(sums) for name, sums in _ordered(by_class)} for kind, by_class in found.sums.items()
    }
    head = {"model": found.model, "method": found.method, "sigma": found.sigma, "dtype": found.dtype}
    return json.dumps(
        head | {"terms": found.moves, "realised": classes, "warnings": precision_warnings(found)}, indent=1
    )


def _precision_table(found: Realised) -> list[str]:
    names = [name for name in CLASSES if any(name in by_class for by_class in found.sums.values())]
    rows = [["", "", *(f"{kind}, {n} term{'s' * (n != 1)}" for kind, n in found.moves.items())]]
    rows.append(["class", "weights read", *("cosine   norm  moved" for _ in found.moves)])
    for name in names:
        own = [by_class[name] for by_class in found.sums.values()]
        rows.append([name, f"{own[0].weights:,}", *map(_precision_cell, own)])
    return aligned(rows, left=1)


def _precision_cell(sums: Sums) -> str:
    return f"{sums.cosine:6.3f} {sums.norm_ratio:6.3f} {100 * sums.moved / sums.weights:4.0f} %"


def _ordered(by_class: dict[str, Sums]) -> Iterator[tuple[str, Sums]]:
    yield from ((name, by_class[name]) for name in CLASSES if name in by_class)


def _sums_tree(sums: Sums) -> dict[str, float]:
    shares = {"cosine": sums.cosine, "norm_ratio": sums.norm_ratio, "moved": sums.moved / sums.weights}
    return {"weights": sums.weights, **shares}


MEBI = 2**20


def memory_table(arch: Architecture, setting: Setting, prints: Sequence[Footprint]) -> str:
    """One column per method; bytes by purpose, their sum, bytes per parameter, and the KV cache apart."""
    unit, name = (GIB, "GiB") if max(p.total for p in prints) >= 4 * GIB else (MEBI, "MiB")
    rows = [[name, *(p.method for p in prints)]]
    for purpose in dict.fromkeys(key for p in prints for key in p.purposes):
        label = f"{purpose} (estimate)" if purpose in WORK else purpose
        rows.append([label, *(_bytes_cell(p.purposes.get(purpose, 0), unit) for p in prints)])
    rows.append(["sum", *(_bytes_cell(p.total, unit) for p in prints)])
    rows.append(["  of it in host memory", *(_bytes_cell(p.host, unit) for p in prints)])
    rows.append(["  of it beside the model", *(_bytes_cell(p.device, unit) for p in prints)])
    rows.append(["bytes per parameter", *(f"{p.total / arch.parameters:.1f}" for p in prints)])
    rows.append(["  states beside the model", *(f"{_device_states(p) / arch.parameters:.1f}" for p in prints)])
    rows.append([f"KV cache, {setting.rollouts} sequences, apart", *(_bytes_cell(p.kv, unit) for p in prints)])
    return "\n".join([memory_title(arch, setting), *(line.rstrip() for line in aligned(rows, left=1))])


def memory_title(arch: Architecture, setting: Setting) -> str:
    """What the numbers are about."""
    how = "gradient checkpointing" if setting.checkpointing else "no checkpointing"
    return (
        f"{arch.name}: {arch.parameters:,} parameters; {setting.dtype},"
        f" micro-batch {setting.batch} × {setting.seq} tokens, {how}; by formula, nothing was loaded"
    )


def runs_table(runs: Sequence[Measured]) -> str:
    """One line per run; the interpreter and its libraries are in the measured host peak and not in the formula."""
    rows = [["MiB", "method", "micro-batch", "formula", "KV", "host peak", "device peak"]]
    for r in runs:
        batch = f"{r.setting.batch} × {r.setting.seq} {r.setting.dtype}"
        numbers = (r.formula.total, r.peak.kv, r.peak.host, r.peak.device)
        rows.append([r.label, r.formula.method, batch, *(_bytes_cell(n, MEBI) for n in numbers)])
    note = "host peak counts the interpreter and its libraries and the KV cache; the formula counts neither"
    return "\n".join([*aligned(rows, left=1), note])


def memory_json(arch: Architecture, setting: Setting, prints: Sequence[Footprint]) -> str:
    """The analytic table in bytes."""
    methods = {p.method: _footprint_tree(p) | {"bytes_per_parameter": p.total / arch.parameters} for p in prints}
    return json.dumps({"model": asdict(arch), "setting": asdict(setting), "methods": methods}, indent=1)


def runs_json(runs: Sequence[Measured]) -> str:
    """The measured table in bytes."""
    return json.dumps([asdict(r) | {"formula": _footprint_tree(r.formula)} for r in runs], indent=1)


def _footprint_tree(print_: Footprint) -> dict[str, object]:
    sums = {"total": print_.total, "host": print_.host, "device": print_.device, "kv": print_.kv}
    return {"method": print_.method, "purposes": dict(print_.purposes), **sums}


def _device_states(print_: Footprint) -> int:
    return print_.device - print_.work


def _bytes_cell(value: int, unit: int) -> str:
    return f"{value / unit:,.1f}" if value else "–"


def plan_text(recipe: Recipe) -> str:
    """The dry run, as text for a person; opens the tokenizer and the data, but no weights."""
    experiment = Experiment(recipe)
    experiment.check_training()
    prompt = experiment.split(recipe.task.split).prompts[0]
    sections = {
        "recipe": dump_recipe(recipe).rstrip("\n"),
        f"first prompt ({len(prompt.token_ids)} tokens, sha256 {experiment.prompt_sha256[:12]})": prompt.text,
        "cost": "\n".join(f"{key:22}{value}" for key, value in planned_costs(experiment).items()),
    }
    if experiment.own_system_line:
        sections["system line of the model's own template, since prompt.system is empty"] = experiment.own_system_line
    return "\n\n".join(f"── {name}\n{text}" for name, text in sections.items())


def planned_costs(experiment: Experiment) -> dict[str, str]:
    """Upper bounds: every rollout may run to max_tokens."""
    recipe = experiment.recipe
    planned = estimate(experiment)
    own = _gradient_costs if recipe.baseline is not None else _evolution_costs
    return {
        "weights": f"{planned.dim:,}",
        "generations": _work(recipe),
        "training rollouts": f"{planned.rollouts:,}",
        "evaluation rollouts": f"{planned.evaluation_rollouts:,}",
        "prompt tokens": f"{planned.prompt_tokens:,}",
        "generated tokens": f"at most {planned.generated_tokens:,}",
        **own(recipe, planned.dim),
    }


def _work(recipe: Recipe) -> str:
    """What the run consists of, in words."""
    if recipe.baseline is not None:
        return f"{recipe.generations:,} steps of {recipe.prompts} prompts × {recipe.baseline.samples} samples"
    candidates, n = sum(recipe.evolution.rounds), recipe.objective.n
    words = f"{recipe.generations:,} of {candidates} candidates × {recipe.prompts} prompts"
    return words + (f" × {n} samples" if n > 1 else "")


def _evolution_costs(recipe: Recipe, dim: int) -> dict[str, str]:
    """What only seeds cost: served weights, centers, and the way back from recorded scores."""
    replay = planned_replay(recipe, dim)
    some = f"some {duration(replay.seconds)}" if replay.seconds >= 1 else "under 1 s"
    return {
        "engines": f"{recipe.engine.replicas}",
        "served weights": served_text(recipe, dim),
        "fp32 center": center_text(recipe, dim),
        "replay": f"{replay.terms:.1e} noise terms, {some} on one core without checkpoints",
    }


def served_text(recipe: Recipe, dim: int) -> str:
    """Memory of the served weights of all engines; the dtype `auto` depends on the machine."""
    engine = recipe.engine

    def held(dtype: str) -> str:
        return f"{_size(served_bytes(recipe, dim, dtype))} in {dtype}"

    if engine.dtype == "auto":
        return f"{held('float32')} on a CPU; {held('bfloat16')} on GPUs that have it"
    return held(engine.dtype)


def center_text(recipe: Recipe, dim: int) -> str:
    """Where θ lies, with θ' where a method probes, beside served weights and KV cache.

    Each rank of each engine keeps a whole center on the host.
    """
    held = center_bytes(recipe, dim)
    on_host = f"{_size(held.on_host)} in host memory"
    on_device = f"{_size(held.on_device)} on GPUs and {_size(held.mirrors)} in host memory"
    either = f"{on_host}; where GPUs have room, {on_device}"
    return {"host": on_host, "device": on_device, "auto": either}[recipe.engine.center]


def _size(size: float) -> str:
    """GiB, or MiB below a tenth of one, so that a tiny model does not read 0.00."""
    return f"{size / GIB:.2f} GiB" if size >= GIB / 10 else f"{size * 1024 / GIB:.1f} MiB"


def _gradient_costs(recipe: Recipe, dim: int) -> dict[str, str]:
    """What only RL costs: gradients and copies, and the weights that draw its rollouts."""
    states = _size(planned_footprint(recipe, dim).states)
    return {
        "rollouts drawn by": "a copy of the policy in vLLM" if copies_policy(recipe) else "the policy itself",
        "memory": f"{states} of weights, gradients, optimizer and copies, beside activations and KV cache",
    }
