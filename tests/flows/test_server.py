"""The shared API server: found again, not doubled, and not trusted after a kill."""

import json
import os
import subprocess
import sys
import time
import urllib.request
from io import StringIO
from pathlib import Path
from threading import Thread

import psutil
import pytest
from command import free_port
from filelock import FileLock
from services import answers, family, living, started, wait_for
from sqlalchemy.engine import make_url
from support import refused

from fedflow.errors import FedflowError
from fedflow.project import waiting
from flows import server


@pytest.fixture
def folder(api):
    return server.home()


def without_server(home: Path) -> dict[str, str]:
    """The environment of a process that keeps its server in ``home``."""
    return {k: v for k, v in os.environ.items() if k != "PREFECT_API_URL"} | {"PREFECT_HOME": str(home)}


def test_later_runs_share_the_server_and_its_page(api, folder, monkeypatch):
    monkeypatch.delenv("PREFECT_API_URL")
    with server.prefect_api() as url:
        assert url == api == os.environ["PREFECT_API_URL"]
        assert server.used(folder)
        assert Path(os.environ[server.CERTIFICATES]).read_text().count("BEGIN CERTIFICATE") == 1
    with urllib.request.urlopen(api.removesuffix("/api")) as page:
        assert b"<html" in page.read().lower()


def test_requests_to_the_server_bypass_a_proxy(api, monkeypatch):
    from prefect import get_client

    for name in ("no_proxy", "NO_PROXY", "PREFECT_API_URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    monkeypatch.setattr(urllib.request, "_opener", None)  # it keeps earlier proxies
    assert not server._healthy(api)
    with server.prefect_api() as url:
        assert url == api and server._healthy(url)
        with get_client(sync_client=True) as client:
            assert client.api_healthcheck() is None


def test_the_flows_need_no_module_of_one_system():
    """Such as fcntl, which Windows lacks."""
    code = "import sys; sys.modules['fcntl'] = None; import flows.server, flows.serve, fedflow.cli"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_every_process_that_uses_the_server_counts(tmp_path):
    """Also while another one looks, and until the last one ends."""
    assert not server.used(tmp_path)
    with server._using(tmp_path):
        with server._using(tmp_path):
            assert server.used(tmp_path)
        assert server.used(tmp_path) and len(list(tmp_path.glob("user-*"))) == 2
    assert not server.used(tmp_path)


def test_a_step_of_the_clock_starts_no_second_server(api, folder):
    file = folder / "server.json"
    state = json.loads(file.read_text())
    moved = state | {"born": state.get("born", time.time()) - 3600}  # boot time, on a clock that was set
    try:
        file.write_text(json.dumps(moved))
        assert server.running(folder) == api
    finally:
        file.write_text(json.dumps(state))


def test_a_server_that_was_killed_is_not_trusted(folder, tmp_path):
    """Its file stays, also where its number and its port belong to another process now."""
    (tmp_path / "server.json").write_text((folder / "server.json").read_text())
    assert server.running(tmp_path) is None
    with FileLock(tmp_path / server.ALIVE):
        assert server.running(tmp_path) is not None


def test_a_server_of_another_machine_is_left_alone(folder, tmp_path, monkeypatch):
    """A process of this machine may have the number that the server has on the other one."""
    state = json.loads((folder / "server.json").read_text())
    gone = {"pid": os.getpid(), "host": "node7"}  # here, another server has this port
    (tmp_path / "server.json").write_text(json.dumps(state | gone))
    monkeypatch.setenv("PREFECT_HOME", str(tmp_path))
    monkeypatch.delenv("PREFECT_API_URL", raising=False)
    with FileLock(tmp_path / server.ALIVE):
        with refused("the Prefect server of .* runs on node7; set PREFECT_HOME to another", FedflowError):
            server.stop()
        with refused("the Prefect server of .* runs on node7", FedflowError), server.prefect_api():
            pass


USE = """
from flows.server import prefect_api
with prefect_api() as url:
    print(url, flush=True)
    input()
"""


def test_a_run_that_was_killed_does_not_keep_the_server(api, folder, tmp_path):
    for name in ("server.json", "password"):
        (tmp_path / name).write_text((folder / name).read_text())
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with FileLock(tmp_path / server.ALIVE):
        run = subprocess.Popen([sys.executable, "-c", USE], env=without_server(tmp_path), **pipes)
        assert run.stdout.readline().strip() == api
        assert server.used(tmp_path)
        run.kill()
        run.communicate()
    assert not server.used(tmp_path)


def test_a_taken_port_is_one_line(folder, tmp_path, monkeypatch):
    port = int(json.loads((folder / "server.json").read_text())["url"].split(":")[2].removesuffix("/api"))
    monkeypatch.setenv("PREFECT_HOME", str(tmp_path))
    monkeypatch.delenv("PREFECT_API_URL")
    refused = pytest.raises(server.FedflowError, match=f"--port: {port} is not accepted")
    with refused, server.prefect_api(port):
        pass


@pytest.mark.parametrize("seconds", ["0", "-1", "nan", "inf", "soon"])
def test_a_limit_of_the_start_that_is_none_is_one_line(tmp_path, monkeypatch, seconds):
    monkeypatch.setenv("PREFECT_HOME", str(tmp_path))
    monkeypatch.delenv("PREFECT_API_URL", raising=False)
    monkeypatch.setenv(server.PATIENCE, seconds)
    expected = f"FEDFLOW_SERVER_TIMEOUT: '{seconds}' is not accepted; expected a number of seconds > 0"
    with pytest.raises(server.FedflowError, match=expected), server.prefect_api():
        pass


def test_a_server_that_starts_too_slowly_is_one_line_with_the_limit(tmp_path, monkeypatch):
    monkeypatch.setenv("PREFECT_HOME", str(tmp_path))
    monkeypatch.delenv("PREFECT_API_URL", raising=False)
    monkeypatch.setenv(server.PATIENCE, "0.1")
    limit = r"did not answer within 0.1 s \(FEDFLOW_SERVER_TIMEOUT in seconds\); see "
    with pytest.raises(server.FedflowError, match=limit), server.prefect_api():
        pass
    wait_for(server.stop)


def test_a_wait_for_the_server_is_announced_once(tmp_path, monkeypatch):
    """Both while it starts and while it is stopped."""
    monkeypatch.setenv("PREFECT_HOME", str(tmp_path))
    monkeypatch.delenv("PREFECT_API_URL", raising=False)
    monkeypatch.setattr(waiting, "LONG", 0.5)
    monkeypatch.setattr(waiting, "_ANNOUNCED", set())
    limit = f"(at most 600 s, FEDFLOW_SERVER_TIMEOUT; log: {tmp_path / 'server.log'})"
    line = f"waiting for the Prefect API server to answer {limit}\n"
    said, urls = StringIO(), []  # `capsys` loses what another thread prints while it is read
    monkeypatch.setattr(sys, "stdout", said)

    def use() -> None:
        with server.prefect_api() as url:
            urls.append(url)

    try:
        use()
        started = f"starting the Prefect API server (once; later runs share it) ...\n{line}"
        assert said.getvalue() == started
        waiting._ANNOUNCED.clear()
        process = psutil.Process(json.loads((tmp_path / "server.json").read_text())["pid"])
        process.suspend()
        later = Thread(target=use)
        later.start()
        while later.is_alive() and said.getvalue() == started:
            time.sleep(0.05)
        process.resume()
        later.join()
        assert said.getvalue() == started + line
        assert len(urls) == 2 and len({*urls}) == 1
    finally:
        server.stop()


@pytest.mark.parametrize("port", ["-1", "65536"])
def test_an_impossible_port_of_make_serve_is_one_line_and_code_2(tmp_path, port):
    command = [sys.executable, "-m", "flows.serve", "--port", port]
    done = subprocess.run(
        command, check=False, capture_output=True, text=True, env=without_server(tmp_path / "home")
    )
    line = f"fedflow: --port: {port} is not accepted; expected a port from 0 to 65535\n"
    assert (done.returncode, done.stdout, done.stderr) == (2, "", line)


@pytest.mark.parametrize(
    "url",
    [
        "foo",
        "4200",
        "127.0.0.1:4200",
        "http://",
        "http://h:x/api",
        "http://h:70000",
        "http://[::1/api",
        "ftp://h/api",
    ],
)
def test_an_address_that_is_none_is_one_line(monkeypatch, url):
    monkeypatch.setenv("PREFECT_API_URL", url)
    refused = pytest.raises(
        server.FedflowError, match=r"PREFECT_API_URL: .* is not accepted; expected an addre"
    )
    with refused, server.prefect_api():
        pass


@pytest.mark.parametrize(
    ("given", "words"),
    [("fedflow:wrong", ["run", "--method", "fedavg", "--partition", "digits-6"]), ("", ["sweep"])],
    ids=["wrong", "missing"],
)
def test_a_wrong_password_is_one_line_before_any_cell(api, command, root, given, words):
    program, environment = command
    environment = environment | {server.PASSWORD: given}
    line = f"fedflow: the Prefect server at {api} refuses PREFECT_API_AUTH_STRING (user:password)\n"
    done = subprocess.run(
        [*program, *words, "--root", str(root)], check=False, capture_output=True, text=True, env=environment
    )
    assert (done.returncode, done.stderr) == (2, line) and "1 of 2:" not in done.stdout


def test_a_password_in_a_file_of_prefect_is_known(api, command, tmp_path):
    environment = {name: value for name, value in command[1].items() if name != server.PASSWORD}
    (tmp_path / "prefect.toml").write_text(f"[api]\nauth_string = {os.environ[server.PASSWORD]!r}\n")
    code = "from flows.server import prefect_api\nwith prefect_api() as url: print(url)"
    run = [sys.executable, "-c", code]
    done = subprocess.run(run, check=False, capture_output=True, text=True, env=environment, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, f"{api}\n"), done.stderr


@pytest.mark.parametrize("name", ["plain", "my%20project", "größe 1#c"])
def test_the_database_is_in_the_home_whatever_its_name(tmp_path, monkeypatch, name):
    monkeypatch.delenv(server.DATABASE, raising=False)
    url = make_url(server.private(tmp_path / name)[server.DATABASE])
    assert url.database == str(tmp_path / name / "prefect.db") and url.drivername == "sqlite+aiosqlite"


def test_the_context_of_a_server_leaves_the_variables_as_they_were(tmp_path, monkeypatch):
    """A variable that stays would name this project's database to the next project of the process."""
    names = (
        "PREFECT_API_URL",
        server.CERTIFICATES,
        server.DATABASE,
        server.PASSWORD,
        server.UI,
        server.DIRECT,
    )
    for name in names:
        monkeypatch.delenv(name, raising=False)
    for name, value in server.private(tmp_path).items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv(server.DATABASE)
    monkeypatch.setattr(server, "running", lambda folder: "http://127.0.0.1:9/api")
    server.password_file(tmp_path).write_text("user:word")
    with server.prefect_api():
        assert os.environ.keys() >= {*names}
    assert not os.environ.keys() & {*names}


def test_without_a_server_there_is_nothing_to_stop(tmp_path, monkeypatch):
    monkeypatch.setenv("PREFECT_HOME", str(tmp_path / "none"))
    assert not server.used(server.home())
    assert not server.stop()


@pytest.mark.slow  # a server, a command line and a worker, each of which imports Prefect
def test_sigterm_ends_what_make_serve_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(Path(__file__).parents[2])  # where prefect.yaml is
    command, port = (sys.executable, "-m", "flows.serve", "--port"), free_port()
    with started(*command, str(port), environment=without_server(tmp_path / "home")) as serve:
        wait_for(lambda: [p for p in living(family(serve)) if "worker" in p.cmdline()], serve)
        assert answers(f"http://127.0.0.1:{port}/api/health")
        processes = family(serve)  # the server is one of them
        serve.terminate()
        wait_for(lambda: not living(processes))
    assert not answers(f"http://127.0.0.1:{port}/api/health")
