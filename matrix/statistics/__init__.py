"""Exact and sequential inference over counts of trials."""
