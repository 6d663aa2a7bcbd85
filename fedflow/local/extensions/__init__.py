"""Extensions of local training: one file, one class each."""
