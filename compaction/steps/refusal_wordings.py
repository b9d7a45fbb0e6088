"""The table of refusals: provider, status, wording, unit and meaning, each with its source.

The first wording that fits decides, so those about something else than the history come first, then those with
numbers, then those without. `tests/domain/steps/test_refusals.py` has an error as providers send it for each row.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final, NamedTuple

LEAST_ERROR: Final = 400
"""The lowest HTTP status of an error."""


class Unit(StrEnum):
    """What a provider counts."""

    TOKENS = "tokens"
    BYTES = "bytes"
    CHARACTERS = "characters"
    MESSAGES = "messages"
    IMAGES = "images"
    IMAGES_AND_PAGES = "images and pages"
    IMAGE_PIXELS = "pixels of a side"
    IMAGE_AREA = "pixels of an image"
    IMAGE_BYTES = "bytes of an image"
    PAGES = "pages"
    NONE = ""


MEDIA: Final = frozenset(
    {Unit.IMAGES, Unit.IMAGES_AND_PAGES, Unit.IMAGE_PIXELS, Unit.IMAGE_AREA, Unit.IMAGE_BYTES, Unit.PAGES}
)
"""Units of which words have none: media alone give way."""


class Fault(StrEnum):
    """What a refusal is about."""

    HISTORY = "the history"
    OUTPUT = "the output that was asked for"
    OTHER = "something else"


SIZE: Final = frozenset({400, 413, 422, 500, 502, 503})
"""Statuses of a request that is too large: servers behind a proxy, and local ones, answer 5xx as well."""


class Wording(NamedTuple):
    """A row of the table.

    In `says`, `{amount}` and `{limit}` are numbers of the unit, `{output}` are the tokens asked for, `{total}` counts
    prompt and output, `{least}` is a count that stopped at the limit, `{also}` is added to the amount, `{}` is any
    number, `{a|b}` is either word, `…` are up to 100 characters without a digit and `*` are up to 200 characters.
    An empty `says` fits every error of the row's statuses.
    """

    provider: str
    says: str
    source: str
    unit: Unit = Unit.TOKENS
    statuses: frozenset[int] = SIZE
    fault: Fault = Fault.HISTORY


_ANY: Final[frozenset[int]] = frozenset()


def _other(provider: str, says: str, source: str) -> Wording:
    """Return a row about something that a shorter history does not mend."""
    return Wording(provider, says, source, Unit.NONE, _ANY, Fault.OTHER)


def _output(provider: str, says: str, source: str) -> Wording:
    """Return a row about the output that was asked for."""
    return Wording(provider, says, source, Unit.TOKENS, _ANY, Fault.OUTPUT)


_ABOUT_MESSAGES: Final = (
    Wording(
        "OpenAI, Azure OpenAI",
        "Invalid '{messages|input}': array too long. Expected an array with maximum length {limit}, "
        "but got an array with length {amount}",
        "https://platform.openai.com/docs/api-reference/chat/create",
        Unit.MESSAGES,
    ),
    Wording(
        "OpenAI, Azure OpenAI",
        "Invalid '{messages|input}[{}].content*string too long. Expected a string with maximum length {limit}, "
        "but got a string with length {amount}",
        "https://github.com/VectorlyApp/bluebox/issues/31",
        Unit.CHARACTERS,
    ),
    Wording(
        "OpenAI, Azure OpenAI",
        "Invalid 'input[{}].output*string too long. Expected a string with maximum length {limit}, "
        "but got a string with length {amount}",
        "https://platform.openai.com/docs/api-reference/responses/create",
        Unit.CHARACTERS,
    ),
    Wording(
        "OpenAI, Azure OpenAI",
        "Invalid '{input|prompt}': string too long. Expected a string with maximum length {limit}, "
        "but got a string with length {amount}",
        "https://platform.openai.com/docs/api-reference/responses/create",
        Unit.CHARACTERS,
    ),
    Wording(
        "Anthropic",
        "messages: {List|Array} should have at most {limit} items after validation, not {amount}",
        "https://docs.claude.com/en/api/messages",
        Unit.MESSAGES,
    ),
)
"""Wordings that would be about something else if they named another field."""

_OTHERS: Final = (
    _other(
        "OpenAI", "array too long. Expected an array with maximum length", "https://github.com/github/app/issues/409"
    ),
    _other(
        "OpenAI",
        "string too long. Expected a string with maximum length",
        "https://github.com/AnswerDotAI/fastllm/issues/45",
    ),
    _other("Anthropic", "tools.{}.", "https://docs.claude.com/en/api/messages"),
    _other(
        "Anthropic", "String should have at most {} character", "https://docs.pydantic.dev/errors/validation_errors"
    ),
    _other("OpenAI", "'user' is too long", "https://platform.openai.com/docs/api-reference/chat/create"),
    _other("Anthropic", "long context beta", "https://github.com/anthropics/claude-code/issues/27944"),
    _other("Anthropic", "Extra usage is required for long context", "https://github.com/Wei-Shaw/sub2api/issues/572"),
    _other("Anthropic", "Extra inputs are not permitted", "https://docs.claude.com/en/api/beta-headers"),
    _other("Anthropic", "took too long", "https://docs.claude.com/en/api/errors"),
    _other("operating systems", "File name too long", "https://man7.org/linux/man-pages/man3/errno.3.html"),
    _other("Ollama", "context_length must be", "https://docs.ollama.com/modelfile"),
    _other(
        "Amazon Bedrock",
        "Too many tokens, please wait",
        "https://docs.aws.amazon.com/bedrock/latest/userguide/troubleshooting-api-error-codes.html",
    ),
    _other("OpenAI", "Rate limit reached", "https://github.com/BuilderIO/micro-agent/issues/86"),
)

_OUTPUTS: Final = (
    _output(
        "Anthropic",
        "max_tokens: {} > {}, which is the maximum allowed number of output tokens",
        "https://docs.claude.com/en/api/messages",
    ),
    _output(
        "OpenAI",
        "max_tokens is too large: {}. This model supports at most {} completion tokens",
        "https://platform.openai.com/docs/api-reference/chat/create",
    ),
    _output(
        "Groq",
        "`{max_tokens|max_completion_tokens}` must be less than or equal to",
        "https://github.com/RooCodeInc/Roo-Code/issues/5729",
    ),
    _output(
        "OpenAI-compatible",
        "{max_tokens|max_completion_tokens|max_output_tokens|max_new_tokens}…{}…exceeds",
        "https://github.com/vllm-project/vllm/issues/12165",
    ),
    _output(
        "OpenAI-compatible",
        "{max_tokens|max_completion_tokens|max_output_tokens|max_new_tokens}…exceeds",
        "https://github.com/vllm-project/vllm/issues/12165",
    ),
    _output(
        "DeepSeek",
        "Invalid max_tokens value, the valid range of max_tokens is",
        "https://github.com/deepseek-ai/DeepSeek-V3/issues/69",
    ),
    _output("Alibaba Cloud", "Range of max_tokens should be", "https://help.aliyun.com/zh/model-studio/error-code"),
    _output(
        "Amazon Bedrock",
        "The maximum tokens you requested exceeds the model limit",
        "https://docs.aws.amazon.com/bedrock/latest/userguide/troubleshooting-api-error-codes.html",
    ),
)

_NUMBERED: Final = (
    Wording(
        "Anthropic",
        "prompt is too long…{amount} tokens > {limit}",
        "https://github.com/earendil-works/pi/issues/102",
    ),
    Wording(
        "Anthropic",
        "exceed context limit…{amount} + {output} > {limit}",
        "https://github.com/anthropics/claude-code/issues/228",
    ),
    Wording(
        "OpenAI",
        "context length is {limit} tokens…requested {total} tokens ({amount} in {the messages|your prompt|the prompt}*"
        "{output} {in|for} the completion",
        "https://github.com/sugarforever/chat-ollama/issues/130",
    ),
    Wording(
        "OpenRouter",
        "context length is {limit} tokens…requested about {total} tokens (*{output} in the output",
        "https://github.com/OpenHands/OpenHands/issues/9937",
    ),
    Wording(
        "vLLM",
        "length is {limit} tokens…requested {output} output tokens…contains at least {least} input",
        "https://github.com/AIDotNet/OpenCowork/issues/82",
    ),
    Wording(
        "vLLM",
        "length is {limit} tokens…requested {output} output tokens…contains {amount} input",
        "https://github.com/AIDotNet/OpenCowork/issues/82",
    ),
    Wording(
        "vLLM",
        "passed {amount} input tokens…requested {output} output tokens…length is only {limit}",
        "https://docs.vllm.ai/en/latest/serving/openai_compatible_server.html",
    ),
    Wording(
        "SGLang",
        "length of {limit} tokens…total of {} tokens: {amount} tokens from*{output} tokens for the completion",
        "https://github.com/sgl-project/sglang/blob/main/python/sglang/srt/entrypoints/openai/serving_chat.py",
    ),
    Wording(
        "vLLM",
        "is too large: {output}…context length is {limit} tokens and your request has {amount} input",
        "https://docs.vllm.ai/en/latest/serving/openai_compatible_server.html",
    ),
    Wording(
        "OpenAI, vLLM, xAI",
        "{context|prompt|input} length is {limit}…{resulted in|requested|requested about|request has|request contains} "
        "{amount}",
        "https://github.com/orhanerday/ChatGPT/issues/17",
    ),
    Wording(
        "vLLM",
        "length is only {limit}…{resulted in|requested|request has|request contains} {amount}",
        "https://github.com/vllm-project/vllm/issues/12165",
    ),
    Wording(
        "OpenAI",
        "limit of {limit} tokens…resulted in {amount}",
        "https://platform.openai.com/docs/guides/error-codes",
    ),
    Wording(
        "OpenAI, Groq",
        "Request too large for * tokens per min* Limit {limit}, Requested {total}",
        "https://github.com/Aider-AI/aider/issues/1880",
        statuses=frozenset({413, 429}),
    ),
    Wording(
        "GitHub Models",
        "Request body too large for * model. Max size: {limit} tokens",
        "https://github.com/cline/cline/issues/995",
    ),
    Wording(
        "GitHub Copilot",
        "prompt token count of {amount} exceeds the limit of {limit}",
        "https://github.com/jjleng/copilot-more/issues/35",
    ),
    Wording(
        "Gemini, Vertex AI",
        "token count…{amount}…{maximum|only supports|limit}…{limit}",
        "https://github.com/google-gemini/gemini-cli/issues/6678",
    ),
    Wording(
        "Gemini",
        "token count exceeds the maximum…{limit}",
        "https://github.com/arkavo-org/arkavo-edge/issues/371",
    ),
    Wording(
        "Mistral",
        "prompt contains {amount} tokens * too large for model with {limit}",
        "https://github.com/jupyterlite/ai/issues/291",
    ),
    Wording(
        "Moonshot",
        "token limit: {limit} (requested: {total}",
        "https://github.com/MoonshotAI/kimi-cli/issues/2011",
    ),
    Wording(
        "LM Studio",
        "keep the first {amount} tokens…context length of {|only }{limit}",
        "https://github.com/lmstudio-ai/lmstudio-bug-tracker/issues/237",
    ),
    Wording(
        "LM Studio",
        "n_keep{: | (}{amount}{) |}>= n_ctx{: | (}{limit}",
        "https://github.com/anomalyco/opencode/issues/11141",
    ),
    Wording(
        "Ollama",
        "input length {amount} exceeds {maximum |}context length {limit}",
        "https://github.com/ollama/ollama/issues/14186",
    ),
    Wording(
        "llama.cpp",
        "request ({amount} tokens)…context size ({limit}",
        "https://github.com/ggml-org/llama.cpp/pull/15780",
    ),
    Wording(
        "llama.cpp",
        "n_prompt_tokens…{amount}…n_ctx…{limit}",
        "https://github.com/oobabooga/textgen/issues/7257",
    ),
    Wording(
        "llama-cpp-python",
        "requested tokens ({amount})…context window of {limit}",
        "https://github.com/rllm-team/rllm/issues/55",
    ),
    Wording(
        "Fireworks",
        "prompt_tokens ({amount})…max_seq_len ({limit}",
        "https://docs.fireworks.ai/guides/inference-error-codes",
    ),
    Wording(
        "Fireworks",
        "prompt is too long: {amount}…context length: {limit}",
        "https://docs.fireworks.ai/guides/inference-error-codes",
    ),
    Wording(
        "Amazon Bedrock",
        "max{imum|} input tokens: {limit}…token count: {amount}",
        "https://docs.aws.amazon.com/bedrock/latest/userguide/model-parameters-titan-embed-text.html",
    ),
    Wording(
        "Cohere",
        "number of tokens (prompt and prediction) cannot exceed {limit}…{received|got} {total}",
        "https://github.com/cohere-ai/sandbox-topically/issues/4",
    ),
    Wording(
        "Cohere",
        "tokens in the prompt cannot exceed {limit}…{received|got} {amount}",
        "https://docs.cohere.com/reference/errors",
    ),
    Wording(
        "Cerebras",
        "current length is {total} while limit is {limit}",
        "https://github.com/cline/cline/issues/5140",
    ),
    Wording(
        "Volcengine",
        "input length {amount} exceeds the maximum length {limit}",
        "https://github.com/esengine/DeepSeek-Reasonix/issues/9696",
    ),
    Wording(
        "TGI, Together",
        "must be <= {limit}…given: {amount}…and {output}",
        "https://github.com/huggingface/text-generation-inference/blob/main/router/src/validation.rs",
    ),
    Wording(
        "TGI",
        "must have less than {limit} tokens…given: {amount}",
        "https://github.com/huggingface/text-generation-inference/blob/main/router/src/validation.rs",
    ),
    Wording(
        "SGLang",
        "input ({amount} tokens) is longer than…({limit}",
        "https://github.com/QwenLM/Qwen3/issues/1321",
    ),
    Wording(
        "SGLang",
        "input length ({amount} tokens) exceeds…({limit}",
        "https://github.com/sgl-project/sglang/issues/4048",
    ),
    Wording(
        "vLLM",
        "length {amount}) is {longer than|too long}…length{| of} {limit}",
        "https://github.com/vllm-project/vllm/issues/12165",
    ),
    Wording(
        "Databricks",
        "max input length is {limit} tokens…supplied {amount}",
        "https://github.com/run-llama/llama_index/issues/7974",
    ),
    Wording(
        "Alibaba Cloud",
        "range of input length should be [{}, {limit}]",
        "https://github.com/esengine/DeepSeek-Reasonix/issues/8518",
    ),
    Wording(
        "OpenAI-compatible",
        "{maximum context|maximum prompt|maximum input|maximum model|max model} {length|len} {is|of} {limit}",
        "https://github.com/vllm-project/vllm/issues/12165",
    ),
)

_COUNTED_MEDIA: Final = (
    Wording(
        "Anthropic",
        "Too much media: {also} document pages + {amount} images > {limit}",
        "https://github.com/anthropics/claude-code/issues/24541",
        Unit.IMAGES_AND_PAGES,
    ),
    Wording(
        "Anthropic",
        "too many images and documents: {amount} + {also} > {limit}",
        "https://github.com/anthropics/claude-code/issues/24541",
        Unit.IMAGES_AND_PAGES,
    ),
    Wording(
        "Meta",
        "request contains {amount} images, exceeding the maximum of {limit}",
        "https://github.com/anomalyco/opencode/issues/48647",
        Unit.IMAGES,
    ),
    Wording(
        "Azure OpenAI",
        "Exceeded maximum number of images ({limit})",
        "https://github.com/anomalyco/opencode/issues/39677",
        Unit.IMAGES,
    ),
    Wording(
        "GitHub Copilot",
        "too many images…{amount} images {were |}provided, but the model supports a maximum of {limit} images",
        "https://github.com/microsoft/vscode/issues/306919",
        Unit.IMAGES,
    ),
    Wording(
        "vLLM",
        "At most {limit} {image|image(s)|images} may be provided in one {prompt|request}",
        "https://github.com/vllm-project/vllm/issues/17092",
        Unit.IMAGES,
    ),
    Wording(
        "Mistral",
        "Too many images in request. Max is {limit}",
        "https://github.com/earendil-works/pi/pull/120",
        Unit.IMAGES,
    ),
    Wording(
        "Groq",
        "This model supports {up to|at most} {limit} image",
        "https://console.groq.com/docs/vision",
        Unit.IMAGES,
    ),
    Wording(
        "new-api",
        "too many images in the message, max allowed is {limit}",
        "https://github.com/QuantumNous/new-api/issues/1233",
        Unit.IMAGES,
    ),
    Wording("OpenAI-compatible", "too many images", "https://github.com/microsoft/vscode/issues/303825", Unit.IMAGES),
    Wording(
        "Anthropic, Amazon Bedrock",
        "image exceeds {} MB maximum: {amount} bytes > {limit} bytes",
        "https://github.com/gptme/gptme/issues/185",
        Unit.IMAGE_BYTES,
    ),
    Wording(
        "Anthropic",
        "image dimensions exceed max allowed size…{limit} pixels",
        "https://github.com/anthropics/claude-code/issues/49720",
        Unit.IMAGE_PIXELS,
    ),
    Wording(
        "Amazon Bedrock",
        "image exceed max allowed size…{limit} pixels",
        "https://github.com/aws-solutions-library-samples/accelerated-intelligent-document-processing-on-aws/pull/998",
        Unit.IMAGE_PIXELS,
    ),
    Wording(
        "Volcengine",
        "Image exceeds the maximum allowed total pixels*Maximum allowed: {limit} pixels",
        "https://github.com/infiniflow/ragflow/issues/13063",
        Unit.IMAGE_AREA,
    ),
    Wording(
        "Anthropic",
        "A maximum of {limit} PDF pages may be provided",
        "https://github.com/anthropics/claude-code/issues/6231",
        Unit.PAGES,
    ),
)

_BYTES: Final = (
    Wording(
        "Moonshot",
        "total message size {amount} exceeds limit {limit}",
        "https://github.com/MoonshotAI/kimi-code/issues/1862",
        Unit.BYTES,
    ),
    Wording(
        "Gemini",
        "Request payload size exceeds the limit: {limit} bytes",
        "https://github.com/MaKTaiL/gemini-srt-translator/issues/63",
        Unit.BYTES,
    ),
    Wording(
        "Gemini",
        "Maximum request body size {limit} exceeded, actual body size {amount}",
        "https://github.com/google-gemini/gemini-cli/issues/13776",
        Unit.BYTES,
    ),
    Wording(
        "Amazon Bedrock",
        "Member must have length less than or equal to {limit}",
        "https://docs.aws.amazon.com/bedrock/latest/APIReference/API_runtime_InvokeModel.html",
        Unit.BYTES,
    ),
    Wording(
        "Amazon Bedrock",
        "expected maxLength: {limit}, actual: {amount}",
        "https://docs.aws.amazon.com/bedrock/latest/userguide/model-parameters.html",
        Unit.CHARACTERS,
    ),
    Wording(
        "Alibaba Cloud",
        "String value length ({amount}) exceeds the maximum allowed ({limit}",
        "https://github.com/QwenLM/qwen-code/issues/1082",
        Unit.CHARACTERS,
    ),
    Wording(
        "AWS Lambda",
        "Request must be smaller than {limit} bytes",
        "https://docs.aws.amazon.com/lambda/latest/dg/gettingstarted-limits.html",
        Unit.BYTES,
    ),
    Wording(
        "gRPC",
        "received message larger than max ({amount} vs. {limit})",
        "https://github.com/grpc/grpc-go/blob/master/rpc_util.go",
        Unit.BYTES,
    ),
    Wording(
        "proxies in Go",
        "http: request body too large",
        "https://pkg.go.dev/net/http#MaxBytesError",
        Unit.BYTES,
    ),
    Wording(
        "Express, LiteLLM",
        "request entity too large",
        "https://github.com/google-gemini/gemini-cli/pull/8029",
        Unit.BYTES,
    ),
    Wording(
        "vLLM, FastAPI",
        "Request body {is |}too large",
        "https://fastapi.tiangolo.com/reference/status/",
        Unit.BYTES,
    ),
    Wording(
        "Anthropic",
        "request_too_large",
        "https://docs.claude.com/en/api/errors",
        Unit.BYTES,
    ),
    Wording(
        "proxies",
        "payload too large",
        "https://www.rfc-editor.org/rfc/rfc9110#name-413-content-too-large",
        Unit.BYTES,
    ),
    Wording(
        "axum",
        "length limit exceeded",
        "https://docs.rs/axum/latest/axum/extract/struct.DefaultBodyLimit.html",
        Unit.BYTES,
    ),
)

_UNNUMBERED: Final = (
    Wording("OpenAI", "context_length_exceeded", "https://platform.openai.com/docs/guides/error-codes"),
    Wording("OpenAI", "exceeds the context window", "https://platform.openai.com/docs/guides/error-codes"),
    Wording("GitHub Copilot", "model_max_prompt_tokens_exceeded", "https://github.com/anomalyco/models.dev/issues/172"),
    Wording(
        "OpenAI, Groq",
        "Request too large for",
        "https://github.com/vanna-ai/vanna-flask/issues/11",
        statuses=frozenset({413, 429}),
    ),
    Wording("LiteLLM", "ContextWindowExceededError", "https://docs.litellm.ai/docs/exception_mapping"),
    Wording(
        "Groq, Cerebras",
        "reduce the length of the {messages|input|prompt}",
        "https://github.com/thepersonalaicompany/amurex-backend/issues/51",
    ),
    Wording(
        "Anthropic, Amazon Bedrock",
        "{prompt|input|conversation} is too long",
        "https://github.com/aws-samples/bedrock-chat/issues/95",
    ),
    Wording("Anthropic", "exceed context limit", "https://github.com/anthropics/claude-code/issues/228"),
    Wording(
        "Amazon Nova",
        "number of input tokens exceeds",
        "https://docs.aws.amazon.com/nova/latest/userguide/what-is-nova.html",
    ),
    Wording(
        "Amazon Bedrock",
        "too many input tokens",
        "https://docs.aws.amazon.com/bedrock/latest/userguide/troubleshooting-api-error-codes.html",
    ),
    Wording("llama.cpp", "exceeds the available context size", "https://github.com/oobabooga/textgen/issues/7257"),
    Wording("llama.cpp", "context size has been exceeded", "https://github.com/ggml-org/llama.cpp/issues/12113"),
    Wording("llama.cpp", "exceed_context_size_error", "https://github.com/ggml-org/llama.cpp/pull/15780"),
    Wording(
        "Ollama",
        "prompt too long; exceeded {max |}context length",
        "https://github.com/ollama/ollama/blob/main/server/prompt.go",
    ),
    Wording(
        "Ollama", "input length exceeds {the |maximum |}context length", "https://github.com/ollama/ollama/issues/14186"
    ),
    Wording("LM Studio", "greater than the context length", "https://github.com/anomalyco/opencode/issues/2259"),
    Wording("MiniMax", "context window exceeds limit", "https://github.com/MiniMax-AI/MiniMax-M2/issues/119"),
    Wording("Zhipu", "prompt exceeds max length", "https://docs.bigmodel.cn/cn/faq/api-code"),
    Wording("Zhipu", "model_context_window_exceeded", "https://docs.z.ai/api-reference/llm/chat-completion"),
    Wording("Cohere, OpenAI-compatible", "too many tokens", "https://docs.cohere.com/reference/errors"),
    Wording("Volcengine", "exceed max message tokens", "https://www.volcengine.com/docs/82379/1299023"),
    Wording(
        "OpenAI-compatible",
        "exceeds {the |}{maximum |max |model's |}context {length|window|size|limit}",
        "https://github.com/ggml-org/llama.cpp/issues/12113",
    ),
    Wording(
        "OpenAI-compatible",
        "{context length|context window|context limit} {exceeded|has been exceeded}",
        "https://github.com/ggml-org/llama.cpp/issues/12113",
    ),
    Wording(
        "OpenAI-compatible",
        "{maximum context|maximum model|maximum prompt} length",
        "https://github.com/vllm-project/vllm/issues/12165",
    ),
    Wording("LM Studio", "", "https://github.com/cline/cline/issues/3664", statuses=frozenset({200})),
    Wording(
        "nginx, Vercel, API gateways",
        "",
        "https://nginx.org/en/docs/http/ngx_http_core_module.html#client_max_body_size",
        Unit.BYTES,
        frozenset({413}),
    ),
)

WORDINGS: Final = (*_ABOUT_MESSAGES, *_OTHERS, *_NUMBERED, *_OUTPUTS, *_COUNTED_MEDIA, *_BYTES, *_UNNUMBERED)
"""The table, in the order in which it is read."""
