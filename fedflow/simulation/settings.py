"""The settings of a run, and the checks of a method against them that need no data."""

from typing import Any

from fedflow.errors import BadInput
from fedflow.local.extensions.adaptation import Adaptation
from fedflow.local.extensions.extension import Extension
from fedflow.local.local_training import LocalTraining
from fedflow.methods.method import Conditions, Method
from fedflow.methods.protocols import (
    SAMPLERS,
    Adapting,
    Asynchronous,
    Cyclic,
    Generative,
    Leveled,
    Pretrained,
    Selecting,
    samplers,
    server_data,
    trains_one_model,
)
from fedflow.metrics.table import ADAPTED
from fedflow.settings import Settings, Words, option, shown, written
from fedflow.simulation.extensions.client_curriculum import ClientCurriculum
from fedflow.simulation.extensions.trained_means import MEANS, REPORTS
from fedflow.simulation.stop import StopAt
from fedflow.simulation.timing import Timing
from fedflow.simulation.updates import UpdateStep, check_steps, replaces_means

STREAMED = ("steps", "lr_within", "optimizer")  # settings of training that only batches follow


class RunSettings(Settings):
    """The length of a run, participation, and evaluation."""

    section = "run"
    rounds: int = option(20, "rounds", symbol="T", ge=1)
    participation: float = option(
        0.1, "share of the clients in a cohort; m = max(1, floor(R N))", symbol="R", gt=0, le=1
    )
    sampling: str = option(
        "uniform",
        "how cohorts are drawn: uniformly; in proportion to n_k (to use with uniform weights); "
        "each client with probability R (bernoulli); all clients in turns of m, in random order (sweep); or "
        "a growing pool of clients in such turns, those with a small loss first (easy_first)",
        choices=SAMPLERS,
    )
    client_curriculum: ClientCurriculum | None = option(
        None, "the pool of `sampling: easy_first`; null = its defaults there"
    )
    min_cohort: int = option(
        0,
        "stop with an error if fewer clients of a round succeed; with 0, a round in which all fail leaves "
        "the models as they were, and 1 / R such rounds in a row (at least 2) stop the run",
        ge=0,
        source="PFL and its code",
    )
    evaluate_every: int = option(5, "rounds between evaluations; the last round is always evaluated", ge=1)
    evaluate_clients: int | None = option(
        None, "number of random clients to score, the same in all evaluations; null = all", ge=1
    )
    fine_tune: bool = option(True, "at the end, also score every client after one more local training")
    keep_trained: bool = option(False, "keep every client's last trained model, and score it at the end")
    reports: list[str] = option(
        factory=list,
        choices=REPORTS,
        doc="also score models on the complete test set: the one that is broadcast (server), the mean of the "
        "models that this round's clients trained (active), and the mean of all clients' last models (all)",
    )
    adapt: list[Adaptation] = option(
        factory=list,
        doc="score every client at every evaluation after adaptation to all its training "
        "samples too; each item as training.adaptation, at most one of each name",
    )
    adapt_from: str = option(
        "served",
        "the model that is adapted for run.adapt: the one that the client is served, or a mean of "
        "trained models, active or all as in run.reports",
        choices=("served", *MEANS),
        source="PFL: all",
    )
    keep_predictions: bool = option(
        False, "at the end, write what the served models predict for every client's own test samples"
    )
    keep_probabilities: bool = option(
        False,
        "write these predictions with the probability of every class, which AUROC of several classes needs",
    )
    sweep: bool = option(
        True,
        "at the end, also score every client with all mixtures of its global and its personal model, "
        "where the method has them",
    )
    features: str | None = option(
        None, "network of `central` whose inputs of the last layer measure generated images; null = pixels"
    )
    inception: str | None = option(
        None,
        "file of weights of Inception v3, whose features measure generated images instead",
        source="FedEvg",
    )
    target_accuracy: float | None = option(
        None, "also report the rounds and bytes until this local accuracy", gt=0, le=1
    )
    stop_at: StopAt | None = option(
        None, "end the run at the first evaluation in which a metric reaches a value; schedules do not change"
    )
    checkpoint_every: int = option(5, "rounds between checkpoints", ge=1)
    timing: Timing = option(factory=Timing, doc="how fast clients are, in simulated time")
    updates: list[UpdateStep] = option(
        factory=list, doc="steps that updates take on their way to the server, in this order"
    )

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
        self._check_stop()
        if self.adapt_from != "served" and not self.adapt:
            raise BadInput("run.adapt_from", self.adapt_from, "served with run.adapt: []")
        check_steps(self.updates)
        if self.sampling == "easy_first" and self.client_curriculum is None:
            complete = ClientCurriculum.parse({})  # so that results record the defaults in use
            object.__setattr__(self, "client_curriculum", complete)
        if self.sampling != "easy_first" and self.client_curriculum is not None:
            raise BadInput("run.sampling", self.sampling, "easy_first with run.client_curriculum")

    def _check_stop(self) -> None:
        """Raise `BadInput` for a metric of ``stop_at`` that other fields leave out."""
        if self.stop_at is None:
            return
        source, field = self.stop_at.metric.partition("_")[0], f"{self.stop_at.section}.metric"
        if source in REPORTS and source not in self.reports:
            raise BadInput(field, self.stop_at.metric, f"a metric of the run; set run.reports: [{source}]")
        if source in dict(ADAPTED) and source not in [adaptation.name for adaptation in self.adapt]:
            raise BadInput(field, self.stop_at.metric, f"a metric of the run; set run.adapt: [{source}]")


def conditions_of(
    settings: RunSettings, training: LocalTraining, clients: int | None, several: bool
) -> Conditions:
    """The settings of a run that methods and steps of updates check."""
    participation, sampling = settings.participation, settings.sampling
    rule = next((step.name for step in settings.updates if replaces_means(step)), "")
    return Conditions(settings.rounds, training, clients, several, participation, sampling, rule)


def check_settings(
    settings: RunSettings,
    method: Method,
    training: LocalTraining,
    clients: int | None = None,
    several: bool = False,
) -> LocalTraining:
    """The local training of the method, from the ``training`` of the run.

    Raises `BadInput` unless the method can run with these settings, and with N ``clients`` if known.
    ``several``: samples can have several labels each.
    """
    adapting = Adapting.of(method)
    training = adapting.trains(training)
    conditions = conditions_of(settings, training, clients, several)
    method.check(conditions)
    for step in settings.updates:
        step.check(method, conditions)
    adaptation = training.adaptation
    if adaptation is not None and adaptation.clip_norm is not None and not adapting.serves_adapted():
        accepted = f"null with {method.name}, which serves unadapted models, as it is for evaluation only"
        raise BadInput(f"{adaptation.section}.clip_norm", adaptation.clip_norm, accepted)
    streams, plain = method.streams(training), LocalTraining.parse({})
    for extension in () if streams else training.in_use:
        if extension.needs_batches or type(extension).begin is not Extension.begin:
            raise extension.refused(f"with {method.name}, which trains on full gradients")
    for name in () if streams else STREAMED:
        value, default = getattr(training, name), getattr(plain, name)
        if value != default:
            accepted = f"{written(default)} with {method.name}, which trains on full gradients"
            raise BadInput(f"training.{name}", shown(value), accepted)
    if not streams and training.stragglers and not training.drop_stragglers:
        accepted = f"0 with {method.name}, which trains on full gradients, or drop_stragglers"
        raise BadInput("training.stragglers", training.stragglers, accepted)
    if training.steps is not None and {*streams.values()} != {training.epochs}:
        accepted = f"null with {method.name}, which sets numbers of epochs itself"
        raise BadInput("training.steps", training.steps, accepted)
    if isinstance(method, Asynchronous) and method.clients_in_flight(1):
        accepted = f"with {method.name}, which is asynchronous"
        if settings.sampling != "uniform":
            raise BadInput("run.sampling", settings.sampling, f"uniform {accepted}")
        if training.stragglers:
            raise BadInput("training.stragglers", training.stragglers, f"0 {accepted}")
    if settings.sampling == "easy_first" and training.drop_stragglers:
        accepted = "false with run.sampling: easy_first, whose pools count the updates of all their clients"
        raise BadInput("training.drop_stragglers", shown(training.drop_stragglers), accepted)
    if settings.sampling not in (obeyed := samplers(method)):
        reason = f"with {method.name}, which chooses its cohorts itself"
        raise BadInput("run.sampling", settings.sampling, f"{' or '.join(obeyed)} {reason}")
    for name in () if isinstance(method, Generative) else ("features", "inception"):
        if (value := getattr(settings, name)) is not None:
            raise BadInput(f"run.{name}", value, f"null with {method.name}, which generates no images")
    if settings.client_curriculum and isinstance(method, Cyclic):
        accepted = f"{' or '.join(SAMPLERS[:-1])} with {method.name}, whose rounds have several cohorts"
        raise BadInput("run.sampling", settings.sampling, accepted)
    reason = f"with {method.name}, whose clients do not train one common model"
    if settings.reports and not trains_one_model(method) and not isinstance(method, Leveled):
        raise BadInput("run.reports", settings.reports, f"[] {reason}")
    if settings.adapt_from != "served" and not trains_one_model(method):
        raise BadInput("run.adapt_from", settings.adapt_from, f"served {reason}")
    if (stop := settings.stop_at) and stop.metric.startswith("global_") and method.serves == "personal":
        accepted = (
            f"another metric with {method.name}, whose models see the complete test set at the end only"
        )
        raise BadInput(f"{stop.section}.metric", stop.metric, accepted)
    return training


def check_selection(method: Method, selection: bool) -> None:
    """Raise `BadInput` if the method selects models on held-out samples and clients have none."""
    if (instead := Selecting.of(method).selects()) and not selection:
        accepted = f"a share > 0, as {method.name} needs held-out samples; or set {instead}"
        raise BadInput("partition.selection", 0, accepted)


def check_server_data(method: Method, public: bool) -> None:
    """Raise `BadInput` if the method needs data of the server and there is none (``public``)."""
    if (instead := Pretrained.of(method).needs_data()) and not public:
        accepted = f"a number >= 1, as {method.name} needs data of the server; or set {instead}"
        raise BadInput("partition.public", 0, accepted)


def check_division(method: Method, selection: bool, public: int) -> None:
    """Raise `BadInput` if a partition with these settings lacks samples that the method needs."""
    data = server_data(method)
    check_selection(method, selection)
    check_server_data(method, bool(public or data.dataset or data.noise))


def decisive(method: Method, training: LocalTraining, run: RunSettings) -> dict[str, dict[str, Any]]:
    """By section: the settings of a run that can change its numbers."""
    left_out = {"checkpoint_every"} | ({"stop_at"} if run.stop_at is None else set())
    return {
        "method": {"name": method.name, **method.as_dict()},
        "training": training.as_dict(),
        "run": {name: value for name, value in run.as_dict().items() if name not in left_out},
    }
