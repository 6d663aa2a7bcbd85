"""Workers, when a vmapped cohort fails."""

import json
import re
import warnings
from typing import Any

import pytest
import torch
from support import SIZES, forbid_fallback, images, run
from torch import Tensor

from fedflow.data import Dataset
from fedflow.errors import FedflowError
from fedflow.local.local_training import LocalTraining
from fedflow.methods.averaging.fedavg import FedAvg
from fedflow.methods.method import Round
from fedflow.simulation import worker
from fedflow.simulation.federation import Federation
from fedflow.simulation.job import Job, Shard


@pytest.fixture
def federation(digits: Dataset) -> Federation:
    return images(digits)  # a new one each: it remembers how wide calls may be


class Spy:
    """`worker.train_cohort` on a GPU with memory for ``room`` clients; records the requested widths."""

    def __init__(self, room: int) -> None:
        self.room, self.asked, self.solve = room, [], worker.train_cohort

    def __call__(self, job: Any, federation: Any, shard: Any, places: list[int], *rest: Any) -> Any:
        self.asked.append(len(places))
        if len(places) > self.room:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB")
        return self.solve(job, federation, shard, places, *rest)


@pytest.mark.parametrize(("room", "asked"), [(8, [8]), (4, [8, 4, 4]), (3, [8, 4, 2, 2, 2, 2])])
def test_out_of_memory_halves_the_cohort_and_changes_no_result(federation, monkeypatch, room, asked) -> None:
    whole = run("scaffold", federation, cohort="vmap", rounds=1)
    spy = Spy(room)
    monkeypatch.setattr(worker, "train_cohort", spy)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        halved = run("scaffold", federation, cohort="vmap", rounds=1)
    assert spy.asked == asked and len(SIZES) == 8
    # Padding changes the order of float32 sums.
    torch.testing.assert_close(halved.state(), whole.state(), rtol=0, atol=1e-5)


def test_a_fallback_to_the_loop_warns_once(federation: Federation, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker, "WARNED_METHODS", set())
    monkeypatch.setattr(worker, "train_cohort", Spy(room=0))
    with pytest.warns(UserWarning) as warned:
        fallen = run("fedavg", federation, cohort="vmap", rounds=2)
    reason = "OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB (test_worker.py, line "
    (said,) = (str(warning.message) for warning in warned)
    assert said.startswith(f"fedavg: clients train one by one, because vmap failed ({reason}")
    assert not any(report.failed for report in fallen.rounds)
    loop = run("fedavg", federation, cohort="loop", rounds=2)
    assert torch.equal(fallen.servers[-1]["model"], loop.servers[-1]["model"])


def test_an_error_names_the_line_of_the_caller_not_of_a_library() -> None:
    with pytest.raises(ValueError, match="Expecting") as raised:
        json.loads("{")
    said = r"JSONDecodeError: Expecting .* \(test_worker.py, line \d+\)"
    assert re.fullmatch(said, worker._in_one_line(raised.value))


def test_a_method_that_vmap_cannot_run_is_named_with_the_reason(federation, monkeypatch) -> None:
    class Branching(FedAvg):
        def local(self, client: Any) -> Any:
            return super().local(client) if client.samples > 0 else client.update()

    monkeypatch.setattr(worker, "WARNED_METHODS", set())
    with pytest.warns(UserWarning, match=r"vmap failed \(RuntimeError: .*data-dependent control flow"):
        run(Branching(), federation, cohort="vmap", rounds=1)


def test_an_operation_that_vmap_runs_client_by_client_is_an_error_in_tests(federation, monkeypatch) -> None:
    class Unruled(FedAvg):
        def local(self, client: Any) -> Any:
            w = client.fit(start=client.received["model"])
            return client.update(model=torch.renorm(w[None], p=2, dim=0, maxnorm=1.0)[0])

    said: list[str] = []
    monkeypatch.setattr(worker, "_warn_of_fallback", lambda method, reason: said.append(reason))
    forbid_fallback(monkeypatch)
    with pytest.raises(AssertionError, match="fell back to the loop"):
        run(Unruled(), federation, cohort="vmap", rounds=1)
    assert said[0].startswith("vmap failed (UserWarning: There is a performance drop")


class Uneven(FedAvg):
    """FedAvg that shifts the models of some clients; only these receive the shift and keep another vector."""

    def client_state(self, model: Any, initial: Tensor) -> dict[str, Tensor]:
        return {"seen": initial[:2]}

    def broadcast(self, now: Round, server: Any, client: int) -> dict[str, Tensor]:
        w, shifts = server.model, {0: torch.ones(1), 3: torch.full((2,), 0.5), 4: torch.full((2,), 0.25)}
        return {"model": w} | ({"shift": shifts[client]} if client in shifts else {})

    def local(self, client: Any) -> Any:
        shift = client.received.get("shift", torch.zeros(1)).mean()
        w = client.fit(start=client.received["model"] + shift)
        return client.update(model=w, weight=1.0, keep={"seen": w[:2]} if "shift" in client.received else {})


def test_clients_that_receive_other_names_or_shapes_train_in_other_calls(federation, monkeypatch) -> None:
    loop = run(Uneven(), federation, cohort="loop", rounds=2)
    spy = Spy(room=8)
    monkeypatch.setattr(worker, "train_cohort", spy)
    forbid_fallback(monkeypatch)
    vmapped = run(Uneven(), federation, cohort="vmap", rounds=2)
    assert sorted(spy.asked) == sorted([1, 2, 5] * 2)
    torch.testing.assert_close(vmapped.state(), loop.state(), rtol=0, atol=1e-5)


class Middle(FedAvg):
    """FedAvg that sends one client another model: neither the largest client nor the smallest."""

    def broadcast(self, now: Round, server: Any, client: int) -> dict[str, Tensor]:
        middle = now.sizes.argsort()[len(now.sizes) // 2]
        return {"model": server.model + 1 if client == middle else server.model}


def test_a_client_in_the_middle_of_a_cohort_receives_its_own_model(federation, monkeypatch) -> None:
    forbid_fallback(monkeypatch)
    loop, vmap = (run(Middle(), federation, cohort=how, rounds=1).state() for how in ("loop", "vmap"))
    torch.testing.assert_close(vmap["server/model"], loop["server/model"], rtol=0, atol=1e-5)


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_only_a_client_that_raises_is_retried(federation: Federation, value: float) -> None:
    tried: list[int] = []

    class Diverging(FedAvg):
        def local(self, client: Any) -> Any:
            tried.append(int(client.samples))
            return client.update(model=client.received["model"] * (value if len(tried) == 1 else 1))

    ran = run(Diverging(), federation, rounds=1)
    assert ran.rounds[0].failed == {0: "its update holds NaN or infinite values"}
    assert tried == [*SIZES]


@pytest.mark.parametrize("cohort", ["loop", "vmap"])
def test_a_weight_that_is_not_finite_leaves_its_client_out(federation: Federation, cohort: str) -> None:
    class Weightless(FedAvg):
        def weight(self, client: Any) -> Any:
            return torch.where(client.samples == SIZES[2], torch.nan, client.samples)

    ran = run(Weightless(), federation, cohort=cohort, rounds=1, participation=1.0)
    assert ran.rounds[0].failed.keys() == {2}
    assert all(value.isfinite().all() for value in ran.servers[-1].values())


def test_a_worker_that_cannot_compile_ends_the_run_with_one_line(federation, monkeypatch) -> None:
    monkeypatch.setattr(worker, "compiled_gradient", lambda *about: None)
    job = Job(federation, FedAvg(), LocalTraining(), seed=0, compiled="somewhere")
    w = federation.model.init(0)
    with pytest.raises(FedflowError, match=r"cannot compile .* use --set engine.compile=never$"):
        worker.train_shard(job, Shard(1, [0], [w], [{"model": 0}], [{}]))
