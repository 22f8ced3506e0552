"""A run that hands parts of its work to runs of their own.

    python examples/child_runs.py
"""

import asyncio

import perdure
from perdure import step, workflow


class Unreadable(Exception):
    """A file that is none."""


@step(raises=[Unreadable])
async def count_words(file: str) -> int:
    if file.endswith(".png"):
        raise perdure.Final(f"{file} is a picture")
    return len(file)


@workflow(raises=[Unreadable])
async def read_file(file: str) -> int:
    try:
        return await count_words(file)
    except perdure.Final as error:
        raise Unreadable(str(error)) from error


@workflow
async def read_archive(files: list[str]) -> dict[str, int | str]:
    report: dict[str, int | str] = {}
    children = [await perdure.start(read_file.call(file), id=f"archive/{file}") for file in files]
    for file, child in zip(files, children, strict=True):
        try:
            report[file] = await child.result()
        except Unreadable as error:
            report[file] = str(error)
    return report


async def main() -> None:
    async with perdure.Runtime(":memory:", workflows=[read_archive, read_file]) as runtime:
        run = await runtime.start(read_archive.call(["a.txt", "b.png", "c.txt"]), id="archive")
        for file, found in (await run.result()).items():
            print(f"{file}: {found}")
        for summary in sorted(await runtime.list(), key=lambda each: each.id):
            print(f"{summary.id}: {summary.status}")


if __name__ == "__main__":
    asyncio.run(main())
