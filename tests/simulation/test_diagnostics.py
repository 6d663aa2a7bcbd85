"""A method's own numbers, and what is refused of them."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support import follow, prepare_run, quadratics, run

from fedflow.errors import FedflowError
from fedflow.local.client import Client, Update
from fedflow.methods.averaging.fedavg import FedAvg
from fedflow.methods.method import Cohort, Diagnostics, GlobalModel, Round
from fedflow.methods.protocols import Serving
from fedflow.simulation.loop import Simulation


def reporting(server: Any = None, **client: torch.Tensor) -> FedAvg:
    """FedAvg that returns ``server`` from its server step, and whose clients report ``client``."""

    class Reporting(FedAvg):
        def local(self, client_: Client) -> Update:
            w = client_.fit(start=client_.received["model"])
            return client_.update(model=w, diagnostics=client)

        def aggregate(self, now: Round, state: Any, cohort: Cohort) -> tuple[GlobalModel, Diagnostics]:
            return super().aggregate(now, state, cohort) if server is None else server(cohort.mean("model"))

    return Reporting()


@pytest.mark.parametrize("cohort", ["loop", "vmap"])
def test_numbers_are_recorded_and_cost_no_traffic(cohort: str) -> None:
    method = reporting(lambda w: (GlobalModel(w), {"norm": w.norm()}), share=torch.tensor(0.25))
    ran, plain = (run(each, quadratics(), cohort=cohort, rounds=2) for each in (method, "fedavg"))
    assert ran.values("client/share/mean") == ran.values("client/share/max") == [0.25, 0.25]
    assert ran.values("method/norm") == [abs(w) for w in ran.server("model")] and all(
        ran.values("method/norm")
    )
    assert ran.values("bytes_up") == plain.values("bytes_up")


@pytest.mark.parametrize("array", [np.array, torch.tensor])
def test_arrays_over_clients_are_series_that_a_resume_keeps(array: Any, tmp_path: Path) -> None:
    def start(**how: Any) -> Simulation:
        method = reporting(lambda w: (GlobalModel(w), {"p": array([float(w) / 3, torch.nan]), "q": 1}))
        return prepare_run(method, quadratics(), rounds=4, checkpoint_every=1, **how)

    whole = follow(start())
    assert whole.values("method/q") == [1] * 4 and whole.values("method/p") == [None] * 4
    assert [r.series["method/p"][0] for r in whole.rounds] == [
        float(array(w / 3)) for w in whole.server("model")
    ]
    stopped = start(checkpoints=tmp_path).rounds()
    assert [next(stopped).round, next(stopped).round] == [1, 2]
    resumed = follow(start(checkpoints=tmp_path))
    assert [report.replayed for report in resumed.rounds] == [True, True, False, False]
    assert repr([r.series for r in resumed.rounds]) == repr([r.series for r in whole.rounds])  # nan != nan


def test_a_series_has_the_first_clients_only() -> None:
    method = reporting(lambda w: (GlobalModel(w), {"p": np.arange(120)}))
    (only,) = run(method, quadratics(((1, 0),) * 120, [1] * 120), rounds=1).rounds
    assert only.series == {"method/p": list(range(100))}


def test_a_number_that_is_not_finite_excludes_no_client() -> None:
    ran = run(reporting(share=torch.tensor(torch.nan)), quadratics(), rounds=1)
    assert not ran.rounds[0].failed and "client/share/mean" not in ran.rounds[0].values


@pytest.mark.parametrize(
    "server",
    [
        GlobalModel,
        lambda w: (GlobalModel(w), {"x": None}),
        lambda w: (GlobalModel(w), {"x y": 1.0}),
        lambda w: (GlobalModel(w), {"": 1.0}),
        lambda w: (GlobalModel(w), 1.0),
        lambda w: (GlobalModel(w), {"x": np.ones(3)}),
        lambda w: (GlobalModel(w), {"x": np.ones((2, 1))}),
        lambda w: (GlobalModel(w), {"x": np.array(["a", "b"])}),
    ],
)
def test_a_server_step_returns_its_state_and_named_numbers(server: Any) -> None:
    with pytest.raises(FedflowError, match="must return the server's state and a dictionary of numbers"):
        run(reporting(server), quadratics(), rounds=1)


@pytest.mark.parametrize(
    ("client", "reason"),
    [
        ({"a b": torch.tensor(1.0)}, "'a b' is not the name of a number"),
        ({"x": torch.ones(2)}, "'x' must be a scalar and has shape"),
        ({"train_loss": torch.tensor(1.0)}, "'train_loss' is a name of the engine"),
    ],
)
def test_clients_report_named_scalars(client: dict[str, torch.Tensor], reason: str) -> None:
    with pytest.raises(FedflowError, match=reason):
        run(reporting(**client), quadratics(), rounds=1, min_cohort=1)


def test_the_first_state_is_a_server_state() -> None:
    class Old(FedAvg):
        def setup(self, *given: Any) -> Any:
            return {"model": super().setup(*given).model}

    with pytest.raises(FedflowError, match="setup must return a ServerState, not dict"):
        run(Old(), quadratics(), rounds=1)


def test_random_numbers_of_hooks_do_not_depend_on_the_workers() -> None:
    from support import Workers

    class Noisy(Serving, FedAvg):
        def broadcast_for_evaluation(self, now: Round, server: GlobalModel, client: int) -> dict:
            return {"model": server.model + float(now.rng.normal())}

        def model_for(self, client: Client) -> tuple:
            return client.received["model"], torch.tensor(0)

    class Served(Noisy):
        serves = "personal"

    federation = quadratics(((1, 0),) * 6, [5] * 6)
    losses = [
        run(Served(), federation, rounds=1, executor=Workers(n)).outcome().scores.local_loss.tolist()
        for n in (1, 2, 4)
    ]
    assert losses[0] == losses[1] == losses[2] and len({*losses[0]}) == 6
