"""A web page of somebody else, and another user of this machine, against the servers that fedflow starts.

A browser adds ``Origin`` to what a page elsewhere sends, asks first (OPTIONS) unless the request is a simple
one (``text/plain``), and sends the page's own ``Host`` where its name was made to point here (DNS rebinding).
"""

import http.client
import json
import stat
import subprocess
from base64 import b64encode
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from urllib.parse import urlsplit

import psutil
import pytest
from services import family, fedflow_ui, living, wait_for
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import connect

from flows import server

EVIL = "http://evil.example"
PREFLIGHT = {"Origin": EVIL, "Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "x"}
SIMPLE = {"Origin": EVIL, "Content-Type": "text/plain"}
ALLOWED = "access-control-allow-origin"


def browser(url: str) -> Callable[..., SimpleNamespace]:
    """Sends one request to the server at ``url``: ``ask(method, path, body, **headers)``."""

    def ask(method: str, path: str, body: object = None, headers: dict | None = None) -> SimpleNamespace:
        connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=60)
        connection.request(method, path, None if body is None else json.dumps(body), headers or {})
        reply = connection.getresponse()
        found = {name.lower(): value for name, value in reply.getheaders()}
        return SimpleNamespace(status=reply.status, headers=found, text=reply.read().decode())

    return ask


def listening(processes: list[psutil.Process]) -> set[str]:
    """The addresses at which any of these processes can be reached."""
    found = [c for process in processes for c in process.net_connections("inet")]
    return {c.laddr.ip for c in found if c.status == psutil.CONN_LISTEN}


class TestPrefect:
    """The API server, as every run and ``make serve`` start it."""

    @pytest.fixture
    def ask(self, api: str) -> Callable[..., SimpleNamespace]:
        return browser(api)

    @pytest.fixture
    def login(self, api: str) -> dict[str, str]:
        """What the page of the server sends once its user has logged in."""
        password = server.password_file(server.home()).read_text()
        return {"Authorization": f"Basic {b64encode(password.encode()).decode()}"}

    def test_a_page_elsewhere_may_not_ask(self, ask):
        reply = ask("OPTIONS", "/api/deployments/filter", headers=PREFLIGHT)
        assert reply.status == 400 and ALLOWED not in reply.headers

    @pytest.mark.parametrize("headers", [SIMPLE, {}], ids=["a page elsewhere", "another user"])
    @pytest.mark.parametrize("path", ["flow_runs/filter", "flows/", "deployments/filter", "variables/"])
    def test_who_has_no_password_reads_and_changes_nothing(self, ask, path, headers):
        reply = ask("POST", f"/api/{path}", {"name": "evil", "value": 1}, headers)
        assert reply.status == 401 and ALLOWED not in reply.headers
        guess = headers | {"Authorization": f"Basic {b64encode(b'admin:pass').decode()}"}
        assert ask("POST", f"/api/{path}", {"name": "evil", "value": 1}, guess).status == 401

    @pytest.mark.parametrize("host", ["evil.example", "127.0.0.1.evil.example", "10.0.0.1"])
    @pytest.mark.parametrize("path", ["/", "/ui-settings", "/api/health", "/api/admin/version"])
    def test_a_name_that_was_made_to_point_here_is_refused(self, ask, login, host, path):
        assert ask("GET", path, headers=login).status == 200
        assert ask("GET", path, headers=login | {"Host": host}).status == 400

    def test_a_socket_wants_the_password(self, api):
        events = f"{api.replace('http', 'ws', 1)}/events/out"
        page = {"subprotocols": ["prefect"], "origin": EVIL, "open_timeout": 60}
        with pytest.raises(ConnectionClosed), connect(events, **page) as socket:
            socket.send(json.dumps({"type": "auth", "token": "guess"}))
            socket.recv(60)

    def test_its_own_page_may_ask_and_logs_in(self, ask, api, login):
        own = {"Origin": api.removesuffix("/api")}
        reply = ask("OPTIONS", "/api/flows/filter", headers=PREFLIGHT | own)
        assert (reply.status, reply.headers[ALLOWED]) == (200, own["Origin"])
        headers = own | login | {"Content-Type": "application/json"}
        assert ask("POST", "/api/flows/filter", {}, headers).status == 200
        assert json.loads(ask("GET", "/ui-settings").text)["auth"] == "BASIC"

    def test_it_listens_on_this_machine_only_and_its_files_are_private(self, api):
        home = server.home()
        state = json.loads((home / "server.json").read_text())
        assert listening([psutil.Process(state["pid"])]) == {"127.0.0.1"}
        modes = dict.fromkeys(("password", "server.json", "server.log", "prefect.db"), 384) | {"": 0o700}
        assert {name: stat.S_IMODE((home / name).stat().st_mode) for name in modes} == modes

    @pytest.mark.full  # test_federate.py: so does a run that is killed
    def test_a_run_finds_the_server_and_its_password(self, command, root, seen, results, expected):
        program, environment = command
        for name in ("PREFECT_API_URL", server.PASSWORD, server.CERTIFICATES):
            environment.pop(name)
        arguments = [*program, "run", "--partition", "digits-6", "--method", "fedavg", "--root", str(root)]
        done = subprocess.run(arguments, check=False, env=environment, capture_output=True, text=True)
        assert (done.returncode, done.stderr) == (0, "")
        assert results(root) == expected("fedavg")
        assert seen("federate").flow_run.state.is_completed()


class TestMLflow:
    """The record, as ``fedflow ui`` shows it."""

    SEARCH = "/api/2.0/mlflow/experiments/search"

    @pytest.fixture(scope="class")
    def ui(self, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SimpleNamespace]:
        with pytest.MonkeyPatch.context() as patch:
            patch.delenv("MLFLOW_TRACKING_URI", raising=False)
            (root := tmp_path_factory.mktemp("record")).joinpath("mlruns").mkdir()
            with fedflow_ui(root) as (process, url):
                yield SimpleNamespace(process=process, url=url)

    @pytest.fixture
    def ask(self, ui: SimpleNamespace) -> Callable[..., SimpleNamespace]:
        return browser(ui.url)

    def test_a_page_elsewhere_may_not_ask(self, ask):
        assert ALLOWED not in ask("OPTIONS", self.SEARCH, headers=PREFLIGHT).headers
        reply = ask("POST", "/api/2.0/mlflow/experiments/create", {"name": "evil"}, SIMPLE)
        assert reply.status == 403 and ALLOWED not in reply.headers

    @pytest.mark.parametrize("host", ["evil.example", "10.evil.example", "192.168.evil.example", "10.0.0.1"])
    @pytest.mark.parametrize("path", ["/", SEARCH + "?max_results=1"])
    def test_a_name_that_was_made_to_point_here_is_refused(self, ask, ui, host, path):
        assert ask("GET", path).status == 200
        assert ask("GET", path, headers={"Host": f"{host}:{urlsplit(ui.url).port}"}).status == 403

    def test_its_own_page_may_ask(self, ask, ui):
        headers = {"Origin": ui.url, "Content-Type": "application/json"}
        assert ask("POST", self.SEARCH, {"max_results": 1}, headers).status == 200

    def test_it_listens_on_this_machine_only_and_ends_as_a_whole(self, ui):
        """The last test here: a SIGTERM, as of systemd, Docker or ``kill``."""
        processes = family(ui.process)
        assert listening(processes) == {"127.0.0.1"}
        ui.process.terminate()
        wait_for(lambda: not living(processes))
