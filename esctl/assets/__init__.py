"""Where the files that ship with the package lie. Knows paths only; how a model is loaded is for the engines."""

from importlib.resources import files
from pathlib import Path


def tiny_model_path() -> Path:
    """The embedded model: a folder in Hugging Face format, made by `tools/make_tiny_model.py`."""
    return Path(str(files("esctl.assets"))) / "tiny"
