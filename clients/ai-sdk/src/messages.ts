import type { LanguageModelV4Content, LanguageModelV4Message, LanguageModelV4Prompt } from "@ai-sdk/provider";
import type { Message } from "palimpsest-context-client";

type Block = Record<string, unknown> & { type: string };
type AssistantPart = Extract<LanguageModelV4Message, { role: "assistant" }>["content"][number];
type ToolPart = Extract<LanguageModelV4Message, { role: "tool" }>["content"][number];
type UserPart = Extract<LanguageModelV4Message, { role: "user" }>["content"][number];

/** A part that the Messages API has no block for is carried in one of this type, and comes back as it was. */
const CARRIED = "ai_sdk_part";

/** Return the messages of a prompt in the form of the Messages API; a system prompt is none of them. */
export function toStored(prompt: LanguageModelV4Prompt): Message[] {
  return prompt
    .filter((message) => message.role !== "system")
    .map((message) => ({
      role: message.role === "assistant" ? ("assistant" as const) : ("user" as const),
      content: (message.content as (UserPart | AssistantPart | ToolPart)[]).map(toBlock),
    }))
    .filter((message) => message.content.length > 0);
}

/** Return what a model has generated as a message; undefined if there is nothing to store. */
export function generated(content: readonly LanguageModelV4Content[]): Message | undefined {
  const parts = content.flatMap((part): AssistantPart[] => {
    if (part.type === "tool-call") return [{ ...part, input: JSON.parse(part.input || "{}") }];
    if (part.type !== "text" && part.type !== "reasoning") return [];
    const { providerMetadata, ...rest } = part;
    return part.text ? [{ ...rest, ...(providerMetadata && { providerOptions: providerMetadata }) }] : [];
  });
  return parts.length ? { role: "assistant", content: parts.map(toBlock) } : undefined;
}

/** Return stored messages as a prompt. */
export function toPrompt(messages: readonly Message[]): LanguageModelV4Prompt {
  const names = new Map<string, string>();
  return messages.flatMap((message): LanguageModelV4Message[] => {
    const blocks = blocksOf(message);
    if (message.role === "assistant") {
      for (const block of blocks) if (block.type === "tool_use") names.set(String(block["id"]), String(block["name"]));
      return [{ role: "assistant", content: blocks.map((block) => fromBlock(block, names) as AssistantPart) }];
    }
    // Results come first in a message of the Messages API, and are messages of their own here.
    const results = blocks.filter((block) => block.type === "tool_result" || isToolPart(block));
    const rest = blocks.filter((block) => !results.includes(block));
    const prompt: LanguageModelV4Message[] = [];
    if (results.length) prompt.push({ role: "tool", content: results.map((each) => fromBlock(each, names) as ToolPart) });
    if (rest.length) prompt.push({ role: "user", content: rest.map((each) => fromBlock(each, names) as UserPart) });
    return prompt;
  });
}

function blocksOf(message: Message): Block[] {
  return typeof message.content === "string" ? [{ type: "text", text: message.content }] : (message.content as Block[]);
}

function isToolPart(block: Block): boolean {
  return block.type === CARRIED && String((block["part"] as { type: string }).type).startsWith("tool-");
}

function toBlock(part: UserPart | AssistantPart | ToolPart): Block {
  if (part.type === "text" && !part.providerOptions) return { type: "text", text: part.text };
  if (part.type === "tool-call" && !part.providerExecuted && !part.providerOptions)
    return { type: "tool_use", id: part.toolCallId, name: part.toolName, input: part.input };
  if (part.type === "tool-result" && !part.providerOptions) {
    const { output } = part;
    const result = { type: "tool_result", tool_use_id: part.toolCallId };
    if (output.type === "text") return { ...result, content: output.value };
    if (output.type === "error-text") return { ...result, content: output.value, is_error: true };
    if (output.type === "json") return { ...result, content: JSON.stringify(output.value) };
    if (output.type === "error-json") return { ...result, content: JSON.stringify(output.value), is_error: true };
    if (output.type === "execution-denied")
      return { ...result, content: output.reason ?? "The user denied the execution of this tool.", is_error: true };
    if (output.value.every((each) => each.type === "text")) return { ...result, content: output.value };
    return { ...result, content: [{ type: CARRIED, part: plain(output.value) }] };
  }
  return { type: CARRIED, part: plain(part) };
}

function fromBlock(block: Block, names: ReadonlyMap<string, string>): UserPart | AssistantPart | ToolPart {
  if (block.type === "text") return { type: "text", text: String(block["text"]) };
  if (block.type === "tool_use")
    return { type: "tool-call", toolCallId: String(block["id"]), toolName: String(block["name"]), input: block["input"] };
  if (block.type === "tool_result") {
    const id = String(block["tool_use_id"]);
    const { content } = block as { content?: string | Block[] };
    const [only] = Array.isArray(content) ? content : [];
    const type = block["is_error"] ? "error-text" : "text";
    const output =
      only?.type === CARRIED
        ? { type: "content" as const, value: only["part"] as never }
        : { type: type as "text", value: typeof content === "string" ? content : (content ?? []).map(text).join("\n") };
    return { type: "tool-result", toolCallId: id, toolName: names.get(id) ?? "unknown", output };
  }
  if (block.type === CARRIED) return block["part"] as UserPart;
  // A block that others have stored in the conversation; its JSON says what there is to know.
  return { type: "text", text: JSON.stringify(block) };
}

function text(block: Block): string {
  return block.type === "text" ? String(block["text"]) : JSON.stringify(block);
}

/** Bytes become base64, which the SDK takes as well. */
function plain(value: unknown): unknown {
  return JSON.parse(
    JSON.stringify(value, (_, each: unknown) =>
      each instanceof Uint8Array ? btoa(Array.from(each, (byte) => String.fromCharCode(byte)).join("")) : each,
    ),
  );
}
