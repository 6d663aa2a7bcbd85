"""Means of node functions from few nodes (Figures 6.2 to 6.4): error, cost and location of the nodes."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar

import numpy as np
import pandas as pd

from fedflow.procedures.coresets.picking import Choosing, Chosen, PickingTask
from fedflow.procedures.coresets.select import objective_error
from fedflow.procedures.interface import Column, End, Findings, Row, State, register
from fedflow.settings import option

if TYPE_CHECKING:
    from fedflow.pictures.drawing import Drawing

DRAWN = ("random", "importance")  # independent draws: errors are means over many
GROUPS = 10  # groups in the summary
PICTURES = 6  # methods in the picture


@register("coreset", "Coreset")
class Coreset(Choosing):
    """Coreset: means over all nodes of a graph from a few weighted nodes, chosen with regard to their costs.

    Every step adds one node. SCGIGA takes the cheapest node whose alignment with the residual is at least
    kappa times the best alignment; GIGA ignores costs. The other methods choose all nodes again in every
    step. The estimated mean follows from the graph: the share of a group (Figures 6.2 and 6.3), the mean
    distance to every node (6.4), or a column of a table.

    Source: Vahidian, Mirzasoleiman, Cloninger 2020, Coresets for estimating means and mean square error with
    limited greedy samples (UAI), and the chapter on SCGIGA
    """

    draws: int = option(100, "draws averaged for random and importance", ge=1)
    curves: ClassVar = {
        "error": Column("Squared error of the mean", better="lower", log=True),
        "objective": Column("Objective error", better="lower", log=True),
        "alignment": Column("Alignment of the pick", better="higher"),
        "cost": Column("Total cost", better="lower"),
        "weight": Column("Sum of the weights"),
    }
    metrics: ClassVar = {
        "error": Column("Squared error", better="lower", digits=5),
        "absolute": Column("Absolute error", better="lower"),
        "error_mean": Column("Squared error, mean over K", better="lower"),
        "objective": Column("Objective error", better="lower"),
        "objective_mean": Column("Objective error, mean over K", better="lower"),
        "cost": Column("Total cost", better="lower", digits=2),
        "relative_cost": Column("Cost, relative to K average nodes", better="lower", digits=3),
        "weight": Column("Sum of the weights", digits=3),
        "nodes": Column("Nodes", digits=1),
        **{f"group{i}": Column(f"Picks in group {i}", "%") for i in range(1, GROUPS + 1)},
    }

    def step(self, shared: PickingTask, part: str, state: State, number: int) -> tuple[State, Row]:
        draws = self.draws if self.arms[part][0] in DRAWN else 1
        chosen = [self.choose(shared, part, state, number, draw) for draw in range(draws)]
        rows = pd.DataFrame([self.measure(shared, part, nodes) for nodes in chosen])
        return chosen[0].state, {str(name): value for name, value in rows.mean().items()}

    def measure(self, task: PickingTask, part: str, chosen: Chosen) -> Row:
        """The metrics of one set of nodes."""
        nodes, weights, scene = chosen.nodes, chosen.weights, task.scene
        errors = weights @ scene.functions[nodes] - scene.functions.mean(0)
        operator = task.operators[self.arms[part][1].walk]
        full = np.zeros(len(task.costs))
        full[nodes] = weights
        row = {
            "error": np.square(errors).mean(),
            "absolute": np.abs(errors).mean(),
            "objective": objective_error(operator, full),
            "alignment": chosen.alignment,
            "cost": task.costs[nodes].sum(),
            "weight": weights.sum(),
            "nodes": len(nodes),
        }
        if scene.groups is not None:
            counts = np.bincount(scene.groups[nodes], minlength=scene.groups.max() + 1)[:GROUPS]
            row |= {f"group{i}": share for i, share in enumerate(counts / len(nodes), 1)}
        return row

    def finish(self, shared: PickingTask, ends: Mapping[str, End]) -> Findings:
        summary: dict[str, dict[str, float | None]] = {}
        for part, end in ends.items():
            last = end.rows.iloc[-1].drop("alignment").to_dict()
            last["relative_cost"] = last["cost"] / (self.picks * shared.costs.mean())
            last |= {f"{name}_mean": end.rows[name].mean() for name in ("error", "objective")}
            summary[part] = {name: last[name] for name in self.metrics if name in last}
        return Findings(summary, self.tables(shared, ends), self._drawings(shared, ends))

    def _drawings(self, task: PickingTask, ends: Mapping[str, End]) -> "list[Drawing]":
        """The nodes chosen by the first methods."""
        from fedflow.pictures.coresets import placed

        scene = task.scene
        if scene.groups is None and scene.points is None:
            return []
        shown = [part for part in ends if self.arms[part][0] not in DRAWN][:PICTURES]
        chosen = {part: self.chosen(task, part, ends[part].state) for part in shown}
        return [placed(scene.points, scene.adjacency, scene.groups, chosen)] if shown else []
