"""`run`: one federated run in this process."""

import inspect
import os
import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import fields, replace
from functools import partial
from pathlib import Path
from threading import RLock
from typing import Any, Literal, TypedDict, Unpack, overload

import numpy as np
import torch

from fedflow.config.sections import REDRAW
from fedflow.errors import BadInput, RoundFailed, meant, place, unknown_name
from fedflow.files import cache
from fedflow.front.classes import is_own, parts_of
from fedflow.front.inputs import (
    Data,
    Division,
    Network,
    as_data,
    as_division,
    built_method,
    client_names,
    described,
    federation,
    need_draw,
    network_entry,
    own_network,
    prepared,
    scheme,
    titles,
    with_start,
)
from fedflow.front.pages import keywords, listed, parameters
from fedflow.front.result import Result
from fedflow.local.extensions.adaptation import Adaptation
from fedflow.local.local_training import LocalTraining
from fedflow.local.precision import use_plain_products
from fedflow.methods.method import Method
from fedflow.metrics.table import completed
from fedflow.partition import SCHEMES, PartitionParams
from fedflow.project.arguments import argument
from fedflow.project.distribution import require
from fedflow.project.terminal import RoundBar, say
from fedflow.seeding import undisturbed
from fedflow.simulation.compiling import with_compiled
from fedflow.simulation.extensions.client_curriculum import ClientCurriculum
from fedflow.simulation.job import Job
from fedflow.simulation.levels import check_architecture
from fedflow.simulation.loop import Simulation
from fedflow.simulation.outcome import RoundReport, reasons
from fedflow.simulation.settings import RunSettings, check_division, check_settings
from fedflow.simulation.stop import StopAt
from fedflow.simulation.timing import Timing
from fedflow.simulation.updates import UpdateStep
from fedflow.stages.experiment import pick_device

DIVISION = {field.name for cls in (PartitionParams, SCHEMES["dirichlet"]) for field in fields(cls)}
DEVICES, COMPILE = ("auto", "cpu", "cuda"), ("auto", "always", "never")


class Fields(TypedDict, total=False):
    """The fields of `RunSettings` that are not arguments of `run`, for type checkers."""

    sampling: Literal["uniform", "proportional", "bernoulli", "sweep", "easy_first"]
    client_curriculum: ClientCurriculum | Mapping[str, Any] | None
    min_cohort: int
    evaluate_clients: int | None
    fine_tune: bool
    keep_trained: bool
    reports: Sequence[Literal["server", "active", "all"]]
    adapt: Sequence[Adaptation | Mapping[str, Any]]
    adapt_from: Literal["served", "active", "all"]
    keep_predictions: bool
    keep_probabilities: bool
    sweep: bool
    features: str | None
    inception: str | None
    target_accuracy: float | None
    stop_at: StopAt | Mapping[str, Any] | None
    checkpoint_every: int
    timing: Timing | Mapping[str, Any]
    updates: Sequence[UpdateStep | Mapping[str, Any]]


_LOCKS = [RLock()]  # a list, so that a forked process, in which no run is active, can have another lock
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=lambda: _LOCKS.__setitem__(0, RLock()))


@contextmanager
def _plain_products() -> Iterator[None]:
    """Products are in float32 and deterministic, and PyTorch's switches are the caller's again afterwards.

    Old switches cannot be read if the caller mixed them with the new ones, whose value "none" inherits.
    """
    top: Any = torch.backends
    cudnn, mkldnn = top.cudnn, top.mkldnn
    inherited = [top, cudnn]
    switches = [cudnn.conv, cudnn.rnn, top.cuda.matmul, mkldnn.conv, mkldnn.matmul, mkldnn.rnn]
    before, values, old = cudnn.deterministic, [switch.fp32_precision for switch in switches], ExitStack()
    with suppress(RuntimeError):
        old.callback(torch.set_float32_matmul_precision, torch.get_float32_matmul_precision())
    with suppress(RuntimeError):
        old.callback(setattr, cudnn, "allow_tf32", cudnn.allow_tf32)
    defaults = []
    for switch in inherited:  # the second inherits the first
        defaults.append(switch.fp32_precision)
        switch.fp32_precision = "none"
    for switch in switches:
        switch.fp32_precision = "none"
    torch.set_float32_matmul_precision("highest")
    use_plain_products()
    try:
        yield
    finally:
        cudnn.deterministic = before
        old.close()  # before the new ones, which it changes
        for switch, value in zip(inherited, defaults):
            switch.fp32_precision = value
        for switch, value in zip(switches, values):
            switch.fp32_precision = "none"
            if switch.fp32_precision != value:
                switch.fp32_precision = value


@contextmanager
def _alone() -> Iterator[None]:
    """Runs in other threads wait, and torch is as it was when it was imported: both are of the process."""
    with ExitStack() as stack:
        stack.enter_context(_LOCKS[0])
        stack.enter_context(undisturbed())
        stack.callback(torch.set_default_dtype, torch.get_default_dtype())
        stack.enter_context(_plain_products())
        torch.set_default_dtype(torch.float32)
        stack.enter_context(torch.inference_mode(mode=False))
        stack.enter_context(torch.enable_grad())
        for device in ("cpu", "cuda"):
            stack.enter_context(torch.autocast(device, enabled=False))
        if torch.get_default_device().type != "cpu":  # this context makes every call slower
            stack.enter_context(torch.device("cpu"))
        yield


@overload
def run(
    data: Data = ...,
    partition: Division | None = ...,
    method: str | Method | type[Method] | Mapping[str, Any] = ...,
    *,
    model: Network | None = ...,
    rounds: int = ...,
    participation: float = ...,
    evaluate_every: int | None = ...,
    seed: int = ...,
    seeds: None = ...,
    redraw: Literal["run", "division", "both"] = ...,
    training: LocalTraining | Mapping[str, Any] | None = ...,
    device: str = ...,
    compile: str = ...,
    progress: bool = ...,
    record: str | Path | None = ...,
    **settings: Unpack[Fields],
) -> Result: ...
@overload
def run(
    data: Data = ...,
    partition: Division | None = ...,
    method: str | Method | type[Method] | Mapping[str, Any] = ...,
    *,
    model: Network | None = ...,
    rounds: int = ...,
    participation: float = ...,
    evaluate_every: int | None = ...,
    seeds: Sequence[int],
    redraw: Literal["run", "division", "both"] = ...,
    training: LocalTraining | Mapping[str, Any] | None = ...,
    device: str = ...,
    compile: str = ...,
    progress: bool = ...,
    record: str | Path | None = ...,
    **settings: Unpack[Fields],
) -> list[Result]: ...
@_alone()
def run(
    data: Data = "mnist5k",
    partition: Division | None = None,
    method: str | Method | type[Method] | Mapping[str, Any] = "fedavg",
    *,
    model: Network | None = None,
    rounds: int = 20,
    participation: float = 1.0,
    evaluate_every: int | None = None,
    seed: int = 0,
    seeds: Sequence[int] | None = None,
    redraw: str = "run",
    training: LocalTraining | Mapping[str, Any] | None = None,
    device: str = "auto",
    compile: str = "auto",
    progress: bool = True,
    record: str | Path | None = None,
    **settings: Any,
) -> Result | list[Result]:
    """Train a federation in this process; returns its `Result`.

    No params.yaml is read, no server is started and nothing is recorded, unless ``record`` names a folder.
    The same settings and seed give the numbers of ``fedflow run``, bit for bit on a CPU.

    Args:
        data: a source such as "mnist5k", a mapping as an entry of ``data`` in params.yaml, or `dataset(...)`
        partition: a scheme such as ``dirichlet(alpha=0.1, clients=20)``, a mapping as an entry of
            ``partitions``, or a list of the training rows of every client; default:
            ``dirichlet(alpha=0.5, clients=10)``
        method: an object such as ``Ditto(lam=1.0)``, its class, its name, or a mapping of ``method`` and
            hyperparameters
        model: the name of a network, a mapping of ``name`` and options, a ``torch.nn.Module``, or a function
            that makes one; default: LeNet-5 for images from 28x28, an LSTM for tokens, a linear model for one
            real target, one hidden layer for other data
        rounds: number of rounds
        participation: share of the clients in a round
        evaluate_every: rounds between evaluations; default: a twentieth of the rounds
        seed: seed of every random choice except the division of the data, whose scheme has another
        seeds: in place of ``seed``: run with each of them; returns a list, which `fedflow.compare` takes
        redraw: what a seed draws: "run", as above; "division", the division of the data alone, in runs with
            the seed 0; or "both"
        training: ``Training(lr=0.1, epochs=5)``, or a mapping of its fields
        device: "auto", "cpu" or "cuda"
        compile: "auto", "always" or "never": compile local steps on a CPU
        progress: print the progress
        record: a new folder, or one of an earlier call: write the settings to its params.yaml, and the run
            to MLflow and ``results``, as ``fedflow run`` does; only with what params.yaml can name
        settings: fields of `run` in params.yaml, such as ``fine_tune=False``

    Calls in several threads run one after the other; several processes run side by side.
    Raises `fedflow.errors.FedflowError` (one line) for values that are not accepted.
    """
    choices = (("device", device, DEVICES), ("compile", compile, COMPILE), ("redraw", redraw, REDRAW))
    for name, value, accepted in choices:
        if value not in accepted:
            raise BadInput(name, value, f"one of {', '.join(accepted)}")
    if not isinstance(progress, bool):
        raise BadInput("progress", progress, "True or False")
    if record is not None:
        if not isinstance(record, str | Path) or not str(record):
            raise BadInput("record", record, "a folder")
        record = Path(record).expanduser()
        require("record", "mlflow")
    elif (every := settings.get("checkpoint_every")) is not None:
        raise BadInput("checkpoint_every", every, "no value without record=, whose folder has checkpoints")
    if seeds is not None:
        if not isinstance(seeds, Iterable) or isinstance(seeds, str) or not (seeds := [*seeds]):
            raise BadInput("seeds", seeds, "a list of whole numbers, such as range(3)")
        if seed:
            raise BadInput("seed", seed, "0 with seeds")
        more: dict[str, Any] = {
            "evaluate_every": evaluate_every,
            "training": training,
            "device": device,
            "compile": compile,
            "progress": progress,
        }
        more |= {"model": model, "redraw": redraw, "record": record, **settings}
        with_seed = partial(run, data, partition, method, rounds=rounds, participation=participation, **more)
        return _in_turn(with_seed, argument("seeds", seeds))
    seed = argument("seed", seed)
    rounds = int(rounds) if isinstance(rounds, np.integer) else rounds
    if type(rounds) is int and evaluate_every is None:
        evaluate_every = max(1, rounds // 20)
    settings |= {"rounds": rounds, "participation": participation, "evaluate_every": evaluate_every}
    wanted = _run_settings(settings)
    built, target = built_method(method), pick_device(device)
    source = as_data(data)
    division = as_division(partition, source)
    if partition is None:
        division = scheme("dirichlet", alpha=0.5, clients=10)
    drawn = division
    if redraw != "run":
        if not isinstance(division, PartitionParams):
            raise BadInput("redraw", redraw, "run with lists of rows, which no seed draws")
        if division.seed:
            raise BadInput(
                "partition.seed", division.seed, f"0 with redraw={redraw!r}, which draws with `seed`"
            )
        drawn = replace(division, seed=seed)
    training = {} if training is None else training
    local = training if isinstance(training, LocalTraining) else LocalTraining.parse(training)
    check_settings(wanted, built, local)  # before data are downloaded
    if isinstance(model, str | Mapping):
        check_architecture(built, network_entry(model)["name"])
    if isinstance(division, PartitionParams):
        check_division(built, division.selects, division.public)
    model = with_start(model, Path(record or ""))
    label, reports, folder = titles(built)[1], list[RoundReport](), None
    for start in (random.seed, np.random.seed, torch.manual_seed):  # for methods and networks that draw
        start(seed % 2**32)
    with _one_thread(), RoundBar(label) as bar:
        listeners = [lambda report, _: reports.append(report), *([bar.round] if progress else [])]
        samples = prepared(source, telling=progress)
        whole = federation(samples, drawn, model, built, target)
        if redraw == "division":
            need_draw(drawn, samples, whole.partition)
        job = Job(whole, built, local, 0 if redraw == "division" else seed)
        simulation = Simulation(job, wanted)  # checks all of it
        in_development = own_network(model) is not None or any(map(is_own, parts_of(simulation)))
        listeners += [_refuse_lost_start] if in_development or simulation.settings.rounds == 1 else []
        if record is None:
            simulation.job, _ = with_compiled(simulation.job, wanted, compile, cache() / "compiled")
            for report in simulation.rounds():
                for listener in listeners:
                    listener(report, simulation.settings.rounds)
            if progress and simulation.stopped:
                say(f"{label}: {simulation.stopped}")
            outcome = simulation.outcome()
            outcome.metrics = completed(outcome.metrics, reports[-1].values)
        else:
            from fedflow.front.record import recorded  # imports MLflow, which is slow

            changes = [f"engine.device={device}", f"engine.compile={compile}"]
            simulation, outcome, folder = recorded(
                Path(record), source, division, model, built, local, wanted, seed, redraw, changes, listeners
            )
    scores = outcome.scores
    if not np.isfinite(scores.local_loss[~np.isnan(scores.local_accuracy)]).all():
        say(f"{label}, seed {seed}: the final loss is not finite; the accuracies are of a diverged model")
    inputs = described(source, division, model, whole, redraw)
    names = client_names(division, samples, whole.partition)
    return Result(label, seed, simulation, reports, outcome, inputs, folder, names)


def _in_turn(with_seed: Callable[..., Result], seeds: Sequence[int]) -> list[Result]:
    """The results of all seeds; an exception keeps those before it, in its attribute ``results``."""
    results: list[Result] = []
    for seed in seeds:
        try:
            results.append(with_seed(seed=seed))
        except BaseException as error:
            if results:
                error.results = results  # type: ignore[attr-defined]
                done = ", ".join(str(result.seed) for result in results)
                error.add_note(f"Seed {seed} failed. The attribute `results` holds these seeds: {done}")
            raise
    return results


def _refuse_lost_start(report: RoundReport, rounds: int) -> None:
    """Stop the run of code in development, or of one round, if all clients of the first round failed."""
    if report.round == 1 and report.lost and report.failed:
        raise RoundFailed(f"round 1: every client failed ({reasons(report.failed, 1)})")


def _explained(function: Any) -> None:
    """Let the signature and the docstring of `run` list the fields of `RunSettings` too, for notebooks."""
    signature = inspect.signature(function)
    named = [p for p in signature.parameters.values() if p.kind != inspect.Parameter.VAR_KEYWORD]
    rows = [row for row in keywords(RunSettings) if row["name"] not in signature.parameters]
    function.__signature__ = signature.replace(parameters=[*named, *parameters(rows)])
    function.__doc__ = "\n".join([inspect.getdoc(function) or "", "", *listed(rows)])


_explained(run)


@contextmanager
def _one_thread() -> Iterator[None]:
    """Within this context torch computes in one thread, so that runs are bit-identical."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _run_settings(given: dict[str, Any]) -> RunSettings:
    """The fields of `run`. The error for another keyword names the place where it belongs."""
    of_run, local = ({field.name for field in fields(cls)} for cls in (RunSettings, LocalTraining))
    ours = {*of_run, *inspect.signature(run).parameters}
    for name in given.keys() - of_run:
        if meant(name, ours):
            raise unknown_name("fedflow.run", name, ours)
        if field := meant(name, local):
            guess = "" if field == name else field
            raise BadInput(name, given[name], f"within training={{{field!r}: ...}}", guess)
        if field := meant(name, DIVISION):
            raise BadInput(name, given[name], f"within the partition, such as fedflow.dirichlet({field}=...)")
        if (where := place(name)).startswith("engine."):
            accepted = f"no such keyword: {where} is for `fedflow run`, in the folder of record="
            raise BadInput(name, given[name], accepted)
        raise unknown_name("fedflow.run", name, ours)
    return RunSettings.parse(given)
