"""Plots of a comparison: learning, pass@k, coverage and sharpness, each as PNG and SVG with one legend.

Rows differ in colour, line, marker and hatch, so that plots can be read in grey and by the colour-blind. Equal data
give equal SVG files. `curves` computes the numbers. matplotlib is imported only when something is drawn.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from esctl.comparison import curves
from esctl.comparison.curves import COVERAGE_BINS, Curve
from esctl.comparison.groups import Group
from esctl.comparison.settings import EvalSetting
from esctl.errors import UsageError
from esctl.plain import one_line

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


# Okabe & Ito's palette, which the common kinds of colour blindness tell apart; from dark to light where that matters.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#000000", "#56B4E9", "#E69F00")
LINES = ("-", "--", "-.", ":", (0, (6, 1, 1, 1, 1, 1)), (0, (1, 2)), (0, (8, 3)))
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*", "<", "p", ">")
HATCHES = ("", "///", "...", "xxx", "\\\\\\", "++", "oo")
STYLE = {
    "svg.hashsalt": "esctl",  # element ids by content: else equal pictures differ
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#dddddd",
    "grid.linewidth": 0.6,
    "hatch.linewidth": 0.6,
    "lines.linewidth": 1.6,
    "lines.markersize": 4.5,
}
PANEL = (3.5, 2.9)  # inches


@dataclass(frozen=True)
class Look:
    """How a row is drawn, the same in every picture."""

    colour: str
    line: str | tuple[int, tuple[int, ...]]
    marker: str
    hatch: str

    @property
    def lighter(self) -> tuple[float, float, float]:
        """The colour, two thirds towards white: a hatch must be seen on it."""
        red, green, blue = (int(self.colour[i : i + 2], 16) / 255 for i in (1, 3, 5))
        return 1 - (1 - red) * 0.45, 1 - (1 - green) * 0.45, 1 - (1 - blue) * 0.45


def look(place: int) -> Look:
    """The look of the row at a place of the table; where colours come again, line, marker and hatch are others."""
    n = len(COLOURS)
    again = place + place // n
    return Look(COLOURS[place % n], LINES[again % n], MARKERS[place % len(MARKERS)], HATCHES[again % n])


@dataclass(frozen=True)
class Drawn:
    """The files that were written, and what was not drawn and why."""

    files: tuple[Path, ...]
    notes: tuple[str, ...]


@dataclass(frozen=True)
class Panel:
    """One set of axes: what is on them, and how it is drawn."""

    title: str
    x: str
    y: str
    draw: Callable[["Axes"], None]


def draw(groups: Sequence[Group], folder: Path) -> Drawn:
    """Draw what the data has into `folder`: `learning`, `pass-at-k`, `coverage` and `sharpness`, as .png and .svg."""
    try:
        import matplotlib
    except ModuleNotFoundError:
        raise UsageError("--plot needs matplotlib; pip install 'esctl-lm[plots]'") from None
    first = groups[0].items[0].eval
    task = f"{first.task.name} v{first.task.version}"
    subject = f"{task}, {first.split} split"
    notes: list[str] = []
    pictures = [
        (
            "learning",
            f"{task}: members on training prompts (lines), evaluations (markers)",
            learning_panels(groups, notes),
        ),
        ("pass-at-k", f"{subject}: pass@k with 95 % intervals", pass_panels(groups, notes)),
        ("coverage", f"{subject}: how often problems are solved", coverage_panels(groups)),
        ("sharpness", f"{subject}: what a step in weight space costs, 95 % intervals", sharpness_panels(groups, notes)),
    ]
    files: list[Path] = []
    with matplotlib.rc_context(STYLE):
        for name, title, panels in pictures:
            files += _save(figure(panels, title), folder / name) if panels else []
    return Drawn(tuple(files), tuple(notes))


def learning_panels(groups: Sequence[Group], notes: list[str]) -> list[Panel]:
    """Strict accuracy against generations, rollouts and seconds: lines are members, markers evaluations."""
    trained = [(place, g) for place, g in enumerate(groups) if g.trained]
    known = [(place, g) for place, g in trained if curves.learning(g, "generations")]
    notes += [f"learning: {g.label} not drawn, it has no metrics.jsonl" for p, g in trained if (p, g) not in known]
    if not known:
        notes.append("learning: not drawn, no run here holds a metrics.jsonl")
        return []

    def panel(cost: str) -> Panel:
        def on(axes: "Axes") -> None:
            _plain_numbers(axes)
            for place, group in known:
                found = curves.learning(group, cost)
                if found:
                    _line(axes, found.members, place, marked=False)
                    if found.evaluations:
                        _points(axes, found.evaluations, place)

        return Panel("", cost, "strict accuracy", on)

    return [panel(cost) for cost in curves.COSTS]


def pass_panels(groups: Sequence[Group], notes: list[str]) -> list[Panel]:
    """pass@k over log₂ k with its 95 % band, a panel per sampling."""
    settings = curves.samplings(groups)
    if not settings:
        notes.append("pass-at-k, coverage: not drawn, no run has several samples per problem; see `esctl passk`")
    for setting in settings:
        having = curves.sampled_alike(groups, setting)
        left_out = [g.label for g in groups if g not in having]
        notes += [f"pass-at-k, coverage: {label} not drawn, not sampled at {setting.decoding}" for label in left_out]

    def panel(setting: EvalSetting) -> Panel:
        def on(axes: "Axes") -> None:
            axes.set_xscale("log", base=2)
            found = [
                (p, curves.pass_curve(g, setting)) for p, g in _placed(groups, curves.sampled_alike(groups, setting))
            ]
            for place, curve in found:
                _line(axes, curve, place)
            _ticks_at(axes, {k for _, curve in found for k in curve.x})

        return Panel(_sampled(groups, setting), "k (samples, log₂)", "pass@k", on)

    return [panel(setting) for setting in settings]


def coverage_panels(groups: Sequence[Group]) -> list[Panel]:
    """Histograms of problems by the share of samples that are right; the first bin is unsolvable."""

    def panel(setting: EvalSetting) -> Panel:
        def on(axes: "Axes") -> None:
            having = _placed(groups, curves.sampled_alike(groups, setting))
            width = 0.8 / len(having)
            for slot, (place, group) in enumerate(having):
                found = curves.coverage(group, setting)
                x = [bin_ + (slot - (len(having) - 1) / 2) * width for bin_ in range(len(COVERAGE_BINS))]
                drawn = look(place)
                bars = axes.bar(x, found.shares, width, label=drawn_text(found.label), linewidth=0.8, hatch=drawn.hatch)
                for bar in bars:
                    bar.set(facecolor=drawn.lighter, edgecolor=drawn.colour)
            names = [f"{COVERAGE_BINS[0]}\nunsolved", *COVERAGE_BINS[1:]]
            axes.set_xticks(range(len(names)), names)
            axes.grid(visible=False, axis="x")

        return Panel(_sampled(groups, setting), "right samples of a problem, up to %", "share of problems", on)

    return [panel(setting) for setting in curves.samplings(groups)]


def sharpness_panels(groups: Sequence[Group], notes: list[str]) -> list[Panel]:
    """Accuracy lost under noise, rise of the reference solutions' NLL, and steps along directions."""
    measured = [g for g in groups if curves.sharpness_curve(g)]
    if not measured:
        notes.append("sharpness: not drawn, no run was measured; see `esctl sharpness`")
        return []
    notes += [f"sharpness: {g.label} not drawn, not measured" for g in groups if g not in measured]
    average = _sigma_lines(groups, curves.sharpness_curve)
    panels = [Panel("random noise", "noise scale σ (log)", "S_avg (accuracy lost)", average)]
    if any(curves.nll_curve(g) for g in measured):
        nll = _sigma_lines(groups, curves.nll_curve, share=False)
        panels.append(Panel("random noise", "noise scale σ (log)", "rise of NLL (nats per token)", nll))
    if any(curves.direction_curves(g) for g in measured):
        title = "ES estimate (lines), random (hollow)"
        panels.append(Panel(title, "norm of the step", "accuracy lost", _direction_lines(groups)))
    return panels


def _sigma_lines(
    groups: Sequence[Group], curve_of: Callable[[Group], Curve | None], share: bool = True
) -> Callable[["Axes"], None]:
    def on(axes: "Axes") -> None:
        axes.set_xscale("log")
        axes.axhline(0, color="#888888", linewidth=0.8)
        found = [(place, curve) for place, group in enumerate(groups) if (curve := curve_of(group))]
        for place, curve in found:
            _line(axes, curve, place)
        _ticks_at(axes, {sigma for _, curve in found for sigma in curve.x})
        if not share:
            axes.yaxis.set_major_formatter("{x:g}")

    return on


def _direction_lines(groups: Sequence[Group]) -> Callable[["Axes"], None]:
    def on(axes: "Axes") -> None:
        axes.axhline(0, color="#888888", linewidth=0.8)
        for place, group in enumerate(groups):
            found = curves.direction_curves(group)
            if found:
                _line(axes, found[0], place)
                _points(axes, found[1], place)

    return on


def _placed(groups: Sequence[Group], chosen: Sequence[Group]) -> list[tuple[int, Group]]:
    """Chosen groups with their place among all: a row looks alike in every picture."""
    return [(place, group) for place, group in enumerate(groups) if group in chosen]


def _sampled(groups: Sequence[Group], setting: EvalSetting) -> str:
    """How answers were drawn, and to how many problems."""
    first = curves.sampled_alike(groups, setting)[0]
    return f"{setting.decoding}, {len(first.sampled_ids(setting)):,} problems"


def _ticks_at(axes: "Axes", places: set[float]) -> None:
    """Ticks where something was measured, as plain numbers; every other one where there are many."""
    step = 2 if len(places) > 8 else 1
    every = sorted(places)[::step]
    axes.set_xticks(every, [f"{x:g}" for x in every], rotation=45 if len(every) > 5 and every[-1] < 1 else 0)
    axes.minorticks_off()


def _plain_numbers(axes: "Axes") -> None:
    axes.xaxis.set_major_formatter("{x:,.0f}")


def _line(axes: "Axes", curve: Curve, place: int, marked: bool = True) -> None:
    """A row's line, in its colour, dash and marker, over its band; unmarked, the legend alone shows a hollow marker."""
    drawn = look(place)
    [line] = axes.plot(curve.x, curve.y, color=drawn.colour, marker=drawn.marker, label=drawn_text(curve.label))
    line.set_linestyle(drawn.line)
    if not marked:
        line.set(markevery=[], markerfacecolor="white")
    if curve.low != curve.high:
        axes.fill_between(curve.x, curve.low, curve.high, color=drawn.colour, alpha=0.15, linewidth=0)


def _points(axes: "Axes", curve: Curve, place: int) -> None:
    """A row's hollow markers, in its colour."""
    drawn = look(place)
    axes.plot(curve.x, curve.y, drawn.marker, color=drawn.colour, markerfacecolor="white", markersize=6)


def figure(panels: Sequence[Panel], title: str) -> "Figure":
    """Panels side by side under a title, with one legend beneath."""
    from matplotlib.figure import Figure

    width = max(PANEL[0] * len(panels), 5.2)
    figure = Figure(figsize=(width, PANEL[1] + 0.75), layout="constrained")
    alike = len({panel.y for panel in panels}) == 1
    for place, (axes, panel) in enumerate(zip(_axes(figure, len(panels), alike), panels, strict=True)):
        axes.yaxis.set_major_formatter(lambda share, _: f"{100 * share:g} %")
        panel.draw(axes)
        axes.set_title(panel.title, fontsize=9)
        axes.set_xlabel(panel.x)
        if place == 0 or not alike:
            axes.set_ylabel(panel.y)
    labelled = {
        label: handle for axes in figure.axes for handle, label in zip(*axes.get_legend_handles_labels(), strict=True)
    }
    figure.legend(labelled.values(), labelled, loc="outside lower center", ncols=min(4, len(labelled)), frameon=False)
    figure.suptitle(drawn_text(title), fontsize=10)
    return figure


def drawn_text(text: str) -> str:
    """Text that matplotlib draws as it is: `$` would start mathematics, and `_` at its start hide it from a legend."""
    escaped = one_line(text).replace("$", r"\$")
    return f" {escaped}" if escaped.startswith("_") else escaped


def _axes(figure: "Figure", n: int, alike: bool) -> list["Axes"]:
    """Axes side by side, with one scale where they show the same measure."""
    return list(figure.subplots(1, n, sharey="row" if alike else "none", squeeze=False)[0])


def _save(figure: "Figure", stem: Path) -> list[Path]:
    """PNG and SVG, without a date: equal pictures are equal files."""
    stem.parent.mkdir(parents=True, exist_ok=True)
    png, svg = stem.with_suffix(".png"), stem.with_suffix(".svg")
    figure.savefig(png, dpi=160, metadata={"Software": None})
    figure.savefig(svg, metadata={"Date": None, "Creator": None})
    return [png, svg]
