"""`palimpsest erase`: every text of a conversation, or of all that a user has, gone for good."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cli.client.client import ServiceClient
from cli.consent import RefusedError, agree
from cli.output import failed, noted, print_json, printable

if TYPE_CHECKING:
    from cli.options import Service


def run_erase(service: Service, conversation: str | None, user: str | None, *, yes: bool, as_json: bool) -> int:
    """Say what would go, ask, and erase it; 1 if the answer is no, or there is none."""
    with ServiceClient(*service) as client:
        if conversation is not None:
            stored = client.conversation(conversation)
            messages = 0 if stored.last_seq is None else stored.last_seq + 1
            question = f"Erase {conversation} with its {messages:,} messages, for good?"
        else:
            count = sum(1 for _ in client.conversations(user_ref=user))
            question = f"Erase all {count:,} conversations of the user {printable(str(user))!r}, for good?"
        try:
            agree(question, yes=yes)
        except RefusedError as error:
            return failed(str(error))
        try:
            done = client.erase(conversation) if conversation is not None else client.erase_user(str(user))
        except KeyboardInterrupt:
            noted("this does not stop the service, which goes on until all of it is erased")
            raise
    if as_json:
        print_json(done)
    elif conversation is not None:
        print(f"{conversation} is erased; its tombstone is {done['id']}.")  # noqa: T201 - the command's output
    else:
        print(f"{done['conversations']:,} conversations are erased.")  # noqa: T201 - the same
    return 0
