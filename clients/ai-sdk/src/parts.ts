import type {
  LanguageModelV4Content,
  LanguageModelV4FilePart,
  LanguageModelV4Message,
  LanguageModelV4ToolResultOutput,
  SharedV4ProviderOptions,
} from "@ai-sdk/provider";

export type UserPart = Extract<LanguageModelV4Message, { role: "user" }>["content"][number];
export type AssistantPart = Extract<LanguageModelV4Message, { role: "assistant" }>["content"][number];
export type ToolPart = Extract<LanguageModelV4Message, { role: "tool" }>["content"][number];
export type Part = UserPart | AssistantPart | ToolPart;
export type Reasoning = Extract<AssistantPart, { type: "reasoning" }>;
export type Result = Extract<ToolPart, { type: "tool-result" }>;
export type Piece = Extract<LanguageModelV4ToolResultOutput, { type: "content" }>["value"][number];
export type Block = Record<string, unknown> & { type: string };

/** A part that a shape has no form for is carried in one of this type, and comes back as it was. */
const CARRIED = "ai_sdk_part";
/** The field beside what a shape has a form for, with what it has no field for. */
const BESIDE = "ai_sdk";
/** Marks for a prompt cache: they belong to a request, and a provider takes only a few. */
const MARKS = new Set(["cacheControl", "cache_control", "cachePoint", "promptCacheBreakpoint"]);
const WHOLE_TYPE = /^[\w.+-]+\/[\w.+-]+$/;

interface Beside {
  /** The provider of the model that made it; what is sealed goes back to no other. */
  readonly by?: string | undefined;
  /** The name of the options that say an item's own fields, where it is not OpenAI's. */
  readonly key?: string | undefined;
  readonly options?: SharedV4ProviderOptions | undefined;
  /** A tool's output with media, where the shape takes text alone. */
  readonly output?: Piece[] | undefined;
}

/** Return the field that stands beside a block; none where there is nothing to say. */
export function beside({ options, ...others }: Beside): { [BESIDE]?: Beside } {
  const kept = Object.fromEntries(
    Object.entries(options ?? {})
      .map(([name, own]) => [name, Object.fromEntries(Object.entries(own).filter(([field]) => !MARKS.has(field)))] as const)
      .filter(([, own]) => Object.keys(own).length),
  );
  const said = plain({ ...others, ...(Object.keys(kept).length && { options: kept }) }) as Beside;
  return Object.keys(said).length ? { [BESIDE]: said } : {};
}

export function besideOf(block: object): Beside {
  return ((block as Record<string, unknown>)[BESIDE] as Beside | undefined) ?? {};
}

/** Return provider options as a part has them. */
export function withOptions(options: SharedV4ProviderOptions | undefined): { providerOptions?: SharedV4ProviderOptions } {
  return options && Object.keys(options).length ? { providerOptions: options } : {};
}

/** Return a part as a block of its own. */
export function carried(part: object, by?: string): Block {
  return { type: CARRIED, part: plain(part), ...beside({ by }) };
}

/** Return the part that a block carries, null where its model is not the one that reads; undefined if it carries none. */
export function carriedPart(block: Block, reader: string | undefined): Part | null | undefined {
  if (!block.type.startsWith(CARRIED)) return undefined;
  const part = block["part"] as Part | { type: "tool-approval-request" };
  // A prompt has no requests for approval, only the answers.
  if (part.type === "tool-approval-request") return null;
  return part.type === "reasoning" && !isReadable(besideOf(block).by, reader) ? null : part;
}

/** Tell whether a model can read what one of `by` has sealed; where either is not known, it is tried. */
export function isReadable(by: string | undefined, reader: string | undefined): boolean {
  return by === undefined || reader === undefined || by === reader || reader.startsWith(`${by}.`);
}

/** Return the provider whose model made some reasoning; `by` is that of the model that has just answered. */
export function makerOf({ providerOptions = {} }: Reasoning, by: string | undefined): string | undefined {
  if (by) return by;
  if ("anthropic" in providerOptions) return "anthropic.messages";
  return "openai" in providerOptions ? "openai.responses" : Object.keys(providerOptions)[0];
}

/** Return what a model has generated as a message; undefined if there is nothing to store. */
export function replyOf(content: readonly LanguageModelV4Content[]): LanguageModelV4Message | undefined {
  const parts = content.flatMap((part): AssistantPart[] => {
    // The SDK leaves the same out of its next prompt.
    if (part.type === "source" || (part.type === "text" && !part.text && !part.providerMetadata)) return [];
    if (part.type === "tool-result" && part.preliminary) return [];
    const { providerMetadata, ...own } = part;
    const options = withOptions(providerMetadata);
    if (own.type === "tool-call") return [{ ...own, input: fromJson(own.input || "{}"), ...options }];
    if (own.type !== "tool-result") return [{ ...own, ...options } as AssistantPart];
    const { result, isError, toolCallId, toolName } = own;
    const output = { type: isError ? "error-json" : "json", value: result } as const;
    return [{ type: "tool-result", toolCallId, toolName, output, ...options }];
  });
  return parts.length ? { role: "assistant", content: parts } : undefined;
}

/** Return a text as the value that it is the JSON of, or else itself. */
export function fromJson(text: string): unknown {
  try {
    return JSON.parse(text);
  } catch {
    return text;
  }
}

/** Return a call's input as the text of its arguments. */
export function argumentsOf(input: unknown): string {
  return typeof input === "string" ? input : JSON.stringify(input ?? {});
}

/** Return the URL of a file, a `data:` one where it has none; undefined where only a provider has it. */
export function urlOf({ data, mediaType }: Pick<LanguageModelV4FilePart, "data" | "mediaType">): string | undefined {
  if (data.type === "url") return data.url.toString();
  if (data.type === "text") return `data:text/plain;base64,${base64(new TextEncoder().encode(data.text))}`;
  if (data.type !== "data" || !WHOLE_TYPE.test(mediaType)) return undefined;
  return `data:${mediaType};base64,${typeof data.data === "string" ? data.data : base64(data.data)}`;
}

/** Return a file part by its URL; `mediaType` is that of one that does not say it. */
export function fileOf(url: string, mediaType: string, filename?: string): LanguageModelV4FilePart {
  const [, type, data] = /^data:([^;,]+);base64,(.*)$/s.exec(url) ?? [];
  return {
    type: "file",
    mediaType: type ?? mediaType,
    data: data === undefined ? { type: "url", url: new URL(url) } : { type: "data", data },
    ...(filename && { filename }),
  };
}

/** Return what stands beside a file; how closely an image is looked at is a field of it. */
export function besideFile({ providerOptions: options }: { providerOptions?: SharedV4ProviderOptions }): { [BESIDE]?: Beside } {
  const { imageDetail: _, ...own } = options?.["openai"] ?? {};
  return beside({ options: options && { ...options, openai: own } });
}

/** Return provider options of a file, given how closely it is looked at. */
export function fileOptions(block: object, detail: unknown): { providerOptions?: SharedV4ProviderOptions } {
  const { options } = besideOf(block);
  if (typeof detail !== "string" || detail === "auto") return withOptions(options);
  return withOptions({ ...options, openai: { ...options?.["openai"], imageDetail: detail } });
}

export function isImage({ mediaType }: { mediaType: string }): boolean {
  return mediaType.split("/")[0] === "image";
}

/** What a tool returned: one text, or pieces of which some are files. */
export interface Returned {
  readonly text?: string;
  readonly pieces?: readonly Piece[];
  readonly isError: boolean;
}

export function returned(output: LanguageModelV4ToolResultOutput): Returned {
  const isError = output.type.startsWith("error") || output.type === "execution-denied";
  switch (output.type) {
    case "text":
    case "error-text":
      return { text: output.value, isError };
    case "json":
    case "error-json":
      return { text: JSON.stringify(output.value), isError };
    case "execution-denied":
      return { text: output.reason ?? "The user denied the execution of this tool.", isError };
    case "content":
      return { pieces: output.value, isError };
  }
}

/** Return what stands beside a tool's result. */
export function besideResult(part: Result, output?: readonly Piece[]): { [BESIDE]?: Beside } {
  const given = { ...(part.output as { providerOptions?: SharedV4ProviderOptions }).providerOptions, ...part.providerOptions };
  // The SDK gives a result the options of its call; the item is the call.
  const options = Object.fromEntries(Object.entries(given).map(([name, { itemId: _, ...own }]) => [name, own]));
  return beside({ options, ...(output && { output: [...output] }) });
}

/** Return a result's part; `value` is its text, or its pieces. */
export function resultPart(
  id: string,
  names: ReadonlyMap<string, string>,
  value: string | Piece[],
  block: object = {},
): Result {
  const isError = (block as { is_error?: boolean }).is_error;
  const output: LanguageModelV4ToolResultOutput =
    typeof value === "string" ? { type: isError ? "error-text" : "text", value } : { type: "content", value };
  const own = withOptions(besideOf(block).options);
  return { type: "tool-result", toolCallId: id, toolName: names.get(id) ?? "unknown", output: { ...output, ...own }, ...own };
}

/** Bytes become base64, which the SDK takes as well. */
function plain(value: unknown): unknown {
  return JSON.parse(JSON.stringify(value, (_, each: unknown) => (each instanceof Uint8Array ? base64(each) : each)));
}

function base64(bytes: Uint8Array): string {
  return btoa(Array.from(bytes, (byte) => String.fromCharCode(byte)).join(""));
}
