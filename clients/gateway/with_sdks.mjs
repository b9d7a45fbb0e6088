/** The SDKs of Anthropic and OpenAI for TypeScript, over the API that the first argument names. */
import Anthropic from "@anthropic-ai/sdk";
import OpenAI from "openai";
import { askAll, key, lookUp, schema, url } from "./questions.mjs";

const anthropic = new Anthropic({ baseURL: url, apiKey: key, maxRetries: 0 });
const openai = new OpenAI({ baseURL: `${url}/v1`, apiKey: key, maxRetries: 0 });
const rows = [];

const APIS = {
  async messages(stream) {
    const asked = {
      model: "claude-haiku-4-5",
      max_tokens: 2000,
      system: "Be brief.",
      thinking: { type: "enabled", budget_tokens: 1024 },
      messages: rows,
      tools: [{ name: "look_up", input_schema: schema }],
    };
    const { content } = stream
      ? await anthropic.messages.stream(asked).finalMessage()
      : await anthropic.messages.create(asked);
    rows.push({ role: "assistant", content });
    const results = content
      .filter((block) => block.type === "tool_use")
      .map((call) => ({ type: "tool_result", tool_use_id: call.id, content: lookUp(call.input) }));
    if (results.length) rows.push({ role: "user", content: results });
    return results.length ? null : content.map((block) => block.text ?? "").join("");
  },
  async chat(stream) {
    const asked = {
      model: "gpt-5.6",
      messages: [{ role: "system", content: "Be brief." }, ...rows],
      tools: [{ type: "function", function: { name: "look_up", parameters: schema } }],
    };
    const done = stream
      ? await openai.chat.completions.stream(asked).finalChatCompletion()
      : await openai.chat.completions.create(asked);
    const { message } = done.choices[0];
    rows.push(message);
    for (const call of message.tool_calls ?? [])
      rows.push({ role: "tool", tool_call_id: call.id, content: lookUp(JSON.parse(call.function.arguments)) });
    return message.tool_calls?.length ? null : message.content;
  },
  async responses(stream) {
    const asked = {
      model: "gpt-5.6",
      instructions: "Be brief.",
      input: rows,
      tools: [{ type: "function", name: "look_up", parameters: schema, strict: false }],
      store: false,
      include: ["reasoning.encrypted_content"],
    };
    const done = stream
      ? await openai.responses.stream(asked).finalResponse()
      : await openai.responses.create(asked);
    rows.push(...done.output);
    const calls = done.output.filter((item) => item.type === "function_call");
    for (const { call_id, arguments: given } of calls)
      rows.push({ type: "function_call_output", call_id, output: lookUp(JSON.parse(given)) });
    return calls.length ? null : done.output_text;
  },
};

await askAll(async (question, stream) => {
  rows.push({ role: "user", content: question });
  for (;;) {
    const answer = await APIS[process.argv[2]](stream);
    if (answer !== null) return answer;
  }
});
