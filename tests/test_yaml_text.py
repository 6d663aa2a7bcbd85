"""YAML is read in one way: what versions read differently, or what is no plain value, is one line."""

from pathlib import Path

import pytest
from command import fedflow, make_project, one_line_error

from fedflow.claims.claims import load_claims
from fedflow.config import load_params
from fedflow.errors import FedflowError
from fedflow.project.yaml_text import YamlError, as_yaml, yaml_value

BOMB = "a: &a [x,x,x,x,x,x,x,x,x,x]\n" + "".join(
    f"{name}: &{name} [{','.join([f'*{before}'] * 10)}]\n" for before, name in zip("abcdefg", "bcdefgh")
)
REFUSED = {
    "x: 2026-13-45": "2026-13-45 is a date in YAML: put it in quotes",
    "x: 2026-01-01 25:00:00": "is a date",
    "x: 2026-01-02": "is a date",
    "x: 0b_": "not read alike by all versions of YAML",
    "x: 0x_": "not read alike",
    "x: 0b11": "not read alike",
    "x: 010": "not read alike",
    "x: 09": "not read alike",
    "x: 0o17": "not read alike",
    "x: 1:30": "1:30 is not read alike",
    "x: 1:30.5": "not read alike",
    "x: 1_000": "not read alike",
    "x: 1_0.0": "not read alike",
    "x: off": "off is a truth value in YAML 1.1: write true or false, or put it in quotes",
    "x: Yes": "truth value",
    f"x: {'1' * 5000}": "a number of 5000 digits is too long",
    "x: !!int x": "x is not a value of the tag !!int",
    "x: !!float x": "not a value of the tag !!float",
    "x: !!bool x": "not a value of the tag !!bool",
    "x: !!timestamp x": "the tag !!timestamp is not accepted",
    "x: !!set {32: null}": "the tag !!set",
    "x: !!omap [a: 1]": "the tag !!omap",
    "x: !!pairs [a: 1]": "the tag !!pairs",
    "x: !!binary aGk=": "the tag !!binary",
    "x: !!python/name:os.system ''": "the tag !!python/name:os.system",
    "x: !mine 1": "the tag !mine",
    "x: !!map [1]": "the tag !!map",
    f"x: {'[' * 2000}": "more than 64 lists or maps within one another",
    "x: &h [32, *h]": "an alias that refers to itself",
    "x: &r {x: *r}": "an alias that refers",
    "x: &r {<<: *r}": "an alias that refers",
    BOMB: "aliases repeat more than 100,000 values",
    "x: {<<: 3}": "<< needs a map, or a list of maps",
    "x: {<<: [1]}": "<< needs a map",
    "x: {<<: {a: 1}, <<: {b: 1}}": "found the key '<<' twice",
    "x: 1\nx: 2": "line 2: found the key 'x' twice",
    "1: 2": "the key 1 is a number in YAML: put it in quotes",
    "2026-01-02: {}": "the key 2026-01-02 is a date in YAML: put it in quotes",
    ".nan: 2": "the key .nan is a number",
    "-.inf: 2": "the key -.inf is a number",
    "null: 2": "the key null is nothing",
    "? [a]\n: b": "the key is a list; expected a name",
    "? {a: 1}\n: b": "the key is a map; expected a name",
    "a: 1\n\tx: 1": "line 2: not valid YAML",
    "x: *unknown": "found undefined alias 'unknown'",
    "a: 1\n---\nb: 2": "line 2: not valid YAML: expected a single document",
    "a: 1\nb: a\0b": r"line 2: not valid YAML: found the character '\x00'",
    'x: "a\\0b"': r"the character '\x00'; expected text",
    'x: "\\e[31m"': r"the character '\x1b'; expected text",
    'x: "\\ud800"': r"the character '\ud800'; expected text",
    'x: "\\U00110000"': "not valid YAML",
    f"%YAML 1.{'9' * 5000}\n---\nx: 1": "not valid YAML",
}


@pytest.mark.parametrize("text", REFUSED, ids=lambda text: ascii(text[:24]))
def test_what_is_no_plain_value_is_refused_with_its_line(text):
    with pytest.raises(YamlError) as error:
        yaml_value(text)
    assert REFUSED[text] in str(error.value) and str(error.value).startswith("line ")
    assert "\n" not in str(error.value) and len(str(error.value)) < 200


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("x: [1, -2, 0x1F, 1.5, .5, 1.5e-3, !!float 1]", [1, -2, 31, 1.5, 0.5, 0.0015, 1.0]),
        ("x: [true, False, null, ~, ]", [True, False, None, None]),
        (
            "x: [1e3, 1e-3, '010', !!str 010, 'off', y, '2026-01-02', =, <<]",
            ["1e3", "1e-3", "010", "010", "off", "y", "2026-01-02", "=", "<<"],
        ),
        ("x: |\n  two\n  lines\n", "two\nlines\n"),
        (b"\xef\xbb\xbfx: gr\xc3\xb6\xc3\x9fe\r\n", "größe"),
        ("b: &b {p: 1, q: 2}\nx: {<<: [*b, {p: 9, r: 1}], q: 3}", {"p": 1, "q": 3, "r": 1}),
    ],
)
def test_plain_values_are_read_as_before(text, value):
    found = yaml_value(text)["x"]
    assert found == value and [*map(type, found)] == [*map(type, value)]


@pytest.mark.parametrize("text", ["", "# nothing\n"])
def test_a_file_without_a_value_is_null(text):
    assert yaml_value(text) is None


@pytest.mark.parametrize("value", ["2026-13-45", "&h [32, *h]", "!!set {32: null}", "0b_", "!!bool x", "010"])
def test_every_reader_of_yaml_says_the_file_and_the_line(tmp_path, value):
    params, claims = tmp_path / "params.yaml", tmp_path / "claims.yaml"
    params.write_text(f"run:\n  rounds: {value}\n")
    claims.write_text(f"- id: one\n  by: {value}\n")
    with one_line_error(r"params.yaml, line 2: "):
        load_params(params)
    with one_line_error(r"claims.yaml, line 2: "):
        load_claims(claims)
    with one_line_error(r"^--set: .*a value in YAML after the = sign \(", FedflowError):
        load_params(make_project(tmp_path / "project") / "params.yaml", [f"run.rounds={value}"])


def test_commands_end_with_the_line_and_code_2(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(make_project(tmp_path / "project"))
    Path("params.yaml").write_text("procedures: []\n")
    done = fedflow(capsys, "procedures")
    assert done.code == 2 and "procedures: [] is not accepted; expected a mapping" in done.err
    Path("params.yaml").write_text("procedures:\n  mine: !!int x\n")
    for command in (("procedures",), ("prepare", "digits"), ("doctor",)):
        done = fedflow(capsys, *command)
        assert done.code == 2 and "params.yaml, line 2: x is not a value" in done.err + done.out, command


@pytest.mark.parametrize(
    "text", ["09257836", "010", "12345678", "1_000", "0o17", "1e5", "off", "2026-01-02", "ä", ""]
)
def test_text_is_written_so_that_it_is_read_again(text: str) -> None:
    assert yaml_value(as_yaml({"judged": text, text: [text]})) == {"judged": text, text: [text]}
