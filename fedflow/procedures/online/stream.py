"""A stream of tasks: the clients of a partition, one after the other."""

from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from fedflow.data import Examples
from fedflow.errors import BadInput
from fedflow.models.flat import FlatModel
from fedflow.simulation.federation import Federation


@dataclass(frozen=True)
class Rows:
    """``rows`` [n] of examples, read on demand."""

    examples: Examples
    rows: Tensor

    def __len__(self) -> int:
        return len(self.rows)

    def batch(self, rows: np.ndarray | None, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Inputs [m, ...] and targets [m] at ``rows`` [m], or all."""
        at = self.rows if rows is None else self.rows[torch.from_numpy(rows).to(self.rows.device)]
        return self.examples.inputs(at, dtype), self.examples.targets(at)

    @property
    def floats(self) -> int:
        """Numbers in the inputs."""
        return len(self) * self.examples.x[0].numel()


@dataclass(frozen=True)
class StreamTask:
    """D_t, to which models adapt, and test samples."""

    train: Rows
    test: Rows


@dataclass(frozen=True)
class Stream:
    """The tasks, the network, and the first model w^1 [D] of all learners.

    ``untrained`` holds the accuracies of learners that never train, by expert and task.
    """

    tasks: list[StreamTask]
    model: FlatModel
    first: Tensor
    seed: int
    untrained: dict[tuple[str, int], float] = field(default_factory=dict)

    def train(self, t: int) -> Rows:
        """The training samples of task ``t``, from 1."""
        return self.tasks[t - 1].train


def stream_of(federation: Federation, name: str, tasks: int | None, first: int, seed: int) -> Stream:
    """The first ``tasks`` clients of the partition ``name`` as tasks (None: all); ``first`` seeds w^1.

    Raises `BadInput` if a task has too few samples, or if the network has state beyond parameters.
    """
    model, partition = federation.model, federation.partition
    if model.why_alone or model.batch_norms or model.draws_noise:
        accepted = "a partition of data whose network has neither BatchNorm nor dropout"
        raise BadInput("partition", name, accepted)
    if tasks is not None and tasks > partition.training_clients:
        raise BadInput("tasks", tasks, f"at most {partition.training_clients}, the clients of {name}")
    made = []
    for k in range(tasks or partition.training_clients):
        train, test = (
            torch.from_numpy(rows).to(model.device) for rows in (partition.train(k), partition.test(k))
        )
        if len(train) < 2 or not len(test):
            accepted = (
                "a partition that gives every client two training samples, one to adapt to and one as query, "
                f"and a test sample; client {k} has {len(train)} and {len(test)}"
            )
            raise BadInput("partition", name, accepted)
        made.append(StreamTask(Rows(federation.train, train), Rows(federation.own_test, test)))
    return Stream(made, model, model.init(first), seed)
