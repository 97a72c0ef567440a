"""The one writer of files."""

from ehrsequencing.core.locks import locked
from ehrsequencing.core.storage import (
    atomic_path,
    digest,
    read_json,
    read_json_lines,
    refuse_foreign_file,
    refuse_overlap,
    require_name,
    sha256,
    write_bytes,
    write_json,
    write_settings,
)
from ehrsequencing.core.temporaries import (
    entries,
    is_temporary,
    private_folder,
    remove_folder,
    sweep_temporaries,
)

__all__ = [
    "atomic_path",
    "digest",
    "entries",
    "is_temporary",
    "locked",
    "private_folder",
    "read_json",
    "read_json_lines",
    "refuse_foreign_file",
    "refuse_overlap",
    "remove_folder",
    "require_name",
    "sha256",
    "sweep_temporaries",
    "write_bytes",
    "write_json",
    "write_settings",
]
