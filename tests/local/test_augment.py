"""Random views of training images: by hand, in a run, and where they do not apply."""

from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from support import Workers, images, one_client, prepare_run, quadratics, refused, run, same
from torch import Tensor

from fedflow.data import Dataset
from fedflow.local.drawing import draw_schedule
from fedflow.local.extensions.augmentation import CUTOUT, FINE, augmented, cutout, draw_views, flip_crop
from fedflow.local.local_training import LocalTraining
from fedflow.local.samples import Batch
from fedflow.local.trainer import Trainer
from fedflow.simulation.federation import Federation

AUGMENTED = {"augment": "flip_crop"}
SGD: dict[str, Any] = {"epochs": 2, "batch_size": 8, "lr": 0.1, "momentum": 0.5} | AUGMENTED
HALF: dict[str, Any] = {"training": SGD, "participation": 0.5, "rounds": 2}


@pytest.fixture(scope="module")
def federation(digits: Dataset) -> Federation:
    return images(digits, (12, 7, 20, 33, 13, 5))


def by_numpy(image: np.ndarray, view: np.ndarray) -> np.ndarray:
    """As FedDyn's code: flip, then cut the image's size out of the padded image."""
    flip, dy, dx = (int(v) for v in view)
    height, width = image.shape[1:]
    padded = np.pad(image[:, :, ::-1] if flip else image, ((0, 0), (4, 4), (4, 4)))
    return padded[:, dy : dy + height, dx : dx + width]


@pytest.mark.parametrize("shape", [(3, 32, 32), (1, 28, 28), (2, 5, 9), (1, 1, 3)])
def test_views_are_those_of_plain_numpy(shape: tuple[int, ...]) -> None:
    rng = np.random.default_rng(0)
    x, views = rng.normal(size=(200, *shape)), draw_views(rng, (200,))
    made = flip_crop(torch.from_numpy(x), views).numpy()
    np.testing.assert_array_equal(made, [by_numpy(*each) for each in zip(x, views.numpy())])
    assert not np.array_equal(made, x)


def test_a_view_by_hand() -> None:
    """Mirrored, then moved two to the right and one up; nothing leaks from outside the image."""
    x = torch.tensor([[1.0, 2, 3], [4, 5, 6], [7, 8, torch.nan]])[None, None]
    (made,) = flip_crop(x, torch.tensor([[1, 5, 2]], dtype=torch.uint8))
    assert made.tolist() == [[[0, 0, 6], [0, 0, pytest.approx(torch.nan, nan_ok=True)], [0, 0, 0]]]


def test_half_are_mirrored_half_are_cropped_at_any_offset() -> None:
    views = draw_views(np.random.default_rng(0), (100, 1000)).reshape(-1, 3)
    flip, crop = views[:, 0].double(), views[:, 1:]
    still = (crop == 4).all(1)
    assert flip.unique().tolist() == [0, 1]
    assert float(flip.mean()) == pytest.approx(1 / 2, abs=0.007)  # 4 standard deviations
    assert float(still.double().mean()) == pytest.approx(1 / 2 + 1 / 162, abs=0.007)
    assert float(flip[still].mean()) == pytest.approx(1 / 2, abs=0.01)
    counts = torch.bincount(crop[:, 0].long() * 9 + crop[:, 1], minlength=81)
    moved = counts[torch.arange(81) != 40].double()
    assert (moved - 1e5 / 162).abs().max() < 4.5 * (1e5 / 162) ** 0.5


def holes_by_numpy(image: np.ndarray, center: np.ndarray) -> np.ndarray:
    """As the authors' code of Cutout: the square around a pixel, cut at the borders."""
    height, width = image.shape[1:]
    y, x = (int(c * side) >> 15 for c, side in zip(center.tolist(), (height, width)))
    mask = np.ones((height, width))
    mask[max(0, y - 8) : y + 8, max(0, x - 8) : x + 8] = 0
    return image * mask


@pytest.mark.parametrize("shape", [(3, 32, 32), (1, 28, 28), (2, 20, 41)])
def test_cutout_is_that_of_plain_numpy_after_the_crop(shape: tuple[int, ...]) -> None:
    rng = np.random.default_rng(0)
    x, views = rng.normal(size=(200, *shape)), draw_views(rng, (200,), cutout=True)
    made = augmented(torch.from_numpy(x), views).numpy()
    expected = [holes_by_numpy(by_numpy(image, view[:3]), view[3:]) for image, view in zip(x, views.numpy())]
    np.testing.assert_array_equal(made, expected)


def test_cutout_hides_a_fifth_of_an_image_on_average() -> None:
    """Over all centers of 32x32 pixels: 14 of 32 rows and columns, and nothing of nan leaks."""
    at = torch.arange(32) * (FINE // 32)
    centers = torch.cartesian_prod(at, at).to(torch.int16)
    made = cutout(torch.full((1024, 1, 32, 32), torch.nan), centers)
    assert float((made == 0).double().mean()) == (14 / 32) ** 2
    assert int((made == 0).sum((1, 2, 3)).max()) == CUTOUT**2
    drawn = draw_views(np.random.default_rng(0), (100_000,), cutout=True)
    rows = torch.bincount(drawn[:, 3].long() * 32 // FINE, minlength=32).double()
    assert drawn.dtype == torch.int16 and (rows - 3125).abs().max() < 4.5 * 3125**0.5


def test_the_batches_stay_and_views_have_their_own_key() -> None:
    plain, training = LocalTraining(batch_size=5, epochs=3), LocalTraining.parse(SGD | {"batch_size": 5})
    key: dict[str, Any] = {"seed": 0, "stream": "batches", "round": 1, "client": 2}
    drawn = draw_schedule(training, 13, 3, **key)
    assert torch.equal(drawn.positions, draw_schedule(plain, 13, 3, **key).positions)
    views = drawn.extra["views"].values
    assert views.shape == (9, 5, 1, 3)
    late = draw_schedule(training, 13, 2, **key)
    assert torch.equal(late.extra["views"].values, views[:6])  # a straggler's are the first of them
    others = [
        draw_schedule(training, 13, 3, **key | change).extra["views"].values
        for change in ({}, {"seed": 1}, {"stream": "tune"}, {"round": 2}, {"client": 3})
    ]
    assert [torch.equal(views, other) for other in others] == [True, *[False] * 4]


@pytest.mark.parametrize("kind", ["held", "gathered"])
def test_a_step_sees_the_views_of_its_batch(
    federation: Federation, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if kind == "gathered":  # as for more images than are kept normalized
        monkeypatch.setattr("fedflow.local.trainer.HELD", 0)
    ours, seen = one_client(federation, 0, LocalTraining.parse(SGD)), []

    def step(now: tuple[Tensor], batch: Batch) -> tuple[tuple[Tensor], Tensor]:
        seen.append(batch)
        return now, torch.zeros(())

    ours.run_steps(step, (torch.zeros(()),))
    assert [len(batch.x) for batch in seen] == [8, 4] * 2
    x = federation.train.x[torch.as_tensor(federation.partition.train(0))]
    for batch, (rows, _, extra) in zip(
        seen, draw_schedule(ours.training, 12, 2, 0, "batches", 1, 0).batches()
    ):
        assert torch.equal(batch.positions, rows) and "other" not in batch.extra
        assert torch.equal(batch.x, flip_crop(x[rows], extra["views"][:, 0]))


@pytest.mark.parametrize("method", ["fedavg", "scaffold", "ditto", "perfedavg", "fedrep", "ifca"])
def test_loop_agrees_with_vmap_for_stragglers_too(federation: Federation, method: str, cohort: str) -> None:
    """Several streams, and ragged clients of which half train fewer epochs."""
    late = HALF | {"training": SGD | {"stragglers": 0.5}, "fine_tune": True, "participation": 1.0}
    here, loop = (run(method, federation, cohort=how, **late) for how in (cohort, "loop"))
    torch.testing.assert_close(here.state(), loop.state(), rtol=0, atol=1e-5)
    plain = run(method, federation, **late | {"training": late["training"] | {"augment": "none"}})
    assert not same(plain.state(), loop.state())


def test_workers_and_a_resume_do_not_change_a_bit(federation: Federation, tmp_path: Any) -> None:
    alone = run("fedavg", federation, **HALF, fine_tune=True)
    assert same(run("fedavg", federation, **HALF, executor=Workers(3)).state(), alone.state())
    kept = partial(prepare_run, "fedavg", federation, **HALF, checkpoints=tmp_path, checkpoint_every=1)
    next(kept().rounds())
    resumed = kept()
    list(resumed.rounds())
    assert torch.equal(resumed.state.server.model, alone.servers[-1]["model"])


def test_losses_full_gradients_and_scores_see_the_images_as_they_are(federation: Federation) -> None:
    w = federation.model.init(0)
    plain, augmented = (
        one_client(federation, 2, LocalTraining.parse(SGD | {"augment": kind}))
        for kind in ("none", "flip_crop")
    )
    for what in ("losses", "full_loss", "full_gradient", "full_step"):
        assert torch.equal(getattr(plain, what)(w), getattr(augmented, what)(w))
    assert not torch.equal(plain.fit(start=w), augmented.fit(start=w))


def test_fine_tuning_is_training(federation: Federation) -> None:
    """A run whose global model does not move: scores differ only after fine-tuning."""
    plain, views = (
        run("fedavg", federation, {"server_lr": 1e-30}, training=SGD | {"augment": kind}, fine_tune=True)
        .outcome()
        .scores
        for kind in ("none", "flip_crop")
    )
    for name in ("local_loss", "local_accuracy", "global_accuracy"):
        assert np.array_equal(getattr(plain, name), getattr(views, name))
    assert not np.array_equal(plain.more["tuned_accuracy"], views.more["tuned_accuracy"])


def test_a_server_trains_on_views_too(digits: Dataset, federation: Federation) -> None:
    """Of uint8 images; the order is that of plain training."""
    seen: dict[str, list[Batch]] = {"none": [], "flip_crop": []}
    for kind, batches in seen.items():
        training = LocalTraining.parse(SGD | {"batch_size": 100, "epochs": 1, "augment": kind})
        trainer = Trainer.central(federation.model, digits.test, training, np.random.default_rng(0))

        def step(now: tuple, batch: Batch, batches: list[Batch] = batches) -> tuple[tuple, Tensor]:
            batches.append(batch)
            return now, torch.zeros(())

        trainer.run_steps(step, ())
    plain, views = seen.values()
    assert [len(batch.x) for batch in views] == [100, 100, 100, 59]
    assert all(torch.equal(one.y, other.y) for one, other in zip(plain, views))
    rng = np.random.default_rng(0)
    rng.permutation(359)
    drawn = draw_views(rng, (4, 100))
    assert all(torch.equal(b.x, flip_crop(a.x, v[: len(a.x)])) for a, b, v in zip(plain, views, drawn))


def test_no_step_looks_at_values(federation: Federation) -> None:
    """As a captured graph needs it: shapes alone are enough."""
    x, views = torch.empty(7, 3, 8, 8, device="meta"), torch.empty(7, 5, dtype=torch.int16, device="meta")
    assert augmented(x, views).shape == augmented(x, views[:, :3]).shape == x.shape


def test_what_cannot_be_augmented_is_refused(federation: Federation) -> None:
    with refused(r"training.augment: 'flip_crop' .* none, as inputs of shape \[2\] are not images"):
        prepare_run("fedavg", quadratics(), training=AUGMENTED)
    flat = quadratics()
    with refused(r"training.augment: .* inputs of shape \[2\] are not images"):
        Trainer.central(flat.model, flat.train, LocalTraining.parse(AUGMENTED), np.random.default_rng(0))
    for method, hyper in (("fedsgd", {}), ("qfedsgd", {}), ("ifca", {"averaging": "gradient"})):
        with refused(f"training.augment: 'flip_crop' .* none with {method}, which trains on full gradients"):
            prepare_run(method, federation, hyper, training=AUGMENTED)
    with refused("training.augment: 'flip_crop_cutout' .* none or flip_crop, as Cutout can hide .* of 8x8"):
        prepare_run("fedavg", federation, training={"augment": "flip_crop_cutout"})
    with refused(r"training.augment: 'cutout' .* one of flip_crop, flip_crop_cutout, none"):
        LocalTraining.parse({"augment": "cutout"})
