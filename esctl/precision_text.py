"""`esctl precision` as text and JSON: a line per class of tensor, and a warning where little is realised.

Leaves the numbers to `precision`.
"""

import json
from collections.abc import Iterator

from esctl.cells import aligned
from esctl.precision import CLASSES, Realised, Sums

ENOUGH = 0.9  # cosine below which a class is warned of


def text(found: Realised) -> str:
    """The table, then one warning per class and kind of move."""
    title = (
        f"{found.model}: {found.method}, σ = {found.sigma:g}, served in {found.dtype}; of a first generation whose"
        " scores are drawn at random"
    )
    lines = [title, *_table(found), "cosine of what is served with what was asked, norm as a share, weights that move"]
    return "\n".join([*lines, *warnings(found)])


def warnings(found: Realised) -> list[str]:
    """One line for each class of which less than nine tenths of a direction is served."""
    ways_out = "raise method.sigma, or serve it with engine.dtype float32"
    probed = "the step is estimated beside the θ' that was asked for; engine.dtype float32 serves it"
    advice = {"candidate": f"scores say little of it; {ways_out}", "probe": probed}
    kept = "the fp32 center keeps what one step does not show"
    return [
        f"warning: {name}: a {kind} realises {sums.cosine:.2f} of its direction; {advice.get(kind, kept)}"
        for kind, by_class in found.sums.items()
        for name, sums in _ordered(by_class)
        if sums.asked and sums.cosine < ENOUGH
    ]


def json_text(found: Realised) -> str:
    """The same numbers and warnings."""
    classes = {kind: {name: _tree(sums) for name, sums in _ordered(by_class)} for kind, by_class in found.sums.items()}
    head = {"model": found.model, "method": found.method, "sigma": found.sigma, "dtype": found.dtype}
    return json.dumps(head | {"terms": found.moves, "realised": classes, "warnings": warnings(found)}, indent=1)


def _table(found: Realised) -> list[str]:
    names = [name for name in CLASSES if any(name in by_class for by_class in found.sums.values())]
    rows = [["", "", *(f"{kind}, {n} term{'s' * (n != 1)}" for kind, n in found.moves.items())]]
    rows.append(["class", "weights read", *("cosine   norm  moved" for _ in found.moves)])
    for name in names:
        own = [by_class[name] for by_class in found.sums.values()]
        rows.append([name, f"{own[0].weights:,}", *map(_cell, own)])
    return aligned(rows, left=1)


def _cell(sums: Sums) -> str:
    return f"{sums.cosine:6.3f} {sums.norm_ratio:6.3f} {100 * sums.moved / sums.weights:4.0f} %"


def _ordered(by_class: dict[str, Sums]) -> Iterator[tuple[str, Sums]]:
    yield from ((name, by_class[name]) for name in CLASSES if name in by_class)


def _tree(sums: Sums) -> dict[str, float]:
    shares = {"cosine": sums.cosine, "norm_ratio": sums.norm_ratio, "moved": sums.moved / sums.weights}
    return {"weights": sums.weights, **shares}
