"""ESSAM: sharpness-aware ES. Step against the reward into the neighbourhood, re-estimate there, apply at θ.

Sun et al. 2026 (arXiv 2602.01003). With N = `population`, σ = `sigma`, α = `alpha`, ρ = `rho`:

    round 0 at θ:    zᵢ from N seeds εᵢ
    probe:           θ' = θ − (ρ/N) Σ zᵢ εᵢ         z-scored; divided neither by its norm nor by σ
    round 1 at θ':   z'ⱼ from N new seeds ε'ⱼ, on the same prompts
    update at θ:     θ ← θ + (α/N) Σ z'ⱼ ε'ⱼ        2N evaluations per generation

ESSAM-F, the accelerated variant of the same paper: round 0 has K = `probe_population` seeds and only centres scores,

    g = (1/K) Σ (rᵢ − mean r) εᵢ,    θ' = θ − ρ' g/(‖g‖ + 1e-12),    ρ' = `probe_norm`, K + N evaluations.

Deviation: ‖g‖ is √(d Σ cᵢ²), the norm that d independent standard normals give, instead of a pass over all weights
(relative error some 1/√(2d)). `probe` replaces the direction by a control: `random` (fresh noise scaled to the norm
that z-scores give, ρ√(d/N), and no round 0: N evaluations) or `flipped` (θ + probe). Mirrored pairs and ranks are as in
`es`.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

from esctl.methods.es import Population, check_population, check_sizes
from esctl.methods.protocol import State
from esctl.methods.shaping import Shaping, deviations, is_flat
from esctl.noise.moves import EMPTY, Move, Round, probe_seed

Probe = Literal["against", "flipped", "random"]


@dataclass(frozen=True)
class ESSAM:
    """Two rounds a generation, at θ and at the probe θ'; the symbols are those of the module."""

    probes: ClassVar[bool] = True

    population: int = 30  # members of each round, N
    sigma: float = 1e-3  # scale of the noise, σ
    alpha: float = 5e-4  # step size, α
    rho: float = 5e-4  # size of the probe, ρ
    probe: Probe = "against"  # its direction; `flipped` and `random` are controls
    mirrored: bool = False  # evaluate θ ± σε for N/2 seeds
    shaping: Shaping = "z-score"  # how scores become coefficients

    def __post_init__(self) -> None:
        check_population(self.population, self.sigma, self.mirrored)
        check_sizes(alpha=self.alpha, rho=self.rho)

    @property
    def rounds(self) -> tuple[int, ...]:
        """2N evaluations; the random control needs only the second N."""
        return (self.population,) if self.probe == "random" else (self.population, self.population)

    @property
    def members(self) -> Population:
        """The noise of either round; the round's index keeps their seeds apart."""
        return Population(self.population, self.sigma, self.mirrored, self.shaping)

    def start(self, seed: int, dim: int) -> State:
        """The state before the first generation."""
        return self._begin(State(seed, dim))

    def ask(self, state: State) -> Round:
        """Candidates around θ, then around the probe."""
        return Round(state.generation, state.index, state.probe, self.members.candidates(state))

    def tell(self, state: State, scores: Sequence[float]) -> tuple[State, Move]:
        """After round 0 the probe, kept in the state; after round 1 the update, to be applied at θ."""
        if state.index == 0:
            sign = 1.0 if self.probe == "flipped" else -1.0
            return replace(state, index=1, probe=self.members.step(state, scores, sign * self.rho)), EMPTY
        move = self.members.step(state, scores, self.alpha)
        return self._begin(replace(state, generation=state.generation + 1)), move

    def _begin(self, state: State) -> State:
        if self.probe != "random":
            return replace(state, index=0, probe=EMPTY)
        # One draw of norm ρ√(d/N) stands for N of ρ/N each: z-scores have Σz² = N, and sums of normals are normal.
        seed = probe_seed(state.seed, state.generation, 0, 0)
        return replace(state, index=1, probe=Move.of([seed], [self.rho / math.sqrt(self.population)]))


@dataclass(frozen=True)
class ESSAMF:
    """ESSAM with K probing seeds and a probe of a given norm; the symbols are those of the module."""

    probes: ClassVar[bool] = True

    population: int = 30  # members of the round at the probe, N
    sigma: float = 1e-3  # scale of the noise, σ
    alpha: float = 5e-4  # step size, α
    probe_population: int = 10  # members of the probing round, K
    probe_norm: float = 5e-4  # length of the probe, ρ'
    mirrored: bool = False  # evaluate θ ± σε for N/2 seeds
    shaping: Shaping = "z-score"  # how scores become coefficients

    def __post_init__(self) -> None:
        check_population(self.population, self.sigma, self.mirrored)
        check_population(self.probe_population, self.sigma, False, "probe_population")
        check_sizes(alpha=self.alpha, probe_norm=self.probe_norm)

    @property
    def rounds(self) -> tuple[int, ...]:
        """K + N evaluations per generation."""
        return (self.probe_population, self.population)

    @property
    def members(self) -> Population:
        """The noise of the round at the probe."""
        return Population(self.population, self.sigma, self.mirrored, self.shaping)

    @property
    def probers(self) -> Population:
        """The noise of the probing round."""
        return Population(self.probe_population, self.sigma)

    def start(self, seed: int, dim: int) -> State:
        """The state before the first generation."""
        return State(seed, dim)

    def ask(self, state: State) -> Round:
        """K candidates around θ, then N around the probe."""
        population = self.probers if state.index == 0 else self.members
        return Round(state.generation, state.index, state.probe, population.candidates(state))

    def tell(self, state: State, scores: Sequence[float]) -> tuple[State, Move]:
        """After round 0 the probe, kept in the state; after round 1 the update, to be applied at θ."""
        if state.index == 0:
            return replace(state, index=1, probe=self._probe(state, scores)), EMPTY
        move = self.members.step(state, scores, self.alpha)
        return replace(state, generation=state.generation + 1, index=0, probe=EMPTY), move

    def _probe(self, state: State, scores: Sequence[float]) -> Move:
        if is_flat(scores):
            return EMPTY
        g = Move.of(self.probers.seeds(state), [d / self.probe_population for d in deviations(scores)])
        return g * (-self.probe_norm / (g.norm(state.dim) + 1e-12))
