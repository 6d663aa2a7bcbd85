"""``python -m benchmarks [PART ...]``: measure every CPU part, or those named; ``gpu`` is all GPU parts.

What was measured is printed, and kept in ``benchmarks/results/`` with the machine it was measured on.
"""

import sys
from importlib import import_module

from benchmarks.machine import keep

PARTS = ("engine", "flow", "headline", "memory", "partition", "proximity")


def main() -> None:
    wanted = sys.argv[1:] or list(PARTS)
    for name in wanted:
        if name not in (*PARTS, "gpu"):
            sys.exit(f"unknown part {name!r}; one of {', '.join(PARTS)}, gpu")
    for name in wanted:
        print(f"== {name}", flush=True)
        # Imported one by one: a part may need what another machine lacks.
        measured = import_module(f"benchmarks.{name}").main()
        if measured is not None:
            keep("cpu", name, measured)


if __name__ == "__main__":
    main()
