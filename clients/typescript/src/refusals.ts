/** Of the Messages API, OpenAI and servers that speak its protocol, Gemini and llama.cpp. */
const TOO_LONG = [
  "prompt is too long",
  "exceed context limit",
  "context_length_exceeded",
  "maximum context length",
  "exceeds the context window",
  "maximum number of tokens allowed",
  "exceeds the available context size",
];

/** Tell whether a model refused a prompt as too long, by the words of its error, or its code. */
export function isTooLong(error: unknown): boolean {
  const text = `${String(error)} ${String((error as { code?: unknown } | undefined)?.code)}`.toLowerCase();
  return TOO_LONG.some((words) => text.includes(words));
}
