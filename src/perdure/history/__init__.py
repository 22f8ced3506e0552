"""What stands in a run's history, and how it is chained. Pure."""
