"""Pictures of curricula: runs of different orders, growing prefixes of samples, pools of clients."""

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from fedflow.local.extensions.curriculum import Curriculum
from fedflow.local.local_training import LocalTraining
from fedflow.local.pacing import FAMILIES, Pacing
from fedflow.local.schedule import Pass
from fedflow.pictures.accuracy import Curve, Curves, End, curve, measured, name_ends, room
from fedflow.pictures.drawing import MUTED, SERIES, Drawing, drawing, look
from fedflow.pictures.series import series
from fedflow.simulation.extensions.client_curriculum import POLLED
from fedflow.simulation.outcome import SERIES_CLIENTS

SAMPLES, CLIENTS = "training.curriculum", "run.client_curriculum"
SECTIONS = (SAMPLES, CLIENTS)  # of the settings
SAMPLERS = ("easy_first", "sweep", "uniform")  # without an order of clients; the first two are then equal
ORDERS = {"curriculum": 0, "anti": 1, "random": 2, "vanilla": 6}  # and the places of their colors
COLUMNS = (  # what is drawn by round, and its name: of each kind, the first that was measured
    {"global_accuracy": "global accuracy", "local_accuracy": "local accuracy"},
    {"client/difficulty/mean": "difficulty"},
)
WIDTH = 3.8  # inches, like the curves beside them
FINE = 200  # points of a pacing function
STEPS = 1000  # and of every family of them


def alike(settings: Sequence[Mapping[str, Any]], section: str) -> list[dict[str, list[int]]]:
    """Groups of ``settings`` (by dotted name) that differ in the order of one curriculum only.

    ``section`` is one of `SECTIONS`. A group has at least two orders, and for each the places in
    ``settings``. Settings without the curriculum are ``vanilla``, with any pacing and score; for a client
    curriculum, these are `SAMPLERS` of equal chances, of which the first that was used is taken.
    """
    vanilla: dict[tuple[str, str], list[int]] = {}
    found: dict[tuple[str, str], dict[str, list[int]]] = {}
    for place, own in enumerate(settings):
        rest, curriculum = _without(own, section)
        sampler = rest.pop("run.sampling", SAMPLERS[0]) if section == CLIENTS else SAMPLERS[0]
        order = curriculum.pop(f"{section}.order", "vanilla")
        key, pace = (json.dumps(part, sort_keys=True) for part in (rest, curriculum))
        if order == "vanilla":
            vanilla.setdefault((key, sampler), []).append(place)
        else:
            found.setdefault((key, pace), {}).setdefault(order, []).append(place)
    for (key, _), orders in found.items():
        same = [vanilla[key, sampler] for sampler in SAMPLERS if (key, sampler) in vanilla]
        orders |= {"vanilla": same[0]} if same else {}
    return [orders for orders in found.values() if len(orders) > 1]


def _without(settings: Mapping[str, Any], section: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """``settings`` without those of a curriculum and of the networks that only it uses, and its own."""
    curriculum = {name: value for name, value in settings.items() if name.startswith(f"{section}.")}
    rest = {name: settings[name] for name in settings.keys() - curriculum.keys() - {section}}
    network = curriculum.get(f"{section}.expert")
    while network and network not in [
        v for name, v in rest.items() if name.endswith((".expert", ".teacher"))
    ]:
        own = f"central.{network}."
        network = rest.get(f"{own}training.objective.teacher")
        rest = {name: value for name, value in rest.items() if not name.startswith(own)}
    return rest, curriculum


@dataclass(frozen=True)
class Line:
    """The rounds of one run, under another name."""

    label: str
    rounds: pd.DataFrame


def by_order(
    orders: Mapping[str, Sequence[Curve]], kind: Mapping[str, str], name: str
) -> tuple[str, Drawing] | None:
    """The name of what is drawn, of one kind of `COLUMNS`, and the drawing; None if no order has it."""
    lines: Curves = {
        order: [Line(order, run.rounds) for run in orders[order]] for order in ORDERS if order in orders
    }
    for column, words in kind.items():
        if any(measured(runs, column) for runs in lines.values()):
            return words, curve(lines, ORDERS, column, "round", name)
    return None


def prefix(curriculum: Curriculum, passes: Sequence[Pass], samples: int, name: str) -> Drawing:
    """The share of ``samples`` in use by local step: of the ``passes`` (steps), and of the pacing (line).

    The line is left out for ``lazy_epoch``, whose passes take more steps than the pacing counts.
    """
    starts = np.cumsum([0, *(each.steps for each in passes)])
    steps = int(starts[-1])
    with drawing(name, "Share of samples in use by local step", 2.0, (0.46, 0.4, 0.12, 0.08), WIDTH) as work:
        axes, at = work.axes, np.linspace(0, steps, FINE)
        if curriculum.mode != "lazy_epoch":
            shares = [100 * curriculum.size(t, steps, samples) / samples for t in at]
            axes.plot(at, shares, color=MUTED, lw=1)
        shares = [100 * each.prefix / samples for each in passes]
        axes.stairs(shares, starts, baseline=0, fill=True, color=SERIES[0], alpha=0.25, lw=0)
        axes.stairs(shares, starts, baseline=None, color=SERIES[0], lw=1.4)
        axes.set(xlabel="local step", ylabel="% of samples", ylim=(0, 103), xlim=(0, steps))
        axes.locator_params(axis="x", integer=True, nbins=6)
    return work


def pool(runs: Curves, places: Mapping[str, int], name: str) -> Drawing:
    """Clients that may take part, by round: a line for the first seed of every variant."""
    margin = room(runs) + 0.1
    box, width = (0.46, 0.4, margin, 0.08), max(WIDTH, 2.0 + margin)
    with drawing(name, "Clients in the pool by round", max(2.4, 0.7 + 0.18 * len(runs)), box, width) as work:
        axes, ends = work.axes, []
        for variant, repeats in runs.items():
            rounds, style = repeats[0].rounds, look(places[variant])
            axes.step(rounds["round"], rounds["pool"], where="mid", lw=1.5, **style)
            last = rounds.iloc[-1]
            ends.append(End(last["round"], last["pool"], repeats[0].label, style["color"]))
        axes.set(xlabel="round", ylabel="clients")
        axes.set_ylim(bottom=0)
        axes.margins(x=0.01)
        axes.locator_params(axis="x", integer=True, nbins=6)
        name_ends(axes, ends)
    return work


def families(name: str) -> Drawing:
    """The share of samples in use by the share of steps, of every pacing with the default a and b.

    For the documentation: ``python -m fedflow.pictures.curriculum docs/images/pacing.png``.
    """
    with drawing(name, "Pacing functions", 2.7, (0.46, 0.4, 1.3, 0.12), 5.0) as work:
        axes, at = work.axes, np.linspace(0, STEPS, STEPS + 1)
        for place, family in enumerate(FAMILIES):
            pacing = Pacing.parse({"pacing": family})
            sizes = [pacing.size(int(t), STEPS, STEPS) for t in at]
            axes.plot(100 * at / STEPS, 100 * np.array(sizes) / STEPS, lw=1.5, label=family, **look(place))
        axes.set(xlabel="% of local steps", ylabel="% of samples", xlim=(0, 100), ylim=(0, 103))
        axes.legend(loc="center left", bbox_to_anchor=(1.02, 0.5), frameon=False)
    return work


def polled(losses: pd.DataFrame, clients: int, rounds: int, name: str) -> Drawing:
    """The losses by which ``clients`` are ranked (round, client, value), each until the next ranking."""
    ranked = losses.pivot(index="round", columns="client", values="value")
    held = ranked.reindex(pd.RangeIndex(1, rounds + 1, name="round"), method="ffill").melt(ignore_index=False)
    return series(held.dropna().reset_index(), clients, rounds, name, "Loss of every client by round")


def draw_curricula(
    folder: Path, training: LocalTraining, sizes: np.ndarray, rounds: pd.DataFrame, losses: pd.DataFrame
) -> None:
    """Write ``prefix.png``, ``pool.png`` and ``polled_loss.png`` of one run, those that it has.

    ``sizes`` [N] are the training samples of clients, ``losses`` those of `polled`.
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
    """What `prefix` draws of the client with the median number of samples; None if all are in use."""
    if (curriculum := training.curriculum) is None or curriculum.whole:
        return None
    samples = int(np.median(sizes))
    return curriculum, tuple(training.passes(samples, training.epochs)), samples


if __name__ == "__main__":
    families("pacing").png(Path(sys.argv[1]))
