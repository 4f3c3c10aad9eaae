"""Private names that other libraries import."""
