"""Every two extensions of a run work together, or one of them refuses the other in one line."""

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from itertools import combinations
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from generating import blend, blending
from support import (
    SIZES,
    Ran,
    Workers,
    follow,
    forbid_fallback,
    images,
    prepare_run,
    refused,
    suited,
    with_pixels,
)

from fedflow.data import Dataset
from fedflow.errors import BadInput, FedflowError
from fedflow.files import write_json
from fedflow.local.client import TRAINED
from fedflow.local.extensions.adaptation import Adaptation
from fedflow.local.teacher import Teacher
from fedflow.methods import Method, build_method
from fedflow.models import build
from fedflow.models.flat import FlatModel
from fedflow.partition import Partition
from fedflow.simulation.evaluation import Scores
from fedflow.simulation.extensions import all_extensions, extension
from fedflow.simulation.extensions.all_extensions import EXTENSIONS
from fedflow.simulation.extensions.by_level import ByLevel
from fedflow.simulation.extensions.client_curriculum import Pools
from fedflow.simulation.extensions.clustering import Clusters
from fedflow.simulation.extensions.extension import RunExtension
from fedflow.simulation.extensions.further_scores import (
    Adaptations,
    Adapted,
    FineTuning,
    KeptModels,
    KeptPredictions,
    Newcomers,
)
from fedflow.simulation.extensions.generation import Generation
from fedflow.simulation.extensions.mixtures import Mixtures
from fedflow.simulation.extensions.recording import Recorded
from fedflow.simulation.extensions.trained_means import TrainedMeans
from fedflow.simulation.job import ClientResult
from fedflow.simulation.loop import Simulation
from fedflow.simulation.outcome import RoundReport, RunFindings

PAGE = Path(__file__).parents[2] / "docs" / "howto" / "combine.md"
SGD: dict[str, Any] = {"epochs": 2, "batch_size": 8, "lr": 0.1}
RUN: dict[str, Any] = {"rounds": 3, "participation": 0.25, "evaluate_every": 1}
LATE = 2  # newcomers
ADAPT = [{"name": "maml"}, {"name": "proto"}]


class Variant(NamedTuple):
    """A run that has an extension, by its settings, its method or its partition."""

    kind: type[RunExtension] | None  # None: a setting of the run that changes what extensions see
    settings: Mapping[str, Any] = {}
    method: str = ""
    newcomers: bool = False
    changes: str = ""  # what it changes for others, of "training" and "scores"


VARIANTS: dict[str, Variant] = {
    "reports": Variant(TrainedMeans, {"reports": ["server", "active", "all"]}),
    "adapt": Variant(Adaptations, {"adapt": ADAPT}),
    "adapt_from": Variant(Adaptations, {"adapt": ADAPT[:1], "adapt_from": "all"}),
    "easy_first": Variant(
        Pools, {"sampling": "easy_first", "client_curriculum": {"a": 0.8, "b": 0.5}}, changes="training"
    ),
    "fine_tune": Variant(FineTuning, {"fine_tune": True}),
    "keep_trained": Variant(KeptModels, {"keep_trained": True}),
    "keep_predictions": Variant(KeptPredictions, {"keep_predictions": True}),
    "evaluate_clients": Variant(None, {"evaluate_clients": 3}, changes="scores"),
    "newcomers": Variant(Newcomers, newcomers=True),
    "clusters": Variant(Clusters, method="pacfl"),
    "levels": Variant(ByLevel, method="heterofl"),
    "mixtures": Variant(Mixtures, method="apfl"),
    "recorded": Variant(Recorded, method="subfedavg_un"),
    "images": Variant(Generation, method="blend"),
}
LOCAL: dict[str, dict[str, Any]] = {  # extensions of local training: tests/local/test_pairs_of_extensions.py
    "augment": {"augment": "flip_crop"},
    "maml": {"adaptation": {"name": "maml"}},
    "proto": {"adaptation": {"name": "proto"}},
    "robust": {"objective": {"name": "robust"}, "augment": "flip_crop"},
    "distil": {"objective": {"name": "distil", "teacher": "large"}},
    "curriculum": {"curriculum": {"score": "both", "a": 0.4}},
    "expert": {"curriculum": {"score": "expert", "expert": "large", "mode": "lazy_epoch", "a": 0.4}},
}


def meet(*names: str) -> bool:
    """Whether one run can have all of these variants, unless one of them refuses."""
    variants = [VARIANTS[name] for name in names]
    keys = [key for variant in variants for key in variant.settings]
    return len(keys) == len({*keys}) and len({v.method for v in variants if v.method}) < 2


PAIRS = [pair for pair in combinations(VARIANTS, 2) if meet(*pair)]


class Laboratory:
    """Runs with some of the variants, whose clients are the same with and without newcomers."""

    def __init__(self, digits: Dataset, folder: Path) -> None:
        self.folder = folder
        with_late = images(digits, (*SIZES, 9, 14), dtype=torch.float64)
        large = FlatModel(partial(build, "mlp", (1, 8, 8), 10, hidden=(12, 8)), dtype=torch.float64)
        losses = torch.rand(
            len(with_late.train), generator=torch.Generator().manual_seed(0), dtype=torch.float64
        )
        inputs = {"teacher": Teacher(large, 3 * large.init(1)), "expert": losses}
        partition = with_late.partition
        pools = [partition.pool(p) for p in range(10)]
        kept = [
            [part(k) for k in range(len(SIZES))]
            for part in (partition.train, partition.test_pools, partition.selection)
        ]
        train, own, selection = kept
        self.federations = {
            True: replace(with_late, inputs=inputs, partition=replace(partition, newcomers=LATE)),
            False: replace(
                with_late, inputs=inputs, partition=Partition.from_lists(train, pools, own, selection)
            ),
        }
        self.alone = cache(self.facts)

    def method(self, *names: str) -> Method:
        (name,) = {VARIANTS[name].method for name in names} - {""} or {"fedavg"}
        return blend() if name == "blend" else build_method(name)

    def prepare(self, *names: str, local: str = "", **more: Any) -> Simulation:
        method = self.method(*names)
        federation = self.federations[any(VARIANTS[name].newcomers for name in names)]
        federation = with_pixels(federation) if method.name == "blend" else suited(method.name, federation)
        settings = RUN | {"fine_tune": False}
        for name in names:
            settings |= VARIANTS[name].settings
        return prepare_run(method, federation, training=SGD | LOCAL.get(local, {}), **settings | more)

    def refusal(self, *names: str, local: str = "") -> str | None:
        """The line that refuses these variants together; None if they may be used."""
        try:
            self.prepare(*names, local=local)
        except BadInput as error:
            return str(error)
        return None

    def facts(self, *names: str, **more: Any) -> dict[str, Any]:
        return self.found(follow(self.prepare(*names, **more)))

    def resumed(self, *names: str, **more: Any) -> dict[str, Any]:
        """The same with 3 workers, in two parts: a checkpoint is between them."""
        folder = self.folder / "checkpoints" / "-".join(names)
        more |= {"executor": Workers(3), "checkpoints": folder, "checkpoint_every": 1}
        again = partial(self.prepare, *names, **more)
        next(again().rounds())
        ran = follow(again())
        assert [report.replayed for report in ran.rounds] == [True, False, False]
        return self.found(ran)

    def found(self, ran: Ran) -> dict[str, Any]:
        """All that a run found, by name: every vector at the end, and every number and file of its result."""
        found: dict[str, Any] = {f"state {name}": vector for name, vector in ran.state().items()}
        for report in ran.rounds:
            assert not report.failed
            found |= {f"round {report.round} {name}": value for name, value in report.values.items()}
            found |= {f"series {report.round} {name}": repr(value) for name, value in report.series.items()}
            found |= {f"cohort {report.round}": report.cohort, f"clusters {report.round}": report.assignment}
        outcome = ran.outcome()
        found |= {f"final {name}": value for name, value in outcome.metrics.items() if value is not None}
        found |= {f"model {name}": vector for name, vector in outcome.models.items()}
        for name, write in outcome.files.items():
            write(self.folder / name)
            found[f"file {name}"] = (self.folder / name).read_bytes()
        for who, scores in (("client", outcome.scores), ("newcomer", outcome.newcomers)):
            if scores is not None:
                found |= {f"{who} {name}": values for name, values in columns(scores).items()}
        return found


def columns(scores: Scores) -> dict[str, np.ndarray]:
    """The measured scores of clients."""
    every = scores.more | {name: own for name, own in vars(scores).items() if isinstance(own, np.ndarray)}
    del every["model"]  # a place in a list
    return {name: own for name, own in every.items() if own.dtype.kind != "f" or not np.isnan(own).all()}


def equal(one: Any, other: Any) -> bool:
    """Whether two facts are equal, bit for bit."""
    if isinstance(one, torch.Tensor):
        return torch.equal(one, other)
    return np.array_equal(one, other, equal_nan=True) if isinstance(one, np.ndarray) else bool(one == other)


def differences(one: Mapping[str, Any], other: Mapping[str, Any]) -> list[str]:
    """The names of facts of ``one`` that ``other`` has not, or has with other values."""
    return [name for name, value in one.items() if name not in other or not equal(value, other[name])]


@pytest.fixture(scope="module")
def laboratory(digits: Dataset, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Laboratory]:
    with blending():
        yield Laboratory(digits, tmp_path_factory.mktemp("pairs"))


def kinds(found: Mapping[str, Any]) -> set[str]:
    """The kinds of facts: their names without numbers and levels, which depend on who takes part."""
    by_level = {re.sub(r"^round \d+ level/(.+)/.*$", r"final \1", name) for name in found}
    return {re.sub(r"\d+|level/|/[abc]$", "", name) for name in {*found, *by_level}}


def among(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Whether the scores of ``one``, of some clients, are scores of ``other``, of all clients."""
    scores = {name: own for name, own in one.items() if name.startswith("client ") and own.dtype.kind == "f"}
    measured = {name: ~np.isnan(own) for name, own in scores.items()}
    assert scores and any(0 < each.sum() < len(each) for each in measured.values())
    return all(np.array_equal(own[measured[n]], other[n][measured[n]]) for n, own in scores.items())


def test_every_extension_of_a_run_has_a_variant(laboratory: Laboratory) -> None:
    for name, variant in VARIANTS.items():
        if variant.kind is not None:
            assert variant.kind in [type(each) for each in laboratory.prepare(name).extensions]
    assert {variant.kind for variant in VARIANTS.values()} - {None} == {*EXTENSIONS}


@pytest.mark.parametrize("name", VARIANTS)
def test_every_variant_changes_what_a_run_finds(name: str, laboratory: Laboratory) -> None:
    """Any workers and a resume give the same bits."""
    plain, alone = laboratory.alone(), laboratory.alone(name)
    assert kinds(alone) - kinds(plain) or (VARIANTS[name].changes and differences(plain, alone))
    assert differences(alone, laboratory.resumed(name)) == []


@pytest.mark.parametrize("pair", PAIRS, ids=" and ".join)
def test_two_run_extensions_work_together_or_one_refuses_the_other(
    pair: tuple[str, str], laboratory: Laboratory
) -> None:
    """Each finds what it finds alone, where the other one cannot change it."""
    if line := laboratory.refusal(*pair):
        assert line.startswith("run.") and "\n" not in line
        return
    both = laboratory.facts(*pair)
    for one, other in (pair, pair[::-1]):
        alone, changes = laboratory.alone(one), VARIANTS[other].changes
        if VARIANTS[other].method:  # what `one` adds to a run of another method
            assert kinds(alone) - kinds(laboratory.alone()) <= kinds(both)
        elif changes:
            assert kinds(alone) <= kinds(both)
            assert changes == "training" or among(both, alone)
        else:
            assert differences(alone, both) == []


@pytest.mark.full
@pytest.mark.parametrize("pair", PAIRS, ids=" and ".join)
def test_two_run_extensions_find_the_same_with_any_workers_and_after_a_resume(
    pair: tuple[str, str], laboratory: Laboratory
) -> None:
    if not laboratory.refusal(*pair):
        assert differences(laboratory.facts(*pair), laboratory.resumed(*pair)) == []


@pytest.mark.full
@pytest.mark.parametrize("pair", PAIRS, ids=" and ".join)
def test_two_run_extensions_find_the_same_in_cohorts(
    pair: tuple[str, str], laboratory: Laboratory, monkeypatch: pytest.MonkeyPatch
) -> None:
    if laboratory.refusal(*pair):
        return
    loop = laboratory.facts(*pair)
    forbid_fallback(monkeypatch)
    vmapped = laboratory.facts(*pair, cohort="vmap")
    assert vmapped.keys() == loop.keys()
    for name, value in loop.items():
        if isinstance(value, torch.Tensor):
            torch.testing.assert_close(vmapped[name], value, rtol=0, atol=1e-9, msg=name)
        elif not isinstance(value, str | bytes):
            assert vmapped[name] == pytest.approx(value, abs=1e-9, nan_ok=True), name


@pytest.mark.full
@pytest.mark.parametrize("local", LOCAL)
@pytest.mark.parametrize("name", VARIANTS)
def test_a_run_extension_works_with_an_extension_of_local_training_or_one_refuses_the_other(
    name: str, local: str, laboratory: Laboratory
) -> None:
    if line := laboratory.refusal(name, local=local):
        assert line.startswith(("run.", "training.")) and "\n" not in line
        return
    both = laboratory.facts(name, local=local)
    assert kinds(laboratory.alone(name)) <= kinds(both)
    assert kinds(laboratory.facts(local=local)) <= kinds(both) or VARIANTS[name].method
    assert differences(both, laboratory.resumed(name, local=local)) == []


def table(laboratory: Laboratory) -> str:
    """The table of pairs, with those of local training, and the lines of the refusals."""
    lines: list[str] = []

    def cell(*names: str, local: str = "") -> str:
        if (line := laboratory.refusal(*names, local=local)) is None:
            return "yes"
        line = line.replace(laboratory.method(*names).name, "METHOD")
        if line not in lines:
            lines.append(line)
        return f"no ({lines.index(line) + 1})"

    def pair(one: str, other: str) -> str:
        return cell(one, other) if one != other and meet(one, other) else ""

    columns = [name for name in VARIANTS if not VARIANTS[name].method]
    rows = [
        [f"`{name}`"]
        + [pair(name, other) for other in columns]
        + [cell(name, local=local) for local in LOCAL]
        for name in VARIANTS
    ]
    head = ["", *(f"`{name}`" for name in (*columns, *LOCAL))]
    text = "\n".join(f"| {' | '.join(row)} |" for row in (head, ["---"] * len(head), *rows))
    return f"{text}\n\n" + "\n".join(f"{i}. `{line}`" for i, line in enumerate(lines, 1))


def test_the_table_of_run_extensions_is_that_of_the_page(laboratory: Laboratory) -> None:
    """To write it again, copy the table that a failure shows into the page."""
    assert (found := table(laboratory)) in PAGE.read_text(), f"the table is now\n\n{found}"


class Steps(RunExtension):
    """An extension that fedflow does not know: how far the server moves, its traffic, and trained models."""

    trains, total, models = True, 0.0, 0.0

    def packed(self) -> Mapping[str, torch.Tensor]:
        return {"known": torch.tensor([self.total, self.models], dtype=torch.float64)}

    def restore(self, tensors: Mapping[str, torch.Tensor]) -> None:
        self.total, self.models = tensors["known"].tolist()

    def start_round(self, report: RoundReport, before: Mapping[str, float]) -> None:
        self.server = self.run.state.server.tensors()
        report.values["method/bytes"] = 0

    def traffic(self, report: RoundReport, down: Mapping[int, int], up: Mapping[int, int]) -> None:
        report.values["method/bytes"] += sum(down.values()) + sum(up.values())

    def trained(self, sent: ClientResult) -> None:
        self.models += len(sent.keep[TRAINED]) > 0

    def stepped(self, report: RoundReport, sent: Sequence[ClientResult]) -> None:
        own = self.run.state.server.tensors()
        moved = sum(float((own[name] - w).norm()) for name, w in self.server.items())
        report.values["method/step"] = moved
        self.total += moved

    def finish(self, scores: Scores) -> RunFindings:
        return RunFindings(files={"steps.json": partial(write_json, value=[self.total, self.models])})


@pytest.fixture
def registered(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., None]]:
    """Registers extensions for one test."""
    monkeypatch.setattr(extension, "REGISTERED", {})
    monkeypatch.setattr(all_extensions, "REGISTERED", extension.REGISTERED)
    yield extension.register_run_extension


@pytest.mark.parametrize("name", ["", "reports", "adapt_from", "easy_first", "newcomers", "levels"])
def test_an_extension_of_a_plug_in_works_with_the_others(
    name: str, laboratory: Laboratory, registered: Callable[..., None]
) -> None:
    names = [name] if name else []
    alone, fingerprint = laboratory.alone(*names), laboratory.prepare(*names).fingerprint
    registered(Steps)
    ran = follow(laboratory.prepare(*names))
    both = laboratory.found(ran)
    assert differences(alone, both) == []
    assert ran.simulation.fingerprint != fingerprint
    assert differences(both, laboratory.resumed(*names)) == []
    assert all(step > 0 for step in ran.values("method/step"))
    traffic = np.add(ran.values("bytes_down"), ran.values("bytes_up"))
    assert np.cumsum(ran.values("method/bytes")).tolist() == traffic.tolist()
    assert json.loads(both["file steps.json"])[1] == ran.simulation.state.participations.sum() > 0


def test_extensions_that_cannot_be_together_are_refused(
    laboratory: Laboratory, registered: Callable[..., None]
) -> None:
    def made(*names: str, **hooks: Any) -> Simulation:
        registered(type("Mine", (RunExtension,), {"__module__": __name__, **hooks}))
        return laboratory.prepare(*names)

    chosen = {"cohort": lambda self, t: (np.ones(self.run.clients), 1)}
    assert [len(report.cohort) for report in made(**chosen).rounds()] == [1, 1, 1]
    with refused("Pools and Mine: only one extension of a run can define `cohort`", FedflowError):
        made("easy_first", **chosen)
    with refused("'mine' is no metric; name a number of an extension method/<name>", FedflowError):
        follow(made(evaluate=lambda self, report, scores: {"mine": 1.0}))
    assert follow(made(evaluate=lambda self, report, scores: None)).values("local_accuracy")
    with refused("two extensions of the run measure one name: maml_accuracy", FedflowError):
        measures = [Adapted(Adaptation.parse(ADAPT[0]), None)]
        follow(made("adapt", measures=lambda self, when: measures))
    for found in (RunFindings({"loss": 1.0}), RunFindings(files={"clusters.json": print})):
        with refused("two parts of the run have a result (loss|clusters.json)", FedflowError):
            follow(made(finish=lambda self, scores, found=found: found)).outcome()
    registered(type("Pools", (RunExtension,), {"__module__": __name__}))
    with refused("two extensions of a run are called Pools; give one another name", FedflowError):
        laboratory.prepare("easy_first")
    with refused("name: 'Pools' .* a name other than the extension of .*, in elsewhere"):
        registered(type("Pools", (RunExtension,), {"__module__": "elsewhere"}))
