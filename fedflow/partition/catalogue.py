"""Descriptions of schemes, read from their code: for ``fedflow schemes`` and the docs site."""

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import numpy as np

from fedflow.data import DataColumn
from fedflow.partition.after import difficulty, feature_noise, holdout, label_noise, newcomers, transforms
from fedflow.partition.params import PartitionParams
from fedflow.partition.scheme import SCHEMES, Samples, Scheme
from fedflow.settings import explain, markdown

# Parameters of the picture of each scheme, in addition to `clients: 20`.
EXAMPLES: dict[str, dict[str, Any]] = {
    "acid": {"classes_per_client": 3},
    "attributes": {},
    "dirichlet": {"alpha": 0.3},
    "dirichlet_clients": {"alpha": 0.2},
    "dirichlet_disjoint": {"alpha": 1.0},
    "dirichlet_exact": {"alpha": 0.3},
    "domains": {},
    "given": {"clients": 3, "rows": [[0, 10, 20, 1, 11], [2, 12, 22, 3], [4, 5, 6, 7, 8, 9]]},
    "iid": {},
    "kway": {},
    "label_groups": {"groups": 4},
    "label_shares": {
        "clients": 4,
        "shares": [
            [6, 2, 2, 0, 0, 0, 0, 0, 0, 0],
            [0, 0, 0, 4, 4, 2, 0, 0, 0, 0],
            [0, 0, 0, 0, 0, 0, 0, 1, 1, 8],
            [1, 1, 1, 1, 1, 1, 1, 1, 1, 1],
        ],
    },
    "label_skew": {"fraction": 0.2},
    "natural": {},
    "noniid1": {"fraction": 0.4},
    "shards": {"shards_per_client": 2},
    "structured": {"labels_per_group": 3},
    "structured_as_published": {"labels_per_group": 3},
    "super_clusters": {"clusters": "cifar10"},
}
# Further pictures of schemes, by file name.
MORE: dict[str, tuple[str, dict[str, Any]]] = {
    "label_skew-newcomers": ("label_skew", {"newcomers": 0.2, **EXAMPLES["label_skew"]}),
    "super_clusters-control": ("super_clusters", {"control": "matched_random", **EXAMPLES["super_clusters"]}),
    "super_clusters-dirichlet": ("super_clusters", {"within": "dirichlet", **EXAMPLES["super_clusters"]}),
}
PICTURES = "images/partitions"  # below docs/
AFTER = (difficulty, newcomers, holdout, label_noise, transforms, feature_noise)


@dataclass(frozen=True)
class SchemePage:
    """Docstring and parameters of a scheme, and the line of params.yaml of each of its pictures."""

    name: str
    title: str
    idea: str
    text: str
    options: list[dict[str, Any]]
    pictures: dict[str, str]


def describe(scheme: type[Scheme]) -> SchemePage:
    """The page of one scheme."""
    text = (sys.modules[scheme.__module__].__doc__ or "").strip()
    title, _, idea = text.split("\n\n")[0].replace("\n", " ").partition(": ")
    entries = {name: entry for name, entry in pictures().items() if entry["scheme"] == scheme.name}
    lines = {name: _yaml({"dataset": "mine"} | entry) for name, entry in entries.items()}
    return SchemePage(scheme.name, title, idea, text, explain(scheme), lines)


def pictures() -> dict[str, dict[str, Any]]:
    """The entry of ``partitions`` of each picture; the first of each scheme has the scheme's name."""
    entries = {name: (name, options) for name, options in EXAMPLES.items()} | MORE
    return {name: {"scheme": scheme, "clients": 20} | options for name, (scheme, options) in entries.items()}


def toy_samples() -> Samples:
    """5,000 training and 500 test samples of ten classes, with the columns that schemes need."""
    rng = np.random.default_rng(0)
    labels, test_labels = np.arange(5000) % 10, np.arange(500) % 10

    def column(shares: np.ndarray) -> DataColumn:
        """A value per sample, drawn from its label's row of ``shares`` [10, values]."""
        train, test = (
            (rng.random(len(y))[:, None] > shares.cumsum(1)[y]).sum(1) for y in (labels, test_labels)
        )
        return DataColumn(train, test)

    columns = {"user": column(rng.dirichlet(np.full(20, 0.5), 10))}
    columns["domain"] = DataColumn(labels // 3, test_labels // 3)
    for attribute in ("smiling", "wavy_hair", "wearing_hat"):
        columns[attribute] = column(rng.dirichlet((1.0, 1.0), 10))
    return Samples(labels, test_labels, columns)


def catalogue() -> str:
    """The catalogue in Markdown, with a section and pictures for every scheme."""
    pages = [describe(SCHEMES[name]) for name in sorted(SCHEMES)]
    shared = [row for row in explain(PartitionParams) if row["name"] in PartitionParams.shared()]
    head = [
        "# Partition schemes",
        "",
        "A partition is one line under `partitions` in `params.yaml`; `dvc repro` or `fedflow partition",
        "NAME` makes it, and `fedflow partitions compare A B` compares the heterogeneity of several. Labels",
        "have no order there: their earth mover's distance is the total variation.",
        "Pictures: ten classes of 500 samples, one bar per client, one color per label.",
        "",
        "| scheme | what it does |",
        "|---|---|",
        *(f"| [`{p.name}`](#{p.name}) | {p.idea} |" for p in pages),
        "",
        "## Fields of every scheme",
        "",
        *markdown(shared),
        "",
        "## Steps after any scheme",
        *(line for module in AFTER for line in _step(module)),
        "",
        "Entries for published experiments: [Setups from the literature](reference/setups.md).",
    ]
    return "\n".join([*head, *(line for page in pages for line in _section(page))]) + "\n"


def _section(page: SchemePage) -> list[str]:
    paragraphs = page.text.split("\n\n")
    text = "\n\n".join(p for p in paragraphs if not p.startswith(">>>"))
    lines = ["", f'<a id="{page.name}"></a>', "", f"## {page.title} (`{page.name}`)", ""]
    shown = [line for name, entry in page.pictures.items() for line in _picture(page, name, entry)]
    return [*lines, *shown[:2], text, "", *shown[2:], *markdown(page.options)]


def _picture(page: SchemePage, name: str, entry: str) -> list[str]:
    return [f"![{page.title}]({PICTURES}/{name}.png)", "", f"`mine: {entry}`", ""]


def _step(module: ModuleType) -> list[str]:
    """The text of a step, and its fields, if it has a mapping."""
    text = (module.__doc__ or "").split("\n\n>>>")[0].strip()
    rows = [
        line
        for settings in vars(module).values()
        if isinstance(settings, type) and settings.__module__ == module.__name__
        for line in ["", *markdown(explain(settings))]
    ]
    return ["", text, *rows]


def _yaml(value: Any) -> str:
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{k}: {_yaml(v)}" for k, v in value.items()) + "}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_yaml, value))}]"
    return str(value).lower() if isinstance(value, bool) else str(value)
