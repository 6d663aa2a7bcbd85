"""Matplotlib figures as inline SVG that takes colors and font from the page, for light and dark themes.

Colors are drawn as fixed hex values and then replaced by CSS variables. From the eighth method on,
colors repeat with dashes; every line also has its name. Equal inputs give equal bytes.
"""

import io
import re
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from math import ceil
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from markupsafe import Markup, escape
from matplotlib.axes import Axes
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from matplotlib.image import AxesImage

from fedflow.errors import FedflowError
from fedflow.files import check_output, make_writable
from fedflow.pictures.foreign import COLORS, RULE, rewritten

__all__ = ["Drawing", "check_picture", "save_picture"]  # fedflow.drawing, for procedures and scripts

# Okabe and Ito's colors, without yellow; those too pale for a line on white are darkened.
SERIES = ("#0072b2", "#d55e00", "#009e73", "#b5478c", "#b97f00", "#3b9bd6", "#6b6b6b")
DASHES: tuple[Any, ...] = ("-", (0, (4, 1.5)), (0, (1, 1.2)), (0, (5, 1.2, 1, 1.2)))
INK, MUTED, LINE, CARD = "#1a1a1a", "#757575", "#e2e2e2", "#fefefe"
VARIABLES = {INK: "ink", MUTED: "muted", LINE: "line", CARD: "card"} | {
    c: f"s{i}" for i, c in enumerate(SERIES)
}
WIDTH = 4.1  # inches, of one panel: wide enough to be read on a phone
PNG_DPI = 200
ENDINGS = (".png", ".svg", ".pdf")  # of pictures whose file the user names
SMALLEST = 10.4  # points of text in a panel of `WIDTH`: 11 px on a phone
LEGIBLE = 11  # px: narrower pages scroll a picture with smaller text
TAG = re.compile(r"<[^>]*>")  # matplotlib escapes ">" elsewhere; names in the text stay as they are
SHEET = re.compile(rf"<defs>\s*<style[^>]*>{re.escape(RULE)}</style>\s*</defs>\s*")
NAMESPACES = 'xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink"'
STYLE: Any = {
    "svg.fonttype": "none", "text.parse_math": False, "axes.facecolor": "none",
    "font.family": "sans-serif", "font.size": SMALLEST,
    "text.color": INK, "axes.edgecolor": MUTED, "axes.labelcolor": MUTED, "axes.linewidth": 0.6,
    "xtick.color": MUTED, "ytick.color": MUTED, "xtick.major.size": 0, "ytick.major.size": 0,
    "axes.spines.top": False, "axes.spines.right": False, "axes.spines.left": False,
    "axes.grid": True, "axes.axisbelow": True, "grid.color": LINE, "grid.linewidth": 0.7,
    "axes.labelsize": SMALLEST, "xtick.labelsize": SMALLEST, "ytick.labelsize": SMALLEST,
}  # fmt: skip


def line_style(index: int) -> dict[str, Any]:
    """Color and dash of the method with this index in the list of all methods."""
    return {"color": SERIES[index % len(SERIES)], "linestyle": DASHES[index // len(SERIES) % len(DASHES)]}


class Shown(Figure):
    """A figure that notebooks show, also without pyplot."""

    def _repr_png_(self) -> tuple[bytes, dict[str, int]]:
        buffer = io.BytesIO()
        with mpl.rc_context(rc=STYLE):
            self.savefig(buffer, format="png", dpi=PNG_DPI, facecolor="white")
        return buffer.getvalue(), {"width": round(100 * self.get_figwidth())}


class Drawing:
    """One figure: as ``svg`` for the page, or as a PNG on white."""

    def __init__(self, figure: Figure, axes: Axes, name: str, described: str) -> None:
        self.figure, self.axes, self.name, self.described = figure, axes, name, described

    def inset(self, left: float, bottom: float, width: float, height: float) -> Axes:
        """Further axes, placed in inches."""
        whole, tall = self.figure.get_size_inches()
        return self.figure.add_axes((left / whole, bottom / tall, width / whole, height / tall))

    def scale(self, shown: AxesImage, left: float, bottom: float, width: float) -> None:
        """A scale of colors, placed in inches, with its numbers above."""
        axes = self.inset(left, bottom, width, 0.09)
        bar = self.figure.colorbar(shown, cax=axes, orientation="horizontal", ticklocation="top")
        bar.outline.set_visible(False)
        bar.ax.tick_params(labelsize=9, pad=2)
        bar.ax.locator_params(nbins=5)

    @cached_property
    def svg(self) -> Markup:
        """Inline SVG in the colors and with the style sheet of the page."""
        return Markup(SHEET.sub("", self._text))

    @cached_property
    def _text(self) -> str:
        buffer = io.StringIO()
        no_metadata = dict.fromkeys(("Date", "Creator", "Format", "Type"))
        with mpl.rc_context(rc=STYLE | {"svg.hashsalt": self.name}):
            FigureCanvasSVG(self.figure).print_svg(buffer, metadata=no_metadata)
        return _inline(buffer.getvalue(), self.name, self.described)

    @cached_property
    def file(self) -> str:
        """The SVG as a file, with its own colors, which `inlined` removes."""
        colors = ";".join(f"--{name}:{color}" for color, name in VARIABLES.items())
        style = f'<style id="{COLORS}">:root{{{colors};background:#fff;font-family:sans-serif}}</style>'
        opening, rest = self._text.split(">", 1)
        return f"{opening} {NAMESPACES}>{style}{rest}\n"

    def png(self, path: Path) -> None:
        """Write a PNG; deterministic bytes."""
        with mpl.rc_context(rc=STYLE):
            save_png(self.figure, path, PNG_DPI)


def inlined(text: str, prefix: str) -> Markup:
    """The text of `Drawing.file` in the colors of a page, with ``prefix`` before all ids.

    Raises `FedflowError` for other SVG, which could run scripts in the page or load other files.
    """
    return Markup(rewritten(text, prefix))


@contextmanager
def drawing(
    name: str, described: str, height: float, box: tuple[float, float, float, float], width: float = WIDTH
) -> Iterator[Drawing]:
    """A figure in inches with margins ``box`` around its axes: left, bottom, right, top.

    ``name`` must be unique on the page (ids start with it); ``described`` is its text for screen readers.
    """
    left, bottom, right, top = box
    with mpl.rc_context(rc=STYLE):
        figure = Shown(figsize=(width, height))
        where = (left / width, bottom / height, 1 - (left + right) / width, 1 - (bottom + top) / height)
        yield Drawing(figure, figure.add_axes(where), name, described)


def panel_grid(
    count: int, columns: int, size: tuple[float, float], **options: Any
) -> tuple[Figure, np.ndarray]:
    """A figure with ``count`` panels of this size in inches, and all its axes [rows, columns]."""
    rows = -(-count // columns)
    figure = Figure(figsize=(columns * size[0], rows * size[1]), layout="constrained")
    panels = figure.subplots(rows, columns, squeeze=False, **options)
    for panel in panels.flat[count:]:
        panel.set_visible(False)
    return figure, panels


def check_picture(path: Path, field: str = "path") -> None:
    """Make the folder of ``path``; raises `FedflowError` unless `save_picture` can write there."""
    check_output(field, path, *ENDINGS)
    try:
        make_writable(path.parent)
    except FedflowError as error:
        raise FedflowError(f"cannot write the picture to {path}: {error}") from error


def save_picture(figure: Figure, path: Path, dpi: int) -> None:
    """Write a PNG, an SVG or a PDF, by the ending of ``path``. Raises `FedflowError`."""
    check_picture(path)
    if path.suffix.lower() == ".svg":
        save_svg(figure, path, path.stem)
    elif path.suffix.lower() == ".pdf":
        no_metadata = dict.fromkeys(("Creator", "Producer", "CreationDate"))
        _save(figure, path, ".pdf", facecolor="white", metadata=no_metadata)
    else:
        save_png(figure, path, dpi)


def save_png(figure: Figure, path: Path, dpi: int) -> None:
    """Write a PNG with deterministic bytes, and its folder. Raises `FedflowError`."""
    _save(figure, path, ".png", dpi=dpi, facecolor="white", metadata={"Software": None})


def save_svg(figure: Figure, path: Path, name: str) -> None:
    """Write an SVG on white, in fixed colors, with deterministic bytes. Raises `FedflowError`."""
    no_metadata: Any = dict.fromkeys(("Date", "Creator", "Format", "Type"))
    with mpl.rc_context(rc=STYLE | {"svg.hashsalt": name}):
        _save(figure, path, ".svg", facecolor="white", metadata=no_metadata)


def _save(figure: Figure, path: Path, ending: str, **options: Any) -> None:
    check_output("path", path, ending)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, **options)
    except OSError as error:
        raise FedflowError(f"cannot write the picture to {path}: {error.strerror or error}") from error


def _inline(text: str, name: str, described: str) -> str:
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    text = re.sub(r"<!--.*?-->\s*", "", text, flags=re.DOTALL)
    # The page is the background.
    text = re.sub(r'<g id="patch_1">.*?</g>\s*', "", text, count=1, flags=re.DOTALL)
    sizes: list[float] = []
    text = TAG.sub(lambda tag: _adapted(tag[0], name, sizes), text)
    box = re.search(r'viewBox="[^"]*"', text)
    assert box is not None
    least = ceil(float(box[0].split()[2]) * LEGIBLE / min(sizes)) if sizes else 0
    style = f' style="min-width: {least}px"' if sizes else ""
    opening = f'<svg {box[0]}{style} role="img" aria-label="{escape(described)}">'
    return opening + text[text.index(">") + 1 :]  # matplotlib has escaped the names in it


def _adapted(tag: str, name: str, sizes: list[float]) -> str:
    """A tag with the ids, fonts and colors of the page; its font size is added to ``sizes``."""
    tag = re.sub(r'(\bid="|url\(#|href="#)', rf"\g<1>{name}-", tag)  # ids are shared by the whole page
    tag = re.sub(r"font: ([\d.]+px)[^;\"]*", r"font-size: \1", tag)
    tag = re.sub(r"font-family: [^;\"]*;? ?", "", tag)
    sizes += map(float, re.findall(r"font-size: ([\d.]+)px", tag))
    for color, variable in VARIABLES.items() if "#" in tag else ():
        tag = tag.replace(color, f"var(--{variable})")
    return tag
