"""The transport between CPU ranks of several hosts: shared memory inside a host, TCP between hosts.

In: a collective of a compiled program, as the custom call of `shared_memory`. Out: the buffers of
its results, filled. Inside a host the ranks reduce in shared memory; each of them then exchanges
its part with its counterparts on the other hosts. `transport` joins the ranks; `endpoint` serves
the calls; `meeting` and the `all_*` modules are the collectives, on `traffic` over `wires`.

Words of this folder:

lane           the ranks that stand at the same place on each host and exchange with each other;
               as many as the host with the fewest ranks of the group has
leader         the rank of a host on the first lane, which speaks for its host
wire           a TCP connection between two ranks, for one group; each pair has two
"""
