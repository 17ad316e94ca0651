"""The store in one SQLite file, by the standard library alone.

store.py        SqliteStore: every verb of the contract, handed to the writer or to a reader
writer.py       the writer thread, one per file and process: whoever waits shares one commit
transaction.py  what a verb is given inside a transaction: the connection, the time, the queues
jobs.py, claims.py, flows.py, people.py, pages.py, memory.py    the SQL of the verbs
readers.py      connections that only read, beside the writer
wake.py         waking workers, here and in other processes
anchor.py       one clock for all processes
file.py, schema.py    the file itself: opening, refusing, creating; migrations and versions
"""
