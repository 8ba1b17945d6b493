"""Laws of GRPO: TRL trains on what ES would see, every setting reaches it, and a run is a function of its recipe."""

import copy
from dataclasses import fields, replace

import pytest
import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from esctl.errors import UsageError
from esctl.experiment.batches import batch
from esctl.experiment.experiment import Experiment
from esctl.experiment.loading import load_recipe
from esctl.experiment.recipe import Recipe
from esctl.methods.grpo import GRPO
from esctl.training.rl.recorder import KEYS, step_cost

pytest.importorskip("trl", reason="TRL is not installed: pip install 'esctl-lm[rl]'")

SMALL = (
    "generations=3", "prompts=4", "method.samples=4", "method.microbatch=8", "sampling.max_tokens=24", "eval.every=0",
    "eval.final=null", "engine.kind=transformers",
)  # fmt: skip


def small(*sets: str) -> Recipe:
    return load_recipe("arithmetic/grpo", {}, [*SMALL, *sets])


def opened(*sets: str) -> Experiment:
    experiment = Experiment(small(*sets))
    experiment.check_training()
    return experiment


@pytest.fixture(scope="module")
def experiment() -> Experiment:
    return opened()


# Another value of each setting, and what of TRL's arguments it changes; an optimizer's settings go to the optimizer.
REACHES = {
    "samples": (8, "num_generations"),
    "epochs": (2, "num_iterations"),
    "minibatch": (8, "gradient_accumulation_steps"),
    "microbatch": (4, "per_device_train_batch_size"),
    "loss_type": ("dr_grpo", "loss_type"),
    "scale_rewards": ("none", "scale_rewards"),
    "clip": (0.1, "epsilon"),
    "clip_high": (0.28, "epsilon_high"),
    "kl": (0.01, "beta"),
    "max_grad_norm": (0.5, "max_grad_norm"),
    "precision": ("bfloat16", "bf16"),
    "gradient_checkpointing": (True, "gradient_checkpointing"),
}
OPTIMIZER = {"lr", "warmup", "decay", "adam_beta1", "adam_beta2", "adam_epsilon", "weight_decay"}


def test_every_setting_reaches_trl_or_the_optimizer(experiment, tmp_path):
    from esctl.training.rl.grpo import arguments, quiet_trl

    assert {f.name for f in fields(GRPO)} == REACHES.keys() | OPTIMIZER
    config = experiment.recipe.method
    with quiet_trl():
        before = arguments(experiment, config, 0, str(tmp_path)).to_dict()
        for name, (value, theirs) in REACHES.items():
            after = arguments(experiment, replace(config, **{name: value}), 0, str(tmp_path)).to_dict()
            assert after[theirs] != before[theirs], name
    assert (before["temperature"], before["max_completion_length"], before["top_p"]) == (1.0, 24, 1.0)
    assert (before["max_steps"], before["steps_per_generation"], before["gradient_accumulation_steps"]) == (3, 2, 2)


def test_optimizer_and_schedule_are_the_recipes():
    from esctl.training.rl.grpo import GRPOTrainer, Hook, quiet_trl

    experiment = opened(
        "method.lr=0.01", "method.warmup=2", "method.decay=4", "method.adam_beta1=0.8", "method.adam_beta2=0.9",
        "method.adam_epsilon=0.001", "method.weight_decay=0.5",
    )  # fmt: skip
    trainer = GRPOTrainer(experiment, experiment.recipe.method)
    [group] = trainer.optimizer.param_groups
    assert (group["lr"], group["betas"], group["eps"], group["weight_decay"]) == (0.01, (0.8, 0.9), 0.001, 0.5)
    for done, rates in ((0, [0.005, 0.01, 0.01]), (2, [0.01])):  # also where a resumed run begins
        with quiet_trl():
            schedule = trainer.trl_trainer(done, Hook(trainer, done, lambda step: None), "unused").lr_scheduler
        assert [0.01 * schedule.lr_lambdas[0](k) for k in range(3 - done)] == pytest.approx(rates)


@pytest.fixture(scope="module")
def seen(experiment) -> tuple[list[dict[str, object]], list[object]]:
    """What TRL made of the rollouts of each step, and what was recorded of them."""
    import trl

    from esctl.training.rl.grpo import GRPOTrainer, quiet_trl

    batches, steps = [], []
    with quiet_trl():
        original = trl.GRPOTrainer._generate_and_score_completions

    def spy(self, inputs):
        batches.append(original(self, inputs))
        return batches[-1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(trl.GRPOTrainer, "_generate_and_score_completions", spy)
        GRPOTrainer(experiment, experiment.recipe.method).train(0, steps.append)
    return batches, steps


@pytest.mark.slow
def test_a_step_says_what_it_did_and_cost(seen, experiment):
    _, steps = seen
    wanted = {"policy/loss", "policy/entropy", "policy/clip_share", "policy/grad_norm", "policy/lr"}
    dim = experiment.center().dim
    for step in steps:
        assert wanted < step.own.keys() <= KEYS.keys()
        assert step.own["policy/lr"] == experiment.recipe.method.lr
        cost = step_cost(step)
        assert step.flops == 8 * dim * (cost.prompt_tokens + cost.generated_tokens)
    assert steps[0].own["policy/grad_norm"] > 0


@pytest.mark.slow
def test_trl_trains_on_the_prompts_of_es_token_for_token(seen, experiment):
    batches, _ = seen
    prompts = experiment.split("train").prompts
    for step, made in enumerate(batches):
        rows = zip(made["prompt_ids"].tolist(), made["prompt_mask"].tolist(), strict=True)
        trained = [tuple(t for t, here in zip(*row, strict=True) if here) for row in rows]
        places = batch(experiment.recipe.seed, step, 4, range(len(prompts)))
        assert trained == [prompts[place].token_ids for place in places for _ in range(4)]
        bos = experiment.tokenizer.bos_token_id
        assert all(ids.count(bos) <= 1 for ids in trained)


@pytest.mark.slow
def test_advantages_are_of_the_rewards_that_es_would_give(seen, experiment):
    for made, step in zip(*seen, strict=True):
        again = experiment.reward(step.chosen.problems, [[s.completion for s in own] for own in step.samples])
        assert again == step.samples
        rewards = torch.tensor([[s.reward for s in own] for own in step.samples])
        centred = rewards - rewards.mean(1, keepdim=True)
        wanted = centred / (rewards.std(1, keepdim=True) + 1e-4)
        assert torch.allclose(made["advantages"], wanted.reshape(-1), atol=1e-6)
        flat = [len({s.reward for s in own}) == 1 for own in step.samples]
        assert all(not row.any() for row, equal in zip(made["advantages"].reshape(4, 4), flat, strict=True) if equal)


@pytest.mark.slow
def test_each_sample_is_drawn_from_its_own_seed_alone(seen, experiment):
    """The first sample of a problem is the same rollout where fewer are drawn."""
    from esctl.training.rl.grpo import GRPOTrainer
    from esctl.training.rl.models import draw

    trainer = GRPOTrainer(experiment, experiment.recipe.method)
    _, fewer = draw(experiment, trainer.engine, experiment.split("train"), 0, 2)
    texts = [[s.completion.text for s in own] for own in fewer]
    assert texts == [[s.completion.text for s in own[:2]] for own in seen[1][0].samples]


@pytest.mark.slow
def test_bytes_on_live_tensors_are_the_formula():
    from esctl.experiment.estimates.memory import Setting, architecture, footprint
    from esctl.training.rl.grpo import GRPOTrainer

    experiment = opened("generations=1", "method.kl=0.01")
    trainer = GRPOTrainer(experiment, experiment.recipe.method)
    trainer.train(0, lambda step: None)
    held, formula = trainer.tensor_bytes(), footprint("grpo", architecture("embedded"), Setting("fp32")).purposes
    steps = 4 * len(list(trainer.policy.parameters()))  # AdamW counts them, one fp32 number per tensor
    assert held["policy"] == formula["weights"]
    assert held["gradients"] == formula["gradients"]
    assert held["optimizer"] - steps == formula["optimizer"]
    assert held["reference"] == formula["reference"]


@pytest.mark.slow
@pytest.mark.parametrize(
    "sets",
    [
        ("method.loss_type=dr_grpo", "method.scale_rewards=none"),
        ("method.epochs=2", "method.minibatch=8"),
        ("method.gradient_checkpointing=true",),
        ("method.precision=bfloat16", "method.kl=0.01"),
    ],
)
def test_variants_train(sets):
    from esctl.training.rl.grpo import GRPOTrainer

    experiment, steps = opened("generations=1", *sets), []
    trainer = GRPOTrainer(experiment, experiment.recipe.method)
    before = trainer.engine.center_sha256()
    trainer.train(0, steps.append)
    assert trainer.engine.center_sha256() != before
    assert steps[0].own["policy/grad_norm"] > 0
    if experiment.recipe.method.kl:
        assert steps[0].own["drift/norm"] > 0


def trained(monkeypatch, reward, *sets: str) -> list[tuple[str, dict[str, object], dict[str, float]]]:
    """Weights' hash, optimizer state and metrics after each step, where reward(step, problem, sample) is given."""
    import esctl.training.rl.grpo as module
    from esctl.training.rl.models import draw

    def drawn(experiment, engine, split, step, samples):
        chosen, scored = draw(experiment, engine, split, step, samples)
        return chosen, [[replace(s, reward=reward(step, p, i)) for i, s in enumerate(o)] for p, o in enumerate(scored)]

    monkeypatch.setattr(module, "draw", drawn)
    experiment = opened(*sets)
    trainer, found = module.GRPOTrainer(experiment, experiment.recipe.method), []

    def keep(step) -> None:
        state = copy.deepcopy(trainer.optimizer.state_dict()["state"])
        found.append((trainer.engine.center_sha256(), state, step.own))

    trainer.train(0, keep)
    return found


@pytest.mark.slow
@pytest.mark.parametrize("reward", [0.1, 0.0, 1 / 3, -0.7, 1e6])
@pytest.mark.parametrize("samples", [3, 8])
def test_equal_rewards_change_no_bit_of_the_weights(monkeypatch, reward, samples):
    sets = f"method.samples={samples}", "method.microbatch=4", "method.lr=0.001", "method.weight_decay=0.1"
    found = trained(monkeypatch, lambda step, p, i: reward, *sets, "generations=2", "sampling.max_tokens=8")
    assert {weights for weights, _, _ in found} == {opened().center().weights_sha256()}
    assert all(own["policy/grad_norm"] == 0 == own["policy/loss"] for _, _, own in found)


@pytest.mark.slow
@pytest.mark.parametrize("sets", [(), ("method.epochs=2", "method.minibatch=8"), ("method.kl=0.1",)])
def test_a_step_without_signal_leaves_weights_and_optimizer_also_with_momentum(monkeypatch, sets):
    def reward(step: int, problem: int, sample: int) -> float:
        return 0.1 * (problem + 1) if step == 1 else float(sample % 2)

    (first, moments, _), (second, kept, own), (third, _, _) = trained(
        monkeypatch, reward, "method.lr=0.001", "method.weight_decay=0.1", "sampling.max_tokens=8", *sets
    )
    assert opened().center().weights_sha256() != first == second != third
    assert own["policy/grad_norm"] == 0
    assert all(torch.equal(moments[i][key], kept[i][key]) for i in moments for key in moments[i])


@pytest.mark.slow
@pytest.mark.parametrize("scale", ["group", "none"])
def test_a_group_of_equal_rewards_contributes_exactly_zero(monkeypatch, scale):
    """What the equal rewards are changes no bit of the step."""
    found = []
    for level in (0.0, 0.1, 1 / 3):
        sets = "generations=1", "method.lr=0.001", f"method.scale_rewards={scale}", "sampling.max_tokens=8"
        found += trained(monkeypatch, lambda step, p, i, level=level: float(i % 2) if p == 1 else level, *sets)
    assert len({weights for weights, _, _ in found}) == 1
    assert found[0][0] != opened().center().weights_sha256()


class Live(TorchDispatchMode):
    """Bytes of what operations made and somebody still holds: the most there were at the end of an operation."""

    def __init__(self) -> None:
        super().__init__()
        self.most, self._held = 0, dict[int, tuple[StorageWeakRef, int]]()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None) -> object:
        made = func(*args, **(kwargs or {}))
        for storage in [t.untyped_storage() for t in tree_leaves(made) if isinstance(t, torch.Tensor)]:
            reference = StorageWeakRef(storage)
            self._held.setdefault(reference.cdata, (reference, storage.nbytes()))
        self._held = {key: held for key, held in self._held.items() if not held[0].expired()}
        self.most = max(self.most, sum(size for _, size in self._held.values()))
        return made


def test_logits_of_a_backward_pass_are_the_formula():
    """TRL's loss over one tile on a CPU; the hidden state is so narrow that logits are nearly all there is."""
    from esctl.experiment.estimates.memory import Setting, architecture, logit_bytes
    from esctl.training.rl.grpo import quiet_trl

    with quiet_trl():
        from trl.kernels.chunked_logprob import ChunkedLogProbFunction
    tokens, hidden, vocabulary = 64, 4, 40_000
    states, weight = torch.randn(tokens, hidden, requires_grad=True), torch.randn(vocabulary, hidden)
    with Live() as live:
        found = ChunkedLogProbFunction.apply(
            states, weight, None, torch.arange(tokens), 1.0, 32768, None, 1.0, ("log_probs", "entropy")
        )
        found[0].sum().backward()
    arch = replace(architecture("embedded"), vocabulary=vocabulary)
    assert live.most == pytest.approx(logit_bytes("grpo", arch, Setting("fp32", tokens, 1, cpu=True)), rel=0.02)


def test_without_trl_one_line_says_what_to_install(monkeypatch, experiment):
    from esctl.training.rl.grpo import check_here

    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(UsageError, match=r"pip install 'esctl-lm\[rl\]'"):
        check_here(experiment, experiment.recipe.method)


@pytest.mark.parametrize(
    ("sets", "says"),
    [
        ("method.minibatch=7", "method.minibatch: 7 does not divide the 16 rollouts of a step"),
        ("method.microbatch=3", "method.microbatch: 3 does not divide minibatches of 16 rollouts"),
    ],
)
def test_batches_that_do_not_divide_are_refused_before_a_model_is_loaded(sets, says):
    from esctl.training.rl.grpo import check_here

    recipe = small(sets)
    with pytest.raises(UsageError) as error:
        check_here(Experiment(recipe), recipe.method)
    assert str(error.value) == says


@pytest.mark.parametrize("field", [{"samples": 1}, {"lr": 0.0}, {"clip_high": 0.1}, {"kl": -1.0}, {"epochs": 0}])
def test_settings_without_meaning_are_refused(field):
    with pytest.raises(ValueError, match=f"^{next(iter(field))}: "):
        GRPO(**field)
