from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support import refused

from fedflow.data import Dataset, DatasetParams, prepare, within


@pytest.fixture
def mix(npz: Callable, tmp_path: Path) -> Callable[..., Dataset]:
    """Prepares a mix of the parts that are given, in ``out``; a part without a source is a small .npz."""

    def make(*parts: dict[str, Any], out: str = "out", **params: Any) -> Dataset:
        small = {"source": "npz", "path": str(npz())}
        entries = [part if "source" in part else small | part for part in parts]
        parsed = DatasetParams.parse({"source": "mix", "parts": entries} | params, "data.mine")
        with within("data.mine"):
            return prepare(parsed, tmp_path / out)

    return make


def color(npz: Callable, name: str = "color.npz", size: int = 8, classes: int = 2) -> dict[str, str]:
    """A part of random images in color."""
    rng = np.random.default_rng(1)
    x = {
        f"x_{s}": rng.integers(0, 256, (n * classes, size, size, 3), np.uint8)
        for s, n in (("train", 10), ("test", 4))
    }
    return {"source": "npz", "path": str(npz(name, classes, size, **x))}


def test_parts_stand_side_by_side_and_are_normalized_on_their_own(mix, npz):
    data = mix({}, color(npz))
    assert data.input_shape == (3, 8, 8) and len(data.train) == 30 + 20 and len(data.test) == 12 + 8
    assert data.classes == ("small:0", "small:1", "small:2", "color:0", "color:1")
    assert data.y_train.bincount().tolist() == [10] * 5 and data.y_test.bincount().tolist() == [4] * 5
    domain = data.columns["domain"]
    assert domain.names == ("small", "color") and domain.train.tolist() == [0] * 30 + [1] * 20
    assert domain.test.tolist() == [0] * 12 + [1] * 8 and data.by_domain
    x = data.train.inputs(torch.arange(50)).double()
    for rows, part in ((slice(0, 30), 0), (slice(30, 50), 1)):
        mean, std = (torch.tensor(c[part], dtype=torch.float64).view(3, 1, 1) for c in (data.mean, data.std))
        expected = (data.x_train[rows].double() / 255 - mean) / std
        torch.testing.assert_close(x[rows], expected, atol=2e-6, rtol=0)
    small, large = data.x_train[:30], data.x_train[30:].double() / 255
    assert torch.equal(small[:, 0], small[:, 2]) and data.mean[0] == (data.mean[0][0],) * 3
    inside = small[:, 0, 2:-2, 2:-2]
    assert int(small.sum()) == 3 * int(inside.sum())  # the border of two pixels is 0
    assert data.mean[0][0] == pytest.approx(inside.double().mean().item() / 255, abs=1e-6)  # unpadded
    assert data.mean[1] == pytest.approx(large.mean((0, 2, 3)).tolist(), abs=1e-6)
    assert data.std[1] == pytest.approx(large.permute(1, 0, 2, 3).flatten(1).std(1, correction=0), abs=1e-6)


def test_labels_can_be_shared(mix, npz):
    data = mix({"train_limit": 6}, color(npz, classes=3), labels="shared")
    assert data.classes == ("0", "1", "2") and data.y_train.bincount().tolist() == [12] * 3
    assert data.columns["domain"].train.tolist() == [0] * 6 + [1] * 30


def test_offsets_may_come_in_any_order(mix, npz):
    data = mix({"offset": 2}, color(npz) | {"offset": 0})
    assert data.classes == ("color:0", "color:1", "small:0", "small:1", "small:2")
    assert data.y_train[:3].tolist() == [2, 3, 4] and data.y_train[30:32].tolist() == [0, 1]


def test_parts_have_their_own_preparation(mix, npz):
    parts = {"keep_labels": [2], "pad": 2}, {"resize": 8, "train_limit": 3}, {"rotations": [90], "resize": 8}
    data = mix(*parts)
    assert data.input_shape == (1, 8, 8) and data.num_classes == 1 + 3 + 3
    assert data.columns["domain"].names == ("small", "small-2", "small-3")
    assert data.classes[:2] == ("small:2", "small-2:0") and set(data.columns) == {"domain"}
    turned, upright = data.x_train[13:], mix({"resize": 8}, out="upright").x_train
    assert torch.equal(turned, upright.rot90(1, (2, 3)))


def test_the_whole_mix_is_rotated_and_padded_with_constants_of_each_part(mix, npz):
    data = mix({}, {"resize": 6}, rotations=[0, 180], pad=1, channels=3)
    assert data.input_shape == (3, 8, 8) and len(data.train) == 120
    assert data.columns["domain"].train.tolist() == ([0] * 30 + [1] * 30) * 2
    assert data.columns["rotation"].train.tolist() == [0] * 60 + [1] * 60
    assert [len(c) for c in data.mean] == [3, 3]


def test_a_mix_of_mixes_has_the_domains_of_both(mix, npz):
    inner = {"source": "mix", "parts": [{"source": "npz", "path": str(npz())}, color(npz)]}
    data = mix(inner, color(npz, "other.npz"))
    assert data.columns["domain"].names == ("mix:small", "mix:color", "other")
    assert np.bincount(data.columns["domain"].train).tolist() == [30, 20, 20] and len(data.mean) == 3
    assert data.classes[0] == "mix:small:0" and data.num_classes == 7


def test_columns_that_all_parts_have_are_joined(mix, npz):
    users = {"user_train": np.arange(30) % 5, "user_test": np.arange(12) % 5 + 5}
    facts = {"smiling_train": np.arange(30) % 2, "smiling_test": np.zeros(12, int)}
    one = {
        "source": "npz",
        "path": str(
            npz("one.npz", **users, **facts, age_train=facts["smiling_train"], age_test=facts["smiling_test"])
        ),
    }
    two = {"source": "npz", "path": str(npz("two.npz", **users, **facts))}
    data = mix(one | {"rotations": [0, 90]}, two | {"rotations": [90]})
    assert sorted(data.columns) == ["domain", "rotation", "smiling", "user"]
    user, rotation, smiling = (data.columns[name] for name in ("user", "rotation", "smiling"))
    assert len(user.names) == 20 and user.names[0] == "one:0" and user.names[10] == "two:0"
    assert user.train[60:].tolist() == (np.arange(30) % 5 + 10).tolist()
    assert user.test[24:].tolist() == (np.arange(12) % 5 + 15).tolist()
    assert rotation.names == ("0", "90") and np.bincount(rotation.train).tolist() == [30, 60]
    assert smiling.names == () and set(smiling.train) == {0, 1}


def test_a_column_domain_of_a_part_is_kept(mix, npz):
    half = {"domain_train": np.arange(30) // 15, "domain_test": np.zeros(12, int)}
    data = mix({"source": "npz", "path": str(npz("two.npz", **half))}, {})
    assert data.columns["domain"].names == ("two:0", "two:1", "small") and len(data.mean) == 3


def test_tables_with_the_same_features_are_mixed(mix, tmp_path):
    for name in ("a", "b"):
        rows = [f"{i % 7},{i % 3},{'xy'[i % 2]}" for i in range(40)]
        (tmp_path / f"{name}.csv").write_text("\n".join(["p,q,kind", *rows]))
    parts = [{"source": "table", "path": str(tmp_path / f"{n}.csv"), "target": "kind"} for n in "ab"]
    data = mix(*parts, labels="shared")
    assert data.input_shape == (2,) and data.classes == ("x", "y") and data.mean == () and not data.by_domain
    assert data.columns["domain"].names == ("a", "b") and len(data.train) == 64


def test_two_mixes_are_byte_identical_and_record_their_defaults(mix, tmp_path):
    parts = {"train_limit": 9}, {"source": "digits", "test_limit": 20}
    first, second = mix(*parts), mix(*parts, out="again")
    assert first.hash == second.hash
    for file in (tmp_path / "out").iterdir():
        assert file.read_bytes() == (tmp_path / "again" / file.name).read_bytes()
    recorded = DatasetParams.parse({"source": "mix", "parts": [{"source": "digits"}]}).parameters.parts[0]
    assert recorded["seed"] == 0 and "pad" not in recorded and "channels" not in recorded


@pytest.mark.parametrize(
    ("parts", "params", "message"),
    [
        ([], {}, r"data\.mine\.parts: \[\] .* at least one entry"),
        ([{}, {"pda": 1}], {}, r"data\.mine\.parts\[1\]\.pda: .*did you mean 'pad'"),
        ([{}, {"pad": -1}], {}, r"data\.mine\.parts\[1\]\.pad: -1 .* >= 0"),
        ([{"source": "minst"}], {}, r"data\.mine\.parts\[0\]\.source: 'minst' .*did you mean 'mnist'"),
        ([{"offset": -1}], {}, r"data\.mine\.parts\[0\]\.offset: -1 .*a whole number >= 0"),
        ([{}, {"offset": 3}], {"labels": "shared"}, r"parts\[1\]\.offset: 3 .*null, for labels: shared"),
        ([{}], {"labels": "both"}, r"data\.mine\.labels: 'both' .*separate, shared"),
        ([{}, {"train_limit": 2}], {}, r"data\.mine\.parts\[1\]\.train_limit: 2 .*at least 3"),
        ([{}, {}], {"test_limit": 2}, r"data\.mine\.test_limit: 2 .*at least 6"),
        ([{}, {"source": "digits"}], {"labels": "shared"}, r"labels: 'shared' .*parts\[1\] \(digits\) are"),
        (
            [{}, {"offset": 2}, {"offset": 30}],
            {},
            r"parts\[1\]\.offset: 2 is not accepted; expected labels that are free: small-2 would have "
            r"2\.\.4, but parts\[0\] \(small\) has 0\.\.2; the first free offset is 3$",
        ),
        ([{"offset": 3}, {"offset": 7}], {}, r"data\.mine\.parts: \[3, 7\] .*no part has the label 0"),
        ([{}, {"resize": 7}], {}, r"parts\[0\]\.pad: None .*from 4x4 to 7x7 pixels.* \(or use resize\)"),
        ([{"pad": 1}, {"resize": 8}], {}, r"parts\[0\]\.pad: 1 .*padding from 6x6 to 8x8 pixels"),
    ],
)
def test_what_does_not_fit_is_named_where_the_user_wrote_it(mix, parts, params, message):
    with refused(message):
        mix(*parts, **params)


def test_parts_of_other_kinds_are_refused(mix, npz):
    x = {"x_train": np.zeros((30, 4), np.float32), "x_test": np.zeros((12, 4), np.float32)}
    y = {"y_train": np.zeros(30, np.float32), "y_test": np.zeros(12, np.float32)}
    features = {"source": "npz", "path": str(npz("features.npz", **x))}
    with refused(r"parts\[1\]\.source: 'npz' .*expected images, as parts\[0\] has"):
        mix({}, features)
    with refused(r"data\.mine\.labels: 'separate' .*shared: parts\[0\] \(real\) has no"):
        mix({"source": "npz", "path": str(npz("real.npz", **x, **y))})
    wide = {name: np.pad(array, ((0, 0), (0, 1))) for name, array in x.items()}
    with refused(r"parts\[1\]: \[5\] .*expected features of the shape \[4\]"):
        mix(features, {"source": "npz", "path": str(npz("wide.npz", **wide))})
    columns = {name: target[:, None] for name, target in y.items()}
    real, column = (
        {"source": "npz", "path": str(npz(f"{i}.npz", **x, **t))} for i, t in enumerate((y, columns))
    )
    with refused(r"parts\[1\]: targets of the shape \[1\] is not accepted; expected \[\], as parts\[0\]"):
        mix(real, column, labels="shared")
    with refused(r"parts\[0\]\.channels: 1 .*another part is in color"):
        mix({"channels": 1}, color(npz))


def test_samples_are_added_once(mix):
    """Again, each would be among the training samples twice, on both sides of a hold-out."""
    within = {"source": "mix", "parts": [{"source": "digits"}], "merge": True}
    convex = {"source": "synthetic_convex", "devices": 3, "samples": 20}
    for part in (within, convex):
        with refused(r"merge: True .* false, because test samples of parts\[0\] are training samples"):
            mix(part, merge=True)
    assert mix(within, labels="shared").pooled and not mix(convex, out="convex").pooled
