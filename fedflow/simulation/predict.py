"""Predictions of models: one model after another, or many at once under `torch.func.vmap`."""

import warnings
from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from typing import NamedTuple
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import Tensor

from fedflow.data import Examples
from fedflow.models.flat import FlatModel
from fedflow.simulation.graphs import Operations

PROBABILITIES = "probabilities"  # of all classes [n, K], float32, next to the answers
LABELS = "labels"  # of samples that can have several [n, K], in place of the answers
ANSWERS = {"label": np.int32, "predicted": np.int32, "confidence": np.float32, "rank": np.int32}
TYPES = ANSWERS | {PROBABILITIES: np.float32, LABELS: np.bool_}
AT_ONCE = {"cpu": 128, "cuda": 512}  # samples: the activations of larger batches exceed a CPU's cache
MODELS = 64  # of one vmapped call, at most
OF_ALL = {"cpu": 512, "cuda": 4096}  # samples of all models of one vmapped call
BYTES = 1 << 30  # of these models
WRITTEN = 1 << 32  # bytes that the operations of a vmapped call write, at most: several times its memory
_FIT = WeakKeyDictionary[FlatModel, int]()  # samples of all models of one vmapped call of a network


class Asked(NamedTuple):
    """A model [D] and the ``rows`` [n] of the samples that it predicts."""

    model: FlatModel
    w: Tensor
    rows: np.ndarray


class Predicted(NamedTuple):
    """Hits and losses [n], float64, and, if asked for, `ANSWERS` [n] and `PROBABILITIES` [n, K]."""

    hits: np.ndarray
    losses: np.ndarray
    answers: dict[str, np.ndarray]


@torch.no_grad()
def predict(model: FlatModel, w: Tensor, test: Examples, rows: np.ndarray, keep: bool = False) -> Predicted:
    """Hits and losses of one model on the samples at ``rows``; with ``keep``, also its `ANSWERS`."""
    count, alone = len(rows), model.batch_statistics
    at_once = AT_ONCE["cpu" if alone else model.device.type]  # the statistics must not depend on the device
    if not count and len(test):  # networks may refuse an empty batch
        rows = np.zeros(2 if alone else 1, dtype=np.int64)  # one sample has no variance
    if keep and not alone:
        # Whole batches: the last bits of a small one depend on its size, and so on the workers.
        rows = np.append(rows, np.repeat(rows[-1:], -count % at_once))
    index, parts = torch.as_tensor(rows, device=model.device), -(-len(rows) // at_once)

    def call(chunk: Tensor) -> dict[str, Tensor]:
        return _predicted(model, w, test, chunk, keep)

    if alone and parts:  # of nearly equal sizes: the statistics of a few samples are poor
        return _joined([call(chunk) for chunk in index.tensor_split(parts)], count)
    return _joined(_by_chunk(call, index, at_once)[0], count)


@torch.no_grad()
def predict_all(asked: Sequence[Asked], test: Examples, keep: bool, vmapped: bool) -> Iterator[Predicted]:
    """`predict` for each of ``asked``, in their order; many models at once if ``vmapped``."""
    for _, group in groupby(asked, key=lambda single: id(single.model)):
        of_model = list(group)
        model = of_model[0].model
        alone = not vmapped or model.batch_statistics or model.why_alone
        width = 1 if alone else max(1, min(MODELS, BYTES // (4 * model.size)))
        for start in range(0, len(of_model), width):
            some = of_model[start : start + width]
            if len(some) > 1:
                yield from _together(some, test, keep)
            else:  # PyTorch's layers, because the layers of cohorts unfold every image
                yield predict(model, some[0].w, test, some[0].rows, keep)


def _together(asked: Sequence[Asked], test: Examples, keep: bool) -> Iterator[Predicted]:
    """The predictions of models of one network, each padded to the largest number of samples."""
    model, counts = asked[0].model, [len(single.rows) for single in asked]
    table = np.zeros((len(asked), max(1, *counts)), dtype=np.int64)
    for padded, single in zip(table, asked):
        padded[: len(single.rows)] = single.rows
    index = torch.from_numpy(table).to(model.device)
    vectors = torch.stack([single.w for single in asked])
    with model.for_cohorts():
        call = torch.func.vmap(lambda w, rows: _predicted(model, w, test, rows, keep))
        if model not in _FIT:
            written = []
            for samples in (1, 2):
                with Operations() as operations:
                    call(vectors[:1], index[:1, :1].expand(-1, samples))
                written.append(operations.written)
            per_sample = max(1, written[1] - written[0])
            _FIT[model] = min(OF_ALL[model.device.type], WRITTEN // per_sample)
        samples = max(1, _FIT[model] // len(asked))
        chunks, fit = _by_chunk(lambda rows: call(vectors, rows), index, samples)
        if fit:
            _FIT[model] = fit * len(asked)
    for c, count in enumerate(counts):
        yield _joined([{name: values[c] for name, values in chunk.items()} for chunk in chunks], count)


def _by_chunk(
    call: Callable[[Tensor], dict[str, Tensor]], index: Tensor, samples: int
) -> tuple[list[dict[str, Tensor]], int | None]:
    """The results of ``call`` for at most ``samples`` columns of ``index`` [..., n] at once.

    The number is halved when memory is short; then it is returned too, else None.
    """
    chunks, start = list[dict[str, Tensor]](), 0
    fit: int | None = None
    samples = max(1, min(samples, index.shape[-1]))
    while not chunks or start < index.shape[-1]:
        try:
            chunks.append(call(index[..., start : start + samples]))
            start += samples
        except torch.OutOfMemoryError:
            if samples == 1:
                raise
            samples = fit = (samples + 1) // 2
            warnings.warn(f"out of memory: {samples} test samples at once from here on", stacklevel=2)
    return chunks, fit


def _predicted(model: FlatModel, w: Tensor, test: Examples, rows: Tensor, keep: bool) -> dict[str, Tensor]:
    """Hits, losses and answers of one model on the samples at ``rows`` [B]; it also runs under vmap."""
    outputs, y = model.outputs(w, test.inputs(rows, model.dtype)), test.targets(rows)
    scores = {"hits": model.hits(outputs, y).double(), "losses": model.losses(outputs, y).double()}
    return scores | (_answers(outputs, y) if keep else {})


def _answers(outputs: Tensor, y: Tensor) -> dict[str, Tensor]:
    """Label, prediction, its probability and the label's rank from 1, for outputs [B, K] and labels [B].

    And the `PROBABILITIES` of all classes. For several labels per sample, `LABELS` and `PROBABILITIES` only.
    """
    if y.dtype == torch.bool:
        return {LABELS: y, PROBABILITIES: outputs.sigmoid()}
    predicted, probabilities = outputs.argmax(-1), outputs.softmax(-1)
    confidence = probabilities.gather(-1, predicted[:, None]).squeeze(-1)
    # Stable: the first of equal outputs is the prediction, so that rank 1 is a hit.
    order = outputs.argsort(dim=-1, descending=True, stable=True)
    rank = 1 + (order == y[:, None]).int().argmax(-1)
    answers = {"label": y, "predicted": predicted, "confidence": confidence, "rank": rank}
    return answers | {PROBABILITIES: probabilities}


def _joined(parts: list[dict[str, Tensor]], count: int) -> Predicted:
    values = {name: torch.cat([part[name] for part in parts])[:count].cpu().numpy() for name in parts[0]}
    answers = {name: values[name].astype(kind) for name, kind in TYPES.items() if name in values}
    return Predicted(values["hits"], values["losses"], answers)
