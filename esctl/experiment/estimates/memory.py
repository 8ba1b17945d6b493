"""What each method holds in memory, by formula from a model's config, and what runs held beside it.

No weight is loaded or allocated. docs/memory.md states the formulas and how they were checked.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from esctl.engines import OWN_ROLLOUTS
from esctl.engines.weights import dtypes
from esctl.errors import EngineError, RunError, UsageError
from esctl.experiment.loading import read_recipe
from esctl.experiment.recipe import Recipe
from esctl.methods import BASELINES, METHODS, PPO
from esctl.runs.directory import RunDir, find_runs
from esctl.runs.records import Peak, RunRecord

FP32 = 4  # bytes; master weights, gradients, Adam's moments, centers
ITEMSIZE = {dtype.short: dtype.itemsize for dtype in dtypes.DTYPES}
DTYPES = {dtype.name: dtype.short for dtype in dtypes.DTYPES}  # from the names in a recipe
TILE = (4096, 32768)  # tokens and vocabulary of the logits that TRL's GRPO computes at once
# What is in host memory where the served weights are on a GPU: the center, unless it is on the GPU too. Then it has a
# mirror on the host, from which files and hashes are made.
PLACES = ("host", "device")
HOST = ("center", "probe", "scratch")
COPY_HOST = ("center of the copy",)  # of RL: the copy in vLLM is written from a center, as candidates are
MIRROR = "mirror of the center"
WORK = ("activations", "cast weights")  # an estimate; every other purpose is exact


@dataclass(frozen=True)
class Architecture:
    """The sizes of a dense decoder that memory depends on, in elements."""

    name: str
    parameters: int  # tied tensors once
    body: int  # without an output projection of its own: what a critic shares in kind with its policy
    largest: int  # the largest tensor
    layers: int
    hidden: int
    intermediate: int
    attention: int  # heads × head size
    kv: int  # keys and values of one token, over all layers
    vocabulary: int


@dataclass(frozen=True)
class Setting:
    """What must be equal for numbers of memory to be compared."""

    dtype: str = "bf16"  # of served weights and of activations; masters, gradients and moments are fp32
    seq: int = 1024  # tokens of prompt and completion
    batch: int = 8  # sequences in a micro-batch
    checkpointing: bool = False  # gradients through one layer at a time, the others computed again
    rollouts: int = 64  # sequences in the KV cache at once
    reference: bool = True  # a frozen copy of the base for the KL term
    copy: bool = True  # a copy of the policy in vLLM, for rollouts
    cpu: bool = False  # trained on a CPU, where no kernel works on a tile of logits in place
    center: str = "host"  # host | device: where an fp32 center is if the model is on a GPU

    def __post_init__(self) -> None:
        if self.dtype not in ITEMSIZE:
            raise UsageError(f"--dtype {self.dtype}: choose {', '.join(ITEMSIZE)}")
        if self.center not in PLACES:
            raise UsageError(f"--center {self.center}: choose {', '.join(PLACES)}")
        for name, value in (("seq", self.seq), ("batch", self.batch), ("rollouts", self.rollouts)):
            if value < 1:
                raise UsageError(f"--{name} {value}: give 1 or more")

    @property
    def itemsize(self) -> int:
        """Bytes of an element of a served weight or an activation."""
        return ITEMSIZE[self.dtype]


@dataclass(frozen=True)
class Footprint:
    """Bytes that one method holds at its peak, by purpose; the KV cache stands apart."""

    method: str
    purposes: Mapping[str, int]
    kv: int
    in_host: tuple[str, ...]  # purposes that stay in host memory where the model is on a GPU

    @property
    def total(self) -> int:
        """Everything but the KV cache."""
        return sum(self.purposes.values())

    @property
    def states(self) -> int:
        """What is held all the time, whatever batch is worked on."""
        return self.total - self.work

    @property
    def work(self) -> int:
        """What one micro-batch needs: an estimate."""
        return sum(self.purposes.get(name, 0) for name in WORK)

    @property
    def host(self) -> int:
        """What is in host memory where the model is on a GPU."""
        return sum(self.purposes.get(name, 0) for name in self.in_host)

    @property
    def device(self) -> int:
        """What is on the device of the model."""
        return self.total - self.host


def architecture(model: str) -> Architecture:
    """Read a model's config: embedded, a folder, a run directory or a hub id, whose weights are not fetched."""
    from esctl.engines.weights.model import canonical_shapes, load_config
    from esctl.engines.weights.sizes import sizes_of
    from esctl.experiment.experiment import find_model

    place = find_model(model)
    try:
        config = load_config(place)
        sizes = {name: math.prod(shape) for name, shape in canonical_shapes(config).items()}
    except EngineError as error:
        reason = str(error)
        raise UsageError(f"--model {model}: no config of a causal language model ({reason})") from None
    shape = sizes_of(config)
    total = sum(sizes.values())
    return Architecture(
        name=model,
        parameters=total,
        body=total - sizes.get("lm_head.weight", 0),
        largest=max(sizes.values()),
        layers=shape.layers,
        hidden=shape.hidden,
        intermediate=shape.feed_forward,
        attention=shape.heads * shape.head,
        kv=shape.kv_elements,
        vocabulary=shape.vocabulary,
    )


def weights_alone(parameters: int) -> Architecture:
    """A model of which only the number of weights is known: its states follow, its activations and cache do not."""
    nothing = dict.fromkeys(("largest", "layers", "hidden", "intermediate", "attention", "kv", "vocabulary"), 0)
    return Architecture(f"{parameters:,} weights", parameters, parameters, **nothing)


def footprint(method: str, arch: Architecture, setting: Setting) -> Footprint:
    """What a method holds; raises UsageError for a method that is not known."""
    names = (*METHODS, *BASELINES)
    if method not in names:
        raise UsageError(f"--methods {method}: choose from {', '.join(names)}")
    rl = method in BASELINES
    purposes = _rl(method, arch, setting) if rl else _es(method, arch, setting)
    in_host = (MIRROR,) if setting.center == "device" else COPY_HOST if rl else HOST
    return Footprint(method, purposes, setting.rollouts * setting.seq * arch.kv * setting.itemsize, in_host)


def _es(method: str, arch: Architecture, setting: Setting) -> dict[str, int]:
    """Served weights; θ in fp32, and θ' for methods that probe; from the host one tensor on its way, or a mirror."""
    beside = {"scratch": FP32 * arch.largest} if setting.center == "host" else {MIRROR: FP32 * arch.parameters}
    return {
        "weights": setting.itemsize * arch.parameters,
        "center": FP32 * arch.parameters,
        "probe": FP32 * arch.parameters if METHODS[method].probes else 0,
        **beside,
        "activations": forward_bytes(arch, setting),
    }


def _rl(method: str, arch: Architecture, setting: Setting) -> dict[str, int]:
    """fp32 masters, gradients and Adam's two moments, the critic's too; copies for the KL term and for rollouts."""
    trained = 2 if method == "ppo" else 1  # models with gradients
    critic = 4 * FP32 * critic_parameters(arch) if method == "ppo" else 0
    cast = 0 if setting.itemsize == FP32 else setting.itemsize * arch.parameters * trained
    center = FP32 * arch.parameters if setting.copy else 0
    return {
        "weights": FP32 * arch.parameters,
        "gradients": FP32 * arch.parameters,
        "optimizer": 2 * FP32 * arch.parameters,
        "critic": critic,
        "reference": FP32 * arch.parameters if setting.reference else 0,
        "rollout copy": setting.itemsize * arch.parameters if setting.copy else 0,
        "center of the copy": center,
        **({MIRROR: center} if setting.center == "device" else {}),
        "scratch": FP32 * arch.largest,
        # A policy and its critic go forward together before either goes backward.
        "activations": trained * backward_bytes(arch, setting) + logit_bytes(method, arch, setting),
        "cast weights": cast,
    }


def critic_parameters(arch: Architecture) -> int:
    """The policy's body with a value head, weights and a bias, in place of the output projection."""
    return arch.body + arch.hidden + 1


def forward_bytes(arch: Architecture, setting: Setting) -> int:
    """Generating, which saves nothing: one layer's widest tensors over the prompts, the logits of the next token."""
    layer = setting.itemsize * (2 * arch.hidden + 2 * arch.attention + 2 * arch.intermediate)
    return setting.batch * (setting.seq * layer + FP32 * arch.vocabulary)


def logit_bytes(method: str, arch: Architecture, setting: Setting) -> int:
    """Logits over the vocabulary, where they are computed again for a backward pass; as if every token was scored.

    PPO holds four fp32 tensors (logits, log-probabilities, and a gradient of each) for one chunk of tokens. TRL's GRPO
    works tile by tile: on a GPU a kernel writes the gradient over the logits; on a CPU torch makes it with seven fp32
    tensors and one of booleans in addition.
    """
    tokens = setting.batch * setting.seq
    if method == "ppo":
        return 4 * FP32 * min(PPO.logit_chunk, tokens) * arch.vocabulary
    tile = min(TILE[0], tokens) * min(TILE[1], arch.vocabulary)
    return tile * (setting.itemsize + (7 * FP32 + 1 if setting.cpu else 0))


def backward_bytes(arch: Architecture, setting: Setting) -> int:
    """What autograd saves for one micro-batch of one model, log-probabilities in chunks.

    A layer of h hidden, a attention and i intermediate elements saves per token, beside the stream that it adds to:
    for two norms input and normalised input in fp32, 4h; as inputs of matrix products 2h; query, repeated key and
    value, and result 4a; its row of the attention mask; gate, its activation, up, and their product 4i. With
    checkpointing a layer saves its input alone, and one layer at a time is computed again.
    """
    h, a, i = arch.hidden, arch.attention, arch.intermediate
    layer = FP32 * 4 * h + setting.itemsize * (2 * h + 4 * a + 4 * i + setting.seq)
    inputs = FP32 * h * arch.layers
    saved = inputs + layer if setting.checkpointing else layer * arch.layers
    return setting.batch * setting.seq * (saved + FP32 * 3 * h)  # and the last norm


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


def run_setting(recipe: Recipe, record: RunRecord) -> Setting:
    """The setting that a run trained in: its dtype, its mean prompt with the longest completion."""
    from esctl.engines.sampler import ROWS

    on_device = record.peak_bytes.device > 0
    dtype = DTYPES.get(recipe.engine.dtype, "bf16" if on_device else "fp32")
    seq = record.train.prompt_tokens // record.train.rollouts + recipe.sampling.max_tokens
    rl = recipe.baseline
    # Left to `auto`, the center of ES is on a GPU, and that of RL's copy leaves the GPU to the trainer.
    beside = ("device", "auto") if rl is None else ("device",)
    place = "device" if on_device and recipe.engine.center in beside else "host"
    if rl is None:
        return Setting(dtype, seq, recipe.prompts, rollouts=recipe.prompts, center=place)
    rows = min(rl.samples * recipe.prompts, ROWS)
    kept = rl.gradient_checkpointing
    copied = not record.engine.endswith(OWN_ROLLOUTS)
    return Setting(DTYPES[rl.precision], seq, rl.microbatch, kept, rows, rl.kl > 0, copied, not on_device, place)
