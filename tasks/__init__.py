"""Units of work that Prefect retries, times and shows."""
