"""Published tables and claims, and the verdicts of finished runs on them."""
