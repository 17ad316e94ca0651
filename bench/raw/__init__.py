"""The loops a person would write by hand on the bare driver, in the layouts that won the spikes.

Durable and at least once, as ours are: a job is leased by a commit of its own before it is run, and
removed by another; there is no retry, history, key, event or metric in them. That is their point.
"""
