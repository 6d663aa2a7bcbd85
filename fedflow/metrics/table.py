"""The metrics of a run and how they are displayed.

Result files, MLflow, the report, the command line and Prefect use this table: a new metric is a line here and
the code that computes it. Diagnostics of a method (``method/<name>``, ``client/<name>/mean``) need no line:
they follow the metrics of the table, sorted by name.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from fedflow.errors import FedflowError

DIAGNOSTICS = ("method/", "client/", "update/")  # prefixes of numbers of a method or an update step
LEVEL = "level/"  # prefix of a metric of the clients of one level: level/<metric>/<level>


@dataclass(frozen=True)
class Unit:
    """Print format of a number: times ``factor``, with ``digits`` decimals; integers are ``whole``.

    Values of a run are from ``least`` to ``most``, which finds invalid files.
    """

    sign: str = ""
    factor: float = 1
    digits: int = 1
    whole: bool = False
    least: float = -math.inf
    most: float = math.inf


SHARE = Unit("%", 100, least=0, most=1)
POINTS = Unit("points", 100, least=0, most=1)
SQUARE = Unit("points²", 1e4, least=0, most=1)
MB = Unit("MB", 1e-6, whole=True, least=0)
COUNT = Unit(whole=True, least=0)
TIME = Unit(least=0)  # simulated, in the unit of run.timing
NUMBER = Unit(digits=4)
INDEX = Unit(digits=3, least=0, most=1)


UNMEASURED = "–"


@dataclass(frozen=True)
class Metric:
    """One metric.

    ``rounds``: a column of ``rounds.csv``, filled only in some rounds if ``sparse``. ``final``: in
    ``metrics.json``, with the last round's value if none is computed at the end. ``required``: in every
    ``metrics.json``, as a whole number. ``client``: the field of `Scores` with its values by client, a column
    of ``clients.parquet``. ``table``: the table of the report with this column, sorted by ``rank``.
    ``missing``: printed for runs without a value. ``question``: heading of its best method in the report's
    findings. ``curves``: x axes of its curves in the report (round, traffic, time). ``headline``: printed at
    the end of a run and shown in Prefect. ``measure``: the value of ``tuning.measure`` that tunes for it.
    """

    name: str
    label: str
    hint: str = ""
    unit: Unit = SHARE
    better: Literal["higher", "lower", ""] = "higher"  # "": neither, so that no value is best
    rounds: bool = False
    sparse: bool = False
    final: bool = True
    required: bool = False
    client: str = ""
    table: str = ""
    rank: int = 0
    missing: str = UNMEASURED
    question: str = ""
    curves: tuple[str, ...] = ()
    headline: bool = False
    measure: str = ""


YARDSTICKS = ("local_accuracy", "loss")  # order of methods: by loss if there is no accuracy

REPORTED = (  # models of `run.reports`: name, label, description
    ("server", "Broadcast model", "the model that the server sends next"),
    ("active", "Cohort mean", "the mean of the models that the round's clients trained"),
    ("all", "All-client mean", "the mean of the models that all clients trained last"),
)

ADAPTED = (("maml", "MAML"), ("proto", "Proto"))  # of `run.adapt`: name, label
ENDS = {"accuracy": "", "min": ", lowest", "max": ", highest"}  # over clients: their mean, and of one of them

PREDICTED = (  # of kept predictions, means over clients: name, label, description
    ("macro_f1", "Macro F1, %", "local, mean F1 over classes or labels"),
    ("micro_f1", "Micro F1, %", "local, F1 of all labels together, of several labels per sample"),
    ("balanced_accuracy", "Balanced, %", "local, mean recall over classes"),
    ("exact", "Exact match, %", "local, share of samples with all of several labels right"),
    ("auroc", "AUROC, %", "local, mean over classes or labels"),
)

METRICS: dict[str, Metric] = {metric.name: metric for metric in (
    Metric(
        "train_loss", "Training loss", unit=NUMBER, better="lower", rounds=True, final=False, headline=True,
    ),
    Metric(
        "global_accuracy", "Global, %", "on the complete test set", rounds=True, client="global_accuracy",
        table="accuracy", question="Best on the complete test set", curves=("round",), headline=True,
        measure="global",
    ),
    *(
        Metric(
            f"{name}_accuracy", f"{label}, %", f"of {what}, on the complete test set", rounds=True,
            table="accuracy", curves=("round", "traffic"), headline=True,
        )
        for name, label, what in REPORTED
    ),
    Metric(
        "local_accuracy", "Local, %", "mean over clients, each on its own test set", rounds=True,
        client="local_accuracy", table="accuracy", question="Best for the clients",
        curves=("round", "traffic", "time"), headline=True, measure="local",
    ),
    Metric(
        "local_weighted", "By samples, %", "local accuracy, clients weighted by their test samples",
        rounds=True, table="fairness",
    ),
    Metric(
        "local_variance", "Variance, points²", "the square of the std", SQUARE, "lower", rounds=True,
        table="fairness", rank=3,
    ),
    Metric(
        "local_std", "Std over clients, points", "population std of local accuracy over clients", POINTS,
        "lower", rounds=True, table="fairness", rank=2,
    ),
    Metric(
        "local_lowest", "Lowest, %", "lowest local accuracy of any client", rounds=True, table="fairness",
        rank=1,
    ),
    Metric(
        "local_highest", "Highest, %", "highest local accuracy of any client", rounds=True,
        table="fairness", rank=1,
    ),
    Metric(
        "local_worst10", "Worst tenth, %", "mean local accuracy of the worst tenth of the clients",
        rounds=True, table="fairness", question="Best for the worst-served 10 %", headline=True,
        measure="worst",
    ),
    Metric(
        "local_best10", "Best tenth, %", "mean local accuracy of the best tenth of the clients",
        table="fairness",
    ),
    Metric(
        "local_gap", "Gap, points", "best tenth minus worst tenth: the accuracy-parity gap", POINTS, "lower",
        table="fairness", rank=3,
    ),
    Metric(
        "local_gini", "Gini", "0 = all clients have the same accuracy", INDEX, "lower",
        table="fairness", rank=4,
    ),
    *(
        Metric(name, label, f"{what} (run.keep_predictions)", table="accuracy", headline=True)
        for name, label, what in PREDICTED
    ),
    Metric(
        "tuned_accuracy", "After fine-tuning, %", "local, after one more local training",
        client="tuned_accuracy", table="accuracy", headline=True, measure="tuned",
    ),
    *(
        Metric(
            f"{name}_{what}", f"After {label}{end}, %", "local, after adaptation to all training samples",
            rounds=True, client=f"{name}_{what}" if what == "accuracy" else "",
            table="fairness" if end else "accuracy", rank=1 if end else 0,
            curves=() if end else ("round", "traffic"), headline=not end,
        )
        for name, label in ADAPTED
        for what, end in ENDS.items()
    ),
    Metric(
        "local_final_accuracy", "Local, last trained, %",
        "local, of the model a client holds after its last training", client="trained_accuracy",
        table="accuracy",
    ),
    Metric(
        "loss", "Loss", "mean over clients, each on its own test set", NUMBER, "lower", table="accuracy",
        rank=1, question="Smallest loss of the clients", headline=True,
    ),
    Metric(
        "global_loss", "Global loss", "mean over the complete test set", NUMBER, "lower", rounds=True,
        table="accuracy", rank=1,
    ),
    *(
        Metric(
            f"{name}_loss", f"{label}, loss", f"of {what}, on the complete test set", NUMBER, "lower",
            rounds=True, table="accuracy", rank=1, headline=True,
        )
        for name, label, what in REPORTED
    ),
    Metric(
        "bytes_down", "Down, MB", "server to clients, all rounds", MB, "", rounds=True, required=True,
        table="traffic",
    ),
    Metric(
        "bytes_up", "Up, MB", "clients to server, all rounds", MB, "", rounds=True, required=True,
        table="traffic", headline=True,
    ),
    Metric(
        "shipped_bytes", "Shipped once, MB", "teacher and expert, to all clients before round 1", MB, "",
        table="traffic",
    ),
    Metric(
        "paper_bytes", "By formula, MB", "down and up by the formula of the method's source, which leaves "
        "out norms and counts pruned networks at their final size from round 1", MB, "", table="traffic",
    ),
    Metric(
        "macs", "MACs, M", "multiplications for one sample, in millions; mean over the clients' networks",
        Unit(factor=1e-6, digits=3, least=0), "", table="traffic",
    ),
    Metric(
        "macs_ratio", "Fewer MACs, ×", "MACs of the whole network over MACs of the clients' networks",
        Unit("×", digits=3, least=0), table="traffic",
    ),
    Metric(
        "macs_convolutions", "MACs of convolutions, M", "multiplications in convolutions alone",
        Unit(factor=1e-6, digits=3, least=0), "", table="traffic",
    ),
    Metric(
        "macs_convolutions_ratio", "Fewer MACs of convolutions, ×", "the same ratio for convolutions alone",
        Unit("×", digits=3, least=0), table="traffic",
    ),
    Metric(
        "kept", "Kept, %", "share of the network's parameters in the clients' networks; mean over clients",
        SHARE, "", table="traffic",
    ),
    Metric(
        "participants", "Participants", "clients that were sent the model in this round", COUNT, "",
        rounds=True, final=False,
    ),
    Metric(
        "gradients", "Gradients, M", "samples whose gradient clients computed, all rounds, in millions",
        Unit(factor=1e-6, digits=2, whole=True, least=0), "", rounds=True, table="traffic",
    ),
    Metric(
        "updates", "Updates", "that clients sent, all rounds", COUNT, "", rounds=True, table="traffic",
    ),
    Metric(
        "pool", "Pool", "clients that may take part in this round (client curriculum)", COUNT, "",
        rounds=True, final=False,
    ),
    Metric("polls", "Polls", "number of times that all clients sent their losses", COUNT, "", rounds=True),
    Metric(
        "poll_bytes", "Polls, MB", "models down and losses up, to rank the clients: part of the traffic", MB,
        "", rounds=True, table="traffic",
    ),
    Metric("clock", "Simulated time", unit=TIME, better="lower", rounds=True),
    Metric("idle", "Idle time of a client in a round", unit=TIME, better="lower", rounds=True, final=False),
    Metric("delay", "Server steps since the download", unit=TIME, better="lower", rounds=True, final=False),
    Metric(
        "rounds_to_target", "Rounds to target", "first evaluated round that reaches the target", COUNT,
        "lower", table="traffic", missing="not reached", headline=True,
    ),
    Metric(
        "bytes_to_target", "MB to target", "down and up until that round, onboarding and shipped once", MB,
        "lower", table="traffic", missing="not reached",
    ),
    Metric(
        "stopped_in", "Stopped in round", "first evaluated round that reached run.stop_at", COUNT, "lower",
        table="traffic", missing="not reached", headline=True,
    ),
    Metric("clock_to_target", "Simulated time to target", unit=TIME, better="lower"),
    Metric("target_accuracy", "Target, %", better=""),
    Metric(
        "clusters", "Clusters", "at the end", COUNT, "", rounds=True, required=True, table="clusters",
        headline=True,
    ),
    Metric("failed_clients", "Failed clients", unit=COUNT, better="lower", required=True),
    Metric(
        "failed_rounds", "Failed rounds", "rounds in which every client failed", COUNT, "lower",
        headline=True,
    ),
    Metric(
        "ari", "ARI", "adjusted Rand index with the planted groups",
        Unit(digits=3, least=-1, most=1), rounds=True, table="clusters", headline=True,
    ),
    Metric(
        "nmi", "NMI", "normalized mutual information with the planted groups", INDEX, rounds=True,
        table="clusters",
    ),
    Metric(
        "clustering_error", "Clustering error",
        "misplaced clients per client: of other groups in its cluster, and of its group in other clusters",
        Unit(digits=2, least=0), "lower", rounds=True, table="clusters",
    ),
    Metric(
        "fid", "FID", "Fréchet distance between the features of generated images and of the complete test "
        "set; only values of equal features and equal numbers of images compare", Unit(digits=2), "lower",
        rounds=True, sparse=True, table="generation", headline=True,
    ),
    Metric(
        "fid_floor", "FID of real images", "the same of random training images, as many of every class",
        Unit(digits=2), "", table="generation", headline=True,
    ),
    Metric(
        "real_accuracy", "Global with real images, %", "on the complete test set, of the classifier trained "
        "in the same way on these training images", better="", table="generation", headline=True,
    ),
    Metric(
        "lowest_class", "Lowest class, %", "accuracy of the classifier on the complete test set, of the "
        "class with the lowest", table="generation",
    ),
    Metric(
        "precision", "Precision, %", "share of generated images within the ball of some test image, up to "
        "its 5th neighbor", rounds=True, sparse=True, table="generation",
    ),
    Metric(
        "recall", "Recall, %", "share of test images within the ball of some generated image", rounds=True,
        sparse=True, table="generation",
    ),
    Metric(
        "density", "Density", "balls of test images that a generated image is within, over 5",
        Unit(digits=2), rounds=True, sparse=True, table="generation",
    ),
    Metric(
        "coverage", "Coverage, %", "share of test images with a generated image within their ball",
        rounds=True, sparse=True, table="generation",
    ),
    Metric(
        "nearest_train", "Nearest training image", "mean distance of generated images, in pixels of [0, 1]",
        Unit(digits=3), "", rounds=True, sparse=True, table="privacy", headline=True,
    ),
    Metric(
        "nearest_real", "The same of test images", "mean distance of real test images to the nearest "
        "training image", Unit(digits=3), "", table="privacy", headline=True,
    ),
    Metric(
        "nearest_test", "Nearest test image", "mean distance of generated images", Unit(digits=3), "",
        rounds=True, sparse=True, table="privacy",
    ),
    Metric(
        "near_copies", "Near copies, %", "share of generated images that are closer to a training image than "
        "95 % of test images are: 5 % are expected of images that are as new as those", SHARE, "lower",
        rounds=True, sparse=True, table="privacy", headline=True,
    ),
    Metric(
        "newcomer_accuracy", "Newcomers, %", "local, of clients that joined after the last round",
        table="accuracy",
    ),
    Metric(
        "newcomer_tuned_accuracy", "Newcomers, tuned, %", "the same, after one local training",
        table="accuracy",
    ),
    Metric("newcomers", "Newcomers", unit=COUNT, better=""),
    Metric("evaluated_clients", "Evaluated clients", unit=COUNT, better=""),
    Metric("onboarding_bytes_down", "Down before round 1, MB", unit=MB, better=""),
    Metric("onboarding_bytes_up", "Up before round 1, MB", unit=MB, better=""),
)}  # fmt: skip


def level_metric(level: str, name: str) -> str:
    """The name of a metric of the clients of one level; ``name`` itself without levels."""
    return f"{LEVEL}{name}/{level}" if level else name


def check_names(names: Iterable[str]) -> None:
    """Raise `FedflowError` for a name that is neither a metric nor a diagnostic."""
    for name in names:
        if metric_of(name) is None and not name.startswith(DIAGNOSTICS):
            raise FedflowError(f"{name!r} is no metric; name a number of an extension method/<name>")


def levels_of(names: Iterable[object]) -> list[str]:
    """The levels in metric names, sorted."""
    return sorted({str(name).rpartition("/")[2] for name in names if str(name).startswith(LEVEL)})


def metric_of(name: str) -> Metric | None:
    """The table's entry for a metric, also of one level, or None for diagnostics."""
    return METRICS.get(name.removeprefix(LEVEL).rpartition("/")[0] if name.startswith(LEVEL) else name)


def unit_of(name: str) -> Unit:
    """The unit of a metric; diagnostics have none."""
    metric = metric_of(name)
    return metric.unit if metric else NUMBER


def heading(name: str) -> str:
    """The heading of a column."""
    metric, level = metric_of(name), name.rpartition("/")[2]
    if metric is None:
        return name
    return f"{metric.label} ({level})" if name.startswith(LEVEL) else metric.label


def in_unit(value: float, unit: Unit) -> str:
    """A value times its factor, with its decimals and without a negative zero."""
    return f"{round(value * unit.factor, unit.digits) + 0.0:.{unit.digits}f}"


def printed(name: str, value: float | None) -> str:
    """A value in its unit; empty if it was not measured."""
    if isinstance(value, int) and unit_of(name) is COUNT:
        return f"{value:,}"
    return "" if value is None else in_unit(value, unit_of(name))


def yardstick_first(metrics: Iterable[Metric]) -> list[Metric]:
    """``metrics`` in the order of the page: the metric that orders methods comes first."""
    return sorted(metrics, key=lambda metric: metric.name != YARDSTICKS[0])


def first_headlines(names: Iterable[str], count: int) -> list[str]:
    """The first ``count`` of `headlines`, and all others of `PREDICTED`."""
    listed, predicted = headlines(names), {name for name, *_ in PREDICTED}
    return listed[:count] + [name for name in listed[count:] if name in predicted]


def recorded_name(name: str) -> str:
    """The name of a metric in MLflow, which groups metrics by the part before the slash: here the table."""
    metric = METRICS.get(name)
    if metric is None and "/" in name:
        return name
    return f"{metric.table if metric and metric.table else 'round'}/{name}"


def diagnostics(names: Iterable[str]) -> list[str]:
    """Metrics of one level and diagnostics among ``names``, sorted."""
    return sorted(name for name in names if name.startswith((LEVEL, *DIAGNOSTICS)))


def headlines(names: Iterable[str]) -> list[str]:
    """The names to print: headline metrics, then diagnostics."""
    marked = [metric.name for metric in yardstick_first(METRICS.values()) if metric.headline]
    present = set(names)
    return [name for name in marked if name in present] + diagnostics(present)


def completed(metrics: Mapping[str, Any], values: Mapping[str, float]) -> dict[str, Any]:
    """The final ``metrics`` of a run, completed from the last round's ``values``.

    Numbers that are not finite become None, as JSON does not have them.
    """
    absent = [n for n in values if n not in metrics and ((of := metric_of(n)) is None or of.final)]
    rest = {name: values[name] if math.isfinite(values[name]) else None for name in sorted(absent)}
    return {**metrics, **rest}
