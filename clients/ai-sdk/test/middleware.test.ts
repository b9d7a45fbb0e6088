/** The middleware under the AI SDK, against a running API, which PALIMPSEST_URL and PALIMPSEST_KEY name. */
import assert from "node:assert/strict";
import { test } from "node:test";
import type { LanguageModelV4CallOptions, LanguageModelV4GenerateResult, LanguageModelV4StreamPart } from "@ai-sdk/provider";
import { generateText, jsonSchema, stepCountIs, streamText, tool, wrapLanguageModel } from "ai";
import { MockLanguageModelV4, simulateReadableStream } from "ai/test";
import { Client } from "palimpsest-context-client";
import { type PalimpsestOptions, palimpsest, toPrompt, toStored } from "../src/index.js";

const url = process.env["PALIMPSEST_URL"]!;
const key = process.env["PALIMPSEST_KEY"]!;
const usage = {
  inputTokens: { total: 30, noCache: 10, cacheRead: 15, cacheWrite: 5 },
  outputTokens: { total: 4, text: 4, reasoning: 0 },
};

type Reply = LanguageModelV4GenerateResult["content"] | Error;

/** A model that gives these replies one after the other, and remembers its prompts. */
function scripted(replies: Reply[]) {
  const prompts: LanguageModelV4CallOptions["prompt"][] = [];
  const model = new MockLanguageModelV4({
    doGenerate: async ({ prompt }) => {
      prompts.push(prompt);
      const content = replies.shift()!;
      if (content instanceof Error) throw content;
      const unified = content.some((part) => part.type === "tool-call") ? "tool-calls" : "stop";
      return { content, usage, warnings: [], finishReason: { unified, raw: unified } };
    },
    doStream: async ({ prompt }) => {
      prompts.push(prompt);
      const chunks: LanguageModelV4StreamPart[] = [
        { type: "stream-start", warnings: [] },
        { type: "text-start", id: "1" },
        { type: "text-delta", id: "1", delta: "in two " },
        { type: "text-delta", id: "1", delta: "parts" },
        { type: "text-end", id: "1" },
        { type: "finish", usage, finishReason: { unified: "stop", raw: "stop" } },
      ];
      return { stream: simulateReadableStream({ chunks }) };
    },
  });
  return { model, prompts };
}

async function begin() {
  const client = new Client(url, key);
  return { client, id: (await client.createConversation()).id };
}

const say = (text: string): Reply => [{ type: "text", text }];
const around = (model: MockLanguageModelV4, client: Client, id: string, options: PalimpsestOptions = {}) =>
  wrapLanguageModel({ model, middleware: palimpsest(client, id, options) });
const stored = async (client: Client, id: string) =>
  (await client.listMessages(id, { limit: 100 })).data.map(({ role, content }) => ({ role, content }));

test("a tool, then an answer, then a second request with the history of the first", async () => {
  const { client, id } = await begin();
  const call: Reply = [
    { type: "text", text: "Let me look." },
    { type: "tool-call", toolCallId: "t1", toolName: "weather", input: '{"city":"Oslo"}' },
  ];
  const { model, prompts } = scripted([call, say("It rains."), say("Take one.")]);
  const tools = {
    weather: tool({
      inputSchema: jsonSchema<{ city: string }>({ type: "object", properties: { city: { type: "string" } } }),
      execute: async ({ city }) => ({ city, sky: "rain" }),
    }),
  };
  const first = await generateText({
    model: around(model, client, id),
    instructions: "Be brief.",
    prompt: "Weather in Oslo?",
    tools,
    stopWhen: stepCountIs(3),
  });
  assert.equal(first.text, "It rains.");
  assert.deepEqual(await stored(client, id), [
    { role: "user", content: [{ type: "text", text: "Weather in Oslo?" }] },
    {
      role: "assistant",
      content: [
        { type: "text", text: "Let me look." },
        { type: "tool_use", id: "t1", name: "weather", input: { city: "Oslo" } },
      ],
    },
    { role: "user", content: [{ type: "tool_result", tool_use_id: "t1", content: '{"city":"Oslo","sky":"rain"}' }] },
    { role: "assistant", content: [{ type: "text", text: "It rains." }] },
  ]);
  assert.equal((await client.context(id)).tokens?.measured, 30);
  await generateText({ model: around(model, client, id), instructions: "Be brief.", prompt: "An umbrella?" });
  assert.deepEqual(
    prompts[2]!.map((message) => message.role),
    ["system", "user", "assistant", "tool", "assistant", "user"],
  );
  assert.deepEqual(toStored(prompts[2]!).slice(0, 4), await stored(client, id).then((all) => all.slice(0, 4)));
  assert.equal((await stored(client, id)).length, 6);
});

test("a stream", async () => {
  const { client, id } = await begin();
  const { model } = scripted([]);
  const result = streamText({ model: around(model, client, id), prompt: "Say it." });
  let text = "";
  for await (const part of result.textStream) text += part;
  assert.equal(text, "in two parts");
  assert.deepEqual((await stored(client, id)).at(-1), {
    role: "assistant",
    content: [{ type: "text", text: "in two parts" }],
  });
});

test("a compacted context takes the place of the whole history", async () => {
  const { client, id } = await begin();
  const text = "lorem ipsum dolor sit amet ".repeat(30);
  const all = Array.from({ length: 40 }, (_, at) => ({ role: at % 2 ? "assistant" : "user", content: text }) as const);
  await client.append(id, all);
  const { model, prompts } = scripted([
    new Error("prompt is too long: 10000 tokens > 8000 maximum"),
    say("Here."),
  ]);
  const messages = [...all, { role: "user" as const, content: "and now?" }];
  await generateText({ model: around(model, client, id, { stored: all.length }), messages, maxRetries: 0 });
  assert.equal(prompts[0]!.length, 41);
  assert.ok(prompts[1]!.length < 41);
  assert.deepEqual(prompts[1]!.at(-1)!.content, prompts[0]!.at(-1)!.content);
  assert.equal((await stored(client, id)).length, 42);
});

test("the service is away", async () => {
  const { id } = await begin();
  const away = new Client("http://127.0.0.1:9", key);
  const { model, prompts } = scripted([say("Still here."), say("And here.")]);
  await assert.rejects(generateText({ model: around(model, away, id), prompt: "Hello?", maxRetries: 0 }));
  const old = [{ role: "user" as const, content: [{ type: "text" as const, text: "before" }] }];
  const done = await generateText({ model: around(model, away, id, { fallback: () => old }), prompt: "Hello?" });
  assert.equal(done.text, "Still here.");
  assert.deepEqual(toStored(prompts[0]!).map((message) => message.role), ["user", "user"]);
  assert.equal(away.outbox.size, 1);
});

test("what the Messages API has no block for comes back as it was", () => {
  const prompt: LanguageModelV4CallOptions["prompt"] = [
    { role: "user", content: [{ type: "file", mediaType: "image/png", data: { type: "data", data: "aGk=" } }] },
    { role: "assistant", content: [{ type: "reasoning", text: "hm", providerOptions: { anthropic: { signature: "s" } } }] },
  ];
  assert.deepEqual(toPrompt(toStored(prompt)), prompt);
});
