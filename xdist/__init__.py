"""torch-xdist: PyTorch's xla device in pure Python. Importing this loads neither torch nor jax."""

__version__ = "2.9.0+xdist0.1"
