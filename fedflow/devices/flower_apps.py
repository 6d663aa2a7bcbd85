"""Methods of fedflow in Flower: a `Strategy` for its ServerApp, and a ClientApp.

Every round, a client receives the message of the method as arrays; what it keeps is in Flower's
`Context.state`. In Flower's simulation, client k is the node with ``partition-id`` k.
"""

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from functools import cached_property
from itertools import count
from typing import Any

import numpy as np
import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result
from flwr.serverapp.strategy import Strategy as FlowerStrategy
from torch import Tensor

from fedflow.data import Dataset
from fedflow.devices.endpoints import ClientEnd, ServerEnd, device
from fedflow.devices.messages import Answer, Orders
from fedflow.errors import BadInput, FedflowError
from fedflow.front.inputs import (
    Data,
    Division,
    Network,
    as_data,
    as_division,
    built_method,
    federation,
    flat_model,
    prepared,
)
from fedflow.local.local_training import LocalTraining
from fedflow.methods.method import Method
from fedflow.models.flat import FlatModel
from fedflow.project.arguments import argument
from fedflow.project.waiting import announced
from fedflow.settings import check
from fedflow.simulation.federation import Federation

KEPT = "fedflow.kept"  # in the state of a client's context
NUMBERS = ("weight", "group", "train_loss")  # of an answer
SCORES = ("accuracy", "loss")  # of an evaluation
NEXT = count()
CPU = torch.device("cpu")

MethodLike = str | Method | type[Method] | Mapping[str, Any]
TrainingLike = LocalTraining | Mapping[str, Any] | None


def _training(given: TrainingLike) -> LocalTraining:
    return given if isinstance(given, LocalTraining) else LocalTraining.parse(dict(given or {}))


@dataclass(frozen=True)
class Own:
    """The network and the samples of a device."""

    model: FlatModel
    data: Dataset


OPENED: dict[tuple[int, int], Federation | Own] = {}  # by app, and by node where each has its own samples


@dataclass
class Clients:
    """The clients' side of a federation: data, division, network, method, as `fedflow.run` takes them.

    Without a ``partition``, all samples of ``data`` belong to the client of this process, as on a device;
    ``data`` may be a function of Flower's context that returns them.
    """

    data: Data | Callable[[Context], Data]
    partition: Division | None
    method: MethodLike
    model: Network | None
    training: TrainingLike
    seed: int
    number: int = field(default_factory=NEXT.__next__)

    def samples(self, context: Context) -> int:
        """The number of training samples of this client."""
        opened = self._opened(context)
        if isinstance(opened, Federation):
            return int(opened.partition.sizes[_client(context)])
        return len(opened.data.train)

    def end(self, context: Context, orders: Orders) -> ClientEnd:
        """The client's end, on its samples."""
        opened = self._opened(context)
        if isinstance(opened, Federation) and orders.clients != len(opened.partition.sizes):
            clients = f"{len(opened.partition.sizes)}, as the partition of the ClientApp has"
            raise BadInput("clients", orders.clients, clients)
        if not isinstance(opened, Federation):
            opened = device(opened.model, opened.data.train, opened.data.test, orders)
        return ClientEnd(opened, built_method(self.method), _training(self.training), self.seed)

    def _opened(self, context: Context) -> "Federation | Own":
        """The data, which a process reads once."""
        key = (self.number, context.node_id if self.partition is None else 0)
        if key not in OPENED:
            torch.set_num_threads(1)  # bit for bit the same as `fedflow.run`
            data = prepared(as_data(self.data(context) if callable(self.data) else self.data))
            if self.partition is None:
                OPENED[key] = Own(flat_model(self.model, data, CPU), data)
            else:
                division, method = as_division(self.partition, data), built_method(self.method)
                made = federation(data, division, self.model, method, "cpu")
                if late := made.partition.newcomers:
                    raise BadInput("partition.newcomers", late, "0, as Flower chooses among all clients")
                OPENED[key] = made
        return OPENED[key]


def client_app(
    data: Data | Callable[[Context], Data],
    partition: Division | None = None,
    method: MethodLike = "fedavg",
    *,
    model: Network | None = None,
    training: TrainingLike = None,
    seed: int = 0,
) -> ClientApp:
    """Return a ClientApp that trains and evaluates clients with ``method``.

    `fedflow.run` explains the arguments. Orders of a `Strategy` with another method, training or seed are
    refused. In a simulation, ``partition`` divides ``data`` among the nodes; without it, all samples belong
    to the client of this process, as on a device.
    """
    seed = argument("seed", seed)
    clients, app = Clients(data, partition, method, model, training, seed), ClientApp()

    @app.query()
    def query(message: Message, context: Context) -> Message:
        facts = {"samples": clients.samples(context), "client": _client(context)}
        return Message(RecordDict({"about": MetricRecord(facts)}), reply_to=message)

    @app.train()
    def train(message: Message, context: Context) -> Message:
        orders, received = _read(message)
        answer, kept = clients.end(context, orders).train(orders, received, _kept(context))
        if kept:
            context.state[KEPT] = _arrays(kept)
        return Message(_written(answer), reply_to=message)

    @app.evaluate()
    def evaluate(message: Message, context: Context) -> Message:
        orders, received = _read(message)
        scores = clients.end(context, orders).evaluate(orders, received, _kept(context))
        finite = {name: value for name, value in scores.items() if value == value}  # without NaN
        return Message(RecordDict({"metrics": MetricRecord(finite)}), reply_to=message)

    return app


class Strategy(FlowerStrategy):
    """A method of fedflow as a Strategy of Flower.

    `start` waits for ``clients`` nodes, refuses more, and takes the first model from ``model`` and ``seed``.
    ``model`` is a network as `fedflow.run` takes it; one that is given by name needs ``like``, data with the
    shape of the clients' samples. ``participation`` is the share of the clients in a round; a client that
    does not reply, or whose answer is not valid, counts as failed.

    After `start`, ``server.state`` has the state of the method.
    """

    def __init__(
        self,
        method: MethodLike = "fedavg",
        *,
        clients: int,
        model: Network | None = None,
        like: Data | None = None,
        training: TrainingLike = None,
        participation: float = 1.0,
        seed: int = 0,
        evaluate_every: int = 1,
    ) -> None:
        if like is None and (model is None or isinstance(model, str | Mapping)):
            raise BadInput(
                "like", None, "data with the shape of the clients' samples, or a module as `model`"
            )
        for name, value in {"clients": clients, "evaluate_every": evaluate_every}.items():
            check(name, value, int, {"bounds": {"ge": 1}})
        seed = argument("seed", seed)
        self.method, self.training = built_method(method), _training(training)
        self.participation, self.seed, self.evaluate_every = participation, seed, evaluate_every
        self.clients, self._network, self._like = clients, model, like
        self._nodes: dict[int, int] = {}  # client -> node
        self._asked: dict[int, int] = {}  # node -> client, of this round

    @cached_property
    def model(self) -> FlatModel:
        """The network."""
        data: Any = None if self._like is None else prepared(as_data(self._like))
        return flat_model(self._network, data, CPU)

    def start(
        self,
        grid: Grid,
        num_rounds: int = 3,
        timeout: float = 3600,
        evaluate_fn: Callable[[int, ArrayRecord], MetricRecord | None] | None = None,
    ) -> Result:
        """Ask the clients for their numbers of samples, then run the rounds, as Flower's `Strategy.start`."""
        torch.set_num_threads(1)
        sizes = self._join(grid, timeout)
        self.server = ServerEnd(
            self.method,
            self.model,
            sizes,
            training=self.training,
            rounds=num_rounds,
            participation=self.participation,
            seed=self.seed,
        )
        return super().start(grid, self.arrays(), num_rounds, timeout, evaluate_fn=evaluate_fn)

    def arrays(self) -> ArrayRecord:
        """The global model as a state dictionary; empty if the method has several."""
        vector = getattr(self.server.state, "model", None)
        if vector is None:
            return ArrayRecord()
        return ArrayRecord(self.model.to_module(vector).state_dict())

    def summary(self) -> None:
        """Print nothing."""

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """The messages to the cohort of this round."""
        cohort = self.server.cohort(server_round)
        self._asked = {self._nodes[k]: k for k in cohort}
        return [_message(*self.server.message(server_round, k), self._nodes[k], "train") for k in cohort]

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """The server's step."""
        answers, left = [], dict(self._asked)
        for reply in replies:
            client = left.pop(reply.metadata.src_node_id)
            answers.append(_answer(client, reply))
        answers += [Answer(client, failure="no reply") for client in left.values()]
        numbers = self.server.receive(server_round, answers)
        failed = self.server.failed
        losses = [answer.train_loss for answer in answers if answer.client not in failed]
        means = {"train_loss": float(np.mean(losses))} if losses else {}
        metrics = {name: float(value) for name, value in numbers.items() if np.ndim(value) == 0}
        return self.arrays(), MetricRecord(
            {**means, "participants": len(losses), "failed": len(failed), **metrics}
        )

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """The messages to all clients; none in rounds without an evaluation."""
        if server_round % self.evaluate_every and server_round != self.server.settings.rounds:
            return []
        return [
            _message(*self.server.served(server_round, k), node, "evaluate")
            for k, node in sorted(self._nodes.items())
        ]

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        """Mean accuracy and loss over clients, each on its own test samples."""
        replied = [reply.content.get("metrics", {}) for reply in replies if not reply.has_error()]
        scored = [client for client in replied if all(name in client for name in SCORES)]
        if not scored:
            return None
        means = {f"local_{name}": float(np.mean([client[name] for client in scored])) for name in SCORES}
        return MetricRecord({**means, "clients": len(scored)})

    def _join(self, grid: Grid, timeout: float) -> list[int]:
        """The numbers of samples of all clients, which get the numbers 0, 1, ..."""
        deadline = time.monotonic() + timeout
        with announced(f"{self.clients} nodes to connect (at most {timeout:g} s)"):
            while len(nodes := [*grid.get_node_ids()]) < self.clients:
                if time.monotonic() > deadline:
                    reason = f"{len(nodes)} of {self.clients} nodes are connected after {timeout:g} s"
                    raise FedflowError(reason)
                time.sleep(0.2)
        if len(nodes) > self.clients:
            raise BadInput("clients", self.clients, f"the number of connected nodes, {len(nodes)}")
        asked = [Message(RecordDict(), dst_node_id=node, message_type="query") for node in nodes]
        about = {}
        for reply in grid.send_and_receive(asked, timeout=timeout):
            if reply.has_error():
                raise FedflowError(f"node {reply.metadata.src_node_id}: {reply.error.reason}")
            node, record = reply.metadata.src_node_id, reply.content.get("about", {})
            if "client" not in record or "samples" not in record:
                raise FedflowError(f"node {node}: its app is not fedflow's client_app")
            about[node] = int(record["client"]), int(record["samples"])
        if len(about) < len(nodes):
            raise FedflowError(f"{len(about)} of {len(nodes)} nodes replied")
        # In a simulation nodes know their numbers; on devices, the order of the nodes decides.
        ranks = sorted(about, key=lambda node: (about[node][0], node))
        self._nodes = dict(enumerate(ranks))
        return [about[node][1] for node in ranks]


def _client(context: Context) -> int:
    """The number of a simulated client; -1 on a device."""
    return int(context.node_config.get("partition-id", -1))


def _arrays(tensors: Mapping[str, Tensor]) -> ArrayRecord:
    return ArrayRecord({name: tensor.detach().cpu() for name, tensor in tensors.items()})


def _tensors(record: Any) -> dict[str, Tensor]:
    return {name: torch.from_numpy(array.numpy().copy()) for name, array in record.items()}


def _kept(context: Context) -> dict[str, Tensor]:
    return _tensors(context.state[KEPT]) if KEPT in context.state else {}


def _message(orders: Orders, sent: Mapping[str, Tensor], node: int, kind: str) -> Message:
    told = {name: value for name, value in asdict(orders).items() if value is not None}
    content = RecordDict({"orders": ConfigRecord(told), "received": _arrays(sent)})
    return Message(content, dst_node_id=node, message_type=kind)


def _read(message: Message) -> tuple[Orders, dict[str, Tensor]]:
    return Orders(**message.content["orders"]), _tensors(message.content["received"])


def _written(answer: Answer) -> RecordDict:
    numbers = {name: getattr(answer, name) for name in NUMBERS}
    return RecordDict(
        {
            "vectors": _arrays(answer.vectors),
            "numbers": MetricRecord(numbers),
            "scalars": MetricRecord(dict(answer.scalars)),
            "reported": MetricRecord(dict(answer.reported)),
            "failure": ConfigRecord({"reason": answer.failure}),
        }
    )


def _answer(client: int, reply: Message) -> Answer:
    if reply.has_error():
        return Answer(client, failure=str(reply.error.reason))
    content = reply.content
    try:
        numbers: dict[str, Any] = {name: content["numbers"][name] for name in NUMBERS}
        return Answer(
            client,
            _tensors(content["vectors"]),
            dict(content["scalars"]),
            dict(content["reported"]),
            failure=str(content["failure"]["reason"]),
            **numbers,
        )
    except KeyError as error:
        return Answer(client, failure=f"its reply has no {error}")
