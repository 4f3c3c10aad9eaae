"""torch_xla's fully sharded data parallel: each rank holds 1/n of every parameter.

In: a module. Out: the same one, whose parameters are shards that are gathered where they are read.
`module` is the wrapper; `shards` says how a parameter is cut, `passes` what is recorded around a
unit, `state` what checkpoints hold.
"""
