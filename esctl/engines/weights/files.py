"""Which files hold a model's weights, what a safetensors file holds, and how a tensor is read into its place.

The safetensors library maps files, and mapped pages count as memory of the process: a model would be held twice while
it is read. So files are read here.
"""

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from esctl.engines.weights.dtypes import BY_NAME, BY_STORED
from esctl.errors import EngineError

SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
MAX_HEADER = 100_000_000  # bytes; the library's own limit
MAX_INDEX = 100_000_000  # bytes; a million tensors


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


def weight_files(folder: Path) -> dict[Path, frozenset[str]]:
    """The safetensors files that make a model, each with the tensors that the index names for it (none without index).

    Transformers takes `model.safetensors` where it exists and vLLM the index: a folder with both is refused, unless
    they mean the same file. Every other file is ignored. Empty for a folder in another format. Raises EngineError, one
    line, for an index that is damaged, names a file that is missing, or leads out of the folder.
    """
    single = folder / SINGLE
    if not (folder / INDEX).is_file():
        return {single: frozenset()} if single.is_file() else {}
    files: dict[Path, set[str]] = {}
    for tensor, name in _weight_map(folder).items():
        files.setdefault(_inside(folder, name), set()).add(tensor)
    if single.is_file() and files.keys() != {single}:
        raise EngineError(f"model {folder} has both {SINGLE} and {INDEX}: remove the one that is not its weights")
    for path in files:
        if not path.is_file():
            raise EngineError(f"model {folder} lacks {path.name}, which {INDEX} names: fetch the file again")
    return {path: frozenset(tensors) for path, tensors in files.items()}


def stored_tensors(folder: Path) -> dict[str, Stored]:
    """Every tensor of a model's safetensors files; empty for a folder in another format.

    Raises EngineError, one line, for a file that is damaged, and where index and files disagree.
    """
    files = weight_files(folder)
    found: dict[str, Stored] = {}
    for path in sorted(files):
        try:
            own = entries(path)
        except (OSError, ValueError) as error:
            raise EngineError(
                f"model {folder} cannot be loaded as a causal language model: {path.name} is damaged ({error}):"
                " fetch the file again"
            ) from None
        for name, tensor in own.items():
            if name in found:
                raise EngineError(
                    f"model {folder} has {name} in two files, {found[name].path.name} and {path.name}:"
                    " remove the files that are not its weights"
                )
            found[name] = tensor
    for path, named in files.items():
        for name in sorted(named):
            if name not in found or found[name].path != path:
                raise EngineError(
                    f"model {folder}: {INDEX} names {name} in {path.name}, which lacks it: fetch both again"
                )
    return found


def _weight_map(folder: Path) -> dict[str, str]:
    index = folder / INDEX
    try:
        if index.stat().st_size > MAX_INDEX:
            raise ValueError("larger than any index")
        weights = json.loads(index.read_bytes(), object_pairs_hook=_no_doubles)["weight_map"]
        if not isinstance(weights, dict) or not weights or not all(isinstance(v, str) for v in weights.values()):
            raise ValueError("weight_map is not a table of file names")
    except KeyError:
        raise EngineError(f"model {folder}: {INDEX} has no weight_map: fetch the file again") from None
    except (OSError, TypeError, ValueError, RecursionError) as error:
        raise EngineError(f"model {folder}: {INDEX} cannot be read ({error}): fetch the file again") from None
    return weights


def _inside(folder: Path, name: str) -> Path:
    """The file that an index names; EngineError for one that is outside of the folder, by path or by link.

    The files of a hub snapshot are links to the blobs of the same repository.
    """
    path = folder / name
    own = folder.resolve()
    allowed = [own]
    if own.parent.name == "snapshots":
        allowed.append(own.parent.parent / "blobs")
    if "\0" in name or not any(path.resolve().is_relative_to(place) for place in allowed):
        raise EngineError(f"model {folder}: {INDEX} names {name!r}, which is outside of the folder: not read")
    if path.suffix != ".safetensors":
        raise EngineError(f"model {folder}: {INDEX} names {name!r}, which is not a safetensors file")
    return path


def _no_doubles(pairs: list[tuple[str, object]]) -> dict[str, object]:
    """A JSON object whose keys are unique; json itself keeps the last of two."""
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        double = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"{double!r} occurs twice")
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
    """What one file holds; raises OSError or ValueError, for a file that is not whole, or has a wrong header."""
    size = path.stat().st_size
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if size < 8 or length > min(size - 8, MAX_HEADER):
            raise ValueError("no safetensors header, or the file is cut off")
        text = file.read(length)
    try:
        described = json.loads(text, object_pairs_hook=_no_doubles)
    except RecursionError:
        raise ValueError("its header is nested too deeply") from None
    if not isinstance(described, dict):
        raise ValueError("its header is not an object")
    described.pop("__metadata__", None)
    found: dict[str, Stored] = {}
    spans: list[tuple[int, int]] = []
    for name, entry in described.items():
        dtype, shape, begin, end = _entry(name, entry)
        found[name] = Stored(path, dtype, shape, 8 + length + begin)
        spans.append((begin, end))
    position = 0
    for begin, end in sorted(spans):
        if begin != position:
            raise ValueError("its tensors overlap or leave gaps")
        position = end
    if size != 8 + length + position:
        raise ValueError(f"it has {size} bytes and its header describes {8 + length + position}")
    return found


def _entry(name: str, entry: object) -> tuple[str, tuple[int, ...], int, int]:
    """Dtype, shape, and the span of bytes of one tensor; ValueError where they do not fit each other."""
    try:
        dtype, shape, (begin, end) = entry["dtype"], tuple(entry["shape"]), entry["data_offsets"]  # type: ignore[index]
    except (KeyError, TypeError, ValueError):
        raise ValueError(f"the header's entry of {name} is not whole") from None
    numbers = (*shape, begin, end)
    if not isinstance(dtype, str) or not all(type(n) is int and 0 <= n < 1 << 48 for n in numbers):
        raise ValueError(f"the header's entry of {name} is not whole")
    if dtype in BY_STORED and end - begin != BY_STORED[dtype].itemsize * math.prod(shape):
        raise ValueError(f"the header gives {name} {end - begin} bytes, which is not its shape")
    if end < begin:
        raise ValueError(f"the header's entry of {name} ends before it begins")
    return dtype, shape, begin, end
