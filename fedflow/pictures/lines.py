"""Lines with their names at the ends, which all pictures by round, step or epoch share."""

from collections.abc import Iterable, Mapping, Sequence
from itertools import takewhile
from typing import Any, NamedTuple, Protocol

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from scipy.optimize import isotonic_regression

from fedflow.pictures.drawing import SMALLEST

LONGEST, BEGINNING = 30, 10  # letters of a label in a picture, and of its beginning
LARGEST = 1e100  # of a value that is drawn: diagnostics may diverge


class Labeled(Protocol):
    """A run with the name that is printed."""

    @property
    def label(self) -> str: ...


class End(NamedTuple):
    """The end of a line: position, name, color, and the number of its method in the page's list.

    The page shows and hides elements by this number in their ids: ``line-3``, ``band-3``, ``link-3``,
    ``name-3``.
    """

    x: float
    y: float
    label: str
    color: str
    number: int | None = None


def name_ends(axes: Axes, ends: list[End]) -> None:
    """Write names in the right margin, moved as little as possible and connected to the ends of lines."""
    if not ends:
        return
    ends = sorted(ends, key=lambda end: end.y)
    scale = axes.yaxis.get_transform()  # of a logarithmic axis, the logarithm
    low, high = axes.get_ylim()
    bottom, top = scale.transform([low, high])
    right = axes.get_xlim()[1]
    height = axes.get_position().height * axes.figure.get_figheight() * 72  # type: ignore[union-attr]
    gap = min(13.5 / height, 1 / max(1, len(ends) - 1)) * (top - bottom)
    steps = gap * np.arange(len(ends))
    wanted = scale.transform(np.array([end.y for end in ends])) - steps
    at = np.clip(isotonic_regression(wanted).x, bottom, max(bottom, top - steps[-1])) + steps
    at = scale.inverted().transform(at)
    across = axes.get_yaxis_transform()
    for (x, y, _, color, number), name, height in zip(ends, fitting(e.label for e in ends), at, strict=True):
        arrow = {"arrowstyle": "-", "color": color, "lw": 0.8, "alpha": 0.75, "shrinkA": 0, "shrinkB": 0}
        start, where = (right if np.isnan(x) else x, y), ("axes fraction", "data")
        link = axes.annotate("", start, (1.05, height), "data", where, arrowprops=arrow)
        text = axes.text(1.065, height, name, transform=across, va="center", fontsize=SMALLEST)
        if number is not None:
            assert link.arrow_patch is not None
            link.arrow_patch.set_gid(f"link-{number}")
            text.set_gid(f"name-{number}")
    axes.set_ylim(low, high)
    axes.set_xlim(right=right)


def plot(
    axes: Axes, x: pd.Series | pd.Index, y: pd.Series, label: str, style: Mapping[str, Any], lw: float = 1.6
) -> End:
    """Draw a line, or a dot if it has one point; returns its end."""
    axes.plot(x, y, lw=lw, marker="." if len(x) == 1 else "", **style)
    return End(x.array[-1], y.iloc[-1], label, style["color"])


def count_axis(axes: Axes, label: str) -> None:
    """Make the x axis one of whole numbers, such as rounds."""
    axes.set_xlabel(label)
    axes.margins(x=0.01)
    axes.locator_params(axis="x", integer=True, nbins=6)


def room(methods: Mapping[str, Sequence[Labeled]]) -> float:
    """Inches for the longest name of a variant, with a margin."""
    return margin(runs[0].label for runs in methods.values())


def margin(labels: Iterable[str]) -> float:
    """Inches for the longest of these names; capitals, as in SCAFFOLD, are wider."""
    shown = (label[:LONGEST] for label in labels)
    return 0.16 + max((0.08 * len(text) + 0.02 * sum(map(str.isupper, text)) for text in shown), default=0)


def fitting(labels: Iterable[str]) -> list[str]:
    """``labels`` of a picture as `room` has space for them: without their middle, or else what they share.

    >>> fitting(["FedProx · mu 0.001, batch_size 32, lr 0.1", "FedProx · mu 0.01, batch_size 32, lr 0.1"])
    ['FedProx · mu 0.001, batch_size', 'FedProx · mu 0.01, batch_size ']
    """
    labels, half = [*labels], LONGEST // 2
    short = {label: f"{label[: half - 1]}…{label[-half:]}" for label in labels if len(label) > LONGEST}
    for name in dict.fromkeys(short.values()):
        alike = [label for label, cut in short.items() if cut == name]
        shared = "".join(x for x, *_ in takewhile(lambda letters: len({*letters}) == 1, zip(*alike)))
        setting = max(shared.rfind(sign) for sign in "·,") + 2  # where the setting that differs begins
        for number, label in enumerate(sorted(alike) if len(alike) > 1 else (), 1):
            name = f"{label[:BEGINNING]}…{label[setting:]}" if setting > BEGINNING else label
            taken = {short[other] for other in alike if other < label}
            end = f" ({number})" if name[:LONGEST] in taken else ""  # they differ even later
            short[label] = name[: LONGEST - len(end)] + end
    return [short.get(label, label) for label in labels]
