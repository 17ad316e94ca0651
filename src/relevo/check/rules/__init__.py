"""The table of rules: what each one is called, why it hurts, how to mend it, and who finds it."""

from __future__ import annotations

from relevo.check.report import Rule
from relevo.check.rules import handlers, messages, once, several, transactions, workers

_TABLE = [
    Rule(
        "RV000",
        "a file that could not be read",
        "What is not read is not checked, and a clean report would be a false promise.",
        "Mend the syntax, save the file as UTF-8, or keep it out of the paths given.",
    ),
    Rule(
        "RV001",
        "slow work in an HTTP or webhook handler",
        "The caller waits, times out and sends it again; what was half done is lost with the "
        "process. An e-mail, a provider's API, a language model or a PDF may take seconds.",
        "Enqueue a Command and answer 202 (or what the provider wants); a worker does the rest.",
        handlers.slow_handler,
    ),
    Rule(
        "RV002",
        "a blocking call in an async function",
        "While it waits, every other job and request of the process waits too.",
        "Use the async form, `await asyncio.to_thread(…)`, or make the worker a plain `def`, "
        "which runs in a thread.",
        handlers.blocked_loop,
    ),
    Rule(
        "RV003",
        "a queue name that is none",
        "The class is refused when it is imported; names are how queues are found and paused.",
        "Write 'app:module:action' in lower case, such as 'shop:mail:receipt'.",
        messages.queue_names,
    ),
    Rule(
        "RV004",
        "an event name that is not a fact",
        "An event tells what has happened; an order in disguise has many listeners and no owner.",
        "Write lower case with dots, the verb in the past: 'user.registered'. An order is a "
        "Command.",
        messages.event_names,
    ),
    Rule(
        "RV005",
        "a secret in a message",
        "Payloads are stored, shown to people and kept for weeks; passwords and cards must not be.",
        "Send an id and look the secret up when the job runs.",
        messages.secret_fields,
    ),
    Rule(
        "RV006",
        "a field that cannot travel",
        "A message is JSON: bytes, files and sets do not come back as they were sent.",
        "Send an id, a signed storage URL or a list.",
        messages.field_types,
    ),
    Rule(
        "RV007",
        "a command without attempts",
        "How often something is tried is a decision: a charge is not a thumbnail.",
        "Say it in the class line: attempts=3.",
        messages.attempts,
    ),
    Rule(
        "RV008",
        "a command without backoff",
        "A provider that is down for a minute should not see every attempt in that minute.",
        'Say it in the class line: backoff=exponential("15s", cap="10m").',
        messages.backoff,
    ),
    Rule(
        "RV009",
        "a command without timeout",
        "An attempt that hangs keeps its place until the default of five minutes.",
        'Say it in the class line: timeout="45s".',
        messages.timeout,
    ),
    Rule(
        "RV010",
        "an effect outside ctx.once()",
        "A job may run again after a crash: the guest is mailed, booked or charged twice.",
        'Wrap it: `await ctx.once("book", lambda key: gateway.book(order, key), find=…)`.',
        workers.effect_outside_once,
    ),
    Rule(
        "RV011",
        "ctx.once() inside ctx.transaction()",
        "The intent must be committed before the call leaves; relevo refuses it at run time.",
        "Call ctx.once() first, then open ctx.transaction() with its result.",
        transactions.once_in_transaction,
    ),
    Rule(
        "RV012",
        "a call outside while a transaction is open",
        "Locks are held for as long as the provider takes, and a rollback does not undo the call.",
        "Make the call before the transaction, or enqueue a Command inside it.",
        transactions.call_in_transaction,
    ),
    Rule(
        "RV013",
        "an enqueue outside its transaction",
        "A crash between the commit and the enqueue loses the job; an enqueue that does not join "
        "runs for rows that may never be committed.",
        "Enqueue inside: `await relevo.enqueue(order, tx=session)` before the commit, or "
        "ctx.enqueue inside ctx.transaction().",
        transactions.enqueue_outside,
    ),
    Rule(
        "RV014",
        "a worker that is not declared idempotent",
        "The same order twice, or one run cut short, makes its rows twice.",
        "Give the Command a key, and write the rows inside ctx.transaction().",
        workers.unkeyed_rows,
    ),
    Rule(
        "RV015",
        "an allow comment that says too little",
        "An exception nobody can judge is an exception for ever.",
        "Write one rule and a reason: `# relevo: allow RV001 the reason`.",
    ),
    Rule(
        "RV016",
        "an order that is not awaited",
        "Without await the call does nothing: no job is stored, no event told, no effect made.",
        "Write await in front of it: `await ctx.enqueue(Ship(order))`.",
        once.not_awaited,
    ),
    Rule(
        "RV017",
        "a follow-up that differs from run to run",
        "A run that is repeated after a crash finds what it has started by its fields. A time or "
        "a random value in them makes it another command, and both are carried out.",
        "Take the value from the command or the row that the run is about, or make it once: "
        '`await ctx.once("number", lambda key: new_number())`.',
        once.varying_follow_up,
    ),
    Rule(
        "RV018",
        "one name for several effects",
        "ctx.once() makes one effect a name: of ten letters called 'mail', one would be sent.",
        'Put what differs into the name: `await ctx.once(f"mail:{who}", …)`.',
        once.repeated_name,
    ),
    Rule(
        "RV019",
        "an answer whose status nothing looks at",
        "HTTP clients do not raise for a 404 or a 500: the job ends done although it did nothing.",
        "Call response.raise_for_status(), or return the response to ctx.once(), which judges it.",
        once.unchecked_response,
    ),
    Rule(
        "RV020",
        "a key that does not say what it is for",
        "The class is refused when it is imported: a key may mean once for ever, the newest only, "
        "or one at a time, and a wrong guess drops data without a word.",
        'Say it in the class line: unique="forever", "latest" or "unfinished".',
        messages.keys,
    ),
    Rule(
        "RV021",
        "a client that repeats calls by itself",
        "Its last error speaks for its last try alone: the first may have worked. So even a plain "
        "no leaves the effect uncertain, and its job is held.",
        "Give the client the setting that makes each call one try; relevo repeats what may be "
        "repeated.",
        once.own_retries,
    ),
    Rule(
        "RV022",
        "work after ctx.transaction()",
        "The transaction is committed when the worker returns. Until then its locks are held, and "
        "on SQLite every other writer waits.",
        "Do the work before it. What must follow the commit is a Command, enqueued inside.",
        transactions.work_after,
    ),
    Rule(
        "RV023",
        "several calls in one ctx.once()",
        "Its effect is judged by the last error alone: a charge that was made, and a letter that "
        "was refused after it, would be one refusal, and be made again.",
        "Give each call a ctx.once() with a name of its own, and leave repeating to the job's "
        "attempts.",
        several.several_calls,
    ),
    Rule(
        "RV024",
        "a breaker whose window is shorter than a wait of its command's backoff",
        "The failures of a few jobs never come in a row within the window: the breaker stays "
        "closed until one of them has failed at its last attempt, and all wait out their backoff.",
        'Write breaker=Breaker("…", window="…"), longer than the longest wait, or a shorter '
        "backoff.",
        messages.windows,
    ),
]

RULES: dict[str, Rule] = {rule.code: rule for rule in _TABLE}
