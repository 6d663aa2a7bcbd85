"""What any partition can be followed by, whatever its scheme."""
