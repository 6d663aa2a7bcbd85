"""Steps that can follow any partition scheme."""
