"""What is printed holds text of others as it is: square brackets are no markup."""

import os
import subprocess
import sys
from subprocess import PIPE

import pytest
from command import PARAMS, fedflow

from fedflow.project.terminal import RoundBar
from fedflow.simulation.outcome import RoundReport

REASONS = [
    "RuntimeError: [/pytorch/third_party/gloo/pair.cc:525] Connection closed by peer",
    "ValueError: expected [n, c], got [n]",
    "RuntimeError: [enforce fail at alloc_cpu.cpp:118] . :warning: not enough memory",
]


@pytest.mark.parametrize("reason", REASONS)
def test_the_reason_of_a_failed_client_is_printed_in_full(capsys, reason):
    with RoundBar("part[a] · fedavg") as bar:
        bar.round(RoundReport(1, [0, 1], {1: reason}, values={"local_accuracy": 0.5}), 2)
    assert capsys.readouterr().out.splitlines() == [
        f"part[a] · fedavg: round 1: client 1 left out: {reason}",
        "part[a] · fedavg: round 1/2, local accuracy 0.500",
    ]


def test_work_goes_on_when_its_output_is_gone() -> None:
    """A pipe whose reader has ended, and a terminal that was closed."""
    code = """
import os, sys
from fedflow.project.terminal import RoundBar, say
from fedflow.simulation.outcome import RoundReport
if sys.argv[1] == "closed": os.close(1)
else: sys.stdin.readline()
with RoundBar("p · m") as bar:
    for t in range(1, 9):
        say("x" * 9000)
        bar.round(RoundReport(t, [0], {1: "reason"}, values={"local_accuracy": 0.5}), 9)
print("all rounds", file=sys.stderr)
"""
    for how in ("piped", "closed"):
        work = subprocess.Popen(
            [sys.executable, "-c", code, how], stdin=PIPE, stdout=PIPE, stderr=PIPE, text=True
        )
        assert work.stdin and work.stdout and work.stderr
        work.stdout.close()
        work.stdin.write("go\n")
        work.stdin.close()
        said = work.stderr.read()
        assert work.wait() == 0 and said == "all rounds\n", said


@pytest.mark.parametrize(
    ("code", "line"),
    [
        ("from fedflow.project.terminal import say; say('p · m')", "p ? m"),
        ("from fedflow import cli; cli.main()", "?"),
    ],
)
def test_characters_that_the_terminal_lacks_are_replaced(code: str, line: str) -> None:
    """By `say`, and by all that a command prints."""
    command = [sys.executable, "-c", code, "published"]
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert (done.returncode, done.stderr) == (0, "") and line in done.stdout


def test_lines_say_how_long_the_rest_takes_if_that_is_long(capsys, monkeypatch):
    """Replayed rounds take no time and do not count."""
    now = [0.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    with RoundBar("p · m") as bar:
        for t, seconds in ((1, 0.1), (2, 0.1), (3, 30.0), (4, 30.0), (99, 2850.0), (100, 30.0)):
            now[0] += seconds
            bar.round(RoundReport(t, [0], values={"local_accuracy": 0.5}, replayed=t < 3), 100)
    assert capsys.readouterr().out.splitlines() == [
        "p · m: round 3/100, local accuracy 0.500",
        "p · m: round 4/100, local accuracy 0.500, about 48 min left",
        "p · m: round 99/100, local accuracy 0.500",
        "p · m: round 100/100, local accuracy 0.500",
    ]


def test_the_first_estimate_does_not_wait_for_an_evaluation(capsys, monkeypatch):
    now = [0.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    with RoundBar("p · m") as bar:
        for t in range(1, 5):
            now[0] += 30.0
            bar.round(RoundReport(t, [0], values={"local_accuracy": 0.5} if t == 4 else {}), 100)
    assert capsys.readouterr().out.splitlines() == [
        "p · m: round 2/100, about 49 min left",
        "p · m: round 4/100, local accuracy 0.500, about 48 min left",
    ]


def test_a_bar_shows_its_title_in_full(capsys, monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "100")
    with RoundBar("part[a] · [/b]") as bar:
        bar.round(RoundReport(1, [0, 1]), 2)
    assert "part[a] · [/b]" in capsys.readouterr().out


@pytest.mark.parametrize("value", ["[/b]", "[bold]"])
def test_tables_and_errors_show_values_in_full(capsys, tmp_path, value):
    (tmp_path / "params.yaml").write_text(PARAMS.replace("fraction: 0.5", f"fraction: '{value}'"))
    assert f"{value!r} is not accepted" in fedflow(capsys, "doctor", "--root", tmp_path).out
    assert f"{value!r} is not accepted" in fedflow(capsys, "partition", "skewed", "--root", tmp_path).err


def test_references_of_options_are_shown(capsys):
    from fedflow.methods import METHODS
    from fedflow.methods.catalogue import describe

    options = ((name, option) for name in sorted(METHODS) for option in describe(METHODS[name]).options)
    name, source = next((n, o["source"]) for n, o in options if o["source"] and o["source"][0].islower())
    assert f"[{source.split()[0]}" in fedflow(capsys, "methods", name).out
