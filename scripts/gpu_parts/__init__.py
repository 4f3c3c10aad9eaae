"""The parts of `scripts/check_gpu`: each is a function of a `Place`, and says what it finds."""
