"""What perdure knows of HTTP: how to read a failure. It imports no client library."""
