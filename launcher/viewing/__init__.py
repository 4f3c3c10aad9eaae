"""Looking at a job that runs: what its head shows reaches whoever asks, here or from another machine.

A viewer can neither hold the head up nor end the job; one that does not read loses lines, counted.
"""
