"""Everything that is measured on a GPU, in about six minutes: ``python -m benchmarks gpu``."""

import sys
import time
import traceback

import torch

from benchmarks import cohorts, headline
from benchmarks.machine import describe, keep

HEADLINE_SECONDS, COHORTS_SECONDS = 170.0, 160.0


def main() -> None:
    """Measure the headline setting, then vmap against the loop; each is kept as soon as it is there."""
    if not torch.cuda.is_available():
        print("no CUDA device here: nothing to measure")
        return
    torch.set_num_threads(1)
    print("  ".join(f"{name}: {value}" for name, value in describe().items()), flush=True)
    started, failed = time.perf_counter(), []
    for name, part in (
        ("headline", lambda: headline.measure("cuda", seconds=HEADLINE_SECONDS)),
        ("cohorts", lambda: cohorts.measure(seconds=COHORTS_SECONDS)),
    ):
        print(f"== gpu {name}", flush=True)
        try:
            keep("gpu", name, part())
        except Exception:  # the time on a GPU is short: the other part is measured all the same
            traceback.print_exc()
            failed.append(name)
        print(f"{time.perf_counter() - started:.0f} s so far", flush=True)
    if failed:
        sys.exit(f"failed: {', '.join(failed)}")


if __name__ == "__main__":
    main()
