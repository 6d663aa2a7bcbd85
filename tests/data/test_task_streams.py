"""S-MNIST and the stream of prototypes: every image is that of a plain implementation."""

import numpy as np
import pytest
from PIL import Image
from support import refused

from fedflow.data import SOURCES, DatasetParams, prepare
from fedflow.data.files import SPLITS, RawData
from fedflow.data.smnist import EDGE, SMNISTOptions, scaled, shifted, smnist, turned
from fedflow.data.synthetic import PrototypesOptions, prototypes
from fedflow.partition import PartitionParams, Samples, make_partition


def digits(count: int = 60, seed: int = 0) -> RawData:
    """Random blurred images of ten classes, each different from all others."""
    rng = np.random.default_rng(seed)
    x = rng.integers(0, 256, (count, 7, 7)).repeat(4, 1).repeat(4, 2).astype(np.uint8)
    y = np.arange(count) % 10
    return RawData(x, y, x[: count // 3], y[: count // 3], tuple("0123456789"))


def plain(image: np.ndarray, turn: int, flip: int, small: int, shift: int) -> np.ndarray:
    """One image, transformed as the specification reads."""
    image = np.rot90(image, turn)
    image = (image, np.fliplr(image), np.flipud(image))[flip]
    if small:
        edge = np.concatenate([image[0], image[-1], image[1:-1, 0], image[1:-1, -1]]).astype(float)
        assert edge.size == 108
        half = Image.fromarray(image[1:27, 1:27].astype(np.float32)).resize(
            (13, 13), Image.Resampling.BICUBIC
        )
        image = np.full((28, 28), edge.mean())
        image[7:20, 7:20] = np.asarray(half)
        image = np.clip(np.rint(image), 0, 255)
    moved = np.full((28, 28), EDGE)
    for i in range(28):
        for j in range(28):
            down, right = ((0, 0), (4, 0), (-4, 0), (0, 4), (0, -4))[shift]
            if 0 <= i + down < 28 and 0 <= j + right < 28:
                moved[i + down, j + right] = image[i, j]
    return moved


def test_every_combination_of_transformations_is_that_of_a_plain_implementation():
    how = np.array(list(np.ndindex(4, 3, 2, 5)))
    x = digits(len(how)).x_train
    turn, flip, small, shift = how.T
    made = shifted(scaled(turned(x, turn, flip), small == 1), shift)
    expected = np.array([plain(image, *each) for image, each in zip(x, how)])
    # Where bicubic values are next to one half, the rounding of the two may differ.
    off = np.abs(made.astype(int) - expected)
    assert made.dtype == np.uint8 and off.max() <= 1 and (off > 0).mean() < 1e-3
    assert not off[small == 0].any()


def test_a_task_transforms_a_class_alike_in_training_and_test_and_classes_differ():
    raw = digits()
    made = smnist(raw, SMNISTOptions(tasks=4, train=12, test=4))
    how = np.array(list(np.ndindex(4, 3, 2, 5)))
    known: dict[bytes, set[int]] = {}  # the combinations that give an image
    for place, (turn, flip, small, shift) in enumerate(how):
        of = [np.full(len(raw.x_train), value) for value in (turn, flip, small == 1, shift)]
        for image in shifted(scaled(turned(raw.x_train, *of[:2]), of[2]), of[3]):
            known.setdefault(image.tobytes(), set()).add(place)
    fits: dict[tuple[int, int], set[int]] = {}
    for split in SPLITS:
        x, y, task = made_of(made, split)
        for image, label, t in zip(x, y.tolist(), task.tolist()):
            fits[t, label] = fits.get((t, label), set(range(len(how)))) & known[image.tobytes()]
    assert all(fits.values())  # one combination explains all images of a class in a task
    assert len({min(places) for places in fits.values()}) > 15


def made_of(made: RawData, split: str) -> tuple[np.ndarray, ...]:
    return getattr(made, f"x_{split}"), getattr(made, f"y_{split}"), getattr(made.columns["task"], split)


def test_images_are_used_once_and_more_tasks_only_add_tasks():
    raw = digits(600)
    few, many = (smnist(raw, SMNISTOptions(tasks=tasks, train=12, test=4)) for tasks in (10, 50))
    assert np.array_equal(few.x_train, many.x_train[:120]) and np.array_equal(few.x_test, many.x_test[:40])
    assert np.bincount(many.y_train).tolist() == [60] * 10  # all of them
    other = smnist(raw, SMNISTOptions(tasks=10, train=12, test=4, seed=1))
    assert not np.array_equal(few.x_train, other.x_train)


def test_a_task_is_a_client_with_its_own_test_samples(tmp_path):
    raw = digits(120)
    arrays = {f"{what}_{split}": getattr(raw, f"{what}_{split}") for what in "xy" for split in SPLITS}
    np.savez(tmp_path / "mnist.npz", **arrays)
    params = DatasetParams.parse({"source": "smnist", "tasks": 10, "train": 12, "test": 4})
    assert params.files(tmp_path) == {"data root: mnist": tmp_path / "mnist.npz"}
    data = prepare(params, tmp_path / "out", tmp_path)
    assert data.input_shape == (1, 28, 28) and data.mean == SOURCES["mnist"].mean
    entry = {"dataset": "d", "scheme": "natural", "column": "task"}
    made = make_partition(PartitionParams.parse(entry), Samples.of(data))
    assert made.sizes.tolist() == [12] * 10
    for k in range(10):
        assert (data.columns["task"].train[made.train(k)] == k).all()
        assert made.test(k).tolist() == list(range(4 * k, 4 * k + 4))


def test_more_tasks_than_there_are_images_for_are_refused():
    with refused(r"data.tasks: 6 .* at most 5, with 12 training and 4 test images of mnist each"):
        smnist(digits(), SMNISTOptions(tasks=6, train=12, test=4))


def test_prototypes_are_turned_by_task_and_class():
    options = PrototypesOptions(tasks=6, noise=0.0, train=10, test=20)
    raw = prototypes(options)
    x, y, task = raw.x_train[:, 0], raw.y_train, raw.columns["task"].train
    assert raw.x_train.shape == (60, 1, 12, 12) and np.bincount(task).tolist() == [10] * 6
    turns = [np.rot90(image, k) for image in x[:10] for k in range(4)]
    known = np.array([t.T if flip else t for t in turns for flip in (False, True)]).reshape(10, 8, 144)
    for image, label in zip(x, y):  # the eight symmetries of a square
        assert (known[label] == image.ravel()).all(1).any()
    assert not np.array_equal(x[:10], x[10:20])
    assert np.array_equal(raw.x_test[:10], raw.x_test[10:20]) and np.array_equal(
        raw.x_test[:10], raw.x_train[:10]
    )
    noisy = prototypes(PrototypesOptions(tasks=6, noise=2.5, train=10, test=20))
    assert (noisy.x_train - raw.x_train).std() == pytest.approx(2.5, rel=0.03)
