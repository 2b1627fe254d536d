"""torch's own tests of its agent and all that is built on it, as classes that pytest finds.

See driver_faulty.py.
"""

from __future__ import annotations

from torch.testing._internal.distributed import rpc_utils as torchs
from torch.testing._internal.distributed.rpc.tensorpipe_rpc_agent_test_fixture import (
    TensorPipeRpcAgentTestFixture,
)

from tests.conformance import forking

TESTS = (
    *torchs.GENERIC_TESTS,
    *torchs.TENSORPIPE_TESTS,
    *torchs.GENERIC_CUDA_TESTS,
    *torchs.TENSORPIPE_CUDA_TESTS,
)

forking.apply()
globals().update(torchs.generate_tests("", TensorPipeRpcAgentTestFixture, TESTS, __name__))
