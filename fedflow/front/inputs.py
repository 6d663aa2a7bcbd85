"""The data, division, network and method of `fedflow.run` as objects of the engine."""

import copy
import hashlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from fedflow.data import SOURCES, Dataset, DatasetParams, Examples, need_classes, within
from fedflow.data.prepared import file_sum
from fedflow.data.sources import source
from fedflow.errors import BadInput, reason
from fedflow.files import cache
from fedflow.front.arrays import OWN, OwnDataset, instead
from fedflow.front.classes import code_of, codes, is_own, is_written_here
from fedflow.methods import METHODS, Method, build_method
from fedflow.methods.protocols import server_data
from fedflow.models import architecture, build
from fedflow.models.flat import FlatModel
from fedflow.models.tensors import need_plain
from fedflow.partition import Partition, PartitionParams, Samples, make_partition
from fedflow.partition.after.difficulty import Difficulty
from fedflow.partition.given import Given
from fedflow.partition.lists import named_rows
from fedflow.partition.natural import Natural
from fedflow.partition.opened import opened
from fedflow.partition.params import UNDRAWN
from fedflow.project.digest import SHORT, digest
from fedflow.project.terminal import say
from fedflow.settings import Words
from fedflow.simulation.federation import Federation, random_examples
from fedflow.simulation.fits import LEAST, SAMPLES, channels_last, need_fit
from fedflow.stages.partition import losses_of
from fedflow.stages.prepare import current_or_prepared
from fedflow.stages.started import start_files, started

Data = str | Mapping[str, Any] | Dataset | DatasetParams
Source = Dataset | DatasetParams  # data as the engine takes them
Division = PartitionParams | Mapping[str, Any] | Sequence[Sequence[int] | np.ndarray]
Network = str | Mapping[str, Any] | nn.Module | Callable[[], nn.Module]

SERVES = ("global", "cluster", "level", "personal")  # kinds of models that methods serve
IMAGES = 28  # height from which images get a convolutional network


def as_data(data: Data) -> Source:
    """The caller's samples unchanged, or named data as an entry of ``data`` in params.yaml."""
    if isinstance(data, Dataset | DatasetParams):
        return data
    if not isinstance(data, str | Mapping):
        accepted = "the name of a source, a mapping, or fedflow.dataset(x, y, x_test, y_test)"
        advice = instead(data)
        raise BadInput("data", Words(type(data).__name__), f"{accepted}{advice and f': {advice}'}")
    if isinstance(data, Mapping) and "source" not in data:
        accepted = "a mapping with `source`; of arrays, fedflow.dataset(x, y, x_test, y_test)"
        raise BadInput("data", Words(f"a {type(data).__name__} without `source`"), accepted)
    if isinstance(data, str) and data not in SOURCES and (Path(data).suffix or Path(data).exists()):
        raise BadInput("data", data, f"the name of a source: {instead(data)}")
    return DatasetParams.parse({"source": data} if isinstance(data, str) else dict(data), section="data")


def prepared(data: Source, telling: bool = False) -> Dataset:
    """The samples; named data are prepared once, and cached.

    Their notes are printed when they are prepared, and with ``telling``.
    """
    if isinstance(data, Dataset):
        return data
    files = sorted(str(file.absolute()) for file in data.files().values() if file)  # in this folder
    facts = [data.as_dict(), files, *_own_sources(data)]
    folder = cache() / "notebook" / f"{data.source}-{digest(facts, 12)}"
    with within("data"):
        samples, made = current_or_prepared(data, folder, folder.with_suffix(".lock"))
    telling = telling or made
    need_classes(samples, "data")
    for note in samples.notes if telling else ():
        say(f"{samples.name}: {note}")
    return samples


def scheme(name: str, **settings: Any) -> PartitionParams:
    """A division of the data among clients: the scheme ``name`` with its parameters, ``clients``, ``seed``,
    ``holdout``, ... as an entry of ``partitions`` in params.yaml has them.

    `fedflow.dirichlet(alpha=0.1, clients=20)` is ``scheme("dirichlet", alpha=0.1, clients=20)``.
    """
    return _own_data({"scheme": name, **settings})


def _own_data(entry: Mapping[str, Any]) -> PartitionParams:
    """An entry of ``partitions`` that divides the data of the call."""
    if (dataset := entry.get("dataset", OWN)) != OWN:
        raise BadInput("partition.dataset", dataset, "no dataset, as the division is of `data`")
    return PartitionParams.parse({**entry, "dataset": OWN})


def divided(division: Division, data: Dataset) -> Partition:
    """The clients' samples: by a scheme, or as lists or masks of training rows, one per client.

    With lists, a client is tested on all test samples of the labels that it trains on.
    """
    if isinstance(division, PartitionParams):
        return make_partition(division, Samples.of(data, losses=partial(_losses, data)), data.hash)
    rows = _lists(division, data)
    for k, held in enumerate(rows):
        _need_rows(f"partition[{k}]", held, len(data.y_train))
    holder = np.full(len(data.y_train), -1)
    for k, held in enumerate(rows):
        if (taken := held[holder[held] >= 0]).size:
            clients = f"clients {holder[taken[0]]} and {k} both hold it"
            raise BadInput("partition", int(taken[0]), f"every training sample at most once; {clients}")
        holder[held] = k
    labels, tested = data.y_train.numpy(), data.y_test.numpy()
    if labels.ndim > 1 or labels.dtype.kind == "f":
        pools, pools_of = [np.arange(len(tested))], [np.array([0])] * len(rows)
    else:
        pools = [np.flatnonzero(tested == label) for label in range(data.num_classes)]
        pools_of = [np.unique(labels[held]) for held in rows]
    return Partition.from_lists(rows, pools, pools_of, dataset_hash=data.hash)


def _losses(data: Dataset, difficulty: Difficulty) -> np.ndarray:
    """The losses [n] of the training samples, from a file."""
    if difficulty.expert is not None:
        accepted = "null, as only projects have central networks; `losses` names a file"
        raise BadInput(f"{difficulty.section}.expert", difficulty.expert, accepted)
    return losses_of(difficulty, data, Path())


def as_division(given: Any, data: Source) -> Any:
    """The division of ``data``: lists of rows as they are, a mapping of a scheme or of clients parsed."""
    entries = list(given.values()) if isinstance(given, Mapping) else given if isinstance(given, list) else []
    by_client = entries and not any(isinstance(entry, str | int | float | None) for entry in entries)
    if by_client and (isinstance(given, Mapping) or any(isinstance(entry, Mapping) for entry in entries)):
        return scheme("given", rows=_unmasked(given, data))
    if not isinstance(given, Mapping):
        return given
    if "scheme" not in given:
        accepted = "rows by client, as {0: [0, 1], 1: [2]}, or a mapping with `scheme`"
        raise BadInput("partition", Words(f"a {type(given).__name__} without `scheme`"), accepted)
    return _own_data(given)


def _unmasked(rows: Any, data: Source, part: str = "training") -> Any:
    """Row numbers in place of masks of the training samples or, under ``test``, of the test samples."""
    if isinstance(rows, Mapping):
        parts = {name: "test" if name == "test" else part for name in rows}
        return {name: _unmasked(value, data, parts[name]) for name, value in rows.items()}
    listed = isinstance(rows, list | tuple) and any(hasattr(row, "__len__") for row in rows)
    if listed or getattr(rows, "ndim", 1) > 1:
        return [_unmasked(value, data, part) for value in rows]
    _need_positions("partition", rows, data, part)
    if np.asarray(rows).dtype.kind != "b" or not np.ndim(rows):
        return rows
    samples = prepared(data)
    count = len(samples.y_test if part == "test" else samples.y_train)
    if len(rows) != count:
        accepted = f"a truth value for each of the {count} {part} samples"
        raise BadInput("partition", Words(f"a mask of {len(rows)}"), accepted)
    return np.flatnonzero(rows)


def _need_positions(name: str, rows: Any, data: Source, part: str = "training") -> None:
    """Refuse an index of a data frame, or a mask that has one, unless its labels are the rows' numbers."""
    index: Any = None
    if isinstance(data, OwnDataset):
        index = data.test_index if part == "test" else data.index
    labels: Any = getattr(rows, "index", None)
    if hasattr(rows, "get_indexer"):  # an index; if the data have none, labels in order may be numbers
        fits = rows.is_unique and rows.is_monotonic_increasing if index is None else _is_numbers(index)
        if not fits:
            accepted = f"row numbers of the {part} samples, as frame.groupby(...).indices has them"
            raise BadInput(name, Words("an index of row labels"), accepted)
    elif hasattr(labels, "equals") and np.asarray(rows).dtype.kind == "b":
        fits = _is_numbers(labels) if index is None or len(index) != len(labels) else labels.equals(index)
        if not fits:
            accepted = f"truth values of the {part} samples in their order, such as mask.to_numpy()"
            raise BadInput(name, Words("a mask with another index"), accepted)


def _is_numbers(index: Any) -> bool:
    """True for the index of a data frame whose row labels are 0, 1, 2, ..."""
    return np.array_equal(index, np.arange(len(index)))


def client_names(division: Division, data: Dataset, partition: Partition) -> list[str]:
    """The names that the caller gave the clients, as keys of a mapping or by the column of `natural`."""
    scheme = division.parameters if isinstance(division, PartitionParams) else None
    first = [int(partition.train(client)[0]) for client in range(len(partition.sizes))]
    if isinstance(scheme, Natural):
        column = data.columns[scheme.column]
        names = [column.names[column.train[row]] for row in first] if column.names else []
        return [] if names == list(map(str, range(len(names)))) else names
    by_row = named_rows(scheme.rows) if isinstance(scheme, Given) else {}
    return [by_row[row] for row in first] if by_row else []


def need_draw(division: PartitionParams, data: Dataset, partition: Partition) -> None:
    """Refuse a division that another seed would not change: all runs would be the same."""
    other = None
    with suppress(BadInput):  # of the other seed
        other = divided(replace(division, seed=division.seed + 1), data)
    if other is not None and other.hash == partition.hash:
        raise BadInput("redraw", "division", UNDRAWN)


def _lists(division: Any, data: Dataset) -> list[np.ndarray]:
    """One sorted array per client; masks are of the training samples."""
    count = len(data.y_train)
    try:
        given = None if isinstance(division, str | bytes) else list(division)
    except TypeError:
        given = None
    if not given or all(isinstance(rows, int | float | np.number) for rows in given):
        shown = division if isinstance(division, str | int | float) else Words(type(division).__name__)
        accepted = "a scheme such as fedflow.dirichlet(clients=20), or a list of row numbers per client"
        if given:
            accepted += ": of the client of every row, [np.flatnonzero(owner == k) for k in range(clients)]"
        raise BadInput("partition", shown, accepted)
    arrays = []
    for k, rows in enumerate(given):
        _need_positions(f"partition[{k}]", rows, data)
        try:
            array = np.asarray(rows)
        except (TypeError, ValueError):
            array = np.empty((), object)
        if array.size and (array.ndim != 1 or array.dtype.kind not in "biuf"):
            accepted = "row numbers of training samples, a list or an array [n]"
            raise BadInput(f"partition[{k}]", Words(f"a {type(rows).__name__}"), accepted)
        if array.dtype.kind == "b":
            if len(array) != count:
                accepted = f"a truth value for each of the {count} training samples"
                raise BadInput(f"partition[{k}]", Words(f"a mask of {len(array)}"), accepted)
            array = np.flatnonzero(array)
        arrays.append(np.sort(array.ravel()))
    return arrays


def _need_rows(name: str, rows: np.ndarray, count: int) -> None:
    """Refuse the rows of a client unless they are different rows of ``count`` training samples."""
    accepted = f"rows of the training samples, whole numbers from 0 to {count - 1}"
    if not rows.size:
        raise BadInput(name, Words("an empty list"), "one row number or more")
    wrong = rows[(rows < 0) | (rows >= count)] if rows.dtype.kind in "iu" else rows
    if wrong.size:
        raise BadInput(name, Words(np.array2string(wrong, threshold=6)), accepted)
    if (twice := rows[1:][rows[1:] == rows[:-1]]).size:
        raise BadInput(name, int(twice[0]), "every training sample at most once")


def built_method(method: str | Method | type[Method] | Mapping[str, Any]) -> Method:
    """A method by name, as an object, or as a mapping with ``method`` and its hyperparameters."""
    if isinstance(method, Method):
        return _complete(method)
    if isinstance(method, type) and issubclass(method, Method):
        return _complete(method.parse({}, section="method"))
    if isinstance(method, str):
        return _complete(build_method(method))
    if isinstance(method, Mapping) and "method" in method:
        return _complete(build_method(method["method"], {k: v for k, v in method.items() if k != "method"}))
    raise BadInput("method", method, "a name such as 'ditto', or an object such as fedflow.Ditto(lam=1.0)")


def _complete(method: Method) -> Method:
    """The method, if its class defines both steps and serves a known kind of model."""
    cls = type(method)
    if absent := [name for name in ("local", "aggregate") if getattr(cls, name) is getattr(Method, name)]:
        raise BadInput("method", Words(cls.__name__), f"a class that defines {' and '.join(absent)}")
    if method.serves not in SERVES:
        serves = Words(f"{cls.__name__} with serves = {method.serves!r}")
        raise BadInput("method", serves, f"serves: one of {', '.join(SERVES)}")
    if not is_registered(method) and "name" not in vars(cls):
        cls.name = cls.__name__  # in messages
    return method


def is_registered(method: Method) -> bool:
    return METHODS.get(method.name) is type(method)


def titles(method: Method) -> tuple[str, str]:
    """Name and label of a method; an unregistered class, which may inherit both, has its Python name."""
    return (method.name, method.label) if is_registered(method) else (type(method).__name__,) * 2


def default_network(data: Dataset) -> str:
    """The default network for the kind of inputs and targets.

    Raises `BadInput` for whole numbers in the caller's arrays, which may be tokens or not, and for images
    with their channels last.
    """
    if _tokens(data) and data.name == OWN:
        accepted = "float features, x.astype('float32'), or uint8 images; "
        accepted += "tokens need a `model` that embeds them"
        raise BadInput("x", Words(f"whole numbers {list(data.input_shape)}"), accepted)
    if _tokens(data) and data.classes:
        return "stacked_lstm" if data.y_train.ndim > 1 else "char_lstm"
    if channels_last(data.input_shape) and min(data.input_shape[:2]) >= LEAST:
        field, shape = "x" if data.name == OWN else "data", ", ".join(map(str, data.input_shape))
        accepted = "images [n, C, H, W], x.transpose(0, 3, 1, 2); or features [n, d], x.reshape(len(x), -1)"
        raise BadInput(field, Words(f"[n, {shape}]"), accepted)
    if not data.classes:
        return "linear" if data.num_classes == 1 else "mlp"
    image = len(data.input_shape) == 3 and min(data.input_shape[1:]) >= IMAGES
    return "lenet5" if image else "mlp"


def network_entry(network: str | Mapping[str, Any]) -> dict[str, Any]:
    """The network as an entry of ``models`` in params.yaml."""
    if not isinstance(network, Mapping):
        return {"name": network, "options": {}}
    if "name" not in network:
        given = Words(f"a {type(network).__name__} without `name`")
        raise BadInput("model", given, "a mapping with the name of an architecture")
    for name, kind, accepted in (
        ("name", str, "text"),
        ("options", Mapping, "a mapping"),
        ("start", str | None, "text"),
    ):
        if name in network and not isinstance(network[name], kind):
            raise BadInput(f"model.{name}", network[name], accepted)
    options = {name: value for name, value in network.items() if name not in ("name", "options")}
    return {"name": network["name"], "options": {**network.get("options", {}), **options}}


def with_start(network: Network | None, root: Path) -> Network | None:
    """The network with the path of the file that has its first values; a recorded run is one of ``root``."""
    if isinstance(network, Mapping):
        entry = network_entry(network)
        if start_files(entry["options"]):
            root = Path()
        return entry | {"options": started(entry["options"], root)}
    return network


def own_network(network: Network | None) -> Any:
    """The class, function or module of a network that is not one of fedflow or of a library, or None."""
    if not isinstance(network, str | Mapping):
        return network
    entry = architecture(network_entry(network)["name"])
    return entry.build if is_own(entry.build) and not entry.library else None


def flat_model(network: Network | None, data: Dataset, device: torch.device) -> FlatModel:
    """The network: from a name, a mapping with ``name`` and options, a module, or a factory of modules.

    A module itself is the first model for every seed; a factory is called once per seed.
    """
    if network is None or isinstance(network, str | Mapping):
        entry = network_entry(default_network(data) if network is None else network)
        factory: Callable[[], nn.Module] = partial(
            build, entry["name"], data.input_shape, data.num_classes, **entry["options"]
        )
    elif isinstance(network, nn.Module):
        need_plain(network)  # a copy has no hooks
        factory = partial(copy.deepcopy, network)
        _need_module(factory, type(network).__name__)
    elif callable(network):
        factory = network
        _need_module(network, getattr(network, "__name__", type(network).__name__))
    else:
        given = network if isinstance(network, int | float) else Words(f"a {type(network).__name__}")
        accepted = "the name of a network, a torch.nn.Module, or a function that makes one"
        raise BadInput("model", given, accepted)
    return FlatModel(factory, device=device)


def _tokens(data: Dataset) -> bool:
    """True if the inputs are whole numbers, but not pixels."""
    return not (data.x_train.is_floating_point() or data.x_train.dtype == torch.uint8)


def _need_layout(data: Dataset, network: str, error: BadInput) -> None:
    """Raise ``error`` in terms of the caller's arrays, if ``network`` fails because of their layout."""
    shape = data.input_shape
    if data.name != OWN:
        return
    if _tokens(data) and data.classes:
        top = int(max(data.x_train.max(), data.x_test.max()))
        accepted = f"float features for {network!r}, x.astype('float32')"
        if top >= data.num_classes:
            accepted += f", or tokens 0 to {data.num_classes - 1}; `classes` names them all"
        raise BadInput("x", Words(f"whole numbers {list(shape)} up to {top}"), accepted) from error
    if channels_last(shape):
        accepted = f"images [n, C, H, W] for {network!r}: x.transpose(0, 3, 1, 2)"
        raise BadInput("x", Words(f"[n, {', '.join(map(str, shape))}]"), accepted) from error


def _need_module(factory: Callable[[], Any], name: str) -> None:
    """Raise `BadInput` unless ``factory`` makes a module: a copy, or a function or class of this name."""
    try:
        made = factory()
    except BadInput:
        raise
    except Exception as error:  # anybody's code
        accepted = "a function without arguments that makes a torch.nn.Module"
        if isinstance(factory, type):
            accepted = f"an object such as {name}(...), or {accepted}"
        elif isinstance(factory, partial):
            accepted = "a network that can be copied"
        accepted += f" ({type(error).__name__}: {reason(error)})"
        raise BadInput("model", Words(name), accepted) from error
    if not isinstance(made, nn.Module):
        raise BadInput("model", type(made).__name__, "a function that returns a torch.nn.Module")


def federation(
    samples: Dataset, division: Division, network: Network | None, method: Method, device: str
) -> Federation:
    """The data, the network and the partition of a run."""
    where = torch.device(device)
    partition = divided(division, samples)
    if partition.classes:
        samples = replace(samples, classes=tuple(map(str, range(partition.classes))))
    examples = opened(samples, partition)
    train = examples.train.to(where)
    try:
        model = flat_model(network, samples, where)
        need_fit(model, train, model.title, len(samples.classes))
        if not (network is None or isinstance(network, str | Mapping)):
            _need_hits(model, train, len(samples.classes))
    except BadInput as error:
        if isinstance(network, str | Mapping) and error.field == "model.name":
            _need_layout(samples, network_entry(network)["name"], error)
        raise
    return Federation(
        model,
        train,
        examples.test.to(where),
        partition,
        _public(method, train, partition),
        own=None if examples.own is None else examples.own.to(where),
    )


def _need_hits(model: FlatModel, train: Examples, classes: int) -> None:
    """Refuse a network whose ``hits`` are not a number from 0 to 1 per sample, or NaN for real targets."""
    rows = torch.arange(min(SAMPLES, len(train)), device=model.device)
    y = train.targets(rows)
    outputs = model.outputs(model.init(0), train.inputs(rows, model.dtype))
    labels = y.dtype == torch.int64 and y.ndim == 1 and outputs.shape == (len(y), classes)
    for target in (y, outputs.argmax(1)) if labels else (y,):  # the second ones are hits
        try:
            hits = model.hits(outputs, target)
            given = _wrong_hits(hits, y)
        except Exception as error:  # a network is anybody's code
            given = f"hits(outputs, y) that raises {type(error).__name__}: {reason(error)}"
        if given:
            raise BadInput("model", Words(given), "hits(outputs, y) of a number from 0 to 1 per sample")


def _wrong_hits(hits: Any, y: torch.Tensor) -> str:
    """The reason why these are no hits of samples with the targets ``y``; empty if they are."""
    if not isinstance(hits, torch.Tensor) or hits.shape != y.shape[:1]:
        returned = list(hits.shape) if isinstance(hits, torch.Tensor) else f"a {type(hits).__name__}"
        return f"hits(outputs, y) of {returned} for {len(y)} samples"
    values = hits.detach().double()
    right = (values >= 0) & (values <= 1) | (values.isnan() if y.is_floating_point() else False)
    return "" if right.all() else f"hits(outputs, y) of {values[~right][0].item():g}"


def _public(method: Method, train: Examples, partition: Partition) -> Examples | None:
    """The inputs of the server, for methods that need some."""
    declared = server_data(method)
    if declared.dataset:
        return prepared(as_data(declared.dataset)).train.to(train.device)
    if declared.noise:
        return random_examples(train, declared.noise)
    if len(partition.public):
        return train.only(torch.as_tensor(partition.public, device=train.device))
    return None


def described(
    data: Source, division: Division, network: Network | None, whole: Federation, redraw: str
) -> dict[str, dict[str, Any]]:
    """The settings of data, division and network, or content hashes of arrays, lists and modules.

    They are the same for all seeds, also if seeds ``redraw`` the division. Data and divisions of files, first
    values and own sources have both, as these can change.
    """
    settings = {"data": {"hash": whole.partition.dataset_hash}, "partition": {"hash": whole.partition.hash}}
    if not isinstance(data, Dataset):
        settings["data"] = data.flat() | (settings["data"] if data.files() or _own_sources(data) else {})
    if isinstance(division, PartitionParams):
        drawn = {} if redraw == "run" else {"redraw": redraw}
        left_out = ("dataset", "seed") if drawn else ("dataset",)
        entry = {k: v for k, v in division.flat().items() if k not in left_out}
        sums = [file_sum(Path(file)) for file in division.files()]
        read = {"files": digest(sums, SHORT)} if sums else {}
        settings["partition"] = entry | codes([division.parameters]) | drawn | read
        if isinstance(division.parameters, Given) and division.parameters.rows:
            settings["partition"]["rows_hash"] = digest(settings["partition"].pop("rows"), SHORT)
    if network is None or isinstance(network, str | Mapping):
        entry = network_entry(whole.model.title if network is None else network)
        code = {"code": code_of(kind)} if (kind := own_network(network)) else {}
        sums = [digest(file_sum(Path(file)), SHORT) for file in start_files(entry["options"])]
        read = {"start_hash": sums[0]} if sums else {}
        return settings | {"model": {"name": entry["name"], **entry["options"], **code, **read}}
    return settings | {"model": {"name": whole.model.title, "hash": _content(whole.model)}}


def _content(model: FlatModel) -> str:
    """A digest of the layers and first values of a network, and of the code and attributes of own layers."""
    first = model.init(0)
    content = hashlib.blake2b(model.architecture.encode(), digest_size=4)
    content.update(first.cpu().numpy().data)
    layers = [layer for layer in model.to_module(first).modules() if is_written_here(type(layer))]
    content.update(code_of(*layers).encode() if layers else b"")
    return content.hexdigest()


def _own_sources(data: DatasetParams) -> list[str]:
    """The code of the own sources that make the data, or parts of them."""
    made = source(data.source)
    outside = any(name.partition(".")[0] != "fedflow" for name in made.modules)
    code = [code_of(made.fetch, made.read, made.join, made.options)] if outside else []
    return [*code, *(inner for entry in data.entries.values() for inner in _own_sources(entry))]
