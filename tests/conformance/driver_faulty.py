"""torch's own tests of its faulty agent, from its wheel, as classes that pytest finds."""

from __future__ import annotations

from torch.testing._internal.distributed.rpc.faulty_agent_rpc_test import FaultyAgentRpcTest
from torch.testing._internal.distributed.rpc.faulty_rpc_agent_test_fixture import (
    FaultyRpcAgentTestFixture,
)
from torch.testing._internal.distributed.rpc_utils import generate_tests

from tests.conformance import forking  # noqa: F401

globals().update(
    generate_tests("Faulty", FaultyRpcAgentTestFixture, [FaultyAgentRpcTest], __name__)
)
