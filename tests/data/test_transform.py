from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from support import refused

from fedflow.data import Dataset, DatasetParams, load_prepared, prepare
from fedflow.errors import FedflowError
from fedflow.partition import Samples

SPLITS = (("train", 30), ("test", 12))


def digits(out: Path, **params: object) -> Dataset:
    return prepare(DatasetParams(source="digits", **params), out)


def test_every_image_appears_once_per_angle_counter_clockwise(make):
    upright, data = make(), make("turned", rotations=[0, 90, 180, 270], pad=1)
    assert len(data.train) == 120 and len(data.test) == 48
    rotation = data.columns["rotation"]
    assert rotation.names == ("0", "90", "180", "270")
    for split, n in SPLITS:
        x, y, plain = (getattr(d, f"{w}_{split}") for d, w in ((data, "x"), (data, "y"), (upright, "x")))
        assert getattr(rotation, split).tolist() == np.arange(4).repeat(n).tolist()
        assert torch.equal(y, getattr(upright, f"y_{split}").repeat(4))
        a, b = plain[:, 0, 0, 0], plain[:, 0, 0, 3]  # the upper corners, left and right
        assert torch.equal(x[:n, 0, 1, 1], a) and torch.equal(x[:n, 0, 1, 4], b)
        assert torch.equal(x[n : 2 * n, 0, 4, 1], a) and torch.equal(x[n : 2 * n, 0, 1, 1], b)  # down, left
        assert torch.equal(x[2 * n : 3 * n, 0, 4, 4], a) and torch.equal(x[3 * n :, 0, 1, 4], a)
    assert data.mean == upright.mean


def test_limits_count_images_before_they_are_rotated(make):
    data = make(rotations=[180, 0], train_limit=6)
    assert len(data.train) == 12 and data.y_train.bincount().tolist() == [4, 4, 4]
    assert torch.equal(data.x_train[6:].rot90(2, (2, 3)), data.x_train[:6])
    assert data.columns["rotation"].names == ("180", "0")


def test_images_with_several_labels_are_rotated(npz, tmp_path):
    labels = {f"y_{split}": np.arange(2 * n).reshape(n, 2) % 2 for split, n in SPLITS}
    data = prepare(
        DatasetParams(source="npz", path=str(npz(**labels)), rotations=[0, 180], loss="bce"), tmp_path
    )
    assert data.y_train.shape == (60, 2) and torch.equal(data.y_train[:30], data.y_train[30:])


def test_images_that_are_no_squares_are_turned_upside_down_only(npz, tmp_path):
    wide = {f"x_{split}": np.zeros((n, 4, 6), np.uint8) for split, n in SPLITS}
    path = str(npz(**wide))
    data = prepare(DatasetParams(source="npz", path=path, rotations=[0, 180]), tmp_path)
    assert data.input_shape == (1, 4, 6)
    with refused(r"data.rotations: \[0, 90\] .*0 and 180 only, .* 4x6 pixels"):
        prepare(DatasetParams(source="npz", path=path, rotations=[0, 90]), tmp_path)


def test_images_shrink_with_antialiasing_and_grow_smoothly(npz, tmp_path):
    stripes = np.zeros((1, 8, 8), np.uint8)
    stripes[:, :, ::2] = 200
    path = str(npz(**{f"x_{split}": stripes.repeat(n, 0) for split, n in SPLITS}))
    small = prepare(DatasetParams(source="npz", path=path, resize=2, pad=1), tmp_path / "small")
    assert small.input_shape == (1, 4, 4)  # resized, then padded
    assert (small.x_train[:, :, 1:-1, 1:-1].int() - 100).abs().max() <= 15  # without antialiasing: 0 or 200
    large = prepare(DatasetParams(source="npz", path=path, resize=16), tmp_path / "large")
    assert large.x_train[0, 0, 5, :4].tolist() == [200, 150, 50, 50]  # a quarter of the way between pixels
    assert small.mean == large.mean == (round(100 / 255, 6),)  # of the images as they were read


def test_color_images_are_resized_too(npz, tmp_path):
    x = {f"x_{split}": np.full((n, 4, 6, 3), [10, 20, 30], np.uint8) for split, n in SPLITS}
    data = prepare(DatasetParams(source="npz", path=str(npz(**x)), resize=5), tmp_path)
    assert data.input_shape == (3, 5, 5) and data.x_train[3, :, 2, 2].tolist() == [10, 20, 30]


def test_kept_labels_are_renumbered_in_their_order(tmp_path):
    whole, data = digits(tmp_path / "a"), digits(tmp_path / "b", keep_labels=[7, 2], train_limit=50)
    assert data.classes == ("7", "2") and data.num_classes == 2 and len(data.train) == 50
    assert len(data.test) == ((whole.y_test == 7) | (whole.y_test == 2)).sum()
    assert torch.equal(data.x_test[data.y_test == 0], whole.x_test[whole.y_test == 7])
    assert data.mean == whole.mean


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"keep_labels": [10]}, r"data.keep_labels: \[10\] .*labels 0..9 of digits"),
        ({"keep_labels": [-1]}, r"data.keep_labels\[0\]: -1 .*>= 0"),
        ({"keep_labels": [1, 1]}, r"data.keep_labels: \[1, 1\] .*every value once"),
        ({"rotations": [0, 45]}, r"data.rotations\[1\]: 45 .*one of 0, 180, 270, 90"),
        ({"rotations": [90, 90]}, r"data.rotations: \[90, 90\] .*every value once"),
        ({"resize": 0}, r"data.resize: 0 .*>= 1"),
    ],
)
def test_what_cannot_be_done_to_images_is_named(tmp_path, params, message):
    with refused(message):
        digits(tmp_path, **params)


@pytest.fixture
def arrays_in(npz: Callable, tmp_path: Path) -> Callable[..., Dataset]:
    """Prepares arrays that ``make(split, n)`` returns, as inputs and targets."""

    def write(make: Callable, **params: object) -> Dataset:
        changes = {}
        for split, n in SPLITS:
            changes[f"x_{split}"], changes[f"y_{split}"] = make(n)
        path = str(npz("other.npz", **changes))
        prepare(DatasetParams(source="npz", path=path, **params), tmp_path / "out")
        return load_prepared(tmp_path / "out", verify=True)

    return write


def features(n: int) -> tuple[np.ndarray, np.ndarray]:
    return np.random.default_rng(n).normal(size=(n, 2, 3)).astype(np.float32), np.arange(n) % 3


def test_features_are_kept_as_they_are(arrays_in):
    data = arrays_in(features, train_limit=12)
    assert data.input_shape == (2, 3) and data.num_classes == 3 and data.mean == data.std == ()
    assert data.x_train.dtype == torch.float32 and data.y_train.bincount().tolist() == [4, 4, 4]
    x = torch.from_numpy(features(12)[0])
    assert torch.equal(data.test.inputs(torch.tensor([[4], [0]])), x[[4, 0]][:, None])


def test_real_targets_have_no_classes(arrays_in):
    data = arrays_in(lambda n: (features(n)[0], np.linspace(0, 1, n, dtype=np.float32)), test_limit=5)
    assert data.classes == () and data.num_classes == 1 and len(data.test) == 5
    assert data.y_train.dtype == torch.float32 and data.train.targets(torch.tensor([29])).item() == 1


@pytest.mark.parametrize("size", [1, 2])
def test_real_targets_of_several_columns_are_kept(arrays_in, size):
    data = arrays_in(lambda n: (features(n)[0], features(n)[0][:, 0, :size]))
    assert data.y_train.shape == (30, size) and data.y_train.dtype == torch.float32 and not data.classes
    assert Samples.of(data).labels.dtype == np.float32


def test_tokens_and_the_next_ones_are_sequences_over_one_vocabulary(arrays_in):
    def text(n: int) -> tuple[np.ndarray, np.ndarray]:
        walk = np.arange(n * 5).reshape(n, 5) % 11
        return walk.astype(np.int32), (walk + 1).astype(np.int64)

    data = arrays_in(text, train_limit=7)
    assert data.x_train.dtype == torch.int32 and data.num_classes == 12 and data.classes[11] == "11"
    index = torch.tensor([[0, 3], [1, 2]])
    x, y = data.train.inputs(index), data.train.targets(index)
    assert x.dtype == y.dtype == torch.int64 and x.shape == y.shape == (2, 2, 5) and torch.equal(x + 1, y)
    one = arrays_in(lambda n: (text(n)[0], text(n)[1][:, -1]))  # the character after the window
    assert one.y_train.shape == (30,) and one.num_classes == 12


@pytest.mark.parametrize("field", ["pad", "channels", "resize", "rotations", "normalize"])
def test_what_is_for_images_is_refused_for_others(arrays_in, field):
    value = {"pad": 2, "channels": 3, "resize": 4, "rotations": [90], "normalize": "none"}[field]
    with refused(rf"data.{field}: .*its default: other holds features"):
        arrays_in(features, **{field: value})


def test_targets_without_classes_have_no_labels_to_keep(arrays_in):
    with refused(r"data.keep_labels: \[0\] .*an empty list: other has no class labels"):
        arrays_in(lambda n: (features(n)[0], np.zeros(n, np.float32)), keep_labels=[0])


TOKENS = np.zeros((30, 4), np.int32)


@pytest.mark.parametrize(
    ("x", "y", "message"),
    [
        (np.full((30, 2), np.nan, np.float32), None, "x_train holds values that are not finite"),
        (np.zeros(30, np.float32), None, r"x_train is float32 \[30\]; needs \[n, ...\]"),
        (np.zeros((30, 2, 2), np.int32), None, r"x_train is int32 \[30, 2, 2\]; needs \[n, L\]"),
        (TOKENS.astype(np.int64), None, "x_train is int64 .*; needs uint8 images, float32 features, int32"),
        (TOKENS - 1, None, "x_train must hold tokens 0..2; it holds -1"),
        (TOKENS, np.zeros((30, 3), int), r"y_train has the shape \[30, 3\], x_train \[30, 4\]"),
        (TOKENS, np.zeros((30, 4)), r"y_train is float64 \[30, 4\]; needs whole numbers \[n\], or \[n, L\]"),
        (None, np.full(30, np.inf, np.float32), "y_train holds values that are not finite"),
        (None, np.zeros(30, np.float32), "y_test is int64 .12., y_train float32 .30."),
        (np.zeros((30, 4, 4), np.float32), None, "x_test is uint8 .12, 4, 4.; needs uint8 images, float32"),
    ],
)
def test_other_arrays_must_fit_too(npz, tmp_path, x, y, message):
    changes = {name: array for name, array in (("x_train", x), ("y_train", y)) if array is not None}
    if x is not None and "x_test" not in message:
        changes["x_test"] = np.zeros_like(x[:12])
    path = npz(**changes)
    with refused(message, FedflowError):
        prepare(DatasetParams(source="npz", path=str(path)), tmp_path / "out")


@pytest.mark.parametrize("constants", [{"mean": [0.25], "std": [0.5]}, "none"])
def test_normalization_can_be_chosen(make, constants):
    pixels = make().x_train.double() / 255
    mean, std = (0.25, 0.5) if isinstance(constants, dict) else (0.0, 1.0)
    inputs = make("chosen", normalize=constants).train.inputs(torch.arange(30), torch.float64)
    torch.testing.assert_close(inputs, (pixels - mean) / std, atol=1e-6, rtol=0)


def test_the_constants_of_the_source_are_the_default(tmp_path):
    default, named = (
        prepare(DatasetParams.parse({"source": "mnist5k", "train_limit": 20} | more), tmp_path / "out")
        for more in ({}, {"normalize": "source"})
    )
    assert default.mean == (0.1307,) and default.hash == named.hash


def test_constants_of_the_kept_images_are_not_those_of_all(make):
    """FedDyn's EMNIST-L: the mean of the ten letters that are kept. Borders and repeats do not count."""
    every, kept = (make(name, normalize=name, keep_labels=[2], pad=1) for name in ("source", "train"))
    assert torch.equal(every.x_train, kept.x_train) and every.hash != kept.hash
    pixels = kept.x_train[:, :, 1:-1, 1:-1].double() / 255
    assert kept.mean == pytest.approx([pixels.mean().item()], abs=1e-6)
    assert kept.std == pytest.approx([pixels.std(correction=0).item()], abs=1e-6)


def test_parts_of_a_mix_are_normalized_as_they_say_or_all_as_the_mix_says(tmp_path):
    own = {"source": "digits", "normalize": "none", "resize": 28}
    mix = {"source": "mix", "parts": [own, {"source": "mnist5k", "train_limit": 20}]}
    data = prepare(DatasetParams.parse(mix), tmp_path / "parts")
    assert data.mean == ((0.0,), (0.1307,)) and data.std == ((1.0,), (0.3081,))
    data = prepare(DatasetParams.parse(mix | {"normalize": "none"}), tmp_path / "all")
    assert (data.mean, data.std) == ((0.0,), (1.0,)) and not data.by_domain


@pytest.mark.parametrize(
    ("normalize", "message"),
    [
        ("mnist", r"data.normalize: 'mnist' .* one of source, train, none, or a mapping of mean and std"),
        ({"mean": [0.5]}, r"data.normalize.std: missing; expected a list, each item a number > 0"),
        ({"mean": [0.5], "std": [0]}, r"data.normalize.std\[0\]: 0.0"),
        ({"mean": [0.5] * 3, "std": [0.5] * 3}, r"data.normalize: .* 1 numbers each in mean and std"),
    ],
)
def test_constants_that_cannot_be_are_refused(make, normalize, message):
    with refused(message):
        make(normalize=normalize)
