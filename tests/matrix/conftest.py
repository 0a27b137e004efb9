"""Rows of the record, built by hand with logits that are known."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa
import pytest
from isomatrix.matrix.schema import trials_schema


class RowBuilder:
    """Builds requests and rows. Every position has four recorded logits: the token's, a rival's, two low ones.

    The spread of the logits is 2.2, so from 1.1 on a difference is corrupt.
    """

    best = 10.0
    low = ((900, 7.9), (901, 7.8))

    def request(
        self,
        ids: Sequence[int],
        *,
        gaps: float | Sequence[float] = 2.0,
        shift: float = 0.0,
        tops: Mapping[int, Sequence[tuple[int, float]]] | None = None,
        **fields: Any,
    ) -> dict[str, Any]:
        """One greedy answer. `gaps`: distance to the rival; `shift` is added to the rival's logit only.

        The rival of token t is t + 500. `tops` replaces the logits of single positions.
        """
        each = [float(gaps)] * len(ids) if isinstance(gaps, (int, float)) else [float(gap) for gap in gaps]
        rows = [
            [(token, self.best), (token + 500, self.best - gap + shift), *self.low]
            for token, gap in zip(ids, each, strict=True)
        ]
        for position, row in (tops or {}).items():
            rows[position] = list(row)
        rows = [sorted(row, key=lambda entry: -entry[1]) for row in rows]
        request = {
            "request": 0,
            "n_prompt_tokens": 12,
            "n_generated": len(ids),
            "stop_reason": "max_tokens",
            "token_ids": list(ids),
            "margins": [row[0][1] - row[1][1] for row in rows],
            "top_ids": [[token for token, _ in row] for row in rows],
            "top_logits": [[logit for _, logit in row] for row in rows],
            "logits_digests": [self.digest(ids[:position], row) for position, row in enumerate(rows)],
            "nan_counts": [0] * len(ids),
            "text": " ".join(f"word{token}" for token in ids),
        }
        return {**request, **fields}

    @staticmethod
    def digest(context: Sequence[int], row: Any) -> int:
        """A digest that depends on the context and on the logits, as a real one does."""
        text = repr((list(context), row)).encode()
        return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little")

    def row(self, arm: str, *requests: Mapping[str, Any], number: int = 0, **fields: Any) -> dict[str, Any]:
        """One row with every column that the judges read."""
        return {
            "trial_id": f"{arm}-{number}",
            "arm": arm,
            "axis": "baseline" if arm == "baseline" else "op_offload",
            "round": number,
            "position": 0,
            "outcome": "ok",
            "settings": json.dumps({"temperature": 0.0}),
            "requests": [{**request, "request": index} for index, request in enumerate(requests)],
            "n_requests": len(requests),
            "wall_s": 1.0 + number,
            **fields,
        }

    @staticmethod
    def table(rows: Sequence[Mapping[str, Any]]) -> pa.Table:
        """The rows in the record's schema, absent fields null."""
        return pa.Table.from_pylist([dict(row) for row in rows], schema=trials_schema())


@pytest.fixture(scope="session")
def build() -> RowBuilder:
    """The builder of rows."""
    return RowBuilder()
