"""A function of tensors as the operators that it calls, recorded once and called without what led to them.

Modules, `torch.vmap` and autograd take as long to find out what a small network's step computes as computing
it takes. What they find depends on shapes alone, so it is kept as a graph of PyTorch's operators, with the
backward pass in it.
"""

from __future__ import annotations

import logging
import operator
import pickle
import random
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, fx, nn
from torch.utils._python_dispatch import TorchDispatchMode

log = logging.getLogger("silodp")

Function = Callable[..., tuple[Tensor, ...]]


def recorded(function: Function, given: Sequence[Tensor], resident: Tensor) -> Function:
    """A function that calls the same operators; `function` itself where it cannot be recorded.

    Guarantee: equal to the bit to `function` on tensors of these shapes, strides and dtypes; that is tried on
    the same values in another order. What looks at values in Python, or draws there, is not recorded.

    Args:
        function: of tensors, to a tuple of tensors; leaves Python's objects as they are.
        given: to record it on.
        resident: what it reads beside them: memory that stays, while its values change. What else it reads,
            such as frozen parameters, keeps its values, too.
    """
    drawn, calls = _drawn(), _Calls()
    with calls:
        found = function(*given)
    try:
        if _drawn() != drawn:
            raise _CannotBeRecordedError("the network draws random numbers in Python")
        repeat = _graph(calls.made, given, found, resident)
        other = [torch.empty_like(one).copy_(one.flip(*range(one.ndim))) for one in given]
        for one, again in zip(function(*other), repeat(*other), strict=True):
            if not torch.allclose(one, again, rtol=0, atol=0, equal_nan=True):
                raise _CannotBeRecordedError("on other values its operators are others")
    except _CannotBeRecordedError as why:
        log.info("stacked local steps cannot be recorded and run more slowly: %s", why)
        return function
    return repeat


class _CannotBeRecordedError(Exception):
    """Why a function is called as it is; only ever logged."""


class _Call(NamedTuple):
    """An operator of PyTorch's, what it was given, and what it returned: a tensor, or a list of them."""

    operator: Any
    given: tuple[Any, ...]
    named: dict[str, Any]
    found: Any


class _Calls(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Writes down each operator's call, below autograd and vmap; holds all tensors, so places stay theirs."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.made: list[_Call] = []

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Otherwise PyTorch imports its compiler, which takes longer than a small run's first rounds."""
        return False

    def __torch_dispatch__(self, function: Any, types: Any, given: Any = (), named: Any = None) -> Any:
        named = named or {}
        found = function(*given, **named)
        self.made.append(_Call(function, tuple(given), named, found))
        return found


def _graph(
    calls: Sequence[_Call], given: Sequence[Tensor], found: Sequence[Tensor], resident: Tensor
) -> Function:
    """The calls as a function, without those that change nothing and those whose results nobody uses.

    A tensor is known by its address, shape and strides. Memory is of three kinds: that of `given`, which lies
    elsewhere at the next call; what the calls allocate, which they allocate anew; and all other, which was
    there before and is held by the graph.

    Args:
        calls: in order, backward pass included.
        given: what the function was called with.
        found: what it returned.
        resident: of what was there before, memory whose values change between calls.
    """
    graph, root = fx.Graph(), nn.Module()
    nodes = {_view(one): graph.placeholder(f"given_{number}") for number, one in enumerate(given)}
    changing, lasting = set(map(_place, given)), {_place(resident)}  # memory that lies elsewhere next time

    def node_of(value: Any) -> Any:
        """The graph's node for a tensor; lists of them by their parts, and other arguments as they are."""
        if isinstance(value, list | tuple):
            return type(value)(map(node_of, value))
        if not isinstance(value, Tensor):
            return value
        if _view(value) not in nodes:  # it was there before
            if _place(value) in changing:
                raise _CannotBeRecordedError("a tensor comes from nowhere")
            lasting.add(_place(value))
            root.register_buffer(f"held_{len(nodes)}", value.detach())
            nodes[_view(value)] = graph.get_attr(f"held_{len(nodes)}")
        return nodes[_view(value)]

    for call in calls:
        single, changes = isinstance(call.found, Tensor), call.operator._schema.is_mutable
        results = [call.found] if single else call.found
        if not (changes or _are_tensors(results)):
            raise _CannotBeRecordedError(f"{call.operator} looks at values")
        if single and not changes and _place(call.found) == _place(resident):
            continue  # a view of what stays is made once
        if single and not changes and _view(call.found) in nodes:
            continue
        named = {name: node_of(value) for name, value in call.named.items()}
        node = graph.call_function(call.operator, node_of(call.given), named)
        for number, result in enumerate(results or ()):
            if isinstance(result, Tensor) and _view(result) not in nodes:
                part = node if single else graph.call_function(operator.getitem, (node, number))
                nodes[_view(result)] = part
                changing |= {_place(result)} - lasting
    graph.output(node_of(tuple(found)))
    graph.eliminate_dead_code()
    _pool_before_relu(graph)
    graph.eliminate_dead_code()
    return torch.no_grad()(fx.GraphModule(root, graph).forward)


def _pool_before_relu(graph: fx.Graph) -> None:
    """Lets ReLU, and its gradient, follow max pooling where it came before: fewer numbers, the same bits.

    The largest of some numbers is above zero where it was, and below it neither passes a gradient on.
    """
    aten = torch.ops.aten
    for relu in graph.find_nodes(op="call_function", target=aten.relu.default):
        every = _users(relu)
        users = {user.target: user for user in every}
        if len(every) != 3 or set(users) != set(_AFTER_RELU):
            continue
        pool, back, gate = (users[function] for function in _AFTER_RELU)
        if _users(back) != [gate]:
            continue
        pooled = next(user for user in pool.users if user.args[1] == 0)
        after = list(pooled.users)
        with graph.inserting_after(pooled):
            found = graph.call_function(aten.relu.default, (pooled,))
        for user in after:
            user.replace_input_with(pooled, found)
        with graph.inserting_before(back):
            back.update_arg(0, graph.call_function(aten.threshold_backward.default, (back.args[0], found, 0)))
        gate.replace_all_uses_with(gate.all_input_nodes[0])
        relu.replace_all_uses_with(relu.all_input_nodes[0])


_AFTER_RELU = (
    torch.ops.aten.max_pool2d_with_indices.default,
    torch.ops.aten.max_pool2d_with_indices_backward.default,
    torch.ops.aten.threshold_backward.default,
)


def _users(node: fx.Node) -> list[fx.Node]:
    """Who uses it, directly or as a view."""
    found: list[fx.Node] = []
    for user in node.users:
        found += _users(user) if user.target is torch.ops.aten.view.default else [user]
    return found


def _are_tensors(results: Any) -> bool:
    """Whether an operator returned tensors only: a number that it read off one would be a look at values."""
    return isinstance(results, list | tuple) and all(
        one is None or isinstance(one, Tensor) or _are_tensors(one) for one in results
    )


def _place(tensor: Tensor) -> int:
    """The address of its memory, which its views share."""
    return tensor.untyped_storage().data_ptr()


def _view(tensor: Tensor) -> tuple[Any, ...]:
    """What two tensors share that are the same numbers at the same place."""
    return tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype


def _drawn() -> bytes:
    """The state of Python's and NumPy's generators."""
    return pickle.dumps((random.getstate(), np.random.get_state()))
