"""The pure half of isomatrix: axes, arms, plan, records, verdicts, statistics, tables.

Nothing here starts a process, reads a clock, imports llama.cpp or knows Hydra. The same rows in give the
same answer out.
"""
