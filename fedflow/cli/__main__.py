"""``python -m fedflow.cli``."""

from fedflow.cli import main

main()
