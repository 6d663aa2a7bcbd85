"""A run without its loop: the job, its settings, the federation and the state."""

import hashlib
import json
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path

import numpy as np
from torch import Tensor

from fedflow.errors import BadInput, FedflowError
from fedflow.identity import code_digest, modules_of, versions
from fedflow.local.adaptation import Adaptation
from fedflow.local.client import TRAINED
from fedflow.local.curriculum import Curriculum
from fedflow.local.training import LocalTraining
from fedflow.methods.base import (
    SAMPLERS,
    Asynchronous,
    Cyclic,
    Generative,
    Levelled,
    Message,
    Method,
    Pretrained,
    Round,
    ServerState,
)
from fedflow.seeding import generator, torch_seed
from fedflow.settings import Settings, Words, option, shown, written
from fedflow.simulation.checkpoint import load_checkpoint
from fedflow.simulation.client_curriculum import ClientCurriculum, Turn
from fedflow.simulation.clients import ClientStore, FirstOf
from fedflow.simulation.executors import Executor, Inline
from fedflow.simulation.history import History
from fedflow.simulation.job import Job
from fedflow.simulation.levels import check_levels, clients_by_level, first_trained, level
from fedflow.simulation.messages import Messages, pack
from fedflow.simulation.real_images import check_generative
from fedflow.simulation.reporting import MEANS, REPORTS, TrainedMeans
from fedflow.simulation.sampling import cohort_size
from fedflow.simulation.state import State
from fedflow.simulation.timing import Timing

# Settings of training that only batches follow.
STREAMED = ("augment", "steps", "lr_within", "optimiser", "curriculum", "adaptation")


class RunSettings(Settings):
    """The length of a run, participation, and evaluation."""

    section = "run"
    rounds: int = option(20, "rounds", symbol="T", ge=1)
    participation: float = option(
        0.1, "share of the clients in a cohort; m = max(1, floor(R N))", symbol="R", gt=0, le=1
    )
    sampling: str = option(
        "uniform", "how cohorts are drawn: uniformly; in proportion to n_k (to use with uniform weights); "
        "each client with probability R (bernoulli); all clients in turns of m, in random order (sweep); or "
        "a growing pool of clients in such turns, those with a small loss first (easy_first)",
        choices=SAMPLERS,
    )  # fmt: skip
    client_curriculum: ClientCurriculum | None = option(
        None, "the pool of `sampling: easy_first`; null = its defaults there"
    )
    min_cohort: int = option(
        0, "stop with an error if fewer clients of a round succeed; with 0, a round in which all fail leaves "
        "the models as they were, and 1 / R such rounds in a row (at least 2) stop the run", ge=0,
        source="PFL and its code",
    )  # fmt: skip
    evaluate_every: int = option(5, "rounds between evaluations; the last round is always evaluated", ge=1)
    evaluate_clients: int | None = option(
        None, "number of random clients to score, the same in all evaluations; null = all", ge=1
    )
    fine_tune: bool = option(True, "at the end, also score every client after one more local training")
    keep_trained: bool = option(False, "keep every client's last trained model, and score it at the end")
    reports: list[str] = option(
        factory=list, choices=REPORTS,
        doc="also score models on the complete test set: the one that is broadcast (server), the mean of the "
        "models that this round's clients trained (active), and that of all clients' last models (all)",
    )  # fmt: skip
    adapt: list[Adaptation] = option(
        factory=list, doc="score every client at every evaluation after adaptation to all its training "
        "samples too; each item as training.adaptation, at most one of each name",
    )  # fmt: skip
    adapt_from: str = option(
        "served", "the model that is adapted for run.adapt: the one that the client is served, or a mean of "
        "trained models, active or all as in run.reports",
        choices=("served", *MEANS), source="PFL: all",
    )  # fmt: skip
    keep_predictions: bool = option(
        False, "at the end, write what the served models predict for every client's own test samples"
    )
    sweep: bool = option(
        True, "at the end, also score every client with all mixtures of its global and its personal model, "
        "where the method has them",
    )  # fmt: skip
    features: str | None = option(
        None, "network of `central` whose inputs of the last layer measure generated images; null = pixels"
    )
    inception: str | None = option(
        None, "file of weights of Inception v3, whose features measure generated images instead",
        source="FedEvg",
    )  # fmt: skip
    target_accuracy: float | None = option(
        None, "also report the rounds and bytes until this local accuracy", gt=0, le=1
    )
    checkpoint_every: int = option(5, "rounds between checkpoints", ge=1)
    timing: Timing = option(factory=Timing, doc="how fast clients are, in simulated time")

    def validate(self) -> None:
        if len(set(self.reports)) < len(self.reports):
            raise BadInput("run.reports", self.reports, "every name once")
        if self.features is not None and self.inception is not None:
            raise BadInput("run.features", self.features, "null with run.inception")
        names = [adaptation.name for adaptation in self.adapt]
        if len(set(names)) < len(names):
            raise BadInput("run.adapt", Words(f"[{', '.join(names)}]"), "every name once")
        for i, adaptation in enumerate(self.adapt):
            for name, default in (("order", "second"), ("weight_decay", 0.0)):
                if (value := getattr(adaptation, name)) != default:
                    accepted = f"{default}, its default, as it is for training only"
                    raise BadInput(f"run.adapt[{i}].{name}", value, accepted)
        if self.adapt_from != "served" and not self.adapt:
            raise BadInput("run.adapt_from", self.adapt_from, "served with run.adapt: []")
        if self.sampling == "easy_first" and self.client_curriculum is None:
            complete = ClientCurriculum.parse({})  # so that results record the defaults in use
            object.__setattr__(self, "client_curriculum", complete)
        if self.sampling != "easy_first" and self.client_curriculum is not None:
            raise BadInput("run.sampling", self.sampling, "easy_first with run.client_curriculum")

    @property
    def means(self) -> set[str]:
        """The means of trained models that are scored or adapted."""
        return {*MEANS} & {*self.reports, self.adapt_from}


def check_settings(settings: RunSettings, method: Method, training: LocalTraining) -> None:
    """Raise `BadInput` unless the method can run with these settings, whatever the data."""
    training = method.trains(training)
    method.check(settings.rounds)
    method.check_training(training)
    adaptation = training.adaptation
    if adaptation is not None and adaptation.clip_norm is not None and not method.serves_adapted():
        accepted = f"null with {method.name}, which serves unadapted models, as it is for evaluation only"
        raise BadInput(f"{adaptation.section}.clip_norm", adaptation.clip_norm, accepted)
    streams, plain = method.streams(training), LocalTraining.parse({})
    for name in () if streams else STREAMED:
        value, default = getattr(training, name), getattr(plain, name)
        if value != default:
            accepted = f"{written(default)} with {method.name}, which trains on full gradients"
            raise BadInput(f"training.{name}", shown(value), accepted)
    if training.steps is not None and {*streams.values()} != {training.epochs}:
        accepted = f"null with {method.name}, which sets numbers of epochs itself"
        raise BadInput("training.steps", training.steps, accepted)
    if isinstance(method, Asynchronous) and method.clients_in_flight(1):
        accepted = f"with {method.name}, which is asynchronous"
        if settings.sampling != "uniform":
            raise BadInput("run.sampling", settings.sampling, f"uniform {accepted}")
        if training.stragglers:
            raise BadInput("training.stragglers", training.stragglers, f"0 {accepted}")
    if settings.sampling not in (obeyed := method.samplers()):
        reason = f"with {method.name}, which chooses its cohorts itself"
        raise BadInput("run.sampling", settings.sampling, f"{' or '.join(obeyed)} {reason}")
    for name in () if isinstance(method, Generative) else ("features", "inception"):
        if (value := getattr(settings, name)) is not None:
            raise BadInput(f"run.{name}", value, f"null with {method.name}, which generates no images")
    if settings.client_curriculum and isinstance(method, Cyclic):
        accepted = f"{' or '.join(SAMPLERS[:-1])} with {method.name}, whose rounds have several cohorts"
        raise BadInput("run.sampling", settings.sampling, accepted)
    reason = f"with {method.name}, whose clients do not train one common model"
    if settings.reports and not method.trains_one_model() and not isinstance(method, Levelled):
        raise BadInput("run.reports", settings.reports, f"[] {reason}")
    if settings.adapt_from != "served" and not method.trains_one_model():
        raise BadInput("run.adapt_from", settings.adapt_from, f"served {reason}")


def content(values: Tensor) -> str:
    """A hash of the values of a tensor."""
    return hashlib.blake2b(values.cpu().contiguous().numpy().data, digest_size=12).hexdigest()


class Run:
    """One federated run: its job, settings, federation and state.

    ``clients`` (N) take part, with ``sizes`` [N] training samples and planted ``groups`` [N], if any.
    Newcomers of the partition, numbered N and up, do not. Raises `BadInput` for incompatible settings.
    """

    def __init__(
        self,
        job: Job,
        settings: RunSettings,
        executor: Executor | None = None,
        checkpoints: Path | None = None,
    ) -> None:
        self.executor: Executor = executor or Inline()
        self.federation = job.federation.open()
        partition = self.federation.partition
        self.clients = partition.training_clients
        self.sizes = partition.sizes[: self.clients]
        self.groups = None if partition.groups is None else partition.groups[: self.clients]
        self.cohort_size = cohort_size(settings.participation, self.clients)
        self.turns: list[Turn] = []  # by round, of the client curriculum
        if settings.client_curriculum:
            self.turns = settings.client_curriculum.turns(self.clients, self.cohort_size, settings.rounds)
            settings = replace(settings, rounds=len(self.turns))
        self.settings = settings
        self.job = replace(
            job,
            training=job.method.trains(job.training),
            rounds=settings.rounds,
            keep_trained=settings.keep_trained or bool(settings.means) or job.training.compares,
            timing=settings.timing,
        )
        self._check()
        self.folder = checkpoints / self.fingerprint if checkpoints else None

    @cached_property
    def state(self) -> State:
        """The state to start from: that of the checkpoint, if one exists."""
        return self._start()

    @cached_property
    def fingerprint(self) -> str:
        """Identifies the run: only its own checkpoint is resumed."""
        teacher, difficulty = self.federation.teacher, self.federation.difficulty
        features = self.federation.features
        about = {
            "method": [self.job.method.name, self.job.method.as_dict()],
            "training": self.job.training.as_dict(),
            "run": {k: v for k, v in self.settings.as_dict().items() if k != "checkpoint_every"},
            "seed": self.job.seed,
            "partition": self.federation.partition.hash,
            "public": None if self.federation.public is None else self.federation.public.digest,
            "teacher": None if teacher is None else [teacher.model.architecture, content(teacher.w)],
            "difficulty": None if difficulty is None else content(difficulty),
            "features": None if features is None else [features.model.architecture, content(features.w)],
            "model": self.federation.model.architecture,
            "code": code_digest(
                type(self).__module__,
                *modules_of(self.job.method, self.job.training),
                *self.federation.model.modules,
            ),
            "libraries": versions(),
            "compiled": bool(self.job.compiled),  # changes the last bits
        }
        return hashlib.blake2b(
            json.dumps(about, sort_keys=True, default=str).encode(), digest_size=12
        ).hexdigest()

    def round(self, t: int, purpose: str, *keys: int, cycle: int = 0) -> Round:
        """Round ``t`` for a hook; its random numbers are keyed by ``purpose`` and ``keys``."""
        return Round(
            t, self.settings.rounds, self.job.training.lr_in(t), self.sizes, self.federation.model,
            self.federation.public, partial(generator, self.job.seed, purpose, *keys), cycle,
        )  # fmt: skip

    def messages(
        self,
        clients: Sequence[int],
        send: Callable[[int], Message],
        names: Sequence[str] | None = None,
        newcomer: Mapping[str, str] | None = None,
    ) -> Messages:
        """What each client receives and keeps: by default all vectors of the method.

        For clients that never took part, ``newcomer`` maps kept vectors to received ones that replace them.
        """

        def replaced(k: int) -> Mapping[str, str]:
            never = k >= self.clients or not self.state.participations[k]
            return (newcomer or {}) if never else {}

        written = [TRAINED] if names is None and self.job.training.compares else []
        names = self.state.own_vectors if names is None else names
        return pack(clients, send, self.state.store, names, replaced, written)

    def _check(self) -> None:
        """Raise `BadInput` unless method, run and partition are compatible; warn about odd settings."""
        settings, method, training = self.settings, self.job.method, self.job.training
        partition = self.federation.partition
        check_settings(settings, method, training)
        check_levels(method, self.federation.model)
        settings.timing.check(len(partition.sizes))
        training.check(self.federation.model, self.federation.train, self.federation.teacher)
        for i, adaptation in enumerate(settings.adapt):
            adaptation.check(self.federation.model, self.federation.train, f"run.adapt[{i}]")
        if (instead := method.selects()) and partition.selection_offsets is None:
            accepted = f"a share > 0, as {method.name} needs held-out samples; or set {instead}"
            raise BadInput("partition.selection", 0, accepted)
        self._check_curriculum()
        if isinstance(method, Generative):
            check_generative(method.name, self.federation)
        central = {"teacher": self.federation.teacher, "expert": self.federation.difficulty}
        if partition.held_out and (seen := [name for name, used in central.items() if used is not None]):
            tests = "validation" if partition.params.get("validation") else "test"
            reason = f"learned from all samples, also those that clients hold out as {tests} samples"
            warnings.warn(f"{method.name}: its {' and its '.join(seen)} {reason}", stacklevel=4)
        if settings.keep_predictions and not self.federation.labelled:
            raise BadInput("run.keep_predictions", True, "false, as the samples do not have one label each")
        least = 0.001 / self.clients  # below, nearly every draw is empty and repeated
        if settings.sampling == "bernoulli" and settings.participation < least:
            raise BadInput("run.participation", settings.participation, f"at least {least:g} with bernoulli")
        if (curriculum := settings.client_curriculum) is not None:
            self._need_losses(curriculum)
            smallest, pool = min(turn.end - turn.start for turn in self.turns), self.turns[-1].clients
            if settings.min_cohort > smallest:
                accepted = f"at most {smallest}, the smallest cohort of run.client_curriculum"
                raise BadInput("run.min_cohort", settings.min_cohort, accepted)
            if pool < self.clients:
                reason = f"the run ends when {pool} of {self.clients} clients are in the pool"
                warnings.warn(f"run.client_curriculum: {reason}", stacklevel=4)
        twice = settings.sampling == "proportional" and getattr(method, "weighting", "") == "samples"
        if twice and self.cohort_size < self.clients:
            asked = "run.sampling: proportional and weighting: samples"
            warnings.warn(f"{method.name}: {asked} both count a client's samples", stacklevel=4)
        if method.serves_adapted() and settings.adapt and settings.adapt_from == "served":
            reason = "the served models, which are adapted already; run.adapt_from can be active or all"
            warnings.warn(f"{method.name}: run.adapt adapts {reason}", stacklevel=4)

    def _need_losses(self, curriculum: Curriculum | ClientCurriculum) -> None:
        by_expert = curriculum.scores and curriculum.score == "expert"
        if by_expert and self.federation.difficulty is None:
            accepted = "a network of `central` whose losses this federation has"
            raise BadInput(f"{curriculum.section}.expert", curriculum.expert, accepted)

    def _check_curriculum(self) -> None:
        training, method = self.job.training, self.job.method
        curriculum = training.curriculum
        if curriculum is None:
            return
        if curriculum.score.endswith("_pred") and not self.federation.labelled:
            accepted = "a score by losses, as the samples do not have one label each"
            raise BadInput("training.curriculum.score", curriculum.score, accepted)
        self._need_losses(curriculum)
        if type(method).epochs is not Method.epochs:  # known in the round only
            return
        usual = method.streams(training).values()
        short = sum(
            any(max(training.passes(n, epochs)).prefix < n for epochs in usual) for n in self.sizes.tolist()
        )
        if short:
            reason = "has too few local steps in a round to reach all samples"
            warnings.warn(
                f"{method.name}: the curriculum of {short} of {self.clients} clients {reason}", stacklevel=5
            )

    def level(self, client: int) -> str:
        """The level of a client's network; empty if all have the network of the run."""
        return level(self.job.method, self.federation, client)

    @cached_property
    def levels(self) -> dict[str, list[int]]:
        """The clients of every level, newcomers excepted; one level "" if all have the network of the run."""
        return clients_by_level(self.job.method, self.clients)

    @property
    def levelled(self) -> bool:
        """Whether clients hold networks of different sizes."""
        return isinstance(self.job.method, Levelled)

    def _start(self) -> State:
        model, method, seed = self.federation.model, self.job.method, self.job.seed

        def initial(i: int) -> Tensor:
            return model.init(torch_seed(seed, "initial model", i))

        def first_of(name: str, make: Callable[[int], Tensor]) -> FirstOf:
            def of(client: int) -> Tensor:
                return make(torch_seed(seed, f"first {name}", client))

            return FirstOf(of, of(0))

        first: dict[str, Tensor | FirstOf] = {
            name: value if isinstance(value, Tensor) else first_of(name, value)
            for name, value in method.client_state(model, initial(0)).items()
        }
        if missing := [name for name in method.records if name not in first]:
            raise FedflowError(f"{method.name}: its clients do not keep {', '.join(missing)} to be recorded")
        if self.settings.keep_trained or "all" in self.settings.means or self.job.training.compares:
            first[TRAINED] = first_trained(method, self.federation, initial(0))
        store = ClientStore(first, self.clients, self.folder)
        weights = self.sizes if method.weighs_samples() else np.ones(self.clients)
        state = State(
            server=method.setup(model, initial),
            store=store,
            means=TrainedMeans(self.settings.means, weights, store, self.levels),
            participations=np.zeros(self.clients, dtype=np.int64),
            assignment=np.full(self.clients, -1),
            pool=np.empty(0, dtype=np.int64),
            history=History(self.folder),
        )
        if not isinstance(state.server, ServerState):
            raise FedflowError(
                f"{method.name}.setup must return a ServerState, not {type(state.server).__name__}"
            )
        if isinstance(method, Generative):
            state.server = method.begin(self.round(0, "first images"), state.server)
        saved = load_checkpoint(self.folder) if self.folder else None
        if saved is None or saved[1]["fingerprint"] != self.fingerprint:
            if isinstance(method, Pretrained) and self.federation.public is not None:
                state.server = method.pretrain_server(state.server, self.federation.public, seed)
            return state
        state.unpack(*saved, model.device)
        return state
