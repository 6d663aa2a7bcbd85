"""Online meta-learning: tasks arrive one by one, and a model is learned that adapts quickly to each.

When a task arrives, the meta-model w^t is adapted to it and tested on it (CTM), before any training on the
task; then the learner updates w^t. At times, w^{t+1} is adapted to every task so far and tested on each
(LTM). The evaluation may read all tasks, a learner only the tasks in its memory and the current one.

Every configuration of a learner's grid is an expert, an independent part. Hedge combines the experts of a
learner, with different weights for CTM and LTM.
*Differs from the authors' code in*: Hedge pays before it sees a round (``peek``: after), and has all experts;
samples are not augmented; the network of all learners starts from the seed of the run.
*Ambiguous*: LTM is the value of the last round (A.1.4). A task on which no subset reaches the threshold needs
the largest one and counts as a failure. Both, and the floats kept, are for one expert at a time.
"""

import warnings
from collections.abc import Mapping
from functools import cached_property
from itertools import product
from typing import Any, ClassVar

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from fedflow.errors import BadInput, FedflowError
from fedflow.procedures.interface import Column, End, Findings, Inputs, Procedure, Row, State, World, register
from fedflow.procedures.online.hedge import hedge
from fedflow.procedures.online.learners import Learner
from fedflow.procedures.online.meta_gradients import Expert, Lesson, accuracy
from fedflow.procedures.online.stream import Stream, StreamTask, stream_of
from fedflow.project.arguments import check_name
from fedflow.seeding import generator, torch_seed
from fedflow.settings import option

GRIDS = {"gradient_steps": "K", "adaptation_steps": "GS", "adaptation_lr": "lr", "alpha": "alpha"}  # in names
COMBINED = "ctm", "ltm", "needed", "failed", "floats"  # columns of the rows


@register("online", "Online meta-learning")
class Online(Procedure):
    page, step_name = "online.md", "task"
    curves: ClassVar = {
        "ctm": Column("Current task", "%", "higher"),
        "ltm": Column("All tasks so far", "%", "higher"),
    }
    metrics: ClassVar = {
        "ctm": Column("CTM: current task, before training", "%", "higher"),
        "ltm": Column("LTM: all tasks, at the end", "%", "higher"),
        "efficiency": Column("Samples to reach the threshold", "", "lower", digits=1),
        "failures": Column("Tasks that do not reach it", "", "lower", digits=1),
        "floats": Column("Floats kept in the last round", "", "lower", log=True, digits=0),
    }

    partition: str = option(doc="partition whose client k is task k + 1")
    tasks: int | None = option(None, "number of tasks; null = all", symbol="T", ge=1)
    learners: dict[str, Learner] = option(
        factory=lambda: {name: {} for name in ("fs", "toe", "mogd", "ftml", "moml")},
        doc="row of the summary -> learner",
    )
    gradient_steps: list[int] = option(
        factory=lambda: [10], doc="grid of gradient steps in a round", symbol="K", ge=1, grid=(10, 20)
    )
    adaptation_steps: list[int] = option(
        factory=lambda: [1, 5], doc="grid of gradient steps of adaptation", symbol="GS", ge=0, grid=(1, 5)
    )
    adaptation_lr: list[float] = option(
        factory=lambda: [0.1], doc="grid of step sizes of adaptation", symbol="eta", gt=0, grid=(0.1, 0.01)
    )
    alpha: list[float] = option(
        factory=lambda: [1.0, 5.0], doc="grid of the weight of the regularizer", gt=0, grid=(1, 5, 10)
    )
    lr: float = option(0.1, "step size of the meta-model", symbol="beta", gt=0)
    batch_size: int = option(10, "samples of a support or query", ge=1, grid=(10, 20, 50))
    weight_decay: float = option(
        1e-3, "L2 penalty in the gradients of training", ge=0, source="thesis; authors' code: 1e-4"
    )
    clip_norm: float | None = option(
        3.0,
        "largest norm of meta-gradients (with the regularizer) and of gradients of adaptation at evaluation; "
        "null = no limit",
        gt=0,
        source="authors' code",
    )
    evaluate_every: int | None = option(50, "tasks between two LTM, and one at the end; null = none", ge=1)
    subset_sizes: list[int] = option(
        factory=list,
        doc="sizes of subsets to adapt to, for task-learning efficiency; [] = not measured",
        ge=0,
    )
    threshold: float = option(0.8, "accuracy to reach with a subset", gt=0, le=1, grid=(0.8, 0.55))
    gamma: float = option(0.1, "base of the weights of Hedge", gt=0, lt=1)
    peek: bool = option(default=False, doc="Hedge pays with weights that have seen the round, as in the code")

    def validate(self) -> None:
        if not self.learners:
            raise BadInput("procedures.learners", {}, "at least one learner")
        for name in self.learners:
            check_name("procedures.learners", name)
        if list(self.subset_sizes) != sorted(set(self.subset_sizes)):
            raise BadInput("procedures.subset_sizes", self.subset_sizes, "sizes in increasing order")
        learners = {f"learners.{name}.": learner for name, learner in self.learners.items()}
        for prefix, settings in {"": self, **learners}.items():
            for grid in GRIDS:
                values = getattr(settings, grid)
                if values is not None and (not values or len({*map(_written, values)}) < len(values)):
                    field = f"procedures.{prefix}{grid}"
                    raise BadInput(field, values, "a list of one or more different values")
        merged = [
            name
            for name, learner in self.learners.items()
            if 0 in self._grid(learner, "adaptation_steps") and len(self._grid(learner, "adaptation_lr")) > 1
        ]
        if merged:
            reason = "adaptation_steps: 0 has no adaptation_lr, so that all its values are one expert"
            warnings.warn(f"{self.name}: {', '.join(merged)}: {reason}", stacklevel=2)

    def inputs(self) -> Inputs:
        return Inputs(partitions=(self.partition,))

    def open(self, world: World) -> Stream:
        first = torch_seed(world.seed, "online model")
        stream = stream_of(world.federations[self.partition], self.partition, self.tasks, first, world.seed)
        smallest = min(len(task.train) for task in stream.tasks)
        if self.subset_sizes and self.subset_sizes[-1] > smallest:
            accepted = f"sizes up to {smallest}, the training samples of the smallest task"
            raise BadInput("subset_sizes", self.subset_sizes, accepted)
        return stream

    @cached_property
    def experts(self) -> dict[str, Expert]:
        """The experts by name of the part. Without adaptation, the step size of adaptation is the first."""
        experts = {}
        for name, learner in self.learners.items():
            needed = {"gradient_steps": learner.trains, "alpha": learner.has_alpha}
            used = {grid: self._grid(learner, grid) for grid in GRIDS if needed.get(grid, True)}
            for values in product(*used.values()):
                chosen = dict(zip(used, values, strict=True))
                if not chosen["adaptation_steps"] and chosen["adaptation_lr"] != used["adaptation_lr"][0]:
                    continue
                words = [f"{GRIDS[grid]}{_written(value)}" for grid, value in chosen.items()]
                experts["-".join([name, *words]).replace("+", "")] = Expert(name, learner, **chosen)
        return experts

    def _grid(self, learner: Learner, grid: str) -> list[Any]:
        return getattr(learner, grid) or getattr(self, grid)

    def parts(self, shared: Stream) -> list[str]:
        return list(self.experts)

    def steps(self, shared: Stream, part: str) -> int:
        return len(shared.tasks)

    def start(self, shared: Stream, part: str) -> State:
        memory = torch.empty(0, dtype=torch.int64)
        return {"memory": memory, **self.experts[part].learner.begin(shared.first)}

    def step(self, shared: Stream, part: str, state: State, number: int) -> tuple[State, Row]:
        expert = self.experts[part]
        learner, rng = expert.learner, generator(shared.seed, "online memory", number)
        now = {name: v.to(shared.model.device) for name, v in state.items() if name != "memory"}
        memory = learner.keep(state["memory"], number, rng)
        kept = memory.tolist()
        lesson = Lesson(shared, expert, self, number, kept if number in kept else [*kept, number])

        def accuracy_on(t: int, w: Tensor) -> float:
            if learner.trains:
                return self._accuracy(shared, expert, shared.tasks[t - 1], w)
            if (part, t) not in shared.untrained:  # w^t is w^1: LTM needs no accuracy twice
                shared.untrained[part, t] = self._accuracy(shared, expert, shared.tasks[t - 1], w)
            return shared.untrained[part, t]

        ctm = accuracy_on(number, now["w"])
        efficiency = self._efficiency(shared, expert, number, now["w"]) if self.subset_sizes else {}
        then = learner.learn(now, lesson)
        if not then["w"].isfinite().all():
            raise FedflowError(
                f"{part}: after task {number}, the model is not finite: a step size or alpha is too large"
            )
        if learner.trains_before:
            ctm = accuracy_on(number, then["w"])
        row = {"ctm": ctm, "ltm": float("nan"), **efficiency}
        if self.evaluate_every and (number % self.evaluate_every == 0 or number == len(shared.tasks)):
            row["ltm"] = sum(accuracy_on(t, then["w"]) for t in range(1, number + 1)) / number
        row["floats"] = sum(v.numel() for v in then.values()) + sum(shared.train(t).floats for t in kept)
        return {"memory": memory, **then}, row

    def _accuracy(
        self, stream: Stream, expert: Expert, task: StreamTask, w: Tensor, rows: np.ndarray | None = None
    ) -> float:
        """Accuracy of ``w`` [D] on a task, after adaptation to its training samples (``rows``)."""
        return accuracy(stream.model, task, w, expert, self.clip_norm, rows)

    def _efficiency(self, stream: Stream, expert: Expert, t: int, w: Tensor) -> Row:
        """The size of the smallest subset of D_t with which ``w`` [D] reaches the ``threshold``."""
        task = stream.tasks[t - 1]
        order = generator(stream.seed, "online subset", t).permutation(len(task.train))
        for size in self.subset_sizes:
            if self._accuracy(stream, expert, task, w, order[:size]) >= self.threshold:
                return {"needed": size, "failed": 0.0}
        return {"needed": self.subset_sizes[-1], "failed": 1.0}

    def finish(self, shared: Stream, ends: Mapping[str, End]) -> Findings:
        from fedflow.pictures.online import by_task  # matplotlib is slow to import

        summary, experts, rounds, vectors = {}, list[dict[str, Any]](), list[pd.DataFrame](), {}
        for name in self.learners:
            parts = [part for part, expert in self.experts.items() if expert.entry == name]
            whole, weights = self._combined({part: ends[part].rows for part in parts})
            best = parts[int(weights["ctm"].argmax())]
            vectors[name] = ends[best].state["w"].cpu()
            rounds.append(whole.assign(learner=name, task=whole.index))
            summary[name] = {
                "ctm": float(whole["ctm"].mean()),
                "ltm": _number(whole["ltm"].iloc[-1]),
                "efficiency": _number(whole["needed"].mean()),
                "failures": _number(whole["failed"].sum(min_count=1)),
                "floats": float(whole["floats"].iloc[-1]),
            }
            experts += [
                {
                    "learner": name,
                    "expert": part,
                    **{g: getattr(self.experts[part], g) for g in GRIDS},
                    "ctm": ends[part].rows["ctm"].mean(),
                    "ltm": ends[part].rows["ltm"].iloc[-1],
                    **{f"weight_{metric}": last[i] for metric, last in weights.items()},
                    "model": part == best,
                }
                for i, part in enumerate(parts)
            ]
        table = pd.concat(rounds, ignore_index=True)[["learner", "task", *COMBINED]]
        return Findings(
            summary, {"experts": pd.DataFrame(experts), "learners": table}, by_task(table), vectors
        )

    def _combined(self, rows: Mapping[str, pd.DataFrame]) -> tuple[pd.DataFrame, dict[str, np.ndarray]]:
        """Columns of Hedge over experts with these ``rows``, by task; and its last weights, by metric."""
        by_column = {
            column: pd.DataFrame({part: table[column] for part, table in rows.items() if column in table})
            for column in COMBINED
        }
        last, whole = {}, pd.DataFrame(index=by_column["ctm"].index, columns=list(COMBINED), dtype=np.float64)
        whole["floats"] = by_column["floats"].iloc[:, 0]  # the same for all experts
        for metric, columns in {"ctm": ("ctm", "needed", "failed"), "ltm": ("ltm",)}.items():
            measured = by_column[metric].dropna()
            _, weights = hedge(1 - measured.to_numpy(), self.gamma, self.peek)
            last[metric], used = weights[-1], weights[1:] if self.peek else weights[:-1]
            for column in (column for column in columns if not by_column[column].empty):
                whole.loc[measured.index, column] = (used * by_column[column].loc[measured.index]).sum(axis=1)
        return whole, last


def _number(value: float) -> float | None:
    """None for a value that was not measured."""
    return None if np.isnan(value) else float(value)


def _written(value: float) -> str:
    """A value of a grid in the name of an expert."""
    return f"{value:.12g}"
