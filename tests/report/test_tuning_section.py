"""The tuning section of the page: what was tried, chosen, and drawn."""

import re
from pathlib import Path

import pytest
from result_folders import write_run
from support import refused

from fedflow.errors import FedflowError
from fedflow.report.page import build_report

HEAD = "training.lr,lam,accuracy,spread,loss,chosen,settings"


def shown(root: Path, **tables: str) -> str:
    """The section of the page for score files of the partition ``p``, by method; empty without one."""
    write_run(root / "results", "p", "fedavg", 0)
    for method, lines in tables.items():
        file = root / "tuning" / "p" / f"{method}.csv"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(lines)
    page = build_report(
        root / "results", root / "partitions", root / "report", tried=root / "tuning"
    ).read_text()
    assert ('href="#tuning"' in page) == ('id="tuning"' in page)
    return page.partition('<section id="tuning">')[2].partition("</section>")[0]


def rows(section: str) -> dict[str, list[str]]:
    """The text of the cells by label, in their order."""
    found = {}
    for row in re.findall("<tr>(.*?)</tr>", section, re.DOTALL)[1:]:
        label, *cells = (
            " ".join(re.sub("<[^>]*>", " ", cell).split())
            for cell in re.findall("<t[hd].*?>(.*?)</t[hd]>", row, re.DOTALL)
        )
        found[label] = cells
    return found


def test_methods_are_ordered_by_their_best_score(tmp_path):
    section = shown(
        tmp_path,
        fedavg=f"{HEAD.replace('lam,', '')}\n0.01,0.5,0.1,1,False,a\n0.1,0.6,0.12,1,True,b\n",
        ditto=f"{HEAD}\n0.01,1,0.7,0.1,1,False,a\n0.1,1,0.8,0.2,1,True,b\n0.1,2,,,,False,c\n",
    )
    assert rows(section) == {
        "ditto": ["training.lr 0.1, lam 1", "80.0 % ± 20.0 %", "70.0 %", "3 1 diverged"],
        "FedAvg": ["training.lr 0.1", "60.0 % ± 12.0 %", "50.0 %", "2"],
    }
    assert list(rows(section)) == ["ditto", "FedAvg"]
    assert re.findall("<h4>(.*?)</h4>", section) == ["training.lr", "lam"]
    assert section.count("<svg") == 2 and "accuracy, %" in section


def test_of_a_regression_the_lowest_loss_is_the_best(tmp_path):
    section = shown(
        tmp_path,
        fedavg="kind,accuracy,spread,loss,chosen,settings\nb,,,0.5,False,a\na,,,0.25,True,b\n",
        local="kind,accuracy,spread,loss,chosen,settings\nb,,,0.125,True,a\na,,,0.25,False,b\n",
    )
    assert list(rows(section)) == ["local", "FedAvg"]
    assert rows(section)["FedAvg"] == ["kind a", "0.25", "0.5", "2"]
    assert section.count("<svg") == 1 and "accuracy, %" not in section


@pytest.mark.parametrize("other", ["10.0", "abc"])
def test_null_is_a_value_of_a_setting(other, tmp_path):
    """It may be the chosen one."""
    section = shown(
        tmp_path,
        fedavg=f"training.clip,accuracy,spread,loss,chosen,settings\n,0.7,,1,True,a\n{other},0.5,,1,False,b\n",
    )
    assert rows(section)["FedAvg"][0] == "training.clip null"
    assert section.count("<svg") == 1 and ">null</text>" in section


def test_a_method_whose_every_try_diverged_has_no_choice(tmp_path):
    section = shown(tmp_path, fedavg=f"{HEAD}\n0.01,1,,,,False,a\n0.1,1,,,,False,b\n")
    assert rows(section) == {"FedAvg": ["–", "–", "–", "2 2 diverged"]}


def test_without_scores_there_is_no_section(tmp_path):
    assert not shown(tmp_path)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "truncated or damaged"),
        (f"{HEAD}\n0.1,1,0.5,0.1,1,maybe,a\n", "column chosen needs"),
        (f"{HEAD}\n0.1,1,50,0.1,1,True,a\n", "column accuracy has 50"),
        (f"{HEAD}\n0.1,1,0.5,x,1,True,a\n", "column spread is not numeric"),
    ],
)
def test_a_damaged_file_is_one_line(tmp_path, text, words):
    with refused(rf"fedavg\.csv: {words}", FedflowError):
        shown(tmp_path, fedavg=text)
