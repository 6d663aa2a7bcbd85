import copy
import pickle
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial

import pytest
import torch
from support import Normed, images, one_client, quadratics, refused, run
from torch import Tensor, nn

from fedflow.data import Dataset
from fedflow.local.local_training import LocalTraining
from fedflow.models import ARCHITECTURES, build
from fedflow.models.flat import FlatModel
from fedflow.simulation.federation import Federation

PUBLISHED = {  # parameters, on the inputs that the papers counted them on
    "lenet5": 62_006, "lenet5_bn": 62_050, "resnet9": 6_621_540, "resnet9_bn": 5_054_784,
    "logistic": 7_850, "mlp": 159_010,
    "mlp_feddyn": 199_210, "twonn": 238_800, "cnn": 582_026, "cnn_mcmahan": 1_663_370, "cnn_leaf": 6_603_710,
    "cnn_feddyn": 797_962, "cnn_mnist": 21_840, "cnn_mnist_bn": 21_900, "simple_cnn": 1_626_442,
    "cnn_pfl": 1_626_442, "twocnn": 722_800, "vgg9": 1_718_416, "mobilenet": 364_480,
    "cnn_miniimagenet": 1_505_197, "cnn_5conv": 249_349,
    "resnet10": 4_979_914, "cnn_energy": 9_930,
    "resnet34_bn": 21_328_292, "resnet18_bn": 11_220_132, "resnet10_bn": 4_949_412, "resnet10_l": 1_252_100,
    "resnet10_m": 320_436, "resnet10_s": 83_852, "resnet10_xs": 27_884, "resnet10_xxs": 13_020,
    "resnet32x4": 7_433_860, "wrn40_2": 2_255_604, "resnet8x4": 1_233_540, "shufflenet_v2": 1_355_528,
    "wrn16_2": 703_732, "wrn40_1": 569_972, "mobilenet_v2": 2_353_060,
    "resnet18_gn": 11_181_642, "preact_resnet18_gn": 11_218_340, "preact_resnet34_gn": 21_326_500,
    "preact_resnet18_exit": 11_172_437, "cnn_exit": 114_613,
    "cnn_gn": 159_140, "logistic_one_logit": 16, "celeba_cnn": 29_569, "m5": 150_819,
    "mobilevit": 1_120_640, "vit": 141_130, "char_transformer": 82_128,
    "char_lstm": 815_744, "char_lstm_feddyn": 133_520, "stacked_lstm": 5_565_328, "linear": 1_001,
}  # fmt: skip


def flat(
    network: str = "lenet5_bn", shape: tuple = (1, 28, 28), classes: int = 10, **options: object
) -> FlatModel:
    return FlatModel(partial(build, network, shape, classes, **options))


@pytest.fixture(scope="module")
def normed(padded: Dataset) -> Federation:
    """Three clients of 5, 12 and 9 images, and a network with BatchNorm."""
    return images(padded, (5, 12, 9), "lenet5_bn")


@pytest.mark.parametrize("network", ARCHITECTURES)
def test_networks_have_the_published_number_of_parameters(network):
    entry = ARCHITECTURES[network]
    assert flat(network, entry.shape, entry.classes).parameters == PUBLISHED[network]


@pytest.mark.parametrize(("ways", "parameters"), [(5, 796_997), (4, 796_804), (3, 796_611)])
def test_the_cnn_of_moml_has_the_published_number_of_parameters_for_each_number_of_ways(ways, parameters):
    assert flat("cnn_feddyn", (3, 32, 32), ways).parameters == parameters


def test_the_vector_holds_parameters_then_buffers():
    model = flat()
    assert (model.parameters, model.buffers, model.size) == (44_470, 2 * (6 + 16), 44_514)
    names = list(model.slices)
    buffers = [name for name in names if model.slices[name].start >= model.parameters]
    assert buffers == [f"norm{i}.running_{of}" for i in (1, 2) for of in ("mean", "var")]
    starts, ends = ([getattr(model.slices[name], end) for name in names] for end in ("start", "stop"))
    assert [*starts, model.size] == [0, *ends]


def test_slices_and_views_are_places_in_the_vector():
    model = flat()
    w = torch.arange(model.size, dtype=torch.float32)
    for name, view in model.views(w).items():
        assert torch.equal(view.reshape(-1), w[model.slices[name]])
        assert view.data_ptr() == w[model.slices[name]].data_ptr()
    assert model.views(w)["conv2.weight"].shape == (16, 6, 5, 5)


def test_modules_and_vectors_are_two_forms_of_the_same():
    model = flat()
    w = torch.rand(model.size)
    module = model.to_module(w)
    assert torch.equal(model.from_module(module), w)
    assert not module.training
    x = torch.rand(4, 1, 28, 28)
    assert torch.equal(module(x), model.outputs(w, x))
    with torch.no_grad():
        module.fc3.bias += 1
    assert torch.equal(model.from_module(model.to_module(w)), w)  # a module does not share its memory


def test_gradients_through_the_vector_are_those_of_the_module():
    model = flat("lenet5")
    w, x, y = model.init(0), torch.rand(6, 1, 28, 28), torch.arange(6)
    leaf = w.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(model.loss(model.train_outputs(leaf, x)[0], y), leaf)
    module = model.to_module(w).train()
    nn.functional.cross_entropy(module(x), y).backward()
    expected = torch.cat([p.grad.reshape(-1) for p in module.parameters()])
    torch.testing.assert_close(gradient, expected, rtol=0, atol=1e-7)


def test_equal_seeds_give_equal_initial_models():
    model = flat()
    torch.manual_seed(5)
    before = torch.get_rng_state()
    assert torch.equal(model.init(1), flat().init(1))
    assert not torch.equal(model.init(1), model.init(2))
    assert torch.equal(torch.get_rng_state(), before)  # nobody else's random numbers are touched
    torch.manual_seed(1)
    assert torch.equal(model.init(1), model.from_module(build("lenet5_bn", (1, 28, 28), 10)))


def test_a_model_travels_as_its_recipe():
    model = flat("mlp", hidden=(3,))
    traveled = pickle.loads(pickle.dumps(model))  # noqa: S301
    assert (traveled.names, traveled.architecture) == (model.names, model.architecture)
    assert copy.deepcopy(model) is model


def test_a_part_and_the_rest_join_to_the_whole():
    model = flat()
    w = torch.arange(model.size)
    part = model.part("conv*", "norm1.*", "fc3.bias")
    assert torch.equal(part.join(part.of(w), part.outside(w)), w)
    assert torch.equal(w[part.mask], part.of(w))
    assert len(part.of(w)) + len(part.outside(w)) == model.size
    assert part.mask[model.slices["norm1.running_mean"]].all()  # buffers stand in their layer
    assert not part.mask[model.slices["norm2.running_mean"]].any()


@pytest.mark.parametrize(
    ("network", "names"),
    [
        ("lenet5", {"fc3.weight", "fc3.bias"}),
        ("mlp", {"layers.last.weight", "layers.last.bias"}),
        ("cnn", {"classifier.weight", "classifier.bias"}),
        ("twonn", {"layers.5.weight", "layers.last.weight"}),
    ],
)
def test_the_head_is_the_last_layer_or_the_last_layers(network, names):
    model = flat(network)
    assert {name for name, at in model.slices.items() if model.head().mask[at].all()} == names
    assert len(model.head().index) == sum(model.slices[n].stop - model.slices[n].start for n in names)


def test_no_pattern_is_an_empty_part_and_a_wrong_one_an_error():
    model = flat("mlp", hidden=(3,))
    w = torch.rand(model.size)
    assert torch.equal(model.part().outside(w), w)
    with refused(r"'fc3\.\*' is not accepted; expected .*layers\.last\.weight"):
        model.part("fc3.*")


def test_buffers_follow_batch_norm_itself(normed):
    model, w, x = normed.model, normed.model.init(0), normed.train.x[:9]
    outputs, stats = model.train_outputs(w, x)
    module = model.to_module(w).train()
    assert torch.equal(module(x), outputs)
    assert stats is not None
    assert torch.equal(model.from_module(module)[model.parameters :], stats)
    assert torch.equal(w, model.init(0))  # the vector that was passed in is left alone


def test_gradients_do_not_touch_buffers(normed):
    model = normed.model
    gradient = one_client(normed, 1).full_gradient(model.init(0))
    assert not gradient[model.parameters :].any() and gradient[: model.parameters].any()


def test_neither_weight_decay_nor_proximal_terms_touch_buffers(normed):
    model, w = normed.model, normed.model.init(0)
    plain, decayed = (
        one_client(normed, 1, LocalTraining(lr=0.1, batch_size=0, weight_decay=decay)).fit(start=w)
        for decay in (0, 0.5)
    )
    assert torch.equal(plain[model.parameters :], decayed[model.parameters :])
    assert not torch.equal(plain, decayed)


def test_control_variates_have_no_buffers(normed):
    ran = run("scaffold", normed, training={"batch_size": 4}, rounds=2)
    for c in (ran.servers[-1]["c"], *ran.clients[-1]["c"]):
        assert not c[normed.model.parameters :].any()


def test_evaluation_uses_the_buffers_it_is_given(normed):
    model, w, x = normed.model, normed.model.init(0), normed.test.x[:5]
    other = w.clone()
    other[model.slices["norm1.running_mean"]] += 1
    assert not torch.equal(model.outputs(w, x), model.outputs(other, x))
    alone = torch.cat([model.outputs(w, image) for image in x.split(1)])  # not those of the batch
    torch.testing.assert_close(model.outputs(w, x), alone, rtol=0, atol=1e-6)


@pytest.mark.parametrize(("sizes", "batch"), [((9, 12), 4), ((1, 12), 4), ((513, 12), 0)])
def test_a_batch_of_one_sample_is_no_obstacle(digits, sizes, batch):
    """The last of nine in batches of four, an only sample, the last of a gradient in chunks of 512."""
    federation = replace(images(digits, sizes), model=FlatModel(Normed))
    method, training = ("fedavg" if batch else "fedsgd"), {"batch_size": batch, "epochs": 1}
    ran = run(method, federation, training=training, rounds=2)
    assert [report.failed for report in ran.rounds] == [{}, {}]


def test_a_single_sample_is_normalized_by_the_buffers_where_it_must_be(normed):
    layers = (nn.Flatten(), nn.BatchNorm1d(784), nn.Dropout(0.5), nn.Linear(784, 10))
    dense = FlatModel(lambda: nn.Sequential(*copy.deepcopy(layers)))
    w, x = dense.init(0), normed.train.x[:1]
    dense.seed_noise(0)
    outputs, stats = dense.train_outputs(w, x)
    assert torch.equal(outputs, dense.outputs(w, x)) and stats is None
    model, w = normed.model, normed.model.init(0)  # whose maps have many values per channel
    assert not torch.equal(model.train_outputs(w, x)[0], model.outputs(w, x))


def test_dropout_is_keyed_by_client_and_not_by_thread():
    model = flat("mlp", (1, 8, 8), hidden=(50,), dropout=0.5)
    w, x = model.init(0), torch.rand(7, 1, 8, 8)
    seen: dict[str, Tensor] = {}

    def outputs(name: str, seed: int) -> None:
        torch.set_num_threads(1)  # as tasks do: the setting is the thread's own
        model.seed_noise(seed)
        seen[name] = model.train_outputs(w, x)[0]

    outputs("here", 3)
    threads = [threading.Thread(target=outputs, args=(f"thread {n}", n)) for n in (3, 4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    outputs("again", 3)
    equal = [torch.equal(seen["here"], seen[name]) for name in ("thread 3", "again", "thread 4")]
    assert equal == [True, True, False]
    assert torch.equal(model.outputs(w, x), model.outputs(w, x))  # none in evaluation


def test_dropout_keeps_the_mean_and_drops_its_share():
    model = FlatModel(partial(nn.Sequential, nn.Dropout(0.25), nn.Linear(1, 1)))
    identity = torch.tensor([1.0, 0.0])
    model.seed_noise(0)
    outputs, _ = model.train_outputs(identity, torch.ones(40_000, 1))
    assert outputs.unique().tolist() == pytest.approx([0, 4 / 3])
    assert float((outputs == 0).float().mean()) == pytest.approx(0.25, abs=0.01)  # 5 standard deviations


def test_models_may_bring_their_own_loss_and_hits():
    model = quadratics().model
    outputs = model.outputs(torch.tensor([3.0], dtype=torch.float64), torch.tensor([[2.0, 1.0]]))
    assert model.loss(outputs, outputs) == 4
    assert model.hits(outputs, outputs).tolist() == [False]


def test_outputs_without_numbers_are_never_right():
    """argmax of NaN is class 0, and NaN > 0 is false."""
    outputs = torch.tensor([[torch.nan, 1.0], [2.0, 1.0]])
    model = flat("mlp")
    assert model.hits(outputs, torch.tensor([0, 0])).tolist() == [False, True]
    assert model.hits(outputs, torch.tensor([[False, True], [True, True]])).tolist() == [0, 1]


@pytest.mark.parametrize("network", ["lenet5_bn", "mlp"])
def test_a_cohort_keeps_no_models(network):
    """The modules of its thread would hold the last ones: all models of a call."""
    model, x = flat(network), torch.rand(3, 2, 1, 28, 28)
    w = torch.stack([model.init(seed) for seed in range(3)])
    for _ in range(2):
        with model.for_cohorts():
            torch.func.vmap(lambda w, x: model.train_outputs(w, x)[0])(w, x)
    kept = weakref.ref(w)
    del w
    assert kept() is None


def test_threads_that_draw_networks_at_once_do_not_disturb_each_other():
    """They share torch's default generator, whose seed belongs to the process."""
    model = FlatModel(partial(build, "mlp", (1, 8, 8), 10, hidden=(40, 40, 40)))
    alone = [model.init(seed) for seed in range(200)]
    with ThreadPoolExecutor(8) as pool:
        assert all(map(torch.equal, pool.map(model.init, range(200)), alone))


def test_the_last_linear_layer_is_the_classifier_of_a_network_that_names_none() -> None:
    net = FlatModel(lambda: nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2)))
    assert net.head().index.tolist() == list(range(15, 23))
    with refused("model: Conv1d without a linear layer .*the names of the parameters in the settings"):
        FlatModel(lambda: nn.Conv1d(1, 2, 3)).head()
