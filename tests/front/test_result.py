"""What a `Result` and a comparison tell: tables, models, pictures, HTML."""

import copy
import json
import pickle
import re
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pandas as pd
import pytest
import torch
from command import one_line_error
from matplotlib.figure import Figure
from safetensors.torch import load_file

import fedflow as ff
from fedflow.errors import BadInput, FedflowError
from fedflow.front.classes import code_of
from fedflow.front.result import Comparison, Result


def go(method: object = "fedavg", seed: int = 0, **changes: object) -> Result:
    given = {"rounds": 3, "evaluate_every": 1, "progress": False, "compile": "never"} | changes
    return ff.run("digits", ff.label_skew(fraction=0.5, clients=4), method, seed=seed, **given)


@pytest.fixture(scope="module")
def runs() -> dict[str, Result]:
    return {
        "fedavg": go(),
        "again": go(seed=1),
        "slow": go(training={"lr": 0.001}),
        "ditto": go(ff.Ditto(lam=0.5)),
        "ifca": go(ff.IFCA(clusters=2)),
    }


@pytest.fixture(scope="module")
def several(runs: dict[str, Result]) -> Comparison:
    return ff.compare(*runs.values())


def test_every_client_has_its_model(runs: dict[str, Result], digits: object) -> None:
    run, images = runs["ditto"], digits.x_test / 255  # type: ignore[attr-defined]
    for client in range(4):
        tested = np.isin(digits.y_test, np.unique(digits.y_train[run.partition.train(client)]))  # type: ignore[attr-defined]
        mean, std = digits.mean[0], digits.std[0]  # type: ignore[attr-defined]
        with torch.no_grad():
            said = run.model(client)((images - mean) / std).argmax(1)
        share = float((said == digits.y_test)[tested].float().mean())  # type: ignore[attr-defined]
        assert share == pytest.approx(run.clients["local_accuracy"][client], abs=1e-6)


def test_models_that_do_not_exist(runs: dict[str, Result]) -> None:
    assert torch.equal(*(next(runs["fedavg"].model(c).parameters()) for c in (None, 3)))
    with one_line_error("client: None .* a client, as the run has 4 models, one per client", BadInput):
        runs["ditto"].model()
    with one_line_error("client: 4 .* from 0 to 3", BadInput):
        runs["ditto"].model(client=4)
    for wrong in (1.5, "x"):
        with one_line_error("client: .* a whole number", BadInput):
            runs["ditto"].model(client=wrong)  # type: ignore[arg-type]


def test_a_client_of_a_cluster(runs: dict[str, Result]) -> None:
    run = runs["ifca"]
    first = {int(c): next(run.model(k).parameters()) for k, c in enumerate(run.clients["cluster"])}
    for k, cluster in enumerate(run.clients["cluster"]):
        assert torch.equal(next(run.model(k).parameters()), first[cluster])


def test_repr(runs: dict[str, Result]) -> None:
    assert re.match(r"<FedAvg, seed 0, 3 rounds: Local \d+\.\d %, Global \d+\.\d %", repr(runs["fedavg"]))


def test_runs_that_differ_in_seeds_are_one_row(several: Comparison, runs: dict[str, Result]) -> None:
    table = several.table
    assert list(table.index) == ["FedAvg · lr 0.05", "FedAvg · lr 0.001", "Ditto", "IFCA"]
    assert table["seeds"].tolist() == [2, 1, 1, 1]
    values = [runs[name].metrics["local_accuracy"] for name in ("fedavg", "again")]
    assert table["local_accuracy"].iloc[0] == pytest.approx(np.mean(values))
    assert table["local_accuracy_std"].iloc[0] == pytest.approx(np.std(values, ddof=1))
    assert np.isnan(table["local_accuracy_std"].iloc[1])


def test_names(runs: dict[str, Result]) -> None:
    found = ff.compare(runs["ditto"], base=[runs["fedavg"], runs["again"]])
    assert list(found.table.index) == ["Ditto", "base"] and found.table["seeds"].tolist() == [1, 2]


def test_lists_and_mappings_of_runs(runs: dict[str, Result]) -> None:
    both = [runs["fedavg"], runs["again"]]
    assert ff.compare(both).table.equals(ff.compare(*both).table)
    assert ff.compare([both, [runs["ditto"]]]).table.equals(ff.compare(*both, runs["ditto"]).table)
    assert ff.compare(runs["ditto"], both).table.equals(ff.compare(runs["ditto"], *both).table)
    mapping = ff.compare({"b": both, "a": runs["ditto"], 3: runs["ifca"]})
    assert list(mapping.table.index) == ["b", "a", "3"] and mapping.table["seeds"].tolist() == [2, 1, 1]
    for given, match in (
        (5, "results: a int .* results of fedflow.run"),
        ("ab", "results: a str .* results of fedflow.run"),
        ([runs["ditto"], None], "results: a NoneType .* results of fedflow.run"),
        ({"a": [1]}, "a: a int .* results of fedflow.run"),
    ):
        with one_line_error(match, BadInput):
            ff.compare(given)


def test_numbers_by_name(runs: dict[str, Result]) -> None:
    run = runs["fedavg"]
    assert run["local_accuracy"] == run.metrics["local_accuracy"]
    assert "local_accuracy" in run and "accuracy" not in run
    with one_line_error("metric: 'locl_accuracy' .*did you mean 'local_accuracy'", BadInput):
        run["locl_accuracy"]


def pickled(run: Result) -> Result:
    again: Result = pickle.loads(pickle.dumps(run))  # noqa: S301
    return again


@pytest.mark.parametrize("name", ["fedavg", "ditto", "ifca"])
def test_a_pickled_result_is_complete(name: str, runs: dict[str, Result]) -> None:
    run = runs[name]
    again = pickled(pickled(run))
    assert len(pickle.dumps(run)) < 1e5 + 4 * sum(
        p.numel() for k in range(4) for p in run.model(k).parameters()
    )
    assert again.metrics == run.metrics and again.settings == run.settings and repr(again) == repr(run)
    assert again.rounds.equals(run.rounds) and again.clients.equals(run.clients)
    assert again.partition.hash == run.partition.hash and again.plot() is not None
    for client in range(4):
        pairs = zip(again.model(client).parameters(), run.model(client).parameters(), strict=True)
        assert all(torch.equal(*pair) for pair in pairs)
    with one_line_error("client: 4 .* from 0 to 3", BadInput):
        again.model(4)
    with one_line_error("results: .* twice with seed 0", BadInput):
        ff.compare(run, again)


def test_a_model_of_a_pickled_result_is_a_copy(runs: dict[str, Result]) -> None:
    again = pickled(runs["fedavg"])
    next(again.model().parameters()).data.zero_()
    assert next(again.model().parameters()).any() and copy.deepcopy(again).metrics == again.metrics


def test_a_saved_result(runs: dict[str, Result], tmp_path: Path) -> None:
    for run in (runs["ditto"], pickled(runs["ditto"])):
        folder = run.save(tmp_path / "lr0.1")
        names = ["clients.parquet", "clusters.json", "metrics.json", "models.safetensors", "params.json"]
        assert sorted(path.name for path in folder.iterdir()) == [*names, "rounds.csv"]
        numbers = json.loads((folder / "metrics.json").read_text())
        assert numbers["local_accuracy"] == run["local_accuracy"] and numbers["method"] == "ditto"
        assert json.loads((folder / "params.json").read_text())["method"]["lam"] == 0.5
        assert pd.read_csv(folder / "rounds.csv")["round"].tolist() == [1, 2, 3]
        assert pd.read_parquet(folder / "clients.parquet")["client"].tolist() == [0, 1, 2, 3]
        tensors = load_file(folder / "models.safetensors")
        for client in range(4):
            for key, values in run.model(client).state_dict().items():
                assert torch.equal(tensors[f"client/{client}/{key}"], values)
    with one_line_error("folder: .*lr0.1.*; this one has results of ditto with seed 0", BadInput):
        runs["fedavg"].save(folder)
    with one_line_error("folder: .*; this one has results with lr 0.05$", BadInput):
        runs["slow"].save(runs["fedavg"].save(tmp_path / "lr0.05"))
    (tmp_path / "recorded").mkdir()
    (tmp_path / "recorded" / "identity.json").touch()
    with one_line_error("folder: .*another folder; this one has a recorded run", BadInput):
        runs["fedavg"].save(tmp_path / "recorded")
    (tmp_path / "file").touch()
    for path in ("run.pkl", tmp_path / "file"):
        with one_line_error("folder: .* a folder; pickle.dumps", BadInput):
            runs["ditto"].save(path)


def test_a_result_is_not_saved_over_files_of_the_user(runs: dict[str, Result], tmp_path: Path) -> None:
    (tmp_path / "rounds.csv").write_text("mine\n")
    with one_line_error("folder: .*another folder; .*no run has written, such as rounds.csv", BadInput):
        runs["fedavg"].save(tmp_path)
    (tmp_path / ".partial").mkdir()  # of a killed process
    runs["fedavg"].save(tmp_path)


def test_a_file_with_other_samples_is_other_data(tmp_path: Path) -> None:
    def of_file(value: int, seed: int) -> Result:
        x, y = np.full((12, 3), value, np.float32), np.arange(12) % 2
        np.savez(tmp_path / "own.npz", x_train=x, y_train=y, x_test=x, y_test=y)
        data = {"source": "npz", "path": str(tmp_path / "own.npz")}
        return ff.run(data, ff.iid(clients=2), rounds=1, seed=seed, progress=False, compile="never")

    first, other, again = of_file(1, 0), of_file(2, 1), of_file(2, 0)
    assert [*map(len, ff.compare(first, other, again).results.values())] == [1, 2]
    with one_line_error("folder: .*; this one has results with data hash [0-9a-f]{16}$", BadInput):
        again.save(first.save(tmp_path / "kept"))
    del first._settings["data"]["hash"]  # as a result of an earlier version
    assert ff.compare(first, other).table["seeds"].tolist() == [2]
    again.save(first.save(tmp_path / "earlier"))


def test_predictions_are_kept(tmp_path: Path) -> None:
    run = go(keep_predictions=True)
    right = ff.predictions.by_client(pickled(run).predictions, "top1")
    assert right.tolist() == pytest.approx(run.clients["local_accuracy"].tolist())
    assert pd.read_parquet(run.save(tmp_path / "kept") / "predictions.parquet").equals(run.predictions)
    with one_line_error("predictions were not kept: run with keep_predictions=True", FedflowError):
        go(rounds=1).predictions  # noqa: B018


def test_a_mean_over_some_seeds_is_none(runs: dict[str, Result]) -> None:
    reached = runs["fedavg"], runs["again"]
    both = sorted(run.rounds["local_accuracy"].max() for run in reached)
    compared = ff.compare([go(seed=seed, target_accuracy=sum(both) / 2, fine_tune=False) for seed in (0, 1)])
    assert compared.table[["rounds_to_target", "rounds_to_target_std"]].isna().all(axis=None)
    assert "FedAvg: 1 of 2 seeds have rounds_to_target" in repr(compared)
    assert ">1 of 2 seeds<" in compared._repr_html_()


def scaled(step: float) -> float:
    return FACTOR * step * STEPS[0]


FACTOR = 2.0
STEPS = (1, 2)


def test_functions_and_constants_that_a_class_names_are_part_of_its_code(monkeypatch) -> None:
    class Moved(ff.FedAvg):
        def local(self, client: ff.Client) -> ff.Update:
            return client.update(model=client.received["model"] + scaled(0.1), weight=client.samples)

    codes = [code_of(Moved)]
    monkeypatch.setitem(globals(), "samples", 5)  # another thing than the attribute of this name
    codes.append(code_of(Moved))
    with monkeypatch.context() as changed:
        changed.setitem(globals(), "FACTOR", 3.0)
        codes.append(code_of(Moved))
    with monkeypatch.context() as changed:
        changed.setitem(globals(), "STEPS", (2, 2))
        codes.append(code_of(Moved))
    monkeypatch.setitem(globals(), "scaled", lambda step: step)
    codes.append(code_of(Moved))
    assert codes[0] == codes[1] and len(set(codes)) == 4


CALLS = 0


def counted() -> int:
    global CALLS  # noqa: PLW0603
    CALLS += 1
    return CALLS


def test_a_global_that_a_function_writes_is_no_part_of_the_code() -> None:
    class Counting(ff.FedAvg):
        def local(self, client: ff.Client) -> ff.Update:
            counted()
            return super().local(client)

    before = code_of(Counting)
    counted()
    assert code_of(Counting) == before


def variant(step: float) -> type[ff.FedAvg]:
    class Moved(ff.FedAvg):
        def local(self, client: ff.Client) -> ff.Update:
            return client.update(model=client.received["model"] + step, weight=1.0)

    return Moved


def test_classes_of_one_name_and_other_code_are_two_methods() -> None:
    first, same, other = (go(variant(step), seed=k, rounds=1) for k, step in enumerate((0.1, 0.1, 0.2)))
    assert [*map(len, ff.compare(first, same, other).results.values())] == [2, 1]
    with one_line_error("Moved: code .* differ only in their seeds", BadInput):
        ff.compare(Moved=[first, other])
    assert "code" not in go(rounds=1).settings["method"]


def test_divisions_by_rows_have_short_names() -> None:
    given = ({0: range(middle), 1: range(middle, 900)} for middle in (300, 400))
    both = [ff.run("digits", rows, rounds=1, progress=False, compile="never") for rows in given]
    for label in ff.compare(both).results:
        assert re.fullmatch("FedAvg · partition rows [0-9a-f]{8}", label)


def test_runs_that_must_not_be_averaged(runs: dict[str, Result]) -> None:
    with one_line_error("base: lr 0.05 .* differ only in their seeds", BadInput):
        ff.compare(base=[runs["fedavg"], runs["slow"]])
    with one_line_error("FedAvg: lr 0.05 .* differ only in their seeds", BadInput):
        ff.compare(runs["again"], FedAvg=runs["slow"])
    with one_line_error(r"results: FedAvg twice with seed 0 .* compare\(a=\.\.\., b=\.\.\.\)$", BadInput):
        ff.compare(runs["fedavg"], go())
    with one_line_error("results: None .* at least one result", BadInput):
        ff.compare()
    with one_line_error(r"^p: \[\] .* at least one result", BadInput):
        ff.compare(runs["fedavg"], p=[])
    with one_line_error("results: a list .* results of fedflow.run, or lists", BadInput):
        ff.compare([[[runs["fedavg"]]]])


@pytest.mark.parametrize("metric", [None, "local_worst10", "train_loss"])
@pytest.mark.parametrize("x", ["round", "traffic", "time"])
def test_pictures(several: Comparison, metric: str | None, x: str) -> None:
    figure = several.plot(metric, x)
    assert isinstance(figure, Figure) and len(figure.axes[0].lines) == 4
    names = {text.get_text() for text in figure.axes[0].texts}
    assert set(several.table.index) <= names


def test_a_method_that_does_not_have_a_metric_is_not_drawn(several: Comparison) -> None:
    names = {text.get_text() for text in several.plot("global_accuracy").figure.axes[0].texts}
    assert "IFCA" in names and "Ditto" not in names


def test_a_picture_of_one_run(runs: dict[str, Result]) -> None:
    figure = runs["ditto"].plot("local_accuracy")
    line = figure.axes[0].lines[0].get_ydata()
    assert list(line) == pytest.approx(list(100 * runs["ditto"].rounds["local_accuracy"]))
    png, about = figure._repr_png_()  # type: ignore[attr-defined]
    assert png.startswith(b"\x89PNG") and about["width"] == round(100 * figure.get_figwidth())


def test_pictures_of_what_was_not_measured(runs: dict[str, Result]) -> None:
    with one_line_error("metric: 'acuracy' .* one of .*local_accuracy", BadInput):
        runs["ditto"].plot("acuracy")
    with one_line_error("x: 'epoch' .* one of round, traffic, time", BadInput):
        runs["ditto"].plot(x="epoch")


def test_html(several: Comparison, runs: dict[str, Result]) -> None:
    html = several._repr_html_()
    ElementTree.fromstring(f'<div xmlns:xlink="http://www.w3.org/1999/xlink">{html}</div>')  # well-formed
    assert "FedAvg · lr 0.001" in html and " ± " in html and "<svg" in html and "nan" not in html
    # It styles nothing outside itself, and takes the colors of the page.
    assert ":root" not in html and "<style" not in html and "--ink:currentColor" in html
    used = set(re.findall(r"var\(--(\w+)\)", html))
    assert used <= set(re.findall(r"--(\w+):", html))
    other = runs["ditto"]._repr_html_()
    assert not set(re.findall(r'\bid="([^"]+)"', html)) & set(re.findall(r'\bid="([^"]+)"', other))


def test_tables_are_data_frames(runs: dict[str, Result]) -> None:
    for table in (runs["ditto"].rounds, runs["ditto"].clients):
        assert isinstance(table, pd.DataFrame) and not table.isna().all().any()
