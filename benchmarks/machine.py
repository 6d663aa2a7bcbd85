"""What the numbers were measured on, and where they are kept."""

import json
import os
import platform
import subprocess
from pathlib import Path
from typing import Any

import torch

from fedflow.files import replace_text
from fedflow.project.machine import processor

RESULTS = Path(os.environ.get("BENCH_RESULTS") or Path(__file__).parent / "results")
WARM_UP_ROUNDS = {"cuda": 4, "cpu": 1}  # that also start the device and choose how it works


def describe() -> dict[str, Any]:
    """Processor, cores, GPU with its driver, and versions: no names of hosts or paths."""
    found = {
        "cpu": processor(),
        "cores": len(os.sched_getaffinity(0)),
        "system": platform.system(),
        "python": platform.python_version(),
        "torch": torch.__version__,
    }
    if torch.cuda.is_available():
        properties = torch.cuda.get_device_properties(0)
        found |= {
            "gpu": properties.name,
            "gpu_memory_gib": round(properties.total_memory / 2**30, 1),
            "gpu_multiprocessors": properties.multi_processor_count,
            "cuda": torch.version.cuda,
            "driver": _driver(),
        }
    return found


def keep(kind: str, part: str, measured: Any) -> None:
    """Write ``results/<kind>-<part>.json`` (kind ``cpu`` or ``gpu``)."""
    text = json.dumps({"machine": describe(), "measured": measured}, indent=1)
    replace_text(RESULTS / f"{kind}-{part}.json", text + "\n")


def _driver() -> str:
    query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        return subprocess.run(query, capture_output=True, text=True, check=True).stdout.split()[0]
    except (OSError, subprocess.CalledProcessError, IndexError):
        return "unknown"
