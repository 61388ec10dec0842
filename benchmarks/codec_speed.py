"""How fast codecs are: GB of input a second, beside a copy of the same memory in the same run.  Fills
docs/results/codecs.md.

    python -m benchmarks.codec_speed                  # on one core
    python -m benchmarks.codec_speed --device cuda

The least time that a codec can take on a device is that of moving the bytes that it must: what it reads and what it
writes, at the rate of a copy.
"""

import argparse
import time
from collections.abc import Callable
from statistics import median

import torch

from atoll.codecs import CODECS, parse_codec
from benchmarks.common import RESULTS, markdown, put

COUNT = 4096 * 2441  # 10 M


def seconds(work: Callable[[], object], device: str, repeats: int) -> float:
    """The median of some runs, after one to warm up."""
    times = []
    for _ in range(repeats + 1):
        if device != "cpu":
            torch.cuda.synchronize()
        began = time.perf_counter()
        work()
        if device != "cpu":
            torch.cuda.synchronize()
        times.append(time.perf_counter() - began)
    return median(times[1:])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--repeats", type=int, default=5)
    arguments = parser.parse_args()
    device, repeats = arguments.device, arguments.repeats
    torch.set_num_threads(1)
    count = COUNT if device == "cpu" else 40 * COUNT
    values = torch.randn(count, generator=torch.Generator().manual_seed(0)).to(device)
    target = torch.empty_like(values)
    copy_s = seconds(lambda: target.copy_(values), device, 4 * repeats)
    topk_s = seconds(lambda: values.abs().topk(count // 100), device, repeats)
    rate = 8 * count / copy_s  # bytes read and written a second
    gigabytes = 4 * count / 1e9
    rows = [
        ["a copy", "4", f"{gigabytes / copy_s:.2f}", "", "1.0", "", f"{topk_s / copy_s:.1f}"],
        ["`torch.topk`, 1 %", "", f"{gigabytes / topk_s:.2f}", "", f"{topk_s / copy_s:.1f}", "", "1.0"],
    ]
    for name in CODECS:
        codec = parse_codec(name)
        encoded = codec.encode(values, 1)
        encode_s = seconds(lambda codec=codec: codec.encode(values, 1), device, repeats)  # type: ignore[misc]
        decode_s = seconds(lambda codec=codec, encoded=encoded: codec.decode(encoded, count, 1), device, repeats)  # type: ignore[misc]
        least_s = (4 * count + codec.size(count)) / rate
        rows.append(
            [
                f"`{name}`",
                f"{codec.size(count) / count:.3g}",
                f"{gigabytes / encode_s:.2f}",
                f"{gigabytes / decode_s:.2f}",
                f"{encode_s / least_s:.1f}",
                f"{decode_s / least_s:.1f}",
                f"{topk_s / encode_s:.1f}",
            ]
        )
        print(rows[-1], flush=True)
    heads = [
        "",
        "bytes a value",
        "encode, GB/s of input",
        "decode, GB/s of output",
        "encode, times the least",
        "decode, times the least",
        "times faster than `torch.topk`",
    ]
    where = "one core" if device == "cpu" else torch.cuda.get_device_name(device)
    put(RESULTS / "codecs.md", device, f"**{where}**, {count / 1e6:.0f} M values\n\n{markdown(heads, rows)}")


if __name__ == "__main__":
    main()
