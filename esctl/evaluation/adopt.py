"""`esctl adopt`: a model that was trained elsewhere joins the table, as a run directory of kind external.

Tables compare evaluations made here by `evaluate`, never a number that came with the model.
"""

import math
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from esctl.engines.weights.center import Center
from esctl.errors import UsageError, did_you_mean
from esctl.experiment.experiment import Experiment, find_model
from esctl.experiment.loading import dump_recipe, load_recipe, recipes
from esctl.experiment.provenance import record_of
from esctl.experiment.recipe import EMBEDDED, Plain, Recipe
from esctl.runs.directory import RunDir
from esctl.runs.records import Cost, Peak, RunRecord

METHOD = "external"
GIB = 2**30
# What `--cost key=value` may name, and what it counts.
COSTS = {
    "rollouts": "training rollouts",
    "tokens": "tokens generated in training",
    "prompt_tokens": "tokens of the prompts of those rollouts",
    "flops": "operations of training",
    "seconds": "wall-clock seconds of training",
    "host_gib": "peak host memory",
    "device_gib": "peak device memory",
}


@dataclass(frozen=True)
class Adoption:
    """What a command line says of a model that was trained elsewhere."""

    model: str  # a folder
    label: str
    base: str  # the model that it was trained from
    costs: Mapping[str, float]  # by the keys of COSTS; what is not given is 0, and a table leaves it out
    note: str = ""
    copy: bool = False  # its files, in place of a link to the folder


def parse_costs(items: Sequence[str]) -> dict[str, float]:
    """`key=value` each; UsageError names the first that says nothing."""
    found: dict[str, float] = {}
    for item in items:
        key, _, text = item.partition("=")
        if key not in COSTS:
            raise UsageError(f"--cost {item}: unknown cost{did_you_mean(key, COSTS)}; choose {', '.join(COSTS)}")
        if key in found:
            raise UsageError(f"--cost {item}: {key} is there twice; give each cost once")
        found[key] = _amount(item, text)
    if "rollouts" not in found:
        raise UsageError("--cost: give the training rollouts at least, such as --cost rollouts=256000")
    return found


def _amount(item: str, text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        raise UsageError(f"--cost {item}: {text!r} is not a number; write such as rollouts=256000") from None
    if not math.isfinite(value) or value < 0:
        raise UsageError(f"--cost {item}: a cost is 0 or more")
    return value


def settings_of(base: str, task: str | None) -> str | None:
    """The shipped recipe whose task, prompt and decoding a plain model of this kind is evaluated with, if any."""
    name = f"{task or 'arithmetic'}/es"
    return name if base == EMBEDDED and name in recipes() else None


def adopt(adoption: Adoption, flags: Mapping[str, Plain], sets: Sequence[str], run: RunDir) -> RunRecord:
    """Make the run directory; nothing is left of it when the model does not fit its base."""
    run.refuse_used()
    if not adoption.label.strip():
        raise UsageError("--label: is empty; give the name of its row in tables")
    recipe = _recipe(adoption, flags, sets)
    if not Path(adoption.model).is_dir():
        raise UsageError(f"{adoption.model}: no such folder; give a model folder in Hugging Face format")
    folder = Path(find_model(adoption.model))
    experiment = Experiment(recipe)
    own = Experiment(recipe.model_copy(update={"model": str(folder)}))
    own.check_prompt()  # an evaluation will need the model's own tokenizer and template
    sha256, shapes = _weights(experiment.model)
    own_sha256, own_shapes = _weights(folder)
    _refuse_other_shapes(adoption, shapes, own_shapes)
    with run.lock():
        run.refuse_used()
        _keep_weights(adoption, folder, run)
        record = _record(adoption, experiment, sha256, sum(map(math.prod, shapes.values())))
        run.begin(dump_recipe(recipe), replace(record, kept_sha256=[own_sha256]))
    return run.read_record()


def _recipe(adoption: Adoption, flags: Mapping[str, Plain], sets: Sequence[str]) -> Recipe:
    """The task, prompt and decoding of its evaluations; the other keys of a recipe have no effect here."""
    method: dict[str, Plain] = {"kind": METHOD, "note": adoption.note}
    return load_recipe(None, {**flags, "label": adoption.label, "model": adoption.base, "method": method}, sets)


def _weights(model: Path | str) -> tuple[str, Mapping[str, tuple[int, ...]]]:
    """Hash and shapes of a model's weights, which are freed before the next are read."""
    center = Center.load(model)
    return center.weights_sha256(), center.shapes


def _refuse_other_shapes(
    adoption: Adoption, base: Mapping[str, tuple[int, ...]], own: Mapping[str, tuple[int, ...]]
) -> None:
    unlike = sorted(n for n in base.keys() | own.keys() if base.get(n) != own.get(n))
    if unlike:
        raise UsageError(
            f"--base {adoption.base}: {adoption.model} differs from it in the shape of {unlike[0]}"
            f" ({own.get(unlike[0], 'none')}, base {base.get(unlike[0], 'none')}); give the model it was trained from"
        )


def _keep_weights(adoption: Adoption, folder: Path, run: RunDir) -> None:
    if adoption.copy:
        shutil.copytree(folder, run.weights)
    else:
        run.weights.symlink_to(folder.resolve(), target_is_directory=True)


def _record(adoption: Adoption, experiment: Experiment, base_sha256: str, dim: int) -> RunRecord:
    c = adoption.costs
    cost = Cost(
        rollouts=round(c["rollouts"]),
        prompt_tokens=round(c.get("prompt_tokens", 0)),
        generated_tokens=round(c.get("tokens", 0)),
        flops=c.get("flops", 0.0),
        seconds=c.get("seconds", 0.0),
    )
    engine = f"trained elsewhere: {adoption.note}" if adoption.note else "trained elsewhere"
    return replace(
        record_of(experiment, METHOD, base_sha256, dim, engine),
        status="finished",
        kept_generation=0,
        train=cost,
        peak_bytes=Peak(round(c.get("host_gib", 0) * GIB), round(c.get("device_gib", 0) * GIB)),
    )
