"""Examples on one device: images are stored as uint8 and normalized when they are gathered."""

import hashlib
from collections.abc import Sequence
from copy import copy

import numpy as np
import torch
from torch import Tensor


class Examples:
    """Inputs ``x`` [n, ...] and targets ``y`` [n] (or [n, L]: one at each position) on one device.

    ``x`` is uint8 images [n, C, H, W], normalized on the fly to ``(x / 255 - mean) / std`` with ``mean`` and
    ``std`` of length C (default: 0 and 1), float features of any shape, or whole numbers: tokens [n, L].
    With ``domain`` [n], numbers 0..D-1, ``mean`` and ``std`` are [D, C], a row per domain. ``y`` holds int64
    labels, float values, or bool [n, K] for several labels per sample. Raises ValueError if the parts do not
    fit together.
    """

    def __init__(
        self,
        x: Tensor,
        y: Tensor,
        mean: Sequence | Tensor | None = None,
        std: Sequence | Tensor | None = None,
        domain: Tensor | None = None,
    ) -> None:
        if len(x) != len(y):
            raise ValueError(f"{len(x)} inputs and {len(y)} targets")
        self.x, self.y, self.mean, self.std, self.domain = x, y, mean, std, domain
        self.images = x.dtype == torch.uint8
        if self.images:
            if x.ndim != 4:
                raise ValueError(f"uint8 inputs must be images [n, C, H, W], not {list(x.shape)}")
            m, s = (
                torch.as_tensor(default if value is None else value, dtype=torch.float64).cpu()
                for value, default in ((mean, 0.0), (std, 1.0))
            )
            if domain is None:
                m, s = m.reshape(-1), s.reshape(-1)
            elif m.ndim != 2 or len(domain) != len(x) or ((domain < 0) | (domain >= len(m))).any():
                raise ValueError("domain must hold, for every image, its row of mean and std")
            if {m.shape[-1], s.shape[-1]} - {1, x.shape[1]} or m.shape[:-1] != s.shape[:-1]:
                raise ValueError(f"mean and std must have one value per channel ({x.shape[1]})")
            # (x/255 - mean)/std = x*scale + shift
            self._scale = (1 / (255 * s))[..., None, None].float().to(x.device)  # [C, 1, 1] or [D, C, 1, 1]
            self._shift = (-m / s)[..., None, None].float().to(x.device)  # likewise
        elif domain is not None:
            raise ValueError("only images have a domain")
        elif x.is_complex() or x.dtype == torch.bool:
            raise ValueError(f"inputs must be uint8 images, float features or whole numbers, not {x.dtype}")

    def __len__(self) -> int:
        return len(self.x)

    @property
    def labeled(self) -> bool:
        """True if every sample has one label: not in regression, nor with a target at each position."""
        return self.y.ndim == 1 and not self.y.is_floating_point()

    @property
    def several(self) -> bool:
        """True if a sample can have several labels."""
        return self.y.dtype == torch.bool

    @property
    def device(self) -> torch.device:
        """The device of the examples."""
        return self.x.device

    @property
    def digest(self) -> str:
        """A hash of inputs and targets."""
        whole = hashlib.blake2b(digest_size=12)
        for values in (self.x, self.y):
            whole.update(values.cpu().contiguous().numpy().data)
        return whole.hexdigest()

    def to(self, device: torch.device | str) -> "Examples":
        """The same examples on ``device``; ``self`` if they are already there."""
        if self.x.to(device) is self.x:
            return self
        moved = copy(self)
        for name, value in vars(self).items():
            if isinstance(value, Tensor):
                setattr(moved, name, value.to(device))
        return moved

    def relabeled(self, y: np.ndarray | None) -> "Examples":
        """The same inputs with targets ``y`` [n]; ``self`` if ``y`` is None."""
        return self if y is None else Examples(self.x, torch.as_tensor(y), self.mean, self.std, self.domain)

    def only(self, rows: Tensor) -> "Examples":
        """A copy of the examples at ``rows`` [m]."""
        domain = None if self.domain is None else self.domain[rows]
        return Examples(self.x[rows], self.y[rows], self.mean, self.std, domain)

    def inputs(self, rows: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
        """Inputs at ``rows`` (int64, any shape S, on the same device): [*S, ...].

        Normalized images and features have ``dtype``; tokens are int64. It uses tensor operations only, so it
        also runs under ``torch.func.vmap`` with a batched ``rows``.
        """
        x = _at(self.x, rows)
        if not self.images:
            return x.to(dtype) if x.is_floating_point() else x.long()
        x = x.to(torch.promote_types(dtype, torch.float32))  # half precision would round twice
        scale, shift = self._scale, self._shift
        if self.domain is not None:
            domain = _at(self.domain, rows)
            scale, shift = _at(scale, domain), _at(shift, domain)
        return x.mul_(scale).add_(shift).to(dtype)  # in place: a second batch would cost more

    def scale(self, rows: Tensor) -> Tensor | float:
        """The change of `inputs` at ``rows`` [m] by 1 more in pixels scaled to [0, 1], or in features."""
        if not self.images:
            return 1.0
        return 255 * (self._scale if self.domain is None else _at(self._scale, _at(self.domain, rows)))

    def targets(self, rows: Tensor) -> Tensor:
        """Targets at ``rows`` (any shape S): [*S], or [*S, L]."""
        return _at(self.y, rows)


def _at(values: Tensor, rows: Tensor) -> Tensor:
    """Rows of ``values`` [n, ...] at ``rows`` (any shape S): [*S, ...]."""
    return values.index_select(0, rows.reshape(-1)).reshape(rows.shape + values.shape[1:])
