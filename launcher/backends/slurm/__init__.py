"""Slurm: steps of a job, in which agents run, and jobs that are submitted."""
