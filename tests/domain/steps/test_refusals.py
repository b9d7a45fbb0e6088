"""What models say of a prompt that was too long, read for its numbers."""

from __future__ import annotations

import json

import pytest

from compaction.steps.refusal_wordings import WORDINGS, Fault, Unit
from compaction.steps.refusals import MAX_CHARS, Refusal, find_wording, read_refusal

SAID = {
    "prompt is too long: 214315 tokens > 200000 maximum": (214_315, 200_000),
    "The model returned the following errors: prompt is too long: 903884 tokens > 200000 maximum": (903_884, 200_000),
    "input length and `max_tokens` exceed context limit: 198000 + 8192 > 200000, decrease input length or "
    "`max_tokens` and try again": (198_000, 191_808),
    "This model's maximum context length is 128000 tokens. However, your messages resulted in 130000 tokens. Please "
    "reduce the length of the messages.": (130_000, 128_000),
    "This model's maximum context length is 4097 tokens. However, you requested 4500 tokens (4000 in the messages, 500 "
    "in the completion).": (4_000, 3_597),
    "'max_tokens' or 'max_completion_tokens' is too large: 8192. This model's maximum context length is 65536 tokens "
    "and your request has 57879 input tokens (8192 > 65536 - 57879).": (57_879, 57_344),
    "This model's maximum context length is 32768 tokens. However, your request has 40000 input tokens.": (
        40_000,
        32_768,
    ),
    "This endpoint's maximum context length is 1048576 tokens. However, you requested about 1293741 tokens (1227853 of "
    "text input, 353 of tool input, 65535 in the output).": (1_228_206, 983_041),
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
    # AIDotNet/OpenCowork#82, of vLLM
    "This model's maximum context length is 262144 tokens. However, you requested 128000 output tokens and your prompt "
    "contains at least 134145 input tokens, for a total of at least 262145 tokens. Please reduce the length of the "
    "input prompt or the number of requested output tokens. (parameter=input_tokens, value=134145)": 134_144,
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


HISTORY = {
    # Wordings in tokens beside those above
    (
        400,
        (
            "This model's maximum context length is 8192 tokens. However, you requested 1000 output tokens and your "
            "prompt "
            "contains 9000 input tokens, for a total of 10000 tokens."
        ),
    ): (Unit.TOKENS, 9_000, 7_192),
    (400, "The model's context length is only 4096 tokens, but the request has 5000 tokens"): (
        Unit.TOKENS,
        5_000,
        4_096,
    ),
    # Aider-AI/aider#1880, of OpenAI; continuedev/continue#10218, of Groq
    (
        429,
        (
            "Request too large for gpt-4o in organization org-2itO on tokens per min (TPM): Limit 30000, "
            "Requested 36278. "
            "The input or output tokens must be reduced in order to run successfully."
        ),
    ): (Unit.TOKENS, 36_278, 30_000),
    (
        413,
        (
            "Request too large for model `llama-3.3-70b-versatile` in organization `org_01` service tier "
            "`on_demand` on "
            "tokens per minute (TPM): Limit 12000, Requested 14137, please reduce your message size and try again."
        ),
    ): (
        Unit.TOKENS,
        14_137,
        12_000,
    ),
    (429, "Request too large for gpt-4o in organization org-2itO."): (Unit.TOKENS, None, None),
    # cline/cline#995
    (413, "Request body too large for meta-llama-3-70b-instruct model. Max size: 8000 tokens."): (
        Unit.TOKENS,
        None,
        8_000,
    ),
    # anomalyco/opencode#11141, Gitlawb/openclaude#353
    (400, "Cannot truncate prompt with n_keep (15028) >= n_ctx (7424)"): (Unit.TOKENS, 15_028, 7_424),
    (
        400,
        (
            "The number of tokens to keep from the initial prompt is greater than the context length (n_keep: 13055>= "
            "n_ctx: 4096). Try to load the model with a larger context length"
        ),
    ): (Unit.TOKENS, 13_055, 4_096),
    (400, "Too many input tokens. Max input tokens: 8192, request input token count: 8400"): (
        Unit.TOKENS,
        8_400,
        8_192,
    ),
    # cohere-ai/sandbox-topically#4
    (
        400,
        (
            "too many tokens: total number of tokens (prompt and prediction) cannot exceed 2048 - received 6354. "
            "Try using "
            "a shorter prompt or a smaller max_tokens value."
        ),
    ): (Unit.TOKENS, 6_354, 2_048),
    # cline/cline#5140
    (400, "Please reduce the length of the messages or completion. Current length is 42328 while limit is 40000"): (
        Unit.TOKENS,
        42_328,
        40_000,
    ),
    # esengine/DeepSeek-Reasonix#9696
    (400, "Input length 1048826 exceeds the maximum length 1048566. Request id: 0217"): (
        Unit.TOKENS,
        1_048_826,
        1_048_566,
    ),
    # ggml-org/llama.cpp#15780: a 500
    (
        500,
        (
            '{"error": {"code": 500, "message": "the request exceeds the available context size.", "type": '
            '"exceed_context_size_error", "n_prompt_tokens": 1407, "n_ctx": 256}}'
        ),
    ): (Unit.TOKENS, 1_407, 256),
    (500, "Context size has been exceeded."): (Unit.TOKENS, None, None),
    (500, '{"error": {"type": "exceed_context_size_error"}}'): (Unit.TOKENS, None, None),
    # ollama/ollama#14186
    (500, '{"error":"the input length exceeds the context length"}'): (Unit.TOKENS, None, None),
    (400, "prompt too long; exceeded max context length by 12 tokens"): (Unit.TOKENS, None, None),
    (400, "The number of tokens to keep from the initial prompt is greater than the context length."): (
        Unit.TOKENS,
        None,
        None,
    ),
    (500, "litellm.ContextWindowExceededError: it is too much"): (Unit.TOKENS, None, None),
    (400, '{"error": {"code": "model_max_prompt_tokens_exceeded"}}'): (Unit.TOKENS, None, None),
    (400, "input and output exceed context limit"): (Unit.TOKENS, None, None),
    (400, "Too many input tokens"): (Unit.TOKENS, None, None),
    (400, "model_context_window_exceeded"): (Unit.TOKENS, None, None),
    (400, "too many tokens: size limit exceeded by 11923 tokens."): (Unit.TOKENS, None, None),
    (400, "Total tokens of image and text exceed max message tokens"): (Unit.TOKENS, None, None),
    (400, "The request exceeds the model's context length"): (Unit.TOKENS, None, None),
    (502, '{"error": {"message": "Provider returned error", "metadata": {"raw": "context length exceeded"}}}'): (
        Unit.TOKENS,
        None,
        None,
    ),
    (400, "Over the maximum model length"): (Unit.TOKENS, None, None),
    # cline/cline#3664: a stream without any answer
    (200, ""): (Unit.TOKENS, None, None),
    # Messages and characters
    (
        400,
        (
            "Invalid 'messages': array too long. Expected an array with maximum length 2048, but got an array "
            "with length "
            "2060 instead."
        ),
    ): (Unit.MESSAGES, 2_060, 2_048),
    (400, "messages: List should have at most 100000 items after validation, not 100001"): (
        Unit.MESSAGES,
        100_001,
        100_000,
    ),
    # FlowiseAI/Flowise#5085, VectorlyApp/bluebox#31
    (
        400,
        (
            "Invalid 'messages[7].content': string too long. Expected a string with maximum length 10485760, but got a "
            "string with length 10624990 instead."
        ),
    ): (Unit.CHARACTERS, 10_624_990, 10_485_760),
    (
        400,
        (
            "Invalid 'input[3].output': string too long. Expected a string with maximum length 10485760, but "
            "got a string "
            "with length 12000000 instead."
        ),
    ): (Unit.CHARACTERS, 12_000_000, 10_485_760),
    (
        400,
        (
            "Invalid 'input': string too long. Expected a string with maximum length 10485760, but got a string "
            "with length "
            "12000000 instead."
        ),
    ): (Unit.CHARACTERS, 12_000_000, 10_485_760),
    (400, "Malformed input request: expected maxLength: 400000, actual: 480000, please reformat your input"): (
        Unit.CHARACTERS,
        480_000,
        400_000,
    ),
    # QwenLM/qwen-code#1082
    (
        400,
        (
            "String value length (20054016) exceeds the maximum allowed (20000000, from "
            "`StreamReadConstraints.getMaxStringLength()`)"
        ),
    ): (Unit.CHARACTERS, 20_054_016, 20_000_000),
    # Bytes
    # MoonshotAI/kimi-code#1862
    (400, "total message size 2100954 exceeds limit 2097152"): (Unit.BYTES, 2_100_954, 2_097_152),
    # MaKTaiL/gemini-srt-translator#63, google-gemini/gemini-cli#13776
    (400, "Request payload size exceeds the limit: 314572800 bytes."): (Unit.BYTES, None, 314_572_800),
    (413, '{"error":{"message":"Maximum request body size 1048576 exceeded, actual body size 1056562","code":413}}'): (
        Unit.BYTES,
        1_056_562,
        1_048_576,
    ),
    (
        400,
        (
            "1 validation error detected: Value at 'body' failed to satisfy constraint: Member must have length "
            "less than "
            "or equal to 25000000"
        ),
    ): (Unit.BYTES, None, 25_000_000),
    (413, "Request must be smaller than 6291456 bytes for the InvokeFunction operation"): (Unit.BYTES, None, 6_291_456),
    (500, "grpc: received message larger than max (5000000 vs. 4194304)"): (Unit.BYTES, 5_000_000, 4_194_304),
    (500, "http: request body too large"): (Unit.BYTES, None, None),
    (500, "PayloadTooLargeError: request entity too large"): (Unit.BYTES, None, None),
    (422, "Request body is too large"): (Unit.BYTES, None, None),
    (413, '{"type":"error","error":{"type":"request_too_large","message":"Request exceeds the maximum size"}}'): (
        Unit.BYTES,
        None,
        None,
    ),
    (500, "Payload Too Large"): (Unit.BYTES, None, None),
    (400, "Failed to buffer the request body: length limit exceeded"): (Unit.BYTES, None, None),
    (413, "<html><head><title>413 Request Entity Too Large</title></head><hr><center>nginx</center></html>"): (
        Unit.BYTES,
        None,
        None,
    ),
    (413, "FUNCTION_PAYLOAD_TOO_LARGE"): (Unit.BYTES, None, None),
    (413, ""): (Unit.BYTES, None, None),
    # Media
    # anthropics/claude-code#24541
    (400, "Too much media: 60 document pages + 47 images > 100"): (Unit.IMAGES_AND_PAGES, 107, 100),
    (400, "too many images and documents: 120 + 0 > 100"): (Unit.IMAGES_AND_PAGES, 120, 100),
    # anomalyco/opencode#48647, anomalyco/opencode#39677
    (400, "request contains 52 images, exceeding the maximum of 50 allowed per request"): (Unit.IMAGES, 52, 50),
    (
        400,
        (
            '{"error":{"message":"Provider returned error","metadata":{"raw":"{\\n \\"error\\": \\"Exceeded maximum '
            "number of "
            'images (50) allowed in the request.\\"}"}}}'
        ),
    ): (Unit.IMAGES, None, 50),
    # microsoft/vscode#306919, microsoft/vscode#303825
    (400, "Too many images in request: 11 images provided, but the model supports a maximum of 10 images."): (
        Unit.IMAGES,
        11,
        10,
    ),
    (
        400,
        "The request contains too many images: 11 images were provided, but the model supports a maximum of 10 images.",
    ): (
        Unit.IMAGES,
        11,
        10,
    ),
    # vllm-project/vllm#17092
    (400, "At most 5 image(s) may be provided in one request."): (Unit.IMAGES, None, 5),
    (400, "Too many images in request. Max is 8."): (Unit.IMAGES, None, 8),
    (400, "This model supports up to 3 images"): (Unit.IMAGES, None, 3),
    # QuantumNous/new-api#1233: a 500
    (500, "too many images in the message, max allowed is 16"): (Unit.IMAGES, None, 16),
    (400, "There are too many images."): (Unit.IMAGES, None, None),
    # gptme/gptme#185
    (400, "messages.58.content.2.image.source.base64: image exceeds 5 MB maximum: 6500712 bytes > 5242880 bytes"): (
        Unit.IMAGE_BYTES,
        6_500_712,
        5_242_880,
    ),
    # anthropics/claude-code#49720, and as Amazon Bedrock words it
    (400, "At least one of the image dimensions exceed max allowed size for many-image requests: 2000 pixels"): (
        Unit.IMAGE_PIXELS,
        None,
        2_000,
    ),
    (400, "image exceed max allowed size for many-image requests: 2000 pixels"): (Unit.IMAGE_PIXELS, None, 2_000),
    # infiniflow/ragflow#13063
    (
        400,
        (
            "Image 0 failed: Image exceeds the maximum allowed total pixels. Current dimensions: 4634x12324 = 57109416 "
            "pixels. Maximum allowed: 36000000 pixels."
        ),
    ): (Unit.IMAGE_AREA, None, 36_000_000),
    # anthropics/claude-code#6231
    (400, "messages.38.content.0.pdf.source.base64.data: A maximum of 100 PDF pages may be provided."): (
        Unit.PAGES,
        None,
        100,
    ),
}
"""Errors by status and text, with unit, amount and limit."""
OUTPUT = [
    # OpenHands/OpenHands#9937, Aider-AI/aider#3721
    (
        "This endpoint's maximum context length is 131072 tokens. However, you requested about 138956 tokens (7884 "
        "of text "
        "input, 131072 in the output). Please reduce the length of either one."
    ),
    (
        "This model's maximum context length is 4096 tokens. However, you requested 4222 tokens (1222 in the "
        "messages, 3000 "
        "in the completion). Please reduce the length of the messages or completion."
    ),
    (
        "'max_tokens' or 'max_completion_tokens' is too large: 262144. This model's maximum context length is "
        "262144 tokens "
        "and your request has 22139 input tokens (262144 > 262144 - 22139)."
    ),
    (
        "This model's maximum context length is 262144 tokens. However, you requested 262144 output tokens and your "
        "prompt "
        "contains at least 1 input tokens, for a total of at least 262145 tokens."
    ),
    # stackblitz/bolt.new#7414
    (
        "input length and `max_tokens` exceed context limit: 90402 + 116650 > 204648, decrease input length or "
        "`max_tokens`"
    ),
    "max_tokens: 200000 > 64000, which is the maximum allowed number of output tokens for claude-sonnet-4-5",
    (
        "max_tokens is too large: 262144. This model supports at most 16384 completion tokens, whereas you provided "
        "262144."
    ),
    # RooCodeInc/Roo-Code#5729
    (
        "`max_tokens` must be less than or equal to `16384`, the maximum value for `max_tokens` is less than the "
        "`context_window` for this model"
    ),
    "max_tokens (300000) exceeds the context window of the model",
    "max_completion_tokens exceeds the context window of the model",
    # deepseek-ai/DeepSeek-V3#69
    "Invalid max_tokens value, the valid range of max_tokens is [1, 8192]",
    "Range of max_tokens should be [1, 8192]",
    "The maximum tokens you requested exceeds the model limit of 4096.",
]
OTHER = [
    # github/app#409, AnswerDotAI/fastllm#45
    (
        "Invalid 'input[206].id': string too long. Expected a string with maximum length 64, but got a "
        "string with length "
        "1640 instead."
    ),
    "Invalid 'tools': array too long. Expected an array with maximum length 128, but got one with length 140 instead.",
    (
        "Invalid 'messages[4].tool_calls': array too long. Expected an array with maximum length 128, but got an "
        "array with "
        "length 130 instead."
    ),
    "Invalid 'stop': array too long. Expected an array with maximum length 4, but got an array with length 5 instead.",
    (
        "Invalid 'metadata.note': string too long. Expected a string with maximum length 512, but got a string with "
        "length "
        "900 instead."
    ),
    "Value at 'toolConfig.tools.1.name' failed to satisfy constraint: Member must have length less than or equal to 64",
    "tools.0.custom.description: String is too long (max 10000)",
    "metadata.user_id: String should have at most 256 characters",
    "'user' is too long - 'user'",
    # anthropics/claude-code#27944, Wei-Shaw/sub2api#572
    "The long context beta is not yet available for this subscription.",
    "Extra usage is required for long context requests.",
    "context_management: Extra inputs are not permitted; the context window beta header is missing",
    "Fetching the image URL took too long.",
    "File name too long",
    "invalid option: context_length must be positive",
    "ThrottlingException: Too many tokens, please wait before trying again.",
    "Rate limit reached for gpt-4o on tokens per min (TPM): Limit 30000, Used 29000, Requested 12000.",
    # What was refused is within the limit that is named.
    "prompt is too long: 100 tokens > 200000 maximum",
    "This model's maximum context length is 32768 tokens. However, your request has 100 input tokens.",
]
UNKNOWN = [
    (400, ""),
    (529, "overloaded_error"),
    (400, "Unsupported parameter: 'max_tokens' is not supported with this model."),
    (429, "You exceeded your current quota, please check your plan and billing details."),
    (404, "The model `gpt-9` does not exist or you do not have access to it."),
    (502, "<html><h1>502 Bad Gateway</h1></html>"),
    (400, "The title is too long."),
    # As a rate limit it is mended by patience.
    (429, "prompt is too long: 214315 tokens > 200000 maximum"),
    (400, "x" * MAX_CHARS + "prompt is too long: 214315 tokens > 200000 maximum"),
]


@pytest.mark.requirement("O8")
@pytest.mark.parametrize(("error", "numbers"), SAID.items())
def test_the_numbers_are_found(error: str, numbers: tuple[int, int]) -> None:
    expected = Refusal(Fault.HISTORY, Unit.TOKENS, *numbers)
    assert read_refusal(error, status=400) == expected
    # As it comes in an API's answer, behind a proxy that writes it into its own, over several lines, and escaped again.
    wrapped = json.dumps({"type": "error", "error": {"type": "invalid_request_error", "message": f"400\n {error}"}})
    assert read_refusal(wrapped, status=502) == expected
    twice = json.dumps({"error": {"metadata": {"raw": wrapped.replace(">", "\\u003e")}}})
    assert read_refusal(twice.lower()) == expected


@pytest.mark.requirement("O8")
@pytest.mark.parametrize(("error", "limit"), LIMITS.items())
def test_a_limit_without_the_prompts_tokens_is_one(error: str, limit: int) -> None:
    assert read_refusal(error, status=400) == Refusal(Fault.HISTORY, Unit.TOKENS, None, limit)


@pytest.mark.parametrize("error", UNSAID)
def test_wordings_without_numbers_have_none(error: str) -> None:
    assert read_refusal(error, status=400) == Refusal(Fault.HISTORY)
    assert read_refusal(json.dumps({"error": {"message": error}}).lower()) == Refusal(Fault.HISTORY)


@pytest.mark.parametrize(("error", "expected"), HISTORY.items())
def test_refusals_of_the_history_have_their_unit(
    error: tuple[int, str], expected: tuple[Unit, int | None, int | None]
) -> None:
    status, text = error
    assert read_refusal(text, status=status) == Refusal(Fault.HISTORY, *expected)


@pytest.mark.parametrize("error", OUTPUT)
def test_output_that_was_asked_for_is_not_the_historys_fault(error: str) -> None:
    refusal = read_refusal(error, status=400)
    assert refusal is not None
    assert refusal.fault is Fault.OUTPUT


@pytest.mark.parametrize("error", OTHER)
def test_other_refusals_are_not_about_the_history(error: str) -> None:
    refusal = read_refusal(error, status=400)
    assert refusal is not None
    assert refusal.fault is Fault.OTHER


@pytest.mark.parametrize(("status", "error"), UNKNOWN)
def test_unknown_errors_are_none(status: int, error: str) -> None:
    assert read_refusal(error, status=status) is None


def test_every_row_of_the_table_decides_over_an_error() -> None:
    history = [*((400, text) for text in (*SAID, *LIMITS, *UNSAID)), *HISTORY]
    errors = [*history, *((400, text) for text in (*OUTPUT, *OTHER))]
    decided = {found[0] for status, text in errors if (found := find_wording(text, status=status)) is not None}
    assert [wording.says for wording in WORDINGS if wording not in decided] == []
    assert all(wording.source.startswith("https://") for wording in WORDINGS)


def test_output_that_is_counted_and_not_named_is_what_the_request_asked_for() -> None:
    text = "Request too large for m on tokens per minute (TPM): Limit 8000, Requested 32979"
    # zeeyado/koassistant.koplugin#106: a prompt of one word
    asked = read_refusal(text, status=413, output_tokens=32_768)
    assert asked is not None
    assert asked.fault is Fault.OUTPUT
    assert read_refusal(text, status=413, output_tokens=1_000) == Refusal(Fault.HISTORY, Unit.TOKENS, 31_979, 7_000)


@pytest.mark.parametrize(("asked", "limit"), [(None, 128_000), (8_000, 120_000), (64_000, 64_000), (100_000, 128_000)])
def test_output_that_was_asked_for_is_left_free(asked: int | None, limit: int) -> None:
    text = "This model's maximum context length is 128000 tokens. However, your messages resulted in 130000 tokens."
    assert read_refusal(text, output_tokens=asked) == Refusal(Fault.HISTORY, Unit.TOKENS, 130_000, limit)
    alone = "Request body too large for m model. Max size: 128000 tokens"
    assert read_refusal(alone, status=413, output_tokens=asked) == Refusal(Fault.HISTORY, Unit.TOKENS, None, limit)


def test_history_that_is_the_larger_part_gives_way_to_the_output() -> None:
    # continuedev/continue#6080: a conversation that has grown; its client asks for the same output in every turn.
    text = "input length and `max_tokens` exceed context limit: 199759 + 8192 > 200000"
    assert read_refusal(text) == Refusal(Fault.HISTORY, Unit.TOKENS, 199_759, 191_808)


def test_history_that_exceeds_the_limit_alone_is_at_fault_whatever_was_asked_for() -> None:
    text = "input length and `max_tokens` exceed context limit: 210000 + 300000 > 200000"
    assert read_refusal(text) == Refusal(Fault.HISTORY, Unit.TOKENS, 210_000, 200_000)


@pytest.mark.parametrize(
    "error",
    [
        "the request exceeds the available context size. try increasing the context size or enable context shift",
        "Please reduce the length of the messages or completion.",
        "prompt is too long: 0 tokens > 0 maximum",
        "prompt is too long: 999999999999 tokens > 200000 maximum",
        "prompt is too long: 99999999999999999999 tokens > 200000 maximum",
    ],
)
def test_where_there_are_none_none_are_made_up(error: str) -> None:
    assert read_refusal(error) == Refusal(Fault.HISTORY)


def test_an_error_of_many_numbers_is_read_in_no_time() -> None:
    text = "context length is 1 " * 1_000 + "token count 2 " * 1_000 + "max_tokens input length ( " * 1_000
    assert read_refusal(text) is None


@pytest.mark.parametrize(
    ("refusal", "size", "expected"),
    [
        (Refusal(Fault.HISTORY, Unit.BYTES, None, 100), 150, Refusal(Fault.HISTORY, Unit.BYTES, 150, 100, 150)),
        # It was refused for something else than this limit.
        (Refusal(Fault.HISTORY, Unit.BYTES, None, 100), 50, Refusal(Fault.HISTORY, Unit.BYTES, None, None, 50)),
        (Refusal(Fault.HISTORY, Unit.BYTES, 200, 100), 150, Refusal(Fault.HISTORY, Unit.BYTES, 200, 100, 150)),
        (Refusal(Fault.HISTORY, Unit.TOKENS, None, 100), 150, Refusal(Fault.HISTORY, Unit.TOKENS, None, 100)),
    ],
)
def test_the_requests_own_size_is_the_amount_if_the_error_names_none(
    refusal: Refusal, size: int, expected: Refusal
) -> None:
    assert refusal.with_size(size) == expected
