"""What models predict of samples: one model after another, or many at once under `torch.func.vmap`."""

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from fedflow.data import Examples
from fedflow.models.flat import FlatModel

ANSWERS = {"label": np.int32, "predicted": np.int32, "confidence": np.float32, "rank": np.int32}
AT_ONCE = {"cpu": 128, "cuda": 512}  # samples: the activations of larger batches exceed a CPU's cache
MODELS = 64  # of one vmapped call, at most
OF_ALL = {"cpu": 512, "cuda": 4096}  # samples of all models of one vmapped call
BYTES = 1 << 30  # of these models


class Asked(NamedTuple):
    """A model [D] and the ``rows`` [n] of the samples that it predicts."""

    model: FlatModel
    w: Tensor
    rows: np.ndarray


class Predicted(NamedTuple):
    """Hits and losses [n], float64, and, if asked for, `ANSWERS` [n]."""

    hits: np.ndarray
    losses: np.ndarray
    answers: dict[str, np.ndarray]


@torch.no_grad()
def predict(model: FlatModel, w: Tensor, test: Examples, rows: np.ndarray, keep: bool = False) -> Predicted:
    """Hits and losses of one model on the samples at ``rows``; with ``keep``, also its `ANSWERS`."""
    count, alone = len(rows), model.batch_statistics
    at_once = AT_ONCE["cpu" if alone else model.device.type]  # the statistics must not depend on the device
    if keep and not alone:
        # Whole batches: the last bits of a small one depend on its size, and so on the workers.
        rows = np.append(rows, np.repeat(rows[-1:], -count % at_once))
    index, parts = torch.as_tensor(rows, device=model.device), -(-len(rows) // at_once)
    found = []
    # Of nearly equal sizes where statistics are those of a batch: those of a few samples are poor.
    for chunk in index.tensor_split(parts) if alone and parts else index.split(at_once):
        found.append(_predicted(model, w, test, chunk, keep))
    return _joined(found, count)


@torch.no_grad()
def predict_all(asked: Sequence[Asked], test: Examples, keep: bool, vmapped: bool) -> Iterator[Predicted]:
    """`predict` for each of ``asked``, in their order; many models at once if ``vmapped``."""
    for _, group in groupby(asked, key=lambda each: id(each.model)):
        own = list(group)
        model = own[0].model
        if not vmapped or model.batch_statistics or model.why_alone:
            yield from (predict(*each[:2], test, each.rows, keep) for each in own)
            continue
        width = max(1, min(MODELS, BYTES // (4 * model.size)))
        for start in range(0, len(own), width):
            yield from _together(own[start : start + width], test, keep)


def _together(asked: Sequence[Asked], test: Examples, keep: bool) -> Iterator[Predicted]:
    """The predictions of models of one network, each padded to the largest number of samples."""
    model, counts = asked[0].model, [len(each.rows) for each in asked]
    table = np.zeros((len(asked), max(counts)), dtype=np.int64)
    for place, each in zip(table, asked):
        place[: len(each.rows)] = each.rows
    index = torch.from_numpy(table).to(model.device)
    vectors = torch.stack([each.w for each in asked])
    found = []
    with model.for_cohorts():
        call = torch.func.vmap(lambda w, rows: _predicted(model, w, test, rows, keep))
        for chunk in index.split(max(1, OF_ALL[model.device.type] // len(asked)), dim=1):
            found.append(call(vectors, chunk))
    for c, count in enumerate(counts):
        yield _joined([{name: values[c] for name, values in part.items()} for part in found], count)


def _predicted(model: FlatModel, w: Tensor, test: Examples, rows: Tensor, keep: bool) -> dict[str, Tensor]:
    """Hits, losses and answers of one model on the samples at ``rows`` [B]; it also runs under vmap."""
    outputs, y = model.outputs(w, test.inputs(rows, model.dtype)), test.targets(rows)
    found = {"hits": model.hits(outputs, y).double(), "losses": model.losses(outputs, y).double()}
    return found | (_answers(outputs, y) if keep else {})


def _answers(outputs: Tensor, y: Tensor) -> dict[str, Tensor]:
    """Of outputs [B, K] and labels [B]: prediction, its probability, and the rank of the label from 1."""
    predicted = outputs.argmax(-1)
    confidence = outputs.softmax(-1).gather(-1, predicted[:, None]).squeeze(-1)
    # Stable: the first of equal outputs is the prediction, so that rank 1 is a hit.
    order = outputs.argsort(dim=-1, descending=True, stable=True)
    rank = 1 + (order == y[:, None]).int().argmax(-1)
    return {"label": y, "predicted": predicted, "confidence": confidence, "rank": rank}


def _joined(parts: list[dict[str, Tensor]], count: int) -> Predicted:
    """The first ``count`` values of all parts, on the host."""
    values = {name: torch.cat([part[name] for part in parts])[:count].cpu().numpy() for name in parts[0]}
    answers = {name: each.astype(ANSWERS[name]) for name, each in values.items() if name in ANSWERS}
    return Predicted(values["hits"], values["losses"], answers)
