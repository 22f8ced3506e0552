"""A storm of retries: four layers that each try three times send 81 requests. With one owner, the step, it is three.

    pip install perdure[http]
    python examples/retry_storm.py
"""

import asyncio
import threading
from collections.abc import Awaitable, Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import httpx

import perdure
from perdure import Retry, step, workflow

arrived: list[str] = []


class Overloaded(BaseHTTPRequestHandler):
    """A service that always says: too many requests."""

    def do_GET(self) -> None:
        arrived.append(self.path)
        self.send_error(429)

    def log_message(self, format: str, *args: object) -> None:
        pass


async def three_times(call: Callable[[], Awaitable[str]]) -> str:
    """What a client, a tool and a framework each do, all with the best of intentions."""
    for _ in range(2):
        try:
            return await call()
        except httpx.HTTPError:
            pass
    return await call()


async def ask(url: str) -> str:
    return (await perdure.use(httpx.AsyncClient).get(url)).text


@step(retry=Retry(max_attempts=3, first_delay=0.01))
async def through_four_layers(url: str) -> str:
    async def client() -> str:
        return await three_times(lambda: ask(url))

    async def tool() -> str:
        return await three_times(client)

    return await three_times(tool)


@step(retry=Retry(max_attempts=3, first_delay=0.01))
async def with_one_owner(url: str) -> str:
    return await ask(url)


@workflow
async def agent(url: str, layers: int) -> str:
    try:
        return await (through_four_layers(url) if layers == 4 else with_one_owner(url))
    except perdure.StepError as error:
        return f"given up: {error.type_name}"


async def main() -> None:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Overloaded)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    url = f"http://127.0.0.1:{server.server_port}"
    try:
        async with (
            perdure.http.client() as client,
            perdure.Runtime(":memory:", workflows=[agent], provide={httpx.AsyncClient: client}) as runtime,
        ):
            for layers in (4, 1):
                arrived.clear()
                run = await runtime.start(agent.call(url, layers))
                print(f"{layers} layer(s): {await run.result()}, {len(arrived)} requests")
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


if __name__ == "__main__":
    asyncio.run(main())
