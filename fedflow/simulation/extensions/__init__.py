"""Extensions of a run: features that only some runs have, one file each."""
