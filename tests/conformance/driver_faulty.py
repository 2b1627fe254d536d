"""torch's own tests of its faulty agent, from its wheel, as classes that pytest finds.

They are mixins there: `generate_tests` makes classes of them. Which ones there are is torch's own
list. Apart from the other agent's: one process has one of the two.
"""

from __future__ import annotations

from torch.testing._internal.distributed import rpc_utils as torchs
from torch.testing._internal.distributed.rpc.faulty_rpc_agent_test_fixture import (
    FaultyRpcAgentTestFixture,
)

from tests.conformance import forking

forking.apply()
globals().update(
    torchs.generate_tests("", FaultyRpcAgentTestFixture, torchs.FAULTY_AGENT_TESTS, __name__)
)
