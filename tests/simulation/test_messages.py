"""The kept vectors of clients that are sent to workers."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import pytest
from support import prepare_run, run
from torch import Tensor

from fedflow.methods.averaging.scaffold import Scaffold
from fedflow.methods.personal.ditto import Ditto
from fedflow.models.flat import FlatModel
from fedflow.simulation.federation import Federation
from fedflow.simulation.job import Job


class Mailbox:
    """An executor that records the kept vectors of every shard, and its number of vectors."""

    workers = 1

    def __init__(self) -> None:
        self.kept: list[tuple[str, set[str], int]] = []

    def map(self, work: Callable, job: Job, shards: Sequence[Any], title: str) -> list[Any]:
        for shard in shards:
            names = {name for client in shard.kept for name in client}
            self.kept.append((work.__name__, names, len(shard.vectors)))
        return [work(job, shard) for shard in shards]

    def of(self, work: str) -> list[set[str]]:
        return [names for name, names, _ in self.kept if name == work]


@pytest.mark.parametrize(
    ("method", "to_train", "to_serve"),
    [
        ("fedavg", set(), set()),
        ("scaffold", {"c"}, set()),
        ("feddyn", {"g"}, set()),
        ("ifca", set(), set()),
        ("ditto", {"personal"}, {"personal"}),
        ("fedper", {"head"}, {"head"}),
        ("local", {"model"}, {"model"}),
    ],
)
def test_clients_are_scored_without_what_they_are_not_served_with(federation, method, to_train, to_serve):
    box = Mailbox()
    run(method, federation, rounds=2, evaluate_every=1, fine_tune=True, executor=box).outcome()
    assert box.of("train_shard") == [to_train] * 2
    assert box.of("evaluate_shard") == [to_serve] * 3


def test_a_shared_model_is_packed_once(federation: Federation) -> None:
    box = Mailbox()
    run("scaffold", federation, rounds=1, executor=box).outcome()
    assert {count for name, _, count in box.kept if name == "evaluate_shard"} == {1}  # x, neither c nor c_k


@pytest.mark.parametrize("method", ["fedavg", "scaffold", "ditto"])
def test_last_trained_models_are_sent_only_to_be_scored(federation: Federation, method: str) -> None:
    box = Mailbox()
    own = {"scaffold": {"c"}, "ditto": {"personal"}}.get(method, set())
    served = {"ditto": {"personal"}}.get(method, set())
    ran = run(method, federation, rounds=2, evaluate_every=1, keep_trained=True, executor=box)
    ran.outcome()
    assert box.of("train_shard") == [own] * 2
    assert box.of("evaluate_shard") == [served, served, served | {"trained"}]
    assert "trained" in ran.clients[-1]


def test_a_method_can_declare_what_it_serves_with(federation: Federation) -> None:
    class Reading(Scaffold):
        serves_with: ClassVar[tuple[str, ...] | None] = ("c",)

        def model_for(self, client: Any) -> Any:
            assert client.kept["c"].shape == client.received["model"].shape
            return super().model_for(client)

    box = Mailbox()
    list(prepare_run(Reading(), federation, rounds=1, executor=box).rounds())
    assert box.of("evaluate_shard") == [{"c"}]


def test_initial_values_of_clients_are_made_when_they_are_used(federation: Federation) -> None:
    """Once for each client that trains, however often those that never did are scored."""
    made: list[int] = []

    class Drawn(Ditto):
        newcomer: ClassVar[Mapping[str, str]] = {"personal": "model"}

        def client_state(self, model: FlatModel, initial: Tensor) -> dict[str, Any]:
            def first(seed: int) -> Tensor:
                made.append(seed)
                return model.init(seed)

            return {"personal": first}

    simulation = prepare_run(Drawn(), federation, participation=0.25, evaluate_every=1)
    assert len(simulation.state.store.first) == len(made) == 1  # that of client 0, for its shape
    made.clear()
    list(simulation.rounds())
    assert len(made) == (simulation.state.participations > 0).sum() < simulation.clients
