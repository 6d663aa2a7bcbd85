"""``python -m benchmarks [PART ...]``: measure every CPU part, or those named; ``first_gpu [PART ...]``
measures a GPU, and compares it with predictions.

Results are printed, and kept in ``benchmarks/results/`` with a description of the machine;
``table`` writes them into docs/benchmarks.md.
"""

import os
import subprocess
import sys
from importlib import import_module

from benchmarks.machine import RESULTS, keep

PARTS = (
    "engine compiled workers flow peers headline memory partition proximity curriculum scores scale "
    "large coresets counts report"
).split()
OTHERS = ("first_gpu", "intervals", "kernels", "scaling", "table", "traffic")


def main() -> None:
    wanted = sys.argv[1:] or list(PARTS)
    RESULTS.mkdir(parents=True, exist_ok=True)  # fails before anything is measured
    if wanted[0] == "first_gpu":  # which has parts
        import_module("benchmarks.first_gpu").main(wanted[1:])
        return
    for name in wanted:
        if name not in (*PARTS, *OTHERS):
            sys.exit(f"unknown part {name!r}; one of {', '.join((*PARTS, *OTHERS))}")
    if len(wanted) == 1:
        measure(wanted[0])
        return
    # A process each, so that leftovers of one part (threads, memory, a server client) do not slow another.
    alone = [sys.executable, "-m", "benchmarks"]
    failed = [name for name in wanted if subprocess.run([*alone, name], check=False).returncode]
    if failed:
        sys.exit(f"failed: {', '.join(failed)}")


def measure(name: str) -> None:
    """Measure one part in this process, and keep the result."""
    print(f"== {name}", flush=True)
    # Imported here: a part may need packages that a machine lacks.
    part = import_module("benchmarks.peers.compare" if name == "peers" else f"benchmarks.{name}")
    measured = part.main()
    if measured is not None:
        kind = "gpu" if os.environ.get("BENCH_DEVICE") == "cuda" else "cpu"
        work = os.environ.get("BENCH_WORK", "lenet5") if name == "peers" else "lenet5"
        keep(kind, name if work == "lenet5" else f"{name}-{work}", measured)


if __name__ == "__main__":
    main()
