"""The experiments on coresets: what they choose, how much it costs, and what they refuse."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from command import PARAMS, fedflow, make_project, one_line_error
from resuming import ends_alike
from scipy import sparse

from fedflow.config import load_params
from fedflow.procedures import PROCEDURES, End, Findings, World
from fedflow.procedures.coresets import choose, knn_graph
from fedflow.procedures.coresets.network import GCN
from fedflow.procedures.coresets.scene import Graph, make_scene
from fedflow.stages.procedure import ProcedureRun, run_procedure


def world(seed: int = 0, **files: Path) -> World:
    return World(seed, torch.device("cpu"), {}, {}, {}, files)


def findings(name: str, seed: int = 0, files: dict[str, Path] | None = None, **settings: Any) -> Findings:
    """The result of a procedure in this process."""
    procedure = PROCEDURES[name].parse(settings)
    shared = procedure.open(world(seed, **files or {}))
    ends = {}
    for part in procedure.parts(shared):
        state, rows = procedure.start(shared, part), []
        for number in range(1, procedure.steps(shared, part) + 1):
            state, row = procedure.step(shared, part, state, number)
            rows.append(row)
        ends[part] = End(state, pd.DataFrame(rows))
    return procedure.finish(shared, ends)


@pytest.mark.parametrize(
    ("nodes", "features", "classes", "count"), [(2708, 1433, 7, 23_040), (200, None, 10, 3_360)]
)
def test_parameters_of_the_networks(nodes: int, features: int | None, classes: int, count: int) -> None:
    ring = sparse.csr_array(np.roll(np.eye(nodes), 1, 0) + np.roll(np.eye(nodes), -1, 0))
    inputs = None if features is None else sparse.csr_array((nodes, features))
    assert GCN(ring, inputs, classes, seed=0).w.numel() == count


def test_a_gcn_learns_more_from_chosen_labels_than_from_random_ones() -> None:
    found = [
        findings("coreset_gcn", seed, picks=10, every=10, methods=["giga", "random"], patience=None).summary
        for seed in range(3)
    ]
    giga, random = (np.mean([one[name]["test_accuracy"] for one in found]) for name in ("giga", "random"))
    assert giga > 0.8 and giga > random + 0.1
    giga, random = (np.mean([one[name]["groups"] for one in found]) for name in ("giga", "random"))
    assert giga > 8.5 > random + 1


PLACEMENT = {
    "graph": {"kind": "mixture", "shares": [0.3, 0.5, 0.2]},
    "mean_costs": [2.04, 3.25, 0.51],
    "picks": 20,
    "methods": ["giga-walk1", "scgiga-walk1"],
}


def test_costs_move_points_to_the_cheap_component() -> None:
    """Counts of Section 11, 50 / 20 / 30 %: 10.3 / 4.0 / 5.8 without costs, 4.5 / 10.8 / 4.8 with them."""
    found = findings("coreset", **PLACEMENT)
    giga, scgiga = found.summary["giga-walk1"], found.summary["scgiga-walk1"]
    assert abs(giga["group2"] - 0.5) < 0.15
    assert scgiga["group3"] > 0.4 > 0.3 > giga["group3"] and scgiga["group2"] < 0.4
    assert giga["cost"] > 20 * scgiga["cost"]
    table = found.tables["nodes"].query("method == 'giga-walk1'")
    assert (table["group"] == 2).mean() == giga["group2"] and table["cost"].sum() == giga["cost"]
    assert "scgiga-walk1: 20 of 1,000" in found.drawings[0].svg


def test_settings_of_a_method_follow_its_name() -> None:
    procedure = PROCEDURES["coreset"].parse({"methods": ["giga", "scgiga-kappa0.5-walk4-sum1"], "walk": 2})
    (_, plain), (method, own) = procedure.arms.values()
    assert (plain.walk, plain.kappa, plain.weights) == (2, 0.2, "beta")
    assert (method, own.walk, own.kappa, own.weights) == ("scgiga", 4, 0.5, "sum1")


def write_graphs(folder: Path) -> dict[str, Path]:
    """Files of the layouts of Cora, of the ego networks of Facebook, and a table."""
    rng = np.random.default_rng(0)
    labels = np.repeat([0, 1, 2], 20)
    edges = [
        (i, j)
        for i in range(60)
        for j in range(i)
        if rng.random() < (0.4 if labels[i] == labels[j] else 0.03)
    ]
    words = rng.integers(0, 2, (60, 8))
    (folder / "cora.content").write_text(
        "".join(f"p{i}\t{chr(9).join(map(str, words[i]))}\tclass_{labels[i]}\n" for i in range(60))
    )
    (folder / "cora.cites").write_text("".join(f"p{i}\tp{j}\n" for i, j in edges))
    (folder / "facebook.txt").write_text("".join(f"{i} {j}\n" for i, j in edges))
    table = pd.DataFrame(rng.standard_normal((60, 2)), columns=["a", "b"])
    table.assign(y=table["a"], price=rng.random(60)).to_csv(folder / "points.csv", index=False)
    return {name: folder / name for name in ("cora.content", "cora.cites", "facebook.txt", "points.csv")}


@pytest.mark.parametrize(
    ("name", "settings", "expected"),
    [
        ("coreset_gcn", {"graph": {"kind": "cora", "file": "."}, "every": 9}, {"test_accuracy", "groups"}),
        ("coreset", {"graph": {"kind": "edges", "file": "facebook.txt"}}, {"absolute"}),
        (
            "coreset",
            {"graph": {"kind": "table", "file": "points.csv", "value": "y", "cost": "price"}},
            {"error"},
        ),
    ],
)
def test_graphs_from_files(tmp_path: Path, name: str, settings: dict, expected: set) -> None:
    files = {str(Path(key)): path for key, path in write_graphs(tmp_path).items()}
    procedure = PROCEDURES[name].parse(settings | {"picks": 9, "walk": 4})
    assert procedure.inputs().files and all(Path(file).name in files for file in procedure.inputs().files)
    given = {file: files[Path(file).name] for file in procedure.inputs().files}
    found = findings(name, files=given, **settings, picks=9, walk=4, methods=["scgiga", "frank_wolfe"])
    assert expected <= found.summary["scgiga"].keys()
    assert all(np.isfinite(value) for row in found.summary.values() for value in row.values())


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"methods": ["gigga"]}, r"methods\[0\]: 'gigga' .*did you mean 'giga'"),
        ({"methods": ["giga-walk"]}, "giga-walk' .*giga with -walk4, -beta"),
        ({"methods": ["scgiga-walk"]}, "scgiga-walk' .*scgiga with -walk4, -kappa0.5, -beta"),
        ({"methods": ["giga-kappa0.5"]}, r"methods\[0\]: 'giga-kappa0.5' .*giga without -kappa"),
        ({"methods": ["giga", "kmeans-sum1-kappa0.3"]}, r"methods\[1\]: 'kmeans-sum1-kappa0.3' .* scgiga$"),
        ({"methods": ["giga", "giga"]}, "each once"),
        ({"methods": ["giga-walk0"]}, "walk: 0 .*>= 1"),
        ({"picks": 1001}, "picks: 1001 .*<= 1000, the number of nodes"),
        ({"mean_costs": [1, 2]}, "mean_costs: .*3 numbers, one per group"),
        ({"mean_costs": [1, -2, 1]}, "mean_costs: .*>= 0"),
        ({"graph": {"kind": "cora"}}, "graph.file: None .*cora.content"),
        ({"graph": {"kind": "tree", "shares": [1.0]}}, "graph.shares: .*tree has no groups"),
        ({"graph": {"kind": "mixture", "shares": [0.5, 0.5]}}, "graph.shares: .*three numbers > 0"),
        ({"graph": {"kind": "sbm", "nodes": 5}}, "graph.nodes: 5 .*one in every group"),
        ({"graph": {"kind": "sbm", "p_in": 0, "p_out": 0}}, "no edge"),
        ({"graph": {"value": "y"}}, "graph.value: 'y' .*sbm has no table"),
    ],
)
def test_settings_that_cannot_be_used_are_one_line(settings: dict, message: str) -> None:
    with one_line_error(message):
        PROCEDURES["coreset"].parse(settings).open(world())


def test_labels_need_classes_and_nodes_for_the_test() -> None:
    for settings, message in (
        ({"graph": {"kind": "tree"}}, "graph.kind"),
        ({"picks": 180}, "validation: 30"),
    ):
        with one_line_error(message):
            PROCEDURES["coreset_gcn"].parse(settings).open(world())


def of_coreset(settings: str) -> str:
    return PARAMS.replace("grid:", f"procedures: {{coreset: {{{settings}}}}}\ngrid:")


def test_runs_that_resume_between_two_picks_and_any_number_of_workers_end_alike(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = "graph: {nodes: 60}, picks: 4, draws: 3, methods: [scgiga, frank_wolfe, random]"
    ends_alike(tmp_path, of_coreset(settings), "coreset", monkeypatch, interrupt=6, total=12)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            "graph: {kind: table, file: apart.csv, value: y, neighbors: 1}, picks: 2",
            "graph.neighbors: 1 .*more, as the graph has 2 components",
        ),
        (
            "graph: {kind: table, file: apart.csv, value: y, neighbors: 4}, picks: 2",
            "graph.neighbors: 4 .*< 4",
        ),
        ("graph: {kind: edges, file: apart.txt}, picks: 2", "graph.file: 'a disconnected graph' .*connected"),
        ("graph: {kind: edges, file: empty.txt}, picks: 2", "graph.file: 'empty.txt' .*two node numbers"),
        ("graph: {p_in: 0, p_out: 0}, picks: 2", "graph.kind: 'no edge' .*with edges"),
        (
            "graph: {nodes: 60, p_in: 1, p_out: 0}, picks: 2, methods: [frank_wolfe_shares]",
            "graph: 'several components' .*frank_wolfe_shares",
        ),
    ],
)
@pytest.mark.filterwarnings("ignore:the graph has")
def test_a_graph_that_cannot_be_walked_on_is_one_line_of_its_field(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, settings: str, message: str
) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    root = make_project(tmp_path, of_coreset(settings))
    (root / "apart.csv").write_text("x,y\n0,1\n1,2\n50,3\n51,4\n")
    (root / "apart.txt").write_text("0 1\n2 3\n")
    (root / "empty.txt").write_text("\n")
    run = ProcedureRun(load_params(root / "params.yaml"), "coreset", 0, root)
    with one_line_error(f"^procedures.coreset.{message}"):
        run_procedure(run)
    assert not list(run.folder.rglob("*"))


@pytest.fixture
def houses(tmp_path: Path) -> Path:
    rng = np.random.default_rng(0)
    table = pd.DataFrame(rng.standard_normal((80, 3)), columns=["area", "rooms", "year"])
    table = table.assign(price=rng.random(80), town="x", debt=-1.0, gap=[np.nan] + [1.0] * 79)
    table.to_csv(tmp_path / "houses.csv", index=False)
    return tmp_path


IGNORED = ("--ignore", "town", "--ignore", "debt", "--ignore", "gap")


def test_a_table_of_ones_own(houses: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def rows(*more: object) -> pd.DataFrame:
        out = houses / "out" / "rows.csv"
        given = houses / "houses.csv", "--cost", "price", *IGNORED, "--out", out
        done = fedflow(capsys, "coreset", *given, *more)
        assert done.code == 0 and "were standardized" in done.out and out.with_suffix(".png").exists()
        return pd.read_csv(out)

    plain, cheap = rows("--k", 6), rows("--k", 6, "--kappa", 0.2)
    assert list(plain.columns) == ["order", "row", "weight", "cost", "alignment"] and len(plain) == 6
    assert plain["weight"].sum() == pytest.approx(1) and cheap["cost"].sum() < 0.3 * plain["cost"].sum()
    assert rows("--k", 9)["row"].tolist()[:6] == plain["row"].tolist()
    assert rows("--k", 80, "--budget", 1)["cost"].sum() <= 1
    found = choose(pd.read_csv(houses / "houses.csv"), 6, "price", ignore=["town", "debt", "gap"])
    assert found.rows["row"].tolist() == plain["row"].tolist()


def test_edges_between_neighbors_have_gaussian_weights(
    houses: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """By the command, by `choose`, and of a graph of the procedure."""
    table = pd.read_csv(houses / "houses.csv")[["area", "rooms", "year"]]
    table.to_csv(houses / "t.csv", index=False)
    points = ((table - table.mean()) / table.std(ddof=0)).to_numpy()
    chosen = choose(table, 6, edge_weights="gaussian")
    assert np.allclose(chosen.adjacency.toarray(), knn_graph(points, 10, "gaussian").toarray())
    plain = choose(table, 6)
    given = houses / "t.csv", "--k", 6, "--edge-weights", "gaussian", "--out", houses / "o.csv"
    assert fedflow(capsys, "coreset", *given).code == 0
    assert pd.read_csv(houses / "o.csv")["row"].tolist() == chosen.rows["row"].tolist()
    assert plain.rows["weight"].tolist() != chosen.rows["weight"].tolist()
    of_table = {"kind": "table", "file": "t.csv", "value": "year"}
    for about in ({"kind": "mixture", "nodes": 50}, of_table):
        graph = Graph.parse({**about, "edge_weights": "gaussian", "neighbors": 5})
        scene = make_scene(graph, world(**{"t.csv": houses / "t.csv"}))
        expected = knn_graph(scene.points, 5, "gaussian")
        assert np.allclose(scene.adjacency.toarray(), expected.toarray())
        assert scene.adjacency.data.max() < 1
    with one_line_error("graph.edge_weights: 'gaussian' .*binary, as a graph of kind sbm has no distances"):
        Graph.parse({"edge_weights": "gaussian"})
    with one_line_error("edge_weights: 'gaussian' .*binary, as the edges are given"):
        choose(adjacency=plain.adjacency, k=3, edge_weights="gaussian")


def test_options_of_choose_that_would_have_no_effect_are_refused() -> None:
    table = pd.DataFrame({"x": range(30), "y": 0.0})
    edges = knn_graph(table.to_numpy(), 4, "binary")
    for given, message in (
        (
            {"adjacency": edges, "columns": ["x"]},
            r"^columns: \['x'\] .*expected None, as the edges are given",
        ),
        ({"adjacency": edges, "ignore": ["x"]}, r"^ignore: \['x'\] .*expected \[\], as the edges are given"),
        ({"adjacency": edges, "scaled": False}, "^scaled: False .*expected True, as the edges are given"),
        ({"adjacency": edges, "neighbors": 3}, "^neighbors: 3 .*expected 10, as the edges are given"),
        ({"columns": ["x"], "ignore": ["y"]}, r"^ignore: \['y'\] .*expected \[\] with columns"),
        ({"kappa": 0.5}, "^kappa: 0.5 .*expected 1 without costs"),
    ):
        with one_line_error(message):
            choose(table, 3, **given)
    assert len(choose(table, 3, columns=table.columns[:1]).rows) <= 3


def test_a_file_in_the_home_folder(
    houses: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(houses))
    for given in (["--out=~/home.csv"], ["--out", "~/home.csv"]):
        assert fedflow(capsys, "coreset", houses / "houses.csv", *IGNORED, "--k", 4, *given).code == 0
        for name in ("home.csv", "home.png"):
            (houses / name).unlink()


def test_input_files_are_not_overwritten(houses: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """By their names or by links, as the table or as its picture."""
    (houses / "edges.png").write_text("".join(f"{i},{i + 1}\n" for i in range(79)))
    (houses / "link.csv").symlink_to(houses / "houses.csv")
    before = {path: path.read_bytes() for path in houses.iterdir()}
    for out in ("houses.csv", "link.csv", "edges.csv"):
        given = houses / "houses.csv", *IGNORED, "--k", 4, "--adjacency", houses / "edges.png"
        done = fedflow(capsys, "coreset", *given, "--out", houses / out)
        assert done.code == 2 and "--out: " in done.err and "would replace the input" in done.err
    assert {path: path.read_bytes() for path in houses.iterdir()} == before


def test_tables_of_other_kinds_and_graphs(houses: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table = pd.read_csv(houses / "houses.csv")[["area", "rooms", "year"]]
    table.to_parquet(houses / "t.parquet")
    table.to_csv(houses / "t.tsv", sep="\t", index=False)
    np.save(houses / "t.npy", table.to_numpy())
    (houses / "edges.csv").write_text("from,to\n" + "".join(f"{i},{i + 1}\n" for i in range(79)))
    found = []
    for name in ("t.parquet", "t.tsv", "t.npy"):
        out = houses / f"{name}.out.csv"
        assert fedflow(capsys, "coreset", houses / name, "--k", 4, "--out", out).code == 0
        found.append(out.read_bytes())
    assert found[0] == found[1] == found[2]
    out = houses / "nodes.csv"
    done = fedflow(capsys, "coreset", "--adjacency", houses / "edges.csv", "--k", 3, "--out", out)
    assert done.code == 0 and "3 of 80 rows, total cost 3" in done.out


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (("houses.csv", *IGNORED, "--cost", "prise"), "cost: 'prise' .*area, rooms, year, price"),
        (("houses.csv",), "columns: 'town' .*text, leave it out"),
        (("houses.csv", *IGNORED[:4]), "columns: 'gap' .*row 0 has none"),
        (("houses.csv", "--ignore", "city"), "ignore: 'city' .*town"),
        (("houses.csv", *IGNORED[:2], "--cost", "debt"), "cost: 'debt' .*>= 0; row 0 has -1"),
        (("houses.csv", *IGNORED, "--k", "81"), "k: 81 .*1 to 80"),
        (("houses.csv", *IGNORED, "--kappa", "2", "--cost", "price"), "kappa: 2"),
        (("houses.csv", *IGNORED, "--weights", "x"), "weights: 'x'"),
        (("houses.csv", *IGNORED, "--edge-weights", "x"), "edge_weights: 'x' .*binary or gaussian"),
        (("houses.csv", *IGNORED, "--neighbors", "1"), "neighbors: 1 .*components"),
        (("houses.csv", *IGNORED, "--cost", "price", "--budget", "0"), "budget: 0.0 .*at least the cost"),
        (("none.csv",), "there is no table .*none.csv"),
        (("houses.txt",), "table: .*ends in .csv"),
        ((), "table: None .*--adjacency"),
    ],
)
def test_what_a_table_cannot_be_is_one_line(houses: Path, capsys, given: tuple, message: str) -> None:
    table = [houses / given[0]] if given else []
    done = fedflow(capsys, "coreset", *table, *given[1:], "--out", houses / "o.csv")
    assert done.code == 2 and done.err.count("\n") == 1 and re.search(message, done.err), done.err


@pytest.mark.parametrize("name", ["o.png", "o", "taken.csv"])
def test_an_output_that_is_no_table_is_refused_before_the_work(houses: Path, capsys, name: str) -> None:
    (houses / "taken.csv").mkdir()
    done = fedflow(capsys, "coreset", houses / "none.csv", "--out", houses / name)
    assert done.code == 2 and done.err.count("\n") == 1 and "--out: " in done.err, done.err
