"""Everything that is to be measured on a GPU, not timed on one yet: ``python -m benchmarks gpu``."""

import gc
import sys
import time
import traceback
from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from benchmarks import cohorts, headline
from benchmarks.machine import describe, keep

HEADLINE_SECONDS, COHORTS_SECONDS, AGAIN_SECONDS = 150.0, 150.0, 20.0


def main() -> None:
    """Measure the headline setting, vmap against the loop, and, briefly, the headline in lower precision."""
    if not torch.cuda.is_available():
        print("no CUDA device here: no measurements")
        return
    torch.set_num_threads(1)
    print("  ".join(f"{name}: {value}" for name, value in describe().items()), flush=True)
    started, failed = time.perf_counter(), []
    parts: dict[str, Callable[[], dict[str, Any]]] = {
        "headline": lambda: headline.measure("cuda", seconds=HEADLINE_SECONDS),
        "cohorts": lambda: cohorts.measure(seconds=COHORTS_SECONDS),
    }
    for precision in ("tf32", "bf16"):
        again = partial(headline.measure, "cuda", seconds=AGAIN_SECONDS, precision=precision)
        parts[f"headline-{precision}"] = again
    for name, part in parts.items():
        print(f"== gpu {name}", flush=True)
        try:
            keep("gpu", name, part())
        except Exception:  # time on a GPU is short: measure the other part anyway
            traceback.print_exc()
            failed.append(name)
        print(f"{time.perf_counter() - started:.0f} s so far", flush=True)
        gc.collect()  # a finished run holds its graphs and images until then
        torch.cuda.empty_cache()
    if failed:
        sys.exit(f"failed: {', '.join(failed)}")


if __name__ == "__main__":
    main()
