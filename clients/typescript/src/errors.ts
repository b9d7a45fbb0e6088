import type { Problem } from "./schema.js";

/** Anything that this package throws. */
export class PalimpsestError extends Error {
  constructor(message: string, options?: ErrorOptions) {
    super(message, options);
    this.name = new.target.name;
  }
}

/** No answer came in time; what the call asked for may have happened or not. `cause` says why, where known. */
export class UnreachableError extends PalimpsestError {}

/** A turn that could neither be sent nor kept. */
export class OutboxFullError extends PalimpsestError {}

/** The service refused: its problem document (RFC 9457), or its status where there was none. */
export class ApiError extends PalimpsestError {
  /** A code that the service is known to have, or one of a newer service; `http_error` where it was not the service. */
  readonly code: Problem["code"] | (string & {});
  readonly detail: string;
  /** A JSON pointer to the field of the body at fault, or the name of a query parameter. */
  readonly pointer: string | undefined;
  readonly requestId: string | undefined;

  constructor(
    readonly status: number,
    readonly document: Readonly<Record<string, unknown>>,
    /** Seconds, from the header. */
    readonly retryAfter: number | undefined,
  ) {
    const code = String(document["code"] ?? "http_error");
    const detail = String(document["detail"] ?? document["title"] ?? "");
    super(`${status} ${code}: ${detail}`);
    this.code = code;
    this.detail = detail;
    this.pointer = document["pointer"] as string | undefined;
    this.requestId = document["request_id"] as string | undefined;
  }

  /** The right `expected_next_seq`, when `code` is `unexpected_seq`. */
  get nextSeq(): number | undefined {
    return this.document["next_seq"] as number | undefined;
  }

  /** The run that has not ended yet, when `code` is `compaction_running`. */
  get runId(): string | undefined {
    return this.document["run_id"] as string | undefined;
  }

  /** Whether it may pass by itself, or with a key that is valid again: the fault is not the request's own. */
  get isPassing(): boolean {
    return PASSING.has(this.status) || this.status === 401 || this.status === 403;
  }
}

/** Statuses that may pass by themselves. */
export const PASSING: ReadonlySet<number> = new Set([408, 425, 429, 500, 502, 503, 504, 529]);
/** Those of them after which nothing was done, so that any call may be sent again. */
export const UNDONE: ReadonlySet<number> = new Set([429, 503]);

export async function errorOf(response: Response): Promise<ApiError> {
  const text = await response.text();
  let document: Record<string, unknown>;
  try {
    document = JSON.parse(text) as Record<string, unknown>;
    if (typeof document !== "object" || document === null) throw new TypeError();
  } catch {
    // Something between here and the service has answered.
    document = { detail: text.slice(0, 200), request_id: response.headers.get("request-id") ?? undefined };
  }
  const after = response.headers.get("retry-after");
  return new ApiError(response.status, document, after !== null && /^\d+$/.test(after) ? Number(after) : undefined);
}
