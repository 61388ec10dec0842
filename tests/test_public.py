"""The names that users rely on; changing them is a decision, not an accident."""

import importlib

import pytest

import atoll

PUBLIC = {
    "atoll": [
        "AtollError",
        "Lane",
        "Message",
        "Network",
        "NetworkError",
        "Peer",
        "Physics",
        "Run",
        "Simulation",
        "Stalled",
        "Trace",
        "TraceError",
        "UnknownPeer",
        "UserError",
        "World",
        "__version__",
        "join",
        "load_network",
        "read_trace",
        "simulate",
    ],
    "atoll.network": [
        "BandwidthTrace",
        "Fading",
        "Gaps",
        "Link",
        "Network",
        "Node",
        "Outage",
        "Phase",
        "UpDown",
        "Walk",
        "Way",
        "load_network",
        "parse_network",
        "preset_names",
        "read_bandwidth_trace",
    ],
    "atoll.world": ["IDEAL", "Lane", "Message", "Peer", "Physics", "Simulation", "World"],
    "atoll.codecs": ["CODECS", "Codec", "Dense", "Feedback", "parse_codec"],
    "atoll.collectives": [
        "Body",
        "COLLECTIVES",
        "Collective",
        "Judge",
        "Lengths",
        "Round",
        "SendLog",
        "Spawn",
        "Trailer",
        "broadcast",
    ],
    "atoll.strategies": [
        "DEFAULT_STRATEGY",
        "ISLANDS_STRATEGY",
        "Quantity",
        "RECIPES",
        "Recipe",
        "Replica",
        "Strategy",
        "Talk",
        "Work",
        "parse_strategy",
        "recipes",
    ],
    "atoll.training": ["Examples", "TASKS", "Task", "accuracy", "load_task", "parse_shards"],
    "atoll.runs": ["IDEAL_STRATEGY", "RunSpec", "simulate"],
    "atoll.trace": [
        "CheckpointSaved",
        "Computed",
        "ContributionRefused",
        "DataUsed",
        "Emulated",
        "EpochEnded",
        "Event",
        "EventsLost",
        "Exchanged",
        "FaultChanged",
        "FinalTested",
        "IslandsFormed",
        "Joined",
        "LinkChanged",
        "MeanTested",
        "MessageRefused",
        "Planned",
        "ReachChanged",
        "Recorder",
        "RunEnded",
        "RunStarted",
        "SeatTaken",
        "StageReported",
        "Tested",
        "Trace",
        "TraceTail",
        "TrainingStarted",
        "Transferred",
        "ViewChanged",
        "Waited",
        "WayMeasured",
        "encode_event",
        "encode_header",
        "read_trace",
    ],
}


@pytest.mark.parametrize("module", PUBLIC)
def test_public_names(module: str) -> None:
    imported = importlib.import_module(module)
    assert sorted(imported.__all__) == PUBLIC[module]
    assert all(hasattr(imported, name) for name in imported.__all__)


def test_version() -> None:
    assert atoll.__version__.count(".") == 2
