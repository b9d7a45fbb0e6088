"""`palimpsest restore`: going back to an old version, once it is seen what that would change."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.console import Console

from cli.client.client import ServiceClient
from cli.client.types import UNCOMPACTED
from cli.consent import RefusedError, agree
from cli.conversations.diff import as_document, difference, print_difference
from cli.output import failed, print_json

if TYPE_CHECKING:
    from cli.client.types import RestorePlan
    from cli.options import Service


def run_restore(service: Service, conversation: str, version: int, *, yes: bool, as_json: bool) -> int:
    """Show what a restore would change, ask, and do it; 1 if the answer is no, or there is none."""
    with ServiceClient(*service) as client:
        head = client.conversation(conversation).head_version or UNCOMPACTED
        preview = difference(client, conversation, head, version)
        plan = client.restore_plan(conversation, version)
        if not as_json:
            print_difference(preview, Console())
            print(_served(plan))  # noqa: T201 - the command's output
        try:
            agree(f"Go back to version {version}? Nothing is deleted.", yes=yes)
        except RefusedError as error:
            return failed(str(error))
        after = client.restore(conversation, version)
    if as_json:
        print_json({"conversation": after, "changed": as_document(preview), "plan": plan})
    else:
        print(  # noqa: T201 - the command's output
            f"The head is version {after.head_version}, equal to version {version}; "
            f"the context has {after.context_tokens:,} tokens. "
            f"Automatic compaction waits until it has grown by {plan.held_tokens:,}."
        )
    return 0


def _served(plan: RestorePlan) -> str:
    if not plan.warnings:
        return f"All of its {plan.tokens:,} tokens would be served."
    return (
        f"Of its {plan.tokens:,} tokens {plan.tokens_served:,} would be served, in {plan.messages_served:,} of "
        f"{plan.messages:,} messages, within the budget of {plan.budget:,}: {'; '.join(plan.warnings)}."
    )
