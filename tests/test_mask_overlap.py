"""What masks of clients have in common: worked numbers."""

import numpy as np
import pytest

from fedflow.metrics import masks
from fedflow.metrics.masks import compare

KEPT = np.array([[1, 1, 1, 1, 1, 0, 0, 0], [1, 1, 1, 0, 0, 0, 1, 0], [0, 0, 0, 0, 0, 1, 1, 0]], dtype=bool)
SIZES = {"conv.weight": 3, "conv.bias": 1, "fc.weight": 3, "norm.weight": 1}
LABELS = np.array([[1, 1, 0], [1, 0, 1], [0, 0, 1]], dtype=bool)  # they share 1, 0 and 1


def test_overlap_of_three_masks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Clients 0 and 1 both keep 3 of 6 entries, 0 and 2 none of 7, 1 and 2 one of 5."""
    for chunk in (1 << 20, 3):  # at once, and entry by entry
        monkeypatch.setattr(masks, "CHUNK", chunk)
        found = compare(KEPT, [4, 7, 9], SIZES, LABELS)
        assert found.iou == pytest.approx(np.array([[1, 3 / 6, 0], [3 / 6, 1, 1 / 5], [0, 1 / 5, 1]]))
        agree = [[8, 5, 1], [5, 8, 4], [1, 4, 8]]
        assert found.hamming == pytest.approx(np.array(agree) / 8)
    assert found.by_shared_labels() == pytest.approx({0: 0, 1: (1 / 2 + 1 / 5) / 2})
    # Ranks of IoU 3, 1, 2, and of shared labels 2.5, 1, 2.5.
    assert found.correlation() == pytest.approx(np.sqrt(3) / 2)


def test_layers_are_weights_and_biases_together_and_those_kept_whole_are_left_out() -> None:
    kept = KEPT | (np.arange(8) == 7)
    found = compare(kept, range(3), SIZES)
    assert found.sizes == {"conv": 4, "fc": 3}
    assert {name: shares.tolist() for name, shares in found.layers.items()} == {
        "conv": [1, 0.75, 0],
        "fc": pytest.approx([1 / 3, 1 / 3, 2 / 3]),
    }


def test_without_labels_or_a_difference_there_is_no_correlation() -> None:
    assert compare(KEPT, range(3), SIZES).correlation() is None
    assert compare(KEPT, range(3), SIZES).by_shared_labels() == {}
    assert compare(KEPT, range(3), SIZES, np.ones((3, 2), dtype=bool)).correlation() is None
    nothing = compare(np.zeros((2, 5), dtype=bool), range(2), {})
    assert (nothing.iou == 1).all() and (nothing.hamming == 1).all()
