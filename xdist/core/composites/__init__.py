"""What torch makes of several operators or of special tensors, recorded as few rows.

In: attention, recurrent layers, optimizer updates, sparse tensors, as torch's C++ and Python call
them. Out: one row each where that serves, torch's own way where it does not.
"""
