/** Recall against a running API, and by the model that PALIMPSEST_MODEL_URL names; tests/clients starts both. */
import assert from "node:assert/strict";
import { test } from "node:test";
import { ApiError, Client, type Message, RECALL_TOOL, type RecallCall, UnreachableError } from "../src/index.js";

const url = process.env["PALIMPSEST_URL"]!;
const key = process.env["PALIMPSEST_KEY"]!;
const model = process.env["PALIMPSEST_MODEL_URL"]!;
const CODE = "The garage opens with 4711-B.";

const user = (content: unknown): Message => ({ role: "user", content });

async function begin() {
  const client = new Client(url, key);
  const { id } = await client.createConversation();
  await client.append(id, [user(CODE), { role: "assistant", content: "Noted." }]);
  return { client, id };
}

test("originals come back by each way of asking", async () => {
  const { client, id } = await begin();
  for (const asked of [{ query: "garages" }, { ref: "m0" }, { pattern: "\\d{4}-B" }]) {
    const found = await client.recall(id, asked);
    assert.equal(found.passages[0]!.parts[0]!.text, CODE);
    assert.equal(found.passages[0]!.in_context, true);
  }
  await assert.rejects(client.recall(id, { query: "a", ref: "m0" }), (error: ApiError) => error.pointer === "/ref");
});

test("what was said to a user comes back to a key that may", async () => {
  const { client } = await begin();
  const { id } = await client.createConversation({ user_ref: "anna/ts" });
  await client.append(id, [user(CODE)]);
  await assert.rejects(client.recallUser("anna/ts", { query: "garage" }), (error: ApiError) => error.status === 403);
  const headers = { authorization: `Bearer ${key}`, "content-type": "application/json" };
  const body = JSON.stringify({ name: "reader", scopes: ["recall:user"] });
  const made = (await (await fetch(`${url}/v1/keys`, { method: "POST", headers, body })).json()) as { key: string };
  const found = await new Client(url, made.key).recallUser("anna/ts", { query: "garage" });
  assert.equal(found.passages[0]!.ref, `${id}:m0`);
  assert.equal(found.passages[0]!.conversation_id, id);
});

test("the tool is the service's, in each shape", async () => {
  const client = new Client(url, key);
  assert.deepEqual(await client.recallTool(), RECALL_TOOL);
  const { name, description, input_schema: parameters } = RECALL_TOOL;
  assert.deepEqual(await client.recallTool("responses"), { type: "function", name, description, parameters });
  const chat = await client.recallTool("chat");
  assert.deepEqual(chat, { type: "function", function: { name, description, parameters } });
});

const query = { query: "garage" };
const CALLS: [call: RecallCall, bad: RecallCall, id: string, at: string][] = [
  [
    { type: "tool_use", id: "c1", input: { ...query, why: "x", ref: null } },
    { type: "tool_use", id: "c1", input: { pattern: "(" } },
    "tool_use_id",
    "content",
  ],
  [
    { type: "function_call", call_id: "c1", arguments: JSON.stringify(query) },
    { type: "function_call", call_id: "c1", arguments: "[]" },
    "call_id",
    "output",
  ],
  [
    { type: "function", id: "c1", function: { arguments: JSON.stringify(query) } },
    { type: "function", id: "c1", function: { arguments: "{" } },
    "tool_call_id",
    "content",
  ],
];
for (const [call, bad, name, at] of CALLS)
  test(`a model's call is answered in its shape: ${call.type}`, async () => {
    const { client, id } = await begin();
    const result: Record<string, unknown> = await client.answerRecall(id, call, { maxTokens: 500 });
    assert.equal(result[name], "c1");
    assert.match(String(result[at]), /^<recalled refs="m0-m1">\n/);
    assert.ok(String(result[at]).includes(CODE));
    assert.ok(!("is_error" in result));
    const refused: Record<string, unknown> = await client.answerRecall(id, bad);
    assert.equal(refused[name], "c1");
    assert.match(String(refused[at]), /regular expression|Exactly one of/);
    assert.equal("is_error" in refused, bad.type === "tool_use");
  });

test("what is no fault of the call throws", async () => {
  const { client, id } = await begin();
  const call = { type: "tool_use", id: "c1", input: query } as const;
  await assert.rejects(client.answerRecall("conv_none", call), (error: ApiError) => error.status === 404);
  const other = new Client(url, key, { fetch: async () => new Response("{}") });
  await assert.rejects(other.answerRecall(id, call), UnreachableError);
});

type Block = { type: "text"; text: string } | { type: "tool_use"; id: string; name: string; input: unknown };

/** Call the model over the Messages API. */
async function ask(messages: readonly Message[]): Promise<Block[]> {
  const response = await fetch(`${model}/v1/messages`, {
    method: "POST",
    headers: { "content-type": "application/json", "x-api-key": "any", "anthropic-version": "2023-06-01" },
    body: JSON.stringify({ model: "any", max_tokens: 100, tools: [RECALL_TOOL], messages }),
  });
  if (!response.ok) throw new Error(await response.text());
  return ((await response.json()) as { content: Block[] }).content;
}

test("a model recalls what left its context", async () => {
  const { client, id } = await begin();
  const long = "lorem ipsum dolor sit amet ".repeat(30);
  await client.append(id, Array.from({ length: 40 }, (_, at) => ({ role: at % 2 ? "assistant" : "user", content: long }) as const));
  let fresh: Message[] = [user("How does the garage open?")];
  let content: Block[] = [];
  while (fresh.length) {
    ({ result: content } = await client.callModel(id, ({ messages }) => ask([...messages, ...fresh])));
    await client.deliver(id, [...fresh, { role: "assistant", content }]);
    const calls = content.filter((block) => block.type === "tool_use");
    const results = await Promise.all(calls.map((call) => client.answerRecall(id, call)));
    fresh = results.length ? [user(results)] : [];
  }
  assert.deepEqual(content, [{ type: "text", text: "It opens with 4711-B." }]);
  // Neither what the model asked nor what it was given is found again.
  const again = await client.recall(id, { query: "garage" });
  assert.deepEqual(new Set(again.passages.flatMap(({ parts }) => parts.map(({ kind }) => kind))), new Set(["text"]));
});
