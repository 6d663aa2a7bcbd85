"""Synthetic result folders in the shape of real ones, made from a seed."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from fedflow.metrics.clustering import agreement
from fedflow.metrics.distribution import summarize
from fedflow.simulation.evaluation import PREDICTIONS
from fedflow.simulation.extensions.recording import FILE, ClientVectors

METHODS = {"fedavg": "FedAvg", "scaffold": "SCAFFOLD", "local": "Local", "ditto": "Ditto", "ifca": "IFCA"}
LEVELS = {  # local and global accuracy at the end
    "fedavg": (0.91, 0.90),
    "scaffold": (0.93, 0.92),
    "local": (0.88, 0.45),
    "ditto": (0.955, 0.72),
    "ifca": (0.945, 0.80),
}
CLUSTERED = ("ifca", "pacfl")
PARAMETERS = 44_426


def write_run(
    root: Path,
    partition: str,
    method: str,
    seed: int,
    rounds: int = 20,
    clients: int = 20,
    groups: bool = True,
    dataset: str = "mnist5k",
    label: str | None = None,
    newcomers: int = 0,
    time: float | None = None,
    plain: bool = True,
    diagnostics: Sequence[str] = (),
    series: Mapping[str, np.ndarray] | None = None,
    scheme: tuple[str, dict[str, object]] = ("dirichlet", {"alpha": 0.1}),
    participation: float = 0.3,
    reports: Sequence[str] = (),
    training: Mapping[str, object] | None = None,
    pool: Sequence[int] | None = None,
    sampling: Mapping[str, object] | None = None,
    central: Mapping[str, object] | None = None,
    predictions: pd.DataFrame | None = None,
    vectors: ClientVectors | None = None,
    levels: Sequence[str] = (),
    **settings: object,
) -> Path:
    """One run under ``root/<partition>/<method>/<seed>``; returns its folder. Only pacfl compares clients.

    ``settings`` are of the method; a run that is not ``plain`` has the digest of its settings in the name of
    its folder. ``time`` is what a round takes; without it, there is no column of the clock. ``diagnostics``
    are the names of those of the method, ``series`` [rounds, clients] those that are arrays, by name.
    ``scheme``: that of the partition, and its parameters. ``reports``: as in ``run.reports``, all with the
    global accuracy. ``training`` are further settings of it, ``sampling`` those of the run. ``pool``
    [rounds]: that of a client curriculum. ``central``: the settings of the networks that it uses, by name.
    ``predictions``: those of the samples of clients, if they are kept. ``vectors``: those that clients keep.
    ``levels``: those of the clients, whose accuracies are 0.1 apart.
    """
    about = f"{method}{partition}{settings}{training or ''}{sampling or ''}"
    rng = np.random.default_rng([seed, *about.encode()])
    params = {
        "method": {"name": method, **settings},
        "training": {"epochs": 2, "batch_size": 10, "lr": 0.03, **(training or {})},
        "run": {"rounds": rounds, "participation": participation, "target_accuracy": 0.9, **(sampling or {})},
        "model": {"name": "lenet5", "options": {}},
        "data": {dataset: {"source": dataset, "parameters": {}}},
        "partition": {"dataset": dataset, "scheme": scheme[0], "clients": clients, "parameters": scheme[1]},
        **({} if central is None else {"central": central}),
    }
    digest = hashlib.blake2b(json.dumps(params).encode(), digest_size=6).hexdigest()
    folder = root / partition / method / (str(seed) if plain else f"{seed}-{digest[:8]}")
    folder.mkdir(parents=True)
    (folder / "params.json").write_text(json.dumps({"settings": digest, "seed": seed, **params}))
    local, whole = LEVELS.get(method, (0.9, 0.8))
    planted = np.arange(clients) % 2 if groups else None
    moved = 0 if method == "local" else int(clients * 0.3) * PARAMETERS * 4
    number = np.arange(1, rounds + 1)
    rise = 1 - np.exp(-number / rng.uniform(2.5, 5))
    evaluated = (number % 2 == 0) | (number == rounds)
    noise = rng.normal(0, 0.006, (2, rounds))
    found = _assignment(method, clients, rng)
    table = pd.DataFrame(
        {
            "round": number,
            "train_loss": 2.2 * (1 - rise) + 0.1,
            "global_accuracy": np.where(evaluated, whole * rise + noise[0], np.nan),
            "local_accuracy": np.where(evaluated, local * rise + noise[1], np.nan),
            "local_std": 0.05,
            "local_worst10": np.where(evaluated, local * rise - 0.1, np.nan),
            "bytes_down": moved * number * (2 if method in ("ifca", "scaffold") else 1),
            "bytes_up": moved * number,
            "clusters": len(set(found)),
            "failed": 0,
            "ari": np.where(evaluated & (method in CLUSTERED), rise, np.nan),
        }
    )
    if pool is not None:
        table["pool"] = pool
    if time is not None:
        table["clock"] = time * number
    for name in reports:
        table[f"{name}_accuracy"] = table["global_accuracy"]
    if reports:
        table["participants"] = int(clients * 0.3)
    for place, level in enumerate(levels):
        table[f"level/local_accuracy/{level}"] = table["local_accuracy"] - 0.1 * (len(levels) - 1 - place)
        diagnostics = [*diagnostics, f"level/local_accuracy/{level}"]
    for name in diagnostics:
        if name not in table:
            table[name] = rng.random() * rise
    scores = np.clip(rng.normal(table["local_accuracy"].iloc[-1], 0.05, clients), 0, 1)
    of_clients = pd.DataFrame(
        {
            "client": np.arange(clients),
            "samples": np.linspace(50, 400, clients).astype(int),
            "test_samples": 200,
            "local_accuracy": scores,
            "global_accuracy": table["global_accuracy"].iloc[-1],
            "tuned_accuracy": np.clip(scores + 0.02, 0, 1),
            "cluster": found,
            "group": pd.array([pd.NA] * clients if planted is None else planted, dtype="Int64"),
            "participations": rng.integers(0, rounds, clients),
            "newcomer": False,
        }
    )
    late = of_clients[:newcomers].assign(client=clients + np.arange(newcomers), newcomer=True)
    pd.concat([of_clients, late]).to_parquet(folder / "clients.parquet", index=False)
    table.to_csv(folder / "rounds.csv", index=False)
    reached = table[table["local_accuracy"] >= 0.9]
    spread = summarize(scores)
    total = table["bytes_down"] + table["bytes_up"]
    (folder / "metrics.json").write_text(json.dumps({
        "partition": partition, "method": method, "method_label": label or METHODS.get(method, method),
        "dataset": dataset, "model": "lenet5",
        "seed": seed, "rounds": rounds, "clients": clients, "participation": participation,
        "global_accuracy": float(table["global_accuracy"].iloc[-1]), "local_accuracy": spread["mean"],
        "tuned_accuracy": min(1.0, spread["mean"] + 0.02), "local_final_accuracy": spread["mean"] + 0.004,
        **{f"local_{name}": value for name, value in spread.items() if name != "mean"},
        "loss": 0.31, "bytes_down": int(table["bytes_down"].iloc[-1]),
        "bytes_up": int(table["bytes_up"].iloc[-1]), "target_accuracy": 0.9,
        "rounds_to_target": None if reached.empty else int(reached["round"].iloc[0]),
        "bytes_to_target": None if reached.empty else int(total[reached.index[0]]),
        "clusters": len(set(found)), **agreement(np.array(found), planted), "failed_clients": 0,
        "data_hash": "5f2c9e01aa47d3b2", "settings": digest, "partition_hash": partition.encode().hex()[:12],
        "parameters": PARAMETERS, **{name: float(table[name].iloc[-1]) for name in diagnostics},
    } | ({"newcomers": newcomers, "newcomer_accuracy": 0.71, "newcomer_tuned_accuracy": 0.84}
         if newcomers else {})))  # fmt: skip
    early = [int(c) if rng.random() < 0.5 else -1 for c in rng.integers(0, 2, clients)]
    history = [{"round": 2, "assignment": early}, {"round": 6, "assignment": found}]
    about = {"unit": "angle, degrees", "linkage": "wpgma", "height": 20.0} if method == "pacfl" else None
    (folder / "clusters.json").write_text(
        json.dumps(
            {
                "groups": None if planted is None else planted.tolist(),
                "proximity": about,
                "history": history if method in CLUSTERED else [],
                "stable_cluster_ids": method != "flis_dc",
            }
        )
    )
    apart = np.abs(np.subtract.outer(found, found)) * 30.0 + rng.uniform(1, 9, (clients, clients))
    named = pd.DataFrame((apart + apart.T) / 2, range(clients), [str(k) for k in range(clients)])
    if about:
        named.to_parquet(folder / "proximity.parquet")
    rows = [
        (t + 1, k, name, value)
        for name, values in (series or {}).items()
        for (t, k), value in np.ndenumerate(values)
        if not np.isnan(value)
    ]
    if rows:
        of_series = pd.DataFrame(rows, columns=["round", "client", "name", "value"])
        of_series.astype({"name": str}).to_parquet(folder / "series.parquet", index=False)
    if predictions is not None:
        predictions.astype(PREDICTIONS).to_parquet(folder / "predictions.parquet", index=False)
    if vectors:
        vectors.save(folder / FILE)
    return listed(folder)


def listed(folder: Path) -> Path:
    """Let ``metrics.json`` name all files of the folder, which is returned."""
    files = sorted(file.name for file in folder.iterdir() if file.name != "metrics.json")
    change(folder / "metrics.json", files=files)
    return folder


def change(file: Path, **facts: object) -> None:
    """Replace entries of a JSON file."""
    file.write_text(json.dumps(json.loads(file.read_text()) | facts))


def write_partition(
    root: Path,
    name: str,
    scheme: str,
    clients: int = 20,
    dataset: str = "mnist5k",
    difficulty: bool = False,
    **parameters: object,
) -> Path:
    """Summary and pictures of a partition, by ``difficulty`` or not; returns its folder."""
    folder = root / name
    folder.mkdir(parents=True)
    figure, cells = Figure(figsize=(5, 3)), np.random.default_rng(0).integers(0, 90, (10, clients))
    figure.add_subplot().imshow(cells, aspect="auto", cmap="Blues")
    for picture in ("labels", "difficulty") if difficulty else ("labels",):
        figure.savefig(folder / f"{picture}.png")
    summary = {
        "clients": clients,
        "samples": 4000,
        "sizes": {"min": 12, "mean": 200.0, "sd": 80.1, "max": 731},
        "labels_per_client": 4.1,
        "skew": 0.62,
        "hash": name.encode().hex()[:12],  # as of its runs
        "params": {
            "dataset": dataset,
            "scheme": scheme,
            "clients": clients,
            "seed": 0,
            "parameters": parameters,
        },
        **({"difficulty": {"intra_std": 0.0184, "inter_std": 0.4991}} if difficulty else {}),
    }
    (folder / "summary.json").write_text(json.dumps(summary))
    return folder


def _assignment(method: str, clients: int, rng: np.random.Generator) -> list[int]:
    if method not in CLUSTERED:
        return [0] * clients
    found = 1 - np.arange(clients) % 2
    found[rng.integers(0, clients)] = 0
    return found.tolist()
