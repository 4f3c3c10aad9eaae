"""Files by path; `gs://` paths raise."""

from torch_xdist.files.local_files import (
    GcsBlob,
    generic_glob,
    generic_open,
    generic_read,
    generic_write,
    is_gcs_path,
    list,
    open,
    read,
    remove,
    rmtree,
    stat,
    write,
)

__all__ = [
    "GcsBlob",
    "open",
    "list",
    "stat",
    "remove",
    "rmtree",
    "read",
    "write",
    "generic_open",
    "generic_read",
    "generic_write",
    "generic_glob",
    "is_gcs_path",
]
