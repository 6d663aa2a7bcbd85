"""The decision whether a run compiles gradients: made once, before it starts, for all of its workers."""

from dataclasses import replace
from pathlib import Path

import numpy as np

from fedflow.errors import BadInput
from fedflow.local.fast.compiled import compiled_gradient, pays, why_not
from fedflow.simulation.federation import Federation
from fedflow.simulation.job import Job
from fedflow.simulation.levels import networks
from fedflow.simulation.settings import RunSettings


def with_compiled(job: Job, settings: RunSettings, wanted: str, folder: Path) -> tuple[Job, str]:
    """``job``, with compilation if ``wanted`` ("auto", "always", "never") and the work justify it, and why.

    Code is stored in ``folder``, for workers and later runs.
    """
    if wanted == "never":
        return job, "no: engine.compile is never"
    federation = job.federation.open()
    model, train = federation.model, federation.train
    obstacle = "clients train in vmapped cohorts" if job.cohort == "vmap" else why_not(model, job.training)
    if obstacle:
        if wanted == "always":
            raise BadInput("engine.compile", wanted, f"auto or never here: {obstacle}")
        return job, f"no: {obstacle}"
    why = "engine.compile is always"
    trained = networks(job.method, federation).values()
    if wanted == "auto":
        steps = steps_ahead(job, settings, federation)
        worth, why = pays(model, train, job.training, steps, len(trained))
        if not worth:
            return job, f"no: {why}"
    if any(compiled_gradient(network, train, job.training, str(folder)) is None for network in trained):
        return job, "no: the compiler failed"
    return replace(job, compiled=str(folder)), f"yes: {why}"


def steps_ahead(job: Job, settings: RunSettings, federation: Federation) -> float:
    """Local steps with full batches in the whole run, if all clients are equally likely."""
    training, partition = job.training, federation.partition
    sizes, clients = np.unique(partition.sizes[: partition.training_clients], return_counts=True)
    total = 0.0
    for n, count in zip(sizes.tolist(), clients.tolist()):
        full = n // training.batch_size / training.batches(n)  # the share of batches that are compiled
        steps = sum(training.workload(n, epochs).steps for epochs in job.method.streams(training).values())
        total += count * full * steps
    return settings.rounds * settings.participation * total
