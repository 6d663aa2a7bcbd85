"""The results of every method at its defaults, as recorded: a change of the engine must not change a bit.

`python tests/methods/test_digests.py`, with this folder's parent on the path, records them again in
``digests.json``. Do so only for a new method, or where a defect changed results. The libraries of matrix
products compute other last bits on processors of other vendors, and with a kernel that OPENBLAS_CORETYPE
names: each has its own digests, and a method whose result changed loses the others.
"""

import contextlib
import hashlib
import json
import os
import platform
import re
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
    "participation": 0.5,
    "rounds": 3,
    "evaluate_every": 3,
    "fine_tune": True,
}


def where() -> dict[str, str]:
    """What decides the last bits of a result, together with the vendor of the processor."""
    return {
        "torch": torch.__version__.partition("+")[0],
        "numpy": np.__version__,
        "instructions": f"{platform.machine()} {torch.backends.cpu.get_cpu_capability()}",
    }


def vendor() -> str:
    """The vendor of the processor, and the kernel that OpenBLAS is told to use, if any."""
    name, kernel = platform.processor(), os.environ.get("OPENBLAS_CORETYPE", "")
    with contextlib.suppress(OSError):
        if found := re.search(r"^vendor_id\s*: (\w+)", Path("/proc/cpuinfo").read_text(), re.MULTILINE):
            name = found[1]
    return f"{name} {kernel}".strip()


def result(name: str, federation: Federation) -> dict[str, Any]:
    """A digest of all state and scores at the end, and a few rounded numbers."""
    ran = run(name, suited(name, federation), **SETTINGS)
    scores, state = ran.outcome().scores, ran.state()
    digest = hashlib.blake2b(digest_size=12)
    for vector in sorted(state):
        digest.update(vector.encode() + state[vector].contiguous().numpy().tobytes())
    for metric in ("local_loss", "local_accuracy", "global_accuracy", "tuned_accuracy", "cluster"):
        digest.update(scores.column(metric).tobytes())
    numbers = (scores.local_loss.mean(), scores.local_accuracy.mean(), scores.more["tuned_accuracy"].mean())
    return {"digest": digest.hexdigest(), "numbers": [float(f"{number:.6g}") for number in numbers]}


@pytest.mark.filterwarnings("ignore:.*in 3 rounds")
@pytest.mark.parametrize("name", METHODS)
def test_results_are_those_recorded(name: str, federation: Federation) -> None:
    recorded, threads = json.loads(RECORDED.read_text()), torch.get_num_threads()
    assert name in recorded["methods"], f"{name} is new: record it (see the docstring of this file)"
    torch.set_num_threads(1)
    found, known = result(name, federation), recorded["methods"][name]
    torch.set_num_threads(threads)
    if where() == recorded["where"] and vendor() in known["digests"]:
        assert found["digest"] == known["digests"][vendor()]
    # Elsewhere the last bits differ, and a sample on a border may be classified otherwise.
    np.testing.assert_allclose(found["numbers"], known["numbers"], rtol=1e-3, atol=0.05)


def record() -> None:
    """Record the results on this processor."""
    torch.set_num_threads(1)
    before = json.loads(RECORDED.read_text()) if RECORDED.exists() else {}
    same = before["methods"] if before.get("where") == where() else {}
    with tempfile.TemporaryDirectory() as folder:
        prepare(DatasetParams.parse({"source": "digits"}), Path(folder) / "digits")
        clients = images(load_prepared(Path(folder) / "digits"))
        methods = {}
        for name in sorted(METHODS):
            found, known = result(name, clients), same.get(name, {"digests": {}})
            digest = found.pop("digest")
            changed = known["digests"].get(vendor(), digest) != digest
            others = {} if changed else known["digests"]
            methods[name] = {"digests": others | {vendor(): digest}, **found}
    RECORDED.write_text(json.dumps({"where": where(), "methods": methods}, indent=1) + "\n")


if __name__ == "__main__":
    record()
