"""Reads runs, stores and source code, and tells about them. Performs nothing."""
