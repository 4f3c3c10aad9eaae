"""A job on a Ray cluster: Ray places one actor on each host, and each runs an agent of ours.

`backend` is in the head; `driver` is a process of its own, the only one here that loads Ray;
`actor` runs on the nodes; `request` is what Ray is asked for, in words and numbers.
"""
