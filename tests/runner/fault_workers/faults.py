"""A worker that speaks the protocol and then misbehaves as `fault` in its spec says.

Run like the real one: `python faults.py SPEC.json --result-fd N --watch-stdin`.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from _thread import start_new_thread

SPEC = json.load(open(sys.argv[1], encoding="utf-8"))  # noqa: SIM115, PTH123
RESULT = int(sys.argv[sys.argv.index("--result-fd") + 1])
REQUEST = {
    "request": 0,
    "n_prompt_tokens": 3,
    "n_generated": 2,
    "stop_reason": "max_tokens",
    "token_ids": [7, 9],
    "logprobs": [-0.5, float("nan")],
    "margins": [1.25, 0.1],
    "top_ids": [[7, 1], [9, 2]],
    "top_logits": [[2.0, 0.75], [1.0, 0.9]],
    "logits_digests": ["ffffffffffffffff", "8000000000000001"],
    "nan_counts": [0, 1],
    "prompt_digest": "fffffffffffffffe",
    "projector_digest": None,
    "kv_cells_before": 0,
    "text": "a\ufffdb",
    "prompt_s": 0.25,
    "generate_s": 0.5,
}


def send(event: str, **fields: object) -> None:
    os.write(RESULT, json.dumps({"event": event, "t": 0.0, **fields}).encode() + b"\n")


def log(text: str) -> None:
    os.write(2, text.encode() + b"\n")


def answer() -> None:
    """A complete answer."""
    send("library", library="0.3.36", build="b1 (abc)", system_info="CPU", devices=[])
    send("loaded", load_s=0.125, applied={"n_ctx": {"asked": 1}}, evidence={"n_ctx": 2048})
    send("progress", stage="prompt", request=0, done=3)
    send("progress", stage="generate", request=0, done=2)
    send("request", **REQUEST)
    send("done", n_requests=1)


def ok() -> None:
    answer()


def segmentation_fault() -> None:
    send("progress", stage="prompt", request=0, done=3)
    send("progress", stage="generate", request=0, done=2)
    log("ggml_backend_sched: before the fault")
    os.kill(os.getpid(), signal.SIGSEGV)


def abort() -> None:
    log("ggml.c:42: GGML_ASSERT(ne00 == ne10) failed")
    log("a later line")
    os.abort()


def bus_error() -> None:
    os.kill(os.getpid(), signal.SIGBUS)


def kill_itself() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def no_result() -> None:
    log("gave up quietly")


def exit_seven() -> None:
    sys.exit(7)


def exit_seven_after_answer() -> None:
    answer()
    sys.exit(7)


def crash_after_answer() -> None:
    answer()
    os.abort()


def endless_loop() -> None:
    while True:
        pass


def progress_then_hang() -> None:
    for done in range(5):
        send("progress", stage="generate", request=0, done=done)
        time.sleep(0.02)
    time.sleep(60)


def hang() -> None:
    time.sleep(60)


def grow() -> None:
    held = []
    while True:
        held.append(b"x" * (4 << 20))
        time.sleep(0.001)


def flood_stdout() -> None:
    for _ in range(1 << 14):
        os.write(1, b"y" * 65535 + b"\n")
    answer()


def flood_stderr() -> None:
    log("the first line")
    for _ in range(1 << 14):
        os.write(2, b"z" * 65535 + b"\n")
    answer()


def long_log() -> None:
    log("the first line")
    for number in range(20000):
        log(f"line {number}")
    log("the last line")
    answer()


def print_to_stdout() -> None:
    os.write(1, b"not for here")
    answer()


def closed_pipe() -> None:
    os.close(RESULT)
    time.sleep(60)


def half_a_message() -> None:
    os.write(RESULT, b'{"event": "request", "requ')


def not_json() -> None:
    os.write(RESULT, b"Segmentation fault\n")
    answer()


def wrong_type() -> None:
    send("request", **{**REQUEST, "token_ids": "seven"})
    send("done", n_requests=1)


def missing_request() -> None:
    send("done", n_requests=2)


def deaf() -> None:
    """Ignores every signal that can be ignored."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    send("progress", stage="prompt", request=0, done=1)
    time.sleep(60)


def orphan() -> None:
    """Leaves a grandchild in the group, which holds all pipes."""
    if os.fork() == 0:
        time.sleep(60)
    answer()


def runaway_orphan() -> None:
    """Leaves a grandchild in a session of its own, with no pipe of the trial."""
    import subprocess  # costs a third of the start-up, and nobody else needs it

    subprocess.Popen(
        [sys.executable, "-S", "-c", "import time; time.sleep(60)"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    answer()


def fail(kind: str, exit_value: int) -> None:
    send("error", kind=kind, message=f"settings.x: {kind} happened", where="load")
    sys.exit(exit_value)


def load_failure() -> None:
    fail("load_failure", 4)


def refused() -> None:
    fail("refused", 3)


def backend_error() -> None:
    send("progress", stage="prompt", request=0, done=3)
    fail("backend_error", 5)


def out_of_memory() -> None:
    fail("out_of_memory", 6)


def bad_input() -> None:
    fail("bad_input", 2)


def load_failure_then_hang() -> None:
    send("error", kind="load_failure", message="the file is cut short", where="load")
    time.sleep(60)


def show_surroundings() -> None:
    """Tells where it runs, as the text of the request."""
    about = {
        "cwd": os.getcwd(),  # noqa: PTH109  (pathlib doubles the start-up time)
        "env": dict(os.environ),
        "session_leader": os.getsid(0) == os.getpid(),
        "fds": sorted(int(name) for name in os.listdir("/dev/fd")),  # noqa: PTH208
    }
    send("request", **{**REQUEST, "text": json.dumps(about)})
    send("done", n_requests=1)


def watch_stdin() -> None:
    while os.read(0, 4096):
        pass
    os._exit(9)


if __name__ == "__main__":
    if "--watch-stdin" in sys.argv:
        start_new_thread(watch_stdin, ())
    if not SPEC.get("silent"):
        send("started", pid=os.getpid(), python="3.x", worker_version=1)
    globals()[SPEC["fault"]]()
    sys.stdout.flush()
    os._exit(0)
