/**
 * Conversations with the models of both providers, over the threshold, so that what is sent is a compacted context. The
 * model (PALIMPSEST_EVERY_API_URL) refuses what the APIs refuse: a field of the adapter's own too, and thinking that is
 * not where it was.
 */
import assert from "node:assert/strict";
import { test } from "node:test";
import { createAnthropic } from "@ai-sdk/anthropic";
import { createOpenAI } from "@ai-sdk/openai";
import type { LanguageModelV4, LanguageModelV4Middleware } from "@ai-sdk/provider";
import { generateText, jsonSchema, stepCountIs, streamText, tool, wrapLanguageModel } from "ai";
import { Client } from "palimpsest-context-client";
import { palimpsest, recallTool } from "../src/index.js";

const url = process.env["PALIMPSEST_URL"]!;
const key = process.env["PALIMPSEST_KEY"]!;
const models = process.env["PALIMPSEST_EVERY_API_URL"]!;
/** What was sent last. */
let sent = "";
const watching: typeof fetch = (input, init) => {
  sent = String(init?.body);
  return fetch(input, init);
};
const openai = createOpenAI({ baseURL: `${models}/v1`, apiKey: "any", fetch: watching });
const anthropic = createAnthropic({ baseURL: `${models}/v1`, apiKey: "any", fetch: watching });
const MODELS = {
  messages: anthropic("claude-haiku-4-5"),
  chat: openai.chat("gpt-5.4"),
  responses: openai("gpt-5.4"),
} satisfies Record<string, LanguageModelV4>;
type Name = keyof typeof MODELS;
const NAMES = Object.keys(MODELS) as Name[];

const THINKING = { anthropic: { thinking: { type: "enabled", budgetTokens: 1024 } } } as const;
const POLICY = { input_token_budget: 2_000, compaction_threshold_tokens: 2_500, min_savings_tokens: 100 };
const lookup = tool({
  inputSchema: jsonSchema<{ key: string }>({ type: "object", properties: { key: { type: "string" } } }),
  execute: async ({ key: given }) => ({ given, rows: "a long row of the table, ".repeat(120) }),
});

async function begin() {
  const client = new Client(url, key);
  return { client, id: (await client.createConversation({ policy: POLICY })).id };
}

/** Have done what workers do for a conversation. */
async function check(conversation: string) {
  const done = await fetch(`${models}/check`, { method: "POST", body: JSON.stringify({ conversation }) });
  assert.ok(done.ok);
}

async function stored(client: Client, id: string) {
  return (await client.listMessages(id, { limit: 100 })).data;
}

type Asking = Parameters<typeof generateText>[0];

function around(name: Name, middleware: LanguageModelV4Middleware) {
  return wrapLanguageModel({ model: MODELS[name], middleware });
}

function asking(name: Name, middleware: LanguageModelV4Middleware, prompt: string) {
  const model = around(name, middleware);
  return { model, prompt, tools: { lookup }, stopWhen: stepCountIs(9), maxRetries: 0, providerOptions: THINKING };
}

async function generate(client: Client, id: string, name: Name, prompt: string, more: Partial<Asking> = {}) {
  return (await generateText({ ...asking(name, palimpsest(client, id), prompt), ...(more as object) })).text;
}

async function stream(client: Client, id: string, name: Name, prompt: string) {
  const result = streamText(asking(name, palimpsest(client, id), prompt));
  let text = "";
  for await (const part of result.fullStream) {
    if (part.type === "error") throw part.error;
    if (part.type === "text-delta") text += part.text;
  }
  return text;
}

for (const name of NAMES)
  for (const [how, ask] of Object.entries({ generate, stream }))
    test(`${name}, ${how}: a conversation over the threshold`, async () => {
      const { client, id } = await begin();
      for (let at = 1; at <= 4; at++) {
        assert.equal(await ask(client, id, name, `Look it up in 2 rounds, at once, ${at}.`), "Done after 4.");
        await check(id);
      }
      const { head_version, shape } = await client.getConversation(id);
      assert.equal(shape, name);
      assert.ok(head_version > 0);
      assert.equal(await ask(client, id, name, "And now?"), "Done after 0.");
    });

test("a conversation goes from provider to provider", async () => {
  const { client, id } = await begin();
  for (const name of [...NAMES, ...[...NAMES].reverse(), "messages", "responses"] as Name[]) {
    assert.equal(await generate(client, id, name, "Look it up in 2 rounds."), "Done after 2.");
    await check(id);
  }
  assert.ok((await client.getConversation(id)).head_version > 0);
});

for (const first of NAMES)
  for (const second of NAMES.filter((name) => name !== first))
    test(`the model changes within a tool loop: ${first} to ${second} and back`, async () => {
      const { client, id } = await begin();
      const middleware = palimpsest(client, id);
      const prepareStep = ({ stepNumber }: { stepNumber: number }) => ({
        model: around(stepNumber % 2 ? second : first, middleware),
        // The Messages API wants a loop to begin with thinking if there is any in it.
        providerOptions: {},
      });
      const { text } = await generateText({ ...asking(first, middleware, "Look it up in 4 rounds, at once."), prepareStep, providerOptions: {} });
      assert.equal(text, "Done after 8.");
      await check(id);
      assert.equal(await generate(client, id, second, "And now?"), "Done after 0.");
      const shapes = (await stored(client, id)).slice(0, 5).map((message) => message.shape);
      assert.ok(shapes.includes(first) && shapes.includes(second), String(shapes));
    });

test("encrypted reasoning is stored whole and in its place, and a stream's as well", async () => {
  for (const ask of [generate, stream]) {
    const { client, id } = await begin();
    await ask(client, id, "responses", "Look it up in 1 round.");
    const originals = (await stored(client, id)).map((message) => message.original as Record<string, unknown>);
    assert.deepEqual(
      originals.map((item) => item["type"]),
      ["message", "reasoning", "function_call", "function_call_output", "reasoning", "message"],
    );
    const [, reasoning, call] = originals;
    assert.match(String(reasoning!["id"]), /^rs_\d+$/);
    assert.match(String(reasoning!["encrypted_content"]), /^gAAA-\d+$/);
    assert.deepEqual(reasoning!["summary"], []);
    assert.match(String(call!["id"]), /^it_\d+$/);
    assert.deepEqual([call!["name"], call!["arguments"]], ["lookup", '{"key":"k0"}']);
    assert.ok(!JSON.stringify(originals).includes("ai_sdk"));
    const { messages } = await client.context(id, { shape: "responses" });
    assert.deepEqual(messages, originals);
  }
});

test("signed thinking is stored as the Messages API has it", async () => {
  const { client, id } = await begin();
  await generate(client, id, "messages", "Look it up in 1 round.");
  const contents = (await stored(client, id)).map((message) => message.content as Record<string, unknown>[]);
  assert.deepEqual(
    contents.map((content) => content.map(({ type }) => type)),
    [["text"], ["thinking", "tool_use"], ["tool_result"], ["thinking", "text"]],
  );
  // The caller of a tool is provider metadata; the call is a call all the same.
  const { ai_sdk: _, ...call } = contents[1]![1]!;
  assert.deepEqual({ ...call, id: "" }, { type: "tool_use", id: "", name: "lookup", input: { key: "k0" } });
});

test("Anthropic's prompt cache gets its marks in the history, and no other provider's does", async () => {
  const { client, id } = await begin();
  const middleware = () => palimpsest(client, id, { cacheBreakpoints: 2 });
  const marks = () => sent.split('"cache_control":{"type":"ephemeral"}').length - 1;
  for (const expected of [0, 1, 2]) {
    await generateText(asking("messages", middleware(), "And now?"));
    assert.ok(marks() <= 2 && (marks() > 0) === expected > 0, `${expected}: ${sent}`);
    await check(id);
  }
  await generateText(asking("chat", middleware(), "And now?"));
  assert.equal(marks(), 0);
});

test("what the provider would have to store is not referred to", async () => {
  const { client, id } = await begin();
  for (const named of [{ previousResponseId: "resp_1" }, { conversation: "conv_1" }])
    await assert.rejects(
      generate(client, id, "responses", "Hello?", { providerOptions: { openai: named } }),
      /previousResponseId and conversation name a history that only the provider stores/,
    );
  assert.deepEqual(await stored(client, id), []);
});

test("what has no counterpart is a warning of the SDK's", async () => {
  const { client, id } = await begin();
  await generate(client, id, "responses", "Look it up in 1 round.");
  const { warnings } = await generateText(asking("messages", palimpsest(client, id), "And now?"));
  assert.deepEqual(warnings, [
    { type: "other", message: "Palimpsest leaves out of messages 1, 4: reasoning, which only the model that wrote it can read" },
  ]);
});

for (const name of NAMES)
  test(`${name}: a model recalls what left its context, and its call is known as one`, async () => {
    const { client, id } = await begin();
    await client.append(id, [{ role: "user", content: "The garage opens with 4711-B." }, { role: "assistant", content: "Noted." }]);
    const long = "lorem ipsum dolor sit amet ".repeat(30);
    const filler = Array.from({ length: 40 }, (_, at) => ({ role: at % 2 ? "assistant" : "user", content: long }) as const);
    await client.append(id, filler);
    await client.overflow(id, { error: "prompt is too long: 9000 tokens > 3000 maximum" });
    const { text } = await generateText({
      ...asking(name, palimpsest(client, id), "How does the garage open?"),
      tools: { recall: recallTool(client, id) },
    });
    assert.equal(text, "It opens with 4711-B.");
    // Neither what the model asked nor what it was given is found again.
    const { passages } = await client.recall(id, { query: "garage" });
    const kinds = passages.flatMap(({ parts }) => parts.map(({ kind }) => kind));
    assert.deepEqual(new Set(kinds), new Set(["text"]));
  });

test("an image is seen by every model after the one that was given it", async () => {
  const { client, id } = await begin();
  const PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg==";
  const content = [
    { type: "text" as const, text: "What is it?" },
    { type: "file" as const, mediaType: "image/png", data: PIXEL },
  ];
  const { prompt: _, ...others } = asking("responses", palimpsest(client, id), "");
  await generateText({ ...others, messages: [{ role: "user", content }] });
  for (const name of NAMES) {
    await generate(client, id, name, "And in another word?");
    assert.ok(sent.includes(PIXEL), name);
  }
});

test("a tool loop that is too long again goes on without what was thought in it", async () => {
  for (const name of NAMES) {
    const { client } = await begin();
    const { id } = await client.createConversation({});
    for (let at = 0; at < 4; at++)
      await client.append(id, [{ role: "user", content: "long ".repeat(4_800) }, { role: "assistant", content: "Yes." }]);
    const { text } = await generateText(asking(name, palimpsest(client, id), "Look it up in 2 rounds."));
    assert.equal(text, "Done after 2.");
    assert.ok((await client.context(id)).version > 1, name);
  }
});

test("a prompt that is too long is sent again as a smaller one", async () => {
  for (const name of NAMES) {
    const { client, id } = await begin();
    for (let at = 0; at < 6; at++)
      await client.append(id, [{ role: "user", content: "q ".repeat(4_000) }, { role: "assistant", content: "a ".repeat(4_000) }]);
    const { text } = await generateText(asking(name, palimpsest(client, id), "And now?"));
    assert.equal(text, "Done after 0.");
  }
});
