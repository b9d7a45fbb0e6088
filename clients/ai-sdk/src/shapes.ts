import type { LanguageModelV4Prompt, LanguageModelV4Usage } from "@ai-sdk/provider";
import type { MessageOf, Shape, UsageOf } from "palimpsest-context-client";
import { fromChat, toChat } from "./chat.js";
import { toPrompt, toStored } from "./messages.js";
import { fromItems, toItems } from "./responses.js";

/** How prompts are stored in a shape and made of what is served in it; providers are the SDK's (`openai.responses`). */
export interface Codec<S extends Shape> {
  readonly shape: S;
  /** by: the provider of the model that made the answers. */
  stored(prompt: LanguageModelV4Prompt, by?: string): MessageOf[S][];
  /** reader: the provider of the model that is to read it. */
  prompt(messages: readonly MessageOf[S][], reader?: string): LanguageModelV4Prompt;
  /** Return what a call counted; undefined where it counted nothing. */
  usage(usage: LanguageModelV4Usage): UsageOf<S> | undefined;
}

const MESSAGES: Codec<"messages"> = {
  shape: "messages",
  stored: toStored,
  prompt: toPrompt,
  usage({ inputTokens, outputTokens }) {
    if (inputTokens.total === undefined) return undefined;
    const { cacheRead, cacheWrite, total } = inputTokens;
    // What is not counted is left out: 0 says that nothing came from a cache.
    return {
      input_tokens: inputTokens.noCache ?? total - (cacheRead ?? 0) - (cacheWrite ?? 0),
      ...(cacheRead !== undefined && { cache_read_input_tokens: cacheRead }),
      ...(cacheWrite !== undefined && { cache_creation_input_tokens: cacheWrite }),
      output_tokens: outputTokens.total ?? 0,
    };
  },
};

const CHAT: Codec<"chat"> = {
  shape: "chat",
  stored: toChat,
  prompt: fromChat,
  usage({ inputTokens, outputTokens }) {
    if (inputTokens.total === undefined) return undefined;
    const details = { reasoning_tokens: outputTokens.reasoning ?? 0 };
    return {
      prompt_tokens: inputTokens.total,
      completion_tokens: outputTokens.total ?? 0,
      completion_tokens_details: details,
    };
  },
};

const RESPONSES: Codec<"responses"> = {
  shape: "responses",
  stored: toItems,
  prompt: fromItems,
  usage({ inputTokens, outputTokens }) {
    if (inputTokens.total === undefined) return undefined;
    const details = { reasoning_tokens: outputTokens.reasoning ?? 0 };
    return { input_tokens: inputTokens.total, output_tokens: outputTokens.total ?? 0, output_tokens_details: details };
  },
};

/** Return the shape of a provider's API by its name: `openai.responses`, `openai.chat`, `anthropic.messages`. */
export function codecOf(provider: string): Codec<Shape> {
  const api = provider.split(".").at(-1);
  return (api === "responses" ? RESPONSES : api === "chat" ? CHAT : MESSAGES) as Codec<Shape>;
}
