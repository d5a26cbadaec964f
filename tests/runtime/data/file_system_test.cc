#include "runtime/data/file_system.h"

#include <sys/stat.h>

#include <catch2/catch.hpp>
#include <filesystem>

#include "runtime/data/jsonl_appender.h"
#include "tests/runtime/data/error_matchers.h"
#include "tests/runtime/data/faulty_file_system.h"
#include "tests/runtime/data/temp_dir.h"

namespace millrace {
namespace {

using Fault = FaultyFileSystem::Fault;

TEST_CASE("an atomic write replaces the whole file", "[data][files]") {
  const TempDir dir;
  for (const std::string& text :
       {std::string("first, longer"), std::string(), std::string(100000, 'x')}) {
    WriteFileAtomically(FileSystem::Posix(), dir / "f", text);
    REQUIRE(ReadBytes(dir / "f") == text);
    REQUIRE_FALSE(std::filesystem::exists(dir / "f.tmp"));
  }
  RequireError(ErrorCode::kIo, {dir / "absent/f", "No such file"},
               [&] { WriteFileAtomically(FileSystem::Posix(), dir / "absent/f", "x"); });
}

TEST_CASE("a link in the place of a file that is made is not written through", "[data][files]") {
  const TempDir dir;
  WriteBytes(dir / "precious", "as it was");
  std::filesystem::create_symlink(dir / "precious", dir / "f.tmp");
  RequireError(ErrorCode::kIo, {dir / "f.tmp"},
               [&] { WriteFileAtomically(FileSystem::Posix(), dir / "f", "new"); });
  REQUIRE(ReadBytes(dir / "precious") == "as it was");
}

TEST_CASE("an atomic write that fails at any call leaves the old content and no debris",
          "[data][files]") {
  const TempDir dir;
  for (const Fault fault : {Fault::kFail, Fault::kFailTorn}) {
    for (int64_t at = 1;; ++at) {
      WriteFileAtomically(FileSystem::Posix(), dir / "f", "old content");
      FaultyFileSystem files;
      files.fault = fault;
      files.at = at;
      files.error = ENOSPC;
      files.stays = true;
      try {
        WriteFileAtomically(files, dir / "f", "new content");
        REQUIRE(int64_t(files.calls().size()) < at);
        break;
      } catch (const Error& error) {
        REQUIRE(error.code() == ErrorCode::kIo);
        REQUIRE_THAT(error.what(), Catch::Contains("No space left on device"));
        const bool renamed =
            files.calls().back().name == "remove_file" && ReadBytes(dir / "f") == "new content";
        if (!renamed)
          REQUIRE(ReadBytes(dir / "f") ==
                  "old content");  // only the folder's sync comes after the rename
        REQUIRE_FALSE(std::filesystem::exists(dir / "f.tmp"));
      }
      REQUIRE(at < 20);
    }
  }
}

TEST_CASE("an atomic write syncs the file before the rename and the folder after it",
          "[data][files]") {
  const TempDir dir;
  FaultyFileSystem files;
  WriteFileAtomically(files, dir / "f", "text");
  std::vector<std::string> names;
  for (const auto& call : files.calls()) names.push_back(call.name);
  REQUIRE(names ==
          std::vector<std::string>{"create", "write", "sync", "close", "rename", "sync_folder"});
  REQUIRE(files.calls().back().path == dir.path());
}

TEST_CASE("short writes are continued", "[data][files]") {
  class OneByte final : public FileSystem {
    ssize_t Write(int fd, const void* data, size_t, int64_t offset) override {
      if (++calls % 3 == 0) {
        errno = EINTR;
        return -1;
      }
      return FileSystem::Write(fd, data, 1, offset);
    }
    int calls = 0;
  } files;
  const TempDir dir;
  WriteFileAtomically(files, dir / "f", "0123456789");
  REQUIRE(ReadBytes(dir / "f") == "0123456789");
}

TEST_CASE("a pipe or socket is not opened for writing, which might wait", "[data][files]") {
  const TempDir dir;
  FileSystem& files = FileSystem::Posix();
  for (const std::string name : {"pipe", "file.tmp"})
    REQUIRE(::mkfifo((dir / name).c_str(), 0600) == 0);
  RequireError(ErrorCode::kIo, {dir / "pipe", "not a regular file"},
               [&] { OutputFile(files, dir / "pipe"); });
  RequireError(ErrorCode::kIo, {dir / "pipe", "not a regular file"},
               [&] { WriteFileAtomically(files, dir / "pipe", "x"); });
  RequireError(ErrorCode::kIo, {dir / "file.tmp", "not a regular file"},
               [&] { WriteFileAtomically(files, dir / "file", "x"); });
}

TEST_CASE("folders are made with their parents, and trees removed without following links",
          "[data][files]") {
  const TempDir dir, other;
  FileSystem& files = FileSystem::Posix();
  MakeFolder(files, dir / "a/b/c");
  MakeFolder(files, dir / "a/b/c");
  REQUIRE(std::filesystem::is_directory(dir / "a/b/c"));
  WriteBytes(dir / "file", "x");
  RequireError(ErrorCode::kIo, {dir / "file"}, [&] { MakeFolder(files, dir / "file"); });
  RequireError(ErrorCode::kIo, {dir / "file/sub"}, [&] { MakeFolder(files, dir / "file/sub"); });

  WriteBytes(other / "precious", "y");
  std::filesystem::create_directory_symlink(other.path(), dir / "a/b/link");
  WriteBytes(dir / "a/b/c/file", "z");
  RemoveTree(files, dir / "a");
  RemoveTree(files, dir / "a");
  REQUIRE_FALSE(std::filesystem::exists(dir / "a"));
  REQUIRE(ReadBytes(other / "precious") == "y");
}

TEST_CASE("a line file holds whole lines: short lines from a full disk are taken back",
          "[data][files]") {
  const TempDir dir;
  FaultyFileSystem files;
  JsonlAppender lines(dir / "m.jsonl", files);
  lines.Append(R"({"step":1})");
  files.fault = Fault::kFailTorn;
  files.at = int64_t(files.calls().size()) + 1;
  files.error = ENOSPC;
  RequireError(ErrorCode::kIo, {dir / "m.jsonl", "No space left"},
               [&] { lines.Append(R"({"step":2})"); });
  REQUIRE(ReadBytes(dir / "m.jsonl") == "{\"step\":1}\n");
  files.fault = Fault::kFail;
  files.at = int64_t(files.calls().size()) + 1;
  files.error = EIO;
  RequireError(ErrorCode::kIo, {dir / "m.jsonl", "Input/output"},
               [&] { lines.Append(R"({"step":2})"); });
  files.fault = Fault::kNone;
  lines.Append(R"({"step":3})");
  lines.Sync();
  REQUIRE(ReadBytes(dir / "m.jsonl") == "{\"step\":1}\n{\"step\":3}\n");
  REQUIRE_THROWS_AS(lines.Append("two\nlines"), Error);
}

TEST_CASE("a short line that cannot be taken back at once is taken back before the next",
          "[data][files]") {
  class Stuck final : public FileSystem {
   public:
    bool full = false;

   private:
    ssize_t Append(int fd, const void* data, size_t bytes) override {
      return FileSystem::Append(fd, data, full ? bytes / 2 : bytes);
    }
    int Resize(int fd, int64_t bytes) override {
      if (!full) return FileSystem::Resize(fd, bytes);
      errno = EIO;
      return -1;
    }
  } files;
  const TempDir dir;
  JsonlAppender lines(dir / "m.jsonl", files);
  lines.Append("first");
  files.full = true;
  REQUIRE_THROWS_AS(lines.Append("second"), Error);
  REQUIRE_THROWS_AS(lines.Append("third"), Error);
  files.full = false;
  lines.Append("fourth");
  REQUIRE(ReadBytes(dir / "m.jsonl") == "first\nfourth\n");
}

TEST_CASE("a line file goes on where it ended; a partial last line is cut off", "[data][files]") {
  const TempDir dir;
  const std::string big(200000, 'b');
  struct Row {
    std::string before, kept;
  };
  for (const Row& row : {Row{"", ""}, Row{"a\n", "a\n"}, Row{"a\nb", "a\n"}, Row{"partial", ""},
                         Row{big, ""}, Row{"a\n" + big, "a\n"}, Row{big + "\n", big + "\n"}}) {
    WriteBytes(dir / "m.jsonl", row.before);
    JsonlAppender(dir / "m.jsonl").Append("next");
    REQUIRE(ReadBytes(dir / "m.jsonl") == row.kept + "next\n");
  }
  RequireError(ErrorCode::kIo, {dir / "absent/m"}, [&] { JsonlAppender lines(dir / "absent/m"); });
  RequireError(ErrorCode::kIo, {dir.path()}, [&] { JsonlAppender lines(dir.path()); });
}

TEST_CASE("each line is one write", "[data][files]") {
  const TempDir dir;
  FaultyFileSystem files;
  JsonlAppender lines(dir / "m.jsonl", files);
  for (int i = 0; i < 5; ++i) lines.Append(std::string(i * 5000, 'x'));
  int64_t writes = 0;
  for (const auto& call : files.calls()) writes += call.name == "append";
  REQUIRE(writes == 5);
}

}  // namespace
}  // namespace millrace
