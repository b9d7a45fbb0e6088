import type { Operations } from "./schema.js";

type Asked = Operations["POST /v1/conversations/{conversation_id}/recall"]["body"];

/** A model's call of the recall tool: a `tool_use` block, a `function_call` item, or one of a message's `tool_calls`. */
export type RecallCall =
  | { readonly type: "tool_use"; readonly id: string; readonly input: unknown }
  | { readonly type: "function_call"; readonly call_id: string; readonly arguments: string }
  | { readonly type?: "function"; readonly id: string; readonly function: { readonly arguments: string } };

/** The result as the API of the call's shape takes it. */
export type RecallResult<C extends RecallCall = RecallCall> = C extends { readonly type: "tool_use" }
  ? { type: "tool_result"; tool_use_id: string; content: string; is_error?: true }
  : C extends { readonly type: "function_call" }
    ? { type: "function_call_output"; call_id: string; output: string }
    : { role: "tool"; tool_call_id: string; content: string };

/** What the tool's definition has a model give. */
const FIELDS = new Set(["query", "ref", "pattern", "offset"]);

/**
 * Return what a call asks. What a model gave beyond the tool's fields is left out, and arguments that are no JSON ask
 * nothing: the service says what is wrong with that.
 */
export function asked(call: RecallCall): Asked {
  const given = call.type === "tool_use" ? call.input : fromJson("function" in call ? call.function.arguments : call.arguments);
  if (typeof given !== "object" || given === null || Array.isArray(given)) return {};
  return Object.fromEntries(Object.entries(given).filter(([name, value]) => FIELDS.has(name) && value !== null));
}

export function result<C extends RecallCall>(call: C, text: string, isError = false): RecallResult<C> {
  return resultOf(call, text, isError) as RecallResult<C>;
}

function resultOf(call: RecallCall, text: string, isError: boolean): RecallResult {
  if (call.type === "tool_use")
    return { type: "tool_result", tool_use_id: call.id, content: text, ...(isError && { is_error: true as const }) };
  if (call.type === "function_call") return { type: "function_call_output", call_id: call.call_id, output: text };
  return { role: "tool", tool_call_id: call.id, content: text };
}

function fromJson(text: string): unknown {
  try {
    return JSON.parse(text);
  } catch {
    return undefined;
  }
}
