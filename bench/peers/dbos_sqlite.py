"""DBOS Transact on SQLite, which is what it uses when it is given no database."""

from __future__ import annotations

import asyncio
from typing import Any

import work


class Peer(work.Peer):
    packages = ("dbos", "SQLAlchemy")
    imports = "import dbos"
    durability = "SQLite as DBOS opens it: journal_mode=DELETE, synchronous=FULL"
    sizes = {"late": 5000, "sleepers": 500}  # noqa: RUF012

    async def open(self) -> None:
        from dbos import DBOS, SetWorkflowID

        self.dbos, self.with_id = DBOS, SetWorkflowID
        DBOS(
            config={
                "name": "bench",
                "system_database_url": f"sqlite:///{self.store}/dbos.sqlite",
                "log_level": "WARNING",
            }
        )
        quick, slow, last = (DBOS.step()(body) for body in (work.quick, work.slow, work.last))

        @DBOS.step()
        async def respond(messages: list[str], turn: int) -> str:
            return work.reply(turn)

        @DBOS.step()
        async def extend(messages: list[str], turn: int) -> list[str]:
            return [*messages, work.question(turn), work.reply(turn)]

        @DBOS.workflow()
        async def seq(n: int) -> None:
            for k in range(n):
                await quick(k)

        @DBOS.workflow()
        async def gather(n: int) -> None:
            await asyncio.gather(*[quick(k) for k in range(n)])

        @DBOS.workflow(name="slow_run")
        async def slow_run(n: int) -> None:
            for k in range(n):
                await slow(k)

        @DBOS.workflow()
        async def long(n: int) -> None:
            for k in range(n):
                await quick(k)
            await last(n)

        @DBOS.workflow()
        async def park(n: int) -> None:
            await quick(0)
            work.PARKED["runs"] += 1
            await DBOS.recv_async("go", timeout_seconds=3600)

        @DBOS.workflow()
        async def chat(n: int) -> None:
            messages: list[str] = []
            for turn in range(n):
                messages.append(work.question(turn))
                messages.append(await respond(messages, turn))

        @DBOS.workflow()
        async def thread(n: int) -> None:
            messages: list[str] = []
            for turn in range(n):
                messages = await extend(messages, turn)

        self.workflows = {
            "seq": seq,
            "gather": gather,
            "slow": slow_run,
            "long": long,
            "park": park,
            "chat": chat,
            "thread": thread,
        }
        DBOS.launch()

    async def start(self, workflow: str, run_id: str, n: int) -> Any:
        with self.with_id(run_id):
            return await self.dbos.start_workflow_async(self.workflows[workflow], n)

    async def attach(self, workflow: str, run_id: str, n: int) -> Any:
        return await self.dbos.retrieve_workflow_async(run_id)  # launch() goes on with this executor's own runs

    async def wait(self, handle: Any) -> None:
        await handle.get_result()
