"""Extensions of a run: what some runs do besides their rounds, one file each."""
