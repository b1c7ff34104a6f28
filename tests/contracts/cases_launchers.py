"""The contract of the engine alone: what is the same however the workers were started is asked elsewhere."""

import kerasdist

kerasdist.init("horovod")

from tests.contracts.cases_engines import (  # noqa: E402, F401
    case_all_gather,
    case_all_reduce,
    case_all_to_all,
    case_barrier,
    case_broadcast,
    case_who,
)
