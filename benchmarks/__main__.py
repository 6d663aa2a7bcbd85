"""``python -m benchmarks [PART ...]``: run every part, or those named, and print what they measured."""

import sys

from benchmarks import engine, flow, memory, partition, proximity

PARTS = {
    "engine": engine.main, "flow": flow.main, "memory": memory.main, "partition": partition.main,
    "proximity": proximity.main,
}  # fmt: skip


def main() -> None:
    wanted = sys.argv[1:] or list(PARTS)
    for name in wanted:
        if name not in PARTS:
            sys.exit(f"unknown part {name!r}; one of {', '.join(PARTS)}")
    for name in wanted:
        print(f"== {name}", flush=True)
        PARTS[name]()


if __name__ == "__main__":
    main()
