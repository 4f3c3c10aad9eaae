"""Files of device tensors: written whole or not at all, readable without this project."""
