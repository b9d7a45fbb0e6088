import type {
  LanguageModelV4CallOptions,
  LanguageModelV4Content,
  LanguageModelV4Middleware,
  LanguageModelV4Prompt,
  LanguageModelV4StreamPart,
  LanguageModelV4Usage,
} from "@ai-sdk/provider";
import { type Client, type Context, type TurnBody, isTooLong } from "palimpsest-context-client";
import { generated, toPrompt, toStored } from "./messages.js";

export { toPrompt, toStored } from "./messages.js";
export { type RecallInput, recallTool } from "./recalling.js";

export interface PalimpsestOptions {
  /**
   * How many of the first messages that are given to the SDK the service has already. 0, the default: only what is new
   * is given, and the history comes from the service.
   */
  readonly stored?: number;
  /** Returns the history, without what is new, for when the service is away; needed only where `stored` is 0. */
  readonly fallback?: () => LanguageModelV4Prompt | Promise<LanguageModelV4Prompt>;
}

/**
 * A middleware for one request of a user: before each call of the model the compacted context takes the place of the
 * history, and after each the turn is delivered.
 */
export function palimpsest(
  client: Client,
  conversationId: string,
  options: PalimpsestOptions = {},
): LanguageModelV4Middleware {
  let done = options.stored ?? 0;

  /** Call the model with the context, and with smaller ones while it refuses; return what came and how to store it. */
  async function call<R>(params: LanguageModelV4CallOptions, run: (prompt: LanguageModelV4Prompt) => PromiseLike<R>) {
    const system = params.prompt.filter((message) => message.role === "system");
    const given = params.prompt.filter((message) => message.role !== "system");
    const fresh = given.slice(done);
    const own = async () => [...((await options.fallback?.()) ?? []), ...given.slice(0, done)];
    let history: LanguageModelV4Prompt | undefined;
    const canDoWithout = options.fallback !== undefined || (options.stored ?? 0) > 0 || done > 0;
    const { result, context } = await client.callModel(
      conversationId,
      async (found) => {
        history = found.isFallback ? await own() : toPrompt(found.messages);
        return run([...system, ...history, ...fresh]);
      },
      { ...(canDoWithout && { fallback: () => [] }), isOverflow: isTooLong },
    );
    done = given.length;
    return { result, store: (content: readonly LanguageModelV4Content[], usage: LanguageModelV4Usage | undefined) =>
      store(toStored(fresh), content, usage, context) };
  }

  async function store(
    fresh: TurnBody["messages"],
    content: readonly LanguageModelV4Content[],
    usage: LanguageModelV4Usage | undefined,
    context: Context,
  ) {
    const reply = generated(content);
    const messages = reply ? [...fresh, reply] : fresh;
    // The reply will be in the next prompt; with it the SDK gives one message for each that is stored here.
    done += reply ? 1 : 0;
    const counted = usage && usageOf(usage);
    if (messages.length)
      await client.deliver(conversationId, messages, {
        ...(counted && { usage: counted }),
        ...(context.isFallback ? {} : { snapshot_version: context.version }),
      });
  }

  return {
    specificationVersion: "v4",
    async wrapGenerate({ params, model }) {
      const { result, store } = await call(params, (prompt) => model.doGenerate({ ...params, prompt }));
      await store(result.content, result.usage);
      return result;
    },
    async wrapStream({ params, model }) {
      const { result, store } = await call(params, (prompt) => model.doStream({ ...params, prompt }));
      const content: LanguageModelV4Content[] = [];
      let usage: LanguageModelV4Usage | undefined;
      const watch = new TransformStream<LanguageModelV4StreamPart, LanguageModelV4StreamPart>({
        transform(part, controller) {
          gather(content, part);
          if (part.type === "finish") usage = part.usage;
          controller.enqueue(part);
        },
        flush: () => store(content, usage),
      });
      return { ...result, stream: result.stream.pipeThrough(watch) };
    },
  };
}

/** Add a part of a stream to what it makes. */
function gather(content: LanguageModelV4Content[], part: LanguageModelV4StreamPart): void {
  const last = content.at(-1);
  if (part.type === "text-start") content.push({ type: "text", text: "" });
  else if (part.type === "reasoning-start") content.push({ type: "reasoning", text: "" });
  else if (part.type === "text-delta" && last?.type === "text") last.text += part.delta;
  else if (part.type === "reasoning-delta" && last?.type === "reasoning") last.text += part.delta;
  else if (part.type === "reasoning-end" && last?.type === "reasoning" && part.providerMetadata)
    last.providerMetadata = part.providerMetadata;
  else if (part.type === "tool-call") content.push(part);
}

function usageOf({ inputTokens, outputTokens }: LanguageModelV4Usage): NonNullable<TurnBody["usage"]> | undefined {
  if (inputTokens.total === undefined) return undefined;
  const { cacheRead = 0, cacheWrite = 0, noCache = inputTokens.total - cacheRead - cacheWrite } = inputTokens;
  return {
    input_tokens: noCache,
    cache_read_input_tokens: cacheRead,
    cache_creation_input_tokens: cacheWrite,
    output_tokens: outputTokens.total ?? 0,
  };
}
