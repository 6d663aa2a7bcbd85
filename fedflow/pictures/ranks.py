"""Critical-difference diagram: methods by mean rank, joined by a bar where they do not differ."""

from collections.abc import Sequence
from math import ceil
from typing import Any

from fedflow.pictures.drawing import INK, MUTED, SMALLEST, Drawing, drawing, line_style
from fedflow.pictures.lines import fitting, margin

WIDTH, SCALE = 6.4, 3.2  # inches of the picture and of the ranks, at least
ROW, BAR = 0.24, 0.12  # inches per name, and per bar
NUMBER, TICK = 0.5, 0.2  # inches for a mean rank, and for one on the axis


def differences(
    labels: Sequence[str],
    means: Sequence[float],
    critical: float,
    bars: Sequence[tuple[int, int]],
    colors: Sequence[int],
    name: str = "ranks",
) -> Drawing:
    """``labels`` with sorted mean ranks ``means``; ``bars`` have the first and last index of level methods.

    ``colors`` are indices for `line_style`. The better half is named on the left.
    """
    half = -(-len(labels) // 2)
    below = BAR * (len(bars) + 1) + ROW * half
    sides = [margin(side) + NUMBER for side in (labels[:half], labels[half:])]
    width = max(WIDTH, SCALE + sum(sides))
    box = (sides[0], below + 0.1, sides[1], 0.55)
    with drawing(name, "Mean ranks of the methods", sum(box[1::2]) + 0.05, box, width) as work:
        axes = work.axes
        axes.set_xlim(1, len(labels))
        axes.set_ylim(0, 1)
        axes.xaxis.tick_top()
        axes.set_yticks([])
        axes.set_xticks(range(1, len(labels) + 1, ceil(len(labels) * TICK / (width - sum(sides)))))
        axes.grid(False)
        inch = 1 / 0.05  # of the axes' height
        axes.plot([1, 1 + critical], [inch * 0.38] * 2, color=INK, lw=1.6, clip_on=False)
        text = f"critical difference {critical:.2f}"
        style: Any = {"ha": "center", "va": "bottom", "fontsize": SMALLEST, "color": MUTED}
        axes.text(1 + critical / 2, inch * 0.42, text, **style)
        for number, (first, last) in enumerate(bars, 1):
            y = -inch * BAR * number
            ends = [means[first] - 0.03, means[last] + 0.03]
            axes.plot(ends, [y, y], color=INK, lw=3.2, clip_on=False, solid_capstyle="butt")
        style = {"textcoords": "offset points", "va": "center", "fontsize": SMALLEST, "color": INK}
        for i, (label, mean, index) in enumerate(zip(fitting(labels), means, colors, strict=True)):
            left = i < half
            row = i if left else len(labels) - 1 - i
            y = -inch * (BAR * (len(bars) + 1) + ROW * (row + 0.5))
            end = 1.0 if left else float(len(labels))
            color = line_style(index)["color"]
            axes.plot([mean, mean, end], [0, y, y], color=color, lw=1.1, clip_on=False)
            axes.plot(mean, 0, "o", ms=4.5, color=color, clip_on=False)
            offset, side = ((-5, 0), "right") if left else ((5, 0), "left")
            axes.annotate(f"{label}  {mean:.2f}", (end, y), offset, ha=side, annotation_clip=False, **style)
    return work
