"""The training methods by name. A method knows seeds and scores, and neither weights nor text.

An ES method is one file (`es`, `essam`): a frozen dataclass whose fields are its settings in a recipe, and which has
the parts of `protocol.Method`. A new one joins by its entry in `METHODS`. `shaping` turns scores into coefficients.
An RL method is its settings (`grpo`, `ppo`, checked by `checks`); its trainer is in `training.rl`. `External` stands
for a model that was trained elsewhere. May import `noise.moves` and the ground only.
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
