import { type Context, type MessageOf, contextOf, unshown } from "./context.js";
import { ApiError, PalimpsestError, UnreachableError } from "./errors.js";
import { Outbox, type KeptTurn, type Shape, type TurnBody, type UsageOf } from "./outbox.js";
import { type RecallCall, type RecallResult, asked, result } from "./recalling.js";
import { isTooLong } from "./refusals.js";
import { type CamelCased, type EitherCase, inSnakeCase } from "./names.js";
import type {
  ConversationBrief,
  ConversationOut,
  MessageOut,
  Operations,
  RestorePlanOut,
  TurnOut,
} from "./schema.js";
import { CALL_TIMEOUT, OTHER_SHAPE, type Operation, Transport, isInAHeader, left, parse } from "./transport.js";

export type StoredMessage = MessageOut;
export type Run = Operations["GET /v1/runs/{run_id}"]["answer"];
type Body<K extends Operation> = EitherCase<Operations[K]["body"]>;
type Query<K extends Operation> = EitherCase<Operations[K]["query"]>;
type Value<K extends Operation> = Operations[K]["answer"];

export type Turn = TurnOut & { readonly replayed: boolean };

type TurnFields = Pick<
  TurnBody,
  "context" | "created_at" | "expected_next_seq" | "max_output_tokens" | "replace_from" | "snapshot_version"
>;

/** What goes with a turn; fields of the API by their names there, or in camelCase. */
export interface TurnOptions<S extends Shape = "messages"> extends TurnFields, CamelCased<TurnFields> {
  /** What the messages are; without it the Messages API's, or what they can only be. */
  readonly shape?: S;
  readonly usage?: UsageOf<S> | null;
  /** 1 to 255 characters of ASCII; another one throws. */
  readonly idempotencyKey?: string;
  /** Milliseconds, retries included. */
  readonly timeout?: number;
}

export interface ContextOptions<S extends Shape = "messages"> {
  /** What is served, whatever the turns came in; without it the conversation's own, that of its first turn. */
  readonly shape?: S;
  /** How many marks for the prompt cache `marked` may set: four, less those that your system prompt and tools have. */
  readonly cacheBreakpoints?: number;
  /** Returns the caller's own history, used when the service does not answer as it should. */
  readonly fallback?: () => readonly MessageOf[S][] | Promise<readonly MessageOf[S][]>;
  /** Milliseconds in all: for turns that wait to be sent, retries included. */
  readonly timeout?: number;
}

export interface ClientOptions {
  readonly outbox?: Outbox;
  readonly fetch?: typeof fetch;
  /** Characters of contexts that are kept, so that one that has not changed is not sent again. */
  readonly rememberedChars?: number;
}

/** What a person who waits for a reply is made to wait for the context at the most. */
const CONTEXT_TIMEOUT = 2_000;
const APPEND_TIMEOUT = 5_000;
/** With less time, or less than half of what there was, no further turn is begun: the service would not be at fault. */
const FAIR = 1_000;
const OVERFLOWS = 3;
const TURNS = "POST /v1/conversations/{conversation_id}/turns";

/** Calls under `/v1` with one API key. */
export class Client {
  readonly outbox: Outbox;
  readonly #transport: Transport;
  readonly #remembered = new Map<string, { etag: string; text: string }>();
  readonly #rememberedChars: number;
  #chars = 0;
  readonly #lines = new Map<string, Promise<unknown>>();

  constructor(url: string, key: string, options: ClientOptions = {}) {
    this.outbox = options.outbox ?? new Outbox();
    this.#rememberedChars = options.rememberedChars ?? 16_000_000;
    this.#transport = new Transport(url, key, options.fetch ?? ((...call) => fetch(...call)));
  }

  /** Return what to send to the model as `messages`, or as `input` of Responses. */
  async context<S extends Shape = "messages">(
    conversationId: string,
    options: ContextOptions<S> = {},
  ): Promise<Context<S>> {
    const timeout = options.timeout ?? CONTEXT_TIMEOUT;
    const ends = performance.now() + timeout;
    try {
      if (options.fallback) this.#transport.check();
      const read = () => this.#readContext(conversationId, options, left(ends));
      if (!this.outbox.waiting(conversationId).length) return await read();
      // What waits is sent first, and meanwhile nobody else sends it. Half of the time may pass until nobody else does,
      // and half of the rest with sending: some is left to read.
      const send = async () => {
        await this.#sendTurns(conversationId, left(ends) / 2);
        return this.#withKept(conversationId, await read(), options.shape);
      };
      return await this.#inTurn(conversationId, send, timeout / 2);
    } catch (error) {
      if (!options.fallback || !(error instanceof PalimpsestError)) throw error;
      const messages = [...(await options.fallback())];
      const nothing = { version: 0, lastSeq: undefined, tokens: undefined, warnings: [], kept: 0 };
      return { ...nothing, messages, isFallback: true, error };
    }
  }

  /** Store the messages of a turn, or throw. Repeated with the same key, so that it is stored once. */
  async append<S extends Shape = "messages">(
    conversationId: string,
    messages: readonly MessageOf[S][],
    options: TurnOptions<S> = {},
  ): Promise<Turn> {
    const { idempotencyKey, timeout, ...fields } = options;
    const body = { messages: [...messages], ...inSnakeCase(fields) } as TurnBody;
    return this.#append(conversationId, body, keyOf(idempotencyKey), timeout ?? APPEND_TIMEOUT);
  }

  /**
   * Append a turn, or keep it in the outbox until it can be; `undefined` means that it is kept.
   *
   * Turns that wait already go first. They are sent again before the next context or turn of their conversation, and
   * by `flush`. A turn that the service refuses for good throws.
   */
  async deliver<S extends Shape = "messages">(
    conversationId: string,
    messages: readonly MessageOf[S][],
    options: TurnOptions<S> = {},
  ): Promise<Turn | undefined> {
    const { idempotencyKey, timeout, ...fields } = options;
    const turn: KeptTurn = {
      conversationId,
      idempotencyKey: keyOf(idempotencyKey),
      // A copy, as it will be sent: what is no JSON throws here, and must not stand at the head of a line.
      body: JSON.parse(JSON.stringify({ messages, ...inSnakeCase(fields) })) as TurnBody,
    };
    return this.#inTurn(conversationId, () => this.#sendTurns(conversationId, timeout ?? APPEND_TIMEOUT, turn));
  }

  /** Send the turns that wait, and return how many still do. */
  async flush(timeout = 30_000): Promise<number> {
    for (const conversationId of this.outbox.conversations())
      await this.#inTurn(conversationId, () => this.#sendTurns(conversationId, timeout));
    return this.outbox.size;
  }

  /** Call a model with the context, and again with a smaller one when it refuses the prompt as too long. */
  async callModel<R, S extends Shape = "messages">(
    conversationId: string,
    call: (context: Context<S>) => Promise<R>,
    options: ContextOptions<S> & { readonly isOverflow?: (error: unknown) => boolean } = {},
  ): Promise<{ result: R; context: Context<S> }> {
    let context = await this.context(conversationId, options);
    for (let left = OVERFLOWS; ; left--) {
      try {
        return { result: await call(context), context };
      } catch (error) {
        if (!left || context.isFallback || !(options.isOverflow ?? isTooLong)(error)) throw error;
        const refused = { snapshot_version: context.version, error: String(error) };
        try {
          context = await this.overflow(conversationId, options.shape ? { ...refused, shape: options.shape } : refused);
        } catch (none) {
          throw none instanceof ApiError && none.code === "not_the_history" ? error : none;
        }
      }
    }
  }

  /** Say that a model refused the context as too long, and return a smaller one, with the turns that wait. */
  async overflow<S extends Shape = "messages">(
    conversationId: string,
    body: Omit<Body<"POST /v1/conversations/{conversation_id}/overflow">, "shape"> & { readonly shape?: S } = {},
  ): Promise<Context<S>> {
    const operation = "POST /v1/conversations/{conversation_id}/overflow";
    const read = async () => {
      const answer = await this.#transport.send(operation, { path: [conversationId], body, safe: false });
      return contextOf(answer.text, body.shape);
    };
    if (!this.outbox.waiting(conversationId).length) return read();
    return this.#inTurn(conversationId, async () => {
      await this.#sendTurns(conversationId, CALL_TIMEOUT / 2);
      return this.#withKept(conversationId, await read(), body.shape);
    });
  }

  /** Make a conversation; the same `external_id` again returns the one that has it. */
  createConversation(body: Body<"POST /v1/conversations"> = {}): Promise<Value<"POST /v1/conversations">> {
    return this.#call("POST /v1/conversations", [], { body, safe: inSnakeCase(body)["external_id"] != null });
  }

  listConversations(query: Query<"GET /v1/conversations"> = {}) {
    return this.#call("GET /v1/conversations", [], { query });
  }

  getConversation(conversationId: string) {
    return this.#call("GET /v1/conversations/{conversation_id}", [conversationId], {});
  }

  /** Change what is named, a policy key by key: null takes an override away, null for the policy all of them. */
  changeConversation(conversationId: string, body: Body<"PATCH /v1/conversations/{conversation_id}">) {
    return this.#call("PATCH /v1/conversations/{conversation_id}", [conversationId], { body });
  }

  /** Remove every text of a conversation for good; the key needs the scope `admin`. */
  eraseConversation(conversationId: string) {
    const own = remembered(conversationId);
    for (const name of [...this.#remembered.keys()]) if (name.startsWith(own)) this.#forget(name);
    return this.#call("DELETE /v1/conversations/{conversation_id}", [conversationId], {});
  }

  /** Assemble the whole payload of a call under the total budget. */
  payload(conversationId: string, body: Body<"POST /v1/conversations/{conversation_id}/context"> = {}) {
    return this.#call("POST /v1/conversations/{conversation_id}/context", [conversationId], { body });
  }

  /** Give back originals, in the context or not, by exactly one of `query` (words), `ref` and `pattern`. */
  recall(conversationId: string, body: Body<"POST /v1/conversations/{conversation_id}/recall">) {
    return this.#call("POST /v1/conversations/{conversation_id}/recall", [conversationId], { body });
  }

  /** Return originals of all conversations of a user, as `recall` does of one; the key needs the scope `recall:user`. */
  recallUser(userRef: string, body: Body<"POST /v1/recall">) {
    return this.#call("POST /v1/recall", [], { query: { user_ref: userRef }, body });
  }

  /** Read the tool by which a model recalls; declare it from a conversation's first call on. */
  recallTool(shape: Shape = "messages") {
    return this.#call("GET /v1/recall-tool", [], { query: { shape } });
  }

  /**
   * Return the result of a model's call of the recall tool, in the shape of the call.
   *
   * What the service finds wrong with the call is a result too, so that the model can mend it.
   */
  async answerRecall<C extends RecallCall>(
    conversationId: string,
    call: C,
    options: { readonly maxTokens?: number } = {},
  ): Promise<RecallResult<C>> {
    const most = options.maxTokens === undefined ? {} : { max_tokens: options.maxTokens };
    try {
      const found = await this.recall(conversationId, { ...asked(call), ...most, framed: true });
      if (typeof found?.framed !== "string") throw new UnreachableError(OTHER_SHAPE);
      return result(call, found.framed);
    } catch (error) {
      if (error instanceof ApiError && error.status === 422) return result(call, error.detail, true);
      throw error;
    }
  }

  /** Queue a compaction by hand (`run_id`), or return its plan with `dry_run`. */
  compact(conversationId: string, body: Body<"POST /v1/conversations/{conversation_id}/compactions"> = {}) {
    const operation = "POST /v1/conversations/{conversation_id}/compactions";
    return this.#call(operation, [conversationId], { body, safe: inSnakeCase(body)["dry_run"] === true });
  }

  /** Go back to an old snapshot; 0 = no compaction. */
  restore(conversationId: string, version: number) {
    const operation = "POST /v1/conversations/{conversation_id}/restore";
    const done = this.#call(operation, [conversationId], { body: { version }, safe: false });
    return done as Promise<ConversationOut | ConversationBrief>;
  }

  /** What would be served after going back to an old snapshot; nothing is changed. */
  restorePlan(conversationId: string, version: number) {
    const operation = "POST /v1/conversations/{conversation_id}/restore";
    const plan = this.#call(operation, [conversationId], { body: { version, dry_run: true }, safe: true });
    return plan as Promise<RestorePlanOut>;
  }

  /** Make a conversation with the same past up to a seq. */
  fork(conversationId: string, body: Body<"POST /v1/conversations/{conversation_id}/fork">) {
    return this.#call("POST /v1/conversations/{conversation_id}/fork", [conversationId], { body, safe: false });
  }

  listMessages(conversationId: string, query: Query<"GET /v1/conversations/{conversation_id}/messages"> = {}) {
    return this.#call("GET /v1/conversations/{conversation_id}/messages", [conversationId], { query });
  }

  listRuns(conversationId: string, query: Query<"GET /v1/conversations/{conversation_id}/runs"> = {}) {
    return this.#call("GET /v1/conversations/{conversation_id}/runs", [conversationId], { query });
  }

  /** Read a run; with `wait`, once it has ended or after that many seconds (60 at the most). */
  getRun(runId: string, wait = 0): Promise<Run> {
    return this.#call("GET /v1/runs/{run_id}", [runId], { query: { wait }, timeout: 30_000 + wait * 1_000 });
  }

  listSnapshots(conversationId: string, query: Query<"GET /v1/conversations/{conversation_id}/snapshots"> = {}) {
    return this.#call("GET /v1/conversations/{conversation_id}/snapshots", [conversationId], { query });
  }

  getSnapshot(conversationId: string, version: number) {
    return this.#call("GET /v1/conversations/{conversation_id}/snapshots/{version}", [conversationId, version], {});
  }

  listClaims(conversationId: string, version: number) {
    return this.#call("GET /v1/conversations/{conversation_id}/snapshots/{version}/claims", [conversationId, version], {});
  }

  listPins(conversationId: string) {
    return this.#call("GET /v1/conversations/{conversation_id}/pins", [conversationId], {});
  }

  /** Keep a message, or a span of its text, in the context word for word. */
  pin(conversationId: string, body: Body<"POST /v1/conversations/{conversation_id}/pins">) {
    return this.#call("POST /v1/conversations/{conversation_id}/pins", [conversationId], { body, safe: false });
  }

  unpin(conversationId: string, pinId: string) {
    return this.#call("DELETE /v1/conversations/{conversation_id}/pins/{pin_id}", [conversationId, pinId], {});
  }

  listRules(conversationId: string) {
    return this.#call("GET /v1/conversations/{conversation_id}/rules", [conversationId], {});
  }

  /** Withdraw a rule, put it in force again, or keep one that a user may have asked to forget. */
  decideRule(conversationId: string, ruleId: string, inForce: boolean) {
    const body = { in_force: inForce };
    return this.#call("PATCH /v1/conversations/{conversation_id}/rules/{rule_id}", [conversationId, ruleId], { body });
  }

  /** Render the context of the turn that ended with `seq` under two versions, 0 for no compaction. */
  compare(conversationId: string, versions: [number, number], seq: number) {
    const body = { versions, seq };
    return this.#call("POST /v1/conversations/{conversation_id}/comparisons", [conversationId], { body });
  }

  /** Find the snapshot from which on a text or value did not stand any more, and the step that took it out. */
  bisect(conversationId: string, text: string) {
    return this.#call("POST /v1/conversations/{conversation_id}/bisect", [conversationId], { body: { text } });
  }

  async #call<K extends Operation>(
    operation: K,
    path: readonly (string | number)[],
    options: { query?: Query<K>; body?: Body<K>; safe?: boolean; timeout?: number },
  ): Promise<Value<K>> {
    const answer = await this.#transport.send(operation, { path, ...(options as object) });
    return (answer.text ? parse(answer.text) : null) as Value<K>;
  }

  async #readContext<S extends Shape>(
    conversationId: string,
    { shape, cacheBreakpoints, fallback }: ContextOptions<S>,
    timeout: number,
  ): Promise<Context<S>> {
    if (fallback) this.#transport.check();
    const query = { shape, cache_breakpoints: cacheBreakpoints };
    const name = remembered(conversationId, shape, cacheBreakpoints);
    const known = this.#remembered.get(name);
    const headers = known ? { "if-none-match": known.etag } : {};
    const operation = "GET /v1/conversations/{conversation_id}/context";
    const answer = await this.#transport.send(operation, { path: [conversationId], query, headers, timeout });
    if (answer.status === 304 && known) return contextOf(known.text, shape);
    const context = contextOf(answer.text, shape);
    const etag = answer.headers.get("etag");
    if (etag) this.#remember(name, etag, answer.text);
    return context;
  }

  /** The text is kept, so that nobody's changes to a context reach the next one. */
  #remember(name: string, etag: string, text: string): void {
    this.#forget(name);
    this.#remembered.set(name, { etag, text });
    this.#chars += text.length;
    for (const oldest of this.#remembered.keys()) {
      if (this.#chars <= this.#rememberedChars) break;
      this.#forget(oldest);
    }
  }

  #forget(name: string): void {
    this.#chars -= this.#remembered.get(name)?.text.length ?? 0;
    this.#remembered.delete(name);
  }

  #withKept<S extends Shape>(conversationId: string, context: Context<S>, shape: S | undefined): Context<S> {
    const messages = unshown(context, this.outbox.waiting(conversationId), shape) as MessageOf[S][];
    return { ...context, messages: [...context.messages, ...messages], kept: messages.length };
  }

  async #append(conversationId: string, body: TurnBody, key: string, timeout: number): Promise<Turn> {
    const headers = { "idempotency-key": key };
    const answer = await this.#transport.send(TURNS, { path: [conversationId], headers, body, timeout });
    const turn = parse(answer.text) as TurnOut | null;
    if (typeof turn?.last_seq !== "number") throw new UnreachableError(OTHER_SHAPE);
    return { ...turn, replayed: answer.headers.get("idempotency-replayed") === "true" };
  }

  /** Do something with a conversation's line when those who came before are done with it, if that is soon enough. */
  async #inTurn<R>(conversationId: string, task: () => Promise<R>, patience?: number): Promise<R> {
    const before = this.#lines.get(conversationId);
    let leave = () => {};
    const done = Promise.all([before, new Promise<void>((resolve) => (leave = resolve))]);
    this.#lines.set(conversationId, done);
    void done.then(() => {
      if (this.#lines.get(conversationId) === done) this.#lines.delete(conversationId);
    });
    try {
      if (before) await (patience === undefined ? before : within(before, patience));
      return await task();
    } finally {
      leave();
    }
  }

  /** Send the turns of a conversation in order; return what became of the last one. */
  async #sendTurns(conversationId: string, timeout: number, own?: KeptTurn): Promise<Turn | undefined> {
    if (own) this.outbox.add(own);
    const ends = performance.now() + timeout;
    let done: Turn | undefined;
    for (let turn = this.outbox.waiting(conversationId)[0]; turn; turn = this.outbox.waiting(conversationId)[0]) {
      const isOwn = turn.idempotencyKey === own?.idempotencyKey;
      try {
        this.#transport.check();
        const time = left(ends, Math.min(timeout / 2, FAIR));
        this.outbox.begin(turn);
        done = await this.#append(conversationId, turn.body, turn.idempotencyKey, time);
      } catch (error) {
        if (error instanceof ApiError && !error.isPassing) {
          this.outbox.refuse(turn, error, isOwn);
          if (isOwn) throw error;
          continue;
        }
        for (const each of this.outbox.waiting(conversationId)) this.outbox.keep(each, error);
        return undefined;
      }
      this.outbox.sent(turn);
    }
    return done;
  }
}

/** The key of a turn, a new one where none is given. */
function keyOf(given: string | undefined): string {
  if (given !== undefined && !isInAHeader(given))
    throw new TypeError("an idempotency key has characters of ASCII, and none that is not printed");
  return given ?? crypto.randomUUID();
}

/** The name under which a context is remembered; that of no shape is what every other begins with. */
function remembered(conversationId: string, shape = "", cacheBreakpoints?: number): string {
  return `${conversationId}/${shape}${cacheBreakpoints ?? ""}`;
}

/** Wait for what never fails, and no longer than so many milliseconds. */
async function within(promise: Promise<unknown>, timeout: number): Promise<void> {
  let timer: ReturnType<typeof setTimeout> | undefined;
  const late = new Promise<never>((_, reject) => {
    const error = new UnreachableError("other turns of the conversation are still being sent");
    timer = setTimeout(() => reject(error), timeout);
  });
  try {
    await Promise.race([promise, late]);
  } finally {
    clearTimeout(timer);
  }
}
