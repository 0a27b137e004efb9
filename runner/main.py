"""The command line: `isomatrix VERB ...`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from . import provenance
from .errors import ExitCode, UserError

__all__ = ["main"]

_EXAMPLES = """\
examples:
  isomatrix doctor                                  what this build and machine can do
  isomatrix run                                     embedded tiny model, the six default axes
  isomatrix run settings.op_offload=true,false settings.n_gpu_layers=0,12,99
  isomatrix run model=file model.path=M.gguf probe=text probe.prompt="Once upon a time" stop=fixed stop.rounds=5
  isomatrix plan load=none,cpu 'cross=[load]'       the arms and the estimated time, without running anything
  isomatrix show                                    the table of the newest result
  isomatrix report results/NAME --format md         the same, to paste into an issue

After run and plan every word is a Hydra override; 'isomatrix run --help' lists the groups, and
'isomatrix run --cfg job' prints the composed configuration.

exit values: 0 done, 2 bad input, 3 no usable table, 130 interrupted, 1 a fault of isomatrix itself
"""


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="isomatrix",
        description="Isolation-matrix experiments for silent corruption in llama.cpp.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"isomatrix {provenance.project_version()}")
    verbs = parser.add_subparsers(dest="verb", metavar="VERB", required=True)
    for verb, about in (("run", "run the matrix and print its table"), ("plan", "show what would be run")):
        verbs.add_parser(verb, help=about, add_help=False)
    _add_result(verbs.add_parser("show", help="print the table of a finished or running result"))
    report = verbs.add_parser("report", help="write the table as Markdown, CSV or JSON")
    _add_result(report)
    report.add_argument("--format", choices=("md", "csv", "json"), default="md", help="default: md")
    report.add_argument("-o", "--output", metavar="FILE", help="write here instead of to standard output")
    replay = verbs.add_parser("replay", help="run one stored trial again, by hand")
    replay.add_argument("result", help="folder of the result")
    replay.add_argument("trial", help="trial id, or a part of it that only one trial has")
    judge = verbs.add_parser("judge", help="judge the stored rows again, without running anything")
    _add_result(judge)
    judge.add_argument(
        "--set",
        dest="thresholds",
        metavar="NAME=VALUE",
        action="append",
        default=[],
        help="another limit; it is kept with the result, and show and report use it too",
    )
    judge.add_argument(
        "--harmless",
        metavar="ARM",
        action="append",
        default=[],
        help="an arm whose measured noise sets the limits of the teacher-forced pass",
    )
    judge.add_argument("--reset", action="store_true", help="go back to the usual limits first")
    assess = verbs.add_parser("assess", help="what a hand-made table of counts proves")
    assess.add_argument("counts", help="CSV file with the columns arm, bad, runs; the first arm is the reference")
    assess.add_argument("--baseline", metavar="ARM", help="the arm that the others are compared with")
    assess.add_argument("--alpha", type=float, default=0.05, help="family-wise error (default: 0.05)")
    doctor = verbs.add_parser("doctor", help="interpreter, build, devices, and which axes are live here")
    doctor.add_argument("--python", metavar="PATH", help="look at another interpreter's llama-cpp-python")
    return parser


def _add_result(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("result", nargs="?", help="folder or name of the result; the newest below results/ by default")


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns its exit value (see `ExitCode`)."""
    words = list(sys.argv[1:] if argv is None else argv)
    try:
        if words and words[0] in ("run", "plan"):
            from .launch import run_or_plan  # Hydra is slow to import and the other verbs do without it

            return run_or_plan(words[0], words[1:])
        return _other(_parser().parse_args(words))
    except UserError as error:
        sys.stderr.write(f"isomatrix: {error}\n")
        return error.code
    except BrokenPipeError:
        return _closed_pipe()
    except KeyboardInterrupt:
        return ExitCode.INTERRUPTED


def _closed_pipe() -> int:
    # `isomatrix show | head`: the reader has what it wanted. Python would complain again at exit.
    import os

    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return ExitCode.OK


def _other(arguments: argparse.Namespace) -> int:
    from . import commands

    return int(getattr(commands, arguments.verb)(arguments))
