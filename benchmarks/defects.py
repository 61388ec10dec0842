"""What real use found, done to real nodes: before a defect is mended, and after.

    python -m benchmarks.defects story [--strategy S] [--picture FILE]    # two and a half minutes, and a picture
    python -m benchmarks.defects liars [--strategies S ...] [--lies a b]  # half a minute for each, two at a time
    python -m benchmarks.defects stuck                                    # two minutes
    python -m benchmarks.defects handover [--millions 115]                # a minute

All nodes are processes on this machine and speak over loopback.
"""

import argparse
import tempfile
from pathlib import Path

from benchmarks.defect_handover import handover
from benchmarks.defect_liar import LIES
from benchmarks.defect_liars import play_all
from benchmarks.defect_plot import plot
from benchmarks.defect_story import Story, tell
from benchmarks.defect_stuck import stuck

PICTURE = Path(__file__).parents[1] / "docs" / "img" / "nothing-is-lost.png"


STRATEGIES = ["vrl:codec=int8", "allreduce:every=4", "diloco:every=8", "gossip", "ssp"]


def lies_in_words() -> str:
    return "; ".join(f"{name}: {what}" for name, what in LIES.items())


def story(arguments: argparse.Namespace) -> None:
    if arguments.load:
        found = Story.load(arguments.load)
    else:
        with tempfile.TemporaryDirectory() as folder:
            place = arguments.keep or Path(folder)
            found = tell(place, arguments.strategy)
            found.save(place / "story.json")
    plot(found, arguments.picture)
    print(found.table())


def liars(arguments: argparse.Namespace) -> None:
    print(play_all(arguments.strategies, arguments.lies, arguments.jobs))


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = options.add_subparsers(required=True)
    one = commands.add_parser("story", help="joins, kills, a stop, the founder's death and return, a resume")
    one.add_argument("--strategy", default="allreduce:every=8")
    one.add_argument("--picture", type=Path, default=PICTURE)
    one.add_argument("--keep", type=Path, help="a folder for logs and traces")
    one.add_argument("--load", type=Path, help="draw what an earlier run kept, story.json")
    one.set_defaults(command=story)
    two = commands.add_parser("liars", help="three honest nodes, and one that was invited and lies")
    two.add_argument("--strategies", nargs="+", default=STRATEGIES)
    two.add_argument("--lies", nargs="+", choices=list(LIES), default=list(LIES), help=lies_in_words())
    two.add_argument("--jobs", type=int, default=2)
    two.set_defaults(command=liars)
    three = commands.add_parser("stuck", help="a machine that prepares for long, and one whose training loop hangs")
    three.set_defaults(command=lambda _: print(stuck()))
    four = commands.add_parser("handover", help="a large model is handed to a machine that joins")
    four.add_argument("--millions", type=int, default=115, help="of parameters")
    four.set_defaults(command=lambda given: print(handover(given.millions)))
    arguments = options.parse_args()
    arguments.command(arguments)


if __name__ == "__main__":
    main()
