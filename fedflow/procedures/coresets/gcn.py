"""Nodes to label for a graph convolutional network (Figure 6.1)."""

from collections.abc import Mapping
from typing import ClassVar

import numpy as np
import torch

from fedflow.errors import BadInput
from fedflow.procedures.coresets.network import GCN
from fedflow.procedures.coresets.picking import Choosing, Chosen, PickingTask
from fedflow.procedures.coresets.scene import Graph
from fedflow.procedures.interface import Column, End, Findings, Row, State, World, register
from fedflow.seeding import generator, torch_seed
from fedflow.settings import option


@register("coreset_gcn", "Coreset, labels of a GCN")
class CoresetGCN(Choosing):
    """Coreset, labels of a GCN: choose nodes to label so that a network classifies the others (Figure 6.1).

    Every few picks, a new graph convolutional network of two layers (Kipf and Welling 2017) is trained on the
    nodes chosen so far; all nodes and edges are its input.

    Source: the chapter on SCGIGA, Section 6.6.1
    """

    graph: Graph = option(
        factory=lambda: Graph.parse({"nodes": 200, "shares": [0.1] * 10, "p_in": 0.4, "p_out": 0.02}),
        doc="a graph whose nodes have labels: sbm, mixture or cora",
    )
    picks: int = option(20, "nodes to label", symbol="K", ge=1)
    methods: list[str] = option(
        factory=lambda: ["giga", "scgiga", "frank_wolfe", "spectral", "betweenness", "random"],
        doc="methods that choose, as in `coreset`",
    )
    walk: int = option(1, "steps of the random walk", symbol="l", ge=1)
    every: int = option(5, "picks between trainings", ge=1)
    validation: int = option(30, "unlabeled nodes for early stopping; Cora: 500", ge=1)
    test: int | None = option(None, "unlabeled nodes for the test; null = all others; Cora: 1000", ge=1)
    weighted: bool = option(False, "weigh the losses of the labeled nodes by the coreset's weights")
    epochs: int = option(100, "epochs at most", ge=1, source="Section 6.6.1")
    patience: int | None = option(
        10,
        "epochs without a fall of the validation loss before training stops; null = never",
        ge=1,
        source="Section 6.6.1",
    )
    curves: ClassVar = {
        "test_accuracy": Column("Test accuracy", "%", "higher"),
        "groups": Column("Classes with a label"),
    }
    metrics: ClassVar = {
        "test_accuracy": Column("Test accuracy", "%", "higher"),
        "test_accuracy_mean": Column("Test accuracy, mean over trainings", "%", "higher"),
        "groups": Column("Classes with a label", better="higher", digits=1),
        "nodes": Column("Labels", digits=1),
        "cost": Column("Total cost", better="lower", digits=2),
        "epochs": Column("Epochs", digits=0),
    }

    def open(self, world: World) -> PickingTask:
        task = super().open(world)
        if task.scene.groups is None:
            raise BadInput("graph.kind", self.graph.kind, "sbm, mixture or cora, whose nodes have labels")
        left = len(task.costs) - self.picks - self.validation
        if left < (self.test or 1):
            raise BadInput("validation", self.validation, "fewer nodes, so that enough are left for testing")
        return task

    def step(self, shared: PickingTask, part: str, state: State, number: int) -> tuple[State, Row]:
        chosen = self.choose(shared, part, state, number)
        groups = shared.scene.groups
        assert groups is not None
        row = {
            "groups": len(np.unique(groups[chosen.nodes])),
            "nodes": len(chosen.nodes),
            "cost": shared.costs[chosen.nodes].sum(),
            "test_accuracy": float("nan"),
            "epochs": float("nan"),
        }
        if number % self.every == 0 or number == self.picks:
            row |= self._train(shared, groups, chosen, number)
        return chosen.state, {name: float(value) for name, value in row.items()}

    def _train(self, task: PickingTask, groups: np.ndarray, chosen: Chosen, number: int) -> Row:
        """Accuracy and epochs of a new network, validated and tested on the other nodes."""
        order = generator(task.seed, "coreset.split", number).permutation(len(groups))
        others = order[~np.isin(order, chosen.nodes)]
        validation, test = np.split(others, [self.validation])
        network = GCN(
            task.scene.adjacency,
            task.scene.features,
            int(groups.max()) + 1,
            torch_seed(task.seed, "coreset.gcn", number),
        )
        labels = torch.from_numpy(groups.astype(np.int64))
        epochs = network.fit(
            labels,
            torch.from_numpy(chosen.nodes),
            torch.from_numpy(validation),
            torch.from_numpy(chosen.weights).float() if self.weighted else None,
            self.epochs,
            self.patience,
        )
        return {
            "test_accuracy": network.accuracy(labels, torch.from_numpy(test[: self.test])),
            "epochs": epochs,
        }

    def finish(self, shared: PickingTask, ends: Mapping[str, End]) -> Findings:
        summary: dict[str, dict[str, float | None]] = {}
        for part, end in ends.items():
            last = end.rows.iloc[-1].to_dict() | {"test_accuracy_mean": end.rows["test_accuracy"].mean()}
            summary[part] = {name: last[name] for name in self.metrics}
        return Findings(summary, self.tables(shared, ends))
