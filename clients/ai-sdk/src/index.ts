import type {
  LanguageModelV4CallOptions,
  LanguageModelV4Content,
  LanguageModelV4Message,
  LanguageModelV4Middleware,
  LanguageModelV4Prompt,
  LanguageModelV4StreamPart,
  LanguageModelV4Usage,
  SharedV4Warning,
} from "@ai-sdk/provider";
import { type Client, type Context, PalimpsestError, type Shape, isTooLong, marked, storable } from "palimpsest-context-client";
import { Gathering } from "./gathering.js";
import { replyOf } from "./parts.js";
import { codecOf } from "./shapes.js";
import { unanswered } from "./unanswered.js";

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
  /** How many marks Anthropic's prompt cache gets in the history: four, less those that your own messages and tools have. */
  readonly cacheBreakpoints?: number;
}

/**
 * A middleware for one request of a user: before each call of the model the compacted context takes the place of the
 * history, and after each the turn is delivered. The models of its calls may be of several providers: each is given the
 * conversation as its own API has it.
 */
export function palimpsest(
  client: Client,
  conversationId: string,
  options: PalimpsestOptions = {},
): LanguageModelV4Middleware {
  let done = options.stored ?? 0;

  /** Call the model with the context, and with smaller ones while it refuses; return what came and how to store it. */
  async function call<R>(
    given: LanguageModelV4CallOptions,
    provider: string,
    run: (params: LanguageModelV4CallOptions) => PromiseLike<R>,
  ) {
    const codec = codecOf(provider);
    const params = codec.shape === "responses" ? unstored(given, provider) : given;
    const system = params.prompt.filter((message) => message.role === "system");
    const others = params.prompt.filter((message) => message.role !== "system");
    const own = async () => [...((await options.fallback?.()) ?? []), ...others.slice(0, done)];
    const marks = provider.includes("anthropic") ? options.cacheBreakpoints : undefined;
    const canDoWithout = options.fallback !== undefined || (options.stored ?? 0) > 0 || done > 0;
    let fresh: LanguageModelV4Prompt = [];
    const { result, context } = await client.callModel(
      conversationId,
      async (found) => {
        const messages = marks ? marked(found as Context<"messages">) : found.messages;
        const history = found.isFallback ? await own() : codec.prompt(messages, provider);
        // What is thought of it is signed for what is sent, which is what is stored.
        const added = storable(others.slice(done));
        fresh = found.isFallback ? added : [...unanswered(history, added), ...added];
        return run(withoutLostThinking({ ...params, prompt: [...system, ...history, ...fresh] }));
      },
      {
        shape: codec.shape,
        ...(marks && { cacheBreakpoints: marks }),
        ...(canDoWithout && { fallback: () => [] }),
        isOverflow: isTooLong,
      },
    );
    done = others.length;
    const sent = fresh;
    const deliver = (content: readonly LanguageModelV4Content[], usage: LanguageModelV4Usage | undefined) =>
      store(sent, replyOf(content), usage, provider, context);
    return { result, warnings: warningsOf(context), deliver };
  }

  async function store(
    fresh: LanguageModelV4Prompt,
    reply: LanguageModelV4Message | undefined,
    usage: LanguageModelV4Usage | undefined,
    provider: string,
    context: Context<Shape>,
  ) {
    const codec = codecOf(provider);
    const messages = [...codec.stored(fresh), ...codec.stored(reply ? [reply] : [], provider)];
    // The reply will be in the next prompt; with it the SDK gives one message for each that is stored here.
    done += reply ? 1 : 0;
    const counted = usage && codec.usage(usage);
    if (!messages.length) return;
    try {
      await client.deliver(conversationId, storable(messages), {
        shape: codec.shape,
        ...(counted && { usage: counted }),
        ...(context.isFallback ? {} : { snapshot_version: context.version }),
      });
    } catch (error) {
      if (!(error instanceof PalimpsestError)) throw error;
      // The chat goes on, as the answer is there.
      console.warn(`a turn of ${conversationId} is not stored: ${error.message}`);
    }
  }

  return {
    specificationVersion: "v4",
    async wrapGenerate({ params, model }) {
      const { result, warnings, deliver } = await call(params, model.provider, (own) => model.doGenerate(own));
      await deliver(result.content, result.usage);
      return { ...result, warnings: [...result.warnings, ...warnings] };
    },
    async wrapStream({ params, model }) {
      const { result, warnings, deliver } = await call(params, model.provider, (own) => model.doStream(own));
      const gathering = new Gathering();
      let usage: LanguageModelV4Usage | undefined;
      let delivery: Promise<void> | undefined;
      const end = (content: readonly LanguageModelV4Content[]) => {
        params.abortSignal?.removeEventListener("abort", stopped);
        return (delivery ??= deliver(content, usage));
      };
      // Nobody reads on then, and nobody is there to be told.
      const stopped = () =>
        void end(gathering.said).catch((error: unknown) => console.warn("a stopped answer is not stored:", error));
      const watch: Transformer<LanguageModelV4StreamPart, LanguageModelV4StreamPart> & { cancel(): Promise<void> } = {
        transform(part, controller) {
          gathering.add(part);
          if (part.type === "finish") usage = part.usage;
          const isStart = part.type === "stream-start";
          controller.enqueue(isStart ? { ...part, warnings: [...part.warnings, ...warnings] } : part);
        },
        flush: () => end(gathering.content),
        cancel: () => end(gathering.said),
      };
      params.abortSignal?.addEventListener("abort", stopped, { once: true });
      return { ...result, stream: result.stream.pipeThrough(new TransformStream(watch)) };
    },
  };
}

/**
 * Return a call of Responses that refers to nothing which only the provider stores: the SDK sends whole items then, what
 * the model thought among them, instead of references. Who asks for `store: true` gets it.
 */
function unstored(params: LanguageModelV4CallOptions, provider: string): LanguageModelV4CallOptions {
  const options = params.providerOptions ?? {};
  const own = provider.includes("azure") ? "azure" : provider.startsWith("xai") ? "xai" : "openai";
  const name = own in options ? own : own === "azure" && "openai" in options ? "openai" : own;
  const { previousResponseId, conversation } = options[name] ?? {};
  if (previousResponseId != null || conversation != null)
    throw new Error(
      "previousResponseId and conversation name a history that only the provider stores; Palimpsest gives the model the history: leave them out",
    );
  return { ...params, providerOptions: { ...options, [name]: { store: false, ...options[name] } } };
}

/**
 * Return a call with thinking disabled if its prompt ends within a tool loop in which nothing is there of what was thought:
 * a change before the loop has made that invalid, and Anthropic's API takes such a loop only so.
 */
function withoutLostThinking(params: LanguageModelV4CallOptions): LanguageModelV4CallOptions {
  const { anthropic } = params.providerOptions ?? {};
  const thinking = anthropic?.["thinking"] as { readonly type?: string } | undefined;
  if (thinking?.type !== "enabled" || params.prompt.at(-1)?.role !== "tool") return params;
  const isThought = (message: LanguageModelV4Message) =>
    message.role === "assistant" && message.content.some(({ type }) => type === "reasoning");
  const loop = params.prompt.slice(params.prompt.map(({ role }) => role).lastIndexOf("user") + 1);
  if (loop.some(isThought)) return params;
  const options = { ...params.providerOptions, anthropic: { ...anthropic, thinking: { type: "disabled" } } };
  return { ...params, providerOptions: options };
}

/** Say what of the conversation has no counterpart in the API of the model, where the SDK says such things. */
function warningsOf({ warnings }: Context<Shape>): SharedV4Warning[] {
  return warnings.flatMap((warning) =>
    typeof warning === "string"
      ? []
      : [{ type: "other", message: `Palimpsest leaves out of messages ${warning.seqs.join(", ")}: ${warning.what}` }],
  );
}
