"""Overloads for which torch's own decomposition makes as good a program as a row would."""

DECOMPOSED: frozenset[str] = frozenset()
