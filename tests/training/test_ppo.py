"""Laws of PPO's arithmetic: the losses are the published ones, and no signal is no step."""

import copy
import math
from collections import defaultdict
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from esctl.experiment.experiment import Experiment
from esctl.experiment.loading import load_recipe
from esctl.training.rl.grpo import quiet_trl
from esctl.training.rl.losses import gae, k3, policy_loss, rate, token_rewards, value_loss, whitened
from esctl.training.rl.ppo import PPOTrainer
from esctl.training.rl.tokens import Critic, Rollout, padded, said

ROLLOUTS = (Rollout([5, 6, 7, 8], [9, 10]), Rollout([11, 12], [13, 14, 15, 2]), Rollout([3], [2]))
SMALL = (
    "prompts=4", "method.samples=2", "sampling.max_tokens=24", "sampling.temperature=1",
    "eval.every=0", "eval.final=null", "engine.kind=transformers",
)  # fmt: skip


def random_batch(seed: int = 0) -> dict[str, torch.Tensor]:
    """Log-probabilities, old ones, advantages and a ragged mask, far enough apart that the clip holds some back."""
    generator = torch.Generator().manual_seed(seed)
    old = -3 * torch.rand(6, 9, generator=generator)
    mask = (torch.arange(9) < torch.tensor([9, 1, 4, 7, 9, 2])[:, None]).float()
    logps = old + 0.5 * torch.randn(6, 9, generator=generator)
    return {"logps": logps, "old": old, "advantages": torch.randn(6, 9, generator=generator), "mask": mask}


def trl_bnpo(batch: dict[str, torch.Tensor], logps: torch.Tensor, clip: float) -> torch.Tensor:
    """TRL's own loss function on these tensors, its model and logger replaced by what they would return."""
    pytest.importorskip("trl", reason="TRL is not installed")
    with quiet_trl():
        from trl import GRPOTrainer
    stub = SimpleNamespace(
        _get_per_token_logps_and_entropies=lambda *args, **settings: (logps, torch.zeros_like(logps), None),
        args=SimpleNamespace(delta=None, use_bias_correction_kl=False),
        model=SimpleNamespace(training=True),
        accelerator=SimpleNamespace(gather=lambda t: t, gather_for_metrics=lambda t: t, reduce=lambda t, reduction: t),
        _metrics={"train": defaultdict(list)},
        loss_type="bnpo", beta=0.0, epsilon_low=clip, epsilon_high=clip, importance_sampling_level="token",
        aux_loss_enabled=False, top_entropy_quantile=1.0, off_policy_mask_threshold=None, use_vllm=False,
        current_gradient_accumulation_steps=1, _entropy_bonus_enabled=False, use_adaptive_entropy=False,
    )  # fmt: skip
    ids = torch.ones_like(batch["mask"]).long()
    inputs = {
        "prompt_ids": ids[:, :3], "prompt_mask": ids[:, :3], "completion_ids": ids, "completion_mask": batch["mask"],
        "advantages": batch["advantages"], "old_per_token_logps": batch["old"],
    }  # fmt: skip
    loss: torch.Tensor = GRPOTrainer._compute_loss(stub, None, inputs)
    return loss


@pytest.mark.slow  # importing TRL takes seconds
@pytest.mark.parametrize("seed", range(3))
def test_the_policy_loss_and_its_gradient_are_those_of_trl(seed):
    batch = random_batch(seed)
    theirs, ours = batch["logps"].clone().requires_grad_(), batch["logps"].clone().requires_grad_()
    expected = trl_bnpo(batch, theirs, 0.2)
    clipped = policy_loss(ours, batch["old"], batch["advantages"], batch["mask"], 0.2)
    loss = clipped.total / batch["mask"].sum()
    assert abs(float((loss - expected).detach())) <= 1e-6
    torch.testing.assert_close(
        torch.autograd.grad(loss, ours)[0], torch.autograd.grad(expected, theirs)[0], atol=1e-6, rtol=0
    )
    assert 0 < clipped.held < batch["mask"].sum()


def test_tokens_that_the_clip_holds_have_no_gradient():
    batch = random_batch()
    logps = batch["logps"].clone().requires_grad_()
    clipped = policy_loss(logps, batch["old"], batch["advantages"], batch["mask"], 0.2)
    gradient = torch.autograd.grad(clipped.total, logps)[0]
    assert int((gradient[batch["mask"].bool()] == 0).sum()) == int(clipped.held)
    assert not gradient[~batch["mask"].bool()].any()


def test_gae_is_what_it_is_by_hand():
    # One rollout of three tokens and one of two, γ = 0.5, λ = 0.5, worked out on paper.
    rewards = torch.tensor([[1.0, 0.0, 2.0], [0.0, 1.0, 9.0]])
    values = torch.tensor([[0.5, 1.0, 1.5], [2.0, 0.5, 9.0]])
    mask = torch.tensor([[1.0, 1.0, 1.0], [1.0, 1.0, 0.0]])
    # δ of the first: 1+.5·1−.5 = 1, 0+.5·1.5−1 = −.25, 2−1.5 = .5; A₃ = .5, A₂ = −.25+.25·.5, A₁ = 1+.25·A₂
    # δ of the second: 0+.5·.5−2 = −1.75, 1−.5 = .5; A₂ = .5, A₁ = −1.75+.25·.5
    expected = torch.tensor([[1 - 0.03125, -0.125, 0.5], [-1.625, 0.5, 0.0]])
    assert torch.equal(gae(rewards, values, mask, 0.5, 0.5), expected)


@given(st.integers(0, 100), st.floats(0.5, 1.0))
def test_gae_with_lambda_one_is_the_discounted_return_less_the_value(seed, gamma):
    generator = torch.Generator().manual_seed(seed)
    rewards, values = torch.randn(2, 3, 6, generator=generator, dtype=torch.float64).unbind()
    mask = (torch.arange(6) < torch.tensor([6, 1, 3])[:, None]).double()
    found = gae(rewards, values, mask, gamma, 1.0)
    for row, length in enumerate((6, 1, 3)):
        for t in range(length):
            gain = math.fsum(float(rewards[row, u]) * gamma ** (u - t) for u in range(t, length))
            assert math.isclose(float(found[row, t]), gain - float(values[row, t]), abs_tol=1e-9)
        assert not found[row, length:].any()


def test_the_reward_arrives_at_the_last_token_and_the_penalty_at_each():
    mask = torch.tensor([[1.0, 1.0, 1.0], [1.0, 0.0, 0.0]])
    old, reference = torch.full((2, 3), -1.0) * mask, torch.full((2, 3), -3.0) * mask
    rewards = torch.tensor([5.0, 7.0])
    found = token_rewards(rewards, old, reference, mask, 0.5)
    assert torch.equal(found, torch.tensor([[-1.0, -1.0, 4.0], [6.0, 0.0, 0.0]]))
    assert torch.equal(token_rewards(rewards, old, None, mask, 0.5), torch.tensor([[0.0, 0.0, 5.0], [7.0, 0.0, 0.0]]))
    assert k3(old, reference, mask) == pytest.approx(math.exp(-2) + 2 - 1)
    assert k3(old, old, mask) == 0


def test_whitened_advantages_have_mean_zero_and_variance_one_and_equal_ones_are_zero():
    batch = random_batch()
    here = batch["mask"].bool()
    white = whitened(batch["advantages"], batch["mask"])
    assert abs(float(white[here].mean())) < 1e-6
    assert abs(float(white[here].var(correction=0)) - 1) < 1e-5
    assert not white[~here].any()
    assert not whitened(torch.full_like(white, 3.7), batch["mask"]).any()


def test_the_value_loss_takes_the_worse_of_the_free_and_the_clipped_value():
    ones = torch.ones(1, 4)
    values, old = torch.tensor([[0.1, 1.0, 1.0, -1.0]]), torch.zeros(1, 4)
    returns = torch.tensor([[1.0, 1.0, 0.0, 1.0]])
    # |V − V_old| within 0.2: free; moved too far towards the return: held at 0.2; too far away: free is worse, twice
    expected = 0.5 * (0.9**2 + 0.8**2 + 1.0**2 + 2.0**2)
    found = value_loss(values, old, returns, ones, 0.2)
    assert float(found.total) == pytest.approx(expected)
    assert float(found.held) == 1


def test_the_rate_rises_over_the_warm_up_and_falls_over_the_decay():
    assert [rate(g, 2, 4) for g in range(8)] == [0.5, 1.0, 1.0, 0.75, 0.5, 0.25, 0.0, 0.0]
    assert [rate(g, 0, 0) for g in (0, 500)] == [1.0, 1.0]


@pytest.fixture(scope="module", params=["tiny_qwen2", "tiny_llama"])
def model(request):
    """A random model with tied embeddings, and one with an output projection of its own."""
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(request.getfixturevalue(request.param), dtype=torch.float32)


def test_chunks_say_what_the_whole_softmax_says(model):
    batch = padded(ROLLOUTS, torch.device("cpu"))
    whole, chunked = said(model, batch, 0.7, 1000), said(model, batch, 0.7, 2)
    for row, rollout in enumerate(ROLLOUTS):
        ids = torch.tensor([[*rollout.prompt, *rollout.completion]])
        logps = (model(ids).logits[0, len(rollout.prompt) - 1 : -1] / 0.7).log_softmax(-1)
        width = len(rollout.completion)
        expected = logps.gather(-1, torch.tensor(rollout.completion)[:, None])[:, 0]
        for found in (whole, chunked):
            torch.testing.assert_close(found.logps[row, :width], expected, atol=2e-5, rtol=0)
            torch.testing.assert_close(found.entropies[row, :width], -(logps.exp() * logps).sum(-1), atol=2e-5, rtol=0)
            assert not found.logps[row, width:].any()


def test_chunks_and_checkpoints_leave_the_gradient_as_it_is(model):
    batch, found = padded(ROLLOUTS, torch.device("cpu")), []
    for chunk, checkpointing in ((1000, False), (2, False), (2, True)):
        one = copy.deepcopy(model).train(checkpointing)
        if checkpointing:
            one.gradient_checkpointing_enable({"use_reentrant": False})
        said(one, batch, 1.0, chunk).logps.sum().backward()
        found.append({name: p.grad for name, p in one.named_parameters()})
    for other in found[1:]:
        torch.testing.assert_close(other, found[0], atol=1e-5, rtol=1e-4)


def test_a_critic_knows_nothing_at_first_and_learns_from_its_body(model):
    critic = Critic(copy.deepcopy(model.base_model), model.config.hidden_size)
    batch = padded(ROLLOUTS, torch.device("cpu"))
    assert not critic(batch).any()
    torch.nn.init.ones_(critic.value.weight)
    values = critic(batch)
    alone = critic(padded(ROLLOUTS[1:2], torch.device("cpu")))
    torch.testing.assert_close(values[1], alone[0], atol=1e-5, rtol=1e-5)  # padding is not seen
    assert not values[~batch.mask.bool()].any()


def trainer(*sets: str) -> PPOTrainer:
    """PPO on the embedded model, small."""
    recipe = load_recipe(None, {"method.kind": "ppo", "task.name": "arithmetic"}, [*SMALL, *sets])
    experiment = Experiment(recipe)
    experiment.check_training()
    return PPOTrainer(experiment, recipe.baseline)


@pytest.mark.slow
@pytest.mark.parametrize("kl", [0.01, 0.0])
def test_live_tensors_hold_36_bytes_per_weight_and_the_value_head(kl):
    ppo = trainer(f"method.kl={kl}")
    ppo.step(0)
    d, head, counters = ppo.engine.dim, ppo.policy.config.hidden_size + 1, 4
    critic = d + head  # tied embeddings: the critic's body lacks no weight of the policy
    tensors = len([*ppo.policy.parameters(), *ppo.critic.parameters()])
    found = ppo.tensor_bytes()
    assert found["policy"] == 4 * d
    assert found["critic"] == 4 * critic
    assert found.get("reference", 0) == (4 * d if kl else 0)
    assert found["gradients"] == 4 * (d + critic)
    assert found["optimizer"] == 8 * (d + critic) + counters * tensors  # AdamW counts steps per tensor, in fp32
    assert sum(found.values()) == (36 if kl else 32) * d + 16 * head + counters * tensors


@pytest.mark.slow
def test_equal_rewards_move_the_critic_and_not_one_bit_of_the_policy():
    ppo = trainer("reward.answer=0", "reward.format=0", "method.lr=0.001", "method.critic_lr=0.001", "method.kl=0.1")
    before, critic = ppo.engine.center_sha256(), copy.deepcopy(ppo.critic.state_dict())
    torch.nn.init.ones_(ppo.critic.value.weight)
    step = ppo.step(0)
    assert step.own["policy/grad_norm"] == 0 == step.own["policy/loss"]
    assert ppo.engine.center_sha256() == before
    assert any(not torch.equal(t, critic[name]) for name, t in ppo.critic.state_dict().items())


@pytest.mark.slow
@pytest.mark.parametrize("reward", [0.1, 1 / 3, -2.7])
def test_a_step_without_signal_leaves_policy_and_its_optimizer_also_with_momentum(monkeypatch, reward):
    import esctl.training.rl.ppo as module

    original = module.draw

    def drawn(experiment, engine, split, step, samples):
        chosen, scored = original(experiment, engine, split, step, samples)
        rewards = [float(i % 2) if step == 0 else reward for own in scored for i in range(len(own))]
        each = iter(rewards)
        return chosen, [[replace(s, reward=next(each)) for s in own] for own in scored]

    monkeypatch.setattr(module, "draw", drawn)
    ppo = trainer("method.lr=0.001", "method.weight_decay=0.1", "method.kl=0.1", "sampling.temperature=2.0")
    ppo.step(0)
    before, moments = ppo.engine.center_sha256(), copy.deepcopy(ppo.actor.state_dict()["state"])
    assert moments
    ppo.step(1)
    assert ppo.engine.center_sha256() == before
    assert equal_states(moments, ppo.actor.state_dict()["state"])


def equal_states(before, after) -> bool:
    return all(torch.equal(before[i][key], after[i][key]) for i in before for key in before[i])


@pytest.mark.slow
def test_a_microbatch_changes_memory_and_no_gradient():
    norms = []
    for size in (1, 3, 8):
        ppo = trainer(f"method.microbatch={size}", "method.minibatch=8", "sampling.temperature=2.0")
        norms.append(ppo.step(0).own["policy/grad_norm"])
    assert norms[0] > 0
    assert norms == pytest.approx([norms[0]] * 3, rel=1e-4)


@pytest.mark.slow
def test_the_policy_learns_a_reward_that_it_can_reach():
    ppo = trainer(
        "prompts=16", "method.samples=4", "method.minibatch=32", "method.microbatch=32", "method.lr=0.001",
        "method.critic_lr=0.002", "method.kl=0", "reward.answer=0", "reward.format=1", "sampling.max_tokens=40",
    )  # fmt: skip
    rates = []
    for number in range(7):
        step = ppo.step(number)
        rates.append(sum(s.grade.formatted for own in step.samples for s in own) / 64)
    assert sum(rates[-2:]) / 2 > sum(rates[:2]) / 2 + 0.2
