"""The worker: one fresh process, one trial.

The folder is self-contained (standard library and `llama_cpp`, NumPy only for large vocabularies) and runs
under any interpreter from Python 3.8 on. The runner never imports it; see `docs/worker-protocol.md`.
"""
