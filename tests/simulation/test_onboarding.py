"""Onboarding: of all clients before the first round, of newcomers after the last one."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import pytest
import torch
from support import Workers, prepare_run, run, same, with_newcomers
from torch import Tensor

from fedflow.errors import FedflowError
from fedflow.local.client import Client, Update
from fedflow.methods.averaging.fedavg import FedAvg
from fedflow.methods.method import Cohort, Diagnostics, GlobalModel, Message, Round
from fedflow.methods.protocols import Cyclic, Onboarding
from fedflow.models.flat import FlatModel
from fedflow.simulation.federation import Federation


@dataclass(frozen=True)
class Asked(GlobalModel):
    total: Tensor | None = None
    doubled: Tensor | None = None


@dataclass(frozen=True)
class At(GlobalModel):
    at: Tensor


class Asking(Onboarding, FedAvg):
    """FedAvg that first asks for sizes and mean pixels, and then sends all clients the sum of sizes."""

    asked: ClassVar[list] = []

    def onboarding_phases(self) -> int:
        return 2

    def setup(self, model: FlatModel, initial: Callable[[int], Tensor]) -> Asked:
        return Asked(initial(0))

    def onboarding_broadcast(self, now: Round, phase: int, server: Asked, client: int) -> Message:
        return {"total": server.total} if phase else {}

    def onboarding_local(self, phase: int, client: Client) -> Update:
        x, _ = client.data()
        answer = x.mean().reshape(1) if phase == 0 else client.received["total"] * 2
        return client.update(answer=answer, weight=client.samples)

    def onboarding_aggregate(self, now: Round, phase: int, server: Asked, cohort: Cohort) -> Asked:
        self.asked.append((phase, list(cohort.ids)))
        total = torch.tensor([float(cohort.weights.sum())])
        return replace(server, total=total) if phase == 0 else replace(server, doubled=cohort.stack("answer"))

    def aggregate(self, now: Round, server: Asked, cohort: Cohort) -> tuple[Asked, Diagnostics]:
        return replace(server, model=cohort.mean("model")), {}


@pytest.fixture(autouse=True)
def nobody_asked() -> None:
    Asking.asked.clear()


def test_all_clients_are_onboarded_in_every_phase_before_the_first_round(federation: Federation):
    ran = run(Asking(), federation, rounds=2, participation=0.5)
    assert Asking.asked == [(0, list(range(8))), (1, list(range(8)))]
    plain = run("fedavg", federation, rounds=2, participation=0.5)
    assert torch.equal(ran.servers[-1]["model"], plain.servers[-1]["model"])


def test_traffic_of_the_onboarding_is_counted_separately(federation: Federation):
    metrics = run(Asking(), federation, rounds=1).outcome().metrics
    assert metrics["onboarding_bytes_down"] == 8 * 4 and metrics["onboarding_bytes_up"] == 2 * 8 * 4
    expected = run("fedavg", federation, rounds=1).outcome().metrics
    assert metrics["bytes_up"] == expected["bytes_up"] and "onboarding_bytes_up" not in expected


@pytest.mark.parametrize("workers", [1, 3])
def test_answers_do_not_depend_on_the_workers(federation: Federation, workers: int):
    ran = run(Asking(), federation, rounds=1, executor=Workers(workers), cohort="vmap")
    assert same(ran.servers[-1], run(Asking(), federation, rounds=1, cohort="vmap").servers[-1])


def test_no_client_is_onboarded_twice_after_a_resume(federation: Federation, tmp_path):
    settings = {"rounds": 3, "checkpoints": tmp_path}
    next(prepare_run(Asking(), federation, **settings).rounds())  # killed after a round without a checkpoint
    Asking.asked.clear()
    simulation = prepare_run(Asking(), federation, **settings)
    assert len(list(simulation.rounds())) == 3 and Asking.asked == []
    assert simulation.outcome().metrics["onboarding_bytes_down"] == 8 * 4


def test_newcomers_are_asked_when_they_join(federation: Federation):
    outcome = run(Asking(), with_newcomers(federation, 2), rounds=1).outcome()
    assert Asking.asked == [(0, list(range(6))), (1, list(range(6))), (0, [6, 7]), (1, [6, 7])]
    assert outcome.metrics["onboarding_bytes_down"] == 6 * 4  # paid by those that took part


def test_a_client_that_cannot_answer_is_named(federation: Federation):
    class Failing(Asking):
        def onboarding_local(self, phase: int, client: Client) -> Update:
            if float(client.samples) == 12:
                raise ValueError("no data here")
            return super().onboarding_local(phase, client)

    with pytest.raises(FedflowError, match=r"onboarding 1 of 2: client 2 failed: ValueError: no data here"):
        run(Failing(), federation)


def test_a_round_may_have_several_cycles(federation: Federation):
    class Cycling(Cyclic, FedAvg):
        def cycles(self) -> int:
            return 3

        def setup(self, model: FlatModel, initial: Callable[[int], Tensor]) -> At:
            return At(initial(0), torch.tensor(0))

        def plan(self, now: Round, server: At, chances: np.ndarray, size: int) -> tuple[np.ndarray, At]:
            return np.array([int(server.at)]), server

        def aggregate(self, now: Round, server: At, cohort: Cohort) -> tuple[At, Diagnostics]:
            return At(cohort.mean("model"), server.at + 1), {}

    ran = run(Cycling(), federation, rounds=2)
    assert [r.cohort for r in ran.rounds] == [[0, 1, 2], [3, 4, 5]]
    one = federation.model.size * 4
    assert ran.values("bytes_up") == [3 * one, 6 * one]
