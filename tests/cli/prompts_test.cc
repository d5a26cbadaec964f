#include "tools/cli/use/prompts.h"

#include <catch2/catch.hpp>
#include <fstream>

#include "runtime/base/error.h"
#include "tests/runtime/data/temp_dir.h"

namespace millrace {
namespace {

std::vector<Prompt> Read(const std::string& lines) {
  const TempDir dir;
  GenerateArguments arguments;
  arguments.file = dir.path() + "/prompts.jsonl";
  arguments.top_k = 5;
  arguments.stop = {"end"};
  std::ofstream(arguments.file) << lines;
  return PromptsOf(arguments, ByteCodec());
}

std::string Complaint(const std::string& lines) {
  try {
    Read(lines);
  } catch (const Error& error) {
    CHECK(error.code() == ErrorCode::kData);
    return error.what();
  }
  return "";
}

TEST_CASE("a line has its own fields, and the command line's where it has none", "[cli]") {
  const std::vector<Prompt> prompts = Read(
      "{\"prompt\": \"a\\u00e9\", \"seed\": 9223372036854775807, \"max_tokens\": 3}\n\n"
      "{\"prompt\": [7, 2147483647], \"top_k\": 0, \"top_p\": 0.5, \"min_p\": 0.25, \"samples\": 4,"
      " \"temperature\": 0, \"logprobs\": 2, \"stop\": [\"x\", \"yz\"]}");
  REQUIRE(prompts.size() == 2);
  const GenerationRequest &a = prompts[0].request, &b = prompts[1].request;
  CHECK(prompts[0].text == "a\xc3\xa9");
  CHECK(a.prompt == std::vector<int32_t>{'a', 0xc3, 0xa9});
  CHECK(a.sampling.seed == 9223372036854775807u);
  CHECK(a.max_tokens == 3);
  CHECK(prompts[0].has_length);
  CHECK(a.sampling.top_k == 5);
  CHECK(a.sampling.temperature == 0.8f);
  CHECK(prompts[0].stop == std::vector<std::string>{"end"});
  CHECK(prompts[1].text == "");
  CHECK(b.prompt == std::vector<int32_t>{7, 2147483647});
  CHECK(b.sampling == Sampling{0, 0, 0.5f, 0.25f, 0, 2});
  CHECK(b.samples == 4);
  CHECK(b.max_tokens == 200);
  CHECK_FALSE(prompts[1].has_length);
  CHECK(prompts[1].stop == std::vector<std::string>{"x", "yz"});
}

TEST_CASE("a line that is wrong is named, and what is allowed", "[cli]") {
  const auto complains = [](const std::string& line, const std::string& sentence) {
    CAPTURE(line);
    const std::string complaint = Complaint("{\"prompt\": \"a\"}\n" + line);
    CHECK_THAT(complaint, Catch::Contains("prompts.jsonl:2"));
    CHECK_THAT(complaint, Catch::Contains(sentence));
  };
  complains("7", "must be an object");
  complains("{\"prompt\": \"a\"", "");
  complains("{\"promt\": \"a\"}", "\"promt\" is not known; there are prompt, max_tokens");
  complains("{}", "prompt");
  complains("{\"prompt\": 5}", "prompt must be a text, or a list of tokens");
  complains("{\"prompt\": [1, -1]}", "prompt must be a text, or a list of tokens");
  complains("{\"prompt\": [1, 2147483648]}", "prompt must be a text, or a list of tokens");
  complains("{\"prompt\": \"a\", \"prompt\": \"b\"}", "prompt");
  complains("{\"prompt\": \"a\", \"seed\": -1}", "seed must be an integer from 0 to 922337203685");
  complains("{\"prompt\": \"a\", \"seed\": 1.5}", "seed must be an integer");
  complains("{\"prompt\": \"a\", \"max_tokens\": 2000000}", "max_tokens must be an integer from 0");
  complains("{\"prompt\": \"a\", \"top_p\": \"x\"}", "top_p must be a number");
  complains("{\"prompt\": \"a\", \"stop\": \"\"}", "stop must be a text that is not empty");
  complains("{\"prompt\": \"a\", \"stop\": [\"\"]}", "stop must be a text that is not empty");
  CHECK_THAT(Complaint(""), Catch::Contains("cannot be read, or has no line"));
}

}  // namespace
}  // namespace millrace
