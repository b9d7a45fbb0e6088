/** The Vercel AI SDK with the providers of Anthropic and OpenAI, over the API that the first argument names. */
import { createAnthropic } from "@ai-sdk/anthropic";
import { createOpenAI } from "@ai-sdk/openai";
import { generateText, jsonSchema, stepCountIs, streamText, tool } from "ai";
import { askAll, key, lookUp, schema, url } from "./questions.mjs";

const anthropic = createAnthropic({ baseURL: `${url}/v1`, apiKey: key });
const openai = createOpenAI({ baseURL: `${url}/v1`, apiKey: key });
const MODELS = {
  messages: anthropic("claude-haiku-4-5"),
  chat: openai.chat("gpt-5.6"),
  responses: openai.responses("gpt-5.6"),
};
const messages = [];

await askAll(async (question, stream) => {
  messages.push({ role: "user", content: question });
  const asked = {
    model: MODELS[process.argv[2]],
    system: "Be brief.",
    messages,
    tools: { look_up: tool({ inputSchema: jsonSchema(schema), execute: async (given) => lookUp(given) }) },
    stopWhen: stepCountIs(9),
    maxRetries: 0,
    providerOptions: {
      anthropic: { thinking: { type: "enabled", budgetTokens: 1024 } },
      // Else earlier answers are references to what the provider stores.
      openai: { store: false, include: ["reasoning.encrypted_content"] },
    },
  };
  // Tools are defined otherwise to Anthropic where it streams, which what it has thought before is bound to.
  const done = stream || process.argv[2] === "messages" ? streamText(asked) : await generateText(asked);
  const text = await done.text;
  messages.push(...(await done.responseMessages));
  return text;
});
