/**
 * Conversations of three APIs by their own SDKs, over the threshold, so that what is sent is a compacted context. The
 * model (PALIMPSEST_EVERY_API_URL) refuses what the APIs refuse.
 */
import assert from "node:assert/strict";
import { test } from "node:test";
import Anthropic from "@anthropic-ai/sdk";
import OpenAI from "openai";
import type { ChatCompletionMessageParam, ChatCompletionTool } from "openai/resources/chat/completions";
import type { ResponseInput, ResponseInputItem } from "openai/resources/responses/responses";
import { Client, type KeptTurn, type Message, Outbox, UnreachableError, isTooLong } from "../src/index.js";

const url = process.env["PALIMPSEST_URL"]!;
const key = process.env["PALIMPSEST_KEY"]!;
const models = process.env["PALIMPSEST_EVERY_API_URL"]!;
const openai = new OpenAI({ baseURL: `${models}/v1`, apiKey: "any", maxRetries: 0 });
const anthropic = new Anthropic({ baseURL: models, apiKey: "any", maxRetries: 0 });

const POLICY = { input_token_budget: 2_000, compaction_threshold_tokens: 2_500, min_savings_tokens: 100 };
const PARAMETERS = { type: "object" as const, properties: { key: { type: "string" } } };
const RESULT = (given: string) => `${given}: ${"a long row of the table, ".repeat(120)}`;
const CHAT_TOOLS: ChatCompletionTool[] = [{ type: "function", function: { name: "lookup", parameters: PARAMETERS } }];

/** A user's request, answered by its API: every message that it made goes with the next call, and is stored. */
type Ask = (client: Client, id: string, question: string) => Promise<string>;

const chat: Ask = async (client, id, question) => {
  let fresh: ChatCompletionMessageParam[] = [{ role: "user", content: question }];
  for (;;) {
    const { result, context } = await client.callModel(
      id,
      ({ messages }) =>
        openai.chat.completions.create({
          model: "gpt-5.4",
          messages: [...(messages as ChatCompletionMessageParam[]), ...fresh],
          tools: CHAT_TOOLS,
        }),
      { shape: "chat" },
    );
    const { message } = result.choices[0]!;
    const options = { shape: "chat", usage: result.usage!, snapshot_version: context.version } as const;
    await client.deliver(id, [...fresh, message], options);
    if (!message.tool_calls) return message.content!;
    fresh = message.tool_calls.map((call) => {
      const given = call.type === "function" ? call.function.arguments : "";
      return { role: "tool", tool_call_id: call.id, content: RESULT(given) };
    });
  }
};

const responses: Ask = async (client, id, question) => {
  let fresh: ResponseInput = [{ role: "user", content: question }];
  for (;;) {
    const { result, context } = await client.callModel(
      id,
      ({ messages }) =>
        openai.responses.create({
          model: "gpt-5.4",
          input: [...(messages as ResponseInput), ...fresh],
          tools: [{ type: "function", name: "lookup", parameters: PARAMETERS, strict: false }],
          store: false,
          include: ["reasoning.encrypted_content"],
        }),
      { shape: "responses" },
    );
    const options = { shape: "responses", usage: result.usage!, snapshot_version: context.version } as const;
    await client.deliver(id, [...fresh, ...(result.output as ResponseInputItem[])], options);
    const calls = result.output.filter((item) => item.type === "function_call");
    if (!calls.length) return result.output_text;
    fresh = calls.map((call) => ({ type: "function_call_output", call_id: call.call_id, output: RESULT(call.arguments) }));
  }
};

const messages: Ask = async (client, id, question) => {
  let fresh: Message[] = [{ role: "user", content: question }];
  for (;;) {
    const { result, context } = await client.callModel(
      id,
      (found) =>
        anthropic.messages.create({
          model: "claude-haiku-4-5",
          max_tokens: 4096,
          thinking: { type: "enabled", budget_tokens: 1024 },
          messages: [...found.messages, ...fresh] as Anthropic.MessageParam[],
          tools: [{ name: "lookup", input_schema: PARAMETERS }],
        }),
      { shape: "messages" },
    );
    const options = { usage: result.usage, snapshot_version: context.version };
    await client.deliver(id, [...fresh, { role: "assistant" as const, content: result.content }], options);
    const calls = result.content.filter((block) => block.type === "tool_use");
    if (!calls.length) return result.content.map((block) => (block.type === "text" ? block.text : "")).join("");
    const results = calls.map((call) => {
      return { type: "tool_result" as const, tool_use_id: call.id, content: RESULT(JSON.stringify(call.input)) };
    });
    fresh = [{ role: "user", content: results }];
  }
};

async function begin(outbox = new Outbox()) {
  const client = new Client(url, key, { outbox });
  return { client, id: (await client.createConversation({ policy: POLICY })).id };
}

/** Have done what workers do for a conversation. */
async function check(conversation: string) {
  const done = await fetch(`${models}/check`, { method: "POST", body: JSON.stringify({ conversation }) });
  assert.ok(done.ok);
}

const ASKS = { messages, chat, responses };

for (const [name, ask] of Object.entries(ASKS))
  test(`${name}: a conversation over the threshold`, async () => {
    const { client, id } = await begin();
    for (let at = 1; at <= 5; at++) {
      assert.equal(await ask(client, id, `Look it up in 2 rounds, at once, ${at}.`), "Done after 4.");
      await check(id);
    }
    const { head_version, shape, context_tokens } = await client.getConversation(id);
    assert.equal(shape, name);
    assert.ok(head_version > 0 && context_tokens < 4_000, `${head_version} ${context_tokens}`);
    assert.equal(await ask(client, id, "And now?"), "Done after 0.");
  });

test("a conversation goes from API to API, in any order", async () => {
  const { client, id } = await begin();
  for (const ask of [chat, responses, messages, chat, messages, responses, chat]) {
    assert.equal(await ask(client, id, "Look it up in 2 rounds."), "Done after 2.");
    await check(id);
  }
  assert.ok((await client.getConversation(id)).head_version > 0);
});

test("what has no counterpart is named", async () => {
  const { client, id } = await begin();
  await responses(client, id, "Look it up in 1 round.");
  assert.deepEqual((await client.context(id, { shape: "responses" })).warnings, []);
  const [warning] = (await client.context(id, { shape: "chat" })).warnings;
  assert.deepEqual(typeof warning === "object" && [warning.code, warning.seqs], ["left_out", [1, 4]]);
});

test("a context is remembered by its shape", async () => {
  const { client, id } = await begin();
  await client.append(id, [{ role: "user", content: "hi" }]);
  const seen: (string | undefined)[] = [];
  const counting = new Client(url, key, {
    fetch: async (input, init) => {
      const response = await fetch(input, init);
      seen.push(`${new URL(String(input)).searchParams.get("shape")} ${response.status}`);
      return response;
    },
  });
  for (const shape of [undefined, "chat", "responses", "chat", "responses", undefined] as const) {
    const context = await counting.context(id, shape ? { shape } : {});
    assert.equal(context.messages.length, 1);
  }
  assert.deepEqual(seen, ["null 200", "chat 200", "responses 200", "chat 304", "responses 304", "null 304"]);
});

test("a payload and a smaller context are of the shape that is asked for", async () => {
  const { client, id } = await begin();
  await chat(client, id, "Look it up in 3 rounds.");
  const payload = await client.payload(id, { shape: "responses", user_message: "And back?" });
  assert.deepEqual(payload.items!.at(-1), { role: "user", content: "And back?" });
  const error = "This model's maximum context length is 900 tokens. However, your messages resulted in 3000 tokens.";
  const smaller = await client.overflow(id, { shape: "responses", error });
  assert.deepEqual(smaller.messages, (await client.context(id, { shape: "responses" })).messages);
});

test("turns that wait stand in a context of their own shape, or of any where they are plain", async () => {
  const outbox = new Outbox();
  const { client, id } = await begin();
  await client.append(id, [{ role: "user", content: "a" }]);
  const turn = (body: KeptTurn["body"], idempotencyKey: string): KeptTurn => ({ conversationId: id, idempotencyKey, body });
  const refusing: typeof fetch = async (input, init) => {
    if (init?.method === "POST") throw new TypeError("fetch failed", { cause: Object.assign(new Error(), { code: "ECONNREFUSED" }) });
    return fetch(input, init);
  };
  const away = () => new Client(url, key, { outbox, fetch: refusing });
  outbox.restore([turn({ messages: [{ role: "assistant", content: "b" }], shape: "chat" }, "k1")]);
  const own = [{ type: "message", role: "user", content: "my own" }];
  const call = { id: "c1", type: "function", function: { name: "lookup", arguments: "{}" } };
  const toChat = await away().context(id, { shape: "chat" });
  assert.deepEqual([toChat.kept, toChat.messages.at(-1)], [1, { role: "assistant", content: "b" }]);
  // A turn that may have arrived cannot be looked for in another shape.
  await assert.rejects(away().context(id, { shape: "responses" }), UnreachableError);
  const found = await away().context(id, { shape: "responses", fallback: () => own });
  assert.deepEqual([found.isFallback, found.messages], [true, own]);
  outbox.add(turn({ messages: [{ role: "assistant", content: null, tool_calls: [call] }], shape: "chat" }, "k2"));
  assert.equal((await away().context(id, { shape: "chat" })).kept, 2);
  assert.equal(await new Client(url, key, { outbox }).flush(), 0);
  assert.equal((await client.context(id, { shape: "chat" })).messages.length, 3);
});

test("a turn whose answer was lost is shown once, in every shape", async () => {
  for (const [shape, message] of [
    ["chat", { role: "tool", tool_call_id: "c1", content: "four" }],
    ["responses", { type: "function_call_output", call_id: "c1", output: "four" }],
  ] as const) {
    const outbox = new Outbox();
    const { client, id } = await begin(outbox);
    const called =
      shape === "chat"
        ? { role: "assistant", tool_calls: [{ id: "c1", type: "function", function: { name: "lookup", arguments: "{}" } }] }
        : { type: "function_call", call_id: "c1", name: "lookup", arguments: "{}" };
    await client.append(id, [{ role: "user", content: "a" }, called], { shape });
    const losing = new Client(url, key, {
      outbox,
      fetch: async (input, init) => {
        const response = await fetch(input, init);
        if (init?.method === "POST") throw new TypeError("fetch failed", { cause: new Error("reset") });
        return response;
      },
    });
    assert.equal(await losing.deliver(id, [message], { shape }), undefined);
    const context = await losing.context(id, { shape });
    assert.deepEqual([context.kept, context.messages.length, context.messages.at(-1)], [0, 3, message]);
  }
});

test("refusals of every API are known", () => {
  for (const said of [
    "prompt is too long: 210000 tokens > 200000 maximum",
    "This model's maximum context length is 128000 tokens.",
    "Your input exceeds the context window of this model. Please adjust your input and try again.",
    "The input token count (1200000) exceeds the maximum number of tokens allowed (1048576).",
    "the request exceeds the available context size, try increasing it",
  ])
    assert.ok(isTooLong(new Error(said)), said);
  assert.ok(isTooLong(Object.assign(new Error("400"), { code: "context_length_exceeded" })));
  assert.ok(!isTooLong(new Error("overloaded")));
  assert.ok(!isTooLong(undefined));
});

test("recall is answered in the shape of the call, and the model goes on with it", async () => {
  const { client, id } = await begin();
  await client.append(id, [{ role: "user", content: "The garage opens with 4711-B." }], { shape: "chat" });
  for (let at = 0; at < 12; at++)
    await client.append(id, [{ role: "assistant", content: RESULT("x") }, { role: "user", content: RESULT("y") }]);
  await client.overflow(id, { error: "prompt is too long: 12000 tokens > 3000 maximum" });
  const tool = (await client.recallTool("responses")) as OpenAI.Responses.FunctionTool;
  const fresh: ResponseInput = [{ role: "user", content: "How does the garage open?" }];
  const ask = async () => {
    const found = await client.context(id, { shape: "responses" });
    const input = [...(found.messages as ResponseInput), ...fresh];
    assert.ok(fresh.length > 1 || !JSON.stringify(input).includes("4711-B"));
    const include = ["reasoning.encrypted_content" as const];
    return openai.responses.create({ model: "gpt-5.4", input, tools: [tool], store: false, include });
  };
  const asked = await ask();
  const [call] = asked.output.filter((item) => item.type === "function_call");
  fresh.push(...(asked.output as ResponseInputItem[]), await client.answerRecall(id, call!));
  assert.equal((await ask()).output_text, "It opens with 4711-B.");
  const inChat = await client.answerRecall(id, { id: "c1", type: "function", function: { arguments: '{"query":"garage"}' } });
  assert.deepEqual([inChat.role, inChat.tool_call_id], ["tool", "c1"]);
  assert.match(inChat.content, /4711-B/);
});
