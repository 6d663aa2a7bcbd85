"""Measures of the claims of this study: mean and standard deviation over seeds.

    python studies/claims/verdicts.py cycling
    python studies/claims/verdicts.py super --seeds 0 --set run.rounds=2

A seed draws the clients' data and a first model, the same for all methods. ``--set`` overrides the settings
of the claim, which override params.yaml. Runs are not recorded; data are prepared in a temporary folder.
"""

import argparse
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from fedflow.config import load_params
from fedflow.simulation.loop import Simulation
from fedflow.stages.experiment import Experiment
from fedflow.stages.partition import prepare_partition
from fedflow.stages.prepare import prepare_dataset

PARAMS = Path(__file__).with_name("params.yaml")
Measure = Callable[[Simulation], dict[str, float]]


@dataclass(frozen=True)
class Case:
    """One row of a claim's table: a method on a partition, and settings as ``--set`` takes them."""

    title: str
    partition: str
    method: str
    settings: tuple[str, ...] = ()


@dataclass(frozen=True)
class Claim:
    """A claim: its cases, what is measured in each run, and the settings of all."""

    cases: list[Case]
    measure: Measure
    settings: tuple[str, ...] = ()


def by_round(simulation: Simulation) -> dict[str, float]:
    """Loss and accuracy (per cent) of the one global model on the complete test set."""
    values, model, test = {}, simulation.federation.model, simulation.federation.test
    every = torch.arange(len(test))
    for report in simulation.rounds():
        outputs, y = model.outputs(simulation.state.server.model, test.inputs(every)), test.targets(every)
        if report.round in (1, 2, 5, 20):
            values[f"loss {report.round}"] = float(model.losses(outputs, y).mean())
        if report.round in (5, 20):
            values[f"accuracy {report.round}"] = 100 * float(model.hits(outputs, y).double().mean())
    return values


def at_the_end(simulation: Simulation) -> dict[str, float]:
    """Local accuracy (per cent) in some rounds, its spread over clients, and the clusters."""
    values = {}
    for report in simulation.rounds():
        if "local_accuracy" in report.values:
            values[f"accuracy {report.round}"] = 100 * report.values["local_accuracy"]
    metrics = simulation.outcome().metrics
    return values | {"clusters": metrics["clusters"], "ARI": metrics["ari"]}


def first_client(simulation: Simulation) -> dict[str, float]:
    """Accuracy (per cent) of client 0: as served, as it was last trained, and after one more training."""
    for _ in simulation.rounds():
        pass
    scores = simulation.outcome().scores
    names = {"served": "local_accuracy", "last trained": "trained_accuracy", "tuned": "tuned_accuracy"}
    return {title: 100 * float(getattr(scores, name)[0]) for title, name in names.items()}


def cycling() -> Claim:
    """Claims on clusters, 4 and 7: loss per round of FedCluster and FedSC, by clusters, grouping and mode."""
    cases = []
    for lr in (0.1, 0.3, 1.0):
        rate = f"training.lr={lr}"
        cases.append(Case(f"FedAvg, lr {lr}", "skew", "fedavg", (rate,)))
        for mode in ("cycle", "stratified"):
            for grouping in ("random", "similar"):
                cases += [
                    Case(
                        f"{mode} of {clusters} {grouping} clusters, lr {lr}",
                        "skew",
                        "fedsc",
                        (rate, f"methods.fedsc={{clusters: {clusters}, mode: {mode}, grouping: {grouping}}}"),
                    )
                    for clusters in (2, 8)
                ]
        cases += [
            Case(
                f"FedCluster({k}), lr {lr}", "skew", "fedcluster", (rate, f"methods.fedcluster.clusters={k}")
            )
            for k in (2, 8)
        ]
    softmax = ("models.digits.options.hidden=[]", "partitions.skew.clients=40")
    return Claim(
        cases,
        by_round,
        (*softmax, "run.participation=0.2", "run.rounds=20", "run.evaluate_every=20", "training.epochs=1"),
    )


def fedac() -> Claim:
    """Claims on clusters, 9: five groups on a ring, FedAC from three clusters on."""
    cases = [
        Case(
            f"FedAC from 3, mu {mu}, split_above {above}",
            "ring",
            "fedac",
            (f"methods.fedac={{clusters: 3, mu: {mu}, split_above: {above}}}",),
        )
        for mu in (0.01, 0.1, 1.0)
        for above in ("null", 1.0)
    ]
    cases += [Case(f"IFCA({k})", "ring", "ifca", (f"methods.ifca.clusters={k}",)) for k in (3, 5)]
    cases += [Case("Local", "ring", "local"), Case("FedAvg", "ring", "fedavg")]
    return Claim(cases, at_the_end, ("run.evaluate_every=20",))


def pca() -> Claim:
    """Claims on relations, 2: PCA+kM+HC by gamma, with the clients' components and shared ones."""
    cases = [
        Case(
            f"{partition}, {basis}, gamma {gamma}",
            partition,
            "pca_km_hc",
            (f"methods.pca_km_hc={{case: clusters, basis: {basis}, gamma: {gamma}}}",),
        )
        for partition in ("apart", "ring")
        for basis in ("per_client", "shared")
        for gamma in ("null", 0.5, 0.6, 0.7, 0.8, 1.2)
    ]
    return Claim(cases, at_the_end, ("run.rounds=40", "run.evaluate_every=40"))


def fedsem() -> Claim:
    """Claims on relations, 6: FLT against FedSEM as published and as FLT ran it."""
    cases = []
    for partition in ("apart", "ring"):
        ran = "methods.fesem={centers: 5, cluster_over: all, weighting: samples}"
        cases += [
            Case(f"{partition}, FLT", partition, "flt"),
            Case(f"{partition}, FLT, the absent count", partition, "flt", ("methods.flt.absent=stale",)),
            Case(f"{partition}, FedSEM(5)", partition, "fesem"),
            Case(f"{partition}, FedSEM(5) as FLT ran it", partition, "fesem", (ran,)),
        ]
    return Claim(cases, at_the_end, ("run.evaluate_every=4", "run.rounds=40"))


def super_clusters(*settings: str) -> Claim:
    """Claims on servers, 8: super clusters against random pairs of the same sizes, drawn by seed."""
    by_method = {"ifca": ("methods.ifca={clusters: 2}",)}
    cases = [
        Case(f"{partition}, {method}", partition, method, by_method.get(method, ()))
        for partition in ("super", "random")
        for method in ("fedavg", "ifca", "lg_fedavg", "local")
    ]
    return Claim(
        cases, at_the_end, ("run.rounds=20", "run.evaluate_every=20", "training.epochs=2", *settings)
    )


CIFAR = (
    "partitions.super={dataset: cifar10, scheme: super_clusters, clusters: cifar10, labels_per_client: 2, "
    "clients: 20}",
    "partitions.random={dataset: cifar10, scheme: super_clusters, clusters: cifar10, labels_per_client: 2, "
    "clients: 20, control: matched_random}",
    "data.cifar10.train_limit=5000",
    "training.lr=0.01",
    "training.momentum=0.5",
)


def lateness() -> Claim:
    """Claims on clusters, 8: the cost of late updates, by server step; a third is far slower."""
    steps = [("plain average", "fedbuff", "staleness: none", rate) for rate in (0.3, 1.0)]
    steps += [("1 / sqrt(1 + delay)", "fedbuff", "staleness: sqrt", rate) for rate in (0.3, 1.0)]
    steps += [("CC-FedAdam", "cc_fedadam", "beta: 0.9", rate) for rate in (0.003, 0.01, 0.03)]
    cases = [
        Case(
            f"{title}, server lr {rate}, {'late' if late else 'all wait'}",
            "skew",
            method,
            (f"methods.{method}={{{option}, server_lr: {rate}, concurrency: {late}}}",),
        )
        for title, method, option, rate in steps
        for late in (0, 4)
    ]
    slow = "run.timing.speeds=[[1,2],[3,5],[50,80]]"
    return Claim(cases, at_the_end, ("run.participation=0.2", "run.rounds=80", "run.evaluate_every=40", slow))


def partners() -> Claim:
    """Claims on servers, 14: the client of ship and truck, alone and with a partner."""
    kinds = {"plane and car": "[[8,9],[0,1]]", "cat and dog": "[[8,9],[3,5]]"}
    cases = [Case("alone", "partners", "local")] + [
        Case(f"with a partner of {kind}", "partners", "fedavg", (f"partitions.partners.clusters={pairs}",))
        for kind, pairs in kinds.items()
    ]
    whole = ("run.participation=1.0", "run.rounds=20", "run.keep_trained=true", "run.fine_tune=true")
    return Claim(
        cases, first_client, (*whole, "training={epochs: 2, batch_size: 10, lr: 0.01, momentum: 0.5}")
    )


CLAIMS = {
    "cycling": cycling(),
    "fedac": fedac(),
    "pca": pca(),
    "fedsem": fedsem(),
    "super": super_clusters(),
    "super-cifar10": super_clusters(*CIFAR),
    "partners": partners(),
    "lateness": lateness(),
}


def run(case: Case, seed: int, settings: list[str], measure: Measure, root: Path) -> dict[str, float]:
    drawn = f"partitions.{case.partition}.seed={seed}"
    params = load_params(PARAMS, [*settings[0], *case.settings, drawn, *settings[1]])
    experiment = Experiment(params, case.partition, case.method, seed, root)
    for name in experiment.datasets:
        prepare_dataset(params, name, root)
    prepare_partition(params, case.partition, root)
    return measure(Simulation(experiment.job, params.run))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("claim", choices=CLAIMS)
    parser.add_argument("--seeds", default="0,1,2", help="seeds, such as 0,1,2")
    parser.add_argument(
        "--set", action="append", default=[], help="a setting, such as run.rounds=2", metavar="NAME=VALUE"
    )
    given = parser.parse_args()
    torch.set_num_threads(1)
    claim, seeds = CLAIMS[given.claim], [int(seed) for seed in given.seeds.split(",")]
    with tempfile.TemporaryDirectory() as folder:
        for i, case in enumerate(claim.cases):
            settings = (claim.settings, given.set)
            runs = [run(case, seed, settings, claim.measure, Path(folder)) for seed in seeds]
            if i == 0:
                print(f"mean ± sample standard deviation over seeds {given.seeds}\n")
                print("| |", " | ".join(runs[0]), "|\n|---|" + "---:|" * len(runs[0]))
            columns = ([float("nan") if r[name] is None else r[name] for r in runs] for name in runs[0])
            cells = (f"{np.mean(c):.3g} ± {np.std(c, ddof=1) if len(c) > 1 else 0:.2g}" for c in columns)
            print(f"| {case.title} |", " | ".join(cells), "|", flush=True)


if __name__ == "__main__":
    main()
