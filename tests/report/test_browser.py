"""The page in a browser: its controls work under its policy, and what others wrote neither runs nor loads."""

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from browser import CHROMIUM, Browser, browser
from result_folders import change, write_partition, write_run

from fedflow.report.page import build_report

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium")

ATTACK = """
<svg viewBox="0 0 9 9"><?x ><img src=x onerror="document.title='run'"><img src="{address}/a">?></svg>
<svg viewBox="0 0 9 9"><path d="M0 0H9V9z" style="fill:url({address}/b#a)"/>
<image href="{address}/c" width="9"/></svg>
<script>document.title = "run"</script><script src="{address}/d"></script>
<style>body {{ background: image-set(url("{address}/e") 1x); display: none }} @import "{address}/f";</style>
<link rel="stylesheet" href="{address}/g"><link rel="prefetch" href="{address}/h">
<link rel="icon" href="{address}/i">
<div id="j" style="background: image-set('{address}/j' 1x); width: 9px; height: 9px">a</div>
<iframe src="{address}/k"></iframe><object data="{address}/l"></object><embed src="{address}/m">
<video src="{address}/n" poster="{address}/o" autoplay></video><audio src="{address}/p" autoplay></audio>
<iframe srcdoc="<script>top.document.title = 'run'</script>"></iframe><base href="{address}/">
<svg><use href="{address}/q#a"/><foreignObject><img src="{address}/r"></foreignObject></svg>
<form action="{address}/s" id="s"><button>send</button></form>
<svg onload="document.title='run'"><animate onbegin="document.title='run'" attributeName="x" dur="1s"/></svg>
"""


@pytest.fixture(scope="module")
def tab() -> Iterator[Browser]:
    with browser() as opened:
        yield opened


@pytest.fixture
def asked() -> Iterator[tuple[str, list[str]]]:
    """The address of a server on this machine, and the paths that it was asked for."""
    paths: list[str] = []

    class Listener(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            paths.append(self.path)
            self.send_response(204)
            self.end_headers()

        do_POST = do_GET

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Listener)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}", paths
    server.shutdown()
    thread.join()
    server.server_close()


def page(root: Path, **facts: str) -> Path:
    for method in ("fedavg", "ditto"):
        write_run(root / "results", "p", method, 0)
        change(root / "results" / "p" / method / "0" / "metrics.json", **facts)
    write_partition(root / "partitions", "p", scheme="dirichlet", alpha=0.1)
    return build_report(root / "results", root / "partitions", root / "report")


def test_controls_work_under_the_policy(tmp_path: Path, tab: Browser) -> None:
    tab.open(page(tmp_path))
    head = "document.querySelector('#accuracy table').tHead.rows[0].cells[1]"
    tab.ask(f"{head}.querySelector('button').click()")
    assert tab.ask(f"{head}.getAttribute('aria-sort')") == "descending" and tab.ask(f"{head}.title")
    tab.ask("document.querySelector('.toggles input[value=full]').click()")
    assert tab.ask("document.querySelector('#curves .zoomed').hidden")
    tab.ask("document.querySelector('.toggles input[data-place=\"1\"]').click()")
    hidden = "[...document.querySelectorAll('#curves [id$=-line-1]')].map((e) => getComputedStyle(e).display)"
    assert set(tab.ask(hidden)) == {"none"}
    colors = "[...document.querySelectorAll('.swatch')].map((e) => getComputedStyle(e).borderTopColor)"
    assert "rgb(0, 114, 178)" in tab.ask(colors)
    joins = "[...document.querySelectorAll('svg path')].map((e) => getComputedStyle(e).strokeLinejoin)"
    assert "round" in tab.ask(joins)
    assert tab.said == []


def test_nothing_that_reaches_the_page_runs_or_loads(
    tmp_path: Path, tab: Browser, asked: tuple[str, list[str]]
) -> None:
    """As if the check of pictures had failed: the policy is a second wall."""
    address, paths = asked
    written = page(tmp_path)
    attack = ATTACK.format(address=address)
    written.write_text(written.read_text().replace("<main>", f"<main>{attack}"))
    tab.open(written)
    title = tab.ask("document.title")
    tab.ask("document.querySelector('#s').submit()")
    tab.ask("new Promise((done) => setTimeout(done, 300))")
    assert tab.ask("getComputedStyle(document.body).display") == "block"
    assert (title, tab.ask("document.title"), paths) == ("Federated methods compared",) * 2 + ([],)
    assert any("Content Security Policy" in said for said in tab.said)
    tab.said.clear()


def test_names_are_text(tmp_path: Path, tab: Browser) -> None:
    name = "<img src=x onerror=\"document.title='run'\">"
    tab.open(page(tmp_path, method_label=name))
    assert tab.ask("document.title") == "Federated methods compared" and tab.said == []
    assert name in tab.ask("document.querySelector('#accuracy tbody th').innerText")
    assert tab.ask("document.querySelectorAll('img[onerror]').length") == 0
