/** What every program here asks through the gateway, and the one tool that it offers. */
export const url = process.env.GATEWAY_URL;
export const key = process.env.PALIMPSEST_KEY;
export const schema = { type: "object", properties: { key: { type: "string" } }, required: ["key"] };

/** Look a row up. */
export const lookUp = ({ key: row }) => `Row ${row}: ${"lorem ipsum dolor sit amet ".repeat(60)}`;

/** Ask one question after the other, every second one streamed; print the answers. */
export async function askAll(ask) {
  const answers = [];
  for (const [number, question] of JSON.parse(process.env.GATEWAY_QUESTIONS).entries())
    answers.push(await ask(question, number % 2 === 1));
  console.log(JSON.stringify(answers));
}
