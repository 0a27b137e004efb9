"""The spec: read, checked and turned into plain records."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from .failure import WorkerFailure, bad_input

__all__ = ["SETTING_KINDS", "Model", "Probe", "Spec", "Teacher", "read_spec"]

SPEC_VERSION = 1
FLOAT_BYTES = 4
"""Size of a logit."""

_NUMBER = (int, float)
SETTING_KINDS: dict[str, tuple[type, ...]] = {
    "n_gpu_layers": (int,),
    "split_mode": (str,),
    "main_gpu": (int,),
    "tensor_split": (list,),
    "use_mmap": (bool,),
    "n_ctx": (int,),
    "n_batch": (int,),
    "n_ubatch": (int,),
    "n_threads": (int,),
    "n_threads_batch": (int,),
    "flash_attn": (bool, str),
    "type_k": (str,),
    "type_v": (str,),
    "offload_kqv": (bool,),
    "op_offload": (bool,),
    "swa_full": (bool,),
    "kv_unified": (bool,),
    "projector_device": (str,),
    "projector_warmup": (bool,),
    "warmup": (bool,),
    "process": (str,),
    "temperature": _NUMBER,
    "top_p": _NUMBER,
    "top_k": (int,),
    "seed": (int,),
    "max_tokens": (int,),
    "env": (dict,),
}
"""Every setting of a spec with the JSON types that it takes; null is always allowed."""

_PROBE_KINDS: dict[str, tuple[type, ...]] = {
    "kind": (str,),
    "prompt": (str,),
    "media": (str,),
    "requests": (int,),
    "top_k_recorded": (int,),
    "add_special": (bool,),
    "ignore_eos": (bool,),
}
_PLANT_KINDS: dict[str, tuple[type, ...]] = {
    "kind": (str,),
    "rate": _NUMBER,
    "when": (dict,),
    "seed": (int,),
    "request": (int,),
    "position": (int,),
    "rank": (int,),
    "stage": (str,),
    "node": (str,),
    "op": (str,),
    "size": _NUMBER,
    "min_rows": (int,),
    "occurrence": (int,),
    "part": (str,),
}
_MODEL_KINDS: dict[str, tuple[type, ...]] = {"path": (str,), "mmproj": (str,)}
_TEACHER_KINDS: dict[str, tuple[type, ...]] = {
    "record": (str,),
    "max_bytes": (int,),
    "logits": (str,),
    "n_vocab": (int,),
    "token_ids": (list,),
}
_SECTIONS = ("spec_version", "trial_id", "model", "settings", "probe", "limits", "teacher", "plant")
PROBES = ("text", "audio", "image")
PROCESS_MODELS = ("fresh", "persistent")


class Model(NamedTuple):
    """The files to load."""

    path: str
    mmproj: str | None


class Probe(NamedTuple):
    """What a request asks for."""

    kind: str
    prompt: str
    media: str | None
    requests: int
    top_k_recorded: int
    add_special: bool
    ignore_eos: bool


class Teacher(NamedTuple):
    """Reference logits: to be kept in the file `record`, or to be compared with those in the file `logits`."""

    record: str | None
    max_bytes: int
    logits: str
    n_vocab: int
    token_ids: list[int]


class Spec(NamedTuple):
    """One trial. `settings` holds every known name; null is "not set"."""

    model: Model
    settings: dict[str, Any]
    probe: Probe
    teacher: Teacher | None
    trial_id: str
    plant: dict[str, Any] | None

    @property
    def n_requests(self) -> int:
        """Requests of this process: one if it is fresh."""
        return self.probe.requests if self.settings["process"] == "persistent" else 1


def _near(name: str, known: Iterable[str]) -> str:
    import difflib  # only for messages, and slow to load

    near = difflib.get_close_matches(name, list(known), n=1)
    return f"; did you mean '{near[0]}'?" if near else ""


def _section(document: Mapping[str, Any], name: str, kinds: Mapping[str, tuple[type, ...]]) -> dict[str, Any]:
    """One section with every known name in it, absent ones as null, each of a type that it takes."""
    values = document.get(name)
    if not isinstance(values, dict):
        raise bad_input(name, f"must be an object, not {values!r}")
    for key, value in values.items():
        if key not in kinds:
            raise bad_input(f"{name}.{key}", f"no such name in a spec of version {SPEC_VERSION}{_near(key, kinds)}")
        takes_bool = bool in kinds[key]
        if value is not None and (not isinstance(value, kinds[key]) or (isinstance(value, bool) and not takes_bool)):
            wanted = " or ".join(kind.__name__ for kind in kinds[key])
            raise bad_input(f"{name}.{key}", f"{value!r} is not of type {wanted}")
    return {key: values.get(key) for key in kinds}


def _model(document: Mapping[str, Any]) -> Model:
    values = _section(document, "model", _MODEL_KINDS)
    if not values["path"]:
        raise bad_input("model.path", "must name a GGUF file")
    for name, path in values.items():
        if path and not os.path.isfile(path):  # noqa: PTH113 - pathlib costs start-up time
            raise bad_input(f"model.{name}", f"there is no file {path}")
    return Model(**values)


def _probe(document: Mapping[str, Any], mmproj: str | None) -> Probe:
    given = {key: value for key, value in _section(document, "probe", _PROBE_KINDS).items() if value is not None}
    defaults = {"prompt": "", "media": None, "requests": 1, "top_k_recorded": 10}
    probe = Probe(**{**defaults, "kind": "", "add_special": True, "ignore_eos": False, **given})
    if probe.kind not in PROBES:
        raise bad_input("probe.kind", f"{probe.kind!r} is not one of {', '.join(PROBES)}")
    if probe.requests < 1 or probe.top_k_recorded < 0:
        raise bad_input("probe", "requests must be at least 1 and top_k_recorded at least 0")
    try:
        probe.prompt.encode()
    except UnicodeEncodeError as error:
        raise bad_input("probe.prompt", f"is no valid Unicode text: {error}") from error
    if probe.kind == "text":
        if not probe.prompt:
            raise bad_input("probe.prompt", "is empty; a text probe needs a prompt")
        return probe
    if not mmproj:
        raise bad_input("model.mmproj", f"is not set; the {probe.kind} probe needs a projector file")
    if not probe.media:
        raise bad_input("probe.media", f"is not set; the {probe.kind} probe needs a file")
    if not os.path.isfile(probe.media):  # noqa: PTH113
        raise bad_input("probe.media", f"there is no file {probe.media}")
    return probe


def _teacher(document: Mapping[str, Any]) -> Teacher | None:
    if document.get("teacher") is None:
        return None
    given = {key: value for key, value in _section(document, "teacher", _TEACHER_KINDS).items() if value is not None}
    defaults: dict[str, Any] = {"record": None, "max_bytes": 0, "logits": "", "n_vocab": 0, "token_ids": []}
    teacher = Teacher(**{**defaults, **given})
    if (teacher.record is None) == (teacher.logits == ""):
        raise bad_input("teacher", "needs either record, a file to write, or logits, a file to read")
    if teacher.record is not None:
        return teacher
    tokens, n_vocab = teacher.token_ids, teacher.n_vocab
    if not tokens or not all(type(token) is int and 0 <= token < n_vocab for token in tokens):
        raise bad_input("teacher.token_ids", f"must be one or more token ids below n_vocab, which is {n_vocab}")
    wanted = len(tokens) * n_vocab * FLOAT_BYTES
    size = os.path.getsize(teacher.logits) if os.path.isfile(teacher.logits) else -1  # noqa: PTH113, PTH202
    if size != wanted:
        raise bad_input("teacher.logits", f"{teacher.logits} must be a file of {wanted} bytes, one row per token")
    return teacher


def _settings(document: Mapping[str, Any]) -> dict[str, Any]:
    values = _section(document, "settings", SETTING_KINDS)
    if values["process"] not in (None, *PROCESS_MODELS):
        raise bad_input("settings.process", f"{values['process']!r} is not one of {', '.join(PROCESS_MODELS)}")
    if isinstance(values["flash_attn"], bool):
        values["flash_attn"] = "on" if values["flash_attn"] else "off"
    values["env"] = values["env"] or {}
    return values


def _plant(document: Mapping[str, Any]) -> dict[str, Any] | None:
    """The planted fault with every parameter that any kind has, absent ones as null; null for none."""
    if document.get("plant") is None:
        return None
    values = _section(document, "plant", _PLANT_KINDS)
    if values["kind"] is None:
        raise bad_input("plant.kind", "is not set")
    return values


def read_spec(path: str) -> Spec:
    """The trial in `path`. Raises `WorkerFailure` of kind `bad_input` that names the field."""
    try:
        with open(path, encoding="utf-8") as file:  # noqa: PTH123
            document = json.load(file)
    except (OSError, ValueError) as error:
        raise WorkerFailure("bad_input", "spec", f"the spec {path} cannot be read: {error}") from error
    if not isinstance(document, dict):
        raise bad_input("spec", "must be a JSON object")
    if document.get("spec_version") != SPEC_VERSION:
        found = document.get("spec_version")
        raise bad_input("spec_version", f"this worker reads version {SPEC_VERSION}, not {found!r}")
    for name in document:
        if name not in _SECTIONS:
            raise bad_input(name, f"no such section in a spec of version {SPEC_VERSION}{_near(name, _SECTIONS)}")
    settings = _settings(document)
    model = _model(document)
    probe, teacher = _probe(document, model.mmproj), _teacher(document)
    return Spec(model, settings, probe, teacher, str(document.get("trial_id")), _plant(document))
