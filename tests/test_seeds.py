from atoll.seeds import derive, stream


def test_streams_depend_on_seed_and_name_alone() -> None:
    assert derive(0, "link", "a~b") == 2057790845913917953  # on every machine and in every process
    assert stream(1, "node", "a").random() == stream(1, "node", "a").random()
    assert len({derive(seed, *names) for seed in (0, 1) for names in (("a",), ("b",), ("a", "b"), ("ab",))}) == 8
