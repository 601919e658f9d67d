"""What silodp takes for granted of Flower's inside, which Flower promises to nobody.

When this fails, Flower has changed: read what each name has become, then `wire`, `link`, `grid`, `superlink`,
`simulation_app`.
"""

import inspect
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

from silodp.engines.flower import internals as flower
from silodp.engines.flower import wire
from silodp.engines.flower.superlink import _command

LOOK = "Flower has changed; see the opening of tests/engines/flower/test_contract.py for what to look at"


def test_the_version_is_the_one_that_was_studied() -> None:
    assert version("flwr") == flower.VERSION, (
        f"flwr {version('flwr')}, and {flower.VERSION} was studied. {LOOK}"
    )
    project = (Path(__file__).parents[3] / "pyproject.toml").read_text()
    assert f"flwr[simulation]=={flower.VERSION}" in project


@pytest.mark.parametrize(
    ("function", "names"),
    [
        (flower.FleetHttpClient, "base_url interceptors verify timeout"),
        (flower.NodeAuthHttpInterceptor, "private_key public_key"),
        (flower.SuperExecAuthHttpInterceptor, "master_secret protected_methods"),
        (flower.RuntimeTokenHttpInterceptor, "token"),
        (flower.make_message, "metadata content error"),
        (flower.Message, "reply_to"),
        (flower.Metadata, "run_id message_id src_node_id dst_node_id reply_to_message_id group_id ttl"),
        (flower.Array, "dtype shape stype data"),
        (flower.Error, "code reason"),
        (flower.Fab, "hash_str content verifications"),
        (flower.build_fab_from_files, "files"),
        (flower.push_objects, "objects push_object_fn object_ids_to_push"),
        (flower.pull_objects, "object_ids pull_object_fn max_time initial_backoff backoff_cap"),
        (flower.get_object_body, "object_content cls"),
    ],
)
def test_a_function_still_takes_what_it_is_given(function: Any, names: str) -> None:
    missing = set(names.split()) - set(inspect.signature(function).parameters)
    assert not missing, f"{function.__name__} takes no {sorted(missing)} any more. {LOOK}"


@pytest.mark.parametrize(
    ("kind", "names"),
    [
        (
            flower.FleetHttpClient,
            "ActivateNode DeactivateNode SendNodeHeartbeat PullMessages PushMessages PullObject PushObject "
            "ConfirmMessageReceived close",
        ),
        (
            flower.RuntimeHttpClient,
            "AcquireTask PullTaskInput PushTaskOutput SendTaskHeartbeat GetNodes PullMessages PushMessages "
            "PullObject PushObject ConfirmMessageReceived close",
        ),
        (flower.ControlHttpClient, "StartRun RegisterNode ListNodes close"),
        (flower.TaskType, "SERVER_APP"),
        (flower.SubStatus, "COMPLETED FAILED"),
    ],
)
def test_a_class_still_has_what_is_called(kind: Any, names: str) -> None:
    missing = [name for name in names.split() if not hasattr(kind, name)]
    assert not missing, f"{kind.__name__} has no {missing} any more. {LOOK}"


@pytest.mark.parametrize(
    ("message", "fields"),
    [
        (flower.ActivateNodeRequest, "public_key heartbeat_interval"),
        (flower.DeactivateNodeRequest, "node_id"),
        (flower.SendNodeHeartbeatRequest, "node heartbeat_interval"),
        (flower.PullMessagesRequest, "node"),
        (flower.PushMessagesRequest, "node messages_list message_object_trees"),
        (flower.PullObjectRequest, "node run_id object_id"),
        (flower.PushObjectRequest, "node run_id object_id object_content session_id"),
        (flower.ConfirmMessageReceivedRequest, "node run_id message_object_id"),
        (flower.AcquireTaskRequest, "supported_task_types"),
        (flower.PushTaskOutputRequest, "sub_status details"),
        (flower.PullAppMessagesRequest, "message_ids"),
        (flower.PushAppMessagesRequest, "messages_list message_object_trees"),
        (flower.RegisterNodeRequest, "public_key name"),
        (flower.StartRunRequest, "fab"),
        (flower.ListNodesRequest, ""),
    ],
)
def test_a_request_still_has_its_fields(message: Any, fields: str) -> None:
    missing = set(fields.split()) - set(message.DESCRIPTOR.fields_by_name)
    assert not missing, f"{message.DESCRIPTOR.name} has no {sorted(missing)} any more. {LOOK}"


def test_the_simulation_is_started_as_before() -> None:
    """In a process of its own: it imports Ray."""
    code = (
        "import inspect\n"
        "from silodp.engines.flower import simulation_internals as flower\n"
        "print(*inspect.signature(flower.run_simulation).parameters)\n"
        "print(*(name for name in ('get_node_ids', 'push_messages', 'pull_messages')"
        " if hasattr(flower.Grid, name)))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    taken, grid = done.stdout.splitlines()
    assert taken.startswith("server_app client_app num_supernodes backend_name backend_config"), LOOK
    assert grid == "get_node_ids push_messages pull_messages", LOOK


def test_constants_that_timings_rest_on() -> None:
    found = flower.HEARTBEAT_MIN_INTERVAL, flower.HEARTBEAT_PATIENCE, flower.SUPERLINK_NODE_ID
    assert found == (10, 2, 1), f"{found}. {LOOK}"


def test_the_superlink_still_knows_the_words_of_its_command_line() -> None:
    words = _command(Path("x"), 1, Path("x"))
    program = Path(sys.executable).parent / words[0]
    said = subprocess.run([program, "--help"], capture_output=True, text=True, check=True).stdout
    assert [word for word in words if word.startswith("--") and word not in said] == [], LOOK


def test_only_two_modules_import_flower() -> None:
    folder = Path(wire.__file__).parent
    importing = [
        path.name
        for path in sorted(folder.glob("*.py"))
        if any(
            line.strip().startswith(("import flwr", "from flwr")) for line in path.read_text().splitlines()
        )
    ]
    assert importing == ["internals.py", "simulation_internals.py"]


def test_without_flower_it_says_how_to_get_it() -> None:
    code = (
        "import sys; sys.modules['flwr'] = None\n"
        "import silodp, silodp.engines.transport, silodp.engines.flower.proxy\n"
        "import silodp.engines.flower.link\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "pip install 'silodp[flower]'" in done.stderr.splitlines()[-1]
