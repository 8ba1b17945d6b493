"""The dtypes that weights are stored and served in: one table of their names and sizes."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class Dtype:
    """One dtype, under every name that it has."""

    name: str  # in recipes, in config.json and in PyTorch
    short: str  # in tables for people
    stored: str  # in a safetensors header
    itemsize: int  # bytes


DTYPES: Final = (
    Dtype("float32", "fp32", "F32", 4),
    Dtype("bfloat16", "bf16", "BF16", 2),
    Dtype("float16", "fp16", "F16", 2),
)
BY_NAME: Final = {dtype.name: dtype for dtype in DTYPES}
BY_STORED: Final = {dtype.stored: dtype for dtype in DTYPES}


def torch_dtype(name: str) -> "torch.dtype":
    """PyTorch's dtype of that name."""
    import torch

    return {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}[name]


def dtype_name(dtype: "torch.dtype") -> str:
    """The name of PyTorch's dtype, such as `float32`."""
    return str(dtype).removeprefix("torch.")
