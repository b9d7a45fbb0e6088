export { Client, isTooLong } from "./client.js";
export type {
  ClientOptions,
  Context,
  ContextOptions,
  Message,
  Run,
  StoredMessage,
  Turn,
  TurnOptions,
} from "./client.js";
export { ApiError, OutboxFullError, PalimpsestError, UnreachableError } from "./errors.js";
export { Outbox } from "./outbox.js";
export type { KeptTurn, OutboxOptions, TurnBody } from "./outbox.js";
export type * from "./schema.js";
