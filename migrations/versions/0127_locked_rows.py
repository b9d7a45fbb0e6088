"""A check waits for nobody's lock while others' conversations are locked for it, and no conversation's size fails all.

An edit does not forget that the head has moved since the last append.

Revision ID: 0127
Revises: 0126
"""

from __future__ import annotations

from typing import Final

from migrations.scripts import amend_function, restore_function, run_script

revision = "0127"
down_revision = "0126"
branch_labels = None
depends_on = None

_DUE_STATES: Final = ("0100_checks.sql", "due_states")
_CLEAR_CHECKS: Final = ("0100_checks.sql", "clear_checks")
# With others locked nobody waits long for one: whoever asked takes them one by one then.
_PATIENCE: Final = (
    "set_config('lock_timeout', case when cardinality(p_conversations) > 1 then '200ms' else '2s' end, true)"
)
_MARKS: Final = {
    "select set_config('synchronous_commit', 'off', true);": (
        f"select set_config('synchronous_commit', 'off', true),\n           {_PATIENCE};"
    )
}
_STATES: Final = {
    "if p_lock then\n": f"if p_lock then\n        perform {_PATIENCE};\n",
    # Where the sum is more than an integer, that is what it is taken for: a number that fails is a batch that fails.
    "ceil((c.context_tokens + c.fixed_tokens) * c.token_ratio)::integer + c.unstored_tokens,": (
        "least(2147483647, ceil((c.context_tokens::bigint + c.fixed_tokens) * c.token_ratio)\n"
        "                             + c.unstored_tokens)::integer,"
    ),
    "c.counted_cap, c.context_tokens + c.fixed_tokens,": (
        "c.counted_cap, least(2147483647, c.context_tokens::bigint + c.fixed_tokens)::integer,"
    ),
}
_MOVED_HEAD: Final = "0127_moved_head.sql"
_AS_OF_0126: Final = {
    "context_tokens, head_moved_at\n": "context_tokens\n",
    """c.strip_thinking_through,
                -- Whoever read the context before it moved may not know of it yet.
                head_moved_at""": "c.strip_thinking_through, head_moved_at",
    "case when c.head_moved_at = c.next_seq then c.next_seq else least(head_moved_at, p_from) end,": (
        "least(head_moved_at, p_from),"
    ),
}


def upgrade() -> None:
    amend_function(*_DUE_STATES, _STATES)
    amend_function(*_CLEAR_CHECKS, _MARKS)
    run_script(_MOVED_HEAD)


def downgrade() -> None:
    restore_function(*_CLEAR_CHECKS)
    restore_function(*_DUE_STATES)
    amend_function(_MOVED_HEAD, "supersede", _AS_OF_0126)
