"""What a scheme is, read off its code: for ``fedflow schemes NAME`` and the catalogue in ``docs/``."""

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fedflow.data import Column
from fedflow.partition.base import SCHEMES, Samples, Scheme
from fedflow.partition.params import PartitionParams
from fedflow.partition.partition import make_partition
from fedflow.partition.picture import draw_labels
from fedflow.settings import explain, markdown

# What makes the picture of each scheme: parameters beside `clients: 20`.
EXAMPLES: dict[str, dict[str, Any]] = {
    "acid": {"classes_per_client": 3},
    "attributes": {},
    "dirichlet": {"alpha": 0.3},
    "dirichlet_clients": {"alpha": 0.2},
    "dirichlet_disjoint": {"alpha": 1.0},
    "dirichlet_exact": {"alpha": 0.3},
    "domains": {},
    "iid": {},
    "label_groups": {"groups": 4},
    "label_skew": {"fraction": 0.2},
    "natural": {},
    "noniid1": {"fraction": 0.4},
    "shards": {"shards_per_client": 2},
    "structured": {"labels_per_group": 3},
    "super_clusters": {"clusters": "cifar10"},
}
PICTURES = "images/partitions"  # below docs/


@dataclass(frozen=True)
class Page:
    """One scheme: its module's text, its parameters, and the line of params.yaml that makes its picture."""

    name: str
    title: str
    idea: str
    text: str
    options: list[dict[str, Any]]
    example: str


def describe(scheme: type[Scheme]) -> Page:
    """The page of one scheme."""
    text = (sys.modules[scheme.__module__].__doc__ or "").strip()
    title, _, idea = text.split("\n\n")[0].replace("\n", " ").partition(": ")
    entry = {"dataset": "mine", "scheme": scheme.name} | example(scheme.name)
    inner = ", ".join(f"{name}: {_yaml(value)}" for name, value in entry.items())
    return Page(scheme.name, title, idea, text, explain(scheme), f"{{{inner}}}")


def example(name: str) -> dict[str, Any]:
    """The parameters behind the picture of a scheme."""
    return {"clients": 20} | EXAMPLES[name]


def draw(folder: Path) -> None:
    """Write the picture of every scheme, ``<name>.png``, on ten classes of 500 samples each."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in sorted(SCHEMES):
        params = PartitionParams.parse({"dataset": "ten classes", "scheme": name} | example(name))
        made = make_partition(params, toy_samples())
        draw_labels(made, folder / f"{name}.png")


def toy_samples() -> Samples:
    """5,000 training samples of ten classes with every column that a scheme may ask for; 500 for test."""
    rng = np.random.default_rng(0)
    labels, test_labels = np.arange(5000) % 10, np.arange(500) % 10

    def column(shares: np.ndarray) -> Column:
        """A value per sample, drawn from its label's row of ``shares`` [10, values]."""
        train, test = (
            (rng.random(len(y))[:, None] > shares.cumsum(1)[y]).sum(1) for y in (labels, test_labels)
        )
        return Column(train, test)

    columns = {"user": column(rng.dirichlet(np.full(20, 0.5), 10))}
    columns["domain"] = Column(labels // 3, test_labels // 3)
    for attribute in ("smiling", "wavy_hair", "wearing_hat"):
        columns[attribute] = column(rng.dirichlet((1.0, 1.0), 10))
    return Samples(labels, test_labels, columns)


def catalogue() -> str:
    """The catalogue of partition schemes in Markdown, one section with a picture per registered scheme."""
    pages = [describe(SCHEMES[name]) for name in sorted(SCHEMES)]
    shared = [row for row in explain(PartitionParams) if row["name"] != "parameters"]
    head = [
        "# Partitions",
        "",
        "Written from the code by `fedflow schemes --markdown > docs/partitions.md` and",
        f"`fedflow schemes --pictures docs/{PICTURES}`; do not edit by hand.",
        "A partition is one line under `partitions` in `params.yaml`; `dvc repro` or `fedflow partition",
        "NAME` makes it, `fedflow partitions compare A B` measures how heterogeneous it is beside others.",
        "Pictures: ten classes of 500 samples, one bar per client, one colour per label.",
        "",
        "| scheme | what it does |",
        "|---|---|",
        *(f"| [`{p.name}`](#{p.name}) | {p.idea} |" for p in pages),
        "",
        "## What every scheme takes",
        "",
        *markdown(shared),
    ]
    return "\n".join([*head, *(line for page in pages for line in _section(page))]) + "\n"


def _section(page: Page) -> list[str]:
    paragraphs = page.text.split("\n\n")
    text = "\n\n".join(p for p in paragraphs if not p.startswith(">>>"))
    lines = ["", f'<a id="{page.name}"></a>', "", f"## {page.title} (`{page.name}`)", ""]
    lines += [f"![{page.title}]({PICTURES}/{page.name}.png)", "", text, "", f"`mine: {page.example}`"]
    return [*lines, "", *markdown(page.options)]


def _yaml(value: Any) -> str:
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{k}: {_yaml(v)}" for k, v in value.items()) + "}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_yaml, value))}]"
    return str(value).lower() if isinstance(value, bool) else str(value)
