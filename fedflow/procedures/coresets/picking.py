"""Base of the procedures on coresets: graph, costs, and methods that choose nodes one by one."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
import pandas as pd
import torch

from fedflow.errors import BadInput, unknown_name
from fedflow.procedures.coresets.baselines import BASELINES, Problem
from fedflow.procedures.coresets.graph import Operator
from fedflow.procedures.coresets.scene import Graph, Scene, fields_of, make_scene
from fedflow.procedures.coresets.select import Selection, begin, pick
from fedflow.procedures.interface import End, Inputs, Procedure, State, World
from fedflow.seeding import generator
from fedflow.settings import option

GREEDY = ("giga", "scgiga")  # one more pick keeps the earlier ones
OWN = re.compile(r"walk(?P<walk>\d+)|kappa(?P<kappa>[\d.]+)|(?P<weights>beta|sum1)")  # after a method's name


@dataclass(frozen=True)
class PickingTask:
    """Data shared by all methods: ``costs`` [n], and the operator for every length of the walk."""

    seed: int
    scene: Scene
    costs: np.ndarray
    operators: dict[int, Operator]


@dataclass(frozen=True)
class Chosen:
    """Nodes after some picks, their weights, and the ``state`` for the next pick."""

    nodes: np.ndarray
    weights: np.ndarray
    state: State
    alignment: float = float("nan")  # alignment of the last pick


class Choosing(Procedure):
    """Nodes of a graph, chosen one by one by several methods."""

    page: ClassVar[str] = "coresets.md"
    step_name: ClassVar[str] = "pick"
    graph: Graph = option(factory=Graph, doc="the graph")
    picks: int = option(28, "nodes to choose", symbol="K", ge=1)
    methods: list[str] = option(
        factory=lambda: ["giga", "scgiga", "frank_wolfe", "kmeans", "spectral", "random"],
        doc="methods that choose; settings of one method follow its name: `scgiga-kappa0.5-walk4`",
    )
    kappa: float = option(
        0.2,
        "alignment of a cheaper node that scgiga accepts, relative to the best one",
        gt=0,
        le=1,
        source="Figure 6.3",
    )
    walk: int = option(16, "steps of the random walk", symbol="l", ge=1)
    operator: str = option("lazy", "matrix of one step of the walk", choices=("lazy", "sym_norm"))
    weights: str = option(
        "beta", "scale of weights: beta = smallest objective error, sum1 = sum 1", choices=("beta", "sum1")
    )
    mean_costs: list[float] | None = option(
        None,
        "mean cost by group, with costs U[0, 2 mean]; null = U[0, 1], or the costs in the table",
        source="Figure 6.3",
    )

    @cached_property
    def arms(self) -> "dict[str, tuple[str, Choosing]]":
        """By part: the method, and its settings."""
        arms = {spec: self._arm(spec, f"methods[{i}]") for i, spec in enumerate(self.methods)}
        if not arms or len(arms) < len(self.methods):
            raise BadInput("methods", self.methods, "at least one method, each once")
        return arms

    def _arm(self, spec: str, field: str) -> "tuple[str, Choosing]":
        method, *changes = spec.split("-")
        if method not in BASELINES:
            raise unknown_name(field, method, BASELINES)
        settings: dict[str, Any] = {}
        for change in changes:
            match = OWN.fullmatch(change)
            if match is None:
                kappa = "-kappa0.5, " if method == "scgiga" else ""
                raise BadInput(field, spec, f"{method}, or {method} with -walk4, {kappa}-beta, -sum1")
            if match["kappa"] is not None and method != "scgiga":
                raise BadInput(field, spec, f"{method} without -kappa, a setting of scgiga")
            given = {name: value for name, value in match.groupdict().items() if value is not None}
            settings |= {name: int(value) if name == "walk" else value for name, value in given.items()}
        return method, replace(self, methods=[method], **settings) if settings else self

    def validate(self) -> None:
        _ = self.arms
        if min(self.mean_costs or [0]) < 0:
            raise BadInput("mean_costs", self.mean_costs, "numbers >= 0")

    def inputs(self) -> Inputs:
        return Inputs(files=self.graph.files)

    def open(self, world: World) -> Any:
        walks = {settings.walk for _, settings in self.arms.values()}
        with fields_of(self.graph):
            scene = make_scene(self.graph, world)
            operators = {walk: Operator(scene.adjacency, walk, self.operator) for walk in sorted(walks)}
        n = scene.adjacency.shape[0]
        if self.picks > n:
            raise BadInput("picks", self.picks, f"a whole number <= {n}, the number of nodes")
        return PickingTask(world.seed, scene, self._costs(scene, world.seed), operators)

    def _costs(self, scene: Scene, seed: int) -> np.ndarray:
        random = generator(seed, "coreset.costs").random(scene.adjacency.shape[0])
        if self.mean_costs is None:
            return random if scene.costs is None else scene.costs
        groups = 0 if scene.groups is None else int(scene.groups.max()) + 1
        if len(self.mean_costs) != groups:
            raise BadInput("mean_costs", self.mean_costs, f"a list of {groups} numbers, one per group")
        return 2 * np.array(self.mean_costs)[scene.groups] * random

    def parts(self, shared: Any) -> list[str]:
        return self.methods

    def steps(self, shared: Any, part: str) -> int:
        return self.picks

    def choose(self, task: PickingTask, part: str, state: State, count: int, draw: int = 0) -> Chosen:
        """``count`` nodes by a method, from its last ``state``; ``draw`` is the number of a repeat."""
        method, settings = self.arms[part]
        operator = task.operators[settings.walk]
        if method in GREEDY:
            costs, kappa = (None, 1.0) if method == "giga" else (task.costs, settings.kappa)
            before = _selection(state) if state else begin(operator)
            now = pick(operator, before, costs, kappa)
            alignment = now.alignments[-1] if len(now.picks) > len(before.picks) else float("nan")
            return Chosen(now.chosen, now.weights(settings.weights)[now.chosen], _tensors(now), alignment)
        problem = Problem(task.scene.adjacency, operator, task.scene.points, task.costs, settings.kappa)
        random = generator(task.seed, f"coreset.{method}", count, draw)
        nodes, weights = BASELINES[method](problem, count, random)
        if settings.weights == "sum1":
            weights = weights / weights.sum()
        return Chosen(
            nodes, weights, {"nodes": torch.from_numpy(nodes), "weights": torch.from_numpy(weights)}
        )

    def chosen(self, task: PickingTask, part: str, state: State) -> tuple[np.ndarray, np.ndarray]:
        """The nodes of the last step, and their weights."""
        method, settings = self.arms[part]
        if method not in GREEDY:
            return state["nodes"].numpy(), state["weights"].numpy()
        now = _selection(state)
        return now.chosen, now.weights(settings.weights)[now.chosen]

    def tables(self, task: PickingTask, ends: Mapping[str, End]) -> dict[str, pd.DataFrame]:
        """The table ``nodes`` with the final choice of every method."""
        tables = []
        for part, end in ends.items():
            nodes, weights = self.chosen(task, part, end.state)
            table = pd.DataFrame(
                {"method": part, "node": nodes, "weight": weights, "cost": task.costs[nodes]}
            )
            if task.scene.groups is not None:
                table["group"] = task.scene.groups[nodes] + 1
            tables.append(table)
        return {"nodes": pd.concat(tables)}


def _tensors(selection: Selection) -> State:
    return {f.name: torch.from_numpy(np.asarray(getattr(selection, f.name))) for f in fields(selection)}


def _selection(state: State) -> Selection:
    return Selection(**{name: tensor.numpy() for name, tensor in state.items()})
