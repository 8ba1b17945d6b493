"""The safetensors format as far as a center needs it: what a file holds, and how a tensor is read where it will stay.

Leaves to `center` which tensors a model has. The library maps files instead, and mapped pages count as memory of the
process: a model would be held twice while it is read.
"""

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from esctl.engines.weights.dtypes import BY_NAME, BY_STORED


class Stored(NamedTuple):
    """Where a file keeps a tensor."""

    path: Path
    dtype: str
    shape: tuple[int, ...]
    offset: int  # bytes from the start of the file


def header(shapes: Mapping[str, tuple[int, ...]], dtype: str) -> bytes:
    """The length-prefixed JSON that opens a file, padded so that the data begins on 8 bytes."""
    described: dict[str, object] = {"__metadata__": {"format": "pt"}}
    written = BY_NAME[dtype]
    begin = 0
    for name, shape in shapes.items():
        end = begin + written.itemsize * math.prod(shape)
        described[name] = {"dtype": written.stored, "shape": shape, "data_offsets": [begin, end]}
        begin = end
    text = json.dumps(described, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


def stored_tensors(folder: Path) -> dict[str, Stored]:
    """Everything that a folder's safetensors files hold; nothing where one of them is damaged or of other dtypes."""
    found: dict[str, Stored] = {}
    for path in sorted(folder.glob("*.safetensors")):
        try:
            found |= entries(path)
        except (KeyError, TypeError, ValueError):
            return {}
    return found


def read_into(stored: Stored, out: NDArray[np.float32]) -> None:
    """Read a tensor into fp32 memory, exactly; 16-bit dtypes pass through a copy of that tensor alone."""
    count = math.prod(stored.shape)
    assert out.size == count, (stored, out.shape)
    with stored.path.open("rb") as file:
        file.seek(stored.offset)
        if stored.dtype == "F32":
            file.readinto(out.reshape(-1, copy=False).view(np.uint8).data)
            return
        half = np.fromfile(file, "<u2", count)
    # The 16 bits of bfloat16 are the upper half of an fp32 number.
    values = half.view("<f2") if stored.dtype == "F16" else (half.astype("<u4") << 16).view("<f4")
    out[...] = values.reshape(out.shape)


def entries(path: Path) -> dict[str, Stored]:
    """What one file holds; raises OSError, KeyError, TypeError or ValueError for one that is not whole."""
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if length > path.stat().st_size:
            raise ValueError("no safetensors header")
        described = json.loads(file.read(length))
    described.pop("__metadata__", None)
    found = {
        name: Stored(path, entry["dtype"], tuple(entry["shape"]), 8 + length + entry["data_offsets"][0])
        for name, entry in described.items()
    }
    ends = [stored.offset + BY_STORED[stored.dtype].itemsize * math.prod(stored.shape) for stored in found.values()]
    if path.stat().st_size != max(ends, default=8 + length):
        raise ValueError("cut off")
    return found
