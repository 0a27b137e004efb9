"""The environment as the C library sees it."""

from __future__ import annotations

import ctypes
import os
import sys

import pytest
from isomatrix.runner.worker.environment import differences, snapshot


@pytest.mark.skipif(sys.platform == "win32", reason="setenv of POSIX")
def test_a_variable_set_natively_is_seen_although_python_does_not_see_it() -> None:
    process = ctypes.CDLL(None)
    before = snapshot(())
    process.setenv(b"GGML_ISOMATRIX_TEST", b"a=b", 1)
    try:
        after = snapshot(())
        assert "GGML_ISOMATRIX_TEST" not in os.environ
        assert differences(before, after) == {"GGML_ISOMATRIX_TEST": [None, "a=b"]}
        assert differences(after, before) == {"GGML_ISOMATRIX_TEST": ["a=b", None]}
    finally:
        process.unsetenv(b"GGML_ISOMATRIX_TEST")


def test_only_known_families_and_named_variables_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ISOMATRIX_TEST_NAMED", "1")
    monkeypatch.setenv("ISOMATRIX_TEST_OTHER", "1")
    monkeypatch.setenv("LLAMA_ISOMATRIX_TEST", "1")
    seen = snapshot(["ISOMATRIX_TEST_NAMED"])
    assert {"ISOMATRIX_TEST_NAMED", "LLAMA_ISOMATRIX_TEST"} <= set(seen)
    assert "ISOMATRIX_TEST_OTHER" not in seen
