// The endpoint without its transport, above a model that says a text and checks its caller.
#include "runtime/serve/serve_api.h"

#include <atomic>
#include <catch2/catch.hpp>
#include <chrono>
#include <functional>
#include <future>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "runtime/serve/completion_reply.h"
#include "runtime/text/bpe/byte_alphabet.h"
#include "tests/runtime/infer/checking_token_model.h"

namespace millrace {
namespace {

using nlohmann::json;
using test::CheckingTokenModel;

constexpr std::chrono::seconds kPatience(60);

TokenModelLimits Limits() {
  TokenModelLimits limits;
  limits.slots = 3;
  limits.pages = 40;
  limits.page_tokens = 8;
  limits.max_length = 64;
  limits.max_chunk = 16;
  limits.max_scored = 5;
  limits.vocab = 256;
  limits.top = 3;
  return limits;
}

// Tokens are bytes; every answer is `text`, over and over.
class SayingModel final : public CheckingTokenModel {
 public:
  explicit SayingModel(std::string text) : CheckingTokenModel(Limits()), text_(std::move(text)) {}

  SampledToken Prefill(const PrefillRows& rows) override {
    SampledToken token = CheckingTokenModel::Prefill(rows);
    token.token = ByteAt(0);
    return token;
  }
  void Launch(std::span<const DecodeRow> rows) override {
    CheckingTokenModel::Launch(rows);
    drawn_.clear();
    for (const DecodeRow& row : rows) drawn_.push_back(row.drawn);
  }
  void Collect(std::span<SampledToken* const> drawn) override {
    CheckingTokenModel::Collect(drawn);
    for (size_t r = 0; r < drawn.size(); ++r)
      if (drawn[r] != nullptr) drawn[r]->token = ByteAt(drawn_[r]);
  }

 private:
  int32_t ByteAt(int64_t i) const {
    return static_cast<uint8_t>(text_[static_cast<size_t>(i) % text_.size()]);
  }
  const std::string text_;
  std::vector<int64_t> drawn_;  // before, by row of the step in flight
};

struct Answered {
  ReplyHead head;
  std::string body;

  json Json() const { return json::parse(body); }
  // Of a stream that came whole.
  std::vector<json> Events() const {
    std::vector<json> events;
    std::string_view rest = body;
    while (rest != "data: [DONE]\n\n") {
      const size_t end = rest.find("\n\n");
      REQUIRE(end != rest.npos);
      REQUIRE(rest.starts_with("data: "));
      events.push_back(json::parse(rest.substr(6, end - 6)));
      rest.remove_prefix(end + 2);
    }
    return events;
  }
};

// Waits until there is something to read.
void WaitFor(ReplyBuffer& reply) {
  const auto woken = std::make_shared<std::promise<void>>();
  if (!reply.Ready([woken] { woken->set_value(); }))
    REQUIRE(woken->get_future().wait_for(kPatience) == std::future_status::ready);
}

Answered Take(ReplyBuffer& reply) {
  Answered answered;
  while (!reply.AtEnd()) {
    WaitFor(reply);
    char bytes[61];
    while (const size_t count = reply.Read(bytes, sizeof bytes)) answered.body.append(bytes, count);
  }
  answered.head = reply.head();
  return answered;
}

// Ids are bytes, but for 1: that is the special token <|end|>.
std::shared_ptr<const Tokenizer> EndingTokenizer() {
  json vocab = {{"<|end|>", 1}, {SymbolsOfBytes("\x01"), 256}};
  for (int byte = 0; byte < 256; ++byte)
    if (byte != 1) vocab[SymbolsOfBytes(std::string(1, static_cast<char>(byte)))] = byte;
  json end = {{"id", 1}, {"content", "<|end|>"}, {"special", true}};
  for (const char* flag : {"single_word", "lstrip", "rstrip", "normalized"}) end[flag] = false;
  json level = {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"trim_offsets", true}};
  level["use_regex"] = true;
  const json file = {{"version", "1.0"},
                     {"added_tokens", json::array({end})},
                     {"pre_tokenizer", level},
                     {"decoder", level},
                     {"model", {{"type", "BPE"}, {"vocab", vocab}, {"merges", json::array()}}}};
  return std::make_shared<const Tokenizer>(file.dump(), "ending");
}

struct Served {
  explicit Served(const std::string& says, std::function<void(char)> before = {},
                  std::optional<ChatTemplate> chat = std::nullopt,
                  const ServeEngineOptions& options = {},
                  const std::shared_ptr<const Tokenizer>& tokenizer = nullptr)
      : model(says),
        engine(model, 5, nullptr, options),
        text(tokenizer ? TextKind::kTokenizer : TextKind::kBytes, tokenizer, chat),
        api(engine, text, {.model = "m", .limits = {.top = 3}}) {
    model.before = std::move(before);
  }
  ~Served() {
    engine.Stop();
    if (thread.joinable()) thread.join();
  }
  void Run() {
    thread = std::thread([this] { engine.Run(); });
  }
  std::shared_ptr<ReplyBuffer> Ask(const std::string& path, const json& body) {
    return api.Answer("POST", path, body.dump());
  }
  Answered Complete(const json& body) { return Take(*Ask("/v1/completions", body)); }
  // Whether the metrics come to have this line.
  bool Shows(const std::string& line) {
    const auto until = std::chrono::steady_clock::now() + kPatience;
    while (std::chrono::steady_clock::now() < until) {
      if (engine.figures().PrometheusText().find("\nmillrace_" + line + "\n") != std::string::npos)
        return true;
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    return false;
  }

  SayingModel model;
  ServeEngine engine;
  const ServedText text;
  ServeApi api;
  std::thread thread;
};

constexpr const char* kAbort = "request_success_total{finished_reason=\"abort\"} 1";

std::string Said(const std::string& text, size_t bytes) {
  std::string said;
  while (said.size() < bytes) said += text;
  return said.substr(0, bytes);
}

TEST_CASE("a stream's pieces have whole characters, and are the whole answer", "[serve][api]") {
  const std::string says = "n\u00e9\u20ac\U0001f600.";  // 1, 2, 3, 4 and 1 bytes
  Served served(says);
  served.Run();
  json asked = {{"prompt", {"a", "bc"}}, {"max_tokens", 33}, {"n", 2}, {"logprobs", 2}};
  asked["stop"] = {"\u20acx", "\U0001f600n"};  // the beginnings of both come, and go on otherwise
  const json whole = served.Complete(asked).Json();
  REQUIRE(whole["choices"].size() == 4);
  CHECK(whole["usage"] ==
        json({{"prompt_tokens", 3}, {"completion_tokens", 132}, {"total_tokens", 135}}));
  asked["stream"] = true;
  std::vector<std::string> texts(4), finish(4);
  std::vector<json> offsets(4, json::array());
  for (const json& event : served.Complete(asked).Events()) {
    const json& choice = event["choices"][0];
    const auto index = choice["index"].get<size_t>();
    REQUIRE(choice["text"].get<std::string>().find("\ufffd") == std::string::npos);
    texts[index] += choice["text"].get<std::string>();
    if (!choice["logprobs"].is_null())
      for (const json& offset : choice["logprobs"]["text_offset"]) offsets[index].push_back(offset);
    REQUIRE(finish[index].empty());
    if (!choice["finish_reason"].is_null()) finish[index] = choice["finish_reason"];
  }
  for (size_t i = 0; i < 4; ++i) {
    CAPTURE(i);
    CHECK(texts[i] == Said(says, 33));
    CHECK(finish[i] == "length");
    CHECK(whole["choices"][i]["text"] == texts[i]);
    CHECK(whole["choices"][i]["logprobs"]["text_offset"] == offsets[i]);
    CHECK(offsets[i].size() == 33);
  }
}

TEST_CASE("a stop string over several tokens ends an answer, and its making", "[serve][api]") {
  Served served("one two three ");
  served.Run();
  json asked = {{"prompt", "a"}, {"max_tokens", 60}, {"n", 3}, {"stop", {"wo th", "never"}}};
  const json whole = served.Complete(asked).Json();
  for (const json& choice : whole["choices"]) {
    CHECK(choice["text"] == "one t");
    CHECK(choice["finish_reason"] == "stop");
  }
  CHECK(served.Shows("num_requests_running 0"));
  CHECK(served.model.decodes < 30);  // of 60
  asked["stream"] = true;
  std::string all;
  for (const json& event : served.Complete(asked).Events()) all += event["choices"][0]["text"];
  CHECK(all.size() == 3 * std::string("one t").size());
}

TEST_CASE("the name of a special token ends an answer where the token comes", "[serve][api]") {
  Served served("ab\x01", {}, std::nullopt, {}, EndingTokenizer());
  served.Run();
  const auto choice = [&](const json& stop) {
    return served.Complete({{"prompt", "a"}, {"max_tokens", 8}, {"stop", stop}})
        .Json()["choices"][0];
  };
  CHECK(choice("<|end|>")["text"] == "ab");
  CHECK(choice("<|end|>")["finish_reason"] == "stop");
  CHECK(choice({"never", "<|end|>"})["finish_reason"] == "stop");
  // What is no token is text, which special tokens are not.
  CHECK(choice("<|other|>")["text"] == "ababab");
  CHECK(choice("<|other|>")["finish_reason"] == "length");
  CHECK(choice("ba")["text"] == "a");
}

TEST_CASE("who leaves in the middle of an answer gives its pages back", "[serve][api]") {
  const bool stream = GENERATE(false, true);
  std::promise<void> begun, left;
  std::atomic<int> decodes = 0;
  Served served("x", [&](char call) {
    if (call != 'd' || ++decodes != 3) return;
    begun.set_value();
    left.get_future().wait();
  });
  served.Run();
  const auto reply = served.Ask(
      "/v1/completions", {{"prompt", "abc"}, {"max_tokens", 60}, {"n", 2}, {"stream", stream}});
  REQUIRE(begun.get_future().wait_for(kPatience) == std::future_status::ready);
  reply->Abandon();
  left.set_value();
  CHECK(served.Shows(kAbort));
  CHECK(served.Shows("kv_cache_usage_perc 0"));
  CHECK(served.Shows("num_requests_running 0"));
  CHECK(decodes < 10);
  CHECK(served.Complete({{"prompt", "a"}, {"max_tokens", 3}}).Json()["choices"][0]["text"] ==
        "xxx");
}

TEST_CASE("nobody waits for who does not read, nor keeps all of it", "[serve][api]") {
  Served served("some text. ");
  served.Run();
  const json asked = {
      {"prompt", "a"}, {"max_tokens", 60}, {"n", 256}, {"logprobs", 3}, {"stream", true}};
  const auto stalled = served.Ask("/v1/completions", asked);
  CHECK(served.Complete({{"prompt", "a"}, {"max_tokens", 9}}).Json()["choices"][0]["text"] ==
        "some text");
  CHECK(served.Shows("kv_cache_usage_perc 0"));
  const std::string body = Take(*stalled).body;
  CHECK(body.size() > CompletionReply::kMostUnread);
  CHECK(body.size() < CompletionReply::kMostUnread + (64 << 10));
  const std::string last = body.substr(body.rfind("data: ") + 6);
  CHECK(json::parse(last)["error"]["code"] == "too_slow");
}

TEST_CASE("a prompt is echoed with its log-probabilities, with each of its answers",
          "[serve][api]") {
  Served served("xyz");
  served.Run();
  const std::string prompt = "a prompt of several pieces";
  json asked = {{"prompt", prompt}, {"max_tokens", 2}, {"n", 2}, {"logprobs", 1}, {"echo", true}};
  asked["seed"] = 3;
  const json choices = served.Complete(asked).Json()["choices"];
  for (const json& choice : choices) {
    CHECK(choice["text"] == prompt + "xy");
    const json& logprobs = choice["logprobs"];
    REQUIRE(logprobs["token_logprobs"].size() == prompt.size() + 2);
    CHECK(logprobs["token_logprobs"][0].is_null());
    std::vector<int32_t> ids;
    for (size_t i = 0; i < prompt.size(); ++i) {
      if (i > 0)
        CHECK(logprobs["token_logprobs"][i] ==
              CheckingTokenModel::ScoreOf(ids, prompt[i], 1, 256).logprob);
      CHECK(logprobs["text_offset"][i] == i);
      ids.push_back(prompt[i]);
    }
  }
  asked["max_tokens"] = 0;
  const json only = served.Complete(asked).Json();
  CHECK(only["choices"][1]["text"] == prompt);
  CHECK(only["choices"][1]["logprobs"]["tokens"].size() == prompt.size());
  CHECK(only["usage"]["completion_tokens"] == 0);
}

TEST_CASE("a conversation needs a template that this server has", "[serve][api]") {
  const json asked = {{"messages", {{{"role", "user"}, {"content", "b"}}}}, {"max_tokens", 40}};
  Served without("x");
  const Answered refused = Take(*without.Ask("/v1/chat/completions", asked));
  CHECK(refused.head.status == 400);
  CHECK(refused.Json()["error"]["param"] == "messages");
  CHECK_THAT(refused.Json()["error"]["message"].get<std::string>(),
             Catch::Contains("--chat-template"));
  Served with("so\n\nuser:", {}, ChatTemplate::kPlain);
  with.Run();
  const json choice = Take(*with.Ask("/v1/chat/completions", asked)).Json()["choices"][0];
  CHECK(choice["message"]["content"] == "so");
  CHECK(choice["finish_reason"] == "stop");
}

TEST_CASE("who cannot be answered now is told when to try again", "[serve][api]") {
  Served served("x", {}, std::nullopt, {.max_queue = 2});
  const json asked = {{"prompt", "a"}, {"max_tokens", 2}};
  const auto first = served.Ask("/v1/completions", asked),
             second = served.Ask("/v1/completions", asked);
  const Answered full = served.Complete(asked);
  CHECK(full.head.status == 429);
  CHECK(full.head.headers.at("Retry-After") == "1");
  CHECK(full.Json()["error"]["code"] == "queue_full");
  CHECK(Take(*served.api.Answer("GET", "/health", "")).head.status == 503);  // it does not run yet
  served.Run();
  CHECK(Take(*first).head.status == 200);
  CHECK(Take(*second).head.status == 200);
  CHECK(Take(*served.api.Answer("GET", "/health", "")).head.status == 200);
  served.engine.Drain();
  const Answered draining = served.Complete(asked);
  CHECK(draining.head.status == 503);
  CHECK(draining.head.headers.at("Retry-After") == "1");
  CHECK(Take(*served.api.Answer("GET", "/health", "")).head.status == 503);
}

TEST_CASE("whatever a body holds, the answer is JSON with the field that is wrong",
          "[serve][api]") {
  Served served("x", {}, ChatTemplate::kPlain);
  const std::vector<std::pair<std::string, json>> bad = {
      {"", nullptr},
      {"[]", nullptr},
      {std::string("\0", 1), nullptr},
      {R"({"prompt":"\ud800"})", nullptr},
      {R"({"prompt":"a","temperature":1e400})", nullptr},
      {R"({"prompt":"a","max_tokens":1e30})", "max_tokens"},
      {R"({"prompt":"a","max_tokens":99999999999999999999})", "max_tokens"},
      {R"({"prompt":"a","max_tokens":9223372036854775807})", "max_tokens"},
      {R"({"prompt":"a","max_tokens":2147483648})", "prompt"},
      {R"({"prompt":"a","top_p":-0.0})", "top_p"},
      {R"({"prompt":"a","n":1e2})", "n"},
      {R"({"prompt":[4294967296]})", "prompt"},
      {R"({"prompt":[[1],[256]]})", "prompt"},
      {R"({"prompt":"a","min_tokens":5})", "min_tokens"},
  };
  for (const auto& [body, param] : bad) {
    CAPTURE(body);
    const Answered answered = Take(*served.api.Answer("POST", "/v1/completions", body));
    CHECK(answered.head.status == 400);
    CHECK(answered.Json()["error"]["param"] == param);
    CHECK(answered.Json()["error"]["message"].get<std::string>() != "");
  }
  for (const char* path : {"/v1/chat/completions", "/tokenize", "/detokenize"})
    CHECK(Take(*served.api.Answer("POST", path, R"({"x":1})")).head.status == 400);
  CHECK(Take(*served.Ask("/detokenize", {{"tokens", {0, 256}}})).head.status == 400);
  CHECK(Take(*served.Ask("/detokenize", {{"tokens", {226, 130}}})).Json()["prompt"] ==
        "\ufffd\ufffd");
  const json unknown =
      Take(*served.Ask("/v1/completions", {{"prompt", "a"}, {"model", "other"}})).Json();
  CHECK(unknown["error"]["code"] == "model_not_found");
}

TEST_CASE("a path is asked by its method, and with a token where there are some", "[serve][api]") {
  Served served("x");
  CHECK_FALSE(served.api.Check("POST", "/v1/completions", "", ""));
  CHECK_FALSE(served.api.Check("HEAD", "/health", "", ""));
  CHECK(served.api.Check("GET", "/v1/completions", "", "")->status == 405);
  CHECK(served.api.Check("GET", "/v1/completions", "", "")->allow == "POST");
  CHECK(served.api.Check("POST", "/health", "", "")->allow == "GET, HEAD");
  CHECK(served.api.Check("POST", "/v1/completion", "", "")->status == 404);
  CHECK(served.api.Check("POST", "", "", "")->status == 404);
  // A page in a browser of this host.
  CHECK(served.api.Check("POST", "/v1/completions", "", "http://a.example")->status == 403);
  CHECK(served.api.Check("GET", "/v1/models", "", "null")->status == 403);
  CHECK_FALSE(served.api.Check("GET", "/health", "", "http://a.example"));
  const ServeApi guarded(served.engine, served.text, {.bearer_tokens = {"abcd", "efgh"}});
  for (const char* header :
       {"", "abcd", "Bearer ", "Bearer abc", "Bearer abcde", "Basic abcd", "Bearer abcd "})
    CHECK(guarded.Check("GET", "/v1/models", header, "")->status == 401);
  CHECK(guarded.Check("GET", "/nothing", "", "")->status == 401);
  CHECK(guarded.Check("GET", "/nothing", "Bearer efgh", "")->status == 404);
  CHECK_FALSE(guarded.Check("GET", "/v1/models", "Bearer efgh", ""));
  CHECK_FALSE(guarded.Check("GET", "/v1/models", "Bearer efgh", "http://a.example"));
  CHECK(guarded.Check("GET", "/v1/models", "", "http://a.example")->status == 401);
  CHECK_FALSE(guarded.Check("GET", "/health", "", ""));
}

}  // namespace
}  // namespace millrace
