/** The middleware under the AI SDK, against a running API, which PALIMPSEST_URL and PALIMPSEST_KEY name. */
import assert from "node:assert/strict";
import { getEventListeners } from "node:events";
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

/** A model whose answer has two parts of text, and nothing behind them until it is stopped. */
function endless() {
  return new MockLanguageModelV4({
    doStream: async ({ abortSignal }) => {
      const begun: LanguageModelV4StreamPart[] = [
        { type: "stream-start", warnings: [] },
        { type: "text-start", id: "1" },
        { type: "text-delta", id: "1", delta: "as far " },
        { type: "text-delta", id: "1", delta: "as it came" },
      ];
      const stream = new ReadableStream<LanguageModelV4StreamPart>({
        start(controller) {
          for (const part of begun) controller.enqueue(part);
          abortSignal?.addEventListener("abort", () => controller.error(abortSignal.reason));
        },
      });
      return { stream };
    },
  });
}

test("a stream that is stopped", async () => {
  const { client, id } = await begin();
  const abort = new AbortController();
  const result = streamText({ model: around(endless(), client, id), prompt: "Say it.", abortSignal: abort.signal });
  let text = "";
  for await (const part of result.textStream) if ((text += part).endsWith("came")) abort.abort();
  await client.flush();
  const said = [
    { role: "user", content: [{ type: "text", text: "Say it." }] },
    { role: "assistant", content: [{ type: "text", text }] },
  ];
  assert.deepEqual(await stored(client, id), said);
  // A signal that outlives the stream is left alone.
  const { signal } = new AbortController();
  await streamText({ model: around(scripted([]).model, client, id), prompt: "And again.", abortSignal: signal }).consumeStream();
  assert.deepEqual(getEventListeners(signal, "abort"), []);
  // By somebody who takes the stream itself, and has no signal.
  const { client: other, id: otherId } = await begin();
  const own = around(endless(), other, otherId);
  const prompt = [{ role: "user" as const, content: [{ type: "text" as const, text: "Say it." }] }];
  const reader = (await own.doStream({ prompt })).stream.getReader();
  for (let count = 0; count < 4; count++) await reader.read();
  await reader.cancel();
  assert.deepEqual(await stored(other, otherId), said);
});

test("a request that is stopped while its tools run", async () => {
  const { client, id } = await begin();
  const call: Reply = ["t1", "t2"].map((toolCallId) => ({ type: "tool-call", toolCallId, toolName: "weather", input: "{}" }));
  const abort = new AbortController();
  const { model, prompts } = scripted([call, say("Here.")]);
  const weather = tool({
    inputSchema: jsonSchema<object>({ type: "object" }),
    execute: async (_, { toolCallId }) => {
      if (toolCallId === "t2") abort.abort();
      abort.signal.throwIfAborted();
      return "rain";
    },
  });
  const asked = { tools: { weather }, stopWhen: stepCountIs(2), prompt: "Weather?", abortSignal: abort.signal };
  await assert.rejects(generateText({ model: around(model, client, id), ...asked }));
  await generateText({ model: around(model, client, id), prompt: "Then tell me a joke." });
  const results = prompts[1]!.flatMap(({ role, content }) => (role === "tool" ? content : []));
  assert.deepEqual(results.map((part) => part.type === "tool-result" && [part.toolCallId, part.output.type]), [
    ["t1", "error-text"],
    ["t2", "error-text"],
  ]);
  assert.deepEqual(prompts[1]!.map(({ role }) => role), ["user", "assistant", "tool", "user"]);
  const kept = await client.context(id);
  assert.deepEqual([kept.warnings, kept.messages.length], [[], 5]);
});

test("texts that cannot be stored as they are", async () => {
  const { client, id } = await begin();
  const { model } = scripted([[{ type: "tool-call", toolCallId: "t1", toolName: "weather", input: "{}" }], say("\n")]);
  const weather = tool({ inputSchema: jsonSchema<object>({ type: "object" }), execute: async () => "\0rain \ud83d \ud83c\udf27" });
  await generateText({ model: around(model, client, id), prompt: "Weather?", tools: { weather }, stopWhen: stepCountIs(2) });
  assert.deepEqual((await stored(client, id)).slice(2), [
    { role: "user", content: [{ type: "tool_result", tool_use_id: "t1", content: "\ufffdrain \ufffd \ud83c\udf27" }] },
  ]);
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
