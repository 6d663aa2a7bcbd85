"""Measures of a model ``w`` [D] on samples, in evaluation mode: per sample [n], or their mean."""

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from fedflow.local.samples import Samples
from fedflow.models.flat import FlatModel

Measure = Callable[[Tensor, Tensor], Tensor]  # of outputs [B, .] and targets [B]: one number each [B]


def losses(model: FlatModel, samples: Samples, w: Tensor) -> Tensor:
    """Data loss on each sample [n]; NaN for the padding of a cohort."""
    return each(model, samples, w, model.losses)


def mistakes(model: FlatModel, samples: Samples, w: Tensor) -> Tensor:
    """1 for each sample [n] that is predicted wrongly, else 0; NaN for the padding of a cohort."""
    return each(model, samples, w, lambda outputs, y: 1 - model.hits(outputs, y).to(outputs.dtype))


def disagreement(model: FlatModel, samples: Samples, first: Tensor, second: Tensor) -> Tensor:
    """1 for each sample [n] that two vectors [D] predict differently, else 0; NaN for padding."""

    def labels(w: Tensor) -> Tensor:
        return each(model, samples, w, lambda outputs, y: outputs.argmax(-1).to(outputs.dtype))

    return (labels(first) - labels(second)).abs().clamp(max=1)


def each(model: FlatModel, samples: Samples, w: Tensor, measure: Measure) -> Tensor:
    """``measure`` of each sample [n]; NaN for the padding of a cohort."""
    return torch.cat(
        [
            values if mask is None else values.where(mask, torch.nan)
            for values, mask in _by_chunk(model, samples, w, measure)
        ]
    )


def mean(model: FlatModel, samples: Samples, w: Tensor, measure: Measure) -> Tensor:
    """Mean of ``measure`` over the samples, scalar; NaN without samples."""
    total = torch.zeros((), dtype=model.dtype, device=samples.rows.device)
    for values, mask in _by_chunk(model, samples, w, measure):
        total = total + (values if mask is None else values * mask).sum()
    return total / samples.counted(model.dtype)


def _by_chunk(
    model: FlatModel, samples: Samples, w: Tensor, measure: Measure
) -> Iterator[tuple[Tensor, Tensor | None]]:
    for batch in samples.chunks(model.dtype):
        yield measure(model.outputs(w, batch.x, batch.real), batch.y), batch.mask
