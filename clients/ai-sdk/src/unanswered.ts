import type { LanguageModelV4Message, LanguageModelV4Prompt } from "@ai-sdk/provider";

const NO_RESULT = "No result was recorded for this tool call.";

/**
 * Return an error as the result of each call that a history ends with and `fresh` does not answer: a request was stopped
 * while its tools ran. No API takes another message after such a call.
 */
export function unanswered(history: LanguageModelV4Prompt, fresh: LanguageModelV4Prompt): LanguageModelV4Prompt {
  const start = history.map((message) => message.role).lastIndexOf("user") + 1;
  const calls = new Map<string, string>();
  for (const message of history.slice(start))
    if (message.role === "assistant")
      for (const part of message.content)
        if (part.type === "tool-call" && !part.providerExecuted) calls.set(part.toolCallId, part.toolName);
  for (const message of [...history.slice(start), ...fresh]) for (const id of results(message)) calls.delete(id);
  if (!calls.size || !fresh.length) return [];
  const output = { type: "error-text", value: NO_RESULT } as const;
  const content = [...calls].map(([toolCallId, toolName]) => ({ type: "tool-result", toolCallId, toolName, output }) as const);
  return [{ role: "tool", content }];
}

function results({ role, content }: LanguageModelV4Message): string[] {
  if (role === "system" || role === "user") return [];
  return content.flatMap((part) => (part.type === "tool-result" ? [part.toolCallId] : []));
}
