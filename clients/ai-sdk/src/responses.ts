import type {
  LanguageModelV4FilePart,
  LanguageModelV4Message,
  LanguageModelV4Prompt,
  SharedV4ProviderOptions,
} from "@ai-sdk/provider";
import {
  type AssistantPart,
  type Block,
  type Part,
  type Reasoning,
  type Result,
  type ToolPart,
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

type Item = Record<string, unknown> & { readonly type?: string };

/** Whose reasoning it is where nothing else is said. */
const MAKER = "openai.responses";
const COMPACTION = "openai.compaction";
/** Fields of an item by which a tool is called. */
const GIVEN = ["arguments", "input", "action", "operation"];

/**
 * Return the messages of a prompt as items of Responses; a system prompt is none of them.
 *
 * Parts that the SDK made of one item become one again: they are neighbours with its id.
 */
export function toItems(prompt: LanguageModelV4Prompt, by?: string): object[] {
  return prompt.flatMap((message): object[] => {
    if (message.role === "system" || !message.content.length) return [];
    if (message.role === "user") return [{ type: "message", role: "user", content: message.content.map(userPart) }];
    if (message.role === "tool")
      return message.content.map((part) => (part.type === "tool-result" ? output(part) : carriedOutput(part)));
    return together(message.content).map((parts) => item(parts, by));
  });
}

/** Return items of Responses as a prompt. reader: the provider of the model that is to read them; none reads all. */
export function fromItems(items: readonly object[], reader?: string): LanguageModelV4Prompt {
  const names = new Map<string, string>();
  const prompt: LanguageModelV4Message[] = [];
  const add = (role: "user" | "assistant" | "tool", parts: readonly Part[], alone = false) => {
    const last = prompt.at(-1);
    if (!parts.length) return;
    if (last?.role === role && !alone) (last.content as Part[]).push(...parts);
    else prompt.push({ role, content: [...parts] } as LanguageModelV4Message);
  };
  for (const each of items as readonly Item[]) {
    const { type = "message", role } = each;
    if (type === "message" && (role === "system" || role === "developer"))
      prompt.push({ role: "system", content: said(each["content"], reader).map((part) => (part as { text?: string }).text ?? "").join("\n") });
    else if (role === "user") add("user", said(each["content"], reader), true);
    else if (type.endsWith("_output")) add("tool", outputParts(each, names, reader));
    else {
      const parts = answerParts(each, reader);
      for (const part of parts) if (part.type === "tool-call") names.set(part.toolCallId, part.toolName);
      add("assistant", parts);
    }
  }
  return prompt;
}

function userPart(part: UserPart): Block {
  if (part.type === "text") return { type: "input_text", text: part.text, ...beside({ options: part.providerOptions }) };
  return fileItem(part) ?? carried(part);
}

/** Return a file as the part of a message or of an output that it is; undefined for one that the API does not take. */
function fileItem(part: Pick<LanguageModelV4FilePart, "data" | "mediaType" | "filename" | "providerOptions">): Block | undefined {
  const more = besideFile(part);
  const detail = part.providerOptions?.["openai"]?.["imageDetail"] ?? "auto";
  if (part.data.type === "reference") {
    const { openai: id, ...others } = part.data.reference;
    if (id === undefined || Object.keys(others).length) return undefined;
    return isImage(part) ? { type: "input_image", detail, file_id: id, ...more } : { type: "input_file", file_id: id, ...more };
  }
  const url = urlOf(part);
  if (url === undefined) return undefined;
  if (isImage(part)) return { type: "input_image", detail, image_url: url, ...more };
  if (part.data.type === "url") return { type: "input_file", file_url: url, ...more };
  if (!url.startsWith("data:application/pdf")) return undefined;
  return { type: "input_file", filename: part.filename ?? "file.pdf", file_data: url, ...more };
}

/** Return parts with those together that are of one item. */
function together(parts: readonly AssistantPart[]): AssistantPart[][] {
  const groups: AssistantPart[][] = [];
  for (const part of parts) {
    const last = groups.at(-1);
    const id = nativeOf(part.providerOptions).own["itemId"];
    const isOne = last?.[0]!.type === part.type && (part.type === "reasoning" || part.type === "text");
    if (isOne && id !== undefined && id === nativeOf(last![0]!.providerOptions).own["itemId"]) last!.push(part);
    else groups.push([part]);
  }
  return groups;
}

/** Return what of provider options is an item's own, and the rest, with the name that it stands under. */
function nativeOf(options: SharedV4ProviderOptions = {}) {
  const key = Object.keys(options).find((name) => options[name]!["itemId"] ?? options[name]!["reasoningEncryptedContent"]);
  const own: Record<string, unknown> = key === undefined ? {} : options[key]!;
  return { key, own, others: Object.fromEntries(Object.entries(options).filter(([name]) => name !== key)) };
}

/** Return what stands beside an item, given the fields that it has itself. */
function besideItem({ key, own, others }: ReturnType<typeof nativeOf>, has: readonly string[], by?: string) {
  const rest = Object.fromEntries(Object.entries(own).filter(([name]) => !has.includes(name)));
  const options = { ...others, ...(key !== undefined && { [key]: rest }) } as SharedV4ProviderOptions;
  return beside({ by, key: key === "openai" ? undefined : key, options });
}

function item(parts: readonly AssistantPart[], by: string | undefined): object {
  const [part] = parts as [AssistantPart];
  const native = nativeOf(part.providerOptions);
  const { own } = native;
  const id = own["itemId"] === undefined ? {} : { id: own["itemId"] };
  if (part.type === "reasoning") {
    const maker = makerOf(part, by);
    const sealed = (parts as Reasoning[]).map((each) => nativeOf(each.providerOptions).own["reasoningEncryptedContent"]);
    const encrypted = sealed.filter((each) => each != null).at(-1);
    if (native.key === undefined) return carried(part, maker);
    const summary = (parts as Reasoning[]).filter((each) => each.text).map((each) => ({ type: "summary_text", text: each.text }));
    const more = besideItem(native, ["itemId", "reasoningEncryptedContent"], maker === MAKER ? undefined : maker);
    return { type: "reasoning", ...id, summary, ...(encrypted != null && { encrypted_content: encrypted }), ...more };
  }
  if (part.type === "text") {
    if (native.key === undefined && !part.text) return carried(part);
    if (native.key === undefined) return { role: "assistant", content: part.text, ...beside({ options: part.providerOptions }) };
    const content = parts.map((each) => {
      const { annotations = [] } = nativeOf(each.providerOptions).own;
      return { type: "output_text", text: (each as { text: string }).text, annotations };
    });
    const phase = own["phase"] == null ? {} : { phase: own["phase"] };
    const more = besideItem(native, ["itemId", "annotations", "phase"]);
    return { type: "message", ...id, role: "assistant", status: "completed", ...phase, content, ...more };
  }
  if (part.type === "tool-call" && !part.providerExecuted) {
    const call = { call_id: part.toolCallId, name: part.toolName, arguments: argumentsOf(part.input) };
    return { type: "function_call", ...id, ...call, status: "completed", ...besideItem(native, ["itemId"]) };
  }
  if (part.type === "custom" && part.kind === COMPACTION && native.key === "openai")
    return { type: "compaction", ...id, encrypted_content: own["encryptedContent"] };
  return carried(part, by);
}

/** Carried by what ends in `_output`, so that it is the user's. */
function carriedOutput(part: ToolPart): Block {
  const block = carried(part);
  return { ...block, type: `${block.type}_output` };
}

function output(part: Result): object {
  const { text, pieces, isError } = returned(part.output);
  const content = pieces?.map((piece) =>
    piece.type === "text" ? { type: "input_text", text: piece.text } : ((piece.type === "file" && fileItem(piece)) || carried(piece)),
  );
  // The SDK says so to the API in the same words.
  const said = isError && part.output.type !== "execution-denied" ? JSON.stringify({ error: fromJson(text!) }) : text;
  return { type: "function_call_output", call_id: part.toolCallId, output: content ?? said, ...besideResult(part) };
}

function outputParts(each: Item, names: ReadonlyMap<string, string>, reader: string | undefined): Part[] {
  const whole = carriedPart(each as Block, reader);
  if (whole !== undefined) return whole ? [whole] : [];
  const { output: value } = each;
  const pieces = Array.isArray(value) && said(value, reader);
  const isSaid = pieces && pieces.every((piece) => piece.type === "text");
  const text = typeof value === "string" ? value : JSON.stringify(value);
  const content = isSaid ? pieces.map((piece) => (piece as { text: string }).text).join("\n") : pieces || text;
  return [resultPart(String(each["call_id"] ?? each["id"]), names, content as never, each)];
}

/** Return an item's fields as provider options. */
function itemOptions(each: Item, own: Record<string, unknown>) {
  const { options = {}, key = "openai" } = besideOf(each);
  const named = { ...options[key], ...own };
  const isSaid = Object.values(named).some((value) => value != null);
  return withOptions({ ...options, ...(isSaid && { [key]: named }) } as SharedV4ProviderOptions);
}

function answerParts(each: Item, reader: string | undefined): AssistantPart[] {
  const { type = "message", id, content } = each;
  const whole = carriedPart({ ...each, type }, reader);
  if (whole !== undefined) return whole ? [whole as AssistantPart] : [];
  const itemId = id === undefined ? {} : { itemId: id };
  const { by = MAKER } = besideOf(each);
  if (type === "message")
    return said(content, reader).map((part, at) => {
      const { annotations } = (Array.isArray(content) ? content[at] : {}) as { annotations?: unknown[] };
      const phase = each["phase"] === undefined ? {} : { phase: each["phase"] };
      const more = itemOptions(each, { ...itemId, ...phase, ...(annotations?.length && { annotations }) });
      return { ...part, ...more } as AssistantPart;
    });
  if (type === "reasoning") {
    if (!isReadable(by, reader)) return [];
    const own = itemOptions(each, { ...itemId, reasoningEncryptedContent: each["encrypted_content"] ?? null });
    const texts = ((each["summary"] ?? []) as { text: string }[]).map(({ text }) => text);
    return (texts.length ? texts : [""]).map((text) => ({ type: "reasoning", text, ...own }));
  }
  if (type === "compaction" && isReadable(by, reader)) {
    const own = itemOptions(each, { type, ...itemId, encryptedContent: each["encrypted_content"] });
    return [{ type: "custom", kind: COMPACTION, ...own }];
  }
  if (type === "compaction") return [];
  const given = GIVEN.find((name) => each[name] !== undefined);
  if (type.endsWith("_call") && each["call_id"] !== undefined && given) {
    const input = each[given];
    const call = { toolCallId: String(each["call_id"]), toolName: String(each["name"] ?? type) };
    const value = type === "function_call" ? fromJson(String(input) || "{}") : input;
    return [{ type: "tool-call", ...call, input: value, ...itemOptions(each, itemId) }];
  }
  // What the API's own tools left; its JSON says what there is to know.
  return [{ type: "text", text: JSON.stringify(each) }];
}

function said(content: unknown, reader: string | undefined): Part[] {
  const parts = typeof content === "string" ? [{ type: "text", text: content }] : ((content ?? []) as Block[]);
  return parts.flatMap((part: Block): Part[] => {
    const whole = carriedPart(part, reader);
    if (whole !== undefined) return whole ? [whole] : [];
    const file = fileFrom(part);
    if (file) return [{ ...file, ...fileOptions(part, part["detail"]) }];
    const text = part["text"] ?? part["refusal"] ?? JSON.stringify(part);
    return [{ type: "text", text: String(text), ...withOptions(besideOf(part).options) }];
  });
}

function fileFrom(part: Block): LanguageModelV4FilePart | undefined {
  const { image_url: image, file_data: data, file_url: url, file_id: id, filename } = part as unknown as Record<string, string>;
  const mediaType = part.type === "input_file" ? "application/pdf" : "image";
  if (!["input_image", "computer_screenshot", "input_file"].includes(part.type)) return undefined;
  const found = image ?? data ?? url;
  if (found !== undefined) return fileOf(found, mediaType, filename);
  return id === undefined ? undefined : { type: "file", mediaType, data: { type: "reference", reference: { openai: id } } };
}
