"""Extensions of a run: parts of it that only some settings, methods or partitions need.

The run calls every extension before its first round, in every round, at every evaluation and at the end; it
knows none of them by name. A new one is a class in a file here, with its name in `all_extensions`, or a class
that a plug-in registers. Its numbers are lines of the table of metrics, or ``method/<name>``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from fedflow.errors import BadInput, FedflowError
from fedflow.settings import check_base
from fedflow.simulation.outcome import RoundReport, RunFindings

if TYPE_CHECKING:  # plug-ins import this module while methods are imported
    import numpy as np
    from torch import Tensor

    from fedflow.methods.method import Message, Round
    from fedflow.simulation.evaluation import Measure, Scores
    from fedflow.simulation.executors import Executor
    from fedflow.simulation.federation import Federation
    from fedflow.simulation.job import ClientResult, Job
    from fedflow.simulation.state import State

E = TypeVar("E")
ROUND, END, NEWCOMERS = "round", "end", "newcomers"  # occasions on which clients are scored
ALONE = ("rounds", "smallest_cohort", "cohort", "serve")  # hooks that only one extension of a run may define


class Run(Protocol):
    """The part of a run (`fedflow.simulation.loop.Simulation`) that extensions use.

    ``clients`` (N) take part, with ``sizes`` [N] training samples and planted ``groups`` [N], if any.
    ``levels`` has the clients of every size of network, one level "" if all have the network of the run.
    """

    job: Job
    settings: Any  # `RunSettings`, whose fields are settings of extensions
    scoring: Any  # `Scoring`
    clock: Any  # `Clock`, of simulated time
    executor: Executor
    federation: Federation
    clients: int
    sizes: np.ndarray
    groups: np.ndarray | None
    cohort_size: int

    @property
    def state(self) -> State: ...

    @property
    def done(self) -> int:
        """The number of rounds so far."""

    @property
    def levels(self) -> Mapping[str, Sequence[int]]: ...

    @property
    def labels(self) -> np.ndarray | None:
        """The labels that each client has [N, C], bool, or None unless samples have one label each."""

    def level(self, client: int) -> str: ...

    def extension(self, kind: type[E]) -> E:
        """The extension of this kind, which the run has."""

    def round(self, t: int, purpose: str, *keys: int, cycle: int = 0) -> Round: ...

    def onboard(self, clients: Sequence[int]) -> dict[str, int]: ...

    def count_traffic(self, report: RoundReport, down: Mapping[int, int], up: Mapping[int, int]) -> None: ...


class RunExtension:
    """One extension of one ``run``, which is made before the run has a state."""

    def __init__(self, run: Run) -> None:
        self.run = run

    @classmethod
    def wanted(cls, run: Run) -> bool:
        """True if the run has it."""
        return True

    # Before the first round

    @property
    def rounds(self) -> int | None:
        """The number of rounds, if it sets that."""
        return None

    @property
    def trains(self) -> bool:
        """True if clients return the model that they trained."""
        return False

    @property
    def stores(self) -> bool:
        """True if the last model that each client trained is stored."""
        return False

    def check(self) -> None:
        """Raise `BadInput` for what it excludes; warn about odd settings."""

    def begin(self, server: Any) -> Any:
        """The server's state before the first round, from the state of `Method.setup`."""
        return server

    def packed(self) -> Mapping[str, Tensor]:
        """Its state at the end of a round, for a checkpoint."""
        return {}

    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        """Restore what was `packed`, from tensors on the host."""

    # In a round

    def start_round(self, report: RoundReport, before: Mapping[str, float]) -> None:
        """Prepare the round of ``report``; ``before`` are the values of the previous round."""

    def poll(self, report: RoundReport) -> None:
        """Ask clients for numbers that choose the cohort, once every extension has started the round."""

    def smallest_cohort(self) -> tuple[int, str] | None:
        """The size of the smallest cohort and its description, if it chooses the clients."""
        return None

    def cohort(self, t: int) -> tuple[np.ndarray, int] | None:
        """The chances of all clients [N] and the size of the cohort of round ``t``, if it chooses them."""
        return None

    def trained(self, sent: ClientResult) -> None:
        """Read the result of a client before its kept vectors are stored.

        If an extension `trains`, they have the trained model as `TRAINED`.
        """

    def traffic(self, report: RoundReport, down: Mapping[int, int], up: Mapping[int, int]) -> None:
        """Count the bytes that crossed, by client."""

    def stepped(self, report: RoundReport, sent: Sequence[ClientResult]) -> None:
        """Add to the report after a server step on the results ``sent``."""

    # At an evaluation

    def serve(self, t: int) -> Message | None:
        """The message from which clients are served before round ``t``, if it decides that."""
        return None

    def measures(self, when: str) -> Sequence[Measure]:
        """Further scores of every client; ``when`` is `ROUND`, `END` or `NEWCOMERS`."""
        return ()

    @property
    def answers(self) -> bool:
        """True if it needs the predictions for all test samples of clients at the end."""
        return False

    @property
    def probabilities(self) -> bool:
        """True if it needs them with the probability of every class."""
        return False

    def evaluate(self, report: RoundReport, scores: Scores) -> Mapping[str, float | None]:
        """Its metrics after the round of ``report``; None is not measured."""
        return {}

    # At the end

    def finish(self, scores: Scores) -> RunFindings:
        """Its part of the result of the run, from the final scores."""
        return RunFindings()


REGISTERED: dict[str, type[RunExtension]] = {}  # extensions of plug-ins, by the names of their classes
K = TypeVar("K", bound=type[RunExtension])


def register_run_extension(kind: K) -> K:
    """A class decorator: every run for which the extension is `wanted` has it, after fedflow's own.

    Raises `BadInput` for a name that another module has registered.
    """
    check_base(kind, RunExtension)
    name, module = kind.__name__, kind.__module__
    if (other := REGISTERED.get(name)) is not None and other.__module__ != module:
        raise BadInput("name", name, f"a name other than the extension of {other.__module__}, in {module}")
    REGISTERED[name] = kind
    return kind


def overriding(hook: str, extensions: Sequence[RunExtension]) -> list[RunExtension]:
    """The ``extensions`` that define a hook."""
    return [e for e in extensions if getattr(type(e), hook) is not getattr(RunExtension, hook)]


def check_alone(extensions: Sequence[RunExtension]) -> None:
    """Raise `FedflowError` if two ``extensions`` of a run decide the same thing, or have one name."""
    names = [type(extension).__name__ for extension in extensions]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise FedflowError(f"two extensions of a run are called {twice[0]}; give one another name")
    for hook in ALONE:
        if len(defining := overriding(hook, extensions)) > 1:
            both = " and ".join(type(extension).__name__ for extension in defining)
            raise FedflowError(f"{both}: only one extension of a run can define `{hook}`")
