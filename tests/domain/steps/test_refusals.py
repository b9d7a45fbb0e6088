"""What models say of a prompt that was too long, read for its numbers."""

from __future__ import annotations

import json

import pytest

from compaction.steps.refusals import LOOKED_AT_CHARS, Refused, read_refusal

SAID = {
    "prompt is too long: 214315 tokens > 200000 maximum": (214_315, 200_000),
    "The model returned the following errors: prompt is too long: 903884 tokens > 200000 maximum": (903_884, 200_000),
    "input length and `max_tokens` exceed context limit: 198000 + 8192 > 200000, decrease input length or "
    "`max_tokens` and try again": (198_000, 191_808),
    "This model's maximum context length is 128000 tokens. However, your messages resulted in 130000 tokens. Please "
    "reduce the length of the messages.": (130_000, 128_000),
    "This model's maximum context length is 4097 tokens. However, you requested 4500 tokens (4000 in the messages, 500 "
    "in the completion).": (4_500, 4_097),
    "'max_tokens' or 'max_completion_tokens' is too large: 8192. This model's maximum context length is 65536 tokens "
    "and your request has 57879 input tokens (8192 > 65536 - 57879).": (57_879, 57_344),
    "This model's maximum context length is 32768 tokens. However, your request has 40000 input tokens.": (
        40_000,
        32_768,
    ),
    "This endpoint's maximum context length is 1048576 tokens. However, you requested about 1293741 tokens (1227853 of "
    "text input, 353 of tool input, 65535 in the output).": (1_293_741, 1_048_576),
    "Input tokens exceed the configured limit of 272000 tokens. Your messages resulted in 280,123 tokens.": (
        280_123,
        272_000,
    ),
    "The input token count (2769478) exceeds the maximum number of tokens allowed (1048575).": (2_769_478, 1_048_575),
    "Unable to submit request because the input token count is 40000 but model only supports up to 32768.": (
        40_000,
        32_768,
    ),
    "prompt token count of 130000 exceeds the limit of 128000": (130_000, 128_000),
    "request (5000 tokens) exceeds the available context size (4096 tokens), try increasing it": (5_000, 4_096),
    '{"error":{"code":400,"message":"the request exceeds the available context size. try increasing the context size '
    'or enable context shift","type":"exceed_context_size_error","n_prompt_tokens":14429,"n_ctx":8192}}': (
        14_429,
        8_192,
    ),
    "Requested tokens (2285) exceed context window of 2048": (2_285, 2_048),
    "Prompt contains 40000 tokens and 0 draft tokens, too large for model with 32768 maximum context length": (
        40_000,
        32_768,
    ),
    "This model's maximum prompt length is 131072 but the request contains 150000 tokens.": (150_000, 131_072),
    "length of prompt_tokens (163280) must be less than max_seq_len (32768).": (163_280, 32_768),
    "Invalid request: exceeded model token limit: 262144 (requested: 300000)": (300_000, 262_144),
    "too many tokens: total number of tokens in the prompt cannot exceed 4081 - received 4292.": (4_292, 4_081),
    "`inputs` tokens + `max_new_tokens` must be <= 4096. Given: 4000 `inputs` tokens and 200 `max_new_tokens`": (
        4_000,
        3_896,
    ),
    "`inputs` must have less than 1024 tokens. Given: 1312": (1_312, 1_024),
    "Trying to keep the first 15857 tokens when context the overflows. However, the model is loaded with context "
    "length of only 4096 tokens": (15_857, 4_096),
    "Error: Input length 6491 exceeds context length 1500": (6_491, 1_500),
}


@pytest.mark.requirement("O8")
@pytest.mark.parametrize(("error", "numbers"), SAID.items())
def test_the_numbers_are_found(error: str, numbers: tuple[int, int]) -> None:
    assert read_refusal(error) == Refused(*numbers)
    # As it comes in an API's answer, behind a proxy that writes it into its own, over several lines.
    wrapped = json.dumps({"type": "error", "error": {"type": "invalid_request_error", "message": f"400\n {error}"}})
    assert read_refusal(wrapped) == Refused(*numbers)


@pytest.mark.parametrize(
    "error",
    [
        "",
        "Input is too long for requested model.",
        "the request exceeds the available context size. try increasing the context size or enable context shift",
        "Please reduce the length of the messages or completion.",
        "prompt is too long: 100 tokens > 200000 maximum",  # it was not
        "prompt is too long: 0 tokens > 0 maximum",
        "prompt is too long: 999999999999 tokens > 200000 maximum",
        "prompt is too long: 99999999999999999999 tokens > 200000 maximum",
        "exceed context limit: 8000 + 9000 > 8192",  # nothing would be left for the prompt
        "rate limit of 40000 tokens a minute: 50000 used",
        "overloaded_error",
        "x" * LOOKED_AT_CHARS + "prompt is too long: 214315 tokens > 200000 maximum",
    ],
)
def test_where_there_are_none_none_are_made_up(error: str) -> None:
    assert read_refusal(error) is None


def test_an_error_of_many_numbers_is_read_in_no_time() -> None:
    assert read_refusal("context length is 1 " * 1_000 + "token count 2 " * 1_000) is None
