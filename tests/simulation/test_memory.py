import os
import platform
import subprocess
import sys

import pytest

STEPS = """
import resource, torch
from fedflow.simulation.memory import keep_pages
print(keep_pages())
torch.set_num_threads(1)

def step():
    keep = [torch.ones(1_000_000) for _ in range(4)]

for _ in range(5):
    step()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(10):
    step()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def steps(**environment: str) -> tuple[bool, int]:
    """Whether a fresh process keeps its pages, and how many ten steps fault in."""
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("MALLOC_", "GLIBC"))}
    command = [sys.executable, "-c", STEPS]
    said = subprocess.run(command, env=clean | environment, capture_output=True, text=True, check=True)
    kept, faults = said.stdout.split()
    return kept == "True", int(faults)


@pytest.mark.full
def test_steps_reuse_the_memory_of_the_previous_step() -> None:
    kept, faults = steps()
    assert kept == (platform.libc_ver()[0] == "glibc")
    assert not kept or faults < 4000  # a step's four vectors are 3,900 pages: at most one step's in ten
    kept, faults = steps(MALLOC_MMAP_THRESHOLD_="100000")
    assert not kept and faults > 10_000  # what the user says about malloc stands
