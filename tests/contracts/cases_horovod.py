"""The contract on Horovod."""

import kerasdist

kerasdist.init("horovod")
OPTIMIZED_UP_TO = 2

from tests.contracts.cases_compressors import *  # noqa: E402, F403
from tests.contracts.cases_engines import *  # noqa: E402, F403

if kerasdist.size() > 1:
    from tests.contracts.cases_algorithms import *  # noqa: F403
