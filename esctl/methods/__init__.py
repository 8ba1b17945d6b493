"""The training methods by name. Methods know seeds and scores; weights and text are for others.

May import `noise.moves` alone. An ES method is one file: a frozen dataclass whose fields are its settings in a recipe
and which has the four parts of `protocol.Method`. An RL method is its settings here and a trainer in `training.rl`.
`External` stands for a model that was trained elsewhere.
"""

from esctl.methods.es import ES
from esctl.methods.essam import ESSAM, ESSAMF
from esctl.methods.external import External
from esctl.methods.grpo import GRPO
from esctl.methods.ppo import PPO
from esctl.methods.protocol import Method, State

MethodConfig = ES | ESSAM | ESSAMF
METHODS: dict[str, type[MethodConfig]] = {"es": ES, "essam": ESSAM, "essam-f": ESSAMF}

BaselineConfig = GRPO | PPO
BASELINES: dict[str, type[BaselineConfig]] = {"grpo": GRPO, "ppo": PPO}

__all__ = [
    "BASELINES",
    "ES",
    "ESSAM",
    "ESSAMF",
    "GRPO",
    "METHODS",
    "PPO",
    "BaselineConfig",
    "External",
    "Method",
    "MethodConfig",
    "State",
]
