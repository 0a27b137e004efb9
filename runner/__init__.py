"""The effects of isomatrix: command line, sweeper, trials, load, store, reports."""
