"""Jobs without a launcher: the script is started on every host, and each has a head of its own.

`links` are the connections between them, `fellows` is what a head knows of the others, and `start`
starts its ranks when all hosts are there.
"""
