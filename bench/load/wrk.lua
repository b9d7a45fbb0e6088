-- Requests for wrk: arguments are method, path before and after the conversation's number, first number, count,
-- header lines, a file with the body, and the start of a unique Idempotency-Key ("" for none).
local before, after, first, count, key, body, headers, method
local sent = 0

function init(args)
    method, before, after, first, count = args[1], args[2], args[3], tonumber(args[4]), tonumber(args[5])
    headers = {}
    for line in args[6]:gmatch("[^\r\n]+") do
        local name, value = line:match("^(.-): (.*)$")
        headers[name] = value
    end
    local file = assert(io.open(args[7], "rb"))
    body = file:read("*a")
    file:close()
    if body == "" then body = nil end
    key = args[8]
    math.randomseed(os.time())
end

function request()
    if key ~= "" then
        sent = sent + 1
        headers["idempotency-key"] = key .. sent
    end
    local number = string.format("%.0f", first + math.random(0, count - 1))
    return wrk.format(method, before .. number .. after, headers, body)
end

function done(summary, latency)
    local errors = summary.errors
    io.write(string.format(
        '{"requests": %d, "seconds": %f, "failed": %d, "p50": %f, "p99": %f}\n',
        summary.requests, summary.duration / 1e6,
        errors.connect + errors.read + errors.write + errors.status + errors.timeout,
        latency:percentile(50) / 1000, latency:percentile(99) / 1000))
end
