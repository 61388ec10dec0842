import asyncio
import gc
import threading
import weakref

import pytest

from atoll.world.live.helpers import Helpers


def test_work_is_done_on_other_threads() -> None:
    async def main() -> None:
        helpers = Helpers(2)
        entered: list[int] = []

        class Around:
            def __enter__(self) -> None:
                entered.append(threading.get_ident())

            def __exit__(self, *_: object) -> None:
                pass

        helpers.around = Around
        here = threading.get_ident()
        meeting = threading.Barrier(2)  # two pieces of work at a time
        found = await asyncio.gather(*(helpers.run(lambda: meeting.wait(10) * 0 + threading.get_ident()) for _ in "ab"))
        assert here not in found
        assert sorted(found) == sorted(entered)
        with pytest.raises(ValueError, match="invalid literal"):
            await helpers.run(lambda: int("x"))
        assert await helpers.run(lambda: 5) == 5
        await helpers.close()

    asyncio.run(main())


def test_who_stops_waiting_stops_nothing() -> None:
    """Work that was not begun is dropped; other work ends, and nothing is left."""

    async def main() -> None:
        helpers = Helpers(1)
        goes_on, did = threading.Event(), list[int]()
        first = asyncio.create_task(helpers.run(lambda: did.append(1 + 0 * goes_on.wait(10))))
        second = asyncio.create_task(helpers.run(lambda: did.append(2)))
        await asyncio.sleep(0.05)
        second.cancel()
        goes_on.set()
        await first
        assert await helpers.run(lambda: 3) == 3
        assert did == [1]
        await helpers.close()
        assert [thread for thread in threading.enumerate() if thread.name.startswith("exchange")] == []

    asyncio.run(main())


def test_large_results_are_let_go_of() -> None:
    class Large:
        pass

    async def main() -> None:
        helpers = Helpers(1)
        found = await helpers.run(Large)
        seen = weakref.ref(found)
        del found
        await asyncio.sleep(0.05)
        gc.collect()
        assert seen() is None, "the thread waits for more work, and holds nothing"
        await helpers.close()

    asyncio.run(main())
