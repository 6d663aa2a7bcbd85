"""Diagnostics by client and round (`Recording.series`), and kept vectors at the end (`Recording.records`).

The file of the vectors, such as masks, has a tensor ``<name>/<client>`` for every vector, with eight entries
of a bool vector in a byte, and ``labels``, if samples have one label each. Equal vectors give equal bytes.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save
from torch import Tensor

from fedflow.errors import FedflowError, reason
from fedflow.methods.protocols import Recording
from fedflow.metrics.masks import Masks, compare
from fedflow.simulation.evaluation import Scores
from fedflow.simulation.extensions.extension import Run, RunExtension
from fedflow.simulation.job import ClientResult
from fedflow.simulation.outcome import (
    PERSONAL_BYTES,
    PERSONAL_CLIENTS,
    SERIES_CLIENTS,
    RoundReport,
    RunFindings,
)

FILE = "client-vectors.safetensors"
PRUNED, GATE = (
    "client/pruned",
    "client/gate_kept",
)  # series of clients that prune: share, accuracy of the rest


@dataclass(frozen=True)
class ClientVectors:
    """Kept vectors of the first clients, at most `PERSONAL_CLIENTS` with at most `PERSONAL_BYTES`.

    ``vectors`` has the vectors of every client by name. ``sizes`` are the entries of each tensor of the
    network, in the order of a vector [D]. ``labels`` [n, C], bool: the labels that each client trains on.
    """

    vectors: list[dict[str, Tensor]] = field(default_factory=list)
    sizes: dict[str, int] = field(default_factory=dict)
    labels: np.ndarray | None = None

    def named(self, name: str) -> Tensor | None:
        """The vectors of one name [n, D], or None if clients have none, or different lengths."""
        named = [vectors[name] for vectors in self.vectors if name in vectors]
        return torch.stack(named) if len({len(vector) for vector in named}) == 1 else None

    def masks(self, participations: np.ndarray) -> Masks | None:
        """The compared vectors ``mask`` of clients that took part, or None if there are less than two."""
        took_part = np.flatnonzero(participations[: len(self.vectors)])
        masks = self.named("mask")
        if masks is None or masks.dtype != torch.bool or len(took_part) < 2:
            return None
        sizes = self.sizes if sum(self.sizes.values()) == masks.shape[1] else {}
        labels = None if self.labels is None else self.labels[took_part]
        return compare(masks.numpy()[took_part], took_part.tolist(), sizes, labels)

    def save(self, path: Path) -> None:
        """Write the file; raises `OSError`."""
        tensors = {} if self.labels is None else {"labels": self.labels}
        bits: dict[str, int] = {}
        for client, vectors in enumerate(self.vectors):
            for name, vector in vectors.items():
                key, values = f"{name}/{client}", vector.cpu().numpy()
                if values.dtype == np.bool_:
                    bits[key], values = len(values), np.packbits(values)
                tensors[key] = values
        # One entry of metadata: several would be in any order.
        facts = {"clients": len(self.vectors), "sizes": self.sizes, "bits": bits}
        path.write_bytes(save(tensors, {"about": json.dumps(facts)}))


def load_vectors(path: Path) -> ClientVectors:
    """Read the file. Raises `FedflowError` if it is missing, damaged or invalid."""
    try:
        with safe_open(path, framework="numpy") as file:
            tensors = {name: file.get_tensor(name) for name in list(file.keys())}
            facts = json.loads(file.metadata()["about"])
        labels, vectors = tensors.pop("labels", None), [dict[str, Tensor]() for _ in range(facts["clients"])]
        for key, values in sorted(tensors.items()):
            name, _, client = key.rpartition("/")
            if (size := facts["bits"].get(key)) is not None:
                if len(values) != -(-size // 8):
                    raise ValueError(f"{key} has {len(values)} bytes for {size} bits")
                values = np.unpackbits(values, count=size).astype(bool)
            vectors[int(client)][name] = torch.from_numpy(values)
        if labels is not None and len(labels) != len(vectors):
            raise ValueError(f"labels of {len(labels)} clients, not {len(vectors)}")
        return ClientVectors(vectors, facts["sizes"], labels)
    except (OSError, SafetensorError, ValueError, KeyError, TypeError, IndexError, AttributeError) as error:
        raise FedflowError(f"cannot read {path}: {reason(error)}; run this experiment again") from error


class Recorded(RunExtension):
    """Series and vectors of the clients of a method that records them."""

    @classmethod
    def wanted(cls, run: Run) -> bool:
        return isinstance(run.job.method, Recording)

    @property
    def method(self) -> Recording:
        """The method, which names what to record."""
        return Recording.of(self.run.job.method)

    def begin(self, server: Any) -> Any:
        method, model = self.run.job.method, self.run.federation.model
        kept = method.client_state(model, model.init(0))
        if missing := [name for name in self.method.records if name not in kept]:
            raise FedflowError(f"{method.name}: its clients do not keep {', '.join(missing)} to be recorded")
        return server

    def stepped(self, report: RoundReport, sent: Sequence[ClientResult]) -> None:
        """Add the diagnostics of a cohort; NaN outside of it."""
        nothing = [float("nan")] * min(self.run.clients, SERIES_CLIENTS)
        for name in self.method.series:
            values = report.series.setdefault(f"client/{name}", nothing.copy())
            for result in sent:
                if result.client < len(values):
                    values[result.client] = result.reported.get(name, float("nan"))

    def finish(self, scores: Scores) -> RunFindings:
        return RunFindings(files={FILE: self.vectors().save} if self.method.records else {})

    def vectors(self) -> ClientVectors:
        run, vectors, size = self.run, list[dict[str, Tensor]](), 0
        for client in range(min(run.clients, PERSONAL_CLIENTS)):
            kept = run.state.store.get(client, self.method.records)
            size += sum(vector.nbytes for vector in kept.values())
            if vectors and size > PERSONAL_BYTES:
                break
            vectors.append({name: vector.cpu() for name, vector in kept.items()})
        sizes = dict(zip(run.federation.model.names, run.federation.model.sizes))
        return ClientVectors(vectors, sizes, None if run.labels is None else run.labels[: len(vectors)])
