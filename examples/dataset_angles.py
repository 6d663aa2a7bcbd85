"""Distances between datasets, and between the classes of one: angles between subspaces, without training.

The first table is Table 3.7 (= 5.1) of Morafah et al.: the smallest angle of two columns of signatures with
p = 2 of whole datasets, next to the published angle. Images are padded with zeros to 32 x 32, and gray ones
repeated to three channels. MNIST and EMNIST letters are not in the published table.
The second part compares the classes of one dataset (p = 3), merges those that look alike (average linkage,
WPGMA) and draws the dendrogram: cut at its largest gap, it gives the super clusters of Table 5.7.
"""

import argparse
import sys
from collections.abc import Sequence
from functools import cache
from itertools import combinations
from pathlib import Path

import numpy as np

import fedflow as ff

NAMES = ("cifar10", "svhn", "fmnist", "usps", "mnist", "emnist_letters")
PUBLISHED = {
    ("cifar10", "svhn"): 6.13,
    ("cifar10", "fmnist"): 45.79,
    ("cifar10", "usps"): 66.26,
    ("svhn", "fmnist"): 43.42,
    ("svhn", "usps"): 64.86,
    ("fmnist", "usps"): 43.36,
}


@cache
def load(name: str, root: Path) -> ff.RawData:
    """The named images, read once and without a download."""
    if not ff.source(name).where(root):
        raise ff.FedflowError(
            f"{name} is not in {root}; give the folder that has it with --data or FEDFLOW_DATA"
        )
    return ff.source(name).load(root)


def as_cifar(x: np.ndarray) -> np.ndarray:
    """Gray images [n, h, w] in the middle of [n, 32, 32, 3]; color images of that size as they are."""
    if x.ndim == 4:
        return x
    above, left = ((32 - side) // 2 for side in x.shape[1:])
    padded = np.pad(x, ((0, 0), (above, 32 - x.shape[1] - above), (left, 32 - x.shape[2] - left)))
    return np.repeat(padded[..., None], 3, axis=3)


def between_data_sets(root: Path, samples: int) -> None:
    """Print the angle of every pair of datasets that are available, and the published one."""
    there = [name for name in NAMES if ff.source(name).where(root)]
    if len(there) < 2:
        raise ff.FedflowError(f"fewer than two of {', '.join(NAMES)} are in {root} (--data or FEDFLOW_DATA)")
    signatures = []
    for name in there:
        x = load(name, root).x_train
        rows = np.random.default_rng(0).permutation(len(x))[:samples]
        signatures.append(ff.heterogeneity.signature(as_cifar(x[rows]), 2))
    columns, principal = (
        ff.heterogeneity.proximity(signatures, mode=mode) for mode in ("entry_min_abs", "principal_min")
    )
    print("datasets, p = 2, degrees     x published  smallest principal angle")
    for i, j in combinations(range(len(there)), 2):
        published = PUBLISHED.get((there[i], there[j]), "-")
        print(
            f"{there[i] + ' - ' + there[j]:<24}{columns[i, j]:>7.2f}{published:>10}{principal[i, j]:>26.2f}"
        )
    print(f"not available: {', '.join(name for name in NAMES if name not in there) or 'none'}\n")


def between_classes(name: str, root: Path, p: int, out: Path) -> None:
    """Print the super clusters of the classes of one dataset, and draw their dendrogram."""
    raw = load(name, root)
    angles = ff.heterogeneity.class_proximity(raw.x_train, raw.y_train, p)
    tree = ff.heterogeneity.merge(angles)
    beta = ff.heterogeneity.largest_gap(tree)
    member = ff.heterogeneity.cut(tree, beta)
    print(f"{name}, p = {p}: classes merge at {', '.join(f'{height:.2f}' for height in tree[:, 2])} degrees")
    for group in range(member.max() + 1):
        print("  super cluster:", ", ".join(raw.classes[c] for c in np.flatnonzero(member == group)))
    draw(angles, tree, beta, raw.classes, name, out)
    print(f"picture: {out}")


def draw(
    angles: np.ndarray, tree: np.ndarray, beta: float, classes: Sequence[str], name: str, out: Path
) -> None:
    """The dendrogram above the matrix of angles, classes in the same order."""
    from matplotlib.figure import Figure
    from scipy.cluster.hierarchy import dendrogram

    size = max(4.5, 0.35 * len(classes))
    figure = Figure(figsize=(1.1 * size, 1.3 * size), layout="constrained")
    above, below = figure.subplots(2, 1, height_ratios=[1, 2])
    plain = {"color_threshold": 0, "above_threshold_color": "#333333", "no_labels": True}
    order = dendrogram(tree, ax=above, **plain)["leaves"]
    above.axhline(beta, color="#ee6677", ls="--", lw=1.5)
    above.text(
        1.01,
        beta,
        f"largest gap:\n{beta:.1f}",
        transform=above.get_yaxis_transform(),
        va="center",
        color="#aa3344",
        fontsize=8,
        in_layout=False,
    )
    above.set_ylabel("degrees")
    above.set_title(f"{name}: angles between classes", loc="left", fontsize=10)
    above.spines[["top", "right", "bottom"]].set_visible(False)
    image = below.imshow(angles[np.ix_(order, order)], cmap="cividis", aspect="auto")
    below.set_xticks(range(len(order)), [classes[c] for c in order], rotation=60, ha="right")
    below.set_yticks(range(len(order)), [classes[c] for c in order])
    figure.colorbar(image, ax=below, label="degrees", shrink=0.8)
    ff.drawing.save_picture(figure, out, 120)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--data", type=Path, help="folder of the datasets (default: FEDFLOW_DATA or data/raw)"
    )
    parser.add_argument("--samples", type=int, default=5000, help="images of a dataset (default: 5000)")
    parser.add_argument("--classes", default="cifar10", help="dataset whose classes are compared")
    parser.add_argument("--p", type=int, default=3, help="directions of a class (default: 3)")
    parser.add_argument("--out", type=Path, default=Path("report/class_angles.png"), help="the picture")
    options = parser.parse_args()
    try:
        if options.samples < 1:
            raise ff.BadInput("samples", options.samples, "a whole number >= 1")
        if options.p < 1:
            raise ff.BadInput("p", options.p, "a whole number >= 1")
        ff.drawing.check_picture(options.out, "--out")
        root = ff.data_root(options.data)
        load(options.classes, root)
        between_data_sets(root, options.samples)
        between_classes(options.classes, root, options.p, options.out)
    except (ff.FedflowError, OSError) as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()
