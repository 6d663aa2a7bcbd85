"""A real SQLite store per session, first made by two processes at once, and small outcomes to record."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from fedflow.models import build
from fedflow.models.flat import FlatModel
from fedflow.simulation.evaluation import Scores
from fedflow.simulation.outcome import Outcome, RoundReport
from fedflow.tracking.models import ModelCard
from fedflow.tracking.store import open_store

SHAPE, CLASSES = (1, 16, 16), tuple("abc")
NETWORK = ("lenet5", SHAPE, len(CLASSES))  # with BatchNorm, so that a round trip must keep buffers too
CLIENTS = 6


@pytest.fixture(scope="session", autouse=True)
def default_store():
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("MLFLOW_TRACKING_URI", raising=False)
        yield


KILLED_RUN = """
import json, os, signal, sys
from fedflow.simulation.outcome import RoundReport
from fedflow.tracking.record import RunRecord, open_record
from fedflow.tracking.store import open_store
imported = "mlflow" in sys.modules
print(json.dumps({"imported": imported, "uri": open_store(sys.argv[1]).uri}), flush=True)
record = open_record(
    RunRecord, sys.argv[1], experiment="killed", name="fedavg-0", key="k1", params={"workers": 1},
    sweep="first", system_metrics=False,
)
for t in range(1, 5):
    record.round(RoundReport(t, [0, 1], values={"train_loss": 1 / t, "bytes_down": 100 * t}))
record.flush()
record.round(RoundReport(5, [0, 1], values={"train_loss": 0.2, "bytes_down": 500}))
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture(scope="session")
def real(stores: Callable) -> Callable:
    """A context in which stores are made, not copied."""

    @contextmanager
    def make() -> Iterator[None]:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("fedflow.tracking.store._create", stores)
            yield

    return make


@pytest.fixture(scope="session")
def other_process(tmp_path_factory, real) -> dict:
    """What a process saw that made the same fresh store at the same moment as this one.

    It then recorded rounds 1 to 4 of a run, not yet round 5, and was killed.
    """
    root = tmp_path_factory.mktemp("checkout")
    other = subprocess.Popen(
        [sys.executable, "-c", KILLED_RUN, str(root)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )
    with real():
        mine = open_store(root).uri
    out, err = other.communicate(timeout=120)
    assert other.returncode == -signal.SIGKILL, err.decode()
    return json.loads(out.splitlines()[-1]) | {"root": root, "stderr": err.decode(), "mine": mine}


@pytest.fixture(scope="session")
def root(other_process) -> Path:
    """The folder of a checkout whose store exists."""
    return other_process["root"]


@pytest.fixture
def model() -> FlatModel:
    return FlatModel(partial(build, *NETWORK, batch_norm=True))


def measured(t: int) -> dict[str, float]:
    """What every round measures."""
    totals = {"bytes_down": 100 * t, "bytes_up": 50 * t, "clock": 0.0}
    return {"train_loss": 1 / t, "clusters": 1, "idle": 0.0, "delay": 0.0} | totals


@pytest.fixture
def rounds() -> list[RoundReport]:
    """Eleven rounds, evaluated in 5, 10 and 11; client 3 fails in round 2; clusters change in 5, 11."""
    made = [RoundReport(t, [0, 1], values=measured(t), seconds=0.1) for t in range(1, 12)]
    made[1].failed = {3: "ValueError: not a number"}
    for t in (5, 10, 11):
        report = made[t - 1]
        report.values |= {"local_accuracy": t / 20, "local_std": 0.1, "local_worst10": 0.2}
        report.values |= {"global_accuracy": t / 25, "clusters": 2, "ari": 0.5}
    made[4].assignment = [0, 0, 1, 1, 1, 0]
    made[10].assignment = [0, 0, 0, 1, 1, 1]
    return made


@pytest.fixture
def outcome(model):
    """Makes the end of an eleven-round run that serves one of the three kinds of model."""

    def make(serves: str = "global") -> Outcome:
        cluster = np.array([0, 0, 0, 1, 1, 1]) if serves == "cluster" else np.zeros(CLIENTS, dtype=int)
        numbers = {"global": [0], "cluster": [0, 1], "personal": range(CLIENTS)}[serves]
        nothing = np.full(CLIENTS, np.nan)
        scores = Scores(list(range(CLIENTS)), cluster, *[nothing] * 5, [], nothing)
        metrics = {"rounds": 11, "local_accuracy": 0.55, "tuned_accuracy": 0.6, "rounds_to_target": None}
        models = {i: model.init(i) for i in numbers}
        return Outcome(scores, np.zeros(CLIENTS), metrics, models)

    return make


@pytest.fixture
def card():
    def make(serves: str = "global", partition: str = "digits-6") -> ModelCard:
        return ModelCard(
            "lenet5",
            SHAPE,
            CLASSES,
            (0.3,),
            (0.5,),
            method="fedavg",
            partition=partition,
            serves=serves,
            options={"batch_norm": True},
        )

    return make


@pytest.fixture
def vectors(model):
    return model.from_module
