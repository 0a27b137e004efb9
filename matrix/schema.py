"""The record: one Arrow schema for trials, one for arms, every field with a description and a unit.

Absent (null) means *not measured*, never zero. A column's meaning never changes within a version; columns
may be added. Everything after the record (verdicts, counts, tests, tables) is recomputable from it.
"""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

__all__ = [
    "ARMS",
    "REQUEST_FIELDS",
    "SCHEMA_VERSION",
    "TEACHER_COLUMNS",
    "TRIALS",
    "VERDICT_COLUMNS",
    "Column",
    "arms_schema",
    "request_type",
    "trials_schema",
]

SCHEMA_VERSION = 1


@dataclass(frozen=True)
class Column:
    """One field of the record."""

    name: str
    type: pa.DataType
    about: str
    unit: str = ""


REQUEST_FIELDS: tuple[Column, ...] = (
    Column("request", pa.int32(), "index of the request within its process, from 0"),
    Column("n_prompt_tokens", pa.int32(), "positions the prompt takes, media included", "tokens"),
    Column("n_generated", pa.int32(), "tokens generated", "tokens"),
    Column("stop_reason", pa.string(), "eos, max_tokens or context_full"),
    Column("token_ids", pa.list_(pa.int32()), "token ids as sampled inside the engine, in order"),
    Column("logprobs", pa.list_(pa.float32()), "natural-log probability of each sampled token at temperature 1"),
    Column("margins", pa.list_(pa.float32()), "largest minus second-largest raw logit at each position", "logit"),
    Column("top_ids", pa.list_(pa.list_(pa.int32())), "ids of the k largest raw logits at each position"),
    Column("top_logits", pa.list_(pa.list_(pa.float32())), "the k largest raw logits at each position", "logit"),
    Column(
        "logits_digests",
        pa.list_(pa.uint64()),
        "64-bit BLAKE2b of the raw logits row that each token came from",
    ),
    Column("nan_counts", pa.list_(pa.int32()), "NaN or infinite entries in each logits row"),
    Column("prompt_digest", pa.uint64(), "64-bit digest of the prompt's last logits row"),
    Column("projector_digest", pa.uint64(), "64-bit digest of all projector output embeddings; null for text"),
    Column("kv_cells_before", pa.int32(), "KV cells in use before the request; null where the build cannot say"),
    Column("text", pa.string(), "detokenised output, special tokens rendered, invalid bytes as U+FFFD"),
    Column("prompt_s", pa.float64(), "time to evaluate the prompt, media included", "s"),
    Column("generate_s", pa.float64(), "time to generate", "s"),
)


def request_type() -> pa.StructType:
    """Arrow type of one entry of `requests`."""
    return pa.struct([(column.name, column.type) for column in REQUEST_FIELDS])


TEACHER_COLUMNS: tuple[Column, ...] = (
    Column(
        "teacher_kl",
        pa.list_(pa.float32()),
        "KL(reference || trial) of the next-token distributions at each teacher-forced position",
        "nat",
    ),
    Column(
        "teacher_nmse",
        pa.list_(pa.float32()),
        "squared error of each teacher-forced logits row over the sum of squares of the reference's",
    ),
    Column(
        "teacher_max_abs",
        pa.list_(pa.float32()),
        "largest absolute logit difference of each teacher-forced row, over the whole vocabulary",
        "logit",
    ),
    Column("teacher_rank", pa.list_(pa.int32()), "entries that come before the reference's token in each row"),
    Column("teacher_top1", pa.list_(pa.bool_()), "whether each row puts the same token first as the reference's"),
    Column(
        "teacher_unlike",
        pa.list_(pa.int32()),
        "entries of each row that are NaN or infinite, there or in the reference, and not the same in both; "
        "with any of them the three measures are infinite",
    ),
    Column("teacher_digests", pa.list_(pa.uint64()), "64-bit digest of each teacher-forced logits row"),
    Column("teacher_reference", pa.uint64(), "64-bit digest of the ids and digests of the reference's positions"),
    Column("teacher_note", pa.string(), "why there is no teacher-forced pass, or why it is shorter; null if neither"),
    Column("teacher_s", pa.float64(), "time of the teacher-forced pass, prompt included", "s"),
)

VERDICT_COLUMNS: tuple[Column, ...] = (
    Column("verdict", pa.string(), "identical, drift, divergent, garbage, failed or unjudged"),
    Column("verdict_reason", pa.string(), "the rule that decided, in one sentence"),
    Column("corrupt", pa.bool_(), "whether the verdict counts as corruption; null where failed or unjudged"),
    Column("first_divergent_request", pa.int32(), "first request whose ids differ from the reference"),
    Column("first_divergent_position", pa.int32(), "first generated position whose id differs, from 0"),
    Column("first_digest_position", pa.int32(), "first generated position whose logits digest differs, from 0"),
    Column(
        "noise",
        pa.float64(),
        "largest logit difference on the shared prefix (top-k) and the teacher-forced positions",
        "logit",
    ),
    Column("noise_nmse", pa.float64(), "largest NMSE of the teacher-forced positions"),
    Column("noise_kl", pa.float64(), "largest KL(reference || trial) of the teacher-forced positions", "nat"),
    Column("reference_margin", pa.float64(), "the reference's margin at the first differing id", "logit"),
    Column("reference", pa.string(), "which reference the verdict used"),
    Column("text_signs", pa.string(), "signs of broken text that the reference does not show, JSON; null if none"),
    Column("log_markers", pa.string(), "fault and suspicious markers in the native log, JSON; null if none"),
    Column(
        "off_mode",
        pa.bool_(),
        "whether the digests differ from the arm's own most frequent ones; null if no mode",
    ),
    Column(
        "requests_differ",
        pa.bool_(),
        "whether requests of this process differ in digests; null with one request",
    ),
    Column("thresholds", pa.string(), "thresholds that the verdict used, JSON"),
)

TRIALS: tuple[Column, ...] = (
    Column("schema_version", pa.int32(), "version of this schema"),
    Column("trial_id", pa.string(), "readable prefix and versioned hash of what can change the result"),
    Column("arm", pa.string(), "name of the arm"),
    Column("axis", pa.string(), "the axis that the arm moves; 'baseline'; or 'several' for a multi-change arm"),
    Column("level", pa.string(), "the level that the axis has in this arm"),
    Column("changes", pa.string(), "all differences from the baseline, as `name=value` joined by ', '"),
    Column("round", pa.int32(), "round, from 0: the blocking factor"),
    Column("position", pa.int32(), "place of the trial within its round's random order, from 0"),
    Column("machine", pa.string(), "stable anonymous id of the machine"),
    Column("settings", pa.string(), "settings asked for, JSON"),
    Column("spec", pa.string(), "the worker's complete input, JSON: what `replay` runs again"),
    Column("outcome", pa.string(), "how the process ended"),
    Column("end_reason", pa.string(), "who ended the process and why, where it did not end by itself"),
    Column("exit_code", pa.int32(), "exit value; null if a signal ended the process"),
    Column("signal", pa.int32(), "signal that ended the process; null if it exited"),
    Column("error", pa.string(), "the failure in one sentence, from the worker or the runner"),
    Column("n_requests", pa.int32(), "requests completed"),
    Column("requests", pa.list_(request_type()), "every completed request, in order"),
    Column("token_ids", pa.list_(pa.int32()), "token ids of request 0"),
    Column("logits_digests", pa.list_(pa.uint64()), "logits digests of request 0"),
    Column("n_prompt_tokens", pa.int32(), "prompt positions of request 0", "tokens"),
    Column("n_generated", pa.int32(), "tokens generated by request 0", "tokens"),
    Column("stop_reason", pa.string(), "stop reason of request 0"),
    Column("text", pa.string(), "text of request 0"),
    *TEACHER_COLUMNS,
    Column("progress_stage", pa.string(), "last stage reported: started, loaded, prompt, generate, teacher or done"),
    Column("progress_request", pa.int32(), "request being worked on at the last progress event"),
    Column(
        "progress_prompt_tokens",
        pa.int32(),
        "prompt positions evaluated at the last progress event",
        "tokens",
    ),
    Column("progress_generated", pa.int32(), "tokens generated at the last progress event", "tokens"),
    Column("started_at", pa.timestamp("us", tz="UTC"), "when the runner started the process"),
    Column("wall_s", pa.float64(), "wall time from spawn to reaped", "s"),
    Column("start_s", pa.float64(), "wall time from spawn to the worker's first event", "s"),
    Column("load_s", pa.float64(), "wall time to load library, model, context and projector", "s"),
    Column("prompt_s", pa.float64(), "prompt evaluation, all requests", "s"),
    Column("generate_s", pa.float64(), "generation, all requests", "s"),
    Column("cpu_s", pa.float64(), "user plus system CPU time of the worker, from the OS at reaping", "s"),
    Column("peak_rss_bytes", pa.int64(), "largest resident set of the worker, from the OS at reaping", "bytes"),
    Column("load", pa.string(), "kind of synthetic load"),
    Column("load_asked", pa.string(), "parameters of the load, JSON"),
    Column("load_cpu_share", pa.float64(), "CPU time of the load's processes over wall time and all CPUs", "0..1"),
    Column("system_cpu_share", pa.float64(), "busy share of all CPUs during the trial, worker included", "0..1"),
    Column("applied", pa.string(), "per setting: asked, applied, status, JSON"),
    Column("evidence", pa.string(), "what the library says it did, JSON"),
    Column("library", pa.string(), "llama-cpp-python version"),
    Column("build", pa.string(), "llama.cpp build and commit as the library prints them, else null"),
    Column("python", pa.string(), "version of the interpreter that ran the worker"),
    Column("model_sha256", pa.string(), "SHA-256 of the model file"),
    Column("mmproj_sha256", pa.string(), "SHA-256 of the projector file; null for text"),
    Column("media_sha256", pa.string(), "SHA-256 of the media file; null for text"),
    Column(
        "native_log",
        pa.string(),
        "stderr of the worker with the native log; the middle cut out above the limit",
    ),
    Column("stdout_tail", pa.string(), "last bytes of stdout, which must be empty; null if it was"),
    Column("plant", pa.string(), "planted fault as asked for, JSON; null if nothing was planted"),
    Column(
        "plant_fired", pa.bool_(), "whether the planted fault struck; null without one, or if the worker never said"
    ),
    Column("plant_report", pa.string(), "what the planted fault hit, or why it did not, JSON"),
    *VERDICT_COLUMNS,
)

ARMS: tuple[Column, ...] = (
    Column("arm", pa.string(), "name of the arm"),
    Column("axis", pa.string(), "the axis that the arm moves; 'baseline'; or 'several'"),
    Column("level", pa.string(), "the level that the axis has in this arm"),
    Column("changes", pa.string(), "all differences from the baseline"),
    Column("planted", pa.string(), "the fault planted in this arm, in words; null for a real arm"),
    Column("control", pa.string(), "positive or negative for a control arm, else null"),
    Column("n", pa.int32(), "trials that count: judged, failures left out", "trials"),
    Column("n_corrupt", pa.int32(), "trials whose verdict counts as corruption", "trials"),
    Column("n_failed", pa.int32(), "trials whose outcome is not ok", "trials"),
    Column("rate", pa.float64(), "n_corrupt / n; null where n is 0", "0..1"),
    Column("rate_low", pa.float64(), "lower end of the two-sided interval", "0..1"),
    Column("rate_high", pa.float64(), "upper end of the two-sided interval", "0..1"),
    Column("rate_below", pa.float64(), "one-sided upper bound", "0..1"),
    Column("rate_above", pa.float64(), "one-sided lower bound", "0..1"),
    Column("confidence", pa.float64(), "confidence level of each interval and each bound", "0..1"),
    Column(
        "always",
        pa.bool_(),
        "whether they hold at every round at once (sequential); else Clopper-Pearson at fixed size",
    ),
    Column("failed_rate", pa.float64(), "n_failed over all trials; null where there are none", "0..1"),
    Column("failed_rate_low", pa.float64(), "lower end of its two-sided interval", "0..1"),
    Column("failed_rate_high", pa.float64(), "upper end of its two-sided interval", "0..1"),
    Column("n_identical", pa.int32(), "verdict identical", "trials"),
    Column("n_drift", pa.int32(), "verdict drift", "trials"),
    Column("n_divergent", pa.int32(), "verdict divergent", "trials"),
    Column("n_garbage", pa.int32(), "verdict garbage", "trials"),
    Column("n_unjudged", pa.int32(), "ok, but without a reference", "trials"),
    Column("outcomes", pa.string(), "count of every outcome, JSON"),
    Column("n_distinct_digests", pa.int32(), "distinct logits-digest sequences among ok trials"),
    Column("n_distinct_tokens", pa.int32(), "distinct token sequences among ok trials"),
    Column("n_off_mode", pa.int32(), "ok trials off the arm's own most frequent digest sequence", "trials"),
    Column(
        "n_requests_differ",
        pa.int32(),
        "ok trials whose requests differ in digests from each other",
        "trials",
    ),
    Column("effect", pa.string(), "proven, inert, contradicted or unknown; null for the baseline"),
    Column("effect_reason", pa.string(), "the evidence for the effect, in one sentence"),
    Column(
        "equivalent_to",
        pa.string(),
        "other arms with the same digests, unlike the baseline's, joined by ', '",
    ),
    Column("first_divergent_position", pa.int32(), "smallest first divergent position among corrupt trials"),
    Column("noise", pa.float64(), "largest `noise` of the arm's trials that are not corrupt", "logit"),
    Column("noise_nmse", pa.float64(), "largest `noise_nmse` of the arm's trials that are not corrupt"),
    Column("noise_kl", pa.float64(), "largest `noise_kl` of the arm's trials that are not corrupt", "nat"),
    Column("median_wall_s", pa.float64(), "median wall time of ok trials", "s"),
)


def _schema(columns: tuple[Column, ...]) -> pa.Schema:
    return pa.schema(
        [
            pa.field(c.name, c.type, metadata={"about": c.about, **({"unit": c.unit} if c.unit else {})})
            for c in columns
        ],
        metadata={"isomatrix.schema_version": str(SCHEMA_VERSION)},
    )


def trials_schema() -> pa.Schema:
    """Schema of `trials.parquet` and of every part."""
    return _schema(TRIALS)


def arms_schema() -> pa.Schema:
    """Schema of `arms.parquet`."""
    return _schema(ARMS)
