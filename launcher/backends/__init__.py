"""Where agents run: this machine, or others over ssh.

Comes in: which hosts. Goes out: a running agent on each, with a way to speak to it, and words for
why one is gone. `backend` has the protocols, every other module is one backend. What agents and
head say to each other is none of their business.
"""
