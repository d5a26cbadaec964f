#include "runtime/run/eval/eval_tasks.h"

#include <catch2/catch.hpp>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>

#include "runtime/base/json.h"
#include "runtime/config/eval_spec.h"
#include "runtime/run/eval/tokenizer_codec.h"
#include "tests/runtime/data/error_matchers.h"
#include "tests/runtime/data/temp_dir.h"

namespace millrace {
namespace {

using nlohmann::json;
using Ids = std::vector<int32_t>;
using Words = std::vector<uint16_t>;

const std::string kGolden = "tests/golden/lm_eval/";
constexpr TaskWindow kWindow{128, 256};

json Golden() { return ParseJson(ReadBytes(kGolden + "golden.json")); }

std::map<std::string, double> ValuesOf(const EvalScores& scores) {
  return {scores.values.begin(), scores.values.end()};
}

// lm-eval's own rows and log-probabilities: of them our choices and metrics must be its.
std::vector<double> RequireTheirRows(const EvalTask& task, const json& theirs) {
  const json& rows = theirs.at("rows");
  REQUIRE(task.rows().size() == rows.size());
  std::vector<double> sums;
  for (size_t i = 0; i < rows.size(); ++i) {
    CAPTURE(i);
    REQUIRE(task.rows()[i].ids == rows[i].at("ids").get<Ids>());
    REQUIRE(task.rows()[i].first == rows[i].at("first").get<int64_t>());
    sums.push_back(rows[i].at("log_prob").get<double>());
  }
  return sums;
}

TEST_CASE("questions become the rows that lm-eval cuts, and their scores its metrics", "[eval]") {
  const json theirs = Golden().at("hellaswag");
  const auto task =
      OpenEvalTask("hellaswag:" + kGolden + "examples.jsonl", ByteTaskCodec(), kWindow, 0);
  const std::vector<double> sums = RequireTheirRows(*task, theirs);
  const EvalScores scores = task->Judge(sums);
  CHECK(scores.task == "hellaswag");
  CHECK(scores.rules == "lm-eval");
  CHECK(scores.examples == 24);
  for (const char* metric : {"acc", "acc_norm"})
    CHECK(ValuesOf(scores).at(metric) == Approx(theirs.at("values").at(metric).get<double>()));
  const std::vector<std::string> lines = task->Examples(sums);
  REQUIRE(lines.size() == 24);
  for (size_t i = 0; i < lines.size(); ++i) {
    const json line = ParseJson(lines[i]);
    CHECK((line["choice"] == line["label"]) == (theirs["acc"][i] == 1.0));
    CHECK((line["choice_norm"] == line["label"]) == (theirs["acc_norm"][i] == 1.0));
    CHECK(line["log_probs"] == theirs["examples"][i]);
  }
}

TEST_CASE("documents become the rows that lm-eval rolls, and their scores its metrics", "[eval]") {
  const json theirs = Golden().at("ppl");
  const auto task = OpenEvalTask("ppl:" + kGolden + "texts.jsonl", ByteTaskCodec(), kWindow, 0);
  const std::vector<double> sums = RequireTheirRows(*task, theirs);
  const EvalScores scores = task->Judge(sums);
  CHECK(scores.examples == 7);
  for (const char* metric : {"word_perplexity", "byte_perplexity", "bits_per_byte"})
    CHECK(ValuesOf(scores).at(metric) ==
          Approx(theirs.at("values").at(metric).get<double>()).epsilon(1e-12));
  const std::vector<std::string> lines = task->Examples(sums);
  for (size_t i = 0; i < lines.size(); ++i)
    CHECK(ParseJson(lines[i])["log_prob"].get<double>() ==
          Approx(theirs["examples"][i][0].get<double>()).epsilon(1e-12));
}

// lm-eval's rows with the tokenizer of tests/runtime/text, whose added token gets that name here.
TEST_CASE("so it is with a tokenizer, whose ids depend on what stands before", "[eval]") {
  const TempDir dir;
  std::string tokenizer = ReadBytes("tests/runtime/text/testdata/tokenizer.json");
  const size_t name = tokenizer.find("<|end|>");
  REQUIRE(name != tokenizer.npos);
  RequireError(ErrorCode::kData, {"tokenizer.json", "no token that stands before a text"},
               [&] { TokenizerTaskCodec("tests/runtime/text/testdata/tokenizer.json"); });
  WriteBytes(dir / "tokenizer.json", tokenizer.replace(name, 7, "<|endoftext|>"));
  const TaskCodec codec = TokenizerTaskCodec(dir / "tokenizer.json");
  CHECK(codec.prefix == 696);
  const json theirs = ParseJson(ReadBytes(kGolden + "tokenized.json"));
  const TaskWindow window{theirs.at("seq_len").get<int64_t>(), 704};
  for (const auto& [task, spec] :
       {std::pair{"hellaswag", "hellaswag:" + kGolden + "examples.jsonl"},
        std::pair{"ppl", "ppl:" + kGolden + "texts.jsonl"}})
    RequireTheirRows(*OpenEvalTask(spec, codec, window, 0), theirs.at(task));
}

// Two questions as llm.c writes them.
Words TwoQuestions() {
  return {65535, 36,    0,  2, 4, 3, 11, 12, 13, 1,  21, 2, 22, 23, 1,  24, 1,
          25,    65535, 32, 1, 0, 4, 1,  14, 2,  31, 32, 1, 33, 1,  34, 1,  35};
}

std::string Header(int32_t count, int32_t magic = 20240522, int32_t version = 1) {
  std::vector<int32_t> header(256, 0);
  header[0] = magic;
  header[1] = version;
  header[2] = count;
  header[3] = 36;
  return AsBytes(header);
}

TEST_CASE("llm.c's file is scored by sums and means over ids", "[eval]") {
  const TempDir dir;
  WriteBytes(dir / "h.bin", Header(2) + AsBytes(TwoQuestions()));
  const auto task = OpenEvalTask("hellaswag:" + dir / "h.bin", {}, {4, 36}, 0);
  REQUIRE(task->rows().size() == 8);
  CHECK(task->rows()[1].ids == Ids{11, 12, 13, 22, 23});
  CHECK(task->rows()[1].first == 3);
  CHECK(task->rows()[4].ids == Ids{14, 31, 32});
  CHECK(task->rows()[4].first == 1);
  // First: the sums choose 2, the means 1. Second: equals, of which the first counts; means 0.
  const std::vector<double> sums = {-4, -3.5, -3, -5, -2, -2, -2.5, -9};
  const EvalScores scores = task->Judge(sums);
  CHECK(scores.rules == "llm.c");
  CHECK(ValuesOf(scores).at("acc") == 1.0);
  CHECK(ValuesOf(scores).at("acc_norm") == 0.5);
  CHECK(ValuesOf(scores).at("acc_norm_stderr") == 0.5);
  CHECK(json::parse(task->Examples(sums)[0]) ==
        json::parse(R"({"example": 0, "label": 2, "choice": 2, "choice_norm": 1,
                        "log_probs": [-4, -3.5, -3, -5]})"));
  CHECK(OpenEvalTask("hellaswag:" + dir / "h.bin", {}, {4, 36}, 1)->rows().size() == 4);
}

TEST_CASE("every way llm.c's file can be wrong is named with its offset", "[eval]") {
  const TempDir dir;
  const auto refuse = [&](const std::string& bytes, std::vector<std::string> parts,
                          const TaskWindow& window = {4, 36}) {
    WriteBytes(dir / "h.bin", bytes);
    parts.push_back(dir / "h.bin");
    RequireError(ErrorCode::kData, parts,
                 [&] { OpenEvalTask("hellaswag:" + dir / "h.bin", {}, window, 0); });
  };
  const auto with = [](size_t at, uint16_t value) {
    Words words = TwoQuestions();
    words[at] = value;
    return Header(2) + AsBytes(words);
  };
  const std::string sound = Header(2) + AsBytes(TwoQuestions());
  refuse(Header(2, 20240520) + AsBytes(TwoQuestions()), {"20240520", "20240522"});
  refuse(Header(2, 20240522, 2) + AsBytes(TwoQuestions()), {"version 2"});
  refuse(Header(0), {"says 0 examples"});
  refuse(Header(3) + AsBytes(TwoQuestions()), {"ends at byte 1092", "example 2", "truncated"});
  refuse(Header(1) + AsBytes(TwoQuestions()), {"end at byte offset 1060", "1092 bytes"});
  refuse(with(0, 7), {"offset 1024", "example 0 begins with 7", "65535 is expected"});
  refuse(with(1, 38), {"offset 1026", "says 38 bytes and has 36"});
  refuse(with(20, 5), {"offset 1064", "has the index 5", "1 is expected"});
  refuse(with(3, 4), {"offset 1030", "label 4"});
  refuse(with(4, 5), {"offset 1032", "as many answers as 5"});
  refuse(with(5, 0), {"offset 1034", "a text of 0 ids"});
  refuse(with(5, 60000), {"offset 1034", "a text of 60000 ids"});
  refuse(with(6, 36), {"offset 1036", "id 36", "0 to 35"});
  refuse(sound, {"example 0 has 5 ids with answer 1", "seq_len = 3"}, {3, 36});
  for (size_t size = 0; size < sound.size(); ++size) refuse(sound.substr(0, size), {});
}

std::string Line(const std::string& more) {
  return R"({"activity_label": "A", "ctx_a": "one", "ctx_b": "", "ctx": "one", )"
         R"("endings": ["two", "three"], "label": 1)" +
         more + "}\n";
}

TEST_CASE("JSON lines by llm.c's rules: texts as they are, each encoded alone", "[eval]") {
  const TempDir dir;
  WriteBytes(dir / "q.jsonl", Line("") + "\n" + Line(R"(, "ctx": "[x]", "label": "0")"));
  RequireError(ErrorCode::kData, {"q.jsonl:3", "ctx"}, [&] {
    OpenEvalTask("hellaswag-llmc:" + dir / "q.jsonl", ByteTaskCodec(), {16, 256}, 0);
  });
  WriteBytes(dir / "q.jsonl", Line("") + "\n" + Line(""));
  const auto task =
      OpenEvalTask("hellaswag-llmc:" + dir / "q.jsonl", ByteTaskCodec(), {16, 256}, 0);
  REQUIRE(task->rows().size() == 4);
  CHECK(task->rows()[0].ids == Ids{'o', 'n', 'e', ' ', 't', 'w', 'o'});
  CHECK(task->rows()[0].first == 3);
  // By ids, the blank included: -8/4 against -11/6.
  const std::vector<double> sums = {-8, -11, -8, -11};
  CHECK(ValuesOf(task->Judge(sums)).at("acc") == 0);
  CHECK(ValuesOf(task->Judge(sums)).at("acc_norm") == 1);
  RequireError(ErrorCode::kData, {"q.jsonl:1", "9 ids", "cut nothing"}, [&] {
    OpenEvalTask("hellaswag-llmc:" + dir / "q.jsonl", ByteTaskCodec(), {7, 256}, 0);
  });
}

TEST_CASE("JSON lines that lack something are named", "[eval]") {
  const TempDir dir;
  const auto refuse = [&](const std::string& text, std::vector<std::string> parts,
                          const std::string& spec = "hellaswag:") {
    WriteBytes(dir / "q.jsonl", text);
    RequireError(ErrorCode::kData, parts, [&] {
      OpenEvalTask(spec + dir / "q.jsonl", ByteTaskCodec(), {32, 128}, 0);
    });
  };
  refuse("", {"q.jsonl has no line"});
  refuse("[1]\n", {"q.jsonl:1", "array"});
  refuse(Line("") + "{\n", {"q.jsonl:2"});
  refuse(R"({"ctx_a": "x"})", {"q.jsonl:1", "\"activity_label\" is missing"});
  const auto line = [](const std::string& endings, const std::string& label) {
    return R"({"activity_label": "A", "ctx_a": "one", "ctx_b": "", "endings": )" + endings +
           R"(, "label": )" + label + "}";
  };
  refuse(line(R"(["a", 5])", "0"), {"\"endings\" holds number"});
  refuse(line(R"(["a"])", "0"), {"1 endings"});
  refuse(line(R"(["a", " [x] "])", "0"), {"an ending is empty"});
  refuse(line(R"(["a", "b"])", "2"), {"label 2", "0 to 1"});
  refuse(line(R"(["a", "b"])", "\"x\""), {"\"label\" is string", "an integer"});
  refuse(line(R"(["a", "\u00e9"])", "0"), {"q.jsonl:1", "id 195", "0 to 127"});
  refuse("{\"text\": \"\"}", {"q.jsonl:1", "empty document"}, "ppl:");
  WriteBytes(dir / "t.txt", "ab\xff");
  RequireError(ErrorCode::kData, {"t.txt", "byte offset 2"}, [&] {
    OpenEvalTask("ppl:" + dir / "t.txt", ByteTaskCodec(), {32, 256}, 0);
  });
}

TEST_CASE("a folder's texts are a document each", "[eval]") {
  const TempDir dir;
  WriteBytes(dir / "b.txt", "two words");
  WriteBytes(dir / "a.txt", "abcdefgh");
  const auto task = OpenEvalTask("ppl:" + dir.path(), ByteTaskCodec(), {4, 256}, 0);
  REQUIRE(task->rows().size() == 5);
  const std::vector<double> sums = {-1, -2, -3, -4, -5};
  const std::map<std::string, double> values = ValuesOf(task->Judge(sums));
  CHECK(values.at("word_perplexity") == Approx(std::exp(15.0 / 3)));
  CHECK(values.at("byte_perplexity") == Approx(std::exp(15.0 / 17)));
  CHECK(values.at("bits_per_byte") == Approx(15.0 / 17 / std::log(2.0)));
  CHECK(values.at("loss") == Approx(15.0 / 17));
  CHECK(OpenEvalTask("ppl:" + dir.path(), ByteTaskCodec(), {4, 256}, 1)->rows().size() == 2);
}

TEST_CASE("a task's hash is that of what is scored", "[eval]") {
  const TempDir dir;
  const auto hash = [&](const std::string& text, int64_t seq_len) {
    WriteBytes(dir / "t.txt", text);
    const auto task = OpenEvalTask("ppl:" + dir / "t.txt", ByteTaskCodec(), {seq_len, 256}, 0);
    return task->Judge(std::vector<double>(task->rows().size())).hash;
  };
  const std::string first = hash("some text", 4);
  CHECK(hash("some text", 4) == first);
  CHECK(hash("some texts", 4) != first);
  CHECK(hash("some text", 5) != first);
}

TEST_CASE("tasks that there are not say which there are", "[eval]") {
  for (const char* spec : {"hellaswag", "hellaswag:", "hellaswag:x.txt", "mmlu:x.jsonl", "ppl",
                           "hellaswag-llmc:x.bin", ""}) {
    CAPTURE(spec);
    CHECK_THAT(WhyNoTask(spec), Catch::Contains("ppl:PATH are allowed"));
  }
  for (const char* spec :
       {"hellaswag:x.bin", "hellaswag:x.jsonl", "hellaswag-llmc:x.jsonl", "ppl:a:b"})
    CHECK(WhyNoTask(spec).empty());
  RequireError(ErrorCode::kConfig, {"mmlu:x", "is not known"}, [] {
    OpenEvalTask("mmlu:x", ByteTaskCodec(), {4, 256}, 0);
  });
}

}  // namespace
}  // namespace millrace
