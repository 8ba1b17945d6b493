"""What a number means: the protocol of an evaluation or of a sharpness measurement, as values that can be compared.

Two numbers stand in one table only if their settings are equal. How many samples were drawn, and their seed, are no
part of a setting: they decide how well a number is known.
"""

from dataclasses import dataclass, fields
from typing import Self

from esctl.runs.records import EvalRecord, Mode, SharpnessRecord, decoding_text

# Fields by the key under which a record holds them, where that is another.
KEYS = {
    "task": "task.name",
    "task_version": "task.version",
    "temperature": "sampling.temperature",
    "top_p": "sampling.top_p",
    "max_tokens": "sampling.max_tokens",
    "stop": "sampling.stop",
    "mode": "mode.kind",
    "sigma": "mode.sigma",
}


@dataclass(frozen=True)
class Difference:
    """A field in which two settings differ, under its key in the records, and both values."""

    key: str
    value: object
    other: object


@dataclass(frozen=True)
class _Setting:
    def differences(self, other: Self) -> list[Difference]:
        """The fields in which two settings differ, in their order."""
        return [
            Difference(KEYS.get(f.name, f.name), getattr(self, f.name), getattr(other, f.name))
            for f in fields(self)
            if getattr(self, f.name) != getattr(other, f.name)
        ]


@dataclass(frozen=True)
class EvalSetting(_Setting):
    """The fields that decide what an accuracy means."""

    task: str
    task_version: int
    split: str
    temperature: float
    top_p: float
    max_tokens: int
    stop: tuple[str, ...]
    mode: str
    sigma: float
    prompt_sha256: str
    problems_sha256: str

    @classmethod
    def of(cls, record: EvalRecord) -> Self:
        """The setting under which an evaluation was made."""
        return cls(
            task=record.task.name,
            task_version=record.task.version,
            split=record.split,
            temperature=record.sampling.temperature,
            top_p=record.sampling.top_p,
            max_tokens=record.sampling.max_tokens,
            stop=tuple(record.sampling.stop),
            mode=record.mode.kind,
            sigma=record.mode.sigma,
            prompt_sha256=record.prompt_sha256,
            problems_sha256=record.problems_sha256,
        )

    @property
    def decoding(self) -> str:
        """How answers were drawn, in words."""
        return decoding_text(self.temperature, self.top_p, Mode(self.mode, self.sigma))


@dataclass(frozen=True)
class SharpnessSetting(_Setting):
    """The fields that decide what a sharpness means, beside the noise scales."""

    task: str
    task_version: int
    split: str
    temperature: float
    max_tokens: int
    stop: tuple[str, ...]
    prompt_sha256: str
    problems_sha256: str

    @classmethod
    def of(cls, record: SharpnessRecord) -> Self:
        """The setting under which sharpness was measured."""
        return cls(
            task=record.task.name,
            task_version=record.task.version,
            split=record.split,
            temperature=record.sampling.temperature,
            max_tokens=record.sampling.max_tokens,
            stop=tuple(record.sampling.stop),
            prompt_sha256=record.prompt_sha256,
            problems_sha256=record.problems_sha256,
        )
