"""Pictures of curricula: runs of different orders, growing prefixes of samples, pools of clients."""

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from fedflow.local.extensions.curriculum import Curriculum
from fedflow.local.local_training import LocalTraining
from fedflow.local.pacing import FAMILIES, Pacing
from fedflow.local.schedule import Pass
from fedflow.pictures.accuracy import Curve, Curves, Line, curve, measured
from fedflow.pictures.drawing import MUTED, SERIES, Drawing, drawing, line_style
from fedflow.pictures.lines import End, count_axis, name_ends, room
from fedflow.pictures.series import series
from fedflow.simulation.extensions.client_curriculum import POLLED
from fedflow.simulation.outcome import SERIES_CLIENTS

SAMPLES, CLIENTS = "training.curriculum", "run.client_curriculum"
SECTIONS = (SAMPLES, CLIENTS)  # of the settings
SAMPLERS = ("easy_first", "sweep", "uniform")  # without an order of clients, the first two are equal
ORDERS = {"curriculum": 0, "anti": 1, "random": 2, "vanilla": 6}  # and the indices of their colors
COLUMNS = (  # columns of rounds and their names; of every group, the first that was measured is drawn
    {"global_accuracy": "global accuracy", "local_accuracy": "local accuracy"},
    {"client/difficulty/mean": "difficulty"},
)
WIDTH = 3.8  # inches, as the curves
FINE = 200  # points of a pacing function
STEPS = 1000  # and of every family of them


def alike(settings: Sequence[Mapping[str, Any]], section: str) -> list[dict[str, list[int]]]:
    """Groups of ``settings`` (by dotted name) that differ in the order of one curriculum only.

    ``section`` is one of `SECTIONS`. A group maps at least two orders to indices of ``settings``. Settings
    without the curriculum are ``vanilla``, with any pacing and score; for a client curriculum, these are
    `SAMPLERS` with equal probabilities, of which the first that was used is taken.
    """
    vanilla: dict[tuple[str, str], list[int]] = {}
    groups: dict[tuple[str, str], dict[str, list[int]]] = {}
    for i, values in enumerate(settings):
        rest, curriculum = _without(values, section)
        sampler = rest.pop("run.sampling", SAMPLERS[0]) if section == CLIENTS else SAMPLERS[0]
        order = curriculum.pop(f"{section}.order", "vanilla")
        key, pace = (json.dumps(part, sort_keys=True) for part in (rest, curriculum))
        if order == "vanilla":
            vanilla.setdefault((key, sampler), []).append(i)
        else:
            groups.setdefault((key, pace), {}).setdefault(order, []).append(i)
    for (key, _), orders in groups.items():
        same = [vanilla[key, sampler] for sampler in SAMPLERS if (key, sampler) in vanilla]
        orders |= {"vanilla": same[0]} if same else {}
    return [orders for orders in groups.values() if len(orders) > 1]


def _without(settings: Mapping[str, Any], section: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """``settings`` without a curriculum and the networks that only it uses, and the curriculum's."""
    curriculum = {name: value for name, value in settings.items() if name.startswith(f"{section}.")}
    rest = {name: settings[name] for name in settings.keys() - curriculum.keys() - {section}}
    network = curriculum.get(f"{section}.expert")
    while network and network not in [
        v for name, v in rest.items() if name.endswith((".expert", ".teacher"))
    ]:
        prefix = f"central.{network}."
        network = rest.get(f"{prefix}training.objective.teacher")
        rest = {name: value for name, value in rest.items() if not name.startswith(prefix)}
    return rest, curriculum


def by_order(
    orders: Mapping[str, Sequence[Curve]], kind: Mapping[str, str], name: str
) -> tuple[str, Drawing] | None:
    """Name and drawing of the first measured column of ``kind``, or None if no order has one."""
    lines: Curves = {
        order: [Line(order, run.rounds) for run in orders[order]] for order in ORDERS if order in orders
    }
    for column, words in kind.items():
        if any(measured(runs, column) for runs in lines.values()):
            return words, curve(lines, ORDERS, column, "round", name)
    return None


def prefix(curriculum: Curriculum, passes: Sequence[Pass], samples: int, name: str) -> Drawing:
    """The share of ``samples`` in use by local step, in the ``passes`` (stairs) and by the pacing (line).

    The line is left out for ``lazy_epoch``, whose passes take more steps than the pacing counts.
    """
    starts = np.cumsum([0, *(part.steps for part in passes)])
    steps = int(starts[-1])
    with drawing(name, "Share of samples in use by local step", 2.0, (0.46, 0.4, 0.12, 0.08), WIDTH) as work:
        axes, at = work.axes, np.linspace(0, steps, FINE)
        if curriculum.mode != "lazy_epoch":
            shares = [100 * curriculum.size(t, steps, samples) / samples for t in at]
            axes.plot(at, shares, color=MUTED, lw=1)
        shares = [100 * part.prefix / samples for part in passes]
        axes.stairs(shares, starts, baseline=0, fill=True, color=SERIES[0], alpha=0.25, lw=0)
        axes.stairs(shares, starts, baseline=None, color=SERIES[0], lw=1.4)
        axes.set(xlabel="local step", ylabel="% of samples", ylim=(0, 103), xlim=(0, steps))
        axes.locator_params(axis="x", integer=True, nbins=6)
    return work


def pool(runs: Curves, colors: Mapping[str, int], name: str) -> Drawing:
    """Clients that may take part by round, a line for the first seed of every variant."""
    margin = room(runs) + 0.1
    box, width = (0.46, 0.4, margin, 0.08), max(WIDTH, 2.0 + margin)
    with drawing(name, "Clients in the pool by round", max(2.4, 0.7 + 0.18 * len(runs)), box, width) as work:
        axes, ends = work.axes, []
        for variant, repeats in runs.items():
            rounds, style = repeats[0].rounds, line_style(colors[variant])
            axes.step(rounds["round"], rounds["pool"], where="mid", lw=1.5, **style)
            last = rounds.iloc[-1]
            ends.append(End(last["round"], last["pool"], repeats[0].label, style["color"]))
        count_axis(axes, "round")
        axes.set_ylabel("clients")
        axes.set_ylim(bottom=0)
        name_ends(axes, ends)
    return work


def families(name: str) -> Drawing:
    """The share of samples in use by share of steps, for every pacing with the default a and b.

    For the documentation: ``python -m fedflow.pictures.curriculum docs/images/pacing.png``.
    """
    with drawing(name, "Pacing functions", 2.7, (0.46, 0.4, 1.3, 0.12), 5.0) as work:
        axes, at = work.axes, np.linspace(0, STEPS, STEPS + 1)
        for i, family in enumerate(FAMILIES):
            pacing = Pacing.parse({"pacing": family})
            sizes = [pacing.size(int(t), STEPS, STEPS) for t in at]
            axes.plot(100 * at / STEPS, 100 * np.array(sizes) / STEPS, lw=1.5, label=family, **line_style(i))
        axes.set(xlabel="% of local steps", ylabel="% of samples", xlim=(0, 100), ylim=(0, 103))
        axes.legend(loc="center left", bbox_to_anchor=(1.02, 0.5), frameon=False)
    return work


def polled(losses: pd.DataFrame, clients: int, rounds: int, name: str) -> Drawing:
    """The losses by which ``clients`` are ranked (round, client, value), held until the next ranking."""
    ranked = losses.pivot(index="round", columns="client", values="value")
    held = ranked.reindex(pd.RangeIndex(1, rounds + 1, name="round"), method="ffill").melt(ignore_index=False)
    return series(held.dropna().reset_index(), clients, rounds, name, "Loss of every client by round")


def draw_curricula(
    folder: Path, training: LocalTraining, sizes: np.ndarray, rounds: pd.DataFrame, losses: pd.DataFrame
) -> None:
    """Write ``prefix.png``, ``pool.png`` and ``polled_loss.png`` of one run, where it has the data.

    ``sizes`` [N] are numbers of training samples, ``losses`` is the table for `polled`.
    """
    if growing := growth(training, sizes):
        prefix(*growing, "prefix").png(folder / "prefix.png")
    run = [Line("", rounds)]
    if measured(run, "pool"):
        pool({"": run}, {"": 0}, "pool").png(folder / "pool.png")
    if len(losses):
        shown = min(len(sizes), SERIES_CLIENTS)
        polled(losses, shown, len(rounds), POLLED).png(folder / f"{POLLED}.png")


def growth(training: LocalTraining, sizes: np.ndarray) -> tuple[Curriculum, tuple[Pass, ...], int] | None:
    """Arguments of `prefix` for the client of median size, or None if all samples are always in use."""
    if (curriculum := training.curriculum) is None or curriculum.whole:
        return None
    samples = int(np.median(sizes))
    return curriculum, tuple(training.passes(samples, training.epochs)), samples


if __name__ == "__main__":
    families("pacing").png(Path(sys.argv[1]))
