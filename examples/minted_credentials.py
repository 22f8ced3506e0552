"""A credential of its own for every attempt, good for that attempt alone; and nothing of any secret is recorded.

    python examples/minted_credentials.py
"""

import asyncio
import os
from datetime import UTC, datetime, timedelta
from pathlib import Path

import perdure
from perdure import Retry, Runtime, step, workflow
from perdure.secrets import Environment, Minted, SecretRequest

os.environ["SHOP_MODEL_KEY"] = "mk-live-8d1f-not-for-everybody"


def mint(request: SecretRequest) -> tuple[str, datetime]:
    """Stands for a token service: what it makes is good for this step, and for as long as the attempt may take."""
    life = timedelta(seconds=request.life_seconds)
    of = f"attempt {request.attempt} of {request.step}"
    print(f"  minted: may {request.scope}, {of}, for {life.total_seconds():.0f} s")
    return f"token-{request.step}-{request.attempt}-5f2c9a", datetime.now(UTC) + life


@step(secrets={"model_key"})
async def ask_model(question: str) -> str:
    return f"answer to {question!r}, asked with {perdure.secret('model_key')}"


@step(secrets={"crm": "read customer 7"}, retry=Retry(first_delay=0.01), timeout=60)
async def customer(number: int) -> dict[str, str]:
    token = perdure.secret("crm")
    if perdure.attempt().number == 1:
        raise ConnectionError(f"refused: {token}")
    return {"name": "Ada", "read with": token}


@workflow
async def agent(number: int) -> list[object]:
    return [await customer(number), await ask_model("what does she want?")]


async def main() -> None:
    providers = [Minted(["crm"], mint), Environment(prefix="SHOP_")]
    async with Runtime("minted.db", workflows=[agent], secrets=providers) as runtime:
        for found in await (await runtime.start(agent.call(7), id="agent-7")).result():
            print(found)


if __name__ == "__main__":
    asyncio.run(main())
    stored = b"".join(path.read_bytes() for path in Path().glob("minted.db*") if path.is_file())
    print("in the store:", [value for value in ("mk-live", "token-customer") if value.encode() in stored])
