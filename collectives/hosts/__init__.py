"""The collectives of CPU ranks on several hosts: shared memory inside a host, TCP between them.

Each host has the memory of the whole group. What a rank writes into its slot before a barrier goes
to the other hosts as well, over a wire to one rank of each (`wires`), whose thread writes it there
into the slot of that rank and counts it into the barrier (`mirror`). So the ranks of a host find
those of all others in their memory, and the collectives of `shared_memory` work as they are. Only
large reductions go another way (`reductions`): first inside each host, then between them.

wire    a TCP connection over which the barriers of one rank go to one other host
wide    of a segment: its members are on several hosts
mirror  what plays a rank's part in the memory of another host
"""
