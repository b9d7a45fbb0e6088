import type { LanguageModelV4Content, LanguageModelV4StreamPart } from "@ai-sdk/provider";

type Growing = Extract<LanguageModelV4Content, { type: "text" | "reasoning" }>;

/** What the parts of a stream make, in the order in which they began. */
export class Gathering {
  readonly content: LanguageModelV4Content[] = [];
  readonly #growing = new Map<string, Growing>();

  /** What was said so far, for an answer that is stopped: calls in it are not run, and thoughts belong to what follows. */
  get said(): LanguageModelV4Content[] {
    return this.content.flatMap((part) => (part.type === "text" && part.text ? [{ type: "text", text: part.text }] : []));
  }

  add(part: LanguageModelV4StreamPart): void {
    switch (part.type) {
      case "text-start":
      case "reasoning-start": {
        const begun: Growing = { type: part.type === "text-start" ? "text" : "reasoning", text: "" };
        this.content.push(begun);
        this.#growing.set(part.type[0] + part.id, begun);
        grow(begun, part);
        return;
      }
      case "text-delta":
      case "reasoning-delta":
      case "text-end":
      case "reasoning-end": {
        const growing = this.#growing.get(part.type[0] + part.id);
        if (growing) grow(growing, part);
        return;
      }
      case "tool-call":
      case "tool-result":
      case "tool-approval-request":
      case "custom":
      case "file":
      case "reasoning-file":
        this.content.push(part);
    }
  }
}

/** What a provider says last of a part is whole: what it seals comes with the end. */
function grow(growing: Growing, part: LanguageModelV4StreamPart & { delta?: string; providerMetadata?: Growing["providerMetadata"] }): void {
  growing.text += part.delta ?? "";
  if (part.providerMetadata) growing.providerMetadata = part.providerMetadata;
}
