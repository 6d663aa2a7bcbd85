import numpy as np
import pytest
import torch

from fedflow.data import Examples

MEAN, STD = (0.5, 0.4, 0.3), (0.2, 0.25, 0.5)


@pytest.fixture
def images() -> Examples:
    generator = torch.Generator().manual_seed(0)
    x = torch.randint(0, 256, (20, 3, 5, 4), dtype=torch.uint8, generator=generator)
    return Examples(x, torch.arange(20) % 7, MEAN, STD)


def expected(images: Examples, index: torch.Tensor) -> torch.Tensor:
    mean, std = (torch.tensor(v, dtype=torch.float64).view(3, 1, 1) for v in (MEAN, STD))
    return (images.x[index].double() / 255 - mean) / std


@pytest.mark.parametrize("shape", [(), (6,), (2, 3), (2, 3, 1), (0,)])
def test_inputs_are_normalized_for_an_index_of_any_shape(images, shape):
    index = torch.arange(torch.Size(shape).numel()).reshape(shape)
    x = images.inputs(index)
    assert x.shape == (*shape, 3, 5, 4) and x.dtype == torch.float32
    # float32 of values up to 3: a few units of 2**-22
    torch.testing.assert_close(x.double(), expected(images, index), atol=2e-6, rtol=0)
    assert torch.equal(images.targets(index), index % 7)


def test_the_images_stay_uint8(images):
    images.inputs(torch.tensor([1, 2]))
    assert images.x.dtype == torch.uint8 and len(images) == 20 and images.device.type == "cpu"


def test_vmap_over_clients_equals_one_gather(images):
    index = torch.tensor([[0, 5, 19], [3, 3, 1]])  # [C, n]
    assert torch.equal(torch.func.vmap(images.inputs)(index), images.inputs(index))
    assert torch.equal(torch.func.vmap(images.targets)(index), images.targets(index))


def test_images_without_constants_are_scaled_to_one():
    x = torch.tensor([0, 51, 255], dtype=torch.uint8).view(3, 1, 1, 1)
    values = Examples(x, torch.zeros(3, dtype=torch.int64)).inputs(torch.arange(3)).flatten()
    torch.testing.assert_close(values, torch.tensor([0.0, 0.2, 1.0]))


@pytest.fixture
def domains(images: Examples) -> Examples:
    """The same images in three domains, each with its own constants."""
    mean, std = [MEAN, (0.1, 0.2, 0.3), (0.0, 0.0, 0.0)], [STD, (0.5, 0.5, 0.5), (1.0, 1.0, 1.0)]
    return Examples(images.x, images.y, mean, std, torch.arange(20) % 3)


@pytest.mark.parametrize("shape", [(), (6,), (2, 3), (0,)])
def test_each_image_is_normalized_by_its_domain(domains, shape):
    index = torch.arange(torch.Size(shape).numel()).reshape(shape)
    x, alone = domains.inputs(index), torch.empty(*shape, 3, 5, 4)
    for d in range(3):
        one = Examples(domains.x, domains.y, domains.mean[d], domains.std[d])
        alone[index % 3 == d] = one.inputs(index)[index % 3 == d]
    assert torch.equal(x, alone) and x.shape == (*shape, 3, 5, 4)


def test_domains_work_under_vmap_and_stay_with_their_images(domains):
    index = torch.tensor([[0, 5, 19], [3, 4, 1]])  # [C, n]
    assert torch.equal(torch.func.vmap(domains.inputs)(index), domains.inputs(index))
    other = domains.relabeled(np.zeros(20, np.int64))
    assert torch.equal(other.inputs(index), domains.inputs(index)) and other.y.sum() == 0
    moved = domains.to("meta")
    assert moved.domain.device == moved.x.device == torch.device("meta")


def test_tokens_are_unchanged_and_targets_may_be_sequences():
    x = torch.arange(12, dtype=torch.int32).view(4, 3)
    tokens = Examples(x, x.long() + 1)
    index = torch.tensor([[3], [1]])
    assert tokens.inputs(index, torch.float64).dtype == torch.int64
    assert torch.equal(tokens.inputs(index), x[[3, 1]].long().view(2, 1, 3))
    assert torch.equal(tokens.targets(index), tokens.inputs(index) + 1)
    assert torch.equal(torch.func.vmap(tokens.targets)(index), tokens.targets(index))


@pytest.mark.parametrize(
    ("x", "domain", "mean"),
    [
        ((3, 3, 2, 2), [0, 1, 2], [MEAN, MEAN]),
        ((3, 3, 2, 2), [0, -1, 1], [MEAN, MEAN]),
        ((3, 3, 2, 2), [0, 1], [MEAN, MEAN]),
        ((3, 3, 2, 2), [0, 0, 0], MEAN),
    ],
)
def test_domains_that_do_not_fit_are_refused(x, domain, mean):
    images = torch.zeros(x, dtype=torch.uint8)
    with pytest.raises(ValueError, match="its row of mean and std"):
        Examples(images, torch.zeros(3), mean, mean, torch.tensor(domain))
    with pytest.raises(ValueError, match="only images have a domain"):
        Examples(images.float(), torch.zeros(3), domain=torch.zeros(3, dtype=torch.int64))


@pytest.mark.parametrize(("dtype", "error"), [(torch.float64, 1e-6), (torch.bfloat16, 2**-8 * 4)])
def test_inputs_come_in_the_wanted_type(images, dtype, error):
    x = images.inputs(torch.arange(20), dtype)
    assert x.dtype == dtype
    torch.testing.assert_close(x.double(), expected(images, torch.arange(20)), atol=error, rtol=0)


def test_float_features_are_left_as_they_are():
    x, y = torch.randn(6, 2, dtype=torch.float64), torch.randn(6)
    examples = Examples(x, y)
    assert torch.equal(examples.inputs(torch.tensor([4, 0])), x[[4, 0]].float())
    assert torch.equal(examples.targets(torch.tensor([[4], [0]])), y[[4, 0]].view(2, 1))


def test_moving_to_the_same_device_changes_nothing(images):
    assert images.to("cpu") is images


@pytest.mark.parametrize(
    ("x", "n", "mean", "words"),
    [
        (torch.zeros(3, 1, 2, 2, dtype=torch.uint8), 4, None, "3 inputs and 4 targets"),
        (torch.zeros(3, 4, dtype=torch.uint8), 3, None, "must be images"),
        (torch.zeros(3, 2, 2, 2, dtype=torch.uint8), 3, (0.1, 0.2, 0.3), "one value per channel"),
        (torch.zeros(3, 4, dtype=torch.bool), 3, None, "float features"),
    ],
)
def test_parts_that_do_not_fit_are_refused(x, n, mean, words):
    with pytest.raises(ValueError, match=words):
        Examples(x, torch.zeros(n), mean)
