"""`xla-run check`: whether hosts could run a job, found out before one is started.

On every host one `probe` measures its own machine (`measure`, `holders`, `code_files`) and its ways
to the other hosts (`ways`); here `inquiry` asks all of them at once, `judge` says what is wrong,
and `table` shows it. Nothing of a job is started, and neither torch nor jax is imported anywhere.
"""
