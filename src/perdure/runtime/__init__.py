"""What happens: turns, performers, the writer, workers and their leases, timers."""
