"""The experiments on coresets: what they choose, how much it costs, and what they refuse."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from scipy import sparse

from fedflow.procedures import PROCEDURES, End, Findings, World
from fedflow.procedures.coresets.network import GCN


def world(seed: int = 0, **files: Path) -> World:
    return World(seed, torch.device("cpu"), {}, {}, {}, files)


def findings(name: str, seed: int = 0, files: dict[str, Path] | None = None, **settings: Any) -> Findings:
    """The result of a procedure in this process."""
    procedure = PROCEDURES[name].parse(settings)
    shared = procedure.open(world(seed, **files or {}))
    ends = {}
    for part in procedure.parts(shared):
        state, rows = procedure.start(shared, part), []
        for number in range(1, procedure.steps(shared, part) + 1):
            state, row = procedure.step(shared, part, state, number)
            rows.append(row)
        ends[part] = End(state, pd.DataFrame(rows))
    return procedure.finish(shared, ends)


@pytest.mark.parametrize(
    ("nodes", "features", "classes", "count"), [(2708, 1433, 7, 23_040), (200, None, 10, 3_360)]
)
def test_parameters_of_the_networks(nodes: int, features: int | None, classes: int, count: int) -> None:
    ring = sparse.csr_array(np.roll(np.eye(nodes), 1, 0) + np.roll(np.eye(nodes), -1, 0))
    inputs = None if features is None else sparse.csr_array((nodes, features))
    assert GCN(ring, inputs, classes, seed=0).w.numel() == count


def test_a_gcn_learns_more_from_chosen_labels_than_from_random_ones() -> None:
    found = [
        findings("coreset_gcn", seed, picks=10, every=10, methods=["giga", "random"], patience=None).summary
        for seed in range(3)
    ]
    giga, random = (np.mean([one[name]["accuracy"] for one in found]) for name in ("giga", "random"))
    assert giga > 0.8 and giga > random + 0.1
    giga, random = (np.mean([one[name]["groups"] for one in found]) for name in ("giga", "random"))
    assert giga > 8.5 > random + 1


PLACEMENT = {
    "graph": {"kind": "mixture", "shares": [0.3, 0.5, 0.2]},
    "mean_costs": [2.04, 3.25, 0.51],
    "picks": 20,
    "walk": 1,
}


def test_costs_move_points_to_the_cheap_component() -> None:
    """Section 11: counts 10.3 / 4.0 / 5.8 and cost 43 without costs, 4.5 / 10.8 / 4.8 and 0.8 with them."""
    found = [findings("coreset", seed, methods=["giga", "scgiga"], **PLACEMENT).summary for seed in range(3)]
    mean = {name: pd.DataFrame([one[name] for one in found]).mean() for name in ("giga", "scgiga")}
    assert abs(mean["giga"]["group2"] - 0.5) < 0.15
    assert mean["scgiga"]["group3"] > 0.4 > mean["giga"]["group3"]
    assert mean["scgiga"]["group2"] < 0.4
    assert mean["giga"]["cost"] > 20 * mean["scgiga"]["cost"]
