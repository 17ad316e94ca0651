"""The store in one SQLite file, by the standard library alone.

store.py        SqliteStore: every verb of the contract, handed to the writer or to a reader
writer.py       the writer thread, one per file and process: whoever waits shares one commit
turns.py        the writer and the application's own transactions, one after the other
readers.py      connections that only read, beside the writer
transaction.py  what a verb is given inside a transaction: the connection, the time, the queues
command.py      one verb on its way to the writer
jobs.py, claims.py, lanes.py, flows.py, groups.py, deliveries.py, upkeep.py, people.py, memory.py,
letters.py, pages.py: the verbs
arriving.py, taking.py: new deliveries, and a worker's endings with its next claim, at one stroke
lines.py        the line that a delivery's key leaves for good
wake.py         waking workers, here and in other processes
anchor.py       one clock for all processes
file.py, schema.py, log.py, doctor.py: the file itself, its tables, its log, its health
"""
