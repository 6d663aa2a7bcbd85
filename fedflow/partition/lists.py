"""Divisions as lists of rows: read from files of other tools, and written for them.

One form names the rows of all clients, ``{"train": [[0, 1], [2]], "test": [[5], [6]]}``, perhaps with
``validation``; FL-bench, FedLab, NIID-Bench, flwr-datasets and PFLlib have others. Nothing is unpickled.
FL-bench numbers the test samples after the training samples: such a file names the `FIRST_TEST_ROW`.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from fedflow.data import Dataset
from fedflow.data.files import reading
from fedflow.errors import BadInput, FedflowError
from fedflow.partition.scheme import Indices
from fedflow.settings import Words

if TYPE_CHECKING:
    from fedflow.partition.partition import Partition

PARTS = {
    "train": "train",
    "test": "test",
    "validation": "validation",
    "val": "validation",
    "valid": "validation",
}
TEST_ROWS = ("test", "train")
FIRST_TEST_ROW = "first_test_row"  # key of FL-bench's form for the number of the first test sample
CLIENT = ("client", "partition_id", "client_id")  # columns of a table that hold the client
FORMS = ("lists", "fl-bench", "fedlab", "niid-bench", "flwr", "pfllib")
TEXTS = (".json", ".yaml", ".yml")
TRAIN_ONLY = ("fedlab", "niid-bench", "flwr")
ACCEPTED = (
    "rows by client, as [[0, 1], [2]], {0: [0, 1], 1: [2]}, [{train: [0, 1], test: [5]}, ...] or "
    "{train: [[0, 1], [2]], test: [[5], [6]]}"
)


@dataclass(frozen=True, eq=False)
class Lists:
    """Rows by client: of the training samples, and for ``test`` of the test samples or, if ``test_rows`` is
    "train", of the training samples too. Test samples are numbered from ``first_test_row``.
    """

    train: Indices
    test: Indices | None = None
    validation: Indices | None = None
    test_rows: str | None = None
    first_test_row: int = 0


def read_lists(path: Path) -> Lists:
    """The division in a JSON, YAML, npz or Parquet file, or in PFLlib's folder; `FedflowError` for others."""
    readers = {".json": _json, ".yaml": _yaml, ".yml": _yaml, ".npz": _npz, ".parquet": _parquet}
    reader = _folder if path.is_dir() else readers.get(path.suffix.lower())
    if reader is None:
        pickled = path.suffix.lower() in (".pkl", ".pickle", ".pt")
        recipe = (
            "; a pickle can run any code: docs/howto/given.md has the lines that convert it"
            if pickled
            else ""
        )
        raise FedflowError(f"{path}: needs a file {', '.join(readers)}, or a folder{recipe}")
    with reading(path):
        return reader(path)


def parse_lists(content: Any) -> Lists:
    """The division in plain lists and mappings. Raises ValueError for what is none."""
    rest: dict[str, Any] = {}
    if isinstance(content, Mapping) and "data_indices" in content:  # FL-bench
        rest, content = dict(content), content["data_indices"]
    elif isinstance(content, Mapping) and content and content.keys() <= {*PARTS, "test_rows"}:
        rest = dict(content)
        parts = {PARTS[name]: _by_client(value) for name, value in content.items() if name in PARTS}
        order = parts.get("train", {})
        if "train" not in parts or any(part.keys() != order.keys() for part in parts.values()):
            raise ValueError("needs `train`, and the same clients in every part")
        return _lists({name: [part[client] for client in order] for name, part in parts.items()}, rest)
    clients = list(_by_client(content).values())
    if not clients or not all(isinstance(client, Mapping) for client in clients):
        return _lists({"train": clients}, rest)
    names = list(dict.fromkeys(name for client in clients for name in client))
    if "train" not in names or not {*names} <= PARTS.keys():
        raise ValueError(
            f"a client has {', '.join(map(str, names))}; needs `train`, perhaps `test` and `val`"
        )
    return _lists({PARTS[name]: [client.get(name, ()) for client in clients] for name in names}, rest)


def named_rows(content: Any) -> dict[int, str]:
    """The client of every training row by name, if clients have other names than their numbers."""
    if isinstance(content, Mapping) and "data_indices" in content:
        content = content["data_indices"]
    elif isinstance(content, Mapping) and content.keys() <= {*PARTS, "test_rows"}:
        content = content["train"]
    if not isinstance(content, Mapping):
        return {}
    clients = _by_client(content)
    if list(clients) == list(map(str, range(len(clients)))):
        return {}
    rows = {name: part["train"] if isinstance(part, Mapping) else part for name, part in clients.items()}
    return {row: name for name, part in rows.items() for row in part}


def by_name(entries: Mapping[Any, Any]) -> dict[str, Any]:
    """The entries with text as names. Raises ValueError for two of one name, such as 1 and "1"."""
    named = {str(name): value for name, value in entries.items()}
    if len(named) < len(entries):
        raise ValueError("has two clients of one name, as numbers count as text; needs different names")
    return named


def _by_client(content: Any) -> dict[str, Any]:
    """The entry of every client; names that are numbers in their order."""
    if isinstance(content, Mapping):
        entries = by_name(content)
        names = sorted(entries, key=int) if all(map(str.isdecimal, entries)) else entries
        return {name: entries[name] for name in names}
    if isinstance(content, str) or not isinstance(content, Iterable):
        raise ValueError(f"holds {type(content).__name__}; needs {ACCEPTED}")
    return {str(k): entry for k, entry in enumerate(content)}


def _lists(parts: dict[str, list[Any]], more: Mapping[str, Any]) -> Lists:
    tested = more.get("test_rows")
    if tested not in (None, *TEST_ROWS):
        raise ValueError(f"test_rows is {tested!r}; needs test or train")
    first = more.get(FIRST_TEST_ROW, 0)
    if type(first) is not int:
        raise ValueError(f"{FIRST_TEST_ROW} is {first!r}; needs a whole number")
    arrays = {name: [_rows(name, k, rows) for k, rows in enumerate(lists)] for name, lists in parts.items()}
    if "validation" in arrays and not any(map(len, arrays["validation"])):
        del arrays["validation"]
    return Lists(**arrays, test_rows=tested, first_test_row=first)


def _rows(name: str, client: int, rows: Any) -> np.ndarray:
    """The sorted rows of one client."""
    try:
        array = np.asarray(rows)
    except ValueError:
        array = np.empty(0, object)
    if array.ndim != 1 or (array.size and array.dtype.kind not in "iu"):
        raise ValueError(f"{name} of client {client} holds no list of whole numbers")
    return np.sort(array).astype(np.int64)


def _json(path: Path) -> Lists:
    return parse_lists(json.loads(path.read_text()))


def _yaml(path: Path) -> Lists:
    import yaml  # here, because the core needs no YAML

    return parse_lists(yaml.load(path.read_text(), getattr(yaml, "CSafeLoader", yaml.SafeLoader)))


def _npz(path: Path) -> Lists:
    """Arrays ``train_0``, ``test_0``, ..., or ``0``, ``1``, ... for training rows only."""
    with np.load(path, allow_pickle=False) as archive:
        content: dict[str, Any] = {}
        for name in archive.files:
            part, _, client = name.rpartition("_")
            if name == "test_rows":
                content[name] = str(archive[name])
            elif client.isdecimal() and (part or "train") in PARTS:
                content.setdefault(part or "train", {})[client] = archive[name]
            else:
                raise ValueError(f"holds {name!r}; needs arrays train_0, test_0, ..., or 0, 1, ...")
    return parse_lists(content)


def _parquet(path: Path) -> Lists:
    """Columns ``client``, ``row`` and perhaps ``split``; or a row per client, with lists in ``train``."""
    import pyarrow.parquet as pq

    table = pq.read_table(path)
    names = table.column_names
    rest: dict[str, Any] = {}
    if text := (table.schema.metadata or {}).get(b"test_rows"):
        rest["test_rows"] = text.decode()
    if "train" in names:
        return parse_lists({name: table.column(name).to_pylist() for name in names if name in PARTS} | rest)
    client = next((name for name in CLIENT if name in names), None)
    if client is None or "row" not in names:
        raise ValueError(f"has the columns {', '.join(names)}; needs client and row, or train and test")
    frame = table.to_pandas()
    for name in {client, "row", "split"}.intersection(names):
        if frame[name].isna().any():
            raise ValueError(f"has no {name} in row {int(frame[name].isna().to_numpy().argmax()) + 1}")
    parts = frame["split"] if "split" in names else np.full(len(frame), "train")
    clients: dict[Any, dict[str, Any]] = {name: {"train": ()} for name in sorted(set(frame[client]))}
    for (name, part), rows in frame["row"].groupby([frame[client], parts]):
        clients[name][part] = rows.to_numpy()
    return parse_lists({"data_indices": list(clients.values())} | rest)


def _folder(path: Path) -> Lists:
    """PFLlib's folders ``train/<client>.npz`` and ``test/<client>.npz``, whose files hold ``rows`` here."""
    content: dict[str, Any] = {}
    for part in ("train", "test"):
        for file in sorted((path / part).glob("*.npz")):
            with reading(file), np.load(file, allow_pickle=False) as archive:
                if "rows" not in archive.files:
                    raise ValueError("has samples, not `rows`; docs/howto/files.md shows how to read them")
                content.setdefault(part, {})[file.stem] = archive["rows"]
    if "train" not in content:
        raise ValueError("has no train/*.npz")
    if (path / "test_rows.txt").is_file():
        content["test_rows"] = (path / "test_rows.txt").read_text().strip()
    return parse_lists(content)


def lists_of(partition: "Partition") -> Lists:
    """The rows of a partition. Raises `FedflowError` if it changes labels."""
    if partition.train_labels is not None or partition.test_labels is not None:
        raise FedflowError("the scheme changes labels, which lists of rows cannot hold")
    clients = range(len(partition.sizes))
    held = [partition.selection(k) for k in clients]
    return Lists(
        [partition.train(k) for k in clients],
        [partition.test(k) for k in clients],
        None if partition.selection_offsets is None else [rows for rows in held if rows is not None],
        "train" if partition.held_out else None,
    )


def write_lists(lists: Lists, path: Path, form: str, data: Dataset) -> None:
    """Write a division of ``data`` so that `read_lists` returns the same rows.

    Raises `BadInput` for an ending that the form does not have, and if it has no place for the test rows.
    """
    parts = {
        name: value for name in ("train", "validation", "test") if (value := getattr(lists, name)) is not None
    }
    rest: dict[str, Any] = {"test_rows": lists.test_rows} if lists.test_rows else {}
    if form == "fl-bench" and lists.test is not None and lists.test_rows != "train":
        first = len(data.y_train)
        parts["test"], rest = [rows + first for rows in lists.test], {FIRST_TEST_ROW: first}
    suffix = "folder" if form == "pfllib" else path.suffix.lower()
    wanted = {"lists": (*TEXTS, ".npz", ".parquet"), "pfllib": ("folder",)}.get(form, TEXTS)
    if suffix not in wanted or (form == "pfllib" and path.suffix):
        accepted = "a folder" if form == "pfllib" else f"a file that ends in {', '.join(wanted)}"
        raise BadInput("out", str(path), f"{accepted}, for the form {form}")
    if form in TRAIN_ONLY and ("validation" in parts or not _tests_by_label(lists, data)):
        raise BadInput(
            "form",
            form,
            "lists or fl-bench, because clients have other test samples than those of their labels",
        )
    path.parent.mkdir(parents=True, exist_ok=True)
    if form == "pfllib":
        _write_folder(lists, path, data)
    elif suffix == ".npz":
        arrays: dict[str, Any] = {
            f"{name}_{k}": rows for name, part in parts.items() for k, rows in enumerate(part)
        }
        np.savez(path, **arrays | {name: np.array(value) for name, value in rest.items()})
    elif suffix == ".parquet":
        _write_parquet(parts, rest, path)
    else:
        content = (
            _plain({name: [rows.tolist() for rows in part] for name, part in parts.items()}, form) | rest
        )
        path.write_text(json.dumps(content) if suffix == ".json" else _as_yaml(content))


def _as_yaml(content: dict[str, Any]) -> str:
    import yaml

    return yaml.safe_dump(content, default_flow_style=None)


def _plain(parts: dict[str, list[list[int]]], form: str) -> dict[str, Any]:
    """The content of a file of this form."""
    if form == "lists":
        return dict(parts)
    if form in TRAIN_ONLY:
        return {str(k): rows for k, rows in enumerate(parts["train"])}
    none: list[list[int]] = [[]] * len(parts["train"])
    columns = (parts["train"], parts.get("validation", none), parts.get("test", none))
    return {"data_indices": [dict(zip(("train", "val", "test"), client)) for client in zip(*columns)]}


def _tests_by_label(lists: Lists, data: Dataset) -> bool:
    """Return whether every client is tested on all test samples of the labels that it trains on."""
    y, y_test = data.y_train.numpy(), data.y_test.numpy()
    if lists.test is None or y.ndim != 1 or y.dtype.kind == "f":
        return lists.test is None
    return lists.test_rows is None and all(
        np.array_equal(test, np.flatnonzero(np.isin(y_test, np.unique(y[train]))))
        for train, test in zip(lists.train, lists.test)
    )


def _write_folder(lists: Lists, folder: Path, data: Dataset) -> None:
    """PFLlib's files: the samples as `data`, which PFLlib unpickles, and the rows."""
    if lists.validation is not None:
        raise BadInput("form", "pfllib", "lists or fl-bench, because clients have validation samples")
    tested = data.train if lists.test_rows == "train" else data.test
    for part, examples, rows_of in (("train", data.train, lists.train), ("test", tested, lists.test or [])):
        (folder / part).mkdir(parents=True, exist_ok=True)
        for k, rows in enumerate(rows_of):
            chosen = torch.from_numpy(np.array(rows))
            samples = {"x": examples.inputs(chosen).numpy(), "y": examples.targets(chosen).numpy()}
            np.savez_compressed(folder / part / f"{k}.npz", data=np.array(samples, object), rows=rows)
    if lists.test_rows:
        (folder / "test_rows.txt").write_text(f"{lists.test_rows}\n")


def _write_parquet(parts: Mapping[str, Indices], rest: Mapping[str, str], path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    columns: dict[str, list[Any]] = {"client": [], "split": [], "row": []}
    for name, rows_of in parts.items():
        for k, rows in enumerate(rows_of):
            columns["client"] += [k] * len(rows)
            columns["split"] += [name] * len(rows)
            columns["row"] += rows.tolist()
    pq.write_table(pa.table(columns).replace_schema_metadata(rest), path)


def shared_pools(test: Indices) -> tuple[Indices, Indices]:
    """Disjoint pools of the rows in ``test``, one for rows of the same clients; the pools of each client."""
    rows = np.concatenate(test)
    if len(np.unique(rows)) == len(rows):
        return test, list(np.arange(len(test))[:, None])
    clients = np.repeat(np.arange(len(test)), [len(own) for own in test])
    order = np.lexsort((clients, rows))
    starts = np.flatnonzero(np.diff(rows[order], prepend=-1))
    pools: dict[tuple[int, ...], list[int]] = {}
    for row, together in zip(rows[order][starts].tolist(), np.split(clients[order], starts[1:])):
        pools.setdefault(tuple(together.tolist()), []).append(row)
    own: list[list[int]] = [[] for _ in test]
    for pool, holders in enumerate(pools):
        for k in holders:
            own[k].append(pool)
    return [np.array(part) for part in pools.values()], [np.array(numbers, np.int64) for numbers in own]


def need_rows(name: str, rows_of: Indices, count: int, samples: str) -> None:
    """Raise `BadInput` of the field ``name`` unless a client has different rows of ``count`` samples."""
    for k, rows in enumerate(rows_of):
        if (wrong := rows[(rows < 0) | (rows >= count)]).size:
            where = Words(f"row {wrong[0]} of client {k}")
            raise BadInput(name, where, f"rows of the {samples} samples, 0 to {count - 1}")
        if (twice := rows[1:][rows[1:] == rows[:-1]]).size:
            raise BadInput(name, Words(f"row {twice[0]} of client {k}"), "every row once")
