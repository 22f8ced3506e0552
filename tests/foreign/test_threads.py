"""Foreign code with threads and a real HTTP client, killed at random: it always ends, and no healthy section is
parked. Each process asks another model: that is noted, and changes nothing."""

import random
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from perdure.history import events as e
from perdure.store import open_store
from perdure.store.protocol import Status

PROGRAM = Path(__file__).with_name("program.py")
LIVES_MAX = 40


class Service(ThreadingHTTPServer):
    """Counts what it is asked, and kills the asking process at times."""

    daemon_threads = True

    def __init__(self, seed: int) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.random = random.Random(seed)
        self.asked: Counter[str] = Counter()
        self.process: subprocess.Popen[str] | None = None
        self.kills = 0
        self.asked_in_this_life = 0
        self.lock = threading.Lock()

    def decide(self, question: str) -> None:
        with self.lock:
            self.asked[question] += 1
            self.asked_in_this_life += 1
            may_kill = self.process is not None and self.kills < LIVES_MAX - 5
            # a life in which nothing is recorded would count against the runs, and rightly so
            if may_kill and self.asked_in_this_life > 10 and self.random.random() < 0.25:
                self.kills += 1
                self.process.kill()  # type: ignore[union-attr]
                self.process = None


class Handler(BaseHTTPRequestHandler):
    server: Service  # pyright: ignore[reportIncompatibleVariableOverride]

    def do_GET(self) -> None:
        self.server.decide(self.path)
        body = f"answer to {self.path}".encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Quiet."""

    def handle_one_request(self) -> None:
        try:
            super().handle_one_request()
        except (BrokenPipeError, ConnectionResetError):
            self.close_connection = True


@pytest.fixture
def service(request: pytest.FixtureRequest) -> Iterator[Service]:
    server = Service(request.param)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.mark.parametrize("service", [1, 2], indirect=True)
def test_random_kills_never_park_a_healthy_section(service: Service, tmp_path: Path) -> None:
    store_path = str(tmp_path / "runs.db")
    url = f"http://127.0.0.1:{service.server_address[1]}"
    output = ""
    for life in range(LIVES_MAX):
        with subprocess.Popen(
            [sys.executable, str(PROGRAM), store_path, url, f"model-{life}"], stdout=subprocess.PIPE, text=True
        ) as process:
            service.process, service.asked_in_this_life = process, 0
            output, _ = process.communicate(timeout=60)
        if process.returncode == 0:
            break
        assert process.returncode == -9, output
    assert output.split() == ["hosted", "8", "plain", "8"]
    assert service.kills > 2
    store = open_store(store_path)
    completed = 0
    for run_id in ("hosted", "plain"):
        info = store.find(run_id)
        assert info is not None
        assert info.status is Status.COMPLETED
        events = [e.decode(row.envelope) for row in store.load(info.rid).rows]
        assert not [event for event in events if isinstance(event, e.RunBlocked)]
        completed += len([event for event in events if type(event) is e.StepCompleted])
        findings = [each for event in events if isinstance(event, e.PremisesChecked) for each in event.findings]
        assert {(each.changed, each.did) for each in findings} == {(("model",), "note")}
        assert any(isinstance(event, e.EffectSucceeded) for event in events)
    store.close()
    assert completed == 2 * 8 * 5
    # what was recorded was never asked again: a question goes out once per workflow, and once more for each kill at
    # most
    assert sum(service.asked.values()) - completed <= service.kills * 2 * 4
