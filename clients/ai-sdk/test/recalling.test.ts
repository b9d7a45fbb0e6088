/** The recall tool under the AI SDK: a running API, and the model that PALIMPSEST_MODEL_URL names. */
import assert from "node:assert/strict";
import { test } from "node:test";
import { createAnthropic } from "@ai-sdk/anthropic";
import { generateText, stepCountIs, wrapLanguageModel } from "ai";
import { MockLanguageModelV4 } from "ai/test";
import { Client, RECALL_TOOL } from "palimpsest-context-client";
import { palimpsest, recallTool } from "../src/index.js";

const url = process.env["PALIMPSEST_URL"]!;
const key = process.env["PALIMPSEST_KEY"]!;
const anthropic = createAnthropic({ baseURL: `${process.env["PALIMPSEST_MODEL_URL"]}/v1`, apiKey: "any" });
const CODE = "The garage opens with 4711-B.";

async function begin() {
  const client = new Client(url, key);
  const { id } = await client.createConversation();
  await client.append(id, [{ role: "user", content: CODE }, { role: "assistant", content: "Noted." }]);
  return { client, id };
}

test("a model recalls what left its context", async () => {
  const { client, id } = await begin();
  const long = "lorem ipsum dolor sit amet ".repeat(30);
  const filler = Array.from({ length: 40 }, (_, at) => ({ role: at % 2 ? "assistant" : "user", content: long }) as const);
  await client.append(id, filler);
  const done = await generateText({
    model: wrapLanguageModel({ model: anthropic("claude-haiku-4-5"), middleware: palimpsest(client, id) }),
    tools: { recall: recallTool(client, id) },
    prompt: "How does the garage open?",
    stopWhen: stepCountIs(3),
    maxRetries: 0,
  });
  assert.equal(done.text, "It opens with 4711-B.");
  const { data } = await client.listMessages(id, { limit: 100 });
  const calls = data.at(-3)!.content as Record<string, unknown>[];
  assert.deepEqual(calls.map(({ type, name, input }) => ({ type, name, input })), [
    { type: "tool_use", name: "recall", input: { pattern: "(" } },
    { type: "tool_use", name: "recall", input: { query: "garage" } },
  ]);
  // Neither what the model asked nor what it was given is found again.
  const again = await client.recall(id, { query: "garage" });
  assert.deepEqual(new Set(again.passages.flatMap(({ parts }) => parts.map(({ kind }) => kind))), new Set(["text"]));
});

test("the tool is declared as the service has it", async () => {
  const { client, id } = await begin();
  const model = new MockLanguageModelV4({
    doGenerate: async () => ({
      content: [{ type: "text", text: "Well." }],
      usage: { inputTokens: { total: 1 }, outputTokens: { total: 1 } } as never,
      warnings: [],
      finishReason: { unified: "stop", raw: "stop" },
    }),
  });
  await generateText({ model, tools: { recall: recallTool(client, id) }, prompt: "Hello?" });
  const { name, description, input_schema: inputSchema } = RECALL_TOOL;
  assert.deepEqual(model.doGenerateCalls[0]!.tools, [{ type: "function", name, description, inputSchema }]);
});

test("a call while the service is away has a result that says so", async () => {
  const { id } = await begin();
  const away = recallTool(new Client("http://127.0.0.1:9", key), id);
  const replies = [
    [{ type: "tool-call" as const, toolCallId: "t1", toolName: "recall", input: '{"query":"garage"}' }],
    [{ type: "text" as const, text: "I can't look now." }],
  ];
  const model = new MockLanguageModelV4({
    doGenerate: async () => ({
      content: replies.shift()!,
      usage: { inputTokens: { total: 1 }, outputTokens: { total: 1 } } as never,
      warnings: [],
      finishReason: { unified: replies.length ? "tool-calls" : "stop", raw: undefined },
    }),
  });
  const done = await generateText({ model, tools: { recall: away }, prompt: "Hello?", stopWhen: stepCountIs(2) });
  assert.equal(done.text, "I can't look now.");
  const [result] = model.doGenerateCalls[1]!.prompt.at(-1)!.content as { output: { type: string; value: string } }[];
  assert.equal(result!.output.type, "error-text");
  assert.match(result!.output.value, /the service did not answer/);
});
