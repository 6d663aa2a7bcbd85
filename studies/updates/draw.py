"""Draw docs/images/costs.png, and fill the README's tables: ``python studies/updates/draw.py``."""

import re
from collections.abc import Sequence
from pathlib import Path

import matplotlib as mpl
import pandas as pd

mpl.use("Agg")
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from pandas.core.groupby import DataFrameGroupBy

HERE = Path(__file__).parent
METHODS = {"fedavg": "FedAvg", "ditto": "Ditto", "ifca": "IFCA", "pacfl": "PACFL"}
EPSILONS = {"_eps2": "2", "_eps8": "8", "_eps32": "32", "": "none"}
CODES = {  # label, and its offset in points
    "": ("none", -6, 6),
    "_top1": ("top 1 %", 6, -3),
    "_top1_ef": ("top 1 %, feedback", -2, -18),
    "_random1": ("random 1 %", -4, 9),
    "_random1_ef": ("random 1 %,\nfeedback", 6, -8),
    "_qsgd": ("QSGD", 0, 6),
    "_sign": ("sign", 6, -3),
    "_sign_ef": ("sign, feedback", 6, -3),
}
RULES = {
    "mean": "mean",
    "median": "median",
    "trimmed": "trimmed\nmean",
    "krum": "multi-\nKrum",
    "geometric": "geometric\nmedian",
}
ATTACKS = {"none": "no attack", "flip": "label flip", "flipped": "sign flip", "alie": "ALIE"}
TABLE = re.compile(r"(<!-- (\w+) -->\n).*?(<!-- end of table -->)", re.DOTALL)
COLORS = ("#1f5fa8", "#d1702a", "#3a8f5c", "#8a4fa3")


def name_of(attack: str, rule: str) -> str:
    """The method of an attack and a rule, in which FedAvg's mean without an attack is plain FedAvg."""
    return f"fedavg_{attack}_{rule}".replace("fedavg_none_mean", "fedavg")


def results() -> tuple[DataFrameGroupBy, pd.Series]:
    """The rows of results.csv by method, and kilobytes that a client sends in a round."""
    table = pd.read_csv(HERE / "results.csv").groupby("method")
    return table, table.bytes_up.mean() / table.updates.mean() / 1000


def filled(readme: str) -> str:
    """The README with its tables: accuracy in %, mean ± sample standard deviation over seeds."""
    table, kilobytes = results()

    def cell(name: str) -> str:
        values = 100 * table.local_accuracy.get_group(name)
        return f"{values.mean():.1f} ± {values.std():.1f}"

    def lines(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
        under = ["---", *["---:"] * (len(heads) - 1)]
        return "".join(f"| {' | '.join(row)} |\n" for row in (heads, under, *rows))

    codes = {end: label.replace("\n", " ") for end, (label, *_) in CODES.items()}
    rules = {rule: label.replace("-\n", "-").replace("\n", " ") for rule, label in RULES.items()}
    ends = [*reversed(EPSILONS)]
    attacks = ["ditto", *(f"ditto_{attack}" for attack in ATTACKS if attack != "none")]
    tables = {
        "privacy": lines(
            ["method", "plain", *(f"epsilon {EPSILONS[end]}" for end in ends[1:])],
            [[label, *(cell(method + end) for end in ends)] for method, label in METHODS.items()],
        ),
        "compression": lines(
            ["compressor", "FedAvg", "Ditto", "kB up per client and round"],
            [
                [label, cell(f"fedavg{end}"), cell(f"ditto{end}"), f"{kilobytes[f'fedavg{end}']:.2f}"]
                for end, label in codes.items()
            ],
        ),
        "attacks": lines(
            ["rule", *ATTACKS.values()],
            [
                *(
                    [label, *(cell(name_of(attack, rule)) for attack in ATTACKS)]
                    for rule, label in rules.items()
                ),
                ["mean, Ditto", *map(cell, attacks)],
            ],
        ),
    }
    return TABLE.sub(lambda part: part[1] + tables[part[2]] + part[3], readme)


def main() -> None:
    readme = HERE / "README.md"
    readme.write_text(filled(readme.read_text()))
    table, kilobytes = results()
    mean, spread = 100 * table.local_accuracy.mean(), 100 * table.local_accuracy.std()
    plt.rcParams.update({"font.size": 9, "axes.spines.top": False, "axes.spines.right": False})
    figure, (left, center, right) = plt.subplots(1, 3, figsize=(11, 3.4), constrained_layout=True)

    def draw(
        axes: Axes, x: list[float], names: list[str], color: str, label: str = "", line: str = ""
    ) -> None:
        axes.errorbar(
            x, mean[names], spread[names], fmt=f"o{line}", ms=4, capsize=2, color=color, label=label or None
        )

    for color, (method, label) in zip(COLORS, METHODS.items(), strict=True):
        draw(left, [*range(4)], [method + end for end in EPSILONS], color, label, "-")
    left.set_xticks(range(4), [*EPSILONS.values()])
    left.set(title="Privacy", xlabel="epsilon", ylabel="accuracy on own labels, %")
    left.legend(frameon=False, loc="lower right")

    for end, (label, *offset) in CODES.items():
        name = f"fedavg{end}"
        draw(center, [kilobytes[name]], [name], COLORS[0])
        at, side = (kilobytes[name], mean[name]), "left" if end else "right"
        center.annotate(label, at, xytext=offset, textcoords="offset points", fontsize=8, ha=side)
    center.set(
        title="Compression (FedAvg)", xlabel="kB up per client and round", xscale="log", xlim=(0.25, 45)
    )

    for i, (attack, label) in enumerate(ATTACKS.items()):
        names = [name_of(attack, rule) for rule in RULES]
        draw(right, [k + 0.17 * (i - 1.5) for k in range(5)], names, ("#555555", *COLORS)[i], label)
    right.set_xticks(range(5), [*RULES.values()])
    right.set(title="Attacks by 20 % (FedAvg)", ylim=(60, 91))
    right.legend(frameon=False, ncol=2, fontsize=8, loc="lower left")
    figure.savefig(HERE.parents[1] / "docs" / "images" / "costs.png", dpi=110)


if __name__ == "__main__":
    main()
