#include "runtime/text/tokenize/text_blocks.h"

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <utility>

#include "runtime/base/error.h"
#include "runtime/base/json.h"
#include "runtime/text/unicode/unicode.h"

namespace millrace {

using nlohmann::json;

namespace {

// `at`: the byte of the line at which that shows.
[[noreturn]] void RefuseLine(std::string_view line, size_t at, const LinePlace& place) {
  throw Error(
      ErrorCode::kData,
      fmt::format(
          "{} is not a JSON object in UTF-8, by its byte {} ({} of the text): it begins "
          "with {}",
          place.Words(), at, place.offset + static_cast<int64_t>(at),
          DumpJson(json(std::string(line.substr(0, 40))), {.ascii = true, .replace = true})));
}

json ObjectOfLine(std::string_view line, const LinePlace& place) {
  json value;
  try {
    value = ParseJson(line);
  } catch (const json::parse_error& error) {
    RefuseLine(line, error.byte > 0 ? error.byte - 1 : 0, place);  // it counts from 1
  }
  if (!value.is_object()) RefuseLine(line, 0, place);
  return value;
}

}  // namespace

bool IsJsonLines(std::string_view path) {
  for (const std::string_view ending : {".gz", ".zst"})
    if (path.ends_with(ending)) path.remove_suffix(ending.size());
  return path.ends_with(".jsonl");
}

std::string LinePlace::Words() const { return fmt::format("{}: line {}", path, number); }

TextBlocks::TextBlocks(std::vector<std::string> paths, const TextCutter& cutter,
                       const TextPlace& begin)
    : paths_(std::move(paths)), cutter_(cutter), place_(begin) {
  for (const std::string& path : paths_) {
    std::error_code error;
    const auto bytes = static_cast<int64_t>(std::filesystem::file_size(path, error));
    MR_REQUIRE(ErrorCode::kData, !error, "{}: {}", path, error.message());
    file_bytes_.push_back(bytes);
    total_bytes_ += bytes;
  }
}

int64_t TextBlocks::consumed() const noexcept {
  int64_t bytes = stream_ ? stream_->consumed() : 0;
  for (int64_t i = 0; i < std::min<int64_t>(place_.file, std::ssize(paths_)); ++i)
    bytes += file_bytes_[i];
  return bytes;
}

void TextBlocks::OpenFile() {
  const std::string& path = paths_[place_.file];
  stream_ = OpenByteStream(path);
  jsonl_ = IsJsonLines(path);
  SkipBytes(*stream_, place_.offset, path);
}

// Where the last line or the last place to cut in (from, size) ends; 0: nowhere.
int64_t TextBlocks::CutOf(std::string_view text, int64_t from) const {
  if (!jsonl_) return cutter_.LastCut(text, std::max<int64_t>(0, from - 1));
  const size_t newline = text.rfind('\n');
  return newline == std::string_view::npos || int64_t(newline) < from ? 0 : int64_t(newline) + 1;
}

bool TextBlocks::Next(TextBlock& block) {
  while (!stream_) {
    if (place_.file == std::ssize(paths_)) return false;
    OpenFile();
  }
  const std::string& path = paths_[place_.file];
  bool at_end = false;
  int64_t cut = 0;
  for (int64_t wanted = kBlockBytes; cut == 0 && !at_end; wanted *= 2) {
    MR_REQUIRE(ErrorCode::kData, wanted <= kMostBlockBytes,
               "{}: {} more than {} bytes long from byte {} on", path,
               jsonl_ ? "a line is" : "text without a word's end is", kMostBlockBytes,
               place_.offset);
    const auto had = static_cast<int64_t>(rest_.size());
    rest_.resize(static_cast<size_t>(std::max(wanted, had)));
    const int64_t got = stream_->Read(rest_.data() + had, std::ssize(rest_) - had);
    rest_.resize(static_cast<size_t>(had + got));
    at_end = had + got < wanted;
    cut = at_end ? std::ssize(rest_) : CutOf(rest_, wanted == kBlockBytes ? 0 : had);
  }
  block = {.begin = place_,
           .end = {},
           .path = path,
           .text = rest_.substr(0, size_t(cut)),
           .jsonl = jsonl_,
           .ends_document = at_end};
  rest_.erase(0, static_cast<size_t>(cut));
  place_.offset += cut;
  if (jsonl_) place_.line += std::count(block.text.begin(), block.text.end(), '\n');
  if (at_end) {
    place_ = {.file = place_.file + 1};
    stream_.reset();
  }
  block.end = place_;
  return true;
}

void ForEachPart(const TextBlock& block, const std::string& field,
                 const std::function<void(const DocumentPart&)>& use) {
  if (!block.jsonl) {
    const int64_t invalid = FindInvalidUtf8(block.text);
    MR_REQUIRE(ErrorCode::kData, invalid < 0, "{}: byte {} (0x{:02x}) of the text is not UTF-8",
               block.path, block.begin.offset + invalid,
               static_cast<uint8_t>(block.text[static_cast<size_t>(invalid)]));
    if (!block.text.empty() || block.ends_document) use({block.text, block.ends_document});
    return;
  }
  ForEachLine(block, [&](const json& object, const LinePlace& place) {
    const auto found = object.find(field);
    MR_REQUIRE(ErrorCode::kData, found != object.end() && found->is_string(),
               "{} has no string \"{}\"", place.Words(), field);
    use({found->get_ref<const std::string&>(), true});
  });
}

void ForEachLine(const TextBlock& block,
                 const std::function<void(const json&, const LinePlace&)>& use) {
  MR_CHECK(block.jsonl, "{} is no JSON lines", block.path);
  LinePlace place{block.path, block.begin.line, block.begin.offset};
  for (std::string_view left = block.text; !left.empty();) {
    const std::string_view line = left.substr(0, left.find('\n'));
    const size_t length = std::min(left.size(), line.size() + 1);
    left.remove_prefix(length);
    ++place.number;
    if (line.find_first_not_of(" \t\r") != std::string_view::npos)
      use(ObjectOfLine(line, place), place);
    place.offset += static_cast<int64_t>(length);
  }
}

}  // namespace millrace
