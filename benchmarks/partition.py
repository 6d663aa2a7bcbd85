"""Seconds that each partition scheme takes for a million samples of ten classes and 100,000 clients."""

import time
from typing import Any

import numpy as np

from fedflow.partition import PartitionParams, Samples, make_partition
from fedflow.seeding import generator

SAMPLES, CLIENTS, CLASSES = 1_000_000, 100_000, 10
ENTRIES: tuple[dict[str, Any], ...] = (
    {"scheme": "iid"},
    {"scheme": "iid", "sigma": 0.3, "stratified": True},
    {"scheme": "shards"},
    {"scheme": "dirichlet", "alpha": 100, "min_size": 1},
    {"scheme": "dirichlet_exact"},
    {"scheme": "dirichlet_clients", "min_size": 1},
    {"scheme": "dirichlet_disjoint"},
    {"scheme": "acid", "classes_per_client": 3},
    {"scheme": "label_skew"},
    {"scheme": "noniid1"},
    {"scheme": "label_groups", "groups": 5},
    {"scheme": "label_groups", "groups": 5, "labels_per_group": 3, "overlap": 1, "sampler": "slice"},
    {"scheme": "label_groups", "groups": 5, "sampler": "independent", "samples_per_label": 10},
    {"scheme": "structured"},
    {"scheme": "super_clusters", "clusters": "cifar10"},
    {"scheme": "super_clusters", "clusters": "cifar10", "within": "shards"},
    {"scheme": "super_clusters", "clusters": "cifar10", "within": "dirichlet", "alpha": 100, "min_size": 1},
)


def main() -> list[dict[str, Any]]:
    labels = np.random.default_rng(0).integers(CLASSES, size=SAMPLES)
    samples = Samples(labels, np.arange(10_000) % CLASSES)
    print("split alone   with test sets and facts")
    measured = []
    for entry in ENTRIES:
        params = PartitionParams.parse({"dataset": "toy", "clients": CLIENTS} | entry)
        started = time.perf_counter()
        params.parameters.split(samples, CLIENTS, generator(0, "benchmark"))
        divided = time.perf_counter()
        make_partition(params, samples)
        alone, whole = divided - started, time.perf_counter() - divided
        print(f"{alone:9.2f} s   {whole:9.2f} s   {entry}", flush=True)
        measured.append({"scheme": entry, "split_seconds": round(alone, 2), "whole_seconds": round(whole, 2)})
    return measured
