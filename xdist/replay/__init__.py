"""Functions that were declared pure: a call that is like an earlier one runs its program again.

Nothing of such a call is recorded. `pure` decides; the other modules say what a call depends on
(`reach`, `code`, `modes`, compiled as `guard`), what it did (`recording`, `script`, `numbers`,
`results`), and do it again (`variant`).
"""
