"""The results of every method at its defaults, as recorded: a change of the engine must not change a bit.

`python tests/methods/test_digests.py > tests/methods/digests.json`, with this folder's parent on the path,
records them again. Do so only for a new method, or where a defect changed results.
"""

import hashlib
import json
import platform
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support import images, run, suited

from fedflow.data import load_prepared, prepare
from fedflow.data.params import DatasetParams
from fedflow.methods import METHODS
from fedflow.simulation.federation import Federation

RECORDED = Path(__file__).with_name("digests.json")
SETTINGS: dict[str, Any] = {
    "training": {"epochs": 1, "batch_size": 8, "lr": 0.1, "momentum": 0.5},
    "participation": 0.5, "rounds": 3, "evaluate_every": 3, "fine_tune": True,
}  # fmt: skip


def where() -> dict[str, str]:
    """What decides the last bits of a result: the processor's instructions and the libraries."""
    return {
        "torch": torch.__version__.partition("+")[0],
        "numpy": np.__version__,
        "instructions": f"{platform.machine()} {torch.backends.cpu.get_cpu_capability()}",
    }


def result(name: str, federation: Federation) -> dict[str, Any]:
    """A digest of all state and scores at the end, and a few rounded numbers."""
    ran = run(name, suited(name, federation), **SETTINGS)
    scores, state = ran.outcome().scores, ran.state()
    digest = hashlib.blake2b(digest_size=12)
    for vector in sorted(state):
        digest.update(vector.encode() + state[vector].contiguous().numpy().tobytes())
    for metric in ("local_loss", "local_accuracy", "global_accuracy", "tuned_accuracy", "cluster"):
        digest.update(getattr(scores, metric).tobytes())
    numbers = (scores.local_loss.mean(), scores.local_accuracy.mean(), scores.tuned_accuracy.mean())
    return {"digest": digest.hexdigest(), "numbers": [float(f"{number:.6g}") for number in numbers]}


@pytest.mark.filterwarnings("ignore:.*in 3 rounds")
@pytest.mark.parametrize("name", METHODS)
def test_results_are_those_recorded(name: str, federation: Federation) -> None:
    recorded, threads = json.loads(RECORDED.read_text()), torch.get_num_threads()
    assert name in recorded["methods"], f"{name} is new: record it (see the docstring of this file)"
    torch.set_num_threads(1)
    found, known = result(name, federation), recorded["methods"][name]
    torch.set_num_threads(threads)
    if where() == recorded["where"]:
        assert found["digest"] == known["digest"]
    # Elsewhere the last bits differ, and a sample on a border may be classified otherwise.
    np.testing.assert_allclose(found["numbers"], known["numbers"], rtol=1e-3, atol=0.05)


if __name__ == "__main__":
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        prepare(DatasetParams.parse({"source": "digits"}), Path(folder) / "digits")
        clients = images(load_prepared(Path(folder) / "digits"))
        methods = {name: result(name, clients) for name in sorted(METHODS)}
    json.dump({"where": where(), "methods": methods}, sys.stdout, indent=1)
    sys.stdout.write("\n")
