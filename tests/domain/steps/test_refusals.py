"""What models say of a prompt that was too long, read for its numbers."""

from __future__ import annotations

import json

import pytest

from compaction.steps.refusals import LOOKED_AT_CHARS, Refused, is_refused_for_length, read_refusal

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
    # QwenLM/Qwen3#1321, of SGLang
    "The input (61709 tokens) is longer than the model's context length (40960 tokens).": (61_709, 40_960),
    # sgl-project/sglang#4048
    "Input length (160062 tokens) exceeds the maximum allowed length (59862 tokens).": (160_062, 59_862),
    # SGLang, serving_chat.py
    "Requested token count exceeds the model's maximum context length of 4096 tokens. You requested a total of 5000 "
    "tokens: 4000 tokens from the input messages and 1000 tokens for the completion.": (4_000, 3_096),
    # AIDotNet/OpenCowork#82, of vLLM
    "This model's maximum context length is 262144 tokens. However, you requested 128000 output tokens and your prompt "
    "contains at least 134145 input tokens, for a total of at least 262145 tokens. Please reduce the length of the "
    "input prompt or the number of requested output tokens. (parameter=input_tokens, value=134145)": (134_145, 134_144),
    # vLLM, "You passed …"
    "You passed 40961 input tokens and requested 100 output tokens. However, the model's context length is only 40960 "
    "tokens, resulting in a maximum input length of 40860 tokens.": (40_961, 40_860),
    # vllm-project/vllm#12165
    "The prompt (total length 25938) is too long to fit into the model (context length 4096). Make sure that "
    "`max_model_len` is no smaller than the number of text tokens plus multimodal tokens.": (25_938, 4_096),
    "The decoder prompt (length 40000) is longer than the maximum model length of 32768. Make sure that "
    "`max_model_len` is no smaller than the number of text tokens.": (40_000, 32_768),
    # run-llama/llama_index#7974, of Databricks
    "Your input is too long. Max input length is 4096 tokens, but you supplied 5441 tokens.": (5_441, 4_096),
    # sugarforever/chat-ollama#130, of Azure OpenAI
    "This model's maximum context length is 8192 tokens, however you requested 25701 tokens (25701 in your prompt; 0 "
    "for the completion). Please reduce your prompt; or completion length.": (25_701, 8_192),
    "The prompt is too long: 140000, model maximum context length: 131071": (140_000, 131_071),
}
LIMITS = {
    # arkavo-org/arkavo-edge#371
    '{"error": {"message": "The input token count exceeds the maximum number of tokens allowed (1048576).", '
    '"status": "INVALID_ARGUMENT"}}': 1_048_576,
    # Alibaba Cloud Model Studio, "Error messages"
    "<400> InternalError.Algo.InvalidParameter: Range of input length should be [1, 129024]": 129_024,
    "This model's maximum context length is 8192 tokens. Please reduce the length of the messages.": 8_192,
}
UNSAID = [
    # OpenAI: chat and Responses, with code `context_length_exceeded`
    "Your input exceeds the context window of this model. Please adjust your input and try again.",
    '{"error": {"message": "too many", "type": "invalid_request_error", "code": "context_length_exceeded"}}',
    # Amazon Bedrock: aws-samples/bedrock-chat#95; Nova
    "An error occurred (ValidationException) when calling Converse: Input is too long for requested model.",
    "Input Tokens Exceeded: Number of input tokens exceeds maximum length. Please update the input to try again.",
    # llama.cpp, tools/server
    "the request exceeds the available context size. try increasing the context size or enable context shift",
    # Groq
    "Please reduce the length of the messages or completion.",
    # MiniMax, Zhipu
    "invalid params, context window exceeds limit (2013)",
    "Prompt exceeds max length",
]


@pytest.mark.requirement("O8")
@pytest.mark.parametrize(("error", "numbers"), SAID.items())
def test_the_numbers_are_found(error: str, numbers: tuple[int, int]) -> None:
    assert read_refusal(error) == Refused(*numbers)
    # As it comes in an API's answer, behind a proxy that writes it into its own, over several lines.
    wrapped = json.dumps({"type": "error", "error": {"type": "invalid_request_error", "message": f"400\n {error}"}})
    assert read_refusal(wrapped) == Refused(*numbers)


@pytest.mark.requirement("O8")
@pytest.mark.parametrize(("error", "limit"), LIMITS.items())
def test_a_limit_without_the_prompts_tokens_is_one(error: str, limit: int) -> None:
    assert read_refusal(error) == Refused(None, limit)


@pytest.mark.parametrize("error", [*SAID, *LIMITS, *UNSAID])
def test_every_wording_is_known_for_what_it_says(error: str) -> None:
    assert is_refused_for_length(error)
    assert is_refused_for_length(json.dumps({"error": {"message": error}}).lower())


@pytest.mark.parametrize("error", UNSAID)
def test_wordings_without_numbers_have_none(error: str) -> None:
    assert read_refusal(error) is None


@pytest.mark.parametrize(
    "error",
    [
        "",
        "overloaded_error",
        "Rate limit reached for gpt-4o on tokens per min (TPM): Limit 30000, Used 29000, Requested 12000.",
        "Unsupported parameter: 'max_tokens' is not supported with this model. Use 'max_completion_tokens' instead.",
        "max_tokens: 200000 > 64000, which is the maximum allowed number of output tokens",
        "You exceeded your current quota, please check your plan and billing details.",
        "The model `gpt-9` does not exist or you do not have access to it.",
        # https://github.com/github/app/issues/409, https://github.com/AnswerDotAI/fastllm/issues/45
        (
            "Invalid 'input[206].id': string too long. Expected a string with maximum length 64, but got a string with "
            "length 1640 instead."
        ),
        (
            "Invalid 'tools': array too long. Expected an array with maximum length 128, but got one "
            "with length 140 instead."
        ),
        "The request took too long to process.",
    ],
)
def test_other_refusals_are_not_about_the_length(error: str) -> None:
    assert not is_refused_for_length(error)


@pytest.mark.parametrize(
    "error",
    [
        "",
        "This model's maximum context length is 32768 tokens. However, your request has 100 input tokens.",
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
