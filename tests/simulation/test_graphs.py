"""Cohort calls: which are captured, when a capture is trusted, and which calls are of one kind."""

import warnings
import weakref
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar

import pytest
import torch
from support import SIZES, images, run
from torch import Tensor

from fedflow.local.extensions.adaptation import Adaptation
from fedflow.local.local_training import LocalTraining
from fedflow.local.teacher import Teacher
from fedflow.methods import build_method
from fedflow.methods.averaging.fedavg import FedAvg
from fedflow.methods.protocols import Phased
from fedflow.models import build
from fedflow.models.flat import FlatModel
from fedflow.simulation import cohort, graphs, worker
from fedflow.simulation.cohort import rounded
from fedflow.simulation.federation import Federation
from fedflow.simulation.graphs import Call, Cohorts, Tensors
from fedflow.simulation.job import Job, Shard


class Recorded:
    """Own memory, as a CUDA graph has: inputs are copied in, outputs are overwritten by every replay.

    ``baked`` names inputs that are read once, as a graph reads numbers of the host.
    """

    made: ClassVar[list["Recorded"]] = []

    def __init__(self, call: Call, pool: Any = None, baked: str | None = None) -> None:
        self.one, self.each, self.baked = call.on, call.each, baked
        self.inputs = {name: value.clone() for name, value in call.inputs.items()}
        self.outputs = {name: value.clone() for name, value in call.on(self.inputs).items()}
        self.replays = 0
        self.made.append(self)

    def __call__(self, call: Call) -> Tensors:
        self.replays += 1
        for name, value in call.inputs.items():
            if name != self.baked:
                self.inputs[name].copy_(value)
        for name, value in self.one(self.inputs).items():
            self.outputs[name].copy_(value)
        return self.outputs


def call(values: Tensor, factor: float = 2.0, about: str = "double", each: bool = True) -> Call:
    def one(inputs: Tensors) -> Tensors:
        return {"out": inputs["values"] * inputs["factor"]}

    inputs = {"values": values, "factor": torch.tensor(factor)}
    return Call((about,), one, inputs, frozenset({"values"} if each else {"values", "factor"}))


def test_the_fourth_call_is_replayed_only() -> None:
    counted: list[int] = []
    cohorts = Cohorts(Recorded)
    for i in range(6):
        now = call(torch.arange(3.0) + i, factor=1.0 + i)
        plain = now.on
        now.on = lambda inputs, plain=plain: (counted.append(1), plain(inputs))[1]  # type: ignore[method-assign]
        assert cohorts.run(now)["out"].tolist() == [(k + i) * (1.0 + i) for k in range(3)]
    # Three as they are, one to capture, and that is what every replay runs again here.
    assert len(counted) == 3 + 1 + 4


@pytest.mark.parametrize("baked", ["values", "factor"])
def test_a_capture_that_ignores_its_inputs_is_never_used(baked: str) -> None:
    cohorts = Cohorts(partial(Recorded, baked=baked))
    with pytest.warns(UserWarning, match="double: cohorts run without a CUDA graph .its replay gives diff"):
        for i in range(3):
            cohorts.run(call(torch.arange(3.0) + i, factor=1.0 + i))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert cohorts.run(call(torch.ones(3), factor=5.0))["out"].tolist() == [5.0] * 3


def test_a_capture_that_fails_warns_once_and_changes_no_result() -> None:
    def fail(call: Call, pool: Any) -> Any:
        raise RuntimeError("operation not permitted when stream is capturing\nmore")

    cohorts = Cohorts(fail)
    cohorts.run(call(torch.ones(2)))
    with pytest.warns(UserWarning, match="without a CUDA graph .operation not permitted when .*ing.$"):
        assert cohorts.run(call(torch.ones(2)))["out"].tolist() == [2.0, 2.0]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(3):
            assert cohorts.run(call(torch.ones(2)))["out"].tolist() == [2.0, 2.0]


def test_calls_are_of_one_kind_if_computation_and_shapes_are_equal() -> None:
    kind = call(torch.ones(2)).key
    assert call(torch.zeros(2), factor=7.0).key == kind
    assert call(torch.ones(3)).key != kind and call(torch.ones(2), about="triple").key != kind
    assert call(torch.ones(2), each=False).key != kind
    assert call(torch.ones(2).double()).key != kind


def test_a_phase_a_level_and_an_adaptation_are_other_computations(digits) -> None:
    """As the captured call has those of its capture."""
    federation, method = images(digits), build_method("fedavg")
    adaptations: list[Any] = [
        None,
        *({"name": "maml", "steps": steps} for steps in (1, 2)),
        {"name": "proto"},
    ]
    trainings = [LocalTraining.parse({"adaptation": each}) for each in adaptations]
    shards = [Shard(1, [], [], [], [], phase=phase) for phase in ("", "later")]
    jobs = [Job(federation, method, training, seed=0) for training in trainings]
    kinds = {
        cohort._about(job, shard, method.local, level)
        for job in jobs
        for shard in shards
        for level in ("", "half")
    }
    assert len(kinds) == 16


def test_a_phase_is_replayed_as_itself(digits, monkeypatch) -> None:
    check_replays(
        monkeypatch, Turning(), images(digits, (12,) * 8), rounds=10, participation=0.5, training={}
    )


class Turning(Phased, FedAvg):
    """FedAvg whose steps are reversed in every other round: static, so a replay would repeat the first."""

    def phase(self, now: Any) -> str:
        return "back" if now.t % 2 else ""

    def local(self, client: Any) -> Any:
        w = client.received["model"]
        moved = client.fit(start=w)
        return client.update(model=2 * w - moved if client.phase else moved)


def test_only_the_latest_kinds_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graphs, "GRAPHS", 2)
    cohorts = Cohorts(Recorded)
    for about in ("a", "b", "a", "c"):
        cohorts.run(call(torch.ones(2), about=about))
    assert [key[1] for key in cohorts.kinds] == [("a",), ("c",)]


class Scheduled(FedAvg):
    """FedAvg with steps that shrink from round to round."""

    def local(self, client: Any) -> Any:
        w = client.received["model"]
        return client.update(model=w + (client.fit(start=w) - w) * (1 - client.t / (2 * client.rounds)))


def check_replays(monkeypatch: Any, name: Any, federation: Federation, **settings: Any) -> None:
    """A run that replays its calls ends as the plain one, on the whole path of a GPU but the GPU."""
    plain = run(name, federation, cohort="vmap", **settings)
    cohorts = Cohorts(Recorded)
    monkeypatch.setattr(Recorded, "made", [])

    def train_clients(*args: Any) -> Any:
        called: Callable = partial(cohort.cohort_call, round_shapes=True)
        return cohort.unpacked(cohorts.run(called(*args)))

    monkeypatch.setattr(worker, "train_cohort", train_clients)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        replayed = run(name, federation, cohort="vmap", **settings)
    assert sum(made.replays for made in Recorded.made) >= 3
    torch.testing.assert_close(replayed.state(), plain.state(), rtol=0, atol=1e-5)
    for ours, own in zip(replayed.rounds, plain.rounds):
        scores = {name: value for name, value in own.values.items() if "accuracy" in name}
        assert {name: ours.values[name] for name in scores} == pytest.approx(scores, abs=1e-5, nan_ok=True)


@pytest.mark.parametrize(
    "name", ["fedavg", "scaffold", "ditto", "ifca", "fednova", "apfl", "subfedavg_un", Scheduled()]
)
@pytest.mark.parametrize("clients", [1, 8])
def test_rounds_that_are_replayed_are_those_that_are_not(digits, monkeypatch, name, clients) -> None:
    """With rounded shapes, on tensors of the CPU; the learning rate decays."""
    federation = images(digits, SIZES if clients == 8 else (12,) * 8)
    settings: dict[str, Any] = {"training": {"lr_decay": 0.8}, "participation": clients / 8}
    check_replays(monkeypatch, name, federation, rounds=6 if clients == 8 else 14, **settings)


@pytest.mark.parametrize("mixing", ["model", "layer"])
def test_a_phase_is_another_call_and_draws_are_inputs(digits, monkeypatch, mixing) -> None:
    """Five rounds before SuPerFed mixes, five of mixing; of each kind, calls from the third on are replayed.

    The first of mixing is of a third kind, as all clients still keep the same `mixed`.
    """
    method = build_method("superfed", {"mixing": mixing, "start": 0.5})
    check_replays(monkeypatch, method, images(digits, (12,) * 8), rounds=10)
    assert [made.replays for made in Recorded.made] == [3, 2]
    draws = Recorded.made[1].inputs["schedule batches/step/draws"]
    assert draws.shape == (8, 2, 1 if mixing == "model" else 2) and len(draws.unique()) == draws.numel()


@pytest.mark.parametrize(
    "training",
    [
        {"epochs": 4, "batch_size": 4, "curriculum": {"score": "both"}},
        {
            "epochs": 4,
            "batch_size": 4,
            "curriculum": {"score": "expert", "expert": "x", "mode": "lazy_epoch"},
        },
        {"batch_size": 4, "augment": "flip_crop", "objective": {"name": "both", "teacher": "large"}},
        {"batch_size": 4, "augment": "flip_crop", "adaptation": {"name": "maml", "steps": 2}},
        {"batch_size": 8, "adaptation": {"name": "proto"}},
    ],
    ids=["losses", "expert", "objective", "maml", "proto"],
)
def test_so_are_those_with_a_curriculum_a_teacher_or_an_adaptation(digits, monkeypatch, training) -> None:
    federation = images(digits, (12,) * 8)
    teacher = FlatModel(partial(build, "mlp", digits.input_shape, 10, hidden=(12, 8)))
    losses = torch.rand(len(digits.y_train), generator=torch.Generator().manual_seed(0))
    federation = replace(
        federation, inputs={"teacher": Teacher(teacher, 3 * teacher.init(1)), "expert": losses}
    )
    check_replays(monkeypatch, "fedavg", federation, rounds=8, participation=0.5, training=training)


def test_every_adaptation_is_replayed_as_itself(digits, monkeypatch) -> None:
    """The same function evaluates them all, with other settings."""
    adapt = [{"name": "proto"}, {"name": "maml", "lr": 0.5, "steps": 2}]
    federation, evaluated = images(digits, (12,) * 8), {"adapt": adapt, "evaluate_every": 1}
    check_replays(monkeypatch, "fedavg", federation, rounds=6, training={}, **evaluated)


def steps(adaptation: Adaptation) -> list[Any]:
    """Functions with one name, of two computations."""
    made: list[Any] = []
    for model in (lambda client: adaptation.adapted(client, client.w), lambda client: client.fit(client.w)):
        made.append(model)
    return made


def test_steps_differ_by_their_code_and_by_what_they_close_over(digits) -> None:
    job, shard = Job(images(digits), FedAvg(), LocalTraining(), seed=0), Shard(1, [], [], [], [])
    again = replace(job, method=FedAvg(), seed=1)

    def about(step: Any, job: Job = job) -> Any:
        return cohort._about(job, shard, step, "")

    pairs = [steps(Adaptation(name="maml", steps=count)) for count in (1, 2)]
    assert len({about(step) for pair in pairs for step in pair}) == 3  # `fit` does not adapt
    assert about(steps(Adaptation(name="maml"))[0]) == about(pairs[0][0])
    other = replace(job, method=Scheduled())
    assert about(job.method.local) == about(again.method.local, again) != about(other.method.local, other)
    tensor = torch.ones(1)
    with pytest.raises(TypeError, match=r"closes over tensor; accepted: job, method, settings, numbers"):
        about(lambda client: tensor)


def test_shapes_are_rounded_to_few() -> None:
    assert [rounded(n) for n in (1, 2, 3, 4, 5, 6, 7, 9, 13, 100)] == [1, 2, 3, 4, 6, 6, 8, 12, 16, 128]
    assert all(n <= rounded(n) <= 1.5 * n for n in range(1, 2000))
    assert len({rounded(n) for n in range(1, 2000)}) == 22


@pytest.mark.parametrize(("wanted", "clients"), [(None, cohort.FIRST_WIDTH), (3, 3)])
def test_calls_are_as_wide_as_set_until_memory_runs_out(digits, wanted, clients) -> None:
    federation = images(digits)
    job = Job(federation, build_method("fedavg"), LocalTraining(), seed=0, width=wanted)
    first, other = (Shard(1, [], [], [], [], phase=phase) for phase in ("first", "other"))
    assert cohort.width(job, federation, first, job.method.local, "") == clients
    cohort.limit_width(job, federation, first, job.method.local, "", 2)
    assert cohort.width(job, federation, first, job.method.local, "") == 2
    assert (
        cohort.width(job, federation, other, job.method.local, "") == clients
    )  # another phase is another call


def test_the_width_changes_in_powers_of_two() -> None:
    gib = 1 << 30
    free = {1: 1, 3: 1, 5: 2, 10: 4, 39: 8, 40: 16, 41: 16, 10_000: 256}
    assert {n: cohort.max_width_for_memory(n * gib, gib) for n in free} == free
    assert cohort.max_width_for_memory(0, gib) == 1 and cohort.max_width_for_memory(gib, 0) == 256


class Cuda:
    """A device that is not there: streams, pools and graphs, with what goes wrong in real ones.

    A capture runs on its own stream, which stays current if the capture fails (torch before 2.15). A pool is
    forgotten with its last graph, after which its handle must not be used.
    """

    def __init__(self, patch: pytest.MonkeyPatch, error: Exception | None = None) -> None:
        self.error, self.stream, self.recording, self.handles = error, "default", False, 0
        self.graphs: dict[int, weakref.WeakSet[Any]] = {}
        cuda = self

        class Graph:
            def replay(self) -> None: ...

        class Capture:
            def __init__(self, graph: Graph, pool: int, capture_error_mode: str) -> None:
                self.graph, self.pool = graph, pool

            def __enter__(self) -> None:
                assert not cuda.recording, "captures_underway.empty() INTERNAL ASSERT FAILED"
                known = cuda.graphs.setdefault(self.pool, weakref.WeakSet())
                assert known or not getattr(known, "used", False), "use_count > 0 INTERNAL ASSERT FAILED"
                cuda.stream, cuda.recording = "capture", True
                known.add(self.graph)
                known.used = True

            def __exit__(self, *error: object) -> None:
                if cuda.error is not None:
                    raise cuda.error
                cuda.stream, cuda.recording = "default", False

        def new_pool() -> int:
            self.handles += 1
            return self.handles

        for name, value in {
            "CUDAGraph": Graph,
            "graph": Capture,
            "graph_pool_handle": new_pool,
            "current_stream": lambda: self.stream,
            "set_stream": lambda stream: setattr(self, "stream", stream),
            "current_device": lambda: 0,
            "synchronize": lambda: None,
        }.items():
            patch.setattr(torch.cuda, name, value)

        def end(device: int, pool: int) -> None:
            self.recording = False

        patch.setattr(torch._C, "_cuda_endAllocateToPool", end, raising=False)


def captured(cohorts: Cohorts, about: str) -> bool:
    """Whether the second call of a new kind was captured."""
    for _ in range(2):
        cohorts.run(call(torch.ones(2), about=about))
    return any(key[1] == (about,) and isinstance(k.run, graphs.Captured) for key, k in cohorts.kinds.items())


def test_graphs_share_a_pool_until_the_last_of_them_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graphs, "GRAPHS", 2)
    device, cohorts = Cuda(monkeypatch), Cohorts()
    assert all(captured(cohorts, about) for about in "abcd") and device.handles == 1
    cohorts.kinds.clear()
    assert captured(cohorts, "e") and device.handles == 2
    assert captured(Cohorts(), "f") and device.handles == 3


@pytest.mark.parametrize("error", [RuntimeError("not permitted"), torch.OutOfMemoryError("out of memory")])
def test_a_failed_capture_stops_only_its_kind(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    """Stream and allocator are restored, and the next graph gets a new pool, which a GPU needs."""
    device, cohorts = Cuda(monkeypatch), Cohorts()
    assert captured(cohorts, "first") and device.handles == 1
    device.error = error
    with pytest.warns(UserWarning, match=rf"large: cohorts run without a CUDA graph \({error}\)$"):
        assert not captured(cohorts, "large")
    assert (device.stream, device.recording) == ("default", False)
    device.error = None
    assert captured(cohorts, "small") and device.handles == 2


def test_a_call_of_too_many_operations_is_not_captured(monkeypatch: pytest.MonkeyPatch) -> None:
    cohorts = Cohorts(Recorded)
    monkeypatch.setattr(graphs, "MOST_OPERATIONS", 0)
    with pytest.warns(UserWarning, match=r"double: .*without a CUDA graph \(2 operations; at most 0 fit one"):
        for _ in range(4):
            cohorts.run(call(torch.ones(2)))
    assert isinstance(next(iter(cohorts.kinds.values())).run, type(Call.__call__))


@pytest.mark.parametrize(
    ("replayed", "same"),
    [
        ([[1.0, 2.0], [3.0, 4.0]], True),
        ([[1.0, 2.0], [3.0, 4.0003]], True),
        ([[1.0, 2.0], [3.0, 4.001]], False),
        ([[1.0, float("nan")], [3.0, 4.0]], False),
    ],
)
def test_replays_are_compared_with_the_largest_entry(replayed: list, same: bool) -> None:
    outputs = {"w": torch.tensor([[1.0, 2.0], [3.0, 4.0]])}
    assert graphs.agree({"w": torch.tensor(replayed)}, outputs) is same
    both = {"w": torch.tensor([[float("nan"), 1.0]])}
    assert graphs.agree(both, both)
    empty = {"head": torch.ones(2, 0)}
    assert graphs.agree(empty, empty) and not graphs.agree(empty, {"head": torch.ones(3, 0)})
