import type { LanguageModelV4FilePart, LanguageModelV4Message, LanguageModelV4Prompt } from "@ai-sdk/provider";
import type { Message } from "palimpsest-context-client";
import {
  type AssistantPart,
  type Block,
  type Part,
  type Piece,
  type Reasoning,
  type ToolPart,
  type UserPart,
  beside,
  besideOf,
  besideResult,
  carried,
  carriedPart,
  fileOf,
  isImage,
  isReadable,
  makerOf,
  resultPart,
  returned,
  urlOf,
  withOptions,
} from "./parts.js";

/** Whose thinking it is where nothing else is said. */
const MAKER = "anthropic.messages";

/**
 * Return the messages of a prompt in the form of the Messages API; a system prompt is none of them.
 *
 * by: the provider of the model that made the answers.
 */
export function toStored(prompt: LanguageModelV4Prompt, by?: string): Message[] {
  return prompt
    .filter((message) => message.role !== "system")
    .map((message) => ({
      role: message.role === "assistant" ? ("assistant" as const) : ("user" as const),
      content: (message.content as Part[]).map((part) =>
        // In an answer it is what the provider's own tool has returned.
        part.type === "tool-result" && message.role === "assistant" ? carried(part) : toBlock(part, by),
      ),
    }))
    .filter(({ content }) => content.some((block) => block.type !== "text" || (block as unknown as { text: string }).text.trim()));
}

/** Return stored messages as a prompt. reader: the provider of the model that is to read them; none reads all. */
export function toPrompt(messages: readonly Message[], reader?: string): LanguageModelV4Prompt {
  const names = new Map<string, string>();
  return messages.flatMap((message): LanguageModelV4Message[] => {
    const blocks = blocksOf(message.content);
    for (const block of blocks) if (block.type === "tool_use") names.set(String(block["id"]), String(block["name"]));
    const parts = blocks.flatMap((block) => fromBlock(block, names, reader) ?? []);
    if (message.role === "assistant") return parts.length ? [{ role: "assistant", content: parts as AssistantPart[] }] : [];
    // Results come first in a message of the Messages API, and are messages of their own here.
    const results = parts.filter((part) => part.type.startsWith("tool-")) as ToolPart[];
    const rest = parts.filter((part) => !part.type.startsWith("tool-")) as UserPart[];
    const prompt: LanguageModelV4Message[] = [];
    if (results.length) prompt.push({ role: "tool", content: results });
    if (rest.length) prompt.push({ role: "user", content: rest });
    return prompt;
  });
}

function blocksOf(content: unknown): Block[] {
  return typeof content === "string" ? [{ type: "text", text: content }] : ((content ?? []) as Block[]);
}

function toBlock(part: Part, by: string | undefined): Block {
  switch (part.type) {
    case "text": {
      const { type, signature, ...others } = part.providerOptions?.["anthropic"] ?? {};
      if (type === "compaction" && part.text && !Object.keys(others).length)
        return { type: "compaction", content: part.text, ...(signature !== undefined && { signature }) };
      return part.text ? { type: "text", text: part.text, ...beside({ options: part.providerOptions }) } : carried(part);
    }
    case "tool-call": {
      if (part.providerExecuted) return carried(part);
      const input = typeof part.input === "object" && part.input !== null ? part.input : { arguments: part.input };
      const call = { type: "tool_use", id: part.toolCallId, name: part.toolName, input };
      return { ...call, ...beside({ options: part.providerOptions }) };
    }
    case "tool-result": {
      const { text, pieces, isError } = returned(part.output);
      const content = text ?? pieces!.map(pieceBlock);
      const result = { type: "tool_result", tool_use_id: part.toolCallId, content, ...(isError && { is_error: true }) };
      return { ...result, ...besideResult(part) };
    }
    case "reasoning":
      return thinking(part, by);
    case "file":
      return fileBlock(part);
    default:
      return carried(part);
  }
}

/** Return signed reasoning as a block that is served only while it is valid, and other reasoning as it is. */
function thinking(part: Reasoning, by: string | undefined): Block {
  const maker = makerOf(part, by);
  const options = part.providerOptions ?? {};
  const own = options["anthropic"] ?? Object.values(options).find((each) => each["signature"] || each["redactedData"]);
  const { signature, redactedData, ...others } = own ?? {};
  const isNative = maker === MAKER && own === options["anthropic"] && !Object.keys(others).length;
  const more = isNative ? {} : beside({ by: maker, options });
  if (typeof signature === "string") return { type: "thinking", thinking: part.text, signature, ...more };
  if (typeof redactedData === "string") return { type: "redacted_thinking", data: redactedData, ...more };
  return carried(part, maker);
}

function pieceBlock(piece: Piece): Block {
  if (piece.type === "text") return { type: "text", text: piece.text, ...beside({ options: piece.providerOptions }) };
  return piece.type === "file" ? fileBlock(piece) : carried(piece);
}

function fileBlock(part: LanguageModelV4FilePart): Block {
  const url = urlOf(part);
  const kind = isImage(part) ? "image" : "document";
  const [, type, encoded] = /^data:([^;,]+);base64,(.*)$/s.exec(url ?? "") ?? [];
  if (url === undefined || !(kind === "image" || ["application/pdf", "text/plain"].includes(type ?? part.mediaType)))
    return carried(part);
  const named = part.filename && kind === "document" ? { title: part.filename } : {};
  const more = beside({ options: part.providerOptions });
  if (encoded === undefined) return { type: kind, source: { type: "url", url }, ...named, ...more };
  if (type !== "text/plain") return { type: kind, source: { type: "base64", media_type: type, data: encoded }, ...named, ...more };
  const text = new TextDecoder().decode(Uint8Array.from(atob(encoded), (each) => each.charCodeAt(0)));
  return { type: kind, source: { type: "text", media_type: type, data: text }, ...named, ...more };
}

/** Return a block as a part, with the mark for the prompt cache that it has. */
function fromBlock(block: Block, names: ReadonlyMap<string, string>, reader: string | undefined): Part | undefined {
  const part = partOf(block, names, reader);
  if (!part || block["cache_control"] === undefined) return part;
  const { anthropic, ...others } = part.providerOptions ?? {};
  const marked = { ...anthropic, cacheControl: block["cache_control"] } as NonNullable<typeof anthropic>;
  return { ...part, providerOptions: { ...others, anthropic: marked } };
}

function partOf(block: Block, names: ReadonlyMap<string, string>, reader: string | undefined): Part | undefined {
  const { by = MAKER, options } = besideOf(block);
  const part = carriedPart(block, reader);
  if (part !== undefined) return part ?? undefined;
  switch (block.type) {
    case "text":
      return { type: "text", text: String(block["text"]), ...withOptions(options) };
    case "compaction": {
      const { type, signature } = block as { type: string; signature?: string };
      const anthropic = { type, ...(signature !== undefined && { signature }) };
      return { type: "text", text: String(block["content"] ?? ""), providerOptions: { anthropic } };
    }
    case "tool_use": {
      const call = { type: "tool-call", toolCallId: String(block["id"]), toolName: String(block["name"]) } as const;
      return { ...call, input: block["input"], ...withOptions(options) };
    }
    case "tool_result":
      return resultPart(String(block["tool_use_id"]), names, piecesOf(block), block);
    case "thinking":
    case "redacted_thinking": {
      if (!isReadable(by, reader)) return undefined;
      const sealed = block.type === "thinking" ? { signature: block["signature"] } : { redactedData: block["data"] };
      const own = options ?? ({ anthropic: sealed } as NonNullable<typeof options>);
      return { type: "reasoning", text: String(block["thinking"] ?? ""), providerOptions: own };
    }
    case "image":
    case "document":
      return fileFrom(block) ?? inWords(block);
    default:
      return inWords(block);
  }
}

/** A block that others have stored in the conversation; its JSON says what there is to know. */
function inWords(block: Block): Part {
  return { type: "text", text: JSON.stringify(block) };
}

function fileFrom(block: Block): LanguageModelV4FilePart | undefined {
  const source = (block["source"] ?? {}) as Record<string, string>;
  const name = block["title"] === undefined ? undefined : String(block["title"]);
  const more = withOptions(besideOf(block).options);
  const type = block.type === "image" ? "image" : "application/pdf";
  if (source["type"] === "url") return { ...fileOf(source["url"]!, type, name), ...more };
  if (source["type"] === "base64")
    return { ...fileOf(`data:${source["media_type"]};base64,${source["data"]}`, type, name), ...more };
  if (source["type"] !== "text") return undefined;
  const url = urlOf({ data: { type: "text", text: source["data"]! }, mediaType: "text/plain" })!;
  return { ...fileOf(url, "text/plain", name), ...more };
}

/** Return a result's content: its text, or its pieces where some are no text. */
function piecesOf(block: Block): Parameters<typeof resultPart>[2] {
  const { content } = block;
  // As an earlier version stored them.
  const [only] = Array.isArray(content) ? (content as Block[]) : [];
  const all = only && carriedPart(only, undefined);
  if (Array.isArray(all)) return all as never;
  const blocks = blocksOf(content);
  const texts = blocks.map((each) => (each.type === "text" ? String(each["text"]) : undefined));
  if (block["is_error"] || texts.every((text) => text !== undefined))
    return blocks.map((each, at) => texts[at] ?? JSON.stringify(each)).join("\n");
  return blocks.map((each) => {
    const piece = carriedPart(each, undefined) ?? fileFrom(each) ?? { type: "text", text: String(each["text"] ?? JSON.stringify(each)) };
    return piece as never;
  });
}
