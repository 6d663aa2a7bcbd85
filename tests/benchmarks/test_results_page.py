"""The tables of docs/benchmarks.md, from small results of every shape."""

import json

from benchmarks.table import sections

SPREAD = {"median": 2.0, "min": 1.0, "max": 3.0}
RUNS = [{"clients": clients, "round_s": 0.5, "evaluation_processor_s": 0.1} for clients in (1000, 100_000)]
SCALE = {"runs": RUNS, "ratio": 1.01, "processor_ratio": 1.0, "mib_above_images": 1234}
TIMES = {"batched_seconds": SPREAD, "loop_seconds": SPREAD}
WAY = {"steps": 500, "seconds": SPREAD, "extra_milliseconds": SPREAD, "ratio": SPREAD}
FORM = {"setup_seconds": 9.5, "seconds": 80.0, "peak_mib": 3500, "before_mib": 300, "ratio": 99.0}
TURNS = {"forgotten": SPREAD | {"median": 9.0}, "remembered": SPREAD, "ratio": SPREAD | {"median": 2.5}}
MEASURED = {
    "scale": {"fedavg, random": SCALE},
    "scores": {
        "ditto": {f"{part}_{clock}": TURNS for part in ("round", "evaluation") for clock in ("cpu", "wall")}
    },
    "partition": [{"scheme": {"scheme": "shards", "shards": 2}, "split_seconds": 1.5, "whole_seconds": 2.5}],
    "curriculum": {
        "epochs_10": {
            "vanilla": WAY,
            "random": WAY
            | {"extra_milliseconds": {**SPREAD, "median": -3.5}, "ratio": SPREAD | {"min": 0.9}},
            "lazy": WAY | {"steps": 510, "ratio": SPREAD | {"min": 1.1}},
        }
    },
    "coresets": {"nodes": 20000, "picks": 200, "forms": {"steps_4": {"dense": FORM}}},
    "counts": {
        "lenet5": {
            "clients": 100,
            "steps": 10,
            "launches": 1234,
            "gigabytes": 5.6,
            "host_ms": {"now": 2.5, "ahead": 1.5},
        }
    },
    "proximity": {"clients": 1000, "signatures": TIMES, "angles": TIMES, "ratio": SPREAD},
}


def test_every_table_stands_under_the_machine_that_it_was_measured_on(tmp_path):
    for name, measured in MEASURED.items():
        machine = {"cpu": "slow" if name == "scale" else "fast", "cores": 2, "torch": "2.9"}
        text = json.dumps({"machine": machine, "measured": measured})
        (tmp_path / f"cpu-{name}.json").write_text(text)
    fast, slow = sections(tmp_path)
    assert fast.startswith("### CPU: fast, 2 cores, torch 2.9\n")
    assert "| shards, shards: 2 | 1.5 | 2.5 |" in fast and "| angles | 2.0 | 2.0 |" in fast
    assert "| 200 picks of 20,000 nodes |" in fast and "| l = 4, dense | 9.5 | 80.0 | 3,200 | 99.0 |" in fast
    assert "| ditto, evaluation | 9.0 | 2.0 | 2.50 (1.00 to 3.00) | 2.50 (1.00 to 3.00) |" in fast
    assert "| a client in a round, 10 local epochs |" in fast
    assert "| vanilla | 500 | 2.0 |  |  |" in fast
    assert "| random | 500 | 2.0 | within noise | 2.00 (0.90 to 3.00) |" in fast
    assert "| lazy | 510 | 2.0 | 2.0 | 2.00 (1.10 to 3.00) |" in fast
    assert "| lenet5, 100 clients, 10 steps | 1,234 | 5.6 | 2.5 | 1.5 |" in fast
    assert slow.startswith("### CPU: slow, 2 cores, torch 2.9\n")
    assert "| fedavg, random images | 1,000 and 100,000 | 0.500 and 0.500 | 1.010 | 1.000 | 1,234 |" in slow
    assert "fedavg" not in fast and "shards" not in slow


def test_rounds_and_cohorts_of_the_first_hour_on_a_gpu_are_tables(tmp_path):
    cell = {"model": "lenet5", "batch": 10, "way": "vmap", "clients": 64, "convolution": "matmul"}
    cell |= {"precision": "tf32", "against_loop": 60.5, "client_steps_per_second": SPREAD}
    rounds = {"precision": "float32", "real_images": False, "rounds_run": 1500, "scaled": False}
    rounds |= {"seconds_per_round": SPREAD, "client_steps_per_second": 7.5, "seconds_for_1500_rounds": 90}
    cells = {
        "matrix_flops_per_second": {"fp32": 5e13},
        "cells": [cell | {"share_of_matrix_rate": {"fp32": 0.5}}],
    }
    for name, measured in {
        "pool": {"checks": {"captured": True}},
        "headline-complete": {"all": rounds},
        "cohorts-lenet5": {"all": cells},
    }.items():
        text = json.dumps({"machine": {"gpu": "a card", "cores": 16, "torch": "2.11"}, "measured": measured})
        (tmp_path / f"gpu-first-{name}.json").write_text(text)
    (found,) = sections(tmp_path)
    assert found.startswith("### GPU: a card, 16 cores, torch 2.11\n")
    assert "| simple_cnn, float32, random images | 1500 | 2.0 | 7.5 | 1.50 |  |" in found
    assert "| lenet5, batch 10, vmap | 64 | matmul, tf32 | 2.0 | 60.5 | 50 |" in found
