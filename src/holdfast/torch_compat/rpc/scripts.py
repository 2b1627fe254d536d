"""Calls that TorchScript would issue itself are errors that say so.

Within a script torch compiles `rpc_sync`, `rpc_async` and `remote` to operators of its own. Those
ask torch's own agent, of which there is none, and would say that RPC has not been initialised. So
when something has been compiled, what would raise that is replaced by what says the truth.

Guarantees
    SC-1  A call within a function or a module's method that has been compiled raises an error,
          which says what to do instead, where the call would have been made; and not before.
    SC-2  What is compiled is as torch makes it otherwise.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.jit._recursive

__all__ = ["OUT_OF_REACH", "refuse_calls", "watch_compiler"]

OUT_OF_REACH = (
    "holdfast.torch_compat: {}() cannot be called from inside TorchScript: "
    "call it from Python (what it calls may be a script function)"
)
_CALLS = {
    "prim::rpc_sync": "rpc_sync",
    "prim::rpc_async": "rpc_async",
    "prim::rpc_remote": "remote",
}


def refuse_calls(graph: Any) -> None:
    """Put an error in the place of each call (SC-1)."""
    for kind, name in _CALLS.items():
        for node in graph.findAllNodes(kind):
            with graph.insert_point_guard(node):
                text = graph.insertConstant(OUT_OF_REACH.format(name))
                nothing = graph.insertConstant(None)
                graph.insertNode(graph.create("prim::RaiseException", [text, nothing], 0))
                never = graph.insertNode(graph.create("prim::Uninitialized", 1))
            never.output().setType(node.output().type())
            node.output().replaceAllUsesWith(never.output())
            node.destroy()


def watch_compiler() -> None:
    """Refuse calls in whatever torch compiles from now on."""
    compile_function = torch._C._jit_script_compile
    compile_module = torch.jit._recursive.create_script_module_impl

    def function(*args: Any) -> Any:
        made = compile_function(*args)
        refuse_calls(made.graph)
        return made

    def module(*args: Any) -> Any:
        made = compile_module(*args)
        for name in made._c._method_names():
            refuse_calls(made._c._get_method(name).graph)
        return made

    torch._C._jit_script_compile = function
    torch.jit._recursive.create_script_module_impl = module
