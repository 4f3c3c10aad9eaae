"""`torch.compile(backend="openxla")`: captured graphs as programs of the device.

In: graphs of torch's dynamo and AOT autograd. Out: functions of device tensors. torch's own backend
calls `bridge`, which captures the rows of a graph once; `cached_graphs` runs them.
"""
