"""A partition: the training samples of every client, and the test samples that it is scored on."""

import hashlib
import json
import warnings
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import save_file
from safetensors.torch import load_file

from fedflow.errors import BadInput, FedflowError, reason
from fedflow.heterogeneity.measures import label_counts
from fedflow.partition.after.difficulty import by_difficulty, consistency
from fedflow.partition.after.holdout import hold_out
from fedflow.partition.after.inputs import Change, changes, owned, steps
from fedflow.partition.after.label_noise import spoil
from fedflow.partition.after.newcomers import order_of_joining
from fedflow.partition.checked import checked
from fedflow.partition.params import PartitionParams
from fedflow.partition.scheme import Indices, Samples, Scheme, Split, label_skew, num_classes, spread
from fedflow.seeding import generator

ARRAYS = (
    "offsets indices pool_offsets pool_indices own_offsets own_pools public groups train_labels test_labels "
    "selection_offsets selection_indices"
).split()
FACTS = ("samples_unused", "labels_per_client", "skew", "difficulty")
FILE, SUMMARY = "partition.safetensors", "summary.json"


@dataclass(frozen=True, eq=False)
class Partition:
    """Index lists in compressed rows, so that 100,000 clients are a handful of arrays.

    Client k trains on ``indices[offsets[k]:offsets[k+1]]``. Its test set is the union of disjoint test
    pools (one per label, per domain or per client): ``own_pools[own_offsets[k]:own_offsets[k+1]]``.
    Pools are rows of test samples, or of training samples if ``held_out``. With ``selection``, models are
    selected on further training samples, used neither for training nor for testing:
    ``selection_indices[selection_offsets[k]:selection_offsets[k+1]]``.
    Only the server holds the training rows ``public``. ``groups`` [N] are the planted groups, or None. The
    last ``newcomers`` clients join after the last round. ``train_labels`` [n] and ``test_labels`` [t] replace
    the labels of the dataset, unless they are None.
    """

    offsets: np.ndarray
    indices: np.ndarray
    pool_offsets: np.ndarray
    pool_indices: np.ndarray
    own_offsets: np.ndarray
    own_pools: np.ndarray
    public: np.ndarray = field(default_factory=lambda: np.empty(0, np.int64))
    groups: np.ndarray | None = None
    train_labels: np.ndarray | None = None
    test_labels: np.ndarray | None = None
    selection_offsets: np.ndarray | None = None
    selection_indices: np.ndarray | None = None
    held_out: bool = False
    newcomers: int = 0
    params: dict[str, Any] = field(default_factory=dict)
    dataset_hash: str = ""
    facts: dict[str, Any] = field(default_factory=dict)
    label_counts: np.ndarray | None = None  # [N, K], for the picture
    losses: np.ndarray | None = None  # [n], the expert's, for the picture

    @classmethod
    def from_lists(
        cls,
        train: list[np.ndarray],
        pools: list[np.ndarray],
        client_pools: list[np.ndarray],
        selection: list[np.ndarray] | None = None,
        **more: Any,
    ) -> "Partition":
        """From arrays of training rows by client, test rows by pool, pools and selection rows by client."""
        (offsets, indices), (pool_offsets, pool_indices), (own_offsets, own_pools) = map(
            _rows, (train, pools, client_pools)
        )
        if selection is not None:
            more["selection_offsets"], more["selection_indices"] = _rows(selection)
        return cls(offsets, indices, pool_offsets, pool_indices, own_offsets, own_pools, **more)

    @property
    def sizes(self) -> np.ndarray:
        """Training samples of every client [N]."""
        return np.diff(self.offsets)

    @property
    def training_clients(self) -> int:
        """The number of clients without the newcomers."""
        return len(self.offsets) - 1 - self.newcomers

    def train(self, client: int) -> np.ndarray:
        """Training rows of one client, sorted int64 [n_k]."""
        return self.indices[self.offsets[client] : self.offsets[client + 1]]

    def selection(self, client: int) -> np.ndarray | None:
        """Sorted training rows that a client holds out for model selection, or None if no client does."""
        if self.selection_offsets is None or self.selection_indices is None:
            return None
        return self.selection_indices[self.selection_offsets[client] : self.selection_offsets[client + 1]]

    def pool(self, pool: int) -> np.ndarray:
        """Test rows of one pool."""
        return self.pool_indices[self.pool_offsets[pool] : self.pool_offsets[pool + 1]]

    def test_pools(self, client: int) -> np.ndarray:
        """The pools in the test set of a client."""
        return self.own_pools[self.own_offsets[client] : self.own_offsets[client + 1]]

    def test(self, client: int) -> np.ndarray:
        """Test rows of one client, sorted."""
        pools = [self.pool(p) for p in self.test_pools(client)]
        return np.sort(np.concatenate(pools)) if pools else np.empty(0, np.int64)

    def owned(self, change: Change, samples: int, tests: int) -> tuple[np.ndarray, np.ndarray]:
        """`owned` of the training samples [n] and test samples [t]. Raises `BadInput`."""
        clients = range(len(self.sizes))
        selections = (rows for k in clients if (rows := self.selection(k)) is not None)
        variants = change.variants(len(clients), self.groups)
        trained, tested = map(self.train, clients), map(self.test, clients)
        return owned(change, variants, trained, selections, tested, samples, tests, self.held_out)

    @property
    def hash(self) -> str:
        """16 hexadecimal digits that identify the content, the dataset and changes of inputs."""
        content = f"{self.dataset_hash} {self.held_out} {self.newcomers}"
        if changed := changes(self.params):
            content += f" {json.dumps(changed, sort_keys=True)}"
        digest = hashlib.blake2b(content.encode(), digest_size=8)
        for name, array in self._arrays().items():
            digest.update(name.encode())
            digest.update(array.data)
        return digest.hexdigest()

    @property
    def classes(self) -> int | None:
        """The number of classes if the scheme renames them, else None.

        Label noise does not rename classes, even if no sample of one is left.
        """
        if self.train_labels is None or self.test_labels is None:
            return None
        return int(max(self.train_labels.max(), self.test_labels.max(initial=0))) + 1

    def _arrays(self) -> dict[str, np.ndarray]:
        present = {name: getattr(self, name) for name in ARRAYS if getattr(self, name) is not None}
        return {name: np.ascontiguousarray(array, np.int64) for name, array in present.items()}

    def save(self, folder: Path) -> None:
        """Write the arrays, then ``summary.json``; deterministic bytes. Raises `FedflowError`."""
        try:
            folder.mkdir(parents=True, exist_ok=True)
            (folder / SUMMARY).unlink(missing_ok=True)  # an old summary must not describe new arrays
            partial = folder / f"{FILE}.partial"
            save_file(self._arrays(), partial)
            partial.replace(folder / FILE)
            (folder / SUMMARY).write_text(json.dumps(self.summary(), indent=1) + "\n")
        except (OSError, SafetensorError) as error:
            raise FedflowError(
                f"cannot write the partition to {folder}: {getattr(error, 'strerror', None) or error}"
            ) from error

    def summary(self) -> dict[str, Any]:
        """Summary for readers, in plain values."""
        sizes = self.sizes
        groups = None if self.groups is None else len(np.unique(self.groups))
        return {
            "clients": len(sizes),
            "samples_used": int(sizes.sum()),
            "sizes": {
                "min": int(sizes.min()),
                "mean": float(sizes.mean()),
                "sd": float(sizes.std()),
                "max": int(sizes.max()),
            },
            **self.facts,
            "groups": groups,
            "newcomers": self.newcomers,
            "held_out": self.held_out,
            "hash": self.hash,
            "dataset_hash": self.dataset_hash,
            "params": self.params,
        }


def make_partition(params: PartitionParams, samples: Samples, dataset_hash: str = "") -> Partition:
    """Divide a dataset by ``params``. Raises `BadInput` if that is impossible.

    A client is tested on all test samples of the labels it trains on (on all test samples if targets are
    real), unless the scheme or ``holdout`` says otherwise. With ``selection``, each client holds out a
    stratified share of its samples for model selection. With ``validation``, held-out samples replace the
    test set, which is not used.
    """
    scheme, count = params.parameters, len(samples.labels)

    def rng(purpose: str) -> np.random.Generator:
        return generator(params.seed, f"partition/{purpose}")

    public = _stratified(samples.labels, params.public, rng("public"))
    clients = scheme.count(samples.only(_rest(count, public))) if params.clients is None else params.clients
    pieces = params.pieces or clients
    if pieces > count - len(public):
        field, most = f"partition.{'pieces' if params.pieces else 'clients'}", count - len(public)
        raise BadInput(field, pieces, f"at most {most}, the number of training samples")
    split = _split(scheme, samples, public, pieces, rng(params.scheme))
    labels = samples.labels if split.train_labels is None else split.train_labels
    train, groups, train_labels = split.train, split.groups, split.train_labels
    _refuse_shared(train, params)
    _refuse_again(split, params)
    losses = None
    if params.difficulty is not None:
        if split.train_labels is not None:  # a label means a different class at every client
            accepted = "null, because this scheme renames the classes of each client"
            raise BadInput("partition.difficulty", params.difficulty.as_dict(), accepted)
        losses = samples.losses(params.difficulty)
        train = by_difficulty(train, labels, losses, params.difficulty.order, rng("difficulty"))
        first = params.pieces_used == "first" and pieces > clients
        if first and params.difficulty.order:
            reason = "the first pieces hold the easiest samples; random chooses among all pieces"
            warnings.warn(f"partition.pieces_used: {reason}", stacklevel=2)
    chosen, newcomers = np.arange(clients), 0
    if params.pieces_used == "random":
        chosen = np.sort(rng("pieces").choice(pieces, clients, replace=False))
    if params.newcomers:
        of_chosen = None if groups is None else groups[chosen]
        order, newcomers = order_of_joining(clients, params.newcomers, of_chosen, rng("newcomers"))
        chosen = chosen[order]
    train, groups = [train[k] for k in chosen], None if groups is None else groups[chosen]
    before = np.concatenate(train)
    pools, pools_of = _test_pools(split, samples, train, chosen)
    by_label = split.own is None and not params.holdout and labels.dtype.kind != "f"
    if params.holdout:
        stratified = params.holdout_stratified
        train, pools = hold_out(train, labels, params.holdout, rng("holdout"), stratified)
        pools_of = list(np.arange(clients)[:, None])
    selection = None if split.selection is None else [split.selection[k] for k in chosen]
    if params.selection:
        share, field = params.selection, "partition.selection"
        train, selection = hold_out(train, labels, share, rng("selection"), field=field)
    if params.validation:
        share, field = params.validation, "partition.validation"
        train, held = hold_out(train, labels, share, rng("validation"), field=field)
        pools, pools_of = _validation_pools(
            held[: clients - newcomers], pools_of, labels if by_label else None
        )
    if not all(map(len, train)):
        raise BadInput("partition.clients", clients, "fewer: a client got no training samples")
    if params.label_noise is not None:
        if num_classes(labels) < 2:
            raise BadInput("partition.label_noise", params.label_noise.as_dict(), "null, without classes")
        official = params.label_noise.protocol == "official"
        spoilt = before if official else np.concatenate([*train, *(selection or [])])
        train_labels = spoil(labels, spoilt, num_classes(labels), params.label_noise, rng("label noise"))
    final = labels if train_labels is None else train_labels
    counts = None if final.dtype.kind == "f" else label_counts(final, train)
    held_out = bool(split.held_out or params.holdout or params.validation)
    if samples.pooled and not held_out:
        accepted = "more than 0, because the test samples are training samples too"
        raise BadInput("partition.holdout", params.holdout, accepted)
    unused = np.ones(count, dtype=bool)
    unused[np.concatenate([*train, *(selection or []), *(pools if held_out else []), public])] = False
    made = Partition.from_lists(
        train,
        pools,
        pools_of,
        selection,
        public=public,
        groups=groups,
        train_labels=train_labels,
        test_labels=split.test_labels,
        held_out=held_out,
        newcomers=newcomers,
        params=params.as_dict(),
        dataset_hash=dataset_hash,
        label_counts=counts,
        losses=losses,
        facts={"samples_unused": int(unused.sum()), **label_skew(counts), **consistency(train, losses)},
    )
    for change in steps(made.params):
        change.check(samples.inputs())
        made.owned(change, count, len(samples.test_labels))
    return made


def _stratified(labels: np.ndarray, count: int, rng: np.random.Generator) -> np.ndarray:
    """``count`` sorted rows, stratified by class."""
    if count >= len(labels):
        raise BadInput("partition.public", count, f"fewer than {len(labels)}, the number of training samples")
    order = rng.permutation(len(labels))
    by_label = order[np.argsort(labels[order], kind="stable")]
    return np.sort(by_label[spread(len(labels), count, rng)]) if count else np.empty(0, np.int64)


def _rest(count: int, public: np.ndarray) -> np.ndarray:
    """The rows of ``count`` training samples that are divided."""
    return np.setdiff1d(np.arange(count), public)


def _split(
    scheme: Scheme, samples: Samples, public: np.ndarray, clients: int, rng: np.random.Generator
) -> Split:
    """The scheme's split of all samples except ``public``."""
    if not len(public):
        return checked(scheme.name, scheme.split(samples, clients, rng), samples, clients)
    if scheme.by_row:
        raise BadInput("partition.public", len(public), "0, because the scheme names the rows of all clients")
    rest = _rest(len(samples.labels), public)
    divided = samples.only(rest)
    split = checked(scheme.name, scheme.split(divided, clients, rng), divided, clients)
    relabeled = None
    if split.train_labels is not None:
        relabeled = samples.labels.copy()
        relabeled[rest] = split.train_labels
        relabeled[public] = 0  # the server has no use for labels

    def among_all(lists: Indices) -> Indices:
        return [rest[rows] for rows in lists]

    return replace(
        split,
        train=among_all(split.train),
        selection=split.selection and among_all(split.selection),
        pools=among_all(split.pools) if split.pools and split.held_out else split.pools,
        train_labels=relabeled,
    )


def _test_pools(
    split: Split, samples: Samples, train: Indices, chosen: np.ndarray
) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Test pools, and the pools of every client: the scheme's, one per label, or one for real targets."""
    if split.pools is not None and split.own is not None:
        return split.pools, [split.own[k] for k in chosen]
    labels = samples.labels if split.train_labels is None else split.train_labels
    test_labels = samples.test_labels if split.test_labels is None else split.test_labels
    if labels.dtype.kind == "f":
        return [np.arange(len(test_labels))], [np.zeros(1, np.int64)] * len(train)
    pools = [np.flatnonzero(test_labels == c) for c in range(num_classes(labels))]
    return pools, [np.unique(labels[rows]) for rows in train]


def _validation_pools(held: Indices, pools_of: Indices, labels: np.ndarray | None) -> tuple[Indices, Indices]:
    """Test pools of the samples ``held`` out by training clients, in place of the pools ``pools_of`` clients.

    There is one per label if clients are tested by label (``labels`` [n]). Otherwise the scheme or
    ``holdout`` made the pools, and clients with equal pools share their held-out samples.
    """
    if labels is not None:
        everybody = np.sort(np.concatenate(held))
        return [everybody[labels[everybody] == c] for c in range(num_classes(labels))], pools_of
    numbers: dict[bytes, int] = {}
    pool_of = [numbers.setdefault(np.sort(pools).tobytes(), len(numbers)) for pools in pools_of]
    shared: list[list[np.ndarray]] = [[np.empty(0, np.int64)] for _ in numbers]
    for pool, rows in zip(pool_of, held):
        shared[pool].append(rows)
    return [np.sort(np.concatenate(rows)) for rows in shared], [np.array([pool]) for pool in pool_of]


def _refuse_shared(train: Indices, params: PartitionParams) -> None:
    """Refuse to hold out samples that other clients train on."""
    all_rows = np.concatenate(train)
    if len(all_rows) == len(np.unique(all_rows)):
        return
    for name in ("difficulty", "holdout", "selection", "validation"):
        if value := getattr(params, name):
            off = "null" if name == "difficulty" else "0"
            shown = value if name != "difficulty" else value.as_dict()
            raise BadInput(f"partition.{name}", shown, f"{off}, because clients share samples in this scheme")


def _refuse_again(split: Split, params: PartitionParams) -> None:
    """Refuse to hold out samples again that the scheme holds out, and in place of test rows that it names."""
    if params.holdout and params.parameters.by_row and split.pools is not None and not split.held_out:
        raise BadInput("partition.holdout", params.holdout, "0, because the scheme names test rows")
    for name, done in (("selection", split.selection is not None), ("holdout", split.held_out)):
        if done and (value := getattr(params, name)):
            raise BadInput(f"partition.{name}", value, "0, because the scheme holds out samples itself")


def load_partition(folder: Path) -> Partition:
    """Read a saved partition; the arrays are mapped into memory.

    Raises `FedflowError` if it is missing, truncated or damaged.
    """
    file, remedy = folder / FILE, "run `fedflow partition` for it again"
    try:
        summary = json.loads((folder / SUMMARY).read_text())
        if not file.is_file():
            raise FedflowError(f"there is no {file}; {remedy}")
        arrays: dict[str, Any] = {name: tensor.numpy() for name, tensor in load_file(file).items()}
        if arrays.keys() - set(ARRAYS):
            raise ValueError(f"it holds {', '.join(arrays.keys() - set(ARRAYS))}")
        same = {name: summary[name] for name in ("held_out", "newcomers", "params", "dataset_hash")}
        facts = {name: summary[name] for name in FACTS if name in summary}
        partition = Partition(**arrays, **same, facts=facts)
        whole = partition.hash == summary["hash"]
    except FedflowError:
        raise
    except FileNotFoundError as error:
        raise FedflowError(f"there is no {error.filename}; {remedy}") from error
    except Exception as error:  # decoders of damaged files raise almost anything
        raise FedflowError(f"{file} is damaged ({reason(error)}); {remedy}") from error
    if not whole:
        raise FedflowError(f"{file} does not match the hash in {SUMMARY}; {remedy}")
    return partition


def _rows(lists: list[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    sizes = np.array([len(row) for row in lists], dtype=np.int64)
    flat = np.concatenate(lists).astype(np.int64) if len(lists) else np.empty(0, np.int64)
    return np.concatenate([[0], np.cumsum(sizes)]), flat
