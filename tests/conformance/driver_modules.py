"""torch's own tests of what is built on its RPC, from its wheel, as classes that pytest finds."""

from __future__ import annotations

from torch.testing._internal.distributed.nn.api.remote_module_test import (
    RemoteModuleTest,
    ThreeWorkersRemoteModuleTest,
)
from torch.testing._internal.distributed.rpc.dist_optimizer_test import DistOptimizerTest
from torch.testing._internal.distributed.rpc.examples.parameter_server_test import (
    ParameterServerTest,
)
from torch.testing._internal.distributed.rpc.examples.reinforcement_learning_rpc_test import (
    ReinforcementLearningRpcTest,
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
        [
            RemoteModuleTest,
            ThreeWorkersRemoteModuleTest,
            ParameterServerTest,
            ReinforcementLearningRpcTest,
            DistOptimizerTest,
        ],
        __name__,
    )
)
