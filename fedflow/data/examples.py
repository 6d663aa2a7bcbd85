"""Examples that live on one device: images stay uint8 there and are normalised as they are gathered."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor


class Examples:
    """Inputs ``x`` [n, ...] and targets ``y`` [n] on one device.

    ``x`` is either uint8 images [n, C, H, W], normalised on the fly to ``(x / 255 - mean) / std`` with
    ``mean`` and ``std`` of length C (absent: 0 and 1), or float features of any shape, left as they are.
    ``y`` holds int64 labels or float values. Raises ValueError if the parts do not fit together.
    """

    def __init__(
        self,
        x: Tensor,
        y: Tensor,
        mean: Sequence[float] | Tensor | None = None,
        std: Sequence[float] | Tensor | None = None,
    ) -> None:
        if len(x) != len(y):
            raise ValueError(f"{len(x)} inputs and {len(y)} targets")
        self.x, self.y, self.mean, self.std = x, y, mean, std
        self.images = x.dtype == torch.uint8
        if self.images:
            if x.ndim != 4:
                raise ValueError(f"uint8 inputs must be images [n, C, H, W], not {list(x.shape)}")
            m, s = (
                torch.as_tensor(default if value is None else value, dtype=torch.float64).cpu().reshape(-1)
                for value, default in ((mean, 0.0), (std, 1.0))
            )
            if {len(m), len(s)} - {1, x.shape[1]}:
                raise ValueError(f"mean and std must have one value per channel ({x.shape[1]})")
            # (x/255 - mean)/std = x*scale + shift
            self._scale = (1 / (255 * s)).view(-1, 1, 1).float().to(x.device)  # [C, 1, 1]
            self._shift = (-m / s).view(-1, 1, 1).float().to(x.device)  # [C, 1, 1]
        elif not x.is_floating_point():
            raise ValueError(f"inputs must be uint8 images or float features, not {x.dtype}")

    def __len__(self) -> int:
        return len(self.x)

    @property
    def device(self) -> torch.device:
        """Where the examples live."""
        return self.x.device

    def to(self, device: torch.device | str) -> "Examples":
        """The same examples on ``device``; themselves if they are there already."""
        x = self.x.to(device)
        return self if x is self.x else Examples(x, self.y.to(device), self.mean, self.std)

    def relabelled(self, y: np.ndarray | None) -> "Examples":
        """The same inputs with targets ``y`` [n]; themselves without any."""
        return self if y is None else Examples(self.x, torch.as_tensor(y), self.mean, self.std)

    def inputs(self, index: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
        """Normalised inputs at ``index`` (int64, any shape S, on the same device): [*S, ...] of ``dtype``.

        Tensor operations only, so it also runs under ``torch.func.vmap`` with a batched ``index``.
        """
        x = self.x.index_select(0, index.reshape(-1)).reshape(*index.shape, *self.x.shape[1:])
        if not self.images:
            return x.to(dtype)
        x = x.to(torch.promote_types(dtype, torch.float32))  # half precision would round twice
        return x.mul_(self._scale).add_(self._shift).to(dtype)  # in place: a second batch would cost more

    def targets(self, index: Tensor) -> Tensor:
        """Targets at ``index`` (any shape S): [*S]."""
        return self.y.index_select(0, index.reshape(-1)).reshape(index.shape)
