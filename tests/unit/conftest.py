"""What more than one unit test uses."""

import pytest


@pytest.fixture
def local_engine():
    """The engine of one process, started anew, and stopped afterwards."""
    import kerasdist

    kerasdist.shutdown()
    assert kerasdist.init().name == "local"
    yield
    kerasdist.shutdown()
