"""What ran and why: graphs as text, profiles, comparisons of runs, training logs."""
