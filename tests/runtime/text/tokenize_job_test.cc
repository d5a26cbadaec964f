#include "runtime/text/tokenize/tokenize_job.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "runtime/data/input_file.h"
#include "runtime/data/tokens/token_files.h"
#include "runtime/text/chat/chat_mask.h"
#include "tests/runtime/data/error_matchers.h"
#include "tests/runtime/data/temp_dir.h"
#include "tests/runtime/text/golden.h"

namespace millrace {
namespace {

const Tokenizer& TestTokenizer() {
  static const Tokenizer tokenizer(text::ReadTestData("tokenizer.json").dump(), "t");
  return tokenizer;
}

std::string Sentences(int first, int count) {
  std::string text;
  for (int i = first; i < first + count; ++i)
    text +=
        "The administrators said it " + std::to_string(i) + " times; l'\u00e9t\u00e9 <|end|>.\n";
  return text;
}

struct Job {
  TempDir dir;
  std::string text;
  TokenizeOptions options;

  // The defaults: b.txt has two blocks and more, and there are several files.
  explicit Job(int sentences = 45000, int64_t file_tokens = 100000)
      : text(Sentences(0, sentences)) {
    std::ofstream lines(dir.path() + "/a.jsonl");
    for (int i = 0; i < 200; ++i) lines << nlohmann::json{{"text", Sentences(i, 3)}}.dump() << "\n";
    std::ofstream(dir.path() + "/b.txt") << text;
    options = {.inputs = {dir.path() + "/a.jsonl", dir.path() + "/b.txt"},
               .folder = "",
               .documents = {.separator = TestTokenizer().AddedTokenId("<|end|>")},
               .file_tokens = file_tokens};
  }
  TokenizeResult Run(const std::string& folder, int threads, int stop_after = 1 << 30) {
    options.folder = dir.path() + "/" + folder;
    options.threads = threads;
    int calls = 0;
    return RunTokenizeJob(TestTokenizer(), options, FileSystem::Posix(),
                          [&](const TokenizeProgress& progress) {
                            REQUIRE(progress.bytes <= progress.total_bytes);
                            if (++calls == stop_after) throw Error(ErrorCode::kIo, "stopped");
                          });
  }
  std::map<std::string, std::string> Files(const std::string& folder) const {
    std::map<std::string, std::string> files;
    for (const auto& entry : std::filesystem::directory_iterator(dir.path() + "/" + folder))
      if (entry.path().filename().string()[0] != '.')
        files[entry.path().filename()] =
            ReadWholeFile(entry.path(), int64_t{1} << 30, ErrorCode::kData);
    return files;
  }
};

TEST_CASE("token files are the documents' ids with separators, stamped", "[text][tokenize]") {
  Job job;
  const TokenizeResult result = job.Run("out", 1);
  REQUIRE(result.documents == 201);
  REQUIRE(result.files >= 2);
  REQUIRE_FALSE(result.nothing_to_do);

  TextEncoder encoder(TestTokenizer());
  const EncodeOptions plain = {SpecialText::kPlain, AroundText::kNothing};
  std::vector<int32_t> expected, found;
  for (int i = 0; i < 200; ++i) {
    encoder.Encode(Sentences(i, 3), plain, expected);
    expected.push_back(*job.options.documents.separator);
  }
  encoder.Encode(job.text, plain, expected);
  expected.push_back(*job.options.documents.separator);
  const auto kind = TokenFileKind::kTokens;
  for (const auto& segment : OpenTokenFiles(ListTokenFiles(job.options.folder, kind), kind)) {
    REQUIRE(segment.bytes_per_token == 2);
    REQUIRE(segment.stamp.tokenizer == TestTokenizer().hash());
    REQUIRE(segment.stamp.vocab == TestTokenizer().vocab_size());
    const size_t at = found.size();
    found.resize(at + static_cast<size_t>(segment.count));
    ReadTokens(segment, 0, segment.count, TestTokenizer().vocab_size(), &found[at]);
  }
  REQUIRE((found == expected));
  REQUIRE(result.tokens == std::ssize(expected));
}

TEST_CASE("files are the same for any number of threads and after any interruption",
          "[text][tokenize]") {
  Job job;
  job.Run("whole", 1);
  const auto whole = job.Files("whole");
  job.Run("threads", 3);
  REQUIRE((job.Files("threads") == whole));
  for (const int stop_after : {1, 2, 3}) {
    CAPTURE(stop_after);
    const std::string folder = "stopped" + std::to_string(stop_after);
    REQUIRE_THROWS_AS(job.Run(folder, 2, stop_after), Error);
    REQUIRE_FALSE((job.Files(folder) == whole));
    job.Run(folder, 1);
    REQUIRE((job.Files(folder) == whole));
  }
  REQUIRE(job.Run("whole", 1).nothing_to_do);
  REQUIRE((job.Files("whole") == whole));
}

TEST_CASE("a second job in a folder is refused while the first is at work", "[text][tokenize]") {
  Job job(300, 2000);
  job.Run("alone", 1);
  const auto alone = job.Files("alone");
  job.options.folder = job.dir.path() + "/out";
  int calls = 0;
  const auto run = [&](const std::function<void(const TokenizeProgress&)>& progress) {
    return RunTokenizeJob(TestTokenizer(), job.options, FileSystem::Posix(), progress);
  };
  const TokenizeResult result = run([&](const TokenizeProgress&) {
    if (calls++ == 0)
      RequireError(ErrorCode::kConfig,
                   {"folder " + job.options.folder + " is in use by pid", "another folder"},
                   [&] { run([](const TokenizeProgress&) {}); });
  });
  REQUIRE(calls > 0);
  REQUIRE(result.warning.empty());
  REQUIRE((job.Files("out") == alone));
  for (const auto& entry : std::filesystem::directory_iterator(job.options.folder))
    REQUIRE(entry.path().filename().string()[0] != '.');  // the lock has gone
}

// Ends where a kill would: a token file has its name, and tokens.json does not know of it.
struct StopsAtSecondState final : FileSystem {
  int Rename(const std::string& from, const std::string& to) override {
    if (to.ends_with("/tokens.json") && ++states == 2) throw Error(ErrorCode::kIo, "stopped");
    return FileSystem::Rename(from, to);
  }
  int states = 0;
};

TEST_CASE("a job that ended between its first file and the state goes on", "[text][tokenize]") {
  Job job(300, 2000);
  job.Run("whole", 1);
  job.options.folder = job.dir.path() + "/out";
  StopsAtSecondState files;
  REQUIRE_THROWS_AS(RunTokenizeJob(TestTokenizer(), job.options, files, [](const auto&) {}), Error);
  REQUIRE(job.Files("out").count("tokens_000000.bin") == 1);
  const TokenizeOptions options = job.options;
  job.options.file_tokens = 5;  // not for another job
  RequireError(ErrorCode::kConfig, {"file_tokens differs"}, [&] { job.Run("out", 1); });
  job.options = options;
  job.Run("out", 1);
  REQUIRE((job.Files("out") == job.Files("whole")));
}

TEST_CASE("an input that was wrong may be mended before the first file", "[text][tokenize]") {
  Job job(300, 2000);
  std::ofstream(job.options.inputs[0]) << "no JSON\n";
  REQUIRE_THROWS_AS(job.Run("out", 1), Error);
  std::ofstream(job.options.inputs[0]) << nlohmann::json{{"text", "the end"}}.dump() << "\n";
  REQUIRE(job.Run("out", 1).documents == 2);
}

TEST_CASE("another job's folder is refused with what differs", "[text][tokenize]") {
  Job job;
  job.Run("out", 1);
  const auto refused = [&](ErrorCode code, const std::vector<std::string>& parts) {
    RequireError(code, parts, [&] { job.Run("out", 1); });
  };
  const TokenizeOptions options = job.options;
  job.options.documents.separator.reset();
  refused(ErrorCode::kConfig, {"separator differs", "null here", "another folder"});
  job.options = options;
  job.options.file_tokens = 5;
  refused(ErrorCode::kConfig, {"file_tokens differs (100000 there, 5 here)"});
  job.options = options;
  const std::string& input = job.options.inputs[1];
  const auto modified = std::filesystem::last_write_time(input);
  std::ofstream(input, std::ios::app) << "more";
  refused(ErrorCode::kConfig, {"inputs[1] differs", "b.txt"});
  std::ofstream(input) << std::string(job.text.size(), 'x');  // other text of the same size
  std::filesystem::last_write_time(input, modified + std::chrono::microseconds(1));
  refused(ErrorCode::kConfig, {"inputs[1] differs", "b.txt", "modified_ns"});
  std::ofstream(input) << job.text;
  std::filesystem::last_write_time(input, modified);
  REQUIRE(job.Run("out", 1).nothing_to_do);
  job.options.inputs.pop_back();
  refused(ErrorCode::kConfig, {"inputs' number differs (2 there, 1 here)"});
  job.options = options;
  std::filesystem::rename(input, input + ".away");
  refused(ErrorCode::kData, {"b.txt", "No such file"});
  std::filesystem::rename(input + ".away", input);
  std::filesystem::resize_file(job.dir.path() + "/out/tokens_000000.bin", 2000);
  refused(ErrorCode::kData, {"tokens_000000.bin", "truncated?"});
  std::filesystem::remove(job.dir.path() + "/out/tokens.json");
  refused(ErrorCode::kConfig, {"no tokens.json"});
}

TEST_CASE("a damaged tokens.json is refused with file and value", "[text][tokenize]") {
  Job job(300, 2000);
  job.Run("out", 1);
  const std::string path = job.dir.path() + "/out/tokens.json";
  const nlohmann::json whole =
      nlohmann::json::parse(ReadWholeFile(path, int64_t{1} << 20, ErrorCode::kData));
  const auto refused = [&](const nlohmann::json& patch, const std::vector<std::string>& parts) {
    CAPTURE(patch.dump());
    nlohmann::json damaged = whole;
    damaged.merge_patch(patch);
    std::ofstream(path) << damaged.dump();
    RequireError(ErrorCode::kData, parts, [&] { job.Run("out", 1); });
  };
  const auto next = [](int file, int64_t offset, int line) {
    return nlohmann::json{{"file", file}, {"offset", offset}, {"line", line}};
  };
  refused({{"done", false}, {"next", next(7, 3, 0)}}, {path, "\"file\":7", "2 inputs"});
  refused({{"done", false}, {"next", next(2, 3, 0)}}, {path, "\"offset\":3", "2 inputs"});
  refused({{"done", false}, {"next", next(2, 0, 1)}}, {path, "\"line\":1", "2 inputs"});
  refused({{"done", false}, {"next", next(1, int64_t{1} << 40, 0)}},
          {"b.txt", std::to_string(int64_t{1} << 40)});
  refused({{"next", next(1, 0, 0)}}, {path, "\"done\" is true", "\"file\":1"});
  refused({{"done", "yes"}}, {path, "\"done\" is \"yes\""});
  nlohmann::json fewer = whole["files"];
  fewer.erase(fewer.size() - 1);
  refused({{"files", fewer}}, {path, "\"tokens\" is " + whole["tokens"].dump(), "files"});
  std::ofstream(path) << whole.dump();
  REQUIRE(job.Run("out", 1).nothing_to_do);
}

// A line of ids: its number, and how many they are.
std::string IdsLine(int i, const std::string& name) {
  nlohmann::json ids = nlohmann::json::array({i});
  for (int k = 0; k < i % 7; ++k) ids.push_back((i * 31 + k) % 600);
  return nlohmann::json{{name, ids}, {"text", "not this"}}.dump() + "\n";
}

TEST_CASE("lists of ids are taken as they are, with or without a tokenizer", "[text][tokenize]") {
  const TempDir dir;
  const char* const names[] = {"ids", "input_ids", "tokens", "token_ids"};
  std::vector<int32_t> expected;
  {
    std::ofstream lines(dir / "a.jsonl");
    for (int i = 0; i < 300; ++i) {
      lines << IdsLine(i, names[i % 4]);
      expected.push_back(i);
      for (int k = 0; k < i % 7; ++k) expected.push_back((i * 31 + k) % 600);
      expected.push_back(999);
    }
  }
  TokenizeOptions options = {.inputs = {dir / "a.jsonl"},
                             .folder = dir / "plain",
                             .documents = {.form = DocumentForm::kIds, .separator = 999},
                             .threads = 2};
  const auto run = [&](const IdSpace& ids) {
    return RunTokenizeJob(ids, options, FileSystem::Posix(), [](const auto&) {});
  };
  const TokenizeResult result = run(IdSpace(1000));
  CHECK(result.documents == 300);
  CHECK(result.tokens == std::ssize(expected));
  const TokenSegment segment =
      OpenTokenFiles({dir / "plain/tokens_000000.bin"}, TokenFileKind::kTokens)[0];
  CHECK(segment.stamp.tokenizer.empty());  // whose ids they are is not known
  std::vector<int32_t> found(expected.size());
  ReadTokens(segment, 0, segment.count, 1000, found.data());
  CHECK(found == expected);
  CHECK_FALSE(std::filesystem::exists(dir / "plain/tokens_000000.mask"));
  CHECK(run(IdSpace(1000)).nothing_to_do);
  RequireError(ErrorCode::kConfig, {"vocab differs", "1000", "1001"}, [&] { run(IdSpace(1001)); });
  options.folder = dir / "stamped";
  options.documents.separator.reset();
  run(TestTokenizer());
  CHECK(OpenTokenFiles({dir / "stamped/tokens_000000.bin"}, TokenFileKind::kTokens)[0]
            .stamp.tokenizer == TestTokenizer().hash());
}

TEST_CASE("a list that holds no ids is named with its line", "[text][tokenize]") {
  const TempDir dir;
  const auto refuses = [&](const std::string& line, const std::vector<std::string>& parts) {
    std::ofstream(dir / "a.jsonl") << "{\"ids\": [1]}\n\n" << line << "\n";
    const TokenizeOptions options = {.inputs = {dir / "a.jsonl"},
                                     .folder = dir / "out",
                                     .documents = {.form = DocumentForm::kIds}};
    std::vector<std::string> all = parts;
    all.push_back("a.jsonl: line 3");
    RequireError(ErrorCode::kData, all, [&] {
      RunTokenizeJob(IdSpace(50), options, FileSystem::Posix(), [](const auto&) {});
    });
  };
  refuses("{\"text\": \"a\"}", {"has no \"ids\"", "token_ids"});
  refuses("{\"ids\": [1], \"tokens\": [2]}", {"both \"ids\" and \"tokens\"", "--field"});
  refuses("{\"ids\": \"1\"}", {"\"ids\" is string"});
  refuses("{\"ids\": [1, 50]}", {"ids[1] is 50", "0 to 49"});
  refuses("{\"ids\": [1, 2, -1]}", {"ids[2] is -1"});
  refuses("{\"ids\": [1.0]}", {"ids[0] is 1.0"});
  refuses("{\"ids\": [18446744073709551615]}", {"ids[0] is 18446744073709551615"});
  refuses("{\"ids\": [[1]]}", {"ids[0] is array"});
  refuses("[1]", {"not a JSON object"});
  const TokenizeOptions text = {
      .inputs = {dir / "b.txt"}, .folder = dir / "out", .documents = {.form = DocumentForm::kIds}};
  std::ofstream(dir / "b.txt") << "1 2";
  RequireError(ErrorCode::kData, {"b.txt is text", "ids are read from JSON lines"},
               [&] { RunTokenizeJob(IdSpace(50), text, FileSystem::Posix(), [](const auto&) {}); });
}

TEST_CASE("conversations have masks, the same for any threads and after any interruption",
          "[text][tokenize]") {
  Job job(1, 3000);
  std::vector<int32_t> ids;
  std::vector<uint8_t> mask;
  TextEncoder encoder(TestTokenizer());
  {
    std::ofstream lines(job.dir / "talks.jsonl");
    for (int i = 0; i < 20000; ++i) {
      const nlohmann::json talk = {
          {"messages",
           {{{"role", "user"}, {"content", Sentences(i, 1 + i % 3)}},
            {{"role", "assistant"}, {"content", std::to_string(i * 37)}}}}};
      lines << talk.dump() << "\n";
      MaskedIds masked;
      EncodeConversation(ChatTemplate::kPlain, ReadConversation(talk, "messages", ""), encoder, "",
                         masked);
      ids.insert(ids.end(), masked.ids.begin(), masked.ids.end());
      mask.insert(mask.end(), masked.mask.begin(), masked.mask.end());
      ids.push_back(*job.options.documents.separator);
      mask.push_back(0);
    }
  }
  job.options.inputs = {job.dir / "talks.jsonl"};
  job.options.documents.form = DocumentForm::kMessages;
  job.options.documents.chat = ChatTemplate::kPlain;
  const TokenizeResult result = job.Run("whole", 1);
  REQUIRE(result.files >= 3);
  CHECK(result.targets == std::count(mask.begin(), mask.end(), 1));
  std::string masks;
  std::vector<int32_t> found;
  for (const std::string& path : ListTokenFiles(job.options.folder, TokenFileKind::kTokens)) {
    const TokenSegment segment = OpenTokenFiles({path}, TokenFileKind::kTokens)[0];
    const size_t at = found.size();
    found.resize(at + static_cast<size_t>(segment.count));
    ReadTokens(segment, 0, segment.count, TestTokenizer().vocab_size(), &found[at]);
    masks += ReadBytes(path.substr(0, path.size() - 4) + ".mask");
    REQUIRE(masks.size() == found.size());
  }
  CHECK((found == ids));
  CHECK((masks == std::string(mask.begin(), mask.end())));

  const auto whole = job.Files("whole");
  job.Run("threads", 3);
  CHECK((job.Files("threads") == whole));
  for (const int stop_after : {1, 2, 3}) {
    const std::string folder = "stopped" + std::to_string(stop_after);
    REQUIRE_THROWS_AS(job.Run(folder, 2, stop_after), Error);
    job.Run(folder, 1);
    CHECK((job.Files(folder) == whole));
  }
  // A mask that is not its file's is found when the job is asked for again.
  CHECK(job.Run("whole", 1).nothing_to_do);
  WriteBytes(job.dir / "whole/tokens_000001.mask", "");
  RequireError(ErrorCode::kData, {"tokens_000001.mask has 0 bytes"}, [&] { job.Run("whole", 1); });
  job.options.documents.chat = ChatTemplate::kLlama3;
  RequireError(ErrorCode::kConfig, {"llama3", "<|begin_of_text|>"}, [&] { job.Run("whole", 1); });
  job.options.documents.form = DocumentForm::kText;
  RequireError(ErrorCode::kConfig, {"from differs", "messages", "text"},
               [&] { job.Run("threads", 1); });
}

TEST_CASE("a folder of a version that knew text alone is gone on with", "[text][tokenize]") {
  Job job(10);
  job.Run("out", 1);
  const std::string path = job.dir / "out/tokens.json";
  nlohmann::json state = nlohmann::json::parse(ReadBytes(path));
  for (const char* key : {"from", "template", "targets"}) CHECK(state.erase(key) == 1);
  WriteBytes(path, state.dump());
  CHECK(job.Run("out", 1).nothing_to_do);
  job.options.documents.form = DocumentForm::kMessages;
  job.options.documents.chat = ChatTemplate::kPlain;
  job.options.documents.field = "text";
  job.options.inputs.pop_back();
  RequireError(ErrorCode::kConfig, {"from differs"}, [&] { job.Run("out", 1); });
}

}  // namespace
}  // namespace millrace
