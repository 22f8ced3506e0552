"""perdure on its default store: one SQLite file, WAL, synchronous=FULL."""

from __future__ import annotations

import os
from typing import Any

import work


class Peer(work.Peer):
    packages = ("perdure", "msgspec")
    imports = "import perdure"
    durability = "SQLite, WAL, synchronous=FULL"

    async def open(self) -> None:
        import perdure
        from peers import perdure_workflows

        if "BENCH_POLL_SECONDS" in os.environ:  # polls belong to seconds, not to steps that valgrind slows down
            from perdure.runtime import host

            host.POLL_SECONDS = float(os.environ["BENCH_POLL_SECONDS"])
        self.workflows = perdure_workflows.WORKFLOWS
        self.runtime = perdure.Runtime(workflows=list(self.workflows.values()), store=str(self.store / "perdure.db"))
        await self.runtime.__aenter__()

    async def start(self, workflow: str, run_id: str, n: int) -> Any:
        return await self.runtime.start(self.workflows[workflow].call(n), id=run_id)

    async def attach(self, workflow: str, run_id: str, n: int) -> Any:
        return await self.runtime.start(self.workflows[workflow].call(n), id=run_id)

    async def wait(self, handle: Any) -> None:
        await handle.result()
