#include <array>
#include <utility>
#include <vector>

#include "runtime/base/error.h"
#include "runtime/data/input_file.h"
#include "runtime/run/eval/choice_task.h"
#include "runtime/run/eval/hellaswag.h"

namespace millrace {
namespace {

constexpr int64_t kHeaderInts = 256, kHeaderBytes = kHeaderInts * 4;
constexpr int32_t kMagic = 20240522, kVersion = 1;
constexpr uint16_t kStart = 65535;
constexpr int64_t kMostExamples = 65535, kAnswers = 4;

class BinReader {
 public:
  BinReader(const std::string& path, const TaskWindow& window)
      : file_(path, ErrorCode::kData), window_(window) {}

  std::vector<Question> Read() {
    const int64_t count = ReadHeader();
    words_.resize(static_cast<size_t>((file_.size() - kHeaderBytes) / 2));
    file_.Read(kHeaderBytes, words_.data(), static_cast<int64_t>(words_.size()) * 2);
    std::vector<Question> questions;
    for (int64_t i = 0; i < count; ++i) questions.push_back(ReadExample(i));
    MR_REQUIRE(ErrorCode::kData, at_ == words_.size(),
               "{}: its {} examples end at byte offset {}, but the file has {} bytes", file_.path(),
               count, Offset(), file_.size());
    return questions;
  }

 private:
  int64_t ReadHeader() {
    MR_REQUIRE(ErrorCode::kData, file_.size() >= kHeaderBytes && file_.size() % 2 == 0,
               "{} has {} bytes; llm.c's file of examples has an even number, at least {}",
               file_.path(), file_.size(), kHeaderBytes);
    std::array<int32_t, 3> header;
    file_.Read(0, header.data(), sizeof header);
    const auto [magic, version, count] = header;
    MR_REQUIRE(ErrorCode::kData, magic == kMagic && version == kVersion,
               "{} begins with {} and version {}; llm.c's file of examples has {} and version {}",
               file_.path(), magic, version, kMagic, kVersion);
    MR_REQUIRE(ErrorCode::kData, count >= 1 && count <= kMostExamples,
               "{}: byte offset 8 says {} examples; 1 to {} are expected", file_.path(), count,
               kMostExamples);
    return count;
  }

  Question ReadExample(int64_t index) {
    const size_t begin = at_;
    Expect(index, "begins with", kStart);
    const uint16_t bytes = Next(index);
    Expect(index, "has the index", static_cast<uint16_t>(index));
    Question question;
    question.label = Next(index);
    MR_REQUIRE(ErrorCode::kData, question.label < kAnswers,
               "{}: byte offset {}: example {} has label {}; 0 to {} are expected", file_.path(),
               Offset() - 2, index, question.label, kAnswers - 1);
    Expect(index, "has as many answers as", kAnswers);
    const std::vector<int32_t> context = ReadIds(index);
    for (int64_t i = 0; i < kAnswers; ++i) {
      const std::vector<int32_t> answer = ReadIds(index);
      ScoreRow row{context, static_cast<int64_t>(context.size())};
      row.ids.insert(row.ids.end(), answer.begin(), answer.end());
      MR_REQUIRE(
          ErrorCode::kData, static_cast<int64_t>(row.ids.size()) <= window_.seq_len + 1,
          "{}: example {} has {} ids with answer {}; a window of model.seq_len = {} holds {}",
          file_.path(), index, row.ids.size(), i, window_.seq_len, window_.seq_len + 1);
      question.lengths.push_back(static_cast<double>(answer.size()));
      question.answers.push_back(std::move(row));
    }
    MR_REQUIRE(ErrorCode::kData, (at_ - begin) * 2 == bytes,
               "{}: byte offset {}: example {} says {} bytes and has {}", file_.path(),
               kHeaderBytes + static_cast<int64_t>(begin) * 2 + 2, index, bytes, (at_ - begin) * 2);
    return question;
  }

  std::vector<int32_t> ReadIds(int64_t index) {
    const uint16_t count = Next(index);
    MR_REQUIRE(ErrorCode::kData, count >= 1 && count <= words_.size() - at_,
               "{}: byte offset {}: example {} has a text of {} ids; 1 to the {} that follow are "
               "expected",
               file_.path(), Offset() - 2, index, count, words_.size() - at_);
    std::vector<int32_t> ids(words_.begin() + static_cast<std::ptrdiff_t>(at_),
                             words_.begin() + static_cast<std::ptrdiff_t>(at_ + count));
    for (const int32_t id : ids) {
      MR_REQUIRE(
          ErrorCode::kData, id < window_.vocab,
          "{}: byte offset {}: example {} has id {}; the model's vocabulary has ids 0 to {}. "
          "The file holds GPT-2's ids: another model takes JSON lines",
          file_.path(), Offset(), index, id, window_.vocab - 1);
      ++at_;
    }
    return ids;
  }

  uint16_t Next(int64_t index) {
    MR_REQUIRE(ErrorCode::kData, at_ < words_.size(),
               "{} ends at byte {}, within example {}: truncated?", file_.path(), file_.size(),
               index);
    return words_[at_++];
  }

  void Expect(int64_t index, const char* what, uint16_t expected) {
    const uint16_t found = Next(index);
    MR_REQUIRE(ErrorCode::kData, found == expected,
               "{}: byte offset {}: example {} {} {}; {} is expected", file_.path(), Offset() - 2,
               index, what, found, expected);
  }

  int64_t Offset() const { return kHeaderBytes + static_cast<int64_t>(at_) * 2; }

  InputFile file_;
  TaskWindow window_;
  std::vector<uint16_t> words_;
  size_t at_ = 0;
};

}  // namespace

std::unique_ptr<EvalTask> OpenHellaSwagBin(const std::string& path, const TaskWindow& window,
                                           int64_t limit) {
  std::vector<Question> questions = BinReader(path, window).Read();
  if (limit > 0 && limit < static_cast<int64_t>(questions.size()))
    questions.resize(static_cast<size_t>(limit));
  return MakeChoiceTask("hellaswag", "llm.c", std::move(questions));
}

}  // namespace millrace
