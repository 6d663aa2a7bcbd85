"""Scores of mixtures of every client's global and personal model, if the method has both (`run.sweep`)."""

from functools import partial
from typing import Any

import numpy as np
import pandas as pd
import torch

from fedflow.methods.protocols import Mixing
from fedflow.metrics.predictions import CALIBRATION, by_client
from fedflow.seeding import torch_seed
from fedflow.simulation.evaluation import Scores, score, served_model, test_sizes
from fedflow.simulation.extensions.extension import Run, RunExtension
from fedflow.simulation.job import Job, Shard
from fedflow.simulation.outcome import RunFindings
from fedflow.simulation.worker import client_of

FILE = "sweep.parquet"
# Columns of its table: client, share of the personal model, scores, test samples.
SWEEP = {
    "client": np.int32,
    "value": np.float64,
    "accuracy": np.float64,
    "loss": np.float64,
    "ece": np.float64,
    "mce": np.float64,
    "samples": np.int32,
}
SERVED: dict[str, Any] = {"served": np.bool_}  # true for the mixture that the client is served


class Mixtures(RunExtension):
    """A table with a row per client and mixture of its models (`SWEEP`, `SERVED`)."""

    @classmethod
    def wanted(cls, run: Run) -> bool:
        return bool(run.settings.sweep) and isinstance(run.job.method, Mixing)

    def finish(self, scores: Scores) -> RunFindings:
        return RunFindings(files={FILE: partial(self.table().to_parquet, index=False)})

    def table(self) -> pd.DataFrame:
        run, t, parts = self.run, self.run.done + 1, list[pd.DataFrame]()
        for shards in run.scoring.shards(t, run.scoring.scored, run.state.own_vectors):
            parts += run.executor.map(sweep_shard, run.job, shards, "score mixtures")
        return pd.concat(parts).sort_values(["client", "value"], kind="stable", ignore_index=True)


def sweep_shard(job: Job, shard: Shard) -> pd.DataFrame:
    """The table `SWEEP`, `SERVED` of every client of the shard that has test samples."""
    federation, tables = job.federation.open(), [pd.DataFrame(columns=[*SWEEP, *SERVED])]
    for i, k in enumerate(shard.clients):
        served, *_ = served_model(job, federation, shard, i)
        client = client_of(job, federation, shard, i, {})
        client.model.seed_noise(torch_seed(job.seed, "served noise", shard.round, k))
        if not (samples := int(test_sizes(federation.partition, [k])[0])):
            continue
        values, models = Mixing.of(job.method).sweep(client)
        answers: list[pd.DataFrame] = []
        count = len(values)
        accuracy, loss, *_ = score(
            federation,
            [*models],
            np.arange(count),
            [k] * count,
            answers=answers if federation.labeled else None,
            networks=[client.model] * count,
        )
        columns: dict[str, Any] = {"client": k, "value": values, "accuracy": accuracy, "loss": loss}
        columns |= dict.fromkeys(CALIBRATION, np.nan)
        if answers:
            of_mixtures = pd.concat(answers).assign(client=np.repeat(np.arange(count), samples))
            columns |= {name: by_client(of_mixtures, name).to_numpy() for name in CALIBRATION}
        columns |= {"samples": samples, "served": [torch.equal(w, served) for w in models]}
        tables.append(pd.DataFrame(columns))
    return pd.concat(tables[1:] or tables).astype(SWEEP | SERVED)
