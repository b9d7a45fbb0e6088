import { UnreachableError } from "./errors.js";
import type { KeptTurn, Shape, TurnBody } from "./outbox.js";
import type { CacheBreakpointOut, ContextOut, ContextTokens, LeftOutOut } from "./schema.js";
import { OTHER_SHAPE, parse } from "./transport.js";

/** A message of the Messages API. */
export type Message = Extract<TurnBody, { shape?: "messages" }>["messages"][number];

/** What a conversation is made of in each shape. Other APIs' are what their SDKs have types for. */
export interface MessageOf {
  readonly messages: Message;
  readonly chat: object;
  readonly responses: object;
}

/** What to send to the model: `messages`, or `input` for Responses; the list is the caller's own to change. */
export interface Context<S extends Shape = "messages"> {
  readonly messages: MessageOf[S][];
  /** The snapshot that the context begins with, 0 = none; it belongs to the turn that the call makes. */
  readonly version: number;
  readonly lastSeq: number | undefined;
  readonly tokens: ContextTokens | undefined;
  /** Sentences, and objects for what of the conversation has no counterpart in the shape. */
  readonly warnings: readonly (string | LeftOutOut)[];
  /** Where marks for the prompt cache belong, where that was asked for and the API knows such marks; see `marked`. */
  readonly cacheBreakpoints?: readonly CacheBreakpointOut[];
  /** How many of the last messages are turns that wait to be sent. */
  readonly kept: number;
  /** Whether it is the caller's own history, because the service could not be asked; `error` says why. */
  readonly isFallback: boolean;
  readonly error: unknown;
}

/** Read a context as the service answered it. */
export function contextOf<S extends Shape>(text: string, shape: S | undefined): Context<S> {
  const found = parse(text) as ContextOut | null;
  const messages = shape === "responses" ? found?.items : (found?.messages ?? (shape ? undefined : found?.items));
  if (!Array.isArray(messages) || typeof found?.last_seq !== "number") throw new UnreachableError(OTHER_SHAPE);
  return {
    messages: messages as unknown as MessageOf[S][],
    version: found.snapshot?.version ?? 0,
    lastSeq: found.last_seq,
    tokens: found.tokens,
    warnings: found.warnings,
    ...(found.cache_breakpoints && { cacheBreakpoints: found.cache_breakpoints }),
    kept: 0,
    isFallback: false,
    error: undefined,
  };
}

/** Return the messages of a context with `cache_control` where it belongs, to be sent to the Messages API. */
export function marked(context: Context<"messages">): Message[] {
  const messages = [...context.messages];
  for (const { message: at, block, cache_control } of context.cacheBreakpoints ?? []) {
    const message = at === null ? undefined : messages[at];
    if (at === null || message === undefined) continue;
    const { content } = message;
    const blocks: object[] = block === null ? [{ type: "text", text: content }] : [...(content as object[])];
    const place = block ?? 0;
    blocks[place] = { ...blocks[place], cache_control };
    messages[at] = { ...message, content: blocks };
  }
  return messages;
}

/**
 * Return which messages of turns that wait are to stand at a context's end; throw if that cannot be told.
 *
 * `shape` is the one that was asked for; undefined = the conversation's own, which its turns are taken to have.
 */
export function unshown(context: Context<Shape>, turns: readonly KeptTurn[], shape: Shape | undefined): object[] {
  if (turns.some((turn) => turn.body.replace_from != null))
    throw new UnreachableError("an edit waits to be sent, so that the service's context is an old one");
  return turns.flatMap((turn): object[] => {
    const own = shapeOf(turn.body);
    const isSame = own === (shape ?? own);
    if (!isSame && (turn.begun || !turn.body.messages.every(isPlain)))
      throw new UnreachableError("a turn of another shape waits to be sent");
    return turn.begun && shows(context, turn) ? [] : (turn.body.messages as object[]);
  });
}

/** Tell whether a turn stands in a context where it was to be stored: then its answer was lost. */
function shows(context: Context<Shape>, turn: KeptTurn): boolean {
  const { messages, expected_next_seq: expected } = turn.body;
  const next = (context.lastSeq ?? -1) + 1;
  // Compaction leaves the end of a context as it was stored. Sent without a seq, the turn would be the last one.
  const start = context.messages.length - (next - (expected ?? next - messages.length));
  return start >= 0 && messages.every((message, at) => plain(context.messages[start + at]) === plain(message));
}

/** A message as text by which it is known again: the order of its first fields is nobody's. */
function plain(message: unknown): string {
  const { role, content, ...others } = (message ?? {}) as Record<string, unknown>;
  return JSON.stringify([role, content, others]);
}

/** The shape of a turn, which the service recognizes where none is named. */
function shapeOf({ shape, messages }: TurnBody): Shape {
  const has = (...names: string[]) => messages.some((each) => names.some((name) => name in (each as object)));
  if (shape) return shape;
  if (has("type")) return "responses";
  return has("tool_calls", "tool_call_id") || messages.some((each) => !isSaid(each)) ? "chat" : "messages";
}

function isSaid(message: unknown): boolean {
  return ["user", "assistant"].includes((message as Partial<Message>).role ?? "");
}

/** Tell whether a message is the same in every shape. */
function isPlain(message: unknown): boolean {
  const names = Object.keys(message as object);
  return names.length === 2 && isSaid(message) && typeof (message as Message).content === "string";
}
