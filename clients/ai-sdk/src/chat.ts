import type { LanguageModelV4FilePart, LanguageModelV4Message, LanguageModelV4Prompt } from "@ai-sdk/provider";
import {
  type AssistantPart,
  type Block,
  type Part,
  type Reasoning,
  type Result,
  type UserPart,
  argumentsOf,
  beside,
  besideFile,
  besideOf,
  besideResult,
  carried,
  carriedPart,
  fileOf,
  fileOptions,
  fromJson,
  isImage,
  isReadable,
  makerOf,
  resultPart,
  returned,
  urlOf,
  withOptions,
} from "./parts.js";

interface Call {
  readonly id: string;
  readonly function?: { readonly name: string; readonly arguments: string };
  readonly custom?: { readonly name: string; readonly input: string };
}

interface ChatMessage {
  readonly role: string;
  readonly content?: string | Block[] | null;
  readonly refusal?: string | null;
  readonly audio?: { readonly transcript?: string } | null;
  readonly name?: string;
  readonly tool_call_id?: string;
  readonly tool_calls?: Call[];
  readonly function_call?: { readonly name: string; readonly arguments: string };
  readonly reasoning_content?: string;
  readonly reasoning_details?: Block[];
}

/** Return the messages of a prompt as those of Chat Completions; a system prompt is none of them. */
export function toChat(prompt: LanguageModelV4Prompt, by?: string): object[] {
  return prompt.flatMap((message): object[] => {
    if (message.role === "system" || !message.content.length) return [];
    if (message.role === "user") return [{ role: "user", content: simplest(message.content.map(userPart)) }];
    if (message.role === "assistant") return [answer(message.content, by)];
    // What the user has said of a call stands for itself: the API has no message for it.
    return message.content.map((part) => (part.type === "tool-result" ? toolMessage(part) : { role: "user", content: [carried(part)] }));
  });
}

/** Return messages of Chat Completions as a prompt. reader: the provider of the model that is to read them. */
export function fromChat(messages: readonly object[], reader?: string): LanguageModelV4Prompt {
  const names = new Map<string, string>();
  const prompt: LanguageModelV4Message[] = [];
  for (const message of messages as readonly ChatMessage[]) {
    if (message.role === "assistant") {
      const content = answerParts(message, reader);
      for (const part of content) if (part.type === "tool-call") names.set(part.toolCallId, part.toolName);
      if (content.length) prompt.push({ role: "assistant", content });
    } else if (message.role === "tool" || message.role === "function") {
      const id = message.tool_call_id ?? idOf(message.name);
      const { output } = besideOf(message);
      const text = textOf(message.content);
      // What was cut is as it is now; its files are gone with the rest.
      const value = output && text === inWords(output) ? output : text;
      const last = prompt.at(-1);
      const result = resultPart(id, names, value, message);
      if (last?.role === "tool") last.content.push(result);
      else prompt.push({ role: "tool", content: [result] });
    } else if (message.role === "user") {
      const parts = saidParts(message.content, reader) as Part[];
      const answers = parts.filter((part) => part.type === "tool-approval-response");
      const said = parts.filter((part) => part.type !== "tool-approval-response") as UserPart[];
      if (answers.length) prompt.push({ role: "tool", content: answers });
      if (said.length) prompt.push({ role: "user", content: said });
    } else prompt.push({ role: "system", content: textOf(message.content) });
  }
  return prompt;
}

function userPart(part: UserPart): Block {
  if (part.type === "text") return { type: "text", text: part.text, ...beside({ options: part.providerOptions }) };
  const more = besideFile(part);
  const url = urlOf(part);
  const [, type, format, data] = /^data:((?:audio|application)\/([\w.+-]+));base64,(.*)$/s.exec(url ?? "") ?? [];
  if (url !== undefined && isImage(part)) {
    const detail = part.providerOptions?.["openai"]?.["imageDetail"];
    return { type: "image_url", image_url: { url, ...(detail !== undefined && { detail }) }, ...more };
  }
  if (type === "application/pdf")
    return { type: "file", file: { filename: part.filename ?? "file.pdf", file_data: url }, ...more };
  if (type?.startsWith("audio/") && ["wav", "mp3", "mpeg"].includes(format!))
    return { type: "input_audio", input_audio: { data, format: format === "wav" ? format : "mp3" }, ...more };
  return carried(part);
}

function answer(parts: readonly AssistantPart[], by: string | undefined): object {
  const reasoning = parts.filter((part) => part.type === "reasoning");
  const calls = parts.flatMap((part) => {
    if (part.type !== "tool-call" || part.providerExecuted) return [];
    const called = { name: part.toolName, arguments: argumentsOf(part.input) };
    return [{ id: part.toolCallId, type: "function", function: called, ...beside({ options: part.providerOptions }) }];
  });
  const said = parts.flatMap((part) => {
    if (part.type === "text") return part.text ? [{ type: "text", text: part.text, ...beside({ options: part.providerOptions }) }] : [carried(part)];
    return part.type === "reasoning" || (part.type === "tool-call" && !part.providerExecuted) ? [] : [carried(part)];
  });
  return {
    role: "assistant",
    content: said.length ? simplest(said) : calls.length || reasoning.length ? null : "",
    ...thought(reasoning, by),
    ...(calls.length && { tool_calls: calls }),
  };
}

/** Return the fields for what a model thought: plain text, or the parts as they are where there is more to them. */
function thought(parts: readonly Reasoning[], by: string | undefined): object {
  if (!parts.length) return {};
  const isPlain = parts.every((part) => part.text && !part.providerOptions);
  if (isPlain) return { reasoning_content: parts.map((part) => part.text).join("\n"), ...beside({ by }) };
  return { reasoning_details: parts.map((part) => carried(part, makerOf(part, by))) };
}

function answerParts(message: ChatMessage, reader: string | undefined): AssistantPart[] {
  const { reasoning_content: text, reasoning_details: details = [] } = message;
  const parts: AssistantPart[] = details.flatMap((each) => (carriedPart(each, reader) as Reasoning | undefined) ?? []);
  if (!parts.length && text && isReadable(besideOf(message).by, reader)) parts.push({ type: "reasoning", text });
  parts.push(...(saidParts(message.content, reader) as AssistantPart[]));
  for (const said of [message.refusal, message.audio?.transcript]) if (said) parts.push({ type: "text", text: said });
  for (const call of message.tool_calls ?? []) {
    const { name, arguments: given } = call.function ?? { name: call.custom!.name, arguments: call.custom!.input };
    const own = withOptions(besideOf(call).options);
    parts.push({ type: "tool-call", toolCallId: call.id, toolName: name, input: fromJson(given || "{}"), ...own });
  }
  const { function_call: old } = message;
  if (old) parts.push({ type: "tool-call", toolCallId: idOf(old.name), toolName: old.name, input: fromJson(old.arguments || "{}") });
  return parts;
}

function toolMessage(part: Result): object {
  const { text, pieces } = returned(part.output);
  const isSaid = pieces?.every((piece) => piece.type === "text");
  const content = text ?? inWords(pieces!);
  return { role: "tool", tool_call_id: part.toolCallId, content, ...besideResult(part, isSaid ? undefined : pieces) };
}

function inWords(pieces: NonNullable<ReturnType<typeof returned>["pieces"]>): string {
  return pieces.map((piece) => (piece.type === "text" ? piece.text : `[${piece.type === "file" ? piece.mediaType : piece.type}]`)).join("\n");
}

/** The id of a call by the deprecated `function_call`, which has none. */
function idOf(name: string | undefined): string {
  return `function_${name}`;
}

function simplest(parts: Block[]): string | Block[] {
  const [only] = parts;
  return parts.length === 1 && Object.keys(only!).length === 2 && only!.type === "text" ? String(only!["text"]) : parts;
}

function textOf(content: ChatMessage["content"]): string {
  return typeof content === "string" ? content : (content ?? []).map((part) => String(part["text"] ?? "")).join("\n");
}

function saidParts(content: ChatMessage["content"], reader: string | undefined): Part[] {
  const parts = typeof content === "string" ? (content ? [{ type: "text", text: content }] : []) : (content ?? []);
  return parts.flatMap((part: Block): Part[] => {
    const whole = carriedPart(part, reader);
    if (whole !== undefined) return whole ? [whole] : [];
    const file = fileFrom(part);
    if (file) return [{ ...file, ...fileOptions(part, (part["image_url"] as { detail?: string } | undefined)?.detail) }];
    const text = part["text"] ?? part["refusal"] ?? JSON.stringify(part);
    return [{ type: "text", text: String(text), ...withOptions(besideOf(part).options) }];
  });
}

function fileFrom(part: Block): LanguageModelV4FilePart | undefined {
  if (part.type === "image_url") return fileOf(String((part["image_url"] as { url: string }).url), "image");
  if (part.type === "file") {
    const { filename, file_data: data } = part["file"] as { filename?: string; file_data?: string };
    return data === undefined ? undefined : fileOf(data, "application/pdf", filename);
  }
  if (part.type !== "input_audio") return undefined;
  const { data, format } = part["input_audio"] as { data: string; format: string };
  return fileOf(`data:audio/${format === "mp3" ? "mpeg" : format};base64,${data}`, "audio");
}
