"""Tapes made of others: of the rows that some values need, with places that became numbers."""
