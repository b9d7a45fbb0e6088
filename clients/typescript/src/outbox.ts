import { ApiError, OutboxFullError } from "./errors.js";
import type { Operations } from "./schema.js";

export type TurnBody = Operations["POST /v1/conversations/{conversation_id}/turns"]["body"];

/** `messages`: the Messages API; `chat`: Chat Completions; `responses`: items of Responses. */
export type Shape = NonNullable<TurnBody["shape"]>;

type BodyOf<S extends Shape> = Extract<TurnBody, { shape?: S }>;

/** The usage of a call, as the provider's API of the shape answers it. */
export type UsageOf<S extends Shape> = NonNullable<BodyOf<S>["usage"]>;

/** A turn that waits to be sent. It is plain data, so that a caller can store it and hand it back. */
export interface KeptTurn {
  readonly conversationId: string;
  readonly idempotencyKey: string;
  readonly body: TurnBody;
  /** It may have arrived. */
  readonly begun?: boolean;
}

/**
 * Return values with U+FFFD in the place of what no text may have that is stored: NUL, and lone surrogates.
 *
 * Tools return such texts, of binary files and of text that was cut, and the models' APIs take some of them.
 */
export function storable<T>(value: T): T;
export function storable(value: unknown): unknown {
  if (typeof value === "string") return value.replace(NOT_STORABLE, "\ufffd");
  if (Array.isArray(value)) return value.map((each) => storable(each));
  if (typeof value !== "object" || value === null || Object.getPrototypeOf(value) !== Object.prototype) return value;
  return Object.fromEntries(Object.entries(value).map(([name, each]) => [name, storable(each)]));
}

const NOT_STORABLE = /\0|[\ud800-\udbff](?![\udc00-\udfff])|(?<![\ud800-\udbff])[\udc00-\udfff]/g;

export interface OutboxOptions {
  /** Turns that may wait; one more throws OutboxFullError. */
  readonly limit?: number;
  /** Called when a turn could not be sent, and again with its new form before it is tried once more. */
  readonly onKept?: (turn: KeptTurn, error: unknown) => void;
  /** Called when such a turn was sent after all, or was refused. */
  readonly onSent?: (turn: KeptTurn) => void;
  /** Called with a turn that the service will never take. Without it such turns gather in `refused`. */
  readonly onRefused?: (turn: KeptTurn, error: ApiError) => void;
}

/** Turns in the order in which they are to be stored, one line a conversation; in memory, and bounded. */
export class Outbox {
  readonly refused: { turn: KeptTurn; error: ApiError }[] = [];
  readonly #lines = new Map<string, KeptTurn[]>();
  readonly #told = new Set<string>();
  readonly #options: OutboxOptions;

  constructor(options: OutboxOptions = {}) {
    this.#options = options;
  }

  get size(): number {
    return [...this.#lines.values()].reduce((total, line) => total + line.length, 0);
  }

  conversations(): string[] {
    return [...this.#lines.keys()];
  }

  waiting(conversationId: string): readonly KeptTurn[] {
    return this.#lines.get(conversationId) ?? [];
  }

  /** Take turns that were kept before, oldest first. */
  restore(turns: Iterable<KeptTurn>): void {
    for (const turn of turns) {
      this.add(turn);
      this.#told.add(turn.idempotencyKey);
    }
  }

  add(turn: KeptTurn): void {
    const limit = this.#options.limit ?? 1_000;
    if (this.size >= limit) throw new OutboxFullError(`${limit} turns wait to be sent already`);
    this.#lines.set(turn.conversationId, [...this.waiting(turn.conversationId), turn]);
  }

  /** Note that the first turn of a line may have arrived from now on. */
  begin(turn: KeptTurn): void {
    if (turn.begun) return;
    const begun = { ...turn, begun: true };
    this.#lines.set(turn.conversationId, [begun, ...this.waiting(turn.conversationId).slice(1)]);
    if (this.#told.has(turn.idempotencyKey)) this.#tellKept(begun, undefined);
  }

  /** Note that a turn stays here because of `error`. */
  keep(turn: KeptTurn, error: unknown): void {
    if (!this.#told.has(turn.idempotencyKey)) this.#tellKept(turn, error);
  }

  /** Take the first turn of a line away: it is stored. */
  sent(turn: KeptTurn): void {
    this.#take(turn);
    this.#tellSent(turn);
  }

  /** Take the first turn of a line away: it will never be stored. told: its sender learns of it directly. */
  refuse(turn: KeptTurn, error: ApiError, told: boolean): void {
    this.#take(turn);
    if (!told) {
      if (this.#options.onRefused) this.#options.onRefused(turn, error);
      else this.refused.push({ turn, error });
    }
    this.#tellSent(turn);
  }

  #take(turn: KeptTurn): void {
    const rest = this.waiting(turn.conversationId).slice(1);
    if (rest.length) this.#lines.set(turn.conversationId, rest);
    else this.#lines.delete(turn.conversationId);
  }

  #tellKept(turn: KeptTurn, error: unknown): void {
    this.#told.add(turn.idempotencyKey);
    this.#options.onKept?.(turn, error);
  }

  #tellSent(turn: KeptTurn): void {
    if (this.#told.delete(turn.idempotencyKey)) this.#options.onSent?.(turn);
  }
}
