"""Throws bytes at what reads frames, for a while: random ones, and real frames with something wrong.

    python -m benchmarks.frames [--seconds 600] [--seed 0]

Whatever comes, a reader returns what it says it returns or raises `FrameError`; memory stays what it was.
"""

import argparse
import random
import resource
import time
from collections import Counter
from collections.abc import Callable

from atoll.errors import FrameError
from atoll.world.live.frames import HEAD_BYTES, LARGEST, Kind, Opening, head_of, parse_head, parse_json, parse_opening
from atoll.world.live.queues import Inbox
from atoll.world.live.tunnel import pack_names, parse_envelope


def _read_stream(data: bytes) -> None:
    """Reads frames as a carrier does, and takes messages in as a session does."""
    inbox = Inbox("peer")
    place = 0
    while len(data) - place >= HEAD_BYTES:
        head = parse_head(data[place : place + HEAD_BYTES])
        assert head.size <= LARGEST[head.kind]
        payload = memoryview(data)[place + HEAD_BYTES : place + HEAD_BYTES + head.size]
        place += HEAD_BYTES + head.size
        if len(payload) < head.size:
            return  # the rest has not come
        head.check([payload], encrypted=True)
        if head.kind in (Kind.OPEN, Kind.PART, Kind.VOID):
            room = inbox.place(head)
            if room is not None:
                room[:] = payload
            inbox.take(head, payload if room is None else room, 0.0)
        elif head.kind is Kind.RELAY:
            parse_envelope(payload)
        elif head.kind in (Kind.HELLO, Kind.NEWS):
            parse_json(payload)


def _frames(draw: random.Random) -> bytes:
    """A stream that might be real."""
    stream = b""
    for number in range(draw.randint(1, 4)):
        body = draw.randbytes(draw.randint(0, 300))
        cut = draw.randint(0, len(body))
        opening = Opening("channel", b"head", len(body)).pack() + body[:cut]
        stream += head_of(Kind.OPEN, number, 0, [opening], encrypted=True) + opening
        if cut < len(body):
            stream += head_of(Kind.PART, number, cut, [body[cut:]], encrypted=True) + body[cut:]
        kind = draw.choice([Kind.BEAT, Kind.NEWS, Kind.RELAY, Kind.ACK])
        payload = {
            Kind.BEAT: b"",
            Kind.NEWS: b'{"reaches": {}}',
            Kind.RELAY: pack_names("a", "b") + bytes(HEAD_BYTES),
            Kind.ACK: b"\0",
        }[kind]
        stream += head_of(kind, draw.getrandbits(60), 0, [payload], encrypted=True) + payload
    return stream


def _spoil(data: bytes, draw: random.Random) -> bytes:
    spoilt = bytearray(data)
    for _ in range(draw.randint(1, 4)):
        place = draw.randrange(len(spoilt)) if spoilt else 0
        match draw.randint(0, 4):
            case 0 if spoilt:
                spoilt[place] ^= 1 << draw.randint(0, 7)
            case 1:
                del spoilt[place : place + draw.randint(1, 40)]
            case 2:
                spoilt[place:place] = draw.randbytes(draw.randint(1, 40))
            case 3 if spoilt:
                spoilt[place : place + 8] = draw.choice([b"\xff" * 8, bytes(8), (2**31).to_bytes(8, "big")])
            case _:
                spoilt[place:place] = spoilt[: draw.randint(1, 80)]
    return bytes(spoilt)


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--seconds", type=float, default=600.0)
    options.add_argument("--seed", type=int, default=0)
    arguments = options.parse_args()
    draw = random.Random(arguments.seed)
    readers: list[Callable[[bytes], object]] = [
        _read_stream,
        parse_head,
        parse_json,
        lambda data: parse_opening(memoryview(data)),
        lambda data: parse_envelope(memoryview(data)),
    ]
    counts: Counter[str] = Counter()
    until = time.monotonic() + arguments.seconds
    while time.monotonic() < until:
        for _ in range(200):
            frames = _frames(draw)
            data = draw.choice([frames, _spoil(frames, draw), draw.randbytes(draw.randint(0, 200))])
            for read in readers:
                try:
                    read(data)
                    counts["read"] += 1
                except FrameError:
                    counts["refused"] += 1
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"{sum(counts.values())} readings in {arguments.seconds:.0f} s: {dict(counts)}; {peak:.0f} MiB at most")


if __name__ == "__main__":
    main()
