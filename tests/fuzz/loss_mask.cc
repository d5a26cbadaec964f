// Masks beside files of tokens. The first bytes of an input choose the vocabulary (4), the length
// of a window (1), which files there are (1: a second file of ids, a mask of the first, one of the
// second), and the sizes of the first ids, the first mask and the second ids (2 each). These files
// follow; the rest is the second mask.
#include "runtime/data/tokens/loss_mask.h"

#include <algorithm>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "runtime/data/tokens/token_files.h"
#include "runtime/data/tokens/token_source.h"
#include "tests/fuzz/fuzz.h"
#include "tests/runtime/data/temp_dir.h"

using namespace millrace;

namespace {

using Content = std::optional<std::string_view>;  // none: there is no such file

// A folder of links that lead to files in memory.
class Folder {
 public:
  const std::string& path() const { return dir_.path(); }

  void Set(const std::string& name, const Content& content) {
    std::filesystem::remove(dir_ / name);
    contents_[dir_ / name] = content;
    if (!content) return;
    fuzz::MemoryFile& file = files_[name];
    file.Set(*content);
    std::filesystem::create_symlink(file.path(), dir_ / name);
  }
  const Content& At(const std::string& path) const { return contents_.at(path); }

 private:
  TempDir dir_;
  std::map<std::string, fuzz::MemoryFile> files_;
  std::map<std::string, Content> contents_;  // by path
};

std::string MaskPath(const TokenSegment& segment) {
  const std::string& path = segment.file->path();
  return path.substr(0, path.size() - 3) + "mask";
}

// What the refusal of these files' masks has to say, by the first that is wrong; "": they are
// sound.
std::string Damage(const std::vector<TokenSegment>& segments, const Folder& folder) {
  const bool masked = folder.At(MaskPath(segments[0])).has_value();
  for (const TokenSegment& segment : segments) {
    const std::string path = MaskPath(segment);
    const Content& mask = folder.At(path);
    if (mask.has_value() != masked) return "mask (" + path + ")";
    if (mask && std::ssize(*mask) != segment.count)
      return path + " has " + std::to_string(mask->size()) + " bytes";
  }
  for (const TokenSegment& segment : segments) {
    const std::string path = MaskPath(segment);
    const std::string_view mask = folder.At(path).value_or("");
    const size_t bad = mask.find_first_not_of(std::string_view("\0\1", 2));
    if (bad != mask.npos)
      return path + ": byte offset " + std::to_string(bad) + " is " +
             std::to_string(static_cast<unsigned char>(mask[bad])) + ";";
  }
  return "";
}

// The marks of all tokens of all files.
std::vector<uint8_t> ExpectedMarks(const std::vector<TokenSegment>& segments,
                                   const Folder& folder) {
  std::vector<uint8_t> marks;
  for (const TokenSegment& segment : segments) {
    const Content& mask = folder.At(MaskPath(segment));
    for (int64_t i = 0; i < segment.count; ++i)
      marks.push_back(mask && (*mask)[static_cast<size_t>(i)] == 0 ? kNoTarget : 0);
  }
  return marks;
}

// Windows from `first` on have these marks, and the ids that they have without masks.
void CheckWindows(const TokenSource& masked, const TokenSource& plain, int64_t first,
                  const std::vector<uint8_t>& marks) {
  const auto n = static_cast<size_t>(masked.seq_len()) + 1;
  std::vector<uint8_t> got(n), none(n);
  std::vector<int32_t> ids(n), plain_ids(n);
  for (int64_t w = 0; w < masked.windows(); ++w) {
    masked.ReadMarks(w, got.data());
    FUZZ_REQUIRE(
        std::equal(got.begin(), got.end(), marks.begin() + (first + w) * masked.seq_len()));
    plain.ReadMarks(first + w, none.data());
    FUZZ_REQUIRE(none == std::vector<uint8_t>(n, 0));
    masked.Read(w, ids.data());
    plain.Read(first + w, plain_ids.data());
    FUZZ_REQUIRE(ids == plain_ids);
  }
}

// Opens with masks; none: refused, for a reason that names `damage`.
std::shared_ptr<const TokenSource> OpenMasked(TokenSourceOptions options,
                                              const std::string& damage) {
  options.loss_mask = true;
  try {
    return OpenTokenSource(options);
  } catch (const Error& error) {
    FUZZ_REQUIRE(error.code() == ErrorCode::kData);
    FUZZ_REQUIRE(std::string_view(error.what()).find(damage) != std::string_view::npos);
    return nullptr;
  }
}

void CheckMasks(const TokenSource& plain, const TokenSourceOptions& options, Folder& folder) {
  const auto segments =
      OpenTokenFiles(ListTokenFiles(options.path, TokenFileKind::kTokens), TokenFileKind::kTokens);
  const std::string damage = Damage(segments, folder);
  const auto masked = OpenMasked(options, damage);
  FUZZ_REQUIRE((masked == nullptr) == !damage.empty());
  if (!masked) return;
  FUZZ_REQUIRE(masked->windows() == plain.windows());
  FUZZ_REQUIRE(masked->has_loss_mask() == folder.At(MaskPath(segments[0])).has_value());
  FUZZ_REQUIRE(masked->Fingerprint() == plain.Fingerprint());
  const std::vector<uint8_t> marks = ExpectedMarks(segments, folder);
  CheckWindows(*masked, plain, 0, marks);
  if (masked->windows() < 2) return;
  TokenSourceOptions split_options = options;
  split_options.loss_mask = true;
  const DataSplit split = OpenDataSplit(split_options, std::nullopt);
  CheckWindows(*split.train, plain, 0, marks);
  CheckWindows(*split.held_out, plain, split.train->windows(), marks);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static Folder folder;
  fuzz::ByteSource choices({reinterpret_cast<const char*>(data), size});
  TokenSourceOptions options = {.kind = TokenSourceOptions::Kind::kTokens,
                                .path = folder.path(),
                                .seq_len = 0,
                                .vocab = 1 + choices.Below(1 << 16)};
  options.seq_len = 1 + choices.Below(256);
  const uint64_t there = choices.Integer(1);
  size_t sizes[3];
  for (size_t& bytes : sizes) bytes = static_cast<size_t>(choices.Integer(2));
  std::string_view rest = choices.Rest();
  const auto take = [&](size_t bytes) {
    const std::string_view file = rest.substr(0, bytes);
    rest.remove_prefix(file.size());
    return file;
  };
  const auto given = [&](uint64_t bit, std::string_view file) {
    return there & bit ? Content(file) : std::nullopt;
  };
  folder.Set("a.bin", take(sizes[0]));
  folder.Set("a.mask", given(2, take(sizes[1])));
  folder.Set("b.bin", given(1, take(sizes[2])));
  folder.Set("b.mask", given(4, rest));

  const fuzz::MemoryLimit limit(size);
  std::shared_ptr<const TokenSource> plain;
  if (fuzz::Accepts({ErrorCode::kData}, [&] { plain = OpenTokenSource(options); }))
    CheckMasks(*plain, options, folder);
  else
    FUZZ_REQUIRE(OpenMasked(options, "") == nullptr);
  // Nobody has said whether the masks count: only where there is none is that no question.
  options.loss_mask = std::nullopt;
  const bool unsaid =
      fuzz::Accepts({ErrorCode::kData, ErrorCode::kConfig}, [&] { OpenTokenSource(options); });
  const bool any = std::filesystem::exists(folder.path() + "/a.mask") ||
                   std::filesystem::exists(folder.path() + "/b.mask");
  FUZZ_REQUIRE(unsaid ? plain != nullptr : any || plain == nullptr);
  return 0;
}
