/** Every part of a prompt is stored in every shape and comes back as it was, to the provider that it came from. */
import assert from "node:assert/strict";
import { test } from "node:test";
import type { LanguageModelV4Content, LanguageModelV4Message, LanguageModelV4Prompt, LanguageModelV4StreamPart } from "@ai-sdk/provider";
import { Gathering } from "../src/gathering.js";
import { replyOf } from "../src/parts.js";
import { codecOf } from "../src/shapes.js";

const PROVIDERS = ["anthropic.messages", "openai.chat", "openai.responses", "google.generative-ai", "azure.responses"];
const IMAGE = { type: "file", mediaType: "image/png", data: { type: "data", data: "aGk=" } } as const;
const PDF = { type: "file", mediaType: "application/pdf", filename: "a.pdf", data: { type: "data", data: "JVBERg==" } } as const;

/** Return a prompt as it comes back from a conversation. */
function again(prompt: LanguageModelV4Prompt, provider: string, reader = provider): LanguageModelV4Prompt {
  const codec = codecOf(provider);
  const messages = prompt.flatMap((each) => codec.stored([each], each.role === "assistant" ? provider : undefined));
  return codec.prompt(JSON.parse(JSON.stringify(messages)), reader);
}

const user = (...content: Extract<LanguageModelV4Message, { role: "user" }>["content"]) => ({ role: "user" as const, content });
const said = (...content: Extract<LanguageModelV4Message, { role: "assistant" }>["content"]) => ({ role: "assistant" as const, content });
const results = (...content: Extract<LanguageModelV4Message, { role: "tool" }>["content"]) => ({ role: "tool" as const, content });

const PROMPTS: Record<string, LanguageModelV4Prompt> = {
  text: [user({ type: "text", text: "a" }), said({ type: "text", text: "b" }), user({ type: "text", text: "c" }, { type: "text", text: "d" })],
  "text with provider options": [user({ type: "text", text: "a", providerOptions: { anthropic: { citations: [1] }, google: { x: "y" } } })],
  "neighbours of one role": [user({ type: "text", text: "a" }), user({ type: "text", text: "b" })],
  files: [
    user(IMAGE, PDF, { type: "text", text: "a" }),
    user({ type: "file", mediaType: "image", data: { type: "url", url: new URL("https://example.com/a.png") } }),
    user({ type: "file", mediaType: "audio/wav", data: { type: "data", data: "aGk=" } }),
    user({ type: "file", mediaType: "video/mp4", data: { type: "data", data: "aGk=" }, providerOptions: { google: { fps: 1 } } }),
    user({ type: "file", mediaType: "image/png", data: { type: "reference", reference: { google: "f1" } } }),
    user({ ...IMAGE, providerOptions: { openai: { imageDetail: "low" } } }),
  ],
  calls: [
    said(
      { type: "text", text: "I look." },
      { type: "tool-call", toolCallId: "c1", toolName: "look", input: { a: [1, "x"] }, providerOptions: { google: { thoughtSignature: "s" } } },
      { type: "tool-call", toolCallId: "c2", toolName: "look", input: {} },
    ),
    results(
      { type: "tool-result", toolCallId: "c1", toolName: "look", output: { type: "text", value: "four" } },
      { type: "tool-result", toolCallId: "c2", toolName: "look", output: { type: "content", value: [{ type: "text", text: "see" }, IMAGE] } },
    ),
  ],
  "the provider's own tools": [
    said(
      { type: "tool-call", toolCallId: "s1", toolName: "search", input: { q: "x" }, providerExecuted: true },
      { type: "tool-result", toolCallId: "s1", toolName: "search", output: { type: "json", value: [{ url: "https://example.com" }] } },
      { type: "text", text: "Found." },
    ),
  ],
  approvals: [results({ type: "tool-approval-response", approvalId: "a1", approved: false, reason: "no" })],
  "what a model has made": [
    said(
      { type: "file", mediaType: "image/png", data: { type: "data", data: "aGk=" } },
      { type: "custom", kind: "google.thing", providerOptions: { google: { x: 1 } } },
      { type: "reasoning-file", mediaType: "image/png", data: { type: "data", data: "aGk=" } },
      { type: "text", text: "", providerOptions: { google: { thoughtSignature: "s" } } },
    ),
  ],
};

/** A prompt as JSON, in which a URL is its text. */
const flat = (prompt: LanguageModelV4Prompt) => JSON.parse(JSON.stringify(prompt));

for (const provider of PROVIDERS)
  for (const [name, prompt] of Object.entries(PROMPTS))
    test(`${provider}: ${name}`, () => {
      assert.deepEqual(flat(again(prompt, provider)), flat(prompt));
    });

const SEALED: Record<string, LanguageModelV4Prompt> = {
  "anthropic.messages": [
    said(
      { type: "reasoning", text: "hm", providerOptions: { anthropic: { signature: "s" } } },
      { type: "reasoning", text: "", providerOptions: { anthropic: { redactedData: "r" } } },
      { type: "reasoning", text: "", providerOptions: { anthropic: { signature: "t" } } },
      { type: "tool-call", toolCallId: "c1", toolName: "look", input: {} },
    ),
  ],
  "openai.responses": [
    said(
      { type: "reasoning", text: "", providerOptions: { openai: { itemId: "rs_1", reasoningEncryptedContent: "e1" } } },
      { type: "tool-call", toolCallId: "c1", toolName: "look", input: {}, providerOptions: { openai: { itemId: "fc_1", namespace: "n" } } },
      { type: "reasoning", text: "one", providerOptions: { openai: { itemId: "rs_2", reasoningEncryptedContent: "e2" } } },
      { type: "reasoning", text: "two", providerOptions: { openai: { itemId: "rs_2", reasoningEncryptedContent: "e2" } } },
      { type: "custom", kind: "openai.compaction", providerOptions: { openai: { type: "compaction", itemId: "cmp_1", encryptedContent: "e3" } } },
      { type: "text", text: "So", providerOptions: { openai: { itemId: "msg_1", phase: "final_answer", annotations: [{ type: "file_citation" }] } } },
      { type: "text", text: "", providerOptions: { openai: { itemId: "msg_2" } } },
    ),
  ],
  "azure.responses": [
    said(
      { type: "reasoning", text: "", providerOptions: { azure: { itemId: "rs_1", reasoningEncryptedContent: "e1" } } },
      { type: "text", text: "So", providerOptions: { azure: { itemId: "msg_1" } } },
    ),
  ],
  "deepseek.chat": [said({ type: "reasoning", text: "hm" }, { type: "text", text: "So" })],
  "google.generative-ai": [said({ type: "reasoning", text: "hm", providerOptions: { google: { thoughtSignature: "s" } } }, { type: "text", text: "So" })],
  "amazon-bedrock": [said({ type: "reasoning", text: "hm", providerOptions: { bedrock: { signature: "s" } } }, { type: "text", text: "So" })],
};

for (const [provider, prompt] of Object.entries(SEALED)) {
  test(`${provider}: what a model thought comes back whole, and in its place`, () => {
    assert.deepEqual(again(prompt, provider), prompt);
  });
  test(`${provider}: what a model thought goes back to no other provider`, () => {
    // One that has the shape of the same API, so that only the adapter can tell.
    const other = again(prompt, provider, `other.${provider.split(".").at(-1)}`);
    assert.ok(!JSON.stringify(other).includes('"reasoning"'), JSON.stringify(other));
    assert.ok(other[0]!.content.length > 0);
  });
}

test("what is of one shape has nothing of the adapter's in it", () => {
  const prompts = [PROMPTS["text"]!, SEALED["anthropic.messages"]!, [user(IMAGE, PDF)]];
  for (const prompt of prompts) assert.ok(!JSON.stringify(codecOf("anthropic.messages").stored(prompt)).includes("ai_sdk"));
  const items = codecOf("openai.responses").stored(SEALED["openai.responses"]!.map((each) => ({ ...each })), "openai.responses");
  const marked = (items as { type: string }[]).filter((item) => JSON.stringify(item).includes("ai_sdk"));
  assert.deepEqual(marked.map(({ type }) => type), ["function_call"]); // its namespace
});

test("marks for a prompt cache belong to a request", () => {
  const options = { anthropic: { cacheControl: { type: "ephemeral" } } };
  for (const provider of PROVIDERS)
    assert.deepEqual(again([user({ type: "text", text: "a", providerOptions: options })], provider), [user({ type: "text", text: "a" })]);
});

test("bytes become base64", () => {
  const bytes = user({ type: "file", mediaType: "image/png", data: { type: "data", data: new Uint8Array([104, 105]) } });
  for (const provider of PROVIDERS) assert.deepEqual(again([bytes], provider), [user(IMAGE)]);
});

test("errors stay errors, in the words of the provider's SDK", () => {
  const output = { type: "error-text", value: "boom" } as const;
  const failed = [said({ type: "tool-call", toolCallId: "c1", toolName: "look", input: {} }), results({ type: "tool-result", toolCallId: "c1", toolName: "look", output })];
  assert.deepEqual(again(failed, "anthropic.messages"), failed);
  assert.deepEqual(codecOf("openai.responses").stored(failed).at(-1), { type: "function_call_output", call_id: "c1", output: '{"error":"boom"}' });
});

test("a reply is what the SDK gives back of it", () => {
  const content: LanguageModelV4Content[] = [
    { type: "reasoning", text: "", providerMetadata: { openai: { itemId: "rs_1" } } },
    { type: "text", text: "" },
    { type: "source", sourceType: "url", id: "1", url: "https://example.com" },
    { type: "tool-call", toolCallId: "c1", toolName: "look", input: "{broken", providerMetadata: { openai: { itemId: "fc_1" } } },
    { type: "tool-result", toolCallId: "s1", toolName: "search", result: [1], preliminary: true },
    { type: "tool-result", toolCallId: "s1", toolName: "search", result: [1, 2] },
    { type: "tool-approval-request", approvalId: "a1", toolCallId: "c1" },
  ];
  const reply = replyOf(content)!;
  assert.deepEqual(
    (reply.content as { type: string }[]).map(({ type }) => type),
    ["reasoning", "tool-call", "tool-result", "tool-approval-request"],
  );
  for (const provider of PROVIDERS) {
    const back = again([reply], provider);
    // A prompt has no requests for approval.
    assert.deepEqual((back[0]!.content as { type: string }[]).map(({ type }) => type).sort(), ["reasoning", "tool-call", "tool-result"]);
  }
  assert.equal(replyOf([{ type: "text", text: "" }]), undefined);
});

test("parts of a stream that overlap are told apart, and what a provider seals comes with their end", () => {
  const gathering = new Gathering();
  const parts: LanguageModelV4StreamPart[] = [
    { type: "reasoning-start", id: "1", providerMetadata: { openai: { itemId: "rs_1", reasoningEncryptedContent: null } } },
    { type: "text-start", id: "1" },
    { type: "text-delta", id: "1", delta: "a" },
    { type: "reasoning-delta", id: "1", delta: "hm" },
    { type: "text-start", id: "2" },
    { type: "text-delta", id: "1", delta: "b" },
    { type: "text-delta", id: "2", delta: "c" },
    { type: "reasoning-end", id: "1", providerMetadata: { openai: { itemId: "rs_1", reasoningEncryptedContent: "e" } } },
    { type: "text-end", id: "1", providerMetadata: { openai: { itemId: "msg_1" } } },
  ];
  for (const part of parts) gathering.add(part);
  assert.deepEqual(gathering.content, [
    { type: "reasoning", text: "hm", providerMetadata: { openai: { itemId: "rs_1", reasoningEncryptedContent: "e" } } },
    { type: "text", text: "ab", providerMetadata: { openai: { itemId: "msg_1" } } },
    { type: "text", text: "c" },
  ]);
});

test("what others stored is said in words, and called by its names", () => {
  const chat = codecOf("openai.chat").prompt([
    { role: "developer", content: "Be brief." },
    { role: "assistant", content: null, refusal: "No.", function_call: { name: "old", arguments: "{}" } },
    { role: "function", name: "old", content: "1" },
    { role: "assistant", content: null, tool_calls: [{ id: "c1", type: "custom", custom: { name: "raw", input: "x y" } }] },
    { role: "tool", tool_call_id: "c1", content: [{ type: "text", text: "2" }] },
  ]);
  assert.deepEqual(chat.map(({ role }) => role), ["system", "assistant", "tool", "assistant", "tool"]);
  assert.deepEqual([chat[2], chat[4]].map((each) => (each!.content[0] as { toolName: string }).toolName), ["old", "raw"]);
  const items = codecOf("openai.responses").prompt([
    { type: "message", role: "developer", content: [{ type: "input_text", text: "Be brief." }] },
    { type: "web_search_call", id: "ws_1", status: "completed", action: { type: "search", query: "x" } },
    { type: "custom_tool_call", call_id: "c1", name: "raw", input: "x y" },
    { type: "custom_tool_call_output", call_id: "c1", output: [{ type: "input_text", text: "2" }] },
  ]);
  assert.deepEqual(items.map(({ role }) => role), ["system", "assistant", "tool"]);
  assert.match((items[1]!.content[0] as { text: string }).text, /web_search_call/);
  assert.deepEqual(items[2]!.content[0], { type: "tool-result", toolCallId: "c1", toolName: "raw", output: { type: "text", value: "2" } });
});

test("what an earlier version carried comes back", () => {
  const call = { type: "tool-call", toolCallId: "c1", toolName: "look", input: {}, providerOptions: { openai: { itemId: "fc_1" } } };
  const prompt = codecOf("anthropic.messages").prompt([
    { role: "assistant", content: [{ type: "ai_sdk_part", part: call }] },
    { role: "user", content: [{ type: "tool_result", tool_use_id: "c1", content: [{ type: "ai_sdk_part", part: [IMAGE] }] }] },
  ]);
  assert.deepEqual(prompt[0]!.content, [call]);
  assert.deepEqual((prompt[1]!.content[0] as { output: unknown }).output, { type: "content", value: [IMAGE] });
});
