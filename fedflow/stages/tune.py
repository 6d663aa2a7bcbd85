"""Tuning: tries a grid of settings for every method, on held-out training data.

The rule is the same for every method. A share ``tuning.validation`` of every client's training samples is
held out and replaces the test set: a client is scored on the held-out samples of all clients with its labels,
as the report scores it on all test images with its labels. Every combination of the grid is run on the rest;
the highest value of ``tuning.measure`` is chosen, the first of equals. While it is at an edge of the grid,
the grid is widened. With ``tuning.search: random`` or ``tpe`` (Optuna), every method gets ``tuning.trials``
tries instead, with numbers between the smallest and the largest of the grid. Test data and newcomers are not
used. The choice is written to ``params.yaml`` under ``tuned``, by partition and method; all scores to
``tuning/<partition>/<method>.csv``.
"""

import contextlib
import io
import json
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pandas as pd
import yaml
from filelock import FileLock

from fedflow.config import Loaded, MethodParams
from fedflow.config.changing import put, read_yaml
from fedflow.config.tuning import MEASURES, combinations
from fedflow.data import is_current, load_prepared
from fedflow.errors import BadInput, FedflowError, RoundFailed
from fedflow.files import intact, make_writable, naming, prepared_folder, replace_text
from fedflow.finished.reading import read_json, read_parquet, read_table
from fedflow.methods.registry import method_name
from fedflow.metrics.table import METRICS
from fedflow.naming import listed
from fedflow.project.arguments import NAME
from fedflow.project.distribution import extra
from fedflow.project.terminal import say
from fedflow.project.waiting import held
from fedflow.project.yaml_text import yaml_value
from fedflow.simulation.sampling import cohort_size
from fedflow.stages.all_stages import run_experiment
from fedflow.stages.experiment import Experiment
from fedflow.stages.grid import failure, is_finished

LOSSES = {"local": "loss", "global": "global_loss"}  # by measure, for samples without an accuracy
# the section in a document: blank lines and comments at its end belong to what follows
TUNED = re.compile(r"^tuned[ \t]*:.*(?:(?:\n[ \t]*(?:#.*)?)*\n[ \t]+[^ \t\n#].*)*", re.M)
Federate = Callable[[Experiment, Path], dict[str, Any]]  # runs an experiment, with results in a folder


def tune(
    params: Loaded,
    partition: str,
    federate: Federate = run_experiment,
    methods: Sequence[str] | None = None,
    root: Path = Path(),
    write: bool = True,
) -> dict[str, dict[str, Any]]:
    """Try the grid of every method (default: the methods of the grid); returns the choices.

    Every try is a recorded run of the partition ``<name>-validation``, by ``federate``. ``write`` puts the
    choice under ``tuned`` in ``params.yaml``. Raises `FedflowError` before the first run if a grid is invalid
    or its values give the same settings, and after the first runs if they give the same results.
    """
    chosen, failed, every = {}, list[str](), searches(params, partition, methods, root)
    for search in every:
        try:
            chosen[search.method] = search.run(federate)
            if write:
                search.write(chosen[search.method])
        except Exception as error:  # it must not end the tuning of other methods
            if len(every) == 1:
                raise
            failed.append(search.method)
            say(f"{search.method}: tuning {failure(error)}")
    if failed:
        raise FedflowError(f"not tuned: {listed(failed)}")
    return chosen


def searches(
    params: Loaded, partition: str, methods: Sequence[str] | None = None, root: Path = Path()
) -> list["Search"]:
    """The search of every method (default: the methods of the grid), all checked."""
    _check_partition(params, partition)
    names = [params.method_name(name) for name in methods or params.grid.methods]
    made = [Search(params, partition, name, root) for name in dict.fromkeys(names)]
    for search in made:
        search.check()
    return made


def _held_out(partition: str) -> str:
    """The name of the partition of the tries."""
    return f"{partition}-validation"


def _check_partition(params: Loaded, partition: str) -> None:
    """Raise `BadInput` if there is no such partition, or if the name of its tries is taken or too long."""
    params.partition(partition)
    name = _held_out(partition)
    if name in params.partitions:
        accepted = f"another name: tuning {partition} makes a partition of this name"
        raise BadInput("partitions", name, accepted)
    if not NAME.fullmatch(name):
        accepted = f"a shorter name: {_held_out('NAME')} has at most 128 characters"
        raise BadInput("partition", partition, accepted)


@dataclass(frozen=True)
class Score:
    """The score of one combination of settings."""

    tried: dict[str, Any]
    settings: str  # digest of the run's settings, which ends the name of its folder
    metrics: dict[str, Any] | None = None  # None if it diverged
    spread: float | None = None  # population std over clients

    def value(self, measure: str) -> float | None:
        """The measured accuracy, or minus the loss if there is no accuracy: higher is better."""
        if self.metrics is None:
            return None
        accuracy, loss = self.metrics[MEASURES[measure]], self.loss(measure)
        return accuracy if accuracy is not None else None if loss is None else -loss

    def loss(self, measure: str) -> float | None:
        """The clients' mean loss or, for samples without an accuracy, the loss of the measure."""
        if self.metrics is None:
            return None
        measured = self.metrics[MEASURES[measure]] is not None
        return self.metrics["loss" if measured else LOSSES.get(measure, "loss")]


@dataclass
class Search:
    """The grid of one method, and the scores of its tries."""

    params: Loaded
    partition: str
    method: str
    root: Path
    grid: dict[str, list] = field(init=False)
    scores: list[Score] = field(default_factory=list, init=False)

    def __post_init__(self) -> None:
        self.grid = self.params.tuning.grid_of(self.params.registered(self.method), self.method)

    def check(self) -> None:
        """Raise `BadInput` if a combination cannot be run, or if all of them are the same settings."""
        self._check_measure()
        tries = [self.experiment(tried) for tried in combinations(self.grid)]
        for experiment in tries:
            self._check_rounds(experiment)
        digests = [experiment.digest for experiment in tries]
        if len(digests) > 1 and len(set(digests)) == 1:
            raise BadInput("tuning.grid", self.grid, f"values that change a setting of {self.method}")
        for name, values in self.grid.items():
            if len({repr(value) for value in values}) < len(values):
                raise BadInput(f"tuning.grid.{name}", values, "every value once")

    def _check_measure(self) -> None:
        """Raise `BadInput` for a measure without a loss if the data are prepared and have no accuracy."""
        dataset = self.params.partition(self.partition).dataset
        folder = prepared_folder(self.root, dataset)
        if self.params.tuning.measure in LOSSES or not is_current(folder, self.params.dataset(dataset)):
            return
        prepared = intact(lambda: load_prepared(folder))
        if prepared is not None and prepared.y_train.is_floating_point():
            raise self._no_accuracy()

    def _no_accuracy(self) -> BadInput:
        accepted = f"{' or '.join(LOSSES)}, as these samples have no accuracy"
        return BadInput("tuning.measure", self.params.tuning.measure, accepted)

    def _check_rounds(self, tried: Experiment) -> None:
        """Raise `BadInput` if the rounds of a try are too few for the updates of its client curriculum."""
        run, entry = tried.run, self.params.partition(self.partition)
        if run.client_curriculum is None or entry.clients is None:  # their number depends on the data
            return
        clients = entry.clients - round(entry.newcomers * entry.clients)
        try:
            run.client_curriculum.turns(clients, cohort_size(run.participation, clients), run.rounds)
        except BadInput as error:
            field = error.field if self.params.tuning.rounds is None else "tuning.rounds"
            raise error.renamed(field) from None

    def run(self, federate: Federate) -> dict[str, Any]:
        """Try the grid, widened while its best value is at an edge, and keep the scores; returns the best.

        With another `Tuning.search`, try samples; a best value near an edge is printed.
        """
        self._check_measure()  # an earlier search may have prepared the data
        self._say_unused()
        if self.params.tuning.search != "grid":
            return self._sample(federate)
        self._try(federate, combinations(self.grid))
        self.best()
        self._refuse_idle()
        for _ in range(self.params.tuning.widen):
            if not self._widen(federate):
                break
        best = self.best().tried
        for name, value in best.items():
            if at_edge(self.grid[name], value):
                values = ", ".join(map(str, self.grid[name]))
                say(f"{self.method}: the best {name}, {value}, is at the edge of the values tried: {values}")
        return best

    def _say_unused(self) -> None:
        """Name the changes of settings that tuning replaces by its own values."""
        changed = [change.partition("=")[0].replace('"', "") for change in self.params.changes]
        replaced = {
            f"partitions.{self.partition}.validation": "tuning.validation sets this value",
            "run.fine_tune": "tuning.measure decides this",
            "run.stop_at": "tries are compared after the same number of rounds",
        }
        if self.params.tuning.rounds:
            replaced["run.rounds"] = "tuning.rounds sets this value"
        replaced |= dict.fromkeys(self.grid, "tuning.grid sets this value")
        for name in changed:
            if why := replaced.get(name.removeprefix(f"methods.{self.method}.")):
                say(f"{self.method}: --set {name}: not used: {why}")

    def write(self, chosen: Mapping[str, Any]) -> None:
        """Put the choice under ``tuned`` in params.yaml; if that fails, print it."""
        try:
            write_choice(self.root / "params.yaml", self.partition, self.method, chosen)
        except Exception:
            say(f"{self.method}: chosen, but not written to params.yaml: {_words(chosen)}")
            raise

    def best(self) -> Score:
        """The highest score, the first of equals. Raises `FedflowError` if every try diverged."""
        if (best := self._best()) is None:
            raise FedflowError(f"tuning: every try of {self.method} diverged; try smaller values")
        return best

    def _best(self) -> Score | None:
        values = [(score.value(self.params.tuning.measure), score) for score in self.scores]
        finite = [(value, score) for value, score in values if value is not None]
        return max(finite, key=lambda pair: pair[0])[1] if finite else None

    def _try(self, federate: Federate, tries: Iterator[dict[str, Any]]) -> None:
        for tried in tries:
            self.scores.append(self._score(federate, tried))
            self._save()

    def _sample(self, federate: Federate) -> dict[str, Any]:
        """Try `Tuning.trials` samples of the ranges of the grid; returns the best."""
        tuning, optuna = self.params.tuning, import_optuna()
        samplers = {"random": optuna.samplers.RandomSampler, "tpe": optuna.samplers.TPESampler}
        study = optuna.create_study(direction="maximize", sampler=samplers[tuning.search](seed=tuning.seed))
        spaces = {name: space(values) for name, values in self.grid.items()}
        for _ in range(tuning.trials):
            trial = study.ask(spaces)
            tried = {
                name: float(f"{value:.3g}") if isinstance(value, float) else value
                for name, value in trial.params.items()
            }
            self._try(federate, iter([tried]))
            value = self.scores[-1].value(tuning.measure)
            failed = optuna.trial.TrialState.FAIL
            study.tell(trial, value) if value is not None else study.tell(trial, state=failed)
        best = self.best().tried
        results = [score.metrics and {**score.metrics, "settings": ""} for score in self.scores]
        several = len({_words(score.tried) for score in self.scores}) > 1
        if several and all(result == results[0] for result in results):
            names = ", ".join(self.grid)
            raise FedflowError(f"tuning: no value of {names} changes any result of {self.method}")
        for name, value in best.items():
            if near_edge(self.grid[name], value):
                low, high = min(self.grid[name]), max(self.grid[name])
                say(f"{self.method}: the best {name}, {value}, is near an edge of its range, {low} to {high}")
        return best

    def _score(self, federate: Federate, tried: dict[str, Any]) -> Score:
        tuning, experiment = self.params.tuning, self.experiment(tried)
        out = self.root / "tuning" / self.partition / self.method / experiment.results_folder.name
        try:
            done = is_finished(experiment, out)  # by an earlier call, which did not end
            done = done and intact(lambda: _clients(out)) is not None
            number, kept = len(self.scores) + 1, ", already finished" * done
            say(f"{self.method}, candidate {number}: {_words(tried)}{kept}")
            metrics = read_json(out / "metrics.json") if done else federate(experiment, out)
        except RoundFailed as error:  # it diverged
            say(f"{self.method}, {_words(tried)}: {error}")
            return Score(tried, experiment.digest)
        if tuning.measure not in LOSSES and metrics["local_accuracy"] is None:
            raise self._no_accuracy()
        column = METRICS[MEASURES[tuning.measure]].client or "local_accuracy"
        spread = float(_clients(out).query("not newcomer")[column].std(ddof=0))
        return Score(tried, experiment.digest, metrics, spread)

    def _widen(self, federate: Federate) -> bool:
        """Try one more value of every setting whose best value is at an edge; False if there is none."""
        more = False
        for name, value in self.best().tried.items():
            further = beyond(self.grid[name], value)
            wider = self.grid | {name: [further]}
            if further is None or not self._accepts(wider):
                continue
            self._try(federate, combinations(wider))
            self.grid[name] = sorted([*self.grid[name], further])
            more = True
        return more

    def _accepts(self, grid: Mapping[str, Sequence[Any]]) -> bool:
        """True if all values of a grid are within the bounds of their settings."""
        with contextlib.suppress(BadInput):
            return all(self.experiment(tried) for tried in combinations(grid))
        return False

    def _refuse_idle(self) -> None:
        """Raise `FedflowError` if no setting changes a result; name single settings that do not."""
        varied = [name for name, values in self.grid.items() if len(values) > 1]
        idle = [name for name in varied if self._is_idle(name)]
        if varied and idle == varied:
            raise FedflowError(
                f"tuning: no value of {', '.join(idle)} changes any result of {self.method}; "
                f"tune a setting that it uses (`fedflow methods {self.params.registered(self.method)}`)"
            )
        for name in idle:
            say(f"{self.method}: no value of {name} changes any result")

    def _is_idle(self, name: str) -> bool:
        """True if all runs that differ only in this setting have equal results, to the last bit."""
        results: dict[str, list] = {}
        for score in self.scores:
            others = {n: v for n, v in score.tried.items() if n != name}
            numbers = score.metrics and {n: v for n, v in score.metrics.items() if n != "settings"}
            results.setdefault(_words(others), []).append(numbers)
        return all(number == numbers[0] for numbers in results.values() for number in numbers)

    def experiment(self, tried: Mapping[str, Any]) -> Experiment:
        """The run of one combination: the partition ``<name>-validation``, and the settings in place."""
        params, tuning, name = self.params, self.params.tuning, _held_out(self.partition)
        held_out = replace(params.partition(self.partition), validation=tuning.validation)
        tuned = self._tuned()
        rounds = tuning.rounds or params.run_of(self.method).rounds
        values = {"run.rounds": rounds, "run.fine_tune": tuning.measure == "tuned", **tried}
        if params.run_of(self.method).stop_at:
            values["run.stop_at"] = None  # tries are compared after the same number of rounds
        method = params.methods.get(self.method, MethodParams()).changed(values, f"methods.{self.method}")
        changed = params.replace(
            f"partitions.{json.dumps(name)}={json.dumps(held_out.flat())}",
            *(f"tuned.{json.dumps(name)}.{m}={json.dumps(entry.flat())}" for m, entry in tuned.items()),
            *(f"methods.{self.method}.{field}={json.dumps(value)}" for field, value in values.items()),
            partitions=params.partitions | {name: held_out},
            methods=params.methods | {self.method: method},
            tuned=params.tuned | ({name: tuned} if tuned else {}),
        )
        experiment = Experiment(changed, name, self.method, tuning.seed, self.root, "tune")
        experiment.check()
        return experiment

    def _tuned(self) -> dict[str, MethodParams]:
        """The tuned values of the method that a named entry starts from, as in its runs."""
        base = self.params.registered(self.method)
        tuned = self.params.tuned.get(self.partition) or {}
        return {base: tuned[base]} if base != self.method and base in tuned else {}

    def _save(self) -> None:
        """Write all scores so far to a small file, which a study can commit."""
        measure = self.params.tuning.measure
        best = self._best()
        rows = [
            score.tried
            | {
                "accuracy": score.metrics and score.metrics[MEASURES[measure]],
                "spread": score.spread,
                "loss": score.loss(measure),
                "chosen": score is best,
                "settings": score.settings,
            }
            for score in self.scores
        ]
        path = scores_file(self.root, self.partition, self.method)
        path.parent.mkdir(parents=True, exist_ok=True)
        with naming(path):
            pd.DataFrame(rows).to_csv(path, index=False, float_format="%.6g", lineterminator="\n")


def scores_file(root: Path, partition: str, method: str) -> Path:
    """The file with the scores of a method's candidates."""
    return root / "tuning" / partition / f"{method}.csv"


def scores(root: Path, partition: str, method: str) -> pd.DataFrame:
    """A row per candidate: its settings, accuracy (mean over clients), spread (std), loss, chosen."""
    return pd.read_csv(scores_file(root, partition, method))


def beyond(values: Sequence[Any], best: Any) -> float | None:
    """The next value of a grid whose ``best`` is its smallest or largest; otherwise None.

    It follows by the mean ratio of the grid's positive values, to two digits. Also None for the value 0, and
    unless the grid has two or more positive numbers, and nothing else but 0.

    >>> beyond([0.01, 0.03, 0.1], 0.1), beyond([2, 4, 8], 2), beyond([0.01, 0.03, 0.1], 0.03)
    (0.32, 1, None)
    >>> beyond([0, 0.1, 1], 1), beyond([0, 0.1, 1], 0)
    (10.0, None)
    """
    if not all(type(value) in (int, float) and value >= 0 for value in values):
        return None
    positive = sorted({value for value in values if value > 0})
    if len(positive) < 2 or best == 0 or not at_edge(values, best):
        return None
    ratio = (positive[-1] / positive[0]) ** (1 / (len(positive) - 1))
    further = best * ratio if best == positive[-1] else best / ratio
    further = round(further) if all(type(value) is int for value in values) else float(f"{further:.2g}")
    return further if further > 0 and further not in values else None


def at_edge(values: Sequence[Any], best: Any) -> bool:
    """True if ``best`` is the smallest or the largest of different numbers."""
    return _is_range(values) and best in (min(values), max(values))


def near_edge(values: Sequence[Any], best: Any) -> bool:
    """True if ``best`` is in the outer twentieth of the range of ``values``, on the scale of `space`.

    >>> near_edge([0.001, 1], 0.9), near_edge([0.001, 1], 0.03), near_edge(["a", "b"], "a")
    (True, False, False)
    """
    if not _is_range(values):
        return False
    low, high, at = min(values), max(values), best
    if low > 0:
        low, high, at = math.log(low), math.log(high), math.log(at)
    return not 0.05 <= (at - low) / (high - low) <= 0.95


def space(values: Sequence[Any]) -> Any:
    """Optuna's distribution: the range of numbers, on a logarithmic scale if positive, or a choice."""
    distributions = import_optuna().distributions
    if not _is_range(values):
        return distributions.CategoricalDistribution(values)
    low, high = min(values), max(values)
    whole = all(type(value) is int for value in values)
    kind = distributions.IntDistribution if whole else distributions.FloatDistribution
    return kind(low, high, log=low > 0)


def _is_range(values: Sequence[Any]) -> bool:
    """True for two or more different numbers."""
    return len(set(map(str, values))) > 1 and all(type(value) in (int, float) for value in values)


def import_optuna() -> Any:
    """Optuna, quiet. Raises `FedflowError` where it is not installed."""
    try:
        import optuna
    except ImportError:
        raise FedflowError(f"tuning.search needs Optuna: {extra('optuna')}") from None
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna


def write_choice(params: Path, partition: str, method: str, chosen: Mapping[str, Any]) -> None:
    """Put ``chosen`` under ``tuned`` in params.yaml, replacing earlier values; nothing else changes.

    Raises `FedflowError` for a file that is not valid, such as one that somebody is editing.
    """
    section = dict[str, Any]()
    for name, value in chosen.items():
        put(section, name.split("."), _quoted(value))
    with written_alone(params):  # another process tunes another partition
        params = params.resolve()
        if not isinstance(values := read_yaml(params), dict):
            raise BadInput(str(params), values, "a mapping of sections")
        text, ends = params.read_text("utf-8"), "\r\n" if b"\r\n" in params.read_bytes() else "\n"
        mode = params.stat().st_mode
        replace_text(params, _with_choice(text, partition, method, section).replace("\n", ends))
        params.chmod(mode)


@contextlib.contextmanager
def written_alone(params: Path) -> Iterator[None]:
    """Within this context, no other process writes this params.yaml."""
    lock = params.parent / ".fedflow" / "params.lock"
    make_writable(lock.parent)
    with held(FileLock(lock), f"another process that writes {params.resolve()}"):
        yield


def _quoted(value: Any) -> Any:
    """A value for ruamel.yaml, which leaves text without quotes that YAML 1.1 reads as something else: on."""
    from ruamel.yaml.scalarstring import DoubleQuotedScalarString

    ambiguous = isinstance(value, str) and yaml.safe_load(value) != value
    return DoubleQuotedScalarString(value) if ambiguous else value


def _with_choice(text: str, partition: str, method: str, section: Mapping[str, Any]) -> str:
    """``text`` with this section of ``tuned``; all other lines stay as they are.

    Where that is not possible, as in a document in braces, other lines may be wrapped elsewhere.
    """
    from ruamel.yaml import YAML
    from ruamel.yaml.error import YAMLError

    editor = YAML()
    editor.preserve_quotes = True
    methods = {method, *(editor.load(text).get("methods") or ())}  # not labels

    def edited(part: str) -> str:
        document, written = editor.load(part) or {}, io.StringIO()
        document["tuned"] = document.get("tuned") or {}
        entries = document["tuned"][_quoted(partition)] = document["tuned"].get(partition) or {}
        labeled = (name for name in entries if name not in methods and method_name(name) == method)
        entries[next(labeled, _quoted(method))] = section
        editor.dump(document, written)
        return written.getvalue()

    old, whole = TUNED.search(text), edited(text)
    try:  # in the whole document, comments after the section would belong to its last entry
        new = edited(old[0] if old else "").rstrip("\n")
        made = text[: old.start()] + new + text[old.end() :] if old else f"{text.rstrip()}\n{new}\n"
        same = yaml_value(made) == yaml_value(whole)
    except (yaml.YAMLError, YAMLError, FedflowError):
        same = False
    return made if same else whole


def _clients(folder: Path) -> pd.DataFrame:
    """The clients of a finished try. Raises `FedflowError` for a damaged file."""
    return read_table(folder / "clients.parquet", read_parquet)


def _words(tried: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {value}" for name, value in tried.items())
