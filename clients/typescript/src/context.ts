import { UnreachableError } from "./errors.js";
import type { KeptTurn, TurnBody } from "./outbox.js";
import type { ContextOut, ContextTokens } from "./schema.js";
import { OTHER_SHAPE, parse } from "./transport.js";

export type Message = TurnBody["messages"][number];

/** What to send to the model as `messages`; the list is the caller's own to change. */
export interface Context {
  readonly messages: Message[];
  /** The snapshot that the context begins with, 0 = none; it belongs to the turn that the call makes. */
  readonly version: number;
  readonly lastSeq: number | undefined;
  readonly tokens: ContextTokens | undefined;
  readonly warnings: readonly string[];
  /** How many of the last messages are turns that wait to be sent. */
  readonly kept: number;
  /** Whether it is the caller's own history, because the service could not be asked; `error` says why. */
  readonly isFallback: boolean;
  readonly error: unknown;
}

/** Read a context as the service answered it. */
export function contextOf(text: string): Context {
  const found = parse(text) as ContextOut | null;
  if (!Array.isArray(found?.messages) || typeof found.last_seq !== "number") throw new UnreachableError(OTHER_SHAPE);
  return {
    messages: found.messages as unknown as Message[],
    version: found.snapshot?.version ?? 0,
    lastSeq: found.last_seq,
    tokens: found.tokens,
    warnings: found.warnings,
    kept: 0,
    isFallback: false,
    error: undefined,
  };
}

/** Tell whether a turn stands in a context where it was to be stored: then its answer was lost. */
export function shows(context: Context, turn: KeptTurn): boolean {
  const { messages, expected_next_seq: expected } = turn.body;
  const next = (context.lastSeq ?? -1) + 1;
  // Compaction leaves the end of a context as it was stored. Sent without a seq, the turn would be the last one.
  const start = context.messages.length - (next - (expected ?? next - messages.length));
  const plain = (message: Message | undefined) => JSON.stringify([message?.role, message?.content]);
  return start >= 0 && messages.every((message, at) => plain(context.messages[start + at]) === plain(message));
}
