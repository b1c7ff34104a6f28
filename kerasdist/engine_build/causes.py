"""Why did the build fail? A table from what a log says to the likely cause and its mend; the first match counts."""

from __future__ import annotations

import re

# (pattern, cause, mend): the specific before the general.
CAUSES = (
    (
        r"DO NOT MATCH THE HASHES",
        "the source that the package index gave is not Horovod's",
        "check the index that pip uses",
    ),
    (r"No space left on device", "the disk is full", "make room, or set TMPDIR to a larger disk"),
    (
        r"(c\+\+|g\+\+|cc1plus).*(Killed|killed)|fatal error: Killed signal|std::bad_alloc|virtual memory exhausted",
        "the compiler ran out of memory",
        "run it again with --jobs 1",
    ),
    (
        r"(Temporary failure in name resolution|Connection refused|ConnectTimeout|ReadTimeout|NewConnectionError)",
        "the package index could not be reached",
        "check the network and pip's configuration (`pip config list`)",
    ),
    (
        r"Could not find a version that satisfies the requirement|No matching distribution found",
        "the package index does not have a package that the build needs",
        "check pip's configuration (`pip config list`)",
    ),
    (
        r"ModuleNotFoundError: No module named 'tensorflow'|ImportError.*tensorflow",
        "TensorFlow does not load",
        "run `kerasdist doctor`",
    ),
    (r"Could NOT find Tensorflow", "CMake could not load TensorFlow", "run `kerasdist doctor`"),
    (r"Python\.h: No such file", "Python's headers are missing", "run `apt-get install python3-dev`"),
    (
        r"Could NOT find MPI|mpi\.h: No such file",
        "MPI's headers are missing",
        "run `apt-get install libopenmpi-dev`, or build with --no-mpi",
    ),
    (r"Could NOT find NCCL|nccl\.h: No such file", "NCCL was not found", "give --nccl-home, or build with --no-nccl"),
    (
        r"unsupported GNU version|unsupported clang version",
        "CUDA does not take this compiler",
        "set CXX to an older one",
    ),
    (
        r"No CMAKE_CUDA_COMPILER|nvcc fatal",
        "CUDA's compiler does not work",
        "give --cuda-home, or build with --no-nccl",
    ),
    (
        r"No CMAKE_CXX_COMPILER|is not able to compile a simple test program",
        "the C++ compiler does not work",
        "run `apt-get install g++`",
    ),
    (
        r"(tensorflow|xla|tsl|absl)/[\w/.]+: No such file or directory",
        "the headers of this TensorFlow are not where Horovod expects them",
        "use a TensorFlow that kerasdist is tested with",
    ),
    (
        r"unrecognized command.line option|requires compiler and library support",
        "the C++ compiler is too old",
        "set CXX to a newer one",
    ),
)


def likely_cause(log: str) -> str | None:
    """Returns one line "cause: mend" for a failed build's log, or `None` if nothing in it is known."""
    for pattern, cause, mend in CAUSES:
        if re.search(pattern, log):
            return f"{cause}: {mend}"
    return None
