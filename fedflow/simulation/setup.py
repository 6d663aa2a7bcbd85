"""Setup of a run: its job, settings, federation and state, and their checks."""

import hashlib
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path
from typing import cast

import numpy as np
from torch import Tensor

from fedflow.errors import BadInput, FedflowError
from fedflow.local.client import TRAINED
from fedflow.local.teacher import Teacher
from fedflow.methods.method import Message, Round, ServerState
from fedflow.methods.protocols import Adapting, Cyclic, Phased, Pretrained, VariableEpochs
from fedflow.project.code import code_digest
from fedflow.project.digest import digest
from fedflow.project.identity import Identity, versions
from fedflow.seeding import generator, torch_seed
from fedflow.simulation.checkpoint import load_checkpoint
from fedflow.simulation.clients import ClientStore, FirstOf
from fedflow.simulation.executors import Executor, Inline
from fedflow.simulation.extensions.all_extensions import all_extensions
from fedflow.simulation.extensions.extension import E, Run, RunExtension, check_alone
from fedflow.simulation.history import History
from fedflow.simulation.job import Job
from fedflow.simulation.levels import check_levels, clients_by_level, first_trained, level
from fedflow.simulation.messages import Messages, pack
from fedflow.simulation.remembered import RememberedScores
from fedflow.simulation.returned import of_tensors
from fedflow.simulation.sampling import cohort_size
from fedflow.simulation.settings import (
    RunSettings,
    check_selection,
    check_server_data,
    check_settings,
    conditions_of,
    decisive,
)
from fedflow.simulation.state import State
from fedflow.simulation.updates.path import UpdatePath


def content_of(read: Teacher | Tensor) -> str:
    """A hash of a network that training reads, or of its losses."""
    if isinstance(read, Teacher):
        return digest([read.model.architecture, content_of(read.w)])
    return hashlib.blake2b(read.cpu().contiguous().numpy().data, digest_size=12).hexdigest()


class RunSetup:
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
        identity: Identity | None = None,
    ) -> None:
        self.executor: Executor = executor or Inline()
        self.federation = job.federation.open()
        partition = self.federation.partition
        self.clients = partition.training_clients
        self.sizes = partition.sizes[: self.clients]
        self.groups = None if partition.groups is None else partition.groups[: self.clients]
        self.cohort_size = cohort_size(settings.participation, self.clients)
        self.settings, self.job = settings, job
        run = cast(Run, self)  # a `Simulation`, which extends this class
        extensions = [kind(run) for kind in all_extensions() if kind.wanted(run)]
        check_alone(extensions)
        self.extensions: list[RunExtension] = extensions
        rounds = next((e.rounds for e in extensions if e.rounds is not None), settings.rounds)
        self.settings = settings = replace(settings, rounds=rounds)
        smallest = (e.smallest_cohort() for e in extensions)
        self.smallest_cohort = next((cohort for cohort in smallest if cohort is not None), None)
        several = self.federation.train.several
        training = check_settings(settings, job.method, job.training, self.clients, several)
        conditions = conditions_of(settings, training, self.clients, several)
        self.job = replace(
            job,
            training=training,
            rounds=settings.rounds,
            clients=self.clients,
            keep_trained=job.training.compares or any(e.trains for e in extensions),
            timing=settings.timing,
            updates=tuple(step.prepared(conditions) for step in settings.updates),
        )
        self.path = UpdatePath(self.job.method, self.job.updates, self.job.seed, clients=self.clients)
        self._check()
        self._checkpoints = checkpoints
        self._identity = identity

    @cached_property
    def folder(self) -> Path | None:
        return self._checkpoints / self.fingerprint if self._checkpoints else None

    @cached_property
    def state(self) -> State:
        """The state to start from, taken from the checkpoint if one exists."""
        return self._start()

    @property
    def done(self) -> int:
        """The number of rounds so far."""
        return len(self.state.history)

    @cached_property
    def identity(self) -> Identity:
        """The identity of an experiment, or of the job and its data in memory."""
        if self._identity:
            return self._identity
        job, federation = self.job, self.federation
        read = {**federation.inputs, "features": federation.features}
        return Identity.of(
            decisive(job.method, job.training, self.settings),
            job.seed,
            {
                "partition": federation.partition.hash,
                "public data": "" if federation.public is None else federation.public.digest,
                **{name: content_of(network) for name, network in read.items() if network is not None},
            },
            [type(self).__module__, *(type(extension).__module__ for extension in self.extensions)],
            [job.method, job.training, self.settings],
        )

    @cached_property
    def fingerprint(self) -> str:
        """Key of checkpoint, lock and record: the identity, with facts of this machine and network."""
        model = self.federation.model
        return self.identity.on(
            compiled=bool(self.job.compiled),
            libraries=versions(),
            network=model.architecture,
            layers=code_digest(*model.modules),  # also of packages that the identity does not follow
        ).key

    def round(self, t: int, purpose: str, *keys: int, cycle: int = 0) -> Round:
        """Round ``t`` for a hook; its random numbers are keyed by ``purpose`` and ``keys``."""
        return Round(
            t,
            self.settings.rounds,
            self.job.training.lr_in(t),
            self.sizes,
            self.federation.model,
            self.federation.public,
            partial(generator, self.job.seed, purpose, *keys),
            cycle,
        )

    def phase(self, t: int) -> str:
        """The phase of the method in which clients are served in round ``t``."""
        return Phased.of(self.job.method).phase(self.round(t, "served"))

    def messages(
        self,
        clients: Sequence[int],
        send: Callable[[int], Message],
        names: Sequence[str] | None = None,
        newcomer: Mapping[str, str] | None = None,
    ) -> Messages:
        """The messages to ``clients`` and the vectors ``names`` that they keep (default: all of the method).

        For clients that never took part, ``newcomer`` maps kept vectors to received ones that replace them.
        """

        def replaced(k: int) -> Mapping[str, str]:
            never = k >= self.clients or not self.state.participations[k]
            return (newcomer or {}) if never else {}

        written = [TRAINED] if names is None and self.job.training.compares else []
        written += self.path.kept_names if names is None else []
        names = self.state.own_vectors if names is None else names
        return pack(clients, send, self.state.store, names, replaced, written)

    def _check(self) -> None:
        """Raise `BadInput` unless method, run and partition are compatible; warn about odd settings."""
        settings, method, training = self.settings, self.job.method, self.job.training
        partition = self.federation.partition
        check_levels(method, self.federation.model)
        settings.timing.check(len(partition.sizes))
        training.check(self.federation.model, self.federation.train, self.federation.inputs)
        check_selection(method, partition.selection_offsets is not None)
        check_server_data(method, self.federation.public is not None)
        dropped, rate = training.dropped(self.cohort_size), f"{settings.participation:g}"
        of = f"the cohort at participation {rate}{' without dropped stragglers' * bool(dropped)}"
        usual = self.cohort_size - dropped, of
        smallest, of = self.smallest_cohort or usual
        if settings.min_cohort > smallest:
            raise BadInput("run.min_cohort", settings.min_cohort, f"at most {smallest}, {of}")
        if settings.min_cohort > 1 and isinstance(method, Cyclic) and method.cycles() > 1:
            accepted = f"at most 1 with {method.name}, whose rounds have several cohorts"
            raise BadInput("run.min_cohort", settings.min_cohort, accepted)
        if not isinstance(method, VariableEpochs):  # whose epochs are set in the round
            for reason in training.warnings(self.sizes.tolist(), [*method.streams(training).values()]):
                warnings.warn(f"{method.name}: {reason}", stacklevel=4)
        if partition.held_out and (seen := [*self.federation.inputs]):
            tests = "validation" if partition.params.get("validation") else "test"
            reason = f"learned from all samples, also those that clients hold out as {tests} samples"
            warnings.warn(f"{method.name}: its {' and its '.join(seen)} {reason}", stacklevel=4)
        least = 0.001 / self.clients  # below, nearly every draw is empty and repeated
        if settings.sampling == "bernoulli" and settings.participation < least:
            raise BadInput("run.participation", settings.participation, f"at least {least:g} with bernoulli")
        every = training.lr_decay_every
        if training.lr_decay != 1 and every > 1 and every >= settings.rounds:
            reason = f"the rate does not decay in {settings.rounds} rounds, as lr_decay_every is {every}"
            warnings.warn(f"training.lr_decay: {reason}", stacklevel=4)
        twice = settings.sampling == "proportional" and getattr(method, "weighting", "") == "samples"
        if twice and self.cohort_size < self.clients:
            both = "run.sampling: proportional and weighting: samples"
            warnings.warn(f"{method.name}: {both} both count a client's samples", stacklevel=4)
        if Adapting.of(method).serves_adapted() and settings.adapt and settings.adapt_from == "served":
            reason = "the served models, which are adapted already; run.adapt_from can be active or all"
            warnings.warn(f"{method.name}: run.adapt adapts {reason}", stacklevel=4)
        for extension in self.extensions:
            extension.check()

    def level(self, client: int) -> str:
        """The level of a client's network; empty if all have the network of the run."""
        return level(self.job.method, self.federation, client)

    @cached_property
    def levels(self) -> dict[str, list[int]]:
        """The clients of every level, newcomers excepted; one level "" if all have the network of the run."""
        return clients_by_level(self.job.method, self.clients)

    @cached_property
    def labels(self) -> np.ndarray | None:
        """The labels that each client has [N, C], bool, or None unless the federation is ``labeled``."""
        if not self.federation.labeled:
            return None
        labels = self.federation.train.y.cpu().numpy()
        table = np.zeros((self.clients, labels.max() + 1), dtype=np.bool_)
        samples = self.federation.partition.indices[: self.sizes.sum()]
        table[np.repeat(np.arange(self.clients), self.sizes), labels[samples]] = True
        return table

    def extension(self, kind: type[E]) -> E:
        return next(extension for extension in self.extensions if isinstance(extension, kind))

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
        if self.job.training.compares or any(e.stores for e in self.extensions):
            first[TRAINED] = first_trained(method, self.federation, initial(0))
        first |= self.path.first(first, initial(0))
        store = ClientStore(first, self.clients, self.folder)
        state = State(
            server=method.setup(model, initial),
            store=store,
            participations=np.zeros(self.clients, dtype=np.int64),
            parts={type(extension).__name__: extension for extension in self.extensions},
            scores=RememberedScores(len(self.federation.partition.sizes)),
            history=History(self.folder),
            steps=self.path.state,
        )
        if not isinstance(state.server, ServerState):
            raise FedflowError(
                f"{method.name}.setup must return a ServerState, not {type(state.server).__name__}"
            )
        of_tensors(method.name, "setup", state.server)
        for extension in self.extensions:
            state.server = extension.begin(state.server)
        saved = load_checkpoint(self.folder) if self.folder else None
        if saved is None or saved[1]["fingerprint"] != self.fingerprint:
            if isinstance(method, Pretrained) and self.federation.public is not None:
                state.server = method.pretrain_server(state.server, self.federation.public, seed)
            return state
        state.unpack(*saved, model.device)
        return state
