"""What tests of methods and engine share: federations that can be computed by hand, and a tiny real one."""

import copy
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from fedflow.data import Dataset, Examples
from fedflow.errors import BadInput, FedflowError
from fedflow.local.client import Client, Update
from fedflow.local.fast.compiled import Gradient
from fedflow.local.local_training import LocalTraining
from fedflow.methods import METHODS, Method, build_method
from fedflow.methods.generative._generative import Classifier, ImageMethod
from fedflow.methods.method import Round
from fedflow.methods.protocols import Asynchronous, Cyclic, Generative, Leveled, Noisy
from fedflow.models import build
from fedflow.models.channels import Channels
from fedflow.models.flat import FlatModel, Part
from fedflow.partition import Partition
from fedflow.seeding import generator
from fedflow.simulation import worker
from fedflow.simulation.cohort import cohort_call
from fedflow.simulation.executors import Executor
from fedflow.simulation.extensions.further_scores import Newcomers
from fedflow.simulation.federation import Federation
from fedflow.simulation.graphs import About, Call
from fedflow.simulation.job import Job, Shard
from fedflow.simulation.levels import level, network
from fedflow.simulation.loop import Simulation
from fedflow.simulation.outcome import Outcome, RoundReport
from fedflow.simulation.settings import RunSettings
from fedflow.tracking.record import RunRecord, open_record

EVERYONE = {"participation": 1.0, "fine_tune": False, "evaluate_every": 1000}
TWO_EPOCHS = (
    "subfedavg_hy",
    "subfedavg_un",
)  # refuse a single epoch: they compare masks after the first and the last
# Networks of methods that refuse a dense one: for small images, such that vmapped cohorts can share them.
NETWORKS: dict[str, tuple[str, dict[str, Any]]] = {
    **{
        name: ("cnn_exit", {"filters": [8, 8, 8]})
        for name, method in METHODS.items()
        if issubclass(method, Leveled)
    },
    **{name: ("cnn_energy", {}) for name, method in METHODS.items() if issubclass(method, Generative)},
    "fedbn": ("cnn", {"filters": [4, 4], "batch_norm": True, "kernel": 3, "padding": 1, "hidden": [16]}),
    "subfedavg_hy": ("cnn", {"filters": [4, 4], "groups": 4, "kernel": 3, "padding": 1, "hidden": [16]}),
}
DENSE: dict[str, dict[str, Any]] = {  # settings in which methods that prune do not: all entries travel
    "subfedavg_hy": {"target": 0, "channel_rate": 0},
    "subfedavg_un": {"target": 0},
}
SIZES = (1, 7, 12, 20, 33, 13, 5, 40)  # of the clients of `images`; the first has a single sample


class Quadratic(nn.Module):
    """F(w) = a / 2 (w - b)^2 of a sample (a, b)."""

    def __init__(self, start: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.tensor([start], dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        return x[:, 0] / 2 * (self.weight - x[:, 1]).square()

    def losses(self, outputs: Tensor, y: Tensor) -> Tensor:
        return outputs

    def hits(self, outputs: Tensor, y: Tensor) -> Tensor:
        return outputs < 1


class Product(nn.Module):
    """F(u, v) = 1 / 2 (u v - c)^2 of a sample (c,); body u, head v."""

    head_patterns = ("v",)

    def __init__(self) -> None:
        super().__init__()
        self.u = nn.Parameter(torch.tensor([1.0]))
        self.v = nn.Parameter(torch.tensor([0.5]))

    def forward(self, x: Tensor) -> Tensor:
        return (self.u * self.v - x[:, 0]).square() / 2

    losses, hits = Quadratic.losses, Quadratic.hits


class Normed(nn.Sequential):
    """A network for the digits with running statistics, of BatchNorm."""

    head_patterns, channels = ("4.*",), (Channels("1", "2", "4"),)

    def __init__(self) -> None:
        super().__init__(nn.Flatten(), nn.Linear(64, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 10))


def near(value: Any, tolerance: float = 1e-9) -> Any:
    """These numbers, or rows of numbers, for comparisons with an absolute tolerance."""
    if isinstance(value, list) and any(isinstance(row, list) for row in value):
        return [near(row, tolerance) for row in value]
    return pytest.approx(value, rel=0, abs=tolerance)


def consecutive(sizes: Sequence[int]) -> Partition:
    """Client k holds the next ``sizes[k]`` samples, for training and for testing."""
    rows = np.split(np.arange(sum(sizes)), np.cumsum(sizes)[:-1])
    return Partition.from_lists(rows, rows, [np.array([k]) for k in range(len(sizes))])


def by_hand(factory: Callable[[], nn.Module], samples: Sequence[Any], sizes: Sequence[int]) -> Federation:
    """Clients with ``sizes[k]`` equal samples each, in float64."""
    x = torch.tensor(samples, dtype=torch.float64).repeat_interleave(torch.tensor(sizes), 0)
    examples = Examples(x, torch.zeros(len(x), dtype=torch.float64))
    return Federation(FlatModel(factory, dtype=torch.float64), examples, examples, consecutive(sizes))


def quadratics(
    curves: Sequence[Sequence[float]] = ((1, 1), (2, -1)), sizes: Sequence[int] = (10, 30), start: float = 0.5
) -> Federation:
    """Clients F_k(w) = a_k / 2 (w - b_k)^2 with ``curves`` (a_k, b_k); by default the test-bed T1."""
    return by_hand(partial(Quadratic, start), curves, sizes)


def products() -> Federation:
    """The test-bed T2: F_k(u, v) = 1 / 2 (u v - c_k)^2, c = (1, 2), from u = 1, v = 0.5."""
    return by_hand(Product, ((1,), (2,)), (10, 30))


def images(
    dataset: Dataset,
    sizes: Sequence[int] = SIZES,
    network: str = "mlp",
    dtype: torch.dtype = torch.float32,
    order: Sequence[int] | None = None,
    **options: Any,
) -> Federation:
    """Real images, sorted by label before they are dealt; every client is tested on the labels that it has.

    ``order`` renumbers the clients. The server has 60 test images. The inputs are normalized
    floats, so that a test can spoil them. Clients select models by two of the samples that they train on.
    """
    if network == "mlp":
        options = {"hidden": (16,)} | options
    labels, test_labels = dataset.y_train.numpy(), dataset.y_test.numpy()
    spread = np.argsort(labels, kind="stable")[:: len(labels) // sum(sizes)][: sum(sizes)]
    train = [np.sort(rows) for rows in np.split(spread, np.cumsum(sizes)[:-1])]
    train = train if order is None else [train[k] for k in order]
    pools = [np.flatnonzero(test_labels == label) for label in range(10)]
    everything = torch.arange(len(labels)), torch.arange(len(test_labels))
    return Federation(
        FlatModel(partial(build, network, dataset.input_shape, 10, **options), dtype=dtype),
        Examples(dataset.train.inputs(everything[0]), dataset.y_train),
        Examples(dataset.test.inputs(everything[1]), dataset.y_test),
        Partition.from_lists(
            train, pools, [np.unique(labels[rows]) for rows in train], [rows[:2] for rows in train]
        ),
        Examples(dataset.test.inputs(everything[1][:60]), dataset.y_test[:60]),
    )


def suited(method: str, federation: Federation) -> Federation:
    """The same images with a network that the method can train; with pixels in [0, 1], if it makes images."""
    if method not in NETWORKS:
        return federation
    if issubclass(METHODS[method], Generative):
        federation = with_pixels(federation)
    network, options = NETWORKS[method]
    factory = partial(build, network, federation.train.x.shape[1:], 10, **options)
    return replace(federation, model=FlatModel(factory, dtype=federation.model.dtype))


def with_pixels(federation: Federation) -> Federation:
    """The same with inputs in [0, 1], and shuffled, so that any clients together hold all labels."""
    low, high = federation.train.x.min(), federation.train.x.max()
    order = torch.randperm(len(federation.train), generator=torch.Generator().manual_seed(0))
    federation = replace(federation, train=Examples(federation.train.x[order], federation.train.y[order]))
    named = {
        name: Examples(((own.x - low) / (high - low)).clamp(0, 1), own.y)
        for name in ("train", "test", "public")
        if (own := getattr(federation, name)) is not None
    }
    return replace(federation, **named)


def with_newcomers(federation: Federation, newcomers: int) -> Federation:
    """The same, whose last ``newcomers`` clients join after the last round."""
    return replace(federation, partition=replace(federation.partition, newcomers=newcomers))


def with_cohorts(method: Method, cohorts: Sequence[Sequence[int]]) -> Method:
    """The same method with the given cohorts, one per round."""
    plans = iter(cohorts)

    def plan(self: Method, now: Round, server: Any, chances: np.ndarray, size: int) -> tuple[np.ndarray, Any]:
        return np.array(next(plans)), server

    hooks: dict[str, Any] = {"plan": plan}
    if isinstance(method, Cyclic):
        hooks["cycles"] = lambda self: 1
    if isinstance(method, Asynchronous):
        hooks["clients_in_flight"] = lambda self, size: 0
    return type("Planned", (type(method),), hooks)(**method.as_dict())


def failing(name: str, *rounds: int, **hyper: Any) -> Method:
    """The method, whose clients all fail in these rounds."""

    class Failing(METHODS[name]):  # type: ignore[name-defined, misc]
        def local(self, client: Client) -> Update:
            if int(client.t) in rounds:
                raise ValueError("out of order")
            return super().local(client)

    return Failing(**hyper)


class Workers:
    """An executor of ``workers`` workers that finish in reversed order."""

    def __init__(self, workers: int) -> None:
        self.workers = workers

    def map(self, work: Callable, job: Job, shards: Sequence[Any], title: str) -> list[Any]:
        return [work(job, shard) for shard in reversed(shards)][::-1]


@dataclass
class Ran:
    """A run: its rounds, and after each of them the server and what every client keeps."""

    simulation: Simulation
    rounds: list[RoundReport] = field(default_factory=list)
    servers: list[dict[str, Tensor]] = field(default_factory=list)
    clients: list[dict[str, list[Tensor]]] = field(default_factory=list)

    def server(self, name: str) -> list[Any]:
        """Numbers of one server vector, after every round."""
        return [server[name].squeeze().tolist() for server in self.servers]

    def values(self, name: str) -> list[Any]:
        """One metric of every round; None where it was not measured."""
        return [report.values.get(name) for report in self.rounds]

    def kept(self, name: str) -> list[Any]:
        """Numbers of one client vector for all clients, after every round."""
        return [[row.squeeze().tolist() for row in kept[name]] for kept in self.clients]

    def outcome(self) -> Outcome:
        return self.simulation.outcome()

    def state(self) -> dict[str, Tensor]:
        """Every vector at the end: the server's and [N, n] of the clients', shorter ones filled with 0."""
        clients = {f"clients/{name}": pad_sequence(rows, True) for name, rows in self.clients[-1].items()}
        return {f"server/{name}": w for name, w in self.servers[-1].items()} | clients


def reports(ran: Ran) -> list[dict[str, Any]]:
    """The reports of the rounds, without wall-clock times; series as text, in which NaN equals NaN."""
    same = {"seconds": 0, "replayed": False}
    return [asdict(r) | same | {"series": repr(r.series)} for r in ran.rounds]


def prepare_run(
    method: str | Method,
    federation: Federation,
    hyper: Mapping[str, Any] | None = None,
    *,
    cohort: str = "loop",
    training: Mapping[str, Any] | None = None,
    seed: int = 0,
    executor: Executor | None = None,
    checkpoints: Path | None = None,
    **settings: Any,
) -> Simulation:
    """A simulation that has not started: full participation, two full-gradient steps of 0.1 a round.

    Methods that refuse a single epoch (`TWO_EPOCHS`) get two. Classifiers of generated images train briefly.
    """
    built = build_method(method, hyper) if isinstance(method, str) else method
    if (
        isinstance(built, ImageMethod)
        and built.classifier == Classifier()
        and "classifier" not in (hyper or {})
    ):
        built = replace(built, classifier=Classifier(epochs=2))
    given = {"epochs": 2, "batch_size": 0, "lr": 0.1, **(training or {})}
    if built.name in TWO_EPOCHS and given["epochs"] == 1 and "steps" not in given:
        given["epochs"] = 2
    local = LocalTraining.parse(given)
    run_settings = RunSettings.parse({"rounds": 3, **EVERYONE, **settings})
    return Simulation(Job(federation, built, local, seed, cohort), run_settings, executor, checkpoints)


def follow(simulation: Simulation) -> Ran:
    """Run it to the end."""
    ran, store = Ran(simulation), simulation.state.store
    for report in simulation.rounds():
        ran.rounds.append(report)
        ran.servers.append(simulation.state.server.tensors())
        rows = [store.get(k) for k in range(simulation.clients)]
        ran.clients.append({name: [row[name] for row in rows] for name in store.first})
    return ran


def a_round(federation: Federation, t: int = 1, rounds: int = 3, seed: int = 0) -> Round:
    """Round t of a run, as hooks get it."""
    sizes = federation.partition.sizes[: federation.partition.training_clients]
    return Round(t, rounds, 0.1, sizes, federation.model, federation.public, partial(generator, seed, "test"))


def run(method: str | Method, federation: Federation, *args: Any, **kwargs: Any) -> Ran:
    """`prepare_run`, then `follow`."""
    return follow(prepare_run(method, federation, *args, **kwargs))


def one_client(
    federation: Federation,
    k: int = 0,
    training: LocalTraining | None = None,
    streams: Sequence[str] = ("batches",),
    compiled: Gradient | None = None,
    **received: Tensor,
) -> Client:
    """Client k in round 1, as the loop sees it; by default with full-gradient steps of 0.1."""
    training = training or LocalTraining(batch_size=0, lr=0.1)
    job = Job(federation, build_method("fedavg"), training, seed=0)
    places = {name: place for place, name in enumerate(received)}
    shard = Shard(1, [k], list(received.values()), [places], [{}])
    return worker.client_of(job, federation, shard, 0, dict.fromkeys(streams, training.epochs), compiled)


def same(one: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> bool:
    """Whether two sets of vectors are equal, bit for bit."""
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


@contextmanager
def refused(message: str, error: type[FedflowError] = BadInput) -> Iterator[None]:
    """What runs inside ends in an error of one line that matches ``message``, a regular expression."""
    with pytest.raises(error, match=message) as caught:
        yield
    assert "\n" not in str(caught.value)


def forbid_fallback(patch: pytest.MonkeyPatch) -> None:
    """From here on, a vmapped cohort that falls back to the loop is an error.

    Except with methods that train clients ``alone``, as their noise is keyed by client: for these, loop and
    vmap are the same by design.
    """
    solve_one = worker._train_one

    def fell_back(job: Job, *rest: Any) -> Any:
        if job.cohort == "loop" or Noisy.of(job.method).alone:  # as all introductions are
            return solve_one(job, *rest)
        raise AssertionError("the vmapped cohort fell back to the loop")

    patch.setattr(worker, "_train_one", fell_back)


def alike(
    start: Callable[..., Simulation],
    folder: Path,
    patch: pytest.MonkeyPatch,
    every: int = 2,
    tolerance: float = 1e-8,
) -> Ran:
    """The run in the loop, after a check that others end as it does.

    Three workers and a run that resumes after ``every`` rounds give the same bits, vmapped cohorts the same
    numbers up to ``tolerance``.
    """
    loop = follow(start(checkpoints=folder / "straight"))
    shared = follow(start(executor=Workers(3)))
    assert same(loop.state(), shared.state()) and reports(loop) == reports(shared)
    resuming = partial(start, checkpoints=folder / "resumed", checkpoint_every=every)
    rounds = resuming().rounds()
    assert [next(rounds).round for _ in range(every)] == [*range(1, every + 1)]
    again = follow(resuming())
    assert [report.replayed for report in again.rounds] == [n < every for n in range(len(loop.rounds))]
    assert same(loop.state(), again.state()) and reports(loop) == reports(again)
    forbid_fallback(patch)
    vmapped = follow(start(cohort="vmap"))
    torch.testing.assert_close(vmapped.state(), loop.state(), rtol=0, atol=tolerance)
    return loop


def way(cohort: str, patch: pytest.MonkeyPatch) -> str:
    """The value of `Job.cohort` for the rest of a test, in which "vmap" must not fall back to the loop."""
    if cohort == "vmap":
        forbid_fallback(patch)
    return cohort


class OnMeta(FlatModel):
    """A network whose tensors have shapes but no values: operations that no CUDA graph can hold fail."""

    def __init__(self, model: FlatModel) -> None:
        super().__init__(model.factory, device="meta", dtype=model.dtype)
        self._with_values = model

    def variant(self, **options: Any) -> FlatModel:
        key = json.dumps(options)
        if key not in self._variants:
            self._variants[key] = OnMeta(self._with_values.variant(**options))
        return self._variants[key]

    def part(self, *patterns: str) -> Part:
        if patterns not in self._parts:
            part = self._parts[patterns] = copy.copy(self._with_values.part(*patterns))
            vars(part).update({name: tensor.to("meta") for name, tensor in vars(part).items()})
        return self._parts[patterns]


class OnOneDevice(TorchDispatchMode):
    """Within this context, an operation on the device must not read tensors or lists of the host.

    A graph would read them only once, or not at all. Only scalars are arguments of a kernel. With ``copies``,
    tensors of the host may be copied to the device: before a graph, say.
    """

    def __init__(self, copies: bool = False) -> None:
        super().__init__()
        self.copies = copies

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        results = function(*args, **(kwargs or {}))
        made, given = (
            [each for each in tree_leaves(tensors) if isinstance(each, Tensor)]
            for tensors in (results, (args, kwargs))
        )
        copies = function in (torch.ops.aten._to_copy.default, torch.ops.aten.copy_.default)
        host = any(each.is_cpu and (each.ndim or copies) for each in given)
        if self.copies and copies:
            return results
        if any(each.is_meta for each in made) and (host or function is torch.ops.aten.lift_fresh.default):
            raise AssertionError(f"{function} reads the host: a tensor on it, or a list")
        return results


def run_without_values(
    name: str | Method, federation: Federation, patch: pytest.MonkeyPatch, **settings: Any
) -> None:
    """Run cohorts, then the last call of every computation again on tensors without values.

    They read nothing of the host.
    """
    calls: dict[About, tuple] = {}

    def spy(*about: Any, **more: Any) -> Call:
        call = cohort_call(*about, **more)
        calls[call.about] = about
        return call

    patch.setattr("fedflow.simulation.cohort.cohort_call", spy)
    run(name, federation, cohort="vmap", **settings)
    assert calls
    train = federation.train.to(torch.device("meta"))
    nowhere = replace(federation, model=OnMeta(federation.model), train=train)
    for job, _, shard, places, step, streams in calls.values():
        empty = replace(shard, vectors=[w.to("meta") for w in shard.vectors])
        with OnOneDevice(copies=True):
            call = cohort_call(job, nowhere, empty, places, step, streams, round_shapes=True)
        own = network(job.method, nowhere, level(job.method, nowhere, shard.clients[places[0]]))
        with own.for_cohorts():
            call()  # on a GPU too, modules and parts are built by the calls before the capture
            with OnOneDevice():
                outputs = call()
        assert {tensor.device.type for tensor in outputs.values()} == {"meta"}


open_run = partial(open_record, RunRecord)


def finish(record: Any, outcome: Any, folder: Path | None = None, card: Any = None) -> None:
    """Record the end of a federated run, as its driver does."""
    cluster = outcome.scores.cluster.tolist()
    record.end(outcome.metrics, int(outcome.metrics["rounds"]), folder, card, outcome.models, cluster)


def last_server(ran: Ran) -> Any:
    """The server's state after newcomers were onboarded; the last one if there are none."""
    extensions = {type(each): each for each in ran.simulation.extensions}
    found = getattr(extensions.get(Newcomers), "server", None)
    return ran.simulation.state.server if found is None else found
