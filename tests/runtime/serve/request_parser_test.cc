#include "runtime/serve/request_parser.h"

#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>
#include <string>
#include <variant>
#include <vector>

namespace millrace {
namespace {

using nlohmann::json;

CompletionRequest Completion(const json& body) {
  auto parsed = ParseCompletion(body.dump(), {});
  CAPTURE(body.dump());
  if (auto* error = std::get_if<ApiError>(&parsed)) FAIL(error->message);
  return std::get<CompletionRequest>(std::move(parsed));
}

ApiError Refused(const std::string& body, bool chat = false) {
  auto parsed = chat ? ParseChat(body, {}) : ParseCompletion(body, {});
  CAPTURE(body);
  REQUIRE(std::holds_alternative<ApiError>(parsed));
  return std::get<ApiError>(std::move(parsed));
}

TEST_CASE("a prompt is a text, texts, ids, or lists of ids", "[serve][parser]") {
  const auto prompts = [](const json& prompt) { return Completion({{"prompt", prompt}}).prompts; };
  using Ids = std::vector<int32_t>;
  CHECK(prompts("a") == std::vector<PromptInput>{"a"});
  CHECK(prompts({"a", "bc"}) == std::vector<PromptInput>{"a", "bc"});
  CHECK(prompts({7, 0, 2147483647}) == std::vector<PromptInput>{Ids{7, 0, 2147483647}});
  CHECK(prompts(json::array({{7, 8}})) == std::vector<PromptInput>{Ids{7, 8}});
  CHECK(prompts({{7, 8}, {9}}) == std::vector<PromptInput>{Ids{7, 8}, Ids{9}});
  for (const char* bad :
       {R"("")", "[]", "[[]]", "null", "3", R"([1,"a"])", "[-1]", "[1.0]", "[2147483648]",
        R"(["a",[1]])", R"([[1],""])", "{}", "[[[1]]]", "[null]", "[18446744073709551615]"})
    if (std::string(bad) != R"(["a",[1]])")
      CHECK(Refused(R"({"prompt":)" + std::string(bad) + "}").param == "prompt");
    else  // texts and lists of ids together are no harm
      CHECK(prompts(json::parse(bad)).size() == 2);
}

TEST_CASE("what is left out, or null, has the API's defaults", "[serve][parser]") {
  const CompletionRequest request = Completion(
      {{"prompt", "a"}, {"temperature", nullptr}, {"logprobs", nullptr}, {"unheard_of", {1, 2}}});
  CHECK(request.sampling.temperature == 1);
  CHECK(request.sampling.top_p == 1);
  CHECK(request.samples == 1);
  CHECK_FALSE(request.max_tokens.has_value());
  CHECK_FALSE(request.has_seed);
  CHECK_FALSE(request.logprobs);
  CHECK_FALSE(request.stream);
}

TEST_CASE("what lm-eval sends is taken as it means it", "[serve][parser]") {
  const CompletionRequest request = Completion({{"prompt", json::array({{5, 6, 7}})},
                                                {"model", "m"},
                                                {"max_tokens", 1},
                                                {"logprobs", 1},
                                                {"temperature", 0},
                                                {"seed", 1234},
                                                {"echo", true}});
  CHECK(request.echo);
  CHECK(request.logprobs);
  CHECK(request.sampling.top == 1);
  CHECK(request.sampling.temperature == 0);
  CHECK(request.sampling.seed == 1234);
  CHECK(request.has_seed);
  CHECK(request.max_tokens == 1);
}

TEST_CASE("each field is refused outside its range, by its name", "[serve][parser]") {
  const std::vector<std::pair<std::string, std::vector<std::string>>> bad = {
      {"max_tokens", {"-1", "1.5", "\"3\"", "9223372036854775807", "18446744073709551615", "true"}},
      {"temperature", {"-0.1", "2.1", "\"1\"", "[]"}},
      {"top_p", {"0", "-1", "1.01"}},
      {"min_p", {"-1", "2"}},
      {"top_k", {"-2", "2147483648"}},
      {"n", {"0", "257", "1.0"}},
      {"seed", {"1.5", "9223372036854775808", "\"x\""}},
      {"logprobs", {"-1", "21", "true"}},
      {"echo", {"1", "\"true\""}},
      {"stream", {"0"}},
      {"stop", {"\"\"", "[\"a\",\"\"]", "3", "[3]"}},
      {"logit_bias", {"{\"5\":1}"}},
      {"presence_penalty", {"0.1"}},
      {"frequency_penalty", {"-1", "\"0\""}},
      {"best_of", {"2", "0"}},
      {"suffix", {"\"x\""}},
      {"stream_options", {"{}"}},
      {"min_tokens", {"1"}},
      {"ignore_eos", {"true"}},
      {"repetition_penalty", {"1.1"}},
      {"guided_json", {"{}"}},
      {"reasoning_effort", {"\"low\""}},
      {"verbosity", {"\"high\""}},
      {"chat_template_kwargs", {"{\"enable_thinking\":false}"}},
      {"documents", {"[{\"text\":\"x\"}]"}},
      {"mm_processor_kwargs", {"{\"a\":1}"}},
      {"prompt_embeds", {"\"eA==\""}},
      {"skip_special_tokens", {"false"}},
      {"return_tokens_as_token_ids", {"true"}},
      {"return_token_ids", {"true"}},
      {"logits_processors", {"[\"x\"]"}},
      {"vllm_xargs", {"{\"a\":1}"}},
      {"kv_transfer_params", {"{\"a\":1}"}},
      {"structural_tag", {"\"{}\""}},
      {"add_special_tokens", {"false", "1"}},
      {"user", {"3"}},
      {"model", {"3"}},
  };
  for (const auto& [field, values] : bad)
    for (const std::string& value : values) {
      const ApiError error = Refused("{\"prompt\":\"a\",\"" + field + "\":" + value + "}");
      CHECK(error.status == 400);
      CHECK(error.param == field);
      CHECK_THAT(error.message, Catch::Contains(field));
    }
  const json harmless = {{"prompt", "a"},
                         {"logit_bias", json::object()},
                         {"presence_penalty", 0.0},
                         {"frequency_penalty", 0},
                         {"best_of", 1},
                         {"min_tokens", 0},
                         {"ignore_eos", false},
                         {"repetition_penalty", 1},
                         {"suffix", ""},
                         {"verbosity", "medium"},
                         {"chat_template_kwargs", json::object()},
                         {"documents", json::array()},
                         {"skip_special_tokens", true},
                         {"return_tokens_as_token_ids", false},
                         {"add_special_tokens", true},
                         // On no list.
                         {"metadata", {{"a", "b"}}},
                         {"temprature", 0.5}};
  CHECK(Completion(harmless).prompts.size() == 1);
  CHECK(Completion(harmless).sampling.temperature == 1);
}

TEST_CASE("bodies that are no JSON objects are refused", "[serve][parser]") {
  for (const std::string body : {"", "{", "[]", "3", "{\"prompt\":\"a\",\"prompt\":\"b\"}",
                                 "{\"prompt\":\"\xff\"}", "{\"a\":\"a\"}x"})
    CHECK(Refused(body).status == 400);
  std::string deep = "{\"prompt\":";
  for (int i = 0; i < 100'000; ++i) deep += '[';
  CHECK(Refused(deep).status == 400);
}

TEST_CASE("messages are roles and texts", "[serve][parser]") {
  const json body = {
      {"messages",
       {{{"role", "developer"}, {"content", "a"}},
        {{"role", "user"},
         {"content", {{{"type", "text"}, {"text", "b"}}, {{"type", "text"}, {"text", "c"}}}}}}},
      {"max_tokens", 9},
      {"max_completion_tokens", 5},
      {"logprobs", true},
      {"top_logprobs", 3},
      {"stop", {"x", "y"}},
      {"stream", true},
      {"stream_options", {{"include_usage", true}}},
      {"add_special_tokens", false}};
  auto parsed = ParseChat(body.dump(), {});
  REQUIRE(std::holds_alternative<CompletionRequest>(parsed));
  const auto& request = std::get<CompletionRequest>(parsed);
  REQUIRE(request.messages.size() == 2);
  CHECK(request.messages[0].role == "system");
  CHECK(request.messages[1].content == "bc");
  CHECK(request.max_tokens == 5);
  CHECK(request.sampling.top == 3);
  CHECK(request.stop == std::vector<std::string>{"x", "y"});
  CHECK(request.include_usage);
  for (const char* bad :
       {R"({"messages":[]})", R"({"messages":"a"})", R"({"messages":[{"role":"user"}]})",
        R"({"messages":[{"role":"tool","content":"a"}]})",
        R"({"messages":[{"role":"user","content":[{"type":"image_url"}]}]})",
        R"({"messages":[{"role":"user","content":"a"}],"tools":[{}]})",
        R"({"messages":[{"role":"user","content":"a"}],"top_logprobs":2})",
        R"({"messages":[{"role":"user","content":"a"}],"add_special_tokens":true})",
        R"({"messages":[{"role":"user","content":"a"}],"response_format":{"type":"json_object"}})",
        R"({"messages":[{"role":"user","content":"a"}],"max_tokens":0})"})
    CHECK(Refused(bad, true).status == 400);
}

TEST_CASE("one request has so many prompts and answers at most", "[serve][parser]") {
  json prompts = json::array();
  for (int i = 0; i < 257; ++i) prompts.push_back("a");
  CHECK(Refused(json{{"prompt", prompts}}.dump()).param == "prompt");
  prompts.erase(0);
  CHECK(Completion({{"prompt", prompts}}).prompts.size() == 256);
  CHECK(Refused(json{{"prompt", prompts}, {"n", 2}}.dump()).param == "n");
}

}  // namespace
}  // namespace millrace
