"""Exact and sequential inference over counts of trials.

One module per question: `interval` (one arm), `contrast` and `difference` (two arms), `multiplicity` (a
family), `eprocess` and `confidence_sequence` (looking after every round), `rule` and `sequential` (decisions
from rows), `power` and `simulation` (designs), `blocking` (rounds), `interaction` (crossed settings), `words`
(sentences).
"""
