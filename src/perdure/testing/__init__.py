"""Instruments for tests, shipped: of perdure itself, and of what is built on it.

    runtime, plugin   a Runtime in memory that skips time, and the pytest fixture `perdure_runtime` with one
    clock             FakeClock
    crashing, sweep   a store that crashes on purpose; sweep_crashes(): at every write, before and after
    conformance       the suite that every store passes
    simulator, soak   random programs on workers that are killed, paused and cut off; the same for hours

Each stands in its own module, so that nothing is imported that is not asked for.
"""
