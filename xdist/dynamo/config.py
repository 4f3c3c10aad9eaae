"""Switches of the backend `openxla`, to be set by scripts: `torch_xla._dynamo.config`."""

# Whether inputs are taken as they are: one that is still pending is an error then, instead of
# being computed first, and calls are a little shorter.
skip_input_data_check = False
