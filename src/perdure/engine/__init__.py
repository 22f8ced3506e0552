"""The deterministic engine: history in, commands out. Pure."""
