"""What a pending operator is: types, values, plans, tapes.

In: plans and the values they read. Out: a tape, the rows of one thread on one device since its last
cut. Nothing here runs anything or knows a torch tensor.
"""
