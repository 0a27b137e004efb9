"""How long judging takes at size: real rows of a small run, repeated, then judged and counted in one process.

    python benchmarks/judge.py [--rows 100000] [--log-bytes 2000] [--distinct 0.05]

`--log-bytes` cuts the native log of every row, because memory goes with it: a whole log of the embedded audio model
has about 48 kB. `--distinct` is the share of rows whose logits nobody else has. The peak includes the table itself.
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from isomatrix.matrix.counts import count_arms
from isomatrix.matrix.schema import trials_schema
from isomatrix.matrix.verdict import judge_table

RUN = (
    "probe=text", "settings.n_threads=1", "settings.n_threads_batch=1", "settings.n_ubatch=512,64,31,8",
    "settings.flash_attn=off,on", "stop=fixed", "stop.rounds=4", "run.name=rows",
)  # fmt: skip


def main() -> None:
    """Print one line a step."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--log-bytes", type=int, default=2_000)
    parser.add_argument("--distinct", type=float, default=0.05)
    options = parser.parse_args()
    table = repeated(real_rows(), options.rows, options.log_bytes, options.distinct)
    print(f"{table.num_rows:,} rows, {table.nbytes / 1e6:.0f} MB, logs cut at {options.log_bytes:,} bytes")
    start = time.perf_counter()
    judged = judge_table(table, "baseline")
    middle = time.perf_counter()
    arms = count_arms(judged, ["baseline"])
    end = time.perf_counter()
    print(f"judge {middle - start:.1f} s, count {end - middle:.1f} s")
    print(f"peak memory {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6:.2f} GB")
    print(arms.select(["arm", "n", "n_identical", "n_drift", "n_corrupt"]).to_pandas().to_string(index=False))


def real_rows() -> pa.Table:
    """Rows of a run of five arms."""
    with tempfile.TemporaryDirectory() as folder:
        command = [str(Path(sys.executable).parent / "isomatrix"), "run", *RUN, f"run.results={folder}"]
        subprocess.run(command, check=True, capture_output=True)
        return pq.read_table(Path(folder) / "rows" / "trials.parquet").cast(trials_schema())


def repeated(rows: pa.Table, count: int, log_bytes: int, distinct: float) -> pa.Table:
    """`rows` over and over with ids and rounds of their own; some get a digest that no other row has."""
    logs = rows.schema.get_field_index("native_log")
    rows = rows.set_column(logs, rows.schema.field(logs), pc.utf8_slice_codeunits(rows["native_log"], 0, log_bytes))
    table = rows.take(pa.array(np.arange(count) % rows.num_rows))
    names = {"trial_id": pa.array([f"r{n}" for n in range(count)]), "round": pa.array(np.arange(count, dtype=np.int32))}
    for name, values in names.items():
        place = table.schema.get_field_index(name)
        table = table.set_column(place, table.schema.field(place), values)
    return with_own_digests(table.combine_chunks(), np.random.default_rng(1).random(count) < distinct)


def with_own_digests(table: pa.Table, chosen: np.ndarray) -> pa.Table:
    """The first logits digest of the chosen rows' first request becomes the row's own number."""
    place = table.schema.get_field_index("requests")
    requests = table.column(place).chunk(0)
    answers = requests.flatten()
    digests = answers.field("logits_digests")
    values = digests.flatten().to_numpy(zero_copy_only=False).copy()
    firsts = digests.offsets.to_numpy()[requests.offsets.to_numpy()[:-1]]
    values[firsts[chosen]] = np.flatnonzero(chosen).astype(np.uint64)
    fields = {
        field.name: answers.field(field.name)
        if field.name != "logits_digests"
        else pa.ListArray.from_arrays(digests.offsets, pa.array(values, pa.uint64()))
        for field in answers.type
    }
    struct = pa.StructArray.from_arrays(list(fields.values()), fields=list(answers.type))
    own = pa.ListArray.from_arrays(requests.offsets, struct)
    return table.set_column(place, table.schema.field(place), own.cast(table.schema.field(place).type))


if __name__ == "__main__":
    main()
