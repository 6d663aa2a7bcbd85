"""Datasets drawn from known models, with which the result of a method can be compared.

``synthetic_convex``: FedDyn's logistic regression problem (Acar et al., "Federated Learning Based on Dynamic
Regularization", ICLR 2021, arXiv 2111.04263, appendix A.1.1). ``mixed_regression``: IFCA's mixture of linear
regressions (Ghosh et al., NeurIPS 2020, arXiv 2006.04088, section 6). ``prototypes``: a stream of tasks for
online meta-learning. Every client or task draws from its own generator, so a larger number of them only adds
some.
"""

import numpy as np

from fedflow.data.files import SPLITS, DataColumn, RawData
from fedflow.data.smnist import FLIPS, TURNS, turned
from fedflow.errors import BadInput
from fedflow.seeding import generator
from fedflow.settings import Settings, option


class ConvexOptions(Settings):
    """The property that differs between the devices of ``synthetic_convex``, one at a time."""

    section = "data"
    heterogeneity: str = option(
        "homogeneous",
        "what differs: nothing, the parameters (Type 1), the mean inputs (Type 2), the sizes (Type 3)",
        choices=("homogeneous", "parameters", "inputs", "sizes"),
        source="A.1.1",
    )
    devices: int = option(20, "devices", symbol="m", ge=1, source="A.1.1")
    features: int = option(30, "length of an input", symbol="d", ge=1, source="A.1.1")
    classes: int = option(5, "classes", symbol="K", ge=2, source="A.1.1")
    samples: int = option(200, "samples of a device; for sizes: their median", ge=1, source="A.1.1")
    gamma1: float = option(1.0, "variance of the mean parameter mu_i of a device", ge=0, source="a guess")
    gamma2: float = option(1.0, "variance of the mean input beta_i of a device", ge=0, source="a guess")
    gamma3: float = option(1.0, "standard deviation of the log size of a device", ge=0, source="a guess")
    seed: int = option(0, "seed of all draws", ge=0)

    def validate(self) -> None:
        used = {"parameters": "gamma1", "inputs": "gamma2", "sizes": "gamma3"}.get(self.heterogeneity)
        unused = {"gamma1", "gamma2", "gamma3"} - {used}
        self.refuse_unused(f"with heterogeneity: {self.heterogeneity}", *unused)


class RegressionOptions(Settings):
    """The mixture of ``mixed_regression``."""

    section = "data"
    clients: int = option(100, "clients", symbol="m", ge=1, grid=(50, 100, 200, 400, 800))
    groups: int = option(2, "groups of clients, one true model each", symbol="k", ge=1, grid=(2, 4))
    dimension: int = option(1000, "length of an input", symbol="d", ge=1, source="section 6")
    scale: float = option(
        1.0, "size of the entries of the true models", symbol="r", gt=0, grid=(0.1, 0.25, 0.5, 0.75, 1)
    )
    noise: float = option(
        0.1, "standard deviation of the noise", symbol="sigma", ge=0, grid=(0, 0.1, 0.2, 0.4)
    )
    samples: int = option(
        100, "training samples of a client, and test samples", symbol="n", ge=1, grid=(50, 100, 200)
    )
    seed: int = option(0, "seed of all draws", ge=0)

    def validate(self) -> None:
        if self.groups > self.clients:
            raise BadInput("data.groups", self.groups, f"at most {self.clients}, the number of clients")


class PrototypesOptions(Settings):
    """The stream of ``prototypes``."""

    section = "data"
    tasks: int = option(300, "tasks", symbol="T", ge=1)
    classes: int = option(10, "classes, one prototype each", symbol="K", ge=2)
    side: int = option(12, "height and width of the images", ge=1)
    train: int = option(60, "training images of a task, classes in turn", ge=1)
    test: int = option(60, "test images of a task, classes in turn", ge=1)
    scale: float = option(
        0.6,
        "standard deviation of a prototype's pixels; at 0.6 five steps of 0.1 from the start of an MLP "
        "with 100 hidden units give 21 % right",
        gt=0,
    )
    noise: float = option(2.5, "standard deviation of the noise of an image's pixels", ge=0)
    seed: int = option(0, "seed of all draws", ge=0)


def synthetic_convex(options: ConvexOptions) -> RawData:
    """Features [n, d] float32 and labels 0..K-1 [n]; the test set is the training set, column ``user``.

    Device i: mu_i ~ N(0, gamma1), entries of theta_i [K, d] and b_i [K] ~ N(mu_i, 1), beta_i ~ N(0, gamma2),
    entries of nu_i [d] ~ N(beta_i, 1), x ~ N(nu_i, diag(j^-1.2)), y = argmax(theta_i x + b_i), and
    n_i = floor of lognormal(log(samples + 0.001), gamma3), at least 1. All other
    properties are equal: theta, b ~ N(0, 1) shared by all, nu_i = 0, n_i = samples.

    The paper gives no values of gamma: 1 is a guess. gamma1 changes no label, because mu_i adds the same
    number to all K scores. The variances are the paper's; the standard deviation gamma3 is from the code.
    """
    differs = options.heterogeneity
    shape = options.classes, options.features
    shared = generator(options.seed, "data.synthetic_convex.parameters")
    theta, b = shared.standard_normal(shape), shared.standard_normal(options.classes)
    spread = np.arange(1, options.features + 1) ** -0.6  # the root of the variance
    inputs, labels = [], []
    for i in range(options.devices):
        rng = generator(options.seed, "data.synthetic_convex.device", i)
        nu, n = np.zeros(options.features), options.samples
        if differs == "parameters":
            mu = rng.normal(0, options.gamma1**0.5)
            theta, b = rng.normal(mu, 1, shape), rng.normal(mu, 1, options.classes)
        elif differs == "inputs":
            nu = rng.normal(rng.normal(0, options.gamma2**0.5), 1, options.features)
        elif differs == "sizes":
            n = max(1, int(rng.lognormal(np.log(options.samples + 0.001), options.gamma3)))
        x = nu + spread * rng.standard_normal((n, options.features))
        inputs.append(x.astype(np.float32))
        labels.append((x @ theta.T + b).argmax(1))
    x, y = np.concatenate(inputs), np.concatenate(labels)
    user = np.repeat(np.arange(options.devices), [len(rows) for rows in labels])
    names = tuple(map(str, range(options.classes)))
    return RawData(x, y, x, y, names, {"user": DataColumn(user, user)})


def mixed_regression(options: RegressionOptions) -> RawData:
    """Features [m n, d] float32 and targets [m n] float32, columns ``user`` and ``group``.

    The groups are consecutive blocks of clients, of nearly equal size. For a client of group j:
    x ~ N(0, I), y = <x, theta_j> + N(0, sigma^2), with theta_j of `true_models`. The test split holds n fresh
    samples of each client.
    """
    theta = true_models(options)
    group = np.arange(options.clients) * options.groups // options.clients
    splits = []
    for split in ("train", "test"):
        x = np.empty((options.clients, options.samples, options.dimension), np.float32)
        y = np.empty(x.shape[:2], np.float32)
        for i in range(options.clients):
            rng = generator(options.seed, f"data.mixed_regression.{split}", i)
            x[i] = rng.standard_normal(x.shape[1:], np.float32)
            y[i] = x[i] @ theta[group[i]] + options.noise * rng.standard_normal(options.samples)
        splits += [x.reshape(-1, options.dimension), y.reshape(-1)]
    user = np.arange(options.clients).repeat(options.samples)
    of_group = group[user]
    x_train, y_train, x_test, y_test = splits
    columns = {"user": DataColumn(user, user), "group": DataColumn(of_group, of_group)}
    return RawData(x_train, y_train, x_test, y_test, columns=columns)


def true_models(options: RegressionOptions) -> np.ndarray:
    """The true models theta [k, d] of ``mixed_regression``: every entry is 0 or r with probability 1/2."""
    rng = generator(options.seed, "data.mixed_regression.models")
    return options.scale * rng.integers(0, 2, (options.groups, options.dimension))


def prototypes(options: PrototypesOptions) -> RawData:
    """Features [n, 1, side, side] float32 by task: the turned prototype of the class, and noise."""
    shape = options.side, options.side
    drawn = generator(options.seed, "data.prototypes").normal(0, options.scale, (options.classes, *shape))
    choices = [
        generator(options.seed, "data.prototypes", task).integers((TURNS, FLIPS), size=(options.classes, 2))
        for task in range(options.tasks)
    ]

    def noisy(split: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Images, labels and tasks."""
        y = np.arange(getattr(options, split)) % options.classes
        x = np.empty((options.tasks, len(y), *shape), np.float32)
        for task, how in enumerate(choices):
            rng = generator(options.seed, f"data.prototypes.{split}", task)
            x[task] = turned(drawn, *how.T)[y] + rng.normal(0, options.noise, x.shape[1:])
        tasks = np.arange(options.tasks)
        return x.reshape(-1, 1, *shape), np.tile(y, options.tasks), tasks.repeat(len(y))

    (x_train, y_train, train), (x_test, y_test, test) = map(noisy, SPLITS)
    names = tuple(map(str, range(options.classes)))
    return RawData(x_train, y_train, x_test, y_test, names, {"task": DataColumn(train, test)})
