"""Host batches to devices, ahead of the step. See `mp_device` and `parallel`."""
