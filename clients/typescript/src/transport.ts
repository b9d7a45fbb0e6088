import { ApiError, PASSING, PalimpsestError, UNDONE, UnreachableError, errorOf } from "./errors.js";
import { inSnakeCase } from "./names.js";
import type { Operations } from "./schema.js";

export type Operation = keyof Operations;

export interface Options<K extends Operation = Operation> {
  /** Parts of the path, in order. */
  readonly path?: readonly (string | number)[];
  readonly query?: Readonly<Record<string, string | number | undefined>>;
  /** Those that the operation is documented to read; names in lower case. */
  readonly headers?: Readonly<Partial<Record<Operations[K]["requestHeaders"], string>>>;
  readonly body?: unknown;
  /** Milliseconds, retries included. */
  readonly timeout?: number;
  /** Sent twice it does what it does once, so that it is repeated even when nobody knows whether it arrived. */
  readonly safe?: boolean;
}

export interface Answer<K extends Operation = Operation> {
  readonly status: number;
  /** Those that the operation is documented to answer with. */
  readonly headers: { get(name: Operations[K]["headers"]): string | null };
  readonly text: string;
}

export const OTHER_SHAPE = "the answer has another shape: something else answers at this address";
const ATTEMPTS = 3;
const FIRST_PAUSE = 100;
const LEAST = 20;
const COOL_OFF = 1_000;
const LONGEST_COOL_OFF = 30_000;
/** Milliseconds that a call may take which nobody waits for. */
export const CALL_TIMEOUT = 30_000;

/** Sends requests with retries, and knows when it is no use. */
export class Transport {
  readonly #url: string;
  readonly #key: string;
  readonly #fetch: typeof fetch;
  #awayUntil = 0;
  #coolOff = COOL_OFF;

  constructor(url: string, key: string, fetcher: typeof fetch) {
    // A fallback hides that a service cannot be reached, which passes; an address that is none does not.
    if (!/^https?:\/\//i.test(url)) throw new TypeError("the service's url begins with http:// or https://");
    // One that was read from a file has the file's line break behind it.
    this.#key = key.trim();
    if (this.#key && !isInAHeader(this.#key)) throw new TypeError("the key has characters that no key has");
    this.#url = url.replace(/\/+$/, "").replace(/\/v1$/, "");
    this.#fetch = fetcher;
  }

  /** Throw if the service failed to answer a moment ago. */
  check(): void {
    if (performance.now() < this.#awayUntil) throw new UnreachableError("the service did not answer a moment ago");
  }

  async send<K extends Operation>(operation: K, options: Options<K>): Promise<Answer<K>> {
    const ends = performance.now() + (options.timeout ?? CALL_TIMEOUT);
    for (let attempt = 1; ; attempt++) {
      try {
        const answer = await this.#once(operation, options, Math.max(ends - performance.now(), LEAST));
        this.#awayUntil = 0;
        this.#coolOff = COOL_OFF;
        return answer;
      } catch (error) {
        const pause = this.#pauseAfter(error, attempt, options.safe ?? true);
        if (pause === undefined || attempt === ATTEMPTS || performance.now() + pause + LEAST > ends) {
          this.#note(error);
          throw error;
        }
        await new Promise((resolve) => setTimeout(resolve, pause));
      }
    }
  }

  async #once<K extends Operation>(operation: K, options: Options<K>, timeout: number): Promise<Answer<K>> {
    const [method, template] = operation.split(" ") as [string, string];
    const parts = [...(options.path ?? [])];
    const path = template.replace(/\{\w+\}/g, () => encodeURIComponent(String(parts.shift())));
    const query = Object.entries(inSnakeCase(options.query ?? {})).filter(([, value]) => value !== undefined);
    const search = query.length ? `?${new URLSearchParams(query.map(([name, value]) => [name, String(value)]))}` : "";
    const headers: Record<string, string> = { authorization: `Bearer ${this.#key}`, ...options.headers };
    const init: RequestInit = { method, headers, signal: AbortSignal.timeout(Math.ceil(timeout)) };
    if (options.body !== undefined) {
      headers["content-type"] = "application/json";
      // A body that is sent again has to have the same bytes: its hash goes with its idempotency key.
      const { body } = options;
      init.body = JSON.stringify(body !== null && typeof body === "object" ? inSnakeCase(body) : body);
    }
    try {
      const response = await this.#fetch(this.#url + path + search, init);
      if (response.status >= 400) throw await errorOf(response);
      if (!response.ok && response.status !== 304)
        throw new UnreachableError(`a redirect (${response.status}): something else answers at this address`);
      return { status: response.status, headers: response.headers, text: await response.text() };
    } catch (error) {
      if (error instanceof PalimpsestError) throw error;
      throw new UnreachableError(`the service did not answer: ${String(error)}`, { cause: error });
    }
  }

  #pauseAfter(error: unknown, attempt: number, safe: boolean): number | undefined {
    const pause = (0.5 + Math.random() / 2) * FIRST_PAUSE * 2 ** (attempt - 1);
    if (error instanceof ApiError) {
      if (!(safe ? PASSING : UNDONE).has(error.status)) return undefined;
      return error.retryAfter === undefined ? pause : error.retryAfter * 1_000;
    }
    return safe || wasNotSent(error) ? pause : undefined;
  }

  #note(error: unknown): void {
    if (error instanceof ApiError && !PASSING.has(error.status)) return;
    const after = error instanceof ApiError && error.retryAfter ? error.retryAfter * 1_000 : this.#coolOff;
    this.#awayUntil = performance.now() + after;
    this.#coolOff = Math.min(this.#coolOff * 2, LONGEST_COOL_OFF);
  }
}

/** Tell whether a header may have a text: some ASCII characters, blanks within them at the most. */
export function isInAHeader(text: string): boolean {
  return /^[!-~]+( +[!-~]+)*$/.test(text);
}

/** Return the milliseconds until `ends`; throw if there are not even so many. */
export function left(ends: number, atLeast = LEAST): number {
  const time = ends - performance.now();
  if (time < atLeast) throw new UnreachableError("the time is up");
  return time;
}

/** Tell whether no connection was made; Node's fetch keeps the system's code in the cause of its error. */
function wasNotSent(error: unknown): boolean {
  let cause: unknown = error;
  while (cause instanceof Error) {
    if (["ECONNREFUSED", "ENOTFOUND", "EAI_AGAIN"].includes((cause as { code?: string }).code ?? "")) return true;
    cause = cause.cause;
  }
  return false;
}

/** Read what an answer says. */
export function parse(text: string): unknown {
  try {
    return JSON.parse(text);
  } catch (error) {
    throw new UnreachableError("the answer is not JSON: something else answers at this address", { cause: error });
  }
}
