"""Looking at a job that runs: what its head shows reaches whoever asks, from wherever.

A viewer can neither hold the head up nor end the job; one that does not read loses lines, which
are counted.
"""
