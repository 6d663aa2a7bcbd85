"""The round loop: plan, broadcast, train, aggregate, evaluate, checkpoint. No Prefect, no MLflow."""

import hashlib
import json
import shutil
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from fedflow.errors import BadInput, FedflowError, RoundFailed
from fedflow.identity import code_digest
from fedflow.methods.base import Dissimilarity, Method, Server
from fedflow.metrics.clustering import agreement
from fedflow.metrics.distribution import summarise
from fedflow.seeding import generator, torch_seed
from fedflow.settings import Settings, option
from fedflow.simulation.checkpoint import FILE, load_checkpoint, save_checkpoint
from fedflow.simulation.clients import ClientStore
from fedflow.simulation.evaluation import EvaluationShard, Scores, evaluate_shard, merged
from fedflow.simulation.events import Work, first_done
from fedflow.simulation.executors import Executor, Inline, balanced
from fedflow.simulation.gathered import Gathered
from fedflow.simulation.history import History
from fedflow.simulation.job import Job, OnboardingShard, Shard, Trained
from fedflow.simulation.outcome import PERSONAL_BYTES, PERSONAL_CLIENTS, Outcome, Round
from fedflow.simulation.state import State
from fedflow.simulation.timing import LOSS, Timing
from fedflow.simulation.worker import onboard_shard, train_shard

CODE = ("seeding.py", "data/examples.py", "models", "heterogeneity", "local", "methods", "simulation")
PERSONAL_EVAL_CHUNK = 1 << 26  # values of models that clients have to themselves, scored at a time: 256 MiB


class RunSettings(Settings):
    """How long a run is, who takes part, and what is measured."""

    section = "run"
    rounds: int = option(20, "rounds", symbol="T", ge=1)
    participation: float = option(
        0.1, "share of the clients in a round; m = max(1, floor(R N))", symbol="R", gt=0, le=1
    )
    sampling: str = option(
        "uniform", "how cohorts are drawn: uniformly, or in proportion to n_k, as goes with uniform weights",
        choices=("uniform", "proportional"),
    )  # fmt: skip
    min_cohort: int = option(1, "stop with an error when fewer clients of a round succeed", ge=1)
    evaluate_every: int = option(5, "rounds between evaluations; the last round is always evaluated", ge=1)
    evaluate_clients: int | None = option(
        None, "score so many random clients, the same in every round and at the end; null: all", ge=1
    )
    fine_tune: bool = option(True, "at the end, also score every client after one more local training")
    keep_trained: bool = option(False, "keep every client's last trained model, and score it at the end")
    target_accuracy: float | None = option(
        None, "report rounds and bytes until this local accuracy", gt=0, le=1
    )
    checkpoint_every: int = option(5, "rounds between checkpoints", ge=1)
    timing: Timing = option(factory=Timing, doc="how fast clients are, in simulated time")


class Simulation:
    """One federated run. Iterate over `rounds`, then call `outcome`.

    Checkpoints go to ``checkpoints/<fingerprint>``; a run that finds one there goes on from it. Newcomers
    of the partition take no part, and no number is about them but their own, in the `outcome`.
    Raises `FedflowError` when fewer than ``min_cohort`` clients of a round succeed.
    """

    def __init__(
        self,
        job: Job,
        settings: RunSettings,
        executor: Executor | None = None,
        checkpoints: Path | None = None,
    ) -> None:
        self.job = replace(
            job, rounds=settings.rounds, keep_trained=settings.keep_trained, timing=settings.timing
        )
        self.settings = settings
        job.method.check(settings.rounds)
        self.executor: Executor = executor or Inline()
        self.federation = job.federation.open()
        partition = self.federation.partition
        self.clients = partition.participants
        settings.timing.need(len(partition.sizes))
        if job.method.selects() and partition.selection_offsets is None:
            raise BadInput(
                "partition.selection", 0, f"a share > 0, by which clients of {job.method.name} choose; "
                "or set method.select_on to train"
            )  # fmt: skip
        self.sizes = partition.sizes[: self.clients]
        self.groups = None if partition.groups is None else partition.groups[: self.clients]
        self.cohort_size = max(1, int(settings.participation * self.clients + 1e-9))
        self._check_cohorts()
        self.chances = self.sizes if settings.sampling == "proportional" else np.ones(self.clients)
        self.folder = checkpoints / self.fingerprint if checkpoints else None
        self._times: dict[int, np.ndarray] = {}  # of a download, an epoch and an upload, by client

    @cached_property
    def scored(self) -> Sequence[int]:
        """The clients that evaluations are about: all, or a sample that is the same for all methods."""
        size = self.settings.evaluate_clients
        if size is None or size >= self.clients:
            return range(self.clients)
        rng = generator(self.job.seed, "evaluated clients")
        return sorted(rng.choice(self.clients, size=size, replace=False).tolist())

    @cached_property
    def state(self) -> State:
        """The state to go on from: of the checkpoint, if there is one."""
        return self._start()

    def rounds(self) -> Iterator[Round]:
        """Every round in order; after a resume the earlier ones are told again first (``replayed``)."""
        yield from (replace(past, replayed=True) for past in self.state.history)
        if self.state.introduced is None:
            self.state.introduced = self._introduce(range(self.clients))
            if self.job.method.onboarding_phases():
                self._checkpoint()
        for number in range(len(self.state.history) + 1, self.settings.rounds + 1):
            started = time.perf_counter()
            report = self._round(number)
            last = number == self.settings.rounds
            if last or number % self.settings.evaluate_every == 0:
                self._evaluate(report)
            self.state.history.append(report)
            report.seconds = time.perf_counter() - started
            if last or number % self.settings.checkpoint_every == 0:
                self._checkpoint()
            report.seconds = time.perf_counter() - started
            yield report

    def outcome(self) -> Outcome:
        """Final scores of every client, on its own and the complete test set, and the models behind them."""
        settings = self.settings
        what = {"full": True, "tune": settings.fine_tune, "trained": settings.keep_trained, "models": True}
        scores = self._scores("final evaluation", settings.rounds, self.scored, **what)
        compared = self._compared()
        newcomers = self._welcome()
        last = self.state.history[-1]
        local = _known(summarise(scores.local_accuracy, scores.test_samples))
        reached = next(
            (r for r in self.state.history if _at_least(r.local_accuracy, settings.target_accuracy)), None
        )
        metrics: dict[str, Any] = {
            "rounds": last.round,
            "clients": self.clients,
            "participation": settings.participation,
            "parameters": self.federation.model.size,
            "global_accuracy": _mean_or_none(scores.global_accuracy),
            "local_accuracy": local["mean"],
            "tuned_accuracy": _mean_or_none(scores.tuned_accuracy),
            "local_final_accuracy": _mean_or_none(scores.trained_accuracy),
            **{f"local_{name}": value for name, value in local.items() if name != "mean"},
            "loss": _mean_or_none(scores.local_loss),
            "bytes_down": last.bytes_down,
            "bytes_up": last.bytes_up,
            **self._introduction_traffic(),
            "target_accuracy": settings.target_accuracy,
            "rounds_to_target": reached.round if reached else None,
            "bytes_to_target": reached.bytes_down + reached.bytes_up if reached else None,
            "clock": last.clock,
            "clock_to_target": reached.clock if reached else None,
            "clusters": len(np.unique(scores.cluster)),
            **self._agreement(scores),
            "failed_clients": sum(len(r.failed) for r in self.state.history),
        }
        if newcomers is not None:
            metrics["newcomers"] = len(newcomers.clients)
            metrics["newcomer_accuracy"] = _mean_or_none(newcomers.local_accuracy)
            metrics["newcomer_tuned_accuracy"] = _mean_or_none(newcomers.tuned_accuracy)
        if len(scores.clients) < self.clients:
            metrics["evaluated_clients"] = len(scores.clients)
        owner = {
            "global": np.zeros(len(scores.clients), dtype=int),
            "cluster": scores.cluster,
            "personal": np.array(scores.clients),
        }
        served = zip(owner[self.job.method.serves].tolist(), scores.model.tolist())
        models = {i: scores.models[at] for i, at in served if at >= 0}
        if self.job.method.serves == "personal":
            models = {i: models[i] for i in sorted(models)[: self._recorded]}
        return Outcome(
            scores.among(self.federation.partition, self.clients), self.state.participations, metrics, models,
            newcomers, compared, self.job.method.stable_cluster_ids,
        )  # fmt: skip

    def forget(self) -> None:
        """Delete the checkpoint: the run is finished and recorded."""
        if self.folder is not None:
            (self.folder / FILE).unlink(missing_ok=True)  # first: without the rows it must not be found
            shutil.rmtree(self.folder, ignore_errors=True)

    @cached_property
    def fingerprint(self) -> str:
        """Names the experiment: a checkpoint of another one is never taken up."""
        about = {
            "method": [self.job.method.name, self.job.method.as_dict()],
            "training": self.job.training.as_dict(),
            "run": {k: v for k, v in self.settings.as_dict().items() if k != "checkpoint_every"},
            "seed": self.job.seed,
            "partition": self.federation.partition.hash,
            "public": None if self.federation.public is None else self.federation.public.digest,
            "model": self.federation.model.architecture,
            "code": code_digest(*CODE),
            "compiled": bool(self.job.compiled),  # other machine code, other last bits
        }
        return hashlib.blake2b(
            json.dumps(about, sort_keys=True, default=str).encode(), digest_size=12
        ).hexdigest()

    def _check_cohorts(self) -> None:
        """Raise `BadInput` unless the method can have the cohorts that are asked for; warn of odd ones."""
        settings, method, training = self.settings, self.job.method, self.job.training
        if method.clients_in_flight(self.cohort_size):
            accepted = f"with {method.name}, whose clients come when they are done"
            if settings.sampling != "uniform":
                raise BadInput("run.sampling", settings.sampling, f"uniform {accepted}")
            if training.stragglers:
                raise BadInput("training.stragglers", training.stragglers, f"0 {accepted}")
        twice = settings.sampling == "proportional" and getattr(method, "weighting", "") == "samples"
        if twice and self.cohort_size < self.clients:
            asked = "run.sampling: proportional and weighting: samples"
            warnings.warn(f"{method.name}: {asked} both count a client's samples", stacklevel=3)

    def _start(self) -> State:
        model, method, seed = self.federation.model, self.job.method, self.job.seed

        def initial(i: int) -> Tensor:
            return model.init(torch_seed(seed, "initial model", i))

        first = method.client_state(model, initial(0))
        if self.settings.keep_trained:
            first["trained"] = initial(0)
        state = State(
            server=method.setup(model, initial),
            store=ClientStore(first, self.clients, self.folder),
            participations=np.zeros(self.clients, dtype=np.int64),
            assignment=np.full(self.clients, -1),
            history=History(self.folder),
        )
        saved = load_checkpoint(self.folder) if self.folder else None
        if saved is None or saved[1]["fingerprint"] != self.fingerprint:
            if self.federation.public is not None:
                state.server |= method.pretrain_server(self.federation.public, seed)
            return state
        state.unpack(*saved, model.device)
        return state

    def _checkpoint(self) -> None:
        if self.folder is None:
            return
        tensors, facts = self.state.packed()
        save_checkpoint(self.folder, tensors, facts | {"fingerprint": self.fingerprint})
        self.state.store.settle()

    def _introduce(self, clients: Sequence[int]) -> dict[str, int]:
        """Let the server meet clients before they take part; returns the bytes down and up."""
        method, traffic = self.job.method, {"down": 0, "up": 0}
        for phase in range(method.onboarding_phases()):
            rng = generator(self.job.seed, "turns", phase)
            for turn, asked in enumerate(method.onboarding_turns(rng, phase, self.state.server, clients)):
                down, up = self._ask(phase, turn, [int(k) for k in asked])
                traffic["down"] += down
                traffic["up"] += up
        return traffic

    def _ask(self, phase: int, turn: int, clients: list[int]) -> tuple[int, int]:
        """One turn of an introduction; returns the bytes down and up."""
        state, method = self.state, self.job.method
        invite = partial(method.onboarding_broadcast, phase)
        shards = [
            OnboardingShard(0, share, *self._messages(share, invite), step=phase)
            for share in balanced(clients, self.federation.partition.sizes, self.executor.workers)
        ]
        title = f"introduction {phase + 1} of {method.onboarding_phases()}"
        answers = self.executor.map(onboard_shard, self.job, shards, title)
        rng = generator(self.job.seed, "introduction", phase, *([turn] if turn else []))
        gathered = self._gathered(answers, rng)
        if gathered.failures:
            k, reason = gathered.failures[0]
            raise FedflowError(f"{title}: client {k} failed: {reason}")
        state.server = method.onboarding_aggregate(phase, state.server, gathered)
        for sent in gathered.sent:
            if sent.client < self.clients:
                state.store.put(sent.client, sent.keep)
        return _down(shards), sum(sent.traffic for sent in gathered.sent)

    def _introduction_traffic(self) -> dict[str, int]:
        """Bytes that are paid once, and not in every round; nothing where nobody is introduced."""
        if not self.job.method.onboarding_phases() or self.state.introduced is None:
            return {}
        return {f"introduction_bytes_{way}": count for way, count in self.state.introduced.items()}

    def _round(self, number: int) -> Round:
        state, method = self.state, self.job.method
        before = state.history[-1] if state.history else Round(0, [], 0.0, 0, 0)
        report = replace(
            before, round=number, cohort=[], failed={}, local_accuracy=None, local_std=None,
            local_worst10=None, global_accuracy=None, assignment=None, ari=None, nmi=None,
            clustering_error=None, idle=0.0, delay=0.0,
        )  # fmt: skip
        losses: list[float] = []
        for cycle in range(method.cycles(state.server)):
            losses += self._cycle(number, cycle, report)
        report.train_loss = float(np.mean(losses))
        return report

    def _cycle(self, number: int, cycle: int, report: Round) -> list[float]:
        """One step of the server, noted in the report; returns the training losses of its clients."""
        state, method = self.state, self.job.method
        works = self._works(number, cycle, report)
        cohort = sorted(works)
        shards = [
            Shard(
                number, clients, *self._messages(clients, lambda _, k: works[k].received),
                epochs=[works[k].epochs for k in clients], most=[works[k].most for k in clients],
            )
            for clients in balanced(cohort, self.sizes, self.executor.workers)
        ]  # fmt: skip
        results = self.executor.map(train_shard, self.job, shards, f"round {number} · train")
        gathered = self._gathered(results, generator(self.job.seed, "server", number, cycle))
        if len(gathered.sent) < self.settings.min_cohort:
            names = "; ".join(f"client {k}: {reason}" for k, reason in gathered.failures)
            raise RoundFailed(
                f"round {number}: {len(gathered.sent)} of {len(cohort)} clients succeeded, "
                f"run.min_cohort is {self.settings.min_cohort} ({names})"
            )
        state.server = method.aggregate(state.server, gathered)
        for sent in gathered.sent:
            state.store.put(sent.client, sent.keep)
            state.participations[sent.client] += 1
        report.cohort += cohort
        report.failed |= dict(gathered.failures)
        report.bytes_down += _down(shards)
        report.bytes_up += sum(sent.traffic for sent in gathered.sent)
        return [sent.train_loss for sent in gathered.sent]

    def _works(self, number: int, cycle: int, report: Round) -> dict[int, Work]:
        """What the clients of this cycle have done, and when: also noted in the report."""
        state, method, size = self.state, self.job.method, self.cohort_size
        rng = generator(self.job.seed, "cohort", number, *([cycle] if cycle else []))
        begin = partial(self._begin, number)
        slots = min(method.clients_in_flight(size), self.clients)
        if slots:
            done, state.busy = first_done(state.busy, report.clock, size, slots, self.clients, rng, begin)
        else:
            cohort = method.plan(rng, self.chances, size, state.server)
            late = self._stragglers(cohort, number, cycle)
            dropped = late if self.job.training.drop_stragglers else {}
            done = [begin(int(k), report.clock, late.get(k)) for k in cohort if k not in dropped]
        report.clock = max(work.ends for work in done)
        if not slots:
            report.idle += float(np.mean([report.clock - work.ends for work in done]))
        report.delay = float(np.mean([number - work.begun for work in done]))
        return {work.client: work for work in done}

    def _stragglers(self, cohort: np.ndarray, number: int, cycle: int) -> dict[int, int]:
        """The stragglers of a cohort, and the epochs that each has time for."""
        if not self.job.training.stragglers:
            return {}
        return self.job.training.late(cohort, generator(self.job.seed, "stragglers", number, cycle))

    def _begin(self, number: int, k: int, now: float, most: int | None = None) -> Work:
        """What client ``k`` receives and does from ``now`` on; a straggler trains ``most`` epochs at most."""
        server, method, job = self.state.server, self.job.method, self.job
        epochs = None
        if type(method).epochs is not Method.epochs:  # a generator costs more than all else here
            epochs = method.epochs(generator(job.seed, "epochs", number, k), server, k)
        streams, steps = method.streams(job.training), job.training.steps(int(self.sizes[k]), 1)
        usual = [usual if epochs is None else epochs for usual in streams.values()]
        total = sum(usual if most is None else [min(own, most) for own in usual])
        if k not in self._times or not job.timing.steady:
            self._times[k] = job.timing.times(job.seed, k, steps, number)
        down, epoch, up = self._times[k]
        passes = method.work(server, total, steps)
        ends = now + float(down + (passes.gradients + LOSS * passes.losses) * epoch + up)
        return Work(k, number, ends, epochs, method.broadcast(server, k), most)

    def _gathered(self, results: list[Trained], rng: np.random.Generator) -> Gathered:
        return Gathered(results, self.federation.model, self.sizes, rng, self.federation.public)

    def _messages(
        self,
        clients: list[int],
        send: Callable[[Server, int], dict[str, Tensor]],
        newcomer: Mapping[str, str] | None = None,
        names: Sequence[str] | None = None,
    ) -> tuple[list[Tensor], list[dict[str, int]], list[dict[str, int]]]:
        """What each client receives and keeps; tensors that clients share are listed once.

        Those who never took part keep what ``newcomer`` names (kept vector -> received vector). ``names``
        are the kept vectors that travel: by default all of the method's own.
        """
        vectors: list[Tensor] = []
        places: dict[tuple, int] = {}

        def place(vector: Tensor) -> int:
            same = (vector.data_ptr(), vector.shape, vector.stride(), vector.dtype)  # rows of a stack too
            if same not in places:
                places[same] = len(vectors)
                vectors.append(vector)
            return places[same]

        server, store = self.state.server, self.state.store
        names = self._own_vectors() if names is None else names
        received, kept = [], []
        for k in clients:
            sent, own = send(server, k), store.get(k, names)
            if k >= self.clients or not self.state.participations[k]:
                own |= {name: sent[source] for name, source in (newcomer or {}).items()}
            received.append({name: place(v) for name, v in sent.items()})
            kept.append({name: place(v) for name, v in own.items()})
        return vectors, received, kept

    def _own_vectors(self) -> list[str]:
        """The vectors that the method lets every client keep."""
        return [name for name in self.state.store.first if name != "trained"]

    def _served_with(self) -> list[str]:
        """Those of them that clients are served with: the others need not travel to be scored."""
        method = self.job.method
        if method.serves_with is not None:
            return list(method.serves_with)
        return self._own_vectors() if method.serves == "personal" else []

    def _evaluate(self, report: Round) -> None:
        personal = self.job.method.serves == "personal"  # N models on the complete test set: only at the end
        title = f"round {report.round} · evaluate"
        scores = self._scores(title, report.round, self.scored, full=not personal)
        local = _known(summarise(scores.local_accuracy))
        report.local_accuracy, report.local_std, report.local_worst10 = (
            local["mean"],
            local["std"],
            local["worst10"],
        )
        report.global_accuracy = _mean_or_none(scores.global_accuracy)
        report.clusters = len(np.unique(scores.cluster))
        if self.job.method.serves == "cluster" or self.job.method.clustered:
            for name, value in self._agreement(scores).items():
                setattr(report, name, value)
            if not np.array_equal(scores.cluster, self.state.assignment[scores.clients]):
                self.state.assignment[scores.clients] = scores.cluster
                report.assignment = self.state.assignment.tolist()
        self.state.assignment[scores.clients] = scores.cluster

    def _agreement(self, scores: Scores) -> dict[str, float | None]:
        groups, labels = (a if a is None else a[scores.clients] for a in (self.groups, self._labels))
        return agreement(scores.cluster, groups, labels)

    @cached_property
    def _labels(self) -> np.ndarray | None:
        """Which client has which label [N, C], bool; None where targets are not one label each."""
        labels = self.federation.train.y.cpu().numpy()
        if labels.ndim != 1 or labels.dtype.kind == "f":
            return None
        own = np.zeros((self.clients, labels.max() + 1), dtype=np.bool_)
        sizes, indices = self.sizes, self.federation.partition.indices
        own[np.repeat(np.arange(self.clients), sizes), labels[indices[: sizes.sum()]]] = True
        return own

    def _compared(self) -> Dissimilarity | None:
        """What the method's server knows of how far apart clients are, without newcomers it may have met."""
        found = self.job.method.dissimilarity(self.state.server)
        if found is None:
            return None
        own = [i for i, k in enumerate(found.clients) if k < self.clients]
        matrix = found.matrix[np.ix_(own, own)].astype(np.float64)
        if not np.isfinite(matrix).all():  # of models that diverged
            return None
        matrix = (matrix + matrix.T) / 2
        np.fill_diagonal(matrix, 0)
        return replace(found, matrix=matrix, clients=[found.clients[i] for i in own])

    def _welcome(self) -> Scores | None:
        """Scores of the newcomers: of the model they are served, and after one local training of it."""
        late = range(self.clients, len(self.federation.partition.sizes))
        if not late:
            return None
        self._introduce(late)
        return self._scores("newcomers", self.settings.rounds, late, tune=True)

    def _scores(self, title: str, after: int, clients: Sequence[int], **what: Any) -> Scores:
        """What clients score after round ``after``: at the learning rate of the next one."""
        method, names = self.job.method, self._served_with()
        names += ["trained"] if what.get("trained") else []
        # Where all are served one model, one of them is asked for it.
        asked = None if names or method.serves != "global" else 1
        # Models of their own need not be in memory all at once.
        own = bool(names) or method.serves == "personal"
        size = max(1, PERSONAL_EVAL_CHUNK // self.federation.model.size) if own else len(clients)
        workers, parts = self.executor.workers, list[Scores]()
        for start in range(0, len(clients), size):
            wave = list(clients[start : start + size])
            what["models"] = what.get("models", False) and (not own or start < self._recorded)
            shares = [wave[i::workers] for i in range(min(workers, len(wave)))]
            sent = [
                self._messages(share[:asked], method.broadcast_for_evaluation, method.newcomer, names)
                for share in shares
            ]
            shards = [EvaluationShard(after + 1, *to, **what) for to in zip(shares, *zip(*sent))]
            parts += self.executor.map(evaluate_shard, self.job, shards, title)
        return merged(parts)

    @property
    def _recorded(self) -> int:
        """How many personal models the outcome holds at most."""
        model = self.federation.model
        return max(1, min(PERSONAL_CLIENTS, PERSONAL_BYTES // (model.size * model.dtype.itemsize)))


def _down(shards: Sequence[Shard]) -> int:
    """Bytes that the clients of the shards receive."""
    return sum(
        shard.vectors[at].numel() * shard.vectors[at].element_size()
        for shard in shards
        for received in shard.received
        for at in received.values()
    )


def _at_least(value: float | None, target: float | None) -> bool:
    return value is not None and target is not None and value >= target


def _known(values: dict[str, float]) -> dict[str, float | None]:
    """None in place of nan: accuracies of a regression, say."""
    return {name: None if np.isnan(value) else value for name, value in values.items()}


def _mean_or_none(values: np.ndarray) -> float | None:
    """Mean over what was measured; None if nothing was, or where a diverged model makes it infinite."""
    measured = values[~np.isnan(values)]
    return float(measured.mean()) if len(measured) and np.isfinite(measured.mean()) else None
