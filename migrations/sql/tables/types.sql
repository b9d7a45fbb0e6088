-- The arguments of append_turn, in groups; store/hot_path.py has the same fields, compaction/messages.py says what the facts are.

-- The messages of a turn, each array in their order: the contents as they came in, their bytes as they are served, the
-- characters of their tool results ("{12,400}", null for none), and the tokens that inline tool results hide in the view.
create type turn_messages as (
    roles text[], contents json[], tokens integer[], hidden integer[], bytes integer[], result_chars text[],
    requests boolean[], thinking boolean[]
);

-- The messages together: newer_tokens are those after the last answer, seen_tokens those before it.
create type turn_facts as (
    total_tokens integer, newer_tokens integer, seen_tokens integer, total_bytes integer, longest_result integer,
    newest_result integer, after_answer integer, sound boolean, leading_results text[], trailing_calls text[],
    exchanges integer, last_request integer, has_request boolean, ends_in_loop boolean, thinking_in_loop boolean,
    requested_output integer
);

-- Token counts of the model call that the turn came from, and the version of the snapshot it was made with.
create type turn_usage as (input_tokens integer, output_tokens integer, version integer);

-- What came with the turn besides messages; see add_context_blocks.
create type turn_context as (blocks json, carried_max_tokens integer, policy jsonb);

-- The tenant's policy, for keys that the conversation's own policy leaves out.
create type context_limits as (result_cap integer, total_token_budget integer, reserved_output_tokens integer);
