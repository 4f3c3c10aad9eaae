"""How the head finds an agent again whose ssh has ended: `relay` is started there by another ssh,
and `resumption` is where the agent listens for it.
"""
