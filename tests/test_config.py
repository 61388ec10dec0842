import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atoll.config import RunConfig, is_config
from atoll.errors import AtollError
from atoll.network import load_network
from atoll.world.faults import parse_faults
from tests.world.networks import network

TRIANGLE = load_network("triangle")
FAULTS = """
[[fault]]
kind = "crash"
nodes = ["1"]
at = 5
until = 9.5
[[fault]]
kind = "partition"
sides = [["0"], ["1", "2"]]
at = 20
until = 30
"""


@given(
    st.fixed_dictionaries(
        {},
        optional={
            "world": st.sampled_from(["sim", "emulate"]),
            "strategy": st.sampled_from(["allreduce:every=4", "gossip:aware"]),
            "shards": st.sampled_from(["iid", "dirichlet:0.5"]),
            "seed": st.integers(0, 2**40),
            "limit_s": st.floats(1, 1e6),
            "role": st.sampled_from(["strategy", "ideal"]),
            "faults": st.just(parse_faults(FAULTS, TRIANGLE.node_names)),
            "stops": st.booleans(),
            "checkpoints": st.just(Path("/checkpoints")),
            "script": st.just(("/train.py", "--rate", "0.1")),
            "islands": st.just("auto:memory=4GB"),
        },
    )
)
def test_what_is_written_can_be_read(values: dict[str, Any]) -> None:
    config = RunConfig(network=TRIANGLE, **values)
    assert RunConfig.from_dict(config.as_dict()) == config
    assert RunConfig.from_dict(json.loads(json.dumps(config.as_dict()))) == config


@pytest.mark.parametrize("name", ["run.toml", "run.json"])
def test_files(name: str, tmp_path: Path) -> None:
    config = RunConfig(network=TRIANGLE, strategy="none", faults=parse_faults(FAULTS, TRIANGLE.node_names), limit_s=9.0)
    path = tmp_path / name
    if path.suffix == ".json":
        path.write_text(json.dumps(config.as_dict()))
    else:
        config.write(path)
    assert is_config(path)
    assert RunConfig.read(path) == config


def test_paths_are_seen_from_where_the_file_is(tmp_path: Path) -> None:
    (tmp_path / "net.toml").write_text('[[node]]\ncount = 2\n[[link]]\namong = "*"\nlatency_ms = 1\n')
    (tmp_path / "run.toml").write_text('network = "net.toml"\nstrategy = "none"\ndata = "mnist"\n')
    config = RunConfig.read(tmp_path / "run.toml")
    assert config.data == tmp_path / "mnist"
    assert len(config.links) == 2
    assert not is_config(tmp_path / "net.toml")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('netwrok = "triangle"\nstrategy = "none"', "there is no key 'netwrok'; did you mean 'network'?"),
        ('network = "triangel"', "there is no network"),
        ('network = "triangle"\nseed = "one"', "Expected `int`, got `str` - at `$.seed`"),
        ('network = "triangle"\nworld = "moon"', "Invalid enum value 'moon'"),
        ('network = "triangle"\nstrategy = "allredcue"', "did you mean 'allreduce'?"),
        ('network = "triangle"\nshards = "idd"', "there are no shards"),
        ('network = "triangle"\nlimit_s = 0', "limit_s: expected seconds above 0, not 0"),
        ('network = "triangle"\n[[fault]]\nkind = "crsh"', "fault 1"),
        ("network = ", "expected TOML or JSON"),
    ],
)
def test_mistakes_are_told_in_one_line(text: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    path.write_text(text)
    with pytest.raises(AtollError) as refused:
        RunConfig.read(path)
    assert message in str(refused.value)


def test_what_a_checkpoint_must_agree_with() -> None:
    config = RunConfig(network=TRIANGLE, strategy="none")
    for change in ({"seed": 1}, {"strategy": "allreduce"}, {"network": network("[[node]]\ncount = 2")}):
        assert dataclasses.replace(config, **change).identity != config.identity
    assert dataclasses.replace(config, limit_s=5.0, device="cuda").identity == config.identity


def test_the_ideal_is_on_perfect_links() -> None:
    config = RunConfig(network=TRIANGLE, strategy="none", role="ideal", islands="auto")
    assert config.links == TRIANGLE.perfected()
    assert config.island_settings is None
