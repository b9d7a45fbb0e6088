export { Client } from "./client.js";
export type {
  ClientOptions,
  ContextOptions,
  Run,
  StoredMessage,
  Turn,
  TurnOptions,
} from "./client.js";
export { marked } from "./context.js";
export type { Context, Message, MessageOf } from "./context.js";
export { ApiError, OutboxFullError, PalimpsestError, UnreachableError } from "./errors.js";
export { Outbox, storable } from "./outbox.js";
export type { KeptTurn, OutboxOptions, Shape, TurnBody, UsageOf } from "./outbox.js";
export { isTooLong } from "./refusals.js";
export type { RecallCall, RecallResult } from "./recalling.js";
export type * from "./schema.js";
export { RECALL_TOOL } from "./schema.js";
