/** The client against a running API, which PALIMPSEST_URL and PALIMPSEST_KEY name; tests/clients/test_typescript_client.py starts it. */
import assert from "node:assert/strict";
import { test } from "node:test";
import { ApiError, Client, type KeptTurn, type Message, Outbox, OutboxFullError, UnreachableError, marked } from "../src/index.js";

const url = process.env["PALIMPSEST_URL"]!;
const key = process.env["PALIMPSEST_KEY"]!;
const OWN: Message[] = [{ role: "user", content: "what I remember myself" }];
const TOO_LONG = "prompt is too long: 10000 tokens > 8000 maximum";

type Fault = "lose" | "drop" | "hang" | Response | undefined;

/** A client whose next requests meet `faults`, and all of them `always`. */
function faulty(outbox = new Outbox()) {
  const line = { faults: [] as Fault[], always: undefined as Fault, seen: [] as { url: string; init: RequestInit }[] };
  const fetcher: typeof fetch = async (input, init) => {
    line.seen.push({ url: String(input), init: init! });
    const fault = line.faults.length ? line.faults.shift() : line.always;
    if (fault === "drop") throw new TypeError("fetch failed", { cause: new Error("reset") });
    if (fault === "hang") {
      const connection = setInterval(() => {}, 1_000); // a signal's own timer does not keep the process
      const { signal } = init as { signal: AbortSignal };
      const hung = new Promise((_, reject) => signal.addEventListener("abort", () => reject(signal.reason)));
      await hung.finally(() => clearInterval(connection));
    }
    if (fault instanceof Response) return fault.clone();
    const response = await fetch(input, init);
    if (fault === "lose") throw new TypeError("fetch failed", { cause: new Error("reset") });
    return response;
  };
  return { line, client: new Client(url, key, { outbox, fetch: fetcher }) };
}

const user = (content: string): Message => ({ role: "user", content });
const busy = () => new Response("", { status: 503, headers: { "retry-after": "0" } });
const words = (messages: readonly { content: unknown }[]) => messages.map((message) => message.content);

test("keys that no header may have are told at once, and one may be read from a file", async () => {
  for (const wrong of ["pk_\u2026", "pk_1\r\nx-other: 1"])
    assert.throws(() => new Client(url, wrong), /characters that no key has/);
  const id = await begin(new Client(url, `${key}\n`));
  const { client } = faulty();
  for (const idempotencyKey of ["\u043a\u043b\u044e\u0447", "a\nb", " a", ""]) {
    await assert.rejects(client.deliver(id, [user("a")], { idempotencyKey }), /idempotency key/);
    await assert.rejects(client.append(id, [user("a")], { idempotencyKey }), /idempotency key/);
  }
  assert.equal((await client.deliver(id, [user("b")], { idempotencyKey: "b 1" }))?.last_seq, 0);
  assert.equal(client.outbox.size, 0);
});

async function begin(client: Client) {
  return (await client.createConversation()).id;
}

async function stored(client: Client, id: string) {
  return words((await client.listMessages(id, { limit: 100 })).data);
}

async function eventually(condition: () => Promise<boolean>) {
  for (const ends = performance.now() + 20_000; !(await condition()); ) {
    assert.ok(performance.now() < ends, "it never came");
    await new Promise((resolve) => setTimeout(resolve, 50));
  }
}

test("arguments are taken in camelCase and as the API has them", async () => {
  const { line, client } = faulty();
  const sent = () => JSON.parse(String(line.seen.at(-1)!.init.body)) as Record<string, unknown>;
  const { id } = await client.createConversation({ externalId: "camel", policy: { inputTokenBudget: 20_000 } });
  assert.deepEqual(sent(), { external_id: "camel", policy: { input_token_budget: 20_000 } });
  assert.equal((await client.createConversation({ external_id: "camel" })).id, id);
  await client.createConversation({ externalId: "camel", metadata: { keptAsItIs: "x" } });
  assert.deepEqual(sent()["metadata"], { keptAsItIs: "x" });
  await client.append(id, [user("one")], { snapshotVersion: 0, expectedNextSeq: 0 });
  assert.deepEqual(sent(), { messages: [user("one")], snapshot_version: 0, expected_next_seq: 0 });
  await client.deliver(id, [user("two")], { snapshot_version: 0, replaceFrom: 0 });
  assert.deepEqual(sent(), { messages: [user("two")], snapshot_version: 0, replace_from: 0 });
  await client.listConversations({ externalId: "camel" });
  assert.ok(line.seen.at(-1)!.url.endsWith("external_id=camel"));
});

test("the two calls", async () => {
  const { client, line } = faulty();
  const id = await begin(client);
  assert.deepEqual((await client.context(id)).messages, []);
  const usage = { input_tokens: 11, output_tokens: 3 };
  const turn = await client.append(id, [user("hi"), { role: "assistant", content: "hello" }], { usage });
  assert.deepEqual([turn.first_seq, turn.last_seq, turn.replayed], [0, 1, false]);
  const context = await client.context(id);
  assert.equal(context.tokens?.measured, 11);
  context.messages.push(user("the caller's own"));
  assert.deepEqual(words((await client.context(id)).messages), ["hi", "hello"]);
  assert.ok(new Headers(line.seen.at(-1)!.init.headers).has("if-none-match"));
});

test("an address that is none is told at once, and one may be that of the calls", async () => {
  for (const none of ["", "127.0.0.1:8080", "ftp://palimpsest.example"]) {
    assert.throws(() => new Client(none, key), /begins with http/);
  }
  const id = await begin(faulty().client);
  for (const end of ["", "/", "/v1", "/v1/"]) {
    assert.equal((await new Client(url + end, key).context(id)).version, 0);
  }
});

test("marks for the prompt cache stand where they belong", async () => {
  const { client, line } = faulty();
  const id = await begin(client);
  await client.append(id, [user("hi"), { role: "assistant", content: [{ type: "text", text: "hello" }] }]);
  assert.deepEqual(marked(await client.context(id)), (await client.context(id)).messages);
  const context = await client.context(id, { cacheBreakpoints: 2 });
  assert.match(line.seen.at(-1)!.url, /cache_breakpoints=2/);
  const marks = marked(context).flatMap(({ content }) => (typeof content === "string" ? [] : content));
  assert.deepEqual(marks.at(-1), { type: "text", text: "hello", cache_control: { type: "ephemeral" } });
  assert.equal(JSON.stringify(context.messages).includes("cache_control"), false);
  assert.equal((await client.context(id, { shape: "chat", cacheBreakpoints: 2 })).cacheBreakpoints, undefined);
});

test("a lost answer does not make a second turn", async () => {
  const { client, line } = faulty();
  const id = await begin(client);
  line.faults.push("lose", busy());
  assert.equal((await client.append(id, [user("once")])).replayed, true);
  assert.deepEqual(await stored(client, id), ["once"]);
});

test("what may not be done twice is not sent twice", async () => {
  const { client, line } = faulty();
  const id = await begin(client);
  await client.append(id, [user("a")]);
  line.faults.push("lose");
  await assert.rejects(client.fork(id, { through_seq: 0 }), UnreachableError);
  assert.equal(line.seen.filter((each) => each.url.endsWith("/fork")).length, 1);
});

test("errors are typed", async () => {
  const { client } = faulty();
  const id = await begin(client);
  await assert.rejects(client.getConversation("a/b"), (error: ApiError) => error.status === 404 && !!error.requestId);
  await assert.rejects(
    client.changeConversation(id, { policy: { no_such_key: 1 } }),
    (error: ApiError) => error.pointer === "/policy/no_such_key",
  );
  await assert.rejects(
    client.append(id, [user("late")], { expected_next_seq: 7 }),
    (error: ApiError) => error.code === "unexpected_seq" && error.nextSeq === 0,
  );
});

test("the caller's own history stands in, and nobody waits", async () => {
  const { client, line } = faulty();
  const id = await begin(client);
  line.always = "drop";
  await assert.rejects(client.context(id), UnreachableError);
  const found = await client.context(id, { fallback: () => OWN });
  assert.deepEqual([found.messages, found.isFallback], [OWN, true]);
  const asked = line.seen.length;
  assert.ok((await client.context(id, { fallback: async () => OWN })).isFallback);
  assert.equal(line.seen.length, asked);
  line.always = undefined;
  await eventually(async () => !(await client.context(id, { fallback: () => OWN })).isFallback);
});

test("turns wait and are sent in order and once", async () => {
  const table = new Map<string, KeptTurn>();
  const outbox = new Outbox({
    onKept: (turn) => table.set(turn.idempotencyKey, turn),
    onSent: (turn) => table.delete(turn.idempotencyKey),
  });
  const { client, line } = faulty(outbox);
  const id = await begin(client);
  line.always = "lose";
  const sent = ["a", "b", "c"].map((text) => client.deliver(id, [user(text)]));
  assert.deepEqual(await Promise.all(sent), [undefined, undefined, undefined]);
  assert.equal(outbox.size, 3);
  line.always = undefined;
  await eventually(async () => (await client.flush()) === 0);
  assert.deepEqual(await stored(client, id), ["a", "b", "c"]);
  assert.equal(table.size, 0);
});

test("a context has the turns that wait", async () => {
  const { client, line } = faulty();
  const id = await begin(client);
  await client.append(id, [user("a")]);
  line.faults.push(busy(), busy(), busy());
  assert.equal(await client.deliver(id, [user("b")]), undefined);
  // Within the time in which nobody tries, reading is still tried for those who have nothing else.
  const found = await client.context(id);
  assert.deepEqual([words(found.messages), found.kept], [["a", "b"], 1]);
});

test("nobody waits for turns that are being sent", async () => {
  const { client, line } = faulty();
  const id = await begin(client);
  client.outbox.restore([{ conversationId: id, idempotencyKey: "kept", body: { messages: [user("a")] } }]);
  line.always = "hang";
  let isFlushed = false;
  const flushing = client.flush(3_000).finally(() => (isFlushed = true));
  const found = await client.context(id, { fallback: () => OWN, timeout: 200 });
  assert.deepEqual([found.messages, found.isFallback], [OWN, true]);
  await assert.rejects(client.context(id, { timeout: 200 }), UnreachableError);
  assert.equal(isFlushed, false);
  assert.equal(await flushing, 1);
  line.always = undefined;
  await eventually(async () => (await client.flush()) === 0);
  assert.deepEqual(await stored(client, id), ["a"]);
});

test("turns that wait share the time of a context", async () => {
  const { client, line } = faulty();
  const id = await begin(client);
  for (const text of ["a", "b", "c"])
    client.outbox.restore([{ conversationId: id, idempotencyKey: text, body: { messages: [user(text)] } }]);
  // Each of them takes a second, and there are two for sending.
  const later = new Response("", { status: 503, headers: { "retry-after": "1" } });
  line.faults.push(later, undefined, later, undefined, later, undefined);
  const found = await client.context(id, { timeout: 4_000 });
  assert.deepEqual(words(found.messages), ["a", "b", "c"]);
  assert.ok(found.kept > 0);
});

test("a turn whose answer was lost is shown once", async () => {
  const { client, line } = faulty();
  const id = await begin(client);
  await client.append(id, [user("a")]);
  line.always = "lose";
  assert.equal(await client.deliver(id, [user("b")]), undefined);
  assert.equal(await client.deliver(id, [user("b")]), undefined); // the same again, and this one was not sent
  assert.deepEqual(client.outbox.waiting(id).map((turn) => turn.begun), [true, undefined]);
  line.always = undefined;
  // Within the time in which nobody tries to write.
  assert.deepEqual(words((await client.context(id)).messages), ["a", "b", "b"]);
});

for (const [status, text] of [[308, null], [200, ""], [200, "null"], [200, "[]"], [200, "{}"]] as const)
  test(`what is not the service's answer is none: ${status} ${text}`, async () => {
    const { client, line } = faulty();
    const id = await begin(client);
    line.always = new Response(text, { status });
    const found = await client.context(id, { fallback: () => OWN });
    assert.ok(found.isFallback && found.error instanceof UnreachableError);
    assert.equal(await client.deliver(id, [user("a")]), undefined);
    line.always = undefined;
    await eventually(async () => (await client.flush()) === 0);
    assert.deepEqual(await stored(client, id), ["a"]);
  });

test("kept turns survive a restart of the caller", async () => {
  const before = faulty();
  const id = await begin(before.client);
  before.line.always = "lose";
  await before.client.deliver(id, [user("a")]);
  await before.client.deliver(id, [user("b")]);
  const text = JSON.stringify(before.client.outbox.waiting(id));
  const after = faulty();
  after.client.outbox.restore(JSON.parse(text) as KeptTurn[]);
  assert.equal(await after.client.flush(), 0);
  assert.deepEqual(await stored(after.client, id), ["a", "b"]);
});

test("a refused turn does not hold up the others, and the outbox is bounded", async () => {
  const outbox = new Outbox({ limit: 2 });
  const { client, line } = faulty(outbox);
  const id = await begin(client);
  const bad = { role: "nobody", content: "x" } as unknown as Message;
  await assert.rejects(client.deliver(id, [bad]), ApiError);
  assert.equal(outbox.refused.length, 0);
  line.always = "drop";
  await client.deliver(id, [bad]);
  await client.deliver(id, [user("good")]);
  await assert.rejects(client.deliver(id, [user("too many")]), OutboxFullError);
  line.always = undefined;
  await eventually(async () => (await client.flush()) === 0);
  assert.equal(outbox.refused.length, 1);
  assert.deepEqual(await stored(client, id), ["good"]);
});

test("a model that refuses gets a smaller context", async () => {
  const { client } = faulty();
  const id = await begin(client);
  const long = "lorem ipsum dolor sit amet ".repeat(30);
  const turns = Array.from({ length: 40 }, (_, at): Message => ({ role: at % 2 ? "assistant" : "user", content: long }));
  await client.append(id, turns);
  const sizes: number[] = [];
  const done = await client.callModel(id, async (context) => {
    sizes.push(context.messages.length);
    if (sizes.length < 3) throw new Error(TOO_LONG);
    return "well";
  });
  assert.equal(done.result, "well");
  assert.ok(sizes[0]! > sizes[1]! && sizes[1]! > sizes[2]!);
  await assert.rejects(client.callModel(id, () => Promise.reject(new RangeError("broken"))), RangeError);
});

test("a smaller context has the turns that wait", async () => {
  const { client } = faulty();
  const id = await begin(client);
  const long = Array.from({ length: 40 }, (_, at) => ({ role: at % 2 ? "assistant" : "user", content: `${at} `.repeat(300) }) as Message);
  await client.append(id, long);
  const ends: unknown[] = [];
  const { context } = await client.callModel(id, async ({ messages }) => {
    ends.push(messages.at(-1)!.content);
    if (ends.length > 1) return "well";
    // There was no time to send it before.
    client.outbox.add({ conversationId: id, idempotencyKey: "key", body: { messages: [user("late")] } });
    throw new Error(TOO_LONG);
  });
  assert.deepEqual([ends.at(-1), context.kept, client.outbox.size], ["late", 0, 0]);
});

test("everything else", async () => {
  const { client } = faulty();
  const made = await client.createConversation({ external_id: "from typescript", system: "Be brief." });
  assert.equal((await client.createConversation({ external_id: "from typescript" })).id, made.id);
  assert.equal((await client.listConversations({ external_id: "from typescript" })).data.length, 1);
  const changed = await client.changeConversation(made.id, { metadata: { b: 2 } });
  assert.ok("metadata" in changed);
  assert.deepEqual(changed.metadata, { b: 2 });
  await client.append(made.id, [user("hi"), { role: "assistant", content: "hello" }]);
  const payload = await client.payload(made.id, { user_message: "and now?" });
  assert.equal(payload.system, "Be brief.");
  const pinned = await client.pin(made.id, { seq: 0 });
  assert.equal((await client.listPins(made.id)).data.length, 1);
  const [rule] = (await client.listRules(made.id)).data;
  assert.equal((await client.decideRule(made.id, rule!.id, true)).withdrawn_at, null);
  assert.equal(await client.unpin(made.id, pinned.id), null);
  const plan = await client.compact(made.id, { dry_run: true });
  assert.ok("steps" in plan);
  const run = await client.compact(made.id, { strategy: "drop" });
  assert.ok("run_id" in run);
  assert.equal((await client.getRun(run.run_id)).id, run.run_id);
  assert.equal((await client.listRuns(made.id)).data[0]!.id, run.run_id);
  assert.deepEqual((await client.listSnapshots(made.id)).data, []);
  const bisected = await client.bisect(made.id, "hi");
  assert.deepEqual([bisected.seqs, bisected.in_context, bisected.loss], [[0], true, null]);
  const compared = await client.compare(made.id, [0, 0], 1);
  assert.deepEqual(compared.contexts.map((each) => each.version), [0, 0]);
  assert.deepEqual(compared.differences.messages, { first: [], second: [] });
  assert.equal((await client.fork(made.id, { through_seq: 1 })).last_seq, 1);
  assert.equal((await client.restore(made.id, 0)).head_version, 1);
  assert.equal((await client.getSnapshot(made.id, 1)).version, 1);
  assert.deepEqual((await client.listClaims(made.id, 1)).data, []);
  assert.equal((await client.eraseConversation(made.id)).conversation_id, made.id);
});
