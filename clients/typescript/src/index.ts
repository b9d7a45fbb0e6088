export { Client, isTooLong } from "./client.js";
export type {
  ClientOptions,
  ContextOptions,
  Run,
  StoredMessage,
  Turn,
  TurnOptions,
} from "./client.js";
export type { Context, Message } from "./context.js";
export { ApiError, OutboxFullError, PalimpsestError, UnreachableError } from "./errors.js";
export { Outbox } from "./outbox.js";
export type { KeptTurn, OutboxOptions, TurnBody } from "./outbox.js";
export type { RecallCall, RecallResult } from "./recalling.js";
export type * from "./schema.js";
export { RECALL_TOOL } from "./schema.js";
