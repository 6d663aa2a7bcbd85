"""One finished run, as the report uses it."""

from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import pandas as pd

from fedflow.data.generated import FILE as IMAGES
from fedflow.data.generated import GeneratedImages, load_generated
from fedflow.finished.reading import check_columns, read_table, reject
from fedflow.methods.protocols import Dissimilarity
from fedflow.metrics.masks import Masks
from fedflow.metrics.table import diagnostics
from fedflow.simulation.evaluation import PREDICTIONS
from fedflow.simulation.extensions.mixtures import SWEEP
from fedflow.simulation.extensions.recording import FILE, load_vectors


@dataclass(frozen=True)
class Run:
    """One finished run: its settings, ``metrics.json``, ``rounds.csv``, its clients and ``clusters.json``."""

    folder: Path
    metrics: dict[str, Any]
    params: dict[str, Any]  # `SECTIONS` of settings, and the central networks that it uses
    rounds: pd.DataFrame  # a row per round; bytes are cumulative, accuracies empty where not evaluated
    clients: pd.DataFrame  # a row per client that took part
    groups: list[int] | None  # planted group of every client
    history: list[dict[str, Any]]  # round and assignment [N], where the assignment changed; -1 = none yet
    series: pd.DataFrame = field(
        default_factory=pd.DataFrame
    )  # round, client, name and value of the method's diagnostics over clients
    dissimilarity: Dissimilarity | None = None  # where the server compares clients
    stable_cluster_ids: bool = True  # whether a cluster keeps its number in all of history
    variant: str = ""  # runs of the same method and variant are averaged
    label: str = ""  # the name that is printed
    repeated: str = ""  # another folder with the same settings, data and seed, which is not shown

    def file(self, name: str) -> Path | None:
        """A file of its results; None if the run has none of this name."""
        return self.folder / name if name in self.metrics.get("files", ()) else None

    @property
    def predictions(self) -> pd.DataFrame:
        """What the served models predict, by client and sample of its test set; empty if not kept.

        Read at every access: the tables of many runs do not fit in memory.
        """
        if not (path := self.file("predictions.parquet")):
            return pd.DataFrame(columns=[*PREDICTIONS])
        table, clients = read_table(path, pd.read_parquet, PREDICTIONS), self.metrics["clients"]
        if not table["client"].between(0, clients - 1).all():
            reject(path, f"not of {clients} clients")
        check_columns(path, table, {"confidence": (0, 1)})
        return table

    @cached_property
    def sweep(self) -> pd.DataFrame:
        """Scores of the mixtures of every client's models; empty where the method has none."""
        if not (path := self.file("sweep.parquet")):
            return pd.DataFrame(columns=[*SWEEP])
        table = read_table(path, pd.read_parquet, SWEEP)
        check_columns(path, table, {"accuracy": (0, 1)})
        return table

    @cached_property
    def masks(self) -> Masks | None:
        """The masks of the clients that took part, compared; None where the method has none."""
        if not (path := self.file(FILE)):
            return None
        found, clients = load_vectors(path), self.metrics["clients"]
        if len(found.vectors) > clients:
            reject(path, f"not of {clients} clients")
        return found.masks(self.clients["participations"].to_numpy()) if found.vectors else None

    @cached_property
    def images(self) -> GeneratedImages:
        """The images that the server generated; none in results of other methods."""
        path = self.file(IMAGES)
        return load_generated(path) if path else GeneratedImages({}, None)

    @cached_property
    def predicted(self) -> dict[tuple[str, int | None], dict[str, float]]:
        """Summaries of predictions computed so far, by measure and batch (`fedflow.claims.measures`)."""
        return {}

    @property
    def diagnostics(self) -> list[str]:
        """The names of the method's diagnostics, columns of ``rounds``."""
        return diagnostics(self.rounds.columns)

    @property
    def procedure(self) -> str:
        """The registered procedure, if this is a row of an outcome (`fedflow.report.procedures`)."""
        return self.params["procedure"]["name"] if "procedure" in self.params else ""

    @property
    def partition(self) -> str:
        return self.metrics["partition"]

    @property
    def method(self) -> str:
        return self.metrics["method"]

    @property
    def seed(self) -> int:
        return self.metrics["seed"]

    @property
    def settings(self) -> str:
        """The digest of `params`."""
        return self.metrics["settings"]
