import { type Tool, jsonSchema, tool } from "ai";
import { type Client, RECALL_TOOL } from "palimpsest-context-client";

/** Exactly one of `query`, `ref` and `pattern`; `offset` goes with `ref`. */
export interface RecallInput {
  readonly query?: string;
  readonly ref?: string;
  readonly pattern?: string;
  readonly offset?: number;
}

/**
 * The tool by which a model gets originals of this conversation back. Give it to the SDK as `recall`, from the
 * conversation's first call on: a tool that is added later makes the provider's prompt cache begin anew.
 *
 * What is wrong with a call, and a service that does not answer, is the call's result: the chat goes on.
 *
 * maxTokens: bounds what one call gives back; the service's own bound where it is not given.
 */
export function recallTool(
  client: Client,
  conversationId: string,
  options: { readonly maxTokens?: number } = {},
): Tool<RecallInput, string> {
  return tool({
    description: RECALL_TOOL.description,
    // A copy: the SDK's type has lists that may be changed.
    inputSchema: jsonSchema<RecallInput>(structuredClone(RECALL_TOOL.input_schema) as object),
    execute: async (input: RecallInput, { toolCallId }) => {
      const call = { type: "tool_use", id: toolCallId, input } as const;
      const result = await client.answerRecall(conversationId, call, options);
      if (result.is_error) throw new Error(result.content);
      return result.content;
    },
  });
}
