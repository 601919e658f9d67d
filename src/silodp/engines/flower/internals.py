"""All names that silodp uses from Flower's internals.

Flower does not guarantee them between versions, so the version is pinned and
`tests/engines/flower/test_contract.py` checks each. Flower's own loops are not used: its Fleet connection,
its `HttpGrid` and its retries raise SIGINT or end the process on a 401, and wait for ever for a SuperLink
that is gone. Used are its HTTP clients, its signatures and its message format.
"""

# ruff: noqa: F401  the names are for other modules

from __future__ import annotations

from silodp.errors import InputError

try:
    import httpx
    from flwr.app import Array, ArrayRecord, Message, RecordDict
    from flwr.app.error import Error
    from flwr.app.message import make_message, remove_content_from_message
    from flwr.app.message.arraychunk import ArrayChunk
    from flwr.app.metadata import Metadata
    from flwr.cli.build import build_fab_from_files
    from flwr.common.constant import HEARTBEAT_MIN_INTERVAL, HEARTBEAT_PATIENCE, SUPERLINK_NODE_ID, SubStatus
    from flwr.common.serde import fab_to_proto, message_from_proto, message_to_proto
    from flwr.proto.control_pb2 import ListNodesRequest, RegisterNodeRequest, StartRunRequest
    from flwr.proto.fleet_pb2 import (
        ActivateNodeRequest,
        DeactivateNodeRequest,
        PullMessagesRequest,
        PushMessagesRequest,
    )
    from flwr.proto.heartbeat_pb2 import SendNodeHeartbeatRequest
    from flwr.proto.message_pb2 import ConfirmMessageReceivedRequest, PullObjectRequest, PushObjectRequest
    from flwr.proto.node_pb2 import Node
    from flwr.proto.runtime_pb2 import (
        AcquireTaskRequest,
        GetNodesRequest,
        PullAppMessagesRequest,
        PullTaskInputRequest,
        PushAppMessagesRequest,
        PushTaskOutputRequest,
        SendTaskHeartbeatRequest,
    )
    from flwr.supercore.constant import TaskType
    from flwr.supercore.control import ControlHttpClient
    from flwr.supercore.fab import Fab
    from flwr.supercore.inflatable.inflatable_object import (
        get_all_nested_objects,
        get_object_body,
        get_object_head_values_from_object_content,
        get_object_tree,
        iterate_object_tree,
        no_object_id_recompute,
    )
    from flwr.supercore.inflatable.inflatable_utils import ObjectUnavailableError, pull_objects, push_objects
    from flwr.supercore.interceptors import RuntimeTokenHttpInterceptor, SuperExecAuthHttpInterceptor
    from flwr.supercore.primitives.asymmetric import public_key_to_bytes
    from flwr.supercore.runtime import RuntimeHttpClient
    from flwr.supernode.fleet_http_client import FleetHttpClient
    from flwr.supernode.node_auth_http_interceptor import NodeAuthHttpInterceptor
except ImportError as error:
    raise InputError(
        f"this needs Flower, which is not installed ({error}); pip install 'silodp[flower]'"
    ) from None

VERSION = "1.41.0"
