"""`run`: one federated run in this process."""

from collections.abc import Mapping
from typing import Any

import torch

from fedflow.errors import BadInput
from fedflow.experiment import pick_device
from fedflow.front.inputs import Data, Division, Network, built_method, cache, federation, scheme
from fedflow.front.result import Result
from fedflow.local.training import LocalTraining
from fedflow.methods.base import Method
from fedflow.metrics.table import completed
from fedflow.simulation.compiling import with_compiled
from fedflow.simulation.job import Job
from fedflow.simulation.loop import Simulation
from fedflow.simulation.outcome import RoundReport
from fedflow.simulation.run import RunSettings
from fedflow.terminal import RoundBar


def run(
    data: Data = "mnist5k",
    partition: Division | None = None,
    method: str | Method | type[Method] | Mapping[str, Any] = "fedavg",
    *,
    model: Network | None = None,
    rounds: int = 20,
    participation: float = 1.0,
    seed: int = 0,
    training: LocalTraining | Mapping[str, Any] | None = None,
    device: str = "auto",
    compile: str = "auto",
    progress: bool = True,
    **settings: Any,
) -> Result:
    """Train a federation in this process, without params.yaml, servers or a record; returns its `Result`.

    The same settings and seed give the numbers of the pipeline, bit for bit on a CPU.

    Args:
        data: a source such as "mnist5k", a mapping as an entry of ``data`` in params.yaml, or `dataset(...)`
        partition: a scheme such as ``dirichlet(alpha=0.1, clients=20)``, or a list of the training positions
            of every client; default: ``dirichlet(alpha=0.5, clients=10)``
        method: an object such as ``Ditto(lam=1.0)``, or the name of a method with its defaults
        model: the name of a network, a mapping of name and options, a ``torch.nn.Module``, or a function
            that makes one; default: LeNet-5 for images from 28x28, one hidden layer for other inputs
        rounds: number of rounds
        participation: share of the clients in a round
        seed: seed of every random choice except the division of the data, whose scheme has another
        training: ``Training(lr=0.1, epochs=5)``, or a mapping of its fields
        device: "auto", "cpu" or "cuda"
        compile: "auto", "always" or "never": compile local steps on a CPU
        progress: show a bar over the rounds
        settings: fields of `run` in params.yaml, such as ``evaluate_every=1``

    Raises `fedflow.errors.FedflowError` (one line) for values that are not accepted.
    """
    if device not in ("auto", "cpu", "cuda"):
        raise BadInput("device", device, "one of auto, cpu, cuda")
    if compile not in ("auto", "always", "never"):
        raise BadInput("compile", compile, "one of auto, always, never")
    torch.set_num_threads(1)
    built, place = built_method(method), pick_device(device)
    division = scheme("dirichlet", alpha=0.5, clients=10) if partition is None else partition
    local = training if isinstance(training, LocalTraining) else LocalTraining.parse(training or {})
    given = {"rounds": rounds, "participation": participation, **settings}
    wanted = RunSettings.parse(given)
    job = Job(federation(data, division, model, built, place, "matmul"), built, built.trains(local), seed)
    job, _ = with_compiled(job, wanted, compile, cache() / "compiled")
    simulation = Simulation(job, wanted)
    reports: list[RoundReport] = []
    label = built.label or built.name
    with RoundBar(label) as bar:
        for report in simulation.rounds():
            reports.append(report)
            if progress:
                bar.round(report, simulation.settings.rounds)
    outcome = simulation.outcome()
    outcome.metrics = completed(outcome.metrics, reports[-1].values)
    return Result(label, seed, simulation, reports, outcome)
