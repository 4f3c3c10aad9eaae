"""The lazy core: torch operators recorded as rows, cut into programs, compiled by XLA."""
