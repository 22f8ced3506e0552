"""Somebody is told over HTTP what waits for a person, checks that it is true, and decides.

    python examples/inbox_webhook.py
"""

import asyncio
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from queue import Queue
from typing import Any

import perdure
from perdure import Client, Idempotent, Runtime, effect, workflow

SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"  # noqa: S105 - both sides are here
TOLD = Queue[dict[str, Any]]()


class Receiver(BaseHTTPRequestHandler):
    """Stands for whatever pages people."""

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        try:
            TOLD.put(perdure.http.verify_webhook(dict(self.headers), body, secret=SECRET))
            self.send_response(204)
        except perdure.WebhookError:
            self.send_response(400)
        self.end_headers()

    def log_message(self, format: str, *args: Any) -> None:
        pass


@effect(downstream=Idempotent(), reversible=False)
async def publish(text: str) -> str:
    return f"published: {text}"


@publish.key
def _(text: str) -> str:
    return text


@workflow
async def essay(topic: str) -> str:
    return await perdure.with_approval(publish.call(f"an essay about {topic}"), by={"Ada"})


async def main() -> None:
    server = HTTPServer(("127.0.0.1", 0), Receiver)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    webhook = perdure.Webhook(f"http://127.0.0.1:{server.server_port}/inbox", secret=SECRET)
    async with Runtime("webhook.db", workflows=[essay], inbox_webhook=webhook) as runtime:
        run = await runtime.start(essay.call("tea"), id="essay")
        told = await asyncio.to_thread(TOLD.get, timeout=30)
        it = told["data"]["request"]
        print(f"{told['type']}: {told['data']['reason']} of {it['subject']}, {it['arguments']}")
        async with Client("webhook.db") as client:          # whoever decides needs the id and the hash, and no more
            await client.approve(it["id"], hash=it["hash"], by="Ada")
        print(await run.result())
    server.shutdown()
    server.server_close()


if __name__ == "__main__":
    asyncio.run(main())
