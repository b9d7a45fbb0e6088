"""Every other call: conversations, payloads, runs, snapshots, pins."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, TypeVar

from palimpsest_client.answers import (
    Bisected,
    Claims,
    Comparison,
    Conversation,
    Erasure,
    ListedConversation,
    ListedSnapshot,
    Message,
    Payload,
    Pin,
    PinList,
    Plan,
    QueuedRun,
    Recalled,
    RecallTool,
    RestorePlan,
    Rule,
    RuleList,
    Run,
    Shape,
    Snapshot,
    StoredMessage,
    UserErasure,
    UserRecalled,
)
from palimpsest_client.calls import as_documented, given, path_of, plain
from palimpsest_client.errors import InvalidError
from palimpsest_client.flows import CALL_SECONDS, Flows
from palimpsest_client.recalling import read_call
from palimpsest_client.results import Page

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from palimpsest_client.steps import Flow

T = TypeVar("T")

LONGEST_WAIT_SECONDS: Final = 60.0
"""The service waits no longer for a run."""


class _Unset:
    """What was not given; None is a value for some fields."""

    def __repr__(self) -> str:
        return "UNSET"


UNSET: Final = _Unset()


class Operations(Flows):
    """The core of a client with everything that it can do."""

    def create_conversation(
        self,
        *,
        external_id: str | None = None,
        user_ref: str | None = None,
        model: str | None = None,
        system: Any = None,
        tools: Sequence[Mapping[str, Any]] | None = None,
        policy: Mapping[str, Any] | None = None,
        policy_preset: str | int | None = None,
        metadata: Mapping[str, Any] | None = None,
        timeout: float = CALL_SECONDS,
    ) -> Flow[Conversation]:
        """Make a conversation; the same `external_id` again returns the one that has it. timeout: seconds."""
        body = given(
            external_id=external_id,
            user_ref=user_ref,
            model=model,
            system=system,
            tools=tools,
            policy=policy,
            policy_preset=policy_preset,
            metadata=metadata,
        )
        safe = external_id is not None
        return self.call("POST", path_of("conversations"), Conversation, body=body, safe=safe, deadline=timeout)

    def list_conversations(
        self,
        *,
        user_ref: str | None = None,
        external_id: str | None = None,
        limit: int | None = None,
        after_id: str | None = None,
        before_id: str | None = None,
    ) -> Flow[Page[ListedConversation]]:
        """List conversations, newest first."""
        query = {"user_ref": user_ref, "external_id": external_id} | _span(limit, after_id, before_id)
        return self._page(path_of("conversations"), ListedConversation, query)

    def get_conversation(self, conversation_id: str) -> Flow[Conversation]:
        """Read a conversation."""
        return self.call("GET", path_of("conversations", conversation_id), Conversation)

    def change_conversation(
        self,
        conversation_id: str,
        *,
        model: str | _Unset | None = UNSET,
        system: Any = UNSET,
        tools: Sequence[Mapping[str, Any]] | _Unset | None = UNSET,
        policy: Mapping[str, Any] | _Unset | None = UNSET,
        policy_preset: str | int | _Unset = UNSET,
        metadata: Mapping[str, Any] | _Unset = UNSET,
    ) -> Flow[Conversation]:
        """Change what is named, a policy key by key: None takes an override away, None for the policy all of them."""
        named = {
            "model": model,
            "system": system,
            "tools": tools,
            "policy": policy,
            "policy_preset": policy_preset,
            "metadata": metadata,
        }
        body = {name: value for name, value in named.items() if value is not UNSET}
        return self.call("PATCH", path_of("conversations", conversation_id), Conversation, body=body)

    def erase_conversation(self, conversation_id: str) -> Flow[Erasure]:
        """Remove every text of a conversation for good; the key needs the scope `admin`."""
        self.forget(conversation_id)
        return self.call("DELETE", path_of("conversations", conversation_id), Erasure)

    def erase_user(self, user_ref: str) -> Flow[UserErasure]:
        """Erase every conversation of a user; the key needs the scope `admin`."""
        return self.call("DELETE", path_of("users"), UserErasure, query={"user_ref": user_ref})

    def fork(self, conversation_id: str, through_seq: int, *, external_id: str | None = None) -> Flow[Conversation]:
        """Make a conversation with the same past up to a seq."""
        body = given(through_seq=through_seq, external_id=external_id)
        return self.call("POST", path_of("conversations", conversation_id, "fork"), Conversation, body=body, safe=False)

    def restore(self, conversation_id: str, version: int) -> Flow[Conversation]:
        """Go back to an old snapshot; 0 = no compaction."""
        path = path_of("conversations", conversation_id, "restore")
        return self.call("POST", path, Conversation, body={"version": version}, safe=False)

    def restore_plan(self, conversation_id: str, version: int) -> Flow[RestorePlan]:
        """Return what would be served after going back to an old snapshot; nothing is changed."""
        body = {"version": version, "dry_run": True}
        return self.call("POST", path_of("conversations", conversation_id, "restore"), RestorePlan, body=body)

    def payload(
        self,
        conversation_id: str,
        *,
        system: Any = None,
        prior_context: Sequence[Mapping[str, Any]] | None = None,
        turn_context: Sequence[Mapping[str, Any]] | None = None,
        user_message: str | Sequence[Mapping[str, Any]] | Message | None = None,
        max_output_tokens: int | None = None,
        shape: Shape | None = None,
        cache_breakpoints: int | None = None,
    ) -> Flow[Payload]:
        """Assemble the whole payload of a call under the total budget, in a shape: None = the conversation's.

        cache_breakpoints: say where so many marks for the prompt cache at the most belong. None: nothing is said.
        """
        body = given(
            system=system,
            prior_context=prior_context,
            turn_context=turn_context,
            user_message=plain(user_message),
            max_output_tokens=max_output_tokens,
            shape=shape,
            cache_breakpoints=cache_breakpoints,
        )
        return self.call("POST", path_of("conversations", conversation_id, "context"), Payload, body=body)

    def recall(
        self,
        conversation_id: str,
        query: str | None = None,
        *,
        ref: str | None = None,
        pattern: str | None = None,
        max_tokens: int | None = None,
        offset: int | None = None,
        from_seq: int | None = None,
        through_seq: int | None = None,
        limit: int | None = None,
        framed: bool | None = None,
    ) -> Flow[Recalled]:
        """Return originals, in the context or not, by exactly one of words, reference and regular expression."""
        body = given(
            query=query,
            ref=ref,
            pattern=pattern,
            max_tokens=max_tokens,
            offset=offset,
            from_seq=from_seq,
            through_seq=through_seq,
            limit=limit,
            framed=framed,
        )
        return self.call("POST", path_of("conversations", conversation_id, "recall"), Recalled, body=body)

    def recall_user(
        self,
        user_ref: str,
        query: str | None = None,
        *,
        ref: str | None = None,
        pattern: str | None = None,
        max_tokens: int | None = None,
        offset: int | None = None,
        limit: int | None = None,
        framed: bool | None = None,
    ) -> Flow[UserRecalled]:
        """Return originals of all conversations of a user; the key needs the scope `recall:user`."""
        body = given(
            query=query,
            ref=ref,
            pattern=pattern,
            max_tokens=max_tokens,
            offset=offset,
            limit=limit,
            framed=framed,
        )
        return self.call("POST", path_of("recall"), UserRecalled, query={"user_ref": user_ref}, body=body)

    def recall_tool(self, shape: Shape = "messages") -> Flow[RecallTool]:
        """Read the tool by which a model recalls; declare it from a conversation's first call on."""
        return self.call("GET", path_of("recall-tool"), RecallTool, query={"shape": shape})

    def answer_recall(
        self, conversation_id: str, tool_call: Any, *, max_tokens: int | None = None
    ) -> Flow[dict[str, Any]]:
        """Return the result of a model's call of the recall tool, in the shape of the call.

        What the service finds wrong with the call is a result too, so that the model can mend it.
        """
        asked = read_call(tool_call)
        body = asked.asked | given(max_tokens=max_tokens, framed=True)
        try:
            found = yield from self.call(
                "POST", path_of("conversations", conversation_id, "recall"), Recalled, body=body
            )
        except InvalidError as error:
            return asked.result(error.detail, is_error=True)
        with as_documented():
            return asked.result(found["framed"])

    def compact(
        self,
        conversation_id: str,
        *,
        instructions: str | None = None,
        strategy: str | None = None,
        policy: Mapping[str, Any] | None = None,
    ) -> Flow[QueuedRun]:
        """Queue a compaction by hand; `wait_for_run` tells how it ends."""
        body = given(instructions=instructions, strategy=strategy, policy=policy)
        path = path_of("conversations", conversation_id, "compactions")
        return self.call("POST", path, QueuedRun, body=body, safe=False)

    def plan_compaction(
        self, conversation_id: str, *, strategy: str | None = None, policy: Mapping[str, Any] | None = None
    ) -> Flow[Plan]:
        """Return what a compaction would do; nothing is changed."""
        body = given(dry_run=True, strategy=strategy, policy=policy)
        return self.call("POST", path_of("conversations", conversation_id, "compactions"), Plan, body=body)

    def list_runs(
        self,
        conversation_id: str,
        *,
        limit: int | None = None,
        after_id: str | None = None,
        before_id: str | None = None,
    ) -> Flow[Page[Run]]:
        """List a conversation's runs, newest first."""
        path = path_of("conversations", conversation_id, "runs")
        return self._page(path, Run, _span(limit, after_id, before_id))

    def get_run(self, run_id: str) -> Flow[Run]:
        """Read a run with its steps."""
        return self.call("GET", path_of("runs", run_id), Run)

    def wait_for_run(self, run_id: str, *, seconds: float = 25.0) -> Flow[Run]:
        """Read a run once it has ended, or after `seconds` (60 at the most)."""
        wait = min(seconds, LONGEST_WAIT_SECONDS)
        return self.call("GET", path_of("runs", run_id), Run, query={"wait": wait}, deadline=wait + CALL_SECONDS)

    def list_snapshots(
        self,
        conversation_id: str,
        *,
        limit: int | None = None,
        after_id: int | None = None,
        before_id: int | None = None,
    ) -> Flow[Page[ListedSnapshot]]:
        """List a conversation's snapshots, newest first; their ids are their versions."""
        path = path_of("conversations", conversation_id, "snapshots")
        return self._page(path, ListedSnapshot, _span(limit, after_id, before_id))

    def get_snapshot(self, conversation_id: str, version: int) -> Flow[Snapshot]:
        """Read a snapshot in full."""
        return self.call("GET", path_of("conversations", conversation_id, "snapshots", version), Snapshot)

    def list_claims(self, conversation_id: str, version: int) -> Flow[Claims]:
        """Read what the lines of a snapshot's summary rest on."""
        return self.call("GET", path_of("conversations", conversation_id, "snapshots", version, "claims"), Claims)

    def list_messages(
        self, conversation_id: str, *, after: int = -1, limit: int | None = None
    ) -> Flow[Page[StoredMessage]]:
        """List the originals in order, those after the seq `after`."""
        path = path_of("conversations", conversation_id, "messages")
        return self._page(path, StoredMessage, {"after": after, "limit": limit})

    def list_pins(self, conversation_id: str) -> Flow[PinList]:
        """List all pins of a conversation."""
        return self.call("GET", path_of("conversations", conversation_id, "pins"), PinList)

    def pin(self, conversation_id: str, seq: int, *, text: str | None = None) -> Flow[Pin]:
        """Keep a message, or a span of its text, in the context word for word."""
        body = given(seq=seq, text=text)
        return self.call("POST", path_of("conversations", conversation_id, "pins"), Pin, body=body, safe=False)

    def unpin(self, conversation_id: str, pin_id: str) -> Flow[None]:
        """Let compaction have a pinned text again."""
        return self.call("DELETE", path_of("conversations", conversation_id, "pins", pin_id), type(None))

    def list_rules(self, conversation_id: str) -> Flow[RuleList]:
        """List every rule there ever was, pinned or detected, in force or withdrawn."""
        return self.call("GET", path_of("conversations", conversation_id, "rules"), RuleList)

    def decide_rule(self, conversation_id: str, rule_id: str, *, in_force: bool) -> Flow[Rule]:
        """Withdraw a rule, put it in force again, or keep one that a user may have asked to forget."""
        path = path_of("conversations", conversation_id, "rules", rule_id)
        return self.call("PATCH", path, Rule, body=given(in_force=in_force))

    def compare(self, conversation_id: str, versions: Sequence[int], *, seq: int) -> Flow[Comparison]:
        """Render the context of the turn that ended with `seq` under two versions, 0 for no compaction."""
        body = given(versions=list(versions), seq=seq)
        return self.call("POST", path_of("conversations", conversation_id, "comparisons"), Comparison, body=body)

    def bisect(self, conversation_id: str, text: str) -> Flow[Bisected]:
        """Find the snapshot from which on a text or value did not stand any more, and the step that took it out."""
        return self.call("POST", path_of("conversations", conversation_id, "bisect"), Bisected, body=given(text=text))

    def _page(self, path: str, _item: type[T], query: Mapping[str, Any]) -> Flow[Page[T]]:
        found = yield from self.call("GET", path, Page, query=query)
        # What a list holds is as its item's type says; a typed dictionary is a dictionary.
        with as_documented():
            return Page(**{name: found[name] for name in ("data", "has_more", "first_id", "last_id")})  # type: ignore[index]


def _span(limit: int | None, after_id: str | int | None, before_id: str | int | None) -> dict[str, Any]:
    return {"limit": limit, "after_id": after_id, "before_id": before_id}
