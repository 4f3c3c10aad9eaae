"""`xu`: what training scripts import beside the device."""

from torch_xdist.arena import (
    DataWrapper,
    for_each_instance,
    for_each_instance_rewrite,
)
from torch_xdist.settings import (
    check_env_flag,
    getenv_as,
)
from torch_xdist.torch_xla_compat.script_tools import (
    Cleaner,
    FnDataGenerator,
    LazyProperty,
    SampleGenerator,
    TimedScope,
    TmpFolder,
    as_list,
    eprint,
    flatten_nested_tuple,
    get_free_tcp_ports,
    get_print_fn,
    list_copy_append,
    null_print,
    parallel_work,
    run_once,
    shape,
    timed,
)

__all__ = [
    "SampleGenerator",
    "FnDataGenerator",
    "LazyProperty",
    "TmpFolder",
    "Cleaner",
    "TimedScope",
    "timed",
    "parallel_work",
    "get_free_tcp_ports",
    "as_list",
    "shape",
    "flatten_nested_tuple",
    "list_copy_append",
    "null_print",
    "eprint",
    "get_print_fn",
    "run_once",
    "DataWrapper",
    "for_each_instance",
    "for_each_instance_rewrite",
    "getenv_as",
    "check_env_flag",
]
