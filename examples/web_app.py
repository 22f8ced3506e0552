"""Runs in a web application: started, answered and executed by its process.

Run it: uvicorn web_app:app
"""

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

import perdure
from perdure import Runtime, workflow


@workflow(receives={"approval": str})
async def claim(number: str) -> str:
    by = await perdure.receive("approval", str)
    return f"{number} approved by {by}"


async def start(request: Request) -> JSONResponse:
    runtime: Runtime = request.state.runtime
    number = request.path_params["number"]
    run = await runtime.start(claim.call(number), id=f"claim-{number}")
    return JSONResponse({"run": run.id, "how": run.how}, status_code=202)


async def approve(request: Request) -> JSONResponse:
    runtime: Runtime = request.state.runtime
    run = await runtime.get(f"claim-{request.path_params['number']}")
    await run.send("approval", request.query_params["by"])
    return JSONResponse({"result": await run.result(timeout=10)})


app = Starlette(
    routes=[
        Route("/claims/{number}", start, methods=["POST"]),
        Route("/claims/{number}/approval", approve, methods=["POST"]),
    ],
    lifespan=perdure.lifespan(Runtime(workflows=[claim])),
)
