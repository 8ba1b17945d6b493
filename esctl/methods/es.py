"""Evolution Strategies on seeds: one round at θ, one step along the score-weighted noise.

Qiu et al. 2025 (arXiv 2509.24372). With N = `population`, σ = `sigma`, α = `alpha`:

    rᵢ = R(θ + σ εᵢ)                      i = 1..N, fresh seeds each generation
    zᵢ = (rᵢ − mean r)/(std r + 1e-8)     `shaping: z-score`
    θ ← θ + (α/N) Σ zᵢ εᵢ                 no 1/σ: it is inside α

Deviations, all off by default: `mirrored` evaluates θ ± σε for N/2 seeds, and a pair moves by (z⁺ − z⁻)·α/N along its
ε; `shaping: rank` puts centred ranks in the place of z-scores.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from esctl.methods.checks import SettingError
from esctl.methods.protocol import State
from esctl.methods.shaping import SHAPINGS, Shaping, is_flat
from esctl.noise.moves import EMPTY, Move, Round, member_seed


def check_population(size: int, sigma: float, mirrored: bool, name: str = "population") -> None:
    """Refuse a population whose step is undefined; raises ValueError that names the field."""
    if size < 2:
        raise SettingError(name, f"{size} is too few: z-scores of one score are undefined, use 2 or more")
    if mirrored and size % 2:
        raise SettingError(name, f"{size} is odd, but mirrored pairs need an even number")
    if not sigma > 0:
        raise SettingError("sigma", f"{sigma} must be above 0")


def check_sizes(**sizes: float) -> None:
    """Refuse a negative step or probe, which would silently reverse the direction; raises ValueError."""
    for name, size in sizes.items():
        if size < 0:
            raise SettingError(name, f"{size} must not be negative")


@dataclass(frozen=True)
class Population:
    """N perturbations of scale σ, drawn from (run seed, generation, round), and the step that their scores give."""

    size: int
    sigma: float
    mirrored: bool = False
    shaping: Shaping = "z-score"

    def seeds(self, state: State) -> list[int]:
        """One seed per member, or per mirrored pair."""
        count = self.size // 2 if self.mirrored else self.size
        return [member_seed(state.seed, state.generation, state.index, m) for m in range(count)]

    def candidates(self, state: State) -> tuple[Move, ...]:
        """The members; mirrored pairs are neighbours, + before −."""
        signs = (1.0, -1.0) if self.mirrored else (1.0,)
        return tuple(Move.of([s], [sign * self.sigma]) for s in self.seeds(state) for sign in signs)

    def step(self, state: State, scores: Sequence[float], scale: float) -> Move:
        """(scale/N) Σ zᵢ εᵢ, one term per seed; the empty move when the scores are flat."""
        if is_flat(scores):
            return EMPTY
        shaped = SHAPINGS[self.shaping](scores)
        if self.mirrored:
            shaped = [plus - minus for plus, minus in zip(shaped[::2], shaped[1::2], strict=True)]
        return Move.of(self.seeds(state), [z * scale / self.size for z in shaped])


@dataclass(frozen=True)
class ES:
    """θ ← θ + (α/N) Σ zᵢ εᵢ; the symbols are those of the module."""

    probes: ClassVar[bool] = False

    population: int = 30  # members in a generation, N
    sigma: float = 1e-3  # scale of the noise, σ
    alpha: float = 5e-4  # step size, α
    mirrored: bool = False  # evaluate θ ± σε for N/2 seeds
    shaping: Shaping = "z-score"  # how scores become coefficients

    def __post_init__(self) -> None:
        check_population(self.population, self.sigma, self.mirrored)
        check_sizes(alpha=self.alpha)

    @property
    def rounds(self) -> tuple[int, ...]:
        """N evaluations per generation."""
        return (self.population,)

    @property
    def members(self) -> Population:
        """The noise of a generation."""
        return Population(self.population, self.sigma, self.mirrored, self.shaping)

    def start(self, seed: int, dim: int) -> State:
        """The state before the first generation."""
        return State(seed, dim)

    def ask(self, state: State) -> Round:
        """N candidates around θ."""
        return Round(state.generation, 0, EMPTY, self.members.candidates(state))

    def tell(self, state: State, scores: Sequence[float]) -> tuple[State, Move]:
        """The update, to be applied at θ."""
        return replace(state, generation=state.generation + 1), self.members.step(state, scores, self.alpha)
