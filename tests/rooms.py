"""The rooms of fedflow, their floors, and who imports whom.

``python tests/rooms.py`` draws docs/images/rooms.png.
"""

import ast
from functools import cache
from pathlib import Path

HOME = Path(__file__).parents[1]
FLOORS = (  # from bottom to top; a module imports from its own floor and from those below
    {"fedflow", "errors", "settings", "choice", "naming", "seeding", "files", "plugins", "project"},
    {"data", "metrics"},
    {"models"},
    {"partition", "heterogeneity"},
    {"local"},
    {"methods"},
    {"simulation"},
    {"pictures"},
    {"procedures"},
    {"config"},
    {"finished"},
    {"claims"},
    {"stages", "tracking", "report"},
    {"flows", "tasks", "cli", "doctor", "front"},
    {"devices"},
)
GROUND = "errors, settings, choice, files, project"  # the lowest floor, which every room uses
IMAGE = HOME / "docs" / "images" / "rooms.png"


def module(file: Path) -> str:
    return ".".join(file.relative_to(HOME).with_suffix("").parts).removesuffix(".__init__")


FILES = {module(f): f for top in ("fedflow", "flows", "tasks") for f in sorted((HOME / top).rglob("*.py"))}


def imports(name: str) -> set[str]:
    """Everything that the module imports, also within functions and for type checking."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(FILES[name].read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            inner = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= (inner & FILES.keys()) or {node.module}
    return found


@cache
def graph() -> dict[str, set[str]]:
    """The imports of every module."""
    return {name: imports(name) for name in FILES}


def room(name: str) -> str:
    """The room of a module: its package below fedflow, or a module or package at the top."""
    top, *rest = name.split(".")
    return rest[0] if top == "fedflow" and rest else top


def floor(name: str) -> int:
    """The floor of a module's room, from 0."""
    return next(i for i, rooms in enumerate(FLOORS) if room(name) in rooms)


def arrows() -> set[tuple[str, str]]:
    """Pairs of rooms, above the lowest floor, of which the first imports the second."""
    pairs = {(room(n), room(u)) for n, used in graph().items() for u in used & FILES.keys()}
    return {(a, b) for a, b in pairs if a != b and not {a, b} & FLOORS[0]}


def draw(path: Path) -> None:
    """Draw the rooms by floor, with the arrows that do not follow from others."""
    import matplotlib.pyplot as plt
    import networkx as nx

    whole = nx.DiGraph(arrows())
    for one, other in [(a, b) for a, b in whole.edges if whole.has_edge(b, a)]:  # two rooms of one floor
        whole.remove_edge(one, other)
    shown = nx.transitive_reduction(whole)
    levels = [sorted(rooms) for rooms in FLOORS[1:]]
    place = {
        name: (2.1 * (i - (len(names) - 1) / 2), y)
        for y, names in enumerate(levels, 1)
        for i, name in enumerate(names)
    }
    figure, axes = plt.subplots(figsize=(8, 10))
    for user, used in sorted(shown.edges):
        bend = "arc3,rad=0" if abs(place[user][1] - place[used][1]) == 1 else "arc3,rad=0.25"
        how = {"arrowstyle": "-|>", "color": "#0072b2", "alpha": 0.6, "connectionstyle": bend}
        axes.annotate("", place[used], place[user], arrowprops=how | {"shrinkA": 10, "shrinkB": 10})
    box = {"boxstyle": "round,pad=0.25", "facecolor": "white", "edgecolor": "#757575"}
    for name, (x, y) in place.items():
        axes.text(x, y, name, ha="center", va="center", fontsize=10, bbox=box)
    axes.text(0, 0, GROUND, ha="center", va="center", fontsize=10, bbox=box)
    axes.set(xlim=(-5, 5), ylim=(-0.5, len(levels) + 0.5))
    axes.axis("off")
    figure.savefig(path, dpi=110, bbox_inches="tight", facecolor="white")


if __name__ == "__main__":
    draw(IMAGE)
