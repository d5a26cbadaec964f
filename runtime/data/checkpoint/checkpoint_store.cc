#include "runtime/data/checkpoint/checkpoint_store.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <cmath>
#include <filesystem>
#include <system_error>
#include <utility>

#include "runtime/base/error.h"
#include "runtime/data/hash.h"
#include "runtime/data/input_file.h"

namespace millrace {
namespace {

constexpr ErrorCode kCode = ErrorCode::kCheckpoint;
constexpr const char* kTemporary = "tmp.";

std::vector<std::string> FolderNames(const std::string& root) {
  std::vector<std::string> names;
  std::error_code error;
  std::filesystem::directory_iterator entries(root, error), end;
  if (error == std::errc::no_such_file_or_directory) {
    std::error_code ignored;
    MR_REQUIRE(ErrorCode::kIo, !std::filesystem::is_symlink(root, ignored),
               "cannot list the folder {}: it is a link to what is not there (a disk that is not "
               "mounted?)",
               root);
    return names;
  }
  for (; !error && entries != end; entries.increment(error)) {
    std::error_code ignored;
    if (entries->is_directory(ignored)) names.push_back(entries->path().filename().string());
  }
  MR_REQUIRE(ErrorCode::kIo, !error, "cannot list the folder {}: {}", root, error.message());
  std::sort(names.begin(), names.end());
  return names;
}

// "step_00000123" -> 123; nothing for any other name.
std::optional<int64_t> StepOfName(const std::string& name) {
  constexpr std::string_view kPrefix = "step_";
  if (name.compare(0, kPrefix.size(), kPrefix) != 0) return std::nullopt;
  int64_t step = -1;
  std::from_chars(name.data() + kPrefix.size(), name.data() + name.size(), step);
  if (step < 0 || CheckpointFolderName(step) != name) return std::nullopt;
  return step;
}

// "" or what is wrong with bytes [offset, offset + bytes) of the file.
std::string CheckBytes(const InputFile& file, int64_t offset, int64_t bytes,
                       const std::string& expected, const std::string& what) {
  constexpr int64_t kPiece = int64_t{4} << 20;
  std::vector<char> piece(static_cast<size_t>(std::min(kPiece, bytes)));
  Hasher128 hash;
  for (int64_t done = 0; done < bytes; done += kPiece) {
    const int64_t length = std::min(kPiece, bytes - done);
    file.Read(offset + done, piece.data(), length);
    hash.Update(piece.data(), length);
  }
  const std::string found = hash.Hex();
  if (found == expected) return "";
  return fmt::format("{}: {} (bytes {} to {}) is damaged: its XXH3-128 is {}, the manifest says {}",
                     file.path(), what, offset, offset + bytes, found, expected);
}

// Of each of `usable`, newest first: whether it is wanted.
std::vector<bool> Wanted(const std::vector<CheckpointEntry>& usable, const Retention& retention) {
  std::vector<bool> wanted(usable.size(), false);
  std::vector<std::pair<double, size_t>> scores;  // the newer of equal ones comes first
  for (size_t i = 0; i < usable.size(); ++i) {
    wanted[i] = static_cast<int64_t>(i) < retention.newest ||
                (retention.every.has_value() && usable[i].step % *retention.every == 0);
    if (retention.best == 0) continue;
    const std::optional<double> score = retention.score(*usable[i].manifest);
    if (score.has_value() && !std::isnan(*score)) scores.emplace_back(*score, i);
  }
  std::sort(scores.begin(), scores.end());
  for (size_t i = 0; i < scores.size() && static_cast<int64_t>(i) < retention.best; ++i)
    wanted[scores[i].second] = true;
  return wanted;
}

}  // namespace

std::vector<CheckpointEntry> ListCheckpoints(const std::string& root) {
  std::vector<CheckpointEntry> list;
  for (const std::string& name : FolderNames(root)) {
    const std::optional<int64_t> step = StepOfName(name);
    if (!step.has_value()) continue;
    CheckpointEntry entry{
        .folder = root + "/" + name, .step = *step, .manifest = {}, .problem = ""};
    try {
      entry.manifest = ReadManifest(entry.folder);
      if (entry.manifest->step != *step)
        entry.problem =
            fmt::format("{} is the checkpoint of step {}", entry.folder, entry.manifest->step);
      for (const CheckpointFile& file : entry.manifest->files) {
        const InputFile input(entry.folder + "/" + CheckpointFileName(file.rank), kCode);
        if (input.size() != file.bytes && entry.problem.empty())
          entry.problem = fmt::format("{} has {} bytes, the manifest says {}", input.path(),
                                      input.size(), file.bytes);
      }
    } catch (const Error& error) {
      entry.problem = error.what();
    }
    list.push_back(std::move(entry));
  }
  std::sort(list.begin(), list.end(), [](const auto& a, const auto& b) { return a.step > b.step; });
  return list;
}

std::vector<std::string> VerifyCheckpointFile(const std::string& folder,
                                              const CheckpointFile& file) {
  std::vector<std::string> problems;
  try {
    const InputFile input(folder + "/" + CheckpointFileName(file.rank), kCode);
    if (input.size() != file.bytes)
      problems.push_back(fmt::format("{} has {} bytes, the manifest says {}", input.path(),
                                     input.size(), file.bytes));
    const auto check = [&](int64_t offset, int64_t bytes, const std::string& expected,
                           const std::string& what) {
      if (offset + bytes > input.size()) {
        problems.push_back(fmt::format("{}: {} (bytes {} to {}) is cut off", input.path(), what,
                                       offset, offset + bytes));
        return;
      }
      std::string problem = CheckBytes(input, offset, bytes, expected, what);
      if (!problem.empty()) problems.push_back(std::move(problem));
    };
    check(0, file.blobs.empty() ? file.bytes : file.blobs.front().offset, file.header_xxh3,
          "the header");
    for (const CheckpointBlob& blob : file.blobs)
      check(blob.offset, blob.bytes, blob.xxh3, "blob \"" + blob.name + "\"");
  } catch (const Error& error) {
    problems.push_back(error.what());  // missing, or the disk refuses to read it
  }
  return problems;
}

std::vector<std::string> VerifyCheckpoint(const std::string& folder) {
  std::vector<std::string> problems;
  try {
    for (const CheckpointFile& file : ReadManifest(folder).files)
      for (std::string& problem : VerifyCheckpointFile(folder, file))
        problems.push_back(std::move(problem));
  } catch (const Error& error) {
    problems.push_back(error.what());
  }
  return problems;
}

std::string WhyUnreadable(const std::string& folder) {
  constexpr std::array<int, 8> kOfTheProcess = {EACCES, EPERM,  EMFILE,    ENFILE,
                                                ENOMEM, ESTALE, ETIMEDOUT, EINTR};
  std::vector<std::string> paths = {folder};
  std::error_code error;
  std::filesystem::directory_iterator entries(folder, error), end;
  for (; !error && entries != end; entries.increment(error))
    paths.push_back(entries->path().string());
  for (const std::string& path : paths) {
    const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    const int reason = fd < 0 ? errno : 0;
    if (fd >= 0) ::close(fd);
    if (std::find(kOfTheProcess.begin(), kOfTheProcess.end(), reason) != kOfTheProcess.end())
      return fmt::format("{}: {}", path, std::generic_category().message(reason));
  }
  return "";
}

std::string QuarantineCheckpoint(const std::string& folder, FileSystem& files) {
  const std::string base =
      FolderOf(folder) + "/damaged." + std::filesystem::path(folder).filename().string();
  std::string target = base;
  for (int64_t n = 2; std::filesystem::exists(std::filesystem::symlink_status(target)); ++n)
    target = fmt::format("{}.{}", base, n);
  Rename(files, folder, target);
  return target;
}

std::vector<std::string> ThinCheckpoints(
    const std::string& root, const Retention& retention,
    const std::function<bool(const CheckpointEntry&)>& is_sound, FileSystem& files) {
  MR_REQUIRE(ErrorCode::kInvalidArgument, retention.newest >= 1,
             "at least one checkpoint must be kept, not {}", retention.newest);
  std::vector<CheckpointEntry> usable;
  for (CheckpointEntry& entry : ListCheckpoints(root))
    if (entry.usable()) usable.push_back(std::move(entry));
  std::vector<bool> stays = Wanted(usable, retention);
  std::vector<std::string> removed;
  if (std::find(stays.begin(), stays.end(), false) == stays.end()) return removed;

  size_t sound = 0;
  while (sound < usable.size() && !is_sound(usable[sound])) ++sound;
  if (sound == usable.size())
    return removed;  // none passes: throwing any away could only make it worse
  stays[sound] = true;
  for (size_t i = 0; i < usable.size(); ++i) {
    if (stays[i]) continue;
    // Out of sight first: a removal that is cut short must not leave half a
    // checkpoint under its name.
    const std::string hidden =
        fmt::format("{}/{}removed.{}", root, kTemporary,
                    std::filesystem::path(usable[i].folder).filename().string());
    RemoveTree(files, hidden);
    Rename(files, usable[i].folder, hidden);
    RemoveTree(files, hidden);
    removed.push_back(usable[i].folder);
  }
  return removed;
}

std::vector<std::string> ThinCheckpoints(const std::string& root, const Retention& retention,
                                         FileSystem& files) {
  return ThinCheckpoints(
      root, retention,
      [](const CheckpointEntry& entry) { return VerifyCheckpoint(entry.folder).empty(); }, files);
}

std::vector<std::string> RemoveLeftovers(const std::string& root, FileSystem& files) {
  std::vector<std::string> removed;
  for (const std::string& name : FolderNames(root)) {
    if (name.compare(0, 4, kTemporary) != 0) continue;
    removed.push_back(root + "/" + name);
    RemoveTree(files, removed.back());
  }
  return removed;
}

}  // namespace millrace
