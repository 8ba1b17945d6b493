"""What a person watching a run sees on a terminal of usual width."""

import io

from rich.console import Console

from esctl.cli.progress import TrainingDisplay
from esctl.training.events import GenerationDone

METRICS = {
    "generation": 3,
    "reward/mean": 0.36,
    "reward/sd": 0.097,
    "accuracy/strict": 0.308,
    "accuracy/flexible": 0.541,
    "format/rate": 0.528,
}


def shown(width: int) -> str:
    console = Console(file=io.StringIO(), force_terminal=True, width=width, color_system=None)
    with TrainingDisplay(console, "ESSAM s0") as display:
        display(GenerationDone(METRICS, 10, 1384.0, 392.0))
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_a_terminal_of_80_columns_shows_how_far_a_run_is_and_how_long_it_still_takes():
    lines = shown(80).split("ESSAM s0")
    assert any("3/10 6 min 32 s left  reward 0.360 ± 0.097" in line and "0:00:0" in line for line in lines)


def test_the_line_of_a_run_that_is_over_has_no_time_left():
    assert "3/10 reward 0.360" in shown(140).rsplit("ESSAM s0", 1)[1]


def test_a_wide_terminal_shows_every_number_of_a_generation():
    assert "strict 0.308  flexible 0.541  format 0.528  1,384 tok/s" in shown(140)
