"""An error planted in a node of the compute graph, through the scheduler's eval callback.

The scheduler asks for every node whether its result is wanted (`ask` true), computes up to it, and calls again
with the result in place (`ask` false), which is where the error goes in. As long as no node is wanted, the
graph is computed as a whole.
"""

from __future__ import annotations

import ctypes
import fnmatch
from typing import Any, ClassVar

from .failure import WorkerFailure, bad_input
from .library import Library, field_names
from .plant import Armed

__all__ = ["NodeError"]

PARTS = ("model", "projector")
_F32 = 0  # enum ggml_type
_MOVES_NOTHING = frozenset({"NONE", "VIEW", "RESHAPE", "PERMUTE", "TRANSPOSE"})
_NAMES_KEPT = 5000
_NODES_TOLD = 20


class _TensorHead(ctypes.Structure):
    """The first members of `struct ggml_tensor`, the same from release 0.3.7 to 0.3.36 at least."""

    _fields_ = (("type", ctypes.c_int), ("buffer", ctypes.c_void_p), ("ne", ctypes.c_int64 * 4))


class _Ggml:
    """The functions on tensors, from the shared library that the binding has loaded."""

    def __init__(self, library: Library) -> None:
        pointer, size, text = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_char_p
        self._library = library
        self.name = self._find("ggml_get_name", text, pointer)
        self.operation = self._find("ggml_op_desc", text, pointer)
        self.type_name = self._find("ggml_type_name", text, ctypes.c_int)
        self.is_contiguous = self._find("ggml_is_contiguous", ctypes.c_bool, pointer)
        self.n_bytes = self._find("ggml_nbytes", size, pointer)
        self.n_rows = self._find("ggml_nrows", ctypes.c_int64, pointer)
        self.read = self._find("ggml_backend_tensor_get", None, pointer, pointer, size, size)
        self.write = self._find("ggml_backend_tensor_set", None, pointer, pointer, size, size)

    def _find(self, name: str, result: Any, *arguments: Any) -> Any:
        function = self._library.raw(name, result, *arguments)
        if function is None:
            raise _refused(self._library, f"has no function {name}")
        return function

    def batch_rows(self, tensor: int, operation: str) -> int:
        """Rows of a node as the backends count them when they decide whether to offload it."""
        sizes = _TensorHead.from_address(tensor).ne
        if operation == "MUL_MAT":
            return int(sizes[1])
        if operation in ("MUL_MAT_ID", "ROPE"):
            return int(sizes[2])
        return int(self.n_rows(tensor))


def _refused(library: Library, why: str) -> WorkerFailure:
    return WorkerFailure("refused", "plant", f"plant.kind: llama-cpp-python {library.version} {why}")


class NodeError(Armed):
    """Adds an error to the nodes whose name fits a pattern: to every element, of alternating sign, `size`
    times the root mean square of the node's values.

    The signs follow from the elements' numbers alone, so that the same computation gets the same error.
    """

    parameters: ClassVar[dict[str, Any]] = {
        "node": "l_out-0",
        "op": None,
        "size": 1.0,
        "min_rows": 1,
        "occurrence": None,
        "part": "model",
    }
    _watching = False
    _failure: BaseException | None = None

    def attach(self, engine: Any, projector: Any) -> None:
        """Put the callback into the parameters of the context, or of the projector.

        Raises `WorkerFailure` of kind `bad_input` for a part that this trial does not have, and of kind
        `refused` where this build has no callback for it.
        """
        self._suits: dict[str, bool] = {}
        self._hit: dict[str, int] = {}
        self._fitting = 0
        self._most_rows = 0
        part = self.values["part"]
        if part not in PARTS:
            raise bad_input("plant.part", f"{part!r} is not one of {', '.join(PARTS)}")
        if part == "projector" and projector is None:
            raise bad_input("plant.part", "a text probe loads no projector")
        if not self.drawn:
            return  # a fault that is not drawn leaves the graph unobserved
        self._ggml = _Ggml(engine.library)
        block = engine.parameters if part == "model" else projector.parameters
        if "cb_eval" not in field_names(block):
            raise _refused(engine.library, f"has no eval callback for the {part}")
        self._callback = dict(block._fields_)["cb_eval"](self._called)  # must outlive the context
        block.cb_eval = self._callback

    def before_prompt(self, request: int) -> None:
        """Start with the first request; a warm-up before it is left alone."""
        self._raise_failure()
        self._watching = self.active

    def before_tokens(self, request: int) -> None:
        """Report what went wrong in the callback, which cannot raise through the library."""
        self._raise_failure()

    def finish(self) -> None:
        """Tell which nodes were hit, and how often."""
        self._raise_failure()
        super().finish()

    def _raise_failure(self) -> None:
        if self._failure is not None:
            raise self._failure

    def _called(self, tensor: int, ask: bool, _user_data: Any) -> bool:
        if not self._watching or self._failure is not None:
            return not ask
        try:
            if ask:
                return self._wanted(tensor)
            self._spoil(tensor)
        except BaseException as failure:  # kept, and raised outside of the library
            self._failure = failure
        return not ask

    def _wanted(self, tensor: int) -> bool:
        name = self._name(tensor)
        if name not in self._suits and len(self._suits) < _NAMES_KEPT:
            self._suits[name] = fnmatch.fnmatchcase(name, self.values["node"])
        if not self._suits.get(name, False):
            return False
        operation = self._ggml.operation(tensor).decode("utf-8", "replace")
        if operation in _MOVES_NOTHING or self.values["op"] not in (None, operation):
            return False
        rows = self._ggml.batch_rows(tensor, operation)
        self._most_rows = max(self._most_rows, rows)
        if rows < self.values["min_rows"]:
            return False
        self._fitting += 1
        return self.values["occurrence"] in (None, self._fitting - 1)

    def _name(self, tensor: int) -> str:
        name: str = self._ggml.name(tensor).decode("utf-8", "replace")
        return name

    def _spoil(self, tensor: int) -> None:
        name = self._name(tensor)
        kind = _TensorHead.from_address(tensor).type
        if kind != _F32:
            found = self._ggml.type_name(kind).decode()
            raise bad_input("plant.node", f"node '{name}' holds {found}; an error can only be added to f32")
        if not self._ggml.is_contiguous(tensor):
            raise bad_input("plant.node", f"node '{name}' is not contiguous; choose one before or after it")
        n_bytes = self._ggml.n_bytes(tensor)
        values = (ctypes.c_float * (n_bytes // 4))()
        self._ggml.read(tensor, values, 0, n_bytes)
        _add_error(values, self.values["size"])
        self._ggml.write(tensor, values, 0, n_bytes)
        self._hit[name] = self._hit.get(name, 0) + 1
        self.struck(node=name)

    def final(self) -> dict[str, Any]:
        """The nodes that were hit, with the number of hits."""
        return {"nodes": dict(list(self._hit.items())[:_NODES_TOLD]), "n_nodes": len(self._hit)}

    def missed(self) -> str:
        """What kept the pattern from hitting anything."""
        pattern = self.values["node"]
        if not any(self._suits.values()):
            import difflib

            near = difflib.get_close_matches(pattern, self._suits, n=3, cutoff=0.3)
            return f"no node is called '{pattern}' ({len(self._suits)} names seen; near: {', '.join(near) or 'none'})"
        if not self._most_rows:
            return f"no node '{pattern}' computes {self.values['op'] or 'anything'}"
        if self._most_rows < self.values["min_rows"]:
            return f"node '{pattern}' never had {self.values['min_rows']} rows; {self._most_rows} at most"
        return f"node '{pattern}' was computed {self._fitting} times; occurrence {self.values['occurrence']} never came"


def _add_error(values: Any, size: float) -> None:
    """Add the error in place; an element's sign is a bit of a multiplicative hash of its number."""
    import numpy as np  # the library is loaded by now, and only planted trials pay for it

    array = np.frombuffer(values, dtype=np.float32)
    mean_square = float(np.mean(np.square(array, dtype=np.float64))) if array.size else 0.0
    number = np.arange(array.size, dtype=np.uint32) * np.uint32(2654435761)
    sign = 1.0 - 2.0 * (number >> np.uint32(31)).astype(np.float32)
    array += np.float32(size * mean_square**0.5) * sign.astype(np.float32)
