"""The two ends of a method, server and client, which exchange nothing but messages.

They call the same hooks with the same random numbers as `fedflow.run`, so that a federation of one process
per client has its results. The transport between them is not fixed here (`fedflow.devices.flower`).
"""

import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedflow.data.examples import Examples
from fedflow.devices.messages import (
    WEIGHTLESS,
    Answer,
    Form,
    Orders,
    common_form,
    difference,
    fault,
    form,
    need_agreement,
    shapes,
    shared,
)
from fedflow.errors import BadInput, RoundFailed
from fedflow.local.local_training import LocalTraining
from fedflow.methods.method import Diagnostics, Message, Method, Round, ServerState
from fedflow.methods.protocols import (
    Asynchronous,
    Cyclic,
    Generative,
    Leveled,
    Onboarding,
    Phased,
    Pretrained,
    Serving,
    VariableEpochs,
)
from fedflow.models.flat import FlatModel
from fedflow.partition import Partition
from fedflow.seeding import generator, torch_seed
from fedflow.simulation.evaluation import score, served_model
from fedflow.simulation.federation import Federation
from fedflow.simulation.gathered import Gathered
from fedflow.simulation.job import ClientResult, Job, Shard, Trained
from fedflow.simulation.outcome import reasons
from fedflow.simulation.returned import of_tensors, planned
from fedflow.simulation.sampling import sample
from fedflow.simulation.settings import RunSettings, check_settings
from fedflow.simulation.updates.path import UpdatePath
from fedflow.simulation.worker import train_shard


def check_remote(method: Method) -> None:
    """Raise `BadInput` for a method that needs more than one exchange of messages in a round."""
    needs = {
        "clients that are onboarded": isinstance(method, Onboarding) and method.onboarding_phases() > 0,
        "several server steps in a round": isinstance(method, Cyclic) and method.cycles() > 1,
        "asynchronous clients": isinstance(method, Asynchronous) and method.clients_in_flight(1) > 0,
        "networks of several sizes": isinstance(method, Leveled),
        "data of the server": isinstance(method, Pretrained),
        "generated images": isinstance(method, Generative),
    }
    for what, needed in needs.items():
        if needed:
            raise BadInput("method", method.name, f"a method without {what}")


class ServerEnd:
    """The server: the state of the method, and the ``sizes`` n_k [N] of the clients.

    ``model`` is the network, ``training`` the local training of the run (the method may change it).
    ``failed`` are the clients without an update in the last round, with the reasons. Raises `BadInput` for
    settings that do not go together.
    """

    def __init__(
        self,
        method: Method,
        model: FlatModel,
        sizes: Sequence[int],
        *,
        training: LocalTraining,
        rounds: int,
        participation: float = 1.0,
        seed: int = 0,
    ) -> None:
        check_remote(method)
        if training.stragglers:
            raise BadInput("training.stragglers", training.stragglers, "0: devices are as slow as they are")
        self.method, self.model, self.seed = method, model, seed
        self.sizes = np.asarray(sizes, dtype=np.int64)
        self.settings = RunSettings.parse({"rounds": rounds, "participation": participation})
        self.training = check_settings(self.settings, method, training, len(self.sizes))
        self.state: ServerState = method.setup(
            model, lambda i: model.init(torch_seed(seed, "initial model", i))
        )
        of_tensors(method.name, "setup", self.state)
        self.failed: dict[int, str] = {}
        self._lost = 0  # rounds in a row without any update
        self._sent: dict[int, Form] = {}  # of the messages of this round, by client
        self._forms: dict[str, Form] = {}  # of answers, by phase

    def round(self, t: int, purpose: str, *keys: int) -> Round:
        """Round ``t`` for a hook, with the random numbers of ``purpose`` and ``keys``."""
        draw = partial(generator, self.seed, purpose, *keys)
        lr = self.training.lr_in(t)
        return Round(t, self.settings.rounds, lr, self.sizes, self.model, None, draw)

    def cohort(self, t: int) -> list[int]:
        """The clients of round ``t``, sorted."""
        run = self.settings
        chances, size = sample(run.sampling, run.participation, self.sizes, self.seed, t - 1)
        now = self.round(t, "cohort", t)
        chosen, self.state = planned(
            self.method.name, self.method.plan(now, self.state, chances, size), len(self.sizes)
        )
        return sorted(map(int, chosen))

    def message(self, t: int, client: int) -> tuple[Orders, Message]:
        """Return the orders and the message to one client of the cohort of round ``t``."""
        epochs = VariableEpochs.of(self.method).epochs(self.round(t, "epochs", t, client), self.state, client)
        phase = Phased.of(self.method).phase(self.round(t, "server", t, 0))
        sent = self.method.broadcast(self.round(t, "broadcast", t, 0, client), self.state, client)
        self._sent[client] = shapes(sent, sent)
        return self._orders(t, client, phase, epochs), sent

    def served(self, t: int, client: int) -> tuple[Orders, Message]:
        """Return the orders and the message to a client that is scored after round ``t``."""
        now = self.round(t + 1, "served", t + 1, client)
        phase = Phased.of(self.method).phase(self.round(t + 1, "served"))
        if isinstance(self.method, Serving):
            sent = self.method.broadcast_for_evaluation(now, self.state, client)
        else:
            sent = self.method.broadcast(now, self.state, client)
        return self._orders(t + 1, client, phase), sent

    def receive(self, t: int, answers: Sequence[Answer]) -> Diagnostics:
        """Take the server's step of round ``t``, without answers that are not valid; warns of them.

        A round in which every client fails still counts. Raises `RoundFailed` after 1 / R such rounds in a
        row (at least two).
        """
        now = self.round(t, "server", t, 0)
        self.failed = self._faults(answers, Phased.of(self.method).phase(now))
        results = [
            ClientResult(
                client=answer.client,
                group=answer.group,
                weight=answer.weight,
                scalars=answer.scalars,
                reported=answer.reported,
                keep={},
                vectors=answer.vectors,
                traffic=0,
                train_loss=answer.train_loss,
            )
            for answer in answers
            if answer.client not in self.failed
        ]
        if not results:
            self._lose(t)
            self.state = Phased.of(self.method).without_updates(now, self.state)
            return {}
        self._lost = 0
        if self.failed:
            self._warn(t, f"left out: {reasons(self.failed)}")
        gathered = Gathered([Trained(results, [*self.failed.items()])], now, UpdatePath(self.method))
        state, numbers = self.method.aggregate(now, self.state, gathered)
        self.state = of_tensors(self.method.name, "aggregate", state)
        return numbers

    def _faults(self, answers: Sequence[Answer], phase: str) -> dict[int, str]:
        """The reasons of clients that failed, or whose answers differ from the expected ones."""
        sent = self._sent
        failed = {a.client: a.failure or fault(a, sent.get(a.client, {})) for a in answers}
        if valid := [answer for answer in answers if not failed[answer.client]]:
            if phase not in self._forms:
                self._forms[phase] = common_form(valid)
            failed |= {answer.client: difference(form(answer), self._forms[phase]) for answer in valid}
        if not self.method.gathers:  # the others may use no weights
            left = [answer for answer in answers if not failed[answer.client]]
            weighted = {answer.group for answer in left if answer.weight > 0}
            failed |= {answer.client: WEIGHTLESS for answer in left if answer.group not in weighted}
        return {client: failure for client, failure in failed.items() if failure}

    def _lose(self, t: int) -> None:
        """Warn of a round without any update; raise `RoundFailed` after too many of them in a row."""
        self._lost += 1
        share, why = self.settings.participation, reasons(self.failed)
        if self._lost >= max(2, math.ceil(1 / share - 1e-9)):  # as in `fedflow.run`
            raise RoundFailed(
                f"round {t}: every client failed in {self._lost} rounds in a row, the limit at "
                f"participation {share:g} ({why})"
            )
        self._warn(t, f"every client failed, and no update arrived ({why})")

    def _warn(self, t: int, text: str) -> None:
        warnings.warn(f"{self.method.name}: round {t}: {text}", stacklevel=3)

    def _orders(self, t: int, client: int, phase: str, epochs: int | None = None) -> Orders:
        mean = float(self.sizes.sum()) / len(self.sizes)
        settings = shared(self.method, self.training, self.seed)
        return Orders(t, self.settings.rounds, client, len(self.sizes), mean, settings, phase, epochs)


@dataclass
class _Device(Federation):
    """The data of one client; the mean number of samples is what the server says."""

    mean: float = 0.0

    @property
    def mean_samples(self) -> float:
        return self.mean


def device(model: FlatModel, train: Examples, test: Examples, orders: Orders) -> Federation:
    """A federation in which the client of these ``orders`` has all samples, and the others have none."""
    none = np.zeros(0, dtype=np.int64)
    rows = [none] * orders.clients
    rows[orders.client] = np.arange(len(train))
    partition = Partition.from_lists(rows, [np.arange(len(test))], [np.array([0])] * orders.clients)
    return _Device(model, train, test, partition, mean=orders.mean_samples)


class ClientEnd:
    """One client: its data, the method, and the local ``training`` of the run.

    ``federation`` has its samples under the number ``orders.client``. Orders of a server with other settings
    raise `BadInput`.
    """

    def __init__(self, federation: Federation, method: Method, training: LocalTraining, seed: int) -> None:
        check_remote(method)
        self.federation, self.method, self.seed = federation, method, seed
        self._training = training

    def train(
        self, orders: Orders, received: Mapping[str, Tensor], kept: Mapping[str, Tensor]
    ) -> tuple[Answer, dict[str, Tensor]]:
        """Train; returns the answer, and the vectors that this client keeps from now on."""
        job, vectors = self._job(orders), self._first(orders.client) | dict(kept)
        result = train_shard(job, _shard(orders, received, vectors), gathers=True)
        if result.failures:
            client, reason = result.failures[0]
            return Answer(client, failure=reason), dict(kept)
        sent = result.sent[0]
        answer = Answer(
            client=sent.client,
            vectors={name: vector.cpu() for name, vector in sent.vectors.items()},
            scalars=sent.scalars,
            reported=sent.reported,
            weight=sent.weight,
            group=sent.group,
            train_loss=sent.train_loss,
        )
        return answer, {**kept, **{name: vector.cpu() for name, vector in sent.keep.items()}}

    def evaluate(
        self, orders: Orders, received: Mapping[str, Tensor], kept: Mapping[str, Tensor]
    ) -> dict[str, float]:
        """The accuracy and mean loss of the model that this client is served, on its own test samples."""
        job, vectors = self._job(orders), self._first(orders.client) | dict(kept)
        if not kept:
            vectors |= {name: received[source] for name, source in self.method.newcomer.items()}
        w, cluster, _ = served_model(job, self.federation, _shard(orders, received, vectors), 0)
        accuracy, loss, *_ = score(self.federation, [w], np.zeros(1, dtype=np.int64), [orders.client])
        return {"accuracy": float(accuracy[0]), "loss": float(loss[0]), "cluster": cluster}

    def _job(self, orders: Orders) -> Job:
        settings = RunSettings.parse({"rounds": orders.rounds})
        training = check_settings(settings, self.method, self._training, orders.clients)
        need_agreement(shared(self.method, training, self.seed), orders.settings)
        return Job(
            self.federation,
            self.method,
            training,
            self.seed,
            cohort="loop",
            rounds=orders.rounds,
            clients=orders.clients,
            keep_trained=training.compares,
        )

    def _first(self, client: int) -> dict[str, Tensor]:
        """The initial values of what this client keeps."""
        model = self.federation.model
        common = model.init(torch_seed(self.seed, "initial model", 0))
        return {
            name: value
            if isinstance(value, Tensor)
            else value(torch_seed(self.seed, f"first {name}", client))
            for name, value in self.method.client_state(model, common).items()
        }


def _shard(orders: Orders, received: Mapping[str, Tensor], kept: Mapping[str, Any]) -> Shard:
    vectors = [torch.as_tensor(vector) for vector in (*received.values(), *kept.values())]
    numbers = iter(range(len(vectors)))
    got, kept_at = ({name: next(numbers) for name in message} for message in (received, kept))
    return Shard(
        orders.t, [orders.client], vectors, [got], [kept_at], phase=orders.phase, epochs=[orders.epochs]
    )
