"""Instruments for tests: a store that crashes on purpose, and the suite that every store passes.

Each stands in its own module, so that nothing is imported that is not asked for: `crashing`, `conformance`.
"""
