"""torch's own tests of distributed autograd, from its wheel, as classes that pytest finds."""

from __future__ import annotations

from torch.testing._internal.distributed.rpc.dist_autograd_test import (
    DistAutogradTest,
    FaultyAgentDistAutogradTest,
    TensorPipeAgentDistAutogradTest,
)
from torch.testing._internal.distributed.rpc.faulty_rpc_agent_test_fixture import (
    FaultyRpcAgentTestFixture,
)
from torch.testing._internal.distributed.rpc.tensorpipe_rpc_agent_test_fixture import (
    TensorPipeRpcAgentTestFixture,
)
from torch.testing._internal.distributed.rpc_utils import generate_tests

from tests.conformance import forking  # noqa: F401

globals().update(
    generate_tests(
        "TensorPipe",
        TensorPipeRpcAgentTestFixture,
        [DistAutogradTest, TensorPipeAgentDistAutogradTest],
        __name__,
    )
    | generate_tests("Faulty", FaultyRpcAgentTestFixture, [FaultyAgentDistAutogradTest], __name__)
)
