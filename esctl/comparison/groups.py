"""Groups of runs that differ only in their seed, each with a label of its own, and their scores as arrays."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from esctl.comparison.selection import Chosen
from esctl.comparison.settings import EvalSetting
from esctl.plain import one_line
from esctl.runs.records import BASE, ProblemCounts, SharpnessRecord, is_greedy
from esctl.stats import Floats, pass_values

# With fewer seeds an interval is over problems alone, conditional on these runs: it says nothing about other seeds.
ENOUGH_SEEDS = 3


@dataclass(frozen=True)
class Group:
    """The runs of one row, which differ in nothing but their seed."""

    label: str
    items: tuple[Chosen, ...]

    @property
    def trained(self) -> bool:
        """Whether its runs were trained; an untrained base has no seeds."""
        return self.items[0].loaded.record.method != BASE

    @property
    def base(self) -> str:
        """Hash of the weights it started from."""
        return self.items[0].base

    @property
    def ids(self) -> tuple[str, ...]:
        """Its problems, in order."""
        return tuple(self.items[0].eval.problems.id)

    @property
    def paired(self) -> bool:
        """Whether all its runs answered the same problems; False only under --force."""
        return all(item.eval.problems.id == self.items[0].eval.problems.id for item in self.items)

    def sampled(self, setting: EvalSetting) -> bool:
        """Whether all its runs have samples drawn under this setting."""
        return all(setting in item.sampled for item in self.items)

    def sampled_ids(self, setting: EvalSetting) -> tuple[str, ...]:
        """The problems of its samples under this setting, in order."""
        return tuple(self.items[0].sampled[setting].problems.id)

    def sampled_problems(self, setting: EvalSetting) -> list[ProblemCounts]:
        """Per run, the counts of its samples under this setting."""
        return [item.sampled[setting].problems for item in self.items]

    def samples(self, setting: EvalSetting) -> int:
        """Samples under this setting that every problem of every run has."""
        return min(min(problems.n) for problems in self.sampled_problems(setting))

    @property
    def single_greedy(self) -> bool:
        """Whether it is one run that answered each problem once, greedily."""
        return len(self.items) == 1 and is_greedy(self.items[0].eval)

    @property
    def sharpness(self) -> list[SharpnessRecord]:
        """The measurements of those of its runs that have one."""
        return [item.sharpness for item in self.items if item.sharpness is not None]

    def shares(self, part: str) -> Floats:
        """The share of answers that were strict, flexible or formatted, by run and problem (runs × problems)."""
        return np.array([shares(item, part) for item in self.items])


def grouped(items: Iterable[Chosen]) -> list[Group]:
    """Group runs by recipe without seed and engine, in order of appearance; no two groups share a label."""
    found: dict[tuple[str, ...], list[Chosen]] = {}
    for item in items:
        found.setdefault(_key(item), []).append(item)
    return _told_apart([Group(one_line(runs[0].loaded.record.label), tuple(runs)) for runs in found.values()])


def _key(item: Chosen) -> tuple[str, ...]:
    record, settings = item.loaded.record, item.loaded.settings
    if record.method == BASE or not settings:
        return record.label, record.method, item.base
    return tuple(f"{key}={value}" for key, value in sorted(settings.items()))


def _told_apart(groups: Sequence[Group]) -> list[Group]:
    """Add to equal labels what differs between the groups: the model, or other settings."""
    found = []
    for group in groups:
        twins = [other for other in groups if other.label == group.label]
        label = f"{group.label} [{_mark(group, twins)}]" if len(twins) > 1 else group.label
        found.append(replace(group, label=label))
    return found


def _mark(group: Group, twins: Sequence[Group]) -> str:
    """At most two settings in which groups with one label differ; otherwise the first digits of the base's hash."""
    own = group.items[0].loaded
    others = [twin.items[0].loaded.settings for twin in twins]
    unlike = [k for k in own.settings if any(other.get(k) != own.settings[k] for other in others)]
    first = sorted(unlike, key=lambda k: (k != "model", not k.startswith("method."), k))[:2]
    return ", ".join(f"{k}={own.settings[k]}" for k in first) or f"base {group.base[:8]}"


def pass_at(group: Group, setting: EvalSetting, k: int) -> Floats:
    """The unbiased pass@k of each run and problem (runs × problems)."""
    return np.array([pass_values(p.n, p.strict, k) for p in group.sampled_problems(setting)])


def mostly_right(group: Group) -> Floats:
    """1 where more than half of a run's answers to a problem are strictly right (runs × problems)."""
    return (group.shares("strict") > 0.5).astype(np.float64)


def shares(item: Chosen, part: str) -> Floats:
    """The share of a run's answers to each problem that were strict, flexible or formatted."""
    p = item.eval.problems
    counts = {"strict": p.strict, "flexible": p.flexible, "formatted": p.formatted}[part]
    return np.divide(counts, p.n, dtype=np.float64)
