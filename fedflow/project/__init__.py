"""What stages share: checked arguments, YAML, the terminal, code digests, and the runs that are running."""
