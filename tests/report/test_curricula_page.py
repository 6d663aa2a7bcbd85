"""The curricula of the page: which runs are drawn together, growing prefixes, pools."""

import re
from pathlib import Path

import numpy as np
import pytest
from result_folders import write_run

from fedflow.pictures.curriculum import ORDERS
from fedflow.pictures.drawing import line_style
from fedflow.report.page import build_report

DIFFICULTY = "client/difficulty/mean"


def runs(root: Path, *orders: str | None, method: str = "fedavg", **options: object) -> None:
    """A run of each order, None without a curriculum, all of the same settings."""
    changes: dict = options.pop("curriculum", {})
    for order in orders:
        curriculum = (
            None if order is None else {"order": order, "pacing": "linear", "a": 0.8, "b": 0.2} | changes
        )
        more = {"diagnostics": [DIFFICULTY]} if order in ("curriculum", "anti") else {}
        write_run(
            root / "results",
            "p",
            method,
            0,
            plain=order is None,
            training={"curriculum": curriculum},
            **options,
            **more,
        )


def shown(root: Path) -> str:
    """The section of the page; empty without one."""
    page = build_report(root / "results", root / "partitions", root / "report").read_text()
    assert ('href="#curricula"' in page) == ('id="curricula"' in page)
    return page.partition('<section id="curricula">')[2].partition("</section>")[0]


def headings(root: Path) -> list[str]:
    return re.findall("<h4>(.*?)</h4>", shown(root))


def test_orders_of_a_host_share_a_picture_and_have_their_own_colors(tmp_path):
    runs(tmp_path, None, "anti", "random", "curriculum")
    runs(tmp_path, "vanilla", "curriculum", method="scaffold")
    section = shown(tmp_path)
    found = dict(re.findall(r"<h4>(.*?)</h4>(<svg.*?</svg>)", section, flags=re.DOTALL))
    columns = ("global accuracy", "difficulty")
    expected = [f"{host}: {what} by round" for host in ("FedAvg", "SCAFFOLD") for what in columns]
    assert sorted(found) == sorted([*expected, "Growing prefix: linear, a 0.8, b 0.2"])
    colors = {order: f"var(--s{place})" for order, place in ORDERS.items()}
    assert colors["vanilla"] != colors["curriculum"] and line_style(ORDERS["vanilla"])["linestyle"] == "-"
    drawn = {
        "FedAvg: global accuracy by round": set(ORDERS),
        "SCAFFOLD: global accuracy by round": {"vanilla", "curriculum"},
        "FedAvg: difficulty by round": {"curriculum", "anti"},
    }
    for heading, orders in drawn.items():
        named = {order for order in ORDERS if f">{order}</text>" in found[heading]}
        assert named == orders and {o for o in ORDERS if colors[o] in found[heading]} == orders


def test_orders_of_clients_share_a_picture_too(tmp_path):
    for number, order in enumerate((None, "anti", "curriculum")):
        about = {"order": order, "pacing": "linear", "a": 0.8, "b": 0.2}
        kind = {"sampling": "easy_first", "client_curriculum": about} if order else {"sampling": "sweep"}
        write_run(tmp_path / "results", "p", "fedavg", 0, plain=number == 0, sampling=kind)
    found = dict(re.findall(r"<h4>(.*?)</h4>(<svg.*?</svg>)", shown(tmp_path), flags=re.DOTALL))
    (heading,) = found
    assert heading == "FedAvg, orders of clients: global accuracy by round"
    drawn = {order for order in ORDERS if f">{order}</text>" in found[heading]}
    assert drawn == {"vanilla", "anti", "curriculum"}


def test_hosts_of_the_same_method_are_named_after_what_differs(tmp_path):
    runs(tmp_path, None, "anti")
    runs(tmp_path, "anti", "curriculum", curriculum={"b": 0.5})
    runs(tmp_path, "anti", time=2.0, mu=0.1)  # another setting of the method, with one order only
    names = [heading for heading in headings(tmp_path) if heading.endswith("global accuracy by round")]
    assert {*names} == {f"{name}: global accuracy by round" for name in ("FedAvg", "FedAvg, b 0.5")}


@pytest.mark.parametrize("orders", [(None,), ("vanilla",), (None, "vanilla")])
def test_without_a_curriculum_there_is_no_section(tmp_path, orders):
    runs(tmp_path, *orders)
    assert not shown(tmp_path)


def test_a_single_order_has_its_prefix_only_and_each_pacing_one(tmp_path):
    runs(tmp_path, "anti")
    assert headings(tmp_path) == ["Growing prefix: linear, a 0.8, b 0.2"]
    runs(tmp_path, "curriculum", curriculum={"pacing": "step", "least": 32})
    runs(tmp_path, "random", curriculum={"pacing": "step", "least": 32}, method="ditto")
    runs(tmp_path, "anti", curriculum={"b": 1.0})  # all samples from the start
    section = shown(tmp_path)
    step = "Growing prefix: step, a 0.8, b 0.2, at least 32"
    assert {*re.findall("<h4>(.*?)</h4>", section)} == {step, "Growing prefix: linear, a 0.8, b 0.2"}
    note = section.split(step)[1].split("</figcaption>")[0]
    assert "Of a client with 224 samples, the median." in note and "FedAvg" in note and "Ditto" in note


def test_pools_and_losses_of_clients_are_drawn_by_round(tmp_path):
    growing, losses = np.minimum(20, 4 + np.arange(20)), np.full((20, 20), np.nan)
    losses[::4] = 1.5
    series = {"polled_loss": losses, "method/p": losses}
    write_run(tmp_path / "results", "p", "fedavg", 0, pool=growing.tolist(), series=series)
    write_run(tmp_path / "results", "p", "local", 0)
    label = "FedAvg · sampling easy_first, client_curriculum order anti"
    write_run(tmp_path / "results", "p", "long", 0, name="fedavg", label=label, pool=growing.tolist())
    found = dict(re.findall(r"<h4>(.*?)</h4>(<svg.*?</svg>)", shown(tmp_path), re.DOTALL))
    assert [*found] == ["Pool of clients by round", "FedAvg: loss of every client by round"]
    picture = found["Pool of clients by round"]
    assert ">FedAvg · sampl…ulum order anti</text>" in picture  # as long as there is room for
    assert ">FedAvg</text>" in picture and ">Local</text>" not in picture
    page = (tmp_path / "report" / "index.html").read_text()
    assert "<code>method/p</code>" in page and "polled_loss" not in page  # it is no diagnostic
