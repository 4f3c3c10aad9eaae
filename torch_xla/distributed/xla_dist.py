"""`python -m torch_xla.distributed.xla_dist --tpu=NAME -- COMMAND`: TPU VMs, the old way."""

from torch_xdist.launcher.torch_xla_names.xla_dist import (
    get_args_parser,
    main,
    parse_args,
    resolve_and_execute,
    run_as_program,
)

__all__ = ["get_args_parser", "main", "parse_args", "resolve_and_execute"]

run_as_program(__name__)
