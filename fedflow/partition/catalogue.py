"""Descriptions of schemes, read from their code: for ``fedflow schemes NAME`` and ``docs/partitions.md``."""

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import numpy as np

from fedflow.data import DataColumn
from fedflow.partition.after import difficulty, holdout, label_noise, newcomers
from fedflow.partition.params import PartitionParams
from fedflow.partition.scheme import SCHEMES, Samples, Scheme
from fedflow.settings import explain, markdown

# The parameters of the picture of each scheme, in addition to `clients: 20`.
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
# Further pictures, by file name: schemes with other parameters.
MORE: dict[str, tuple[str, dict[str, Any]]] = {
    "iid-power": ("iid", {"power": 1.0}),
    "label_shares-by-label": ("label_shares", {"by": "label", **EXAMPLES["label_shares"]}),
    "label_skew-newcomers": ("label_skew", {"newcomers": 0.2, **EXAMPLES["label_skew"]}),
    "super_clusters-control": ("super_clusters", {"control": "matched_random", **EXAMPLES["super_clusters"]}),
    "super_clusters-dirichlet": ("super_clusters", {"within": "dirichlet", **EXAMPLES["super_clusters"]}),
}
PICTURES = "images/partitions"  # below docs/

# Set-ups of the literature: name, source, entry of data, entry of partitions.
HALF = "{mean: [0.5, 0.5, 0.5], std: [0.5, 0.5, 0.5]}"
FEDDYN = "{mean: [0.491, 0.482, 0.447], std: [0.247, 0.243, 0.262]}"
FEDDYN_100 = "{mean: [0.5071, 0.4867, 0.4408], std: [0.2675, 0.2565, 0.2761]}"
RECIPES: tuple[tuple[str, str, str, str], ...] = (
    ("label skew 20 %", "PACFL, FLIS (Tables 3.1, 3.8)", "{source: cifar10, normalize: source}",
     "{scheme: label_skew, fraction: 0.2, clients: 100}"),
    ("Dir(0.1)", "PACFL (Table 3.10)", "{source: cifar10, normalize: source}",
     "{scheme: dirichlet, alpha: 0.1, clients: 100, min_size: 10}"),
    ("SC-NIID(2)", "Table 5.4", "{source: cifar10, normalize: source}",
     "{scheme: super_clusters, clusters: cifar10, labels_per_client: 2, clients: 100}"),
    ("C-NIID(2), its control", "Table 5.4", "{source: cifar10, normalize: source}",
     "{scheme: super_clusters, clusters: cifar10, control: matched_random, clients: 100}"),
    ("SC-Dir(0.5)", "Table 5.4", "{source: cifar10, normalize: source}",
     "{scheme: super_clusters, clusters: cifar10, within: dirichlet, alpha: 0.5, clients: 100}"),
    ("MIX-4", "PACFL (Table 3.11)",
     "{source: mix, parts: [{source: usps}, {source: cifar10}, {source: svhn}, {source: fmnist}], "
     "normalize: source}",
     "{scheme: domains, clients_per_domain: [14, 32, 26, 28], samples_per_client: 500}"),
    ("newcomers, 80 + 20", "PACFL, FLIS (Tables 3.6, 3.12)", "{source: cifar100, normalize: source}",
     "{scheme: label_skew, fraction: 0.2, clients: 100, newcomers: 0.2}"),
    ("attributes of faces", "PACFL (Fig. 3.17)",
     "{source: leaf_celeba, path: data/raw/celeba, normalize: source}",
     "{scheme: attributes, columns: [smiling, wavy_hair, wearing_hat], clients: 30}"),
    ("Scenario 1", "FLT (Table 1)", "{source: mnist, normalize: none}",
     "{scheme: label_groups, groups: 5, labels_per_group: 2, sampler: slice, clients: 100}"),
    ("Scenario 2, ring overlap", "FLT (Table 2)", f"{{source: cifar10, normalize: {HALF}}}",
     "{scheme: label_groups, groups: 5, labels_per_group: 3, overlap: 1, sampler: slice, clients: 100}"),
    ("Table 5's sampler", "FLT (Table 5)", f"{{source: cifar10, normalize: {HALF}}}",
     "{scheme: label_groups, groups: 5, labels_per_group: 3, overlap: 1, sampler: independent, "
     "samples_per_label: 250, clients: 500}"),
    ("Scenario 3, writers", "FLT (Table 3)",
     "{source: leaf_femnist, path: data/raw/femnist, normalize: none}",
     "{scheme: natural, clients: 200}"),
    ("Scenario 4", "FLT (Table 4)", "{source: emnist_balanced, normalize: none}",
     "{scheme: structured, clients: 2400}"),
    ("Dirichlet, exact sizes", "FedDyn (Table 2.1)", f"{{source: cifar10, normalize: {FEDDYN}}}",
     "{scheme: dirichlet_exact, alpha: 0.3, clients: 100}"),
    ("massive", "FedDyn (Table 2.1)", f"{{source: cifar10, normalize: {FEDDYN}}}",
     "{scheme: dirichlet_exact, alpha: 0.3, clients: 1000}"),
    ("unbalanced IID", "FedDyn (Table A.2)", f"{{source: cifar10, normalize: {FEDDYN}}}",
     "{scheme: iid, sigma: 0.3, clients: 100}"),
    ("unbalanced Dirichlet", "FedDyn (Table A.2)", f"{{source: cifar100, normalize: {FEDDYN_100}}}",
     "{scheme: dirichlet_exact, alpha: 0.3, sigma: 0.3, clients: 100}"),
    ("IID with exact class balance", "FedDyn (Table 2.2)", f"{{source: cifar100, normalize: {FEDDYN_100}}}",
     "{scheme: iid, stratified: true, clients: 100}"),
    ("ten letters", "FedDyn (EMNIST-L)",
     "{source: emnist_letters, keep_labels: [0, 1, 2, 3, 4, 5, 6, 7, 8, 9], normalize: train}",
     "{scheme: dirichlet_exact, alpha: 0.3, clients: 100}"),
    ("roles, 2,000 and 400 windows", "FedDyn (Table 2.2); 87 roles in this text", "{source: tinyshakespeare}",
     "{scheme: natural, min_samples: 2001, min_test: 401, max_samples: 2000, max_test: 400}"),
    ("pooled windows of all roles", "FedDyn (Table 2.2)",
     "{source: tinyshakespeare, train_limit: 200000, test_limit: 40000}", "{scheme: iid, clients: 100}"),
    *(
        (f"synthetic, {kind}", "FedDyn (Table A.4)",
         f"{{source: synthetic_convex, heterogeneity: {differs}}}", "{scheme: natural}")
        for kind, differs in (("homogeneous", "homogeneous"), ("Type 1", "parameters"), ("Type 2", "inputs"),
                              ("Type 3", "sizes"))
    ),
    ("ACID", "PFLDyn (Table 3.1)", "{source: cifar10, normalize: train}",
     "{scheme: acid, classes_per_client: 5, clients: 100}"),
    ("ALID", "PFLDyn (Table 3.2)", "{source: cifar10, normalize: train}",
     "{scheme: acid, classes_per_client: 5, anonymous: true, clients: 100}"),
    ("ALID, miniImageNet", "PFLDyn (Table A.7)",
     "{source: mini_imagenet, path: data/raw/mini_imagenet, normalize: train}",
     "{scheme: acid, classes_per_client: 5, anonymous: true, clients: 100}"),
    ("S-MNIST", "MOML (Table 5.1)", "{source: smnist, normalize: source}",
     "{scheme: natural, column: task, min_test: 1}"),
    *(
        (f"{ways}-way CIFAR-100", f"MOML (Table {table})",
         f"{{source: cifar100, normalize: {FEDDYN_100}}}", f"{{scheme: kway, ways: {ways}, clients: 200}}")
        for ways, table in ((5, "5.1"), (4, "5.2"), (3, "5.2"))
    ),
    ("20 disjoint tasks", "MOML (Table A.9)", f"{{source: cifar100, normalize: {FEDDYN_100}}}",
     "{scheme: kway, ways: 5}"),
    ("5-way miniImageNet", "MOML (Table 5.1)",
     "{source: mini_imagenet, path: data/raw/mini_imagenet, normalize: train}",
     "{scheme: kway, ways: 5, clients: 100}"),
    ("pathological", "SuPerFed (Table 2.3)", "{source: mnist, normalize: none}",
     "{scheme: shards, shards_per_client: 2, clients: 50, holdout: 0.2}"),
    ("label noise", "SuPerFed (Table 2.6)", "{source: mnist, normalize: none}",
     "{scheme: dirichlet, alpha: 100, clients: 100, holdout: 0.2, label_noise: {kind: pair, ratio: 0.4}}"),
    ("pathological, CIFAR-10", "SuPerFed (Table 2.2)", "{source: cifar10, resize: 28, normalize: none}",
     "{scheme: shards, shards_per_client: 2, clients: 50, holdout: 0.2}"),
    ("Dirichlet, CIFAR-100", "SuPerFed (Table 2.2)", "{source: cifar100, resize: 28, normalize: none}",
     "{scheme: dirichlet, alpha: 1, clients: 100, holdout: 0.2}"),
    ("Dirichlet, TinyImageNet", "SuPerFed (Table 2.2)", "{source: folder, path: data/raw/tiny, normalize: "
     "{mean: [0.485, 0.456, 0.406], std: [0.229, 0.224, 0.225]}}",
     "{scheme: dirichlet, alpha: 1, clients: 200, holdout: 0.2}"),
    ("writers", "SuPerFed (Table 2.2)", "{source: leaf_femnist, path: data/raw/femnist, normalize: none}",
     "{scheme: natural, clients: 730}"),
    ("roles, 100 characters", "SuPerFed (Table 2.2)",
     "{source: leaf_shakespeare, path: data/raw/shakespeare, alphabet: printable}",
     "{scheme: natural, clients: 660}"),
    ("roles of plays", "LEAF", "{source: leaf_shakespeare, path: data/raw/shakespeare}", "{scheme: natural}"),
    ("difficulty", "Curriculum-FL (Fig. 2.8)", "{source: cifar10, normalize: source}",
     "{scheme: dirichlet_clients, alpha: 0.2, clients: 100, difficulty: {order: 1.0, expert: mine}}"),
    ("more partitions than clients", "Curriculum-FL (section 2.5)", "{source: cifar10, normalize: source}",
     "{scheme: iid, clients: 100, pieces: 400, pieces_used: random}"),
    ("shards of 250", "Sub-FedAvg (Table 4.1)", "{source: cifar10, normalize: source}",
     "{scheme: shards, shards_per_client: 2, length: 250, clients: 100}"),
    ("mixed linear regression", "IFCA (section 6.1)", "{source: mixed_regression, clients: 100, groups: 2}",
     "{scheme: natural, groups: group}"),
    ("rotated MNIST", "IFCA (section 6.2)", "{source: mnist, rotations: [0, 90, 180, 270], normalize: none}",
     "{scheme: domains, column: rotation, clients: 1200, samples_per_client: 200, draw: random}"),
    ("rotated CIFAR-10", "IFCA (section 6.2)", "{source: cifar10, rotations: [0, 180], normalize: source}",
     "{scheme: domains, column: rotation, clients: 200, samples_per_client: 500, draw: random}"),
    ("disjoint Dirichlet", "FedEvg (section 7.2)", "{source: mnist, resize: 32, normalize: none}",
     "{scheme: dirichlet_disjoint, alpha: 1.0, clients: 10, holdout: 0.2}"),
)  # fmt: skip
AFTER = (difficulty, newcomers, holdout, label_noise)


@dataclass(frozen=True)
class SchemePage:
    """One scheme: its docstring, its parameters, and the line of params.yaml behind each picture."""

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
    own = [name for name, entry in pictures().items() if entry["scheme"] == scheme.name]
    lines = {name: _yaml({"dataset": "mine"} | pictures()[name]) for name in own}
    return SchemePage(scheme.name, title, idea, text, explain(scheme), lines)


def pictures() -> dict[str, dict[str, Any]]:
    """The entry of ``partitions`` behind each picture, by name; a scheme's first has the scheme's name."""
    every = {name: (name, own) for name, own in EXAMPLES.items()} | MORE
    return {name: {"scheme": scheme, "clients": 20} | own for name, (scheme, own) in every.items()}


def toy_samples() -> Samples:
    """5,000 training and 500 test samples of ten classes, with every column that a scheme may need."""
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
    """The catalogue of partition schemes in Markdown, one section with a picture per registered scheme."""
    pages = [describe(SCHEMES[name]) for name in sorted(SCHEMES)]
    shared = [row for row in explain(PartitionParams) if row["name"] in PartitionParams.shared()]
    head = [
        "# Partitions",
        "",
        "Generated from the code by `fedflow schemes --markdown > docs/partitions.md` and",
        f"`fedflow schemes --pictures docs/{PICTURES}`; do not edit by hand.",
        "A partition is one line under `partitions` in `params.yaml`; `dvc repro` or `fedflow partition",
        "NAME` makes it, `fedflow partitions compare A B` measures how heterogeneous it is against others.",
        "Labels have no order there: their earth mover's distance is the total variation; a 1-D Wasserstein",
        "distance over their numbers, which no published table needs, is not offered.",
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
        "## Set-ups of the literature",
        "",
        "Pixels are normalized as in the papers' code (`normalize: none` leaves them in [0, 1]). FedDyn and",
        "PFLDyn flip and crop images of CIFAR (`training.augment: flip_crop`); IFCA also changes their",
        "contrast and standardizes each image, which the constants here approximate.",
        "",
        "| what | where | under `data` | under `partitions`, beside `dataset:` |",
        "|---|---|---|---|",
        *(f"| {what} | {where} | `{data}` | `{entry}` |" for what, where, data, entry in RECIPES),
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
    """The text of a step, and the fields of its mapping, if it has one."""
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
